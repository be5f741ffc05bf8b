//! Jobs and models of a daemon as tables, from its documents.

use serde_json::Value;

use crate::solve::shown_ms;

use super::tables::plain;

/// A line for a job that is done: where its pictures are, and how long it took.
pub fn done(job: &Value, names: &[String]) -> String {
    let first = &job["pictures"][0];
    let number = |name: &str| first[name].as_u64().unwrap_or_default();
    let (width, height) = (number("width"), number("height"));
    let total = job["usage"]["measured_ms"]["total"].as_f64().unwrap_or_default();
    let pictures = job["pictures"].as_array().into_iter().flatten();
    let seeds: Vec<u64> = pictures.filter_map(|picture| picture["seed"].as_u64()).collect();
    let seeds = super::seeds(&seeds);
    let id = text(&job["id"]);
    format!("{}: {width}x{height} in {}, {seeds}; job {id}", names.join(", "), shown_ms(total))
}

/// The table of `berth jobs`.
pub fn list(list: &Value) -> String {
    let jobs = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    if jobs.is_empty() {
        return "no jobs".to_owned();
    }
    let rows = jobs.iter().map(|job| {
        let pictures = job["pictures"].as_array().map_or(0, Vec::len);
        let of = job["n"].as_u64().unwrap_or(1);
        vec![
            text(&job["id"]),
            text(&job["state"]),
            text(&job["model"]),
            format!("{pictures}/{of}"),
            text(&job["created_at"]),
            shortened(&text(&job["prompt"])),
        ]
    });
    plain(&["JOB", "STATE", "MODEL", "PICTURES", "ACCEPTED", "PROMPT"], rows.collect())
}

/// The table of `berth jobs models`.
pub fn models(models: &Value) -> String {
    let models = models["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows = models.iter().map(|model| {
        let berth = &model["berth"];
        let bytes = protocol::Bytes(berth["files_bytes"].as_u64().unwrap_or_default());
        vec![text(&model["id"]), text(&berth["state"]), bytes.to_string()]
    });
    plain(&["MODEL", "STATE", "FILES"], rows.collect())
}

fn text(value: &Value) -> String {
    match value {
        // Control characters would do something to the terminal.
        Value::String(text) => text.chars().filter(|c| !c.is_control()).collect(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The beginning of a prompt.
fn shortened(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_are_rows_without_what_a_terminal_would_obey() {
        let job = json!({"id": "01A", "state": "running", "model": "demo", "n": 2, "pictures": [],
            "created_at": "2026-01-02T03:04:05Z", "prompt": "a \u{1b}[31mhouse by the sea, at night, with a light in it"});
        let shown = list(&json!({"data": [job]}));
        assert!(shown.contains("01A") && shown.contains("0/2"), "{shown}");
        assert!(shown.contains('…') && !shown.contains('\u{1b}'), "{shown}");
        assert_eq!(list(&json!({"data": []})), "no jobs");
    }

    #[test]
    fn a_job_that_is_done_says_where_its_pictures_are() {
        let job = json!({"id": "01A", "usage": {"measured_ms": {"total": 1500.0}},
            "pictures": [{"width": 64, "height": 32, "seed": 7}, {"seed": 8}]});
        let names = ["a.png".to_owned(), "b.png".to_owned()];
        assert_eq!(done(&job, &names), "a.png, b.png: 64x32 in 1.5 s, seeds 7 to 8; job 01A");
    }
}

//! What A1111 does and nothing here does yet: refused where it is on, accepted where it is off or
//! empty, which is how most clients send it.

use axum::http::StatusCode;
use serde_json::Value;

use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::fields::{Fields, shortened};

/// Switches that must be off.
const SWITCHES: [(&str, &str); 3] = [
    ("enable_hr", "a second pass at a larger size"),
    ("restore_faces", "the repair of faces"),
    ("tiling", "a picture that can be tiled"),
];

/// Numbers that must be 0.
const ZEROS: [(&str, &str); 3] = [
    ("subseed_strength", "a mix of two seeds"),
    ("seed_resize_from_w", "noise of another size"),
    ("seed_resize_from_h", "noise of another size"),
];

/// Texts that must be empty.
const EMPTY: [(&str, &str); 5] = [
    ("script_name", "a script"),
    ("mask", "a change of a part of a picture"),
    ("latent_mask", "a change of a part of a picture"),
    ("refiner_checkpoint", "a second model"),
    ("firstpass_image", "a second pass"),
];

/// What clients write for nothing.
const NOTHING: [&str; 2] = ["", "None"];

/// Refuses what is on.
///
/// # Errors
/// 422 for the first of them.
pub fn check(fields: &mut Fields) -> Result<(), EdgeError> {
    for (name, what) in SWITCHES {
        if fields.is_on(name)? {
            return Err(refused(name, what));
        }
    }
    for (name, what) in ZEROS {
        if fields.value(name).and_then(|value| value.as_f64()).is_some_and(|value| value > 0.0) {
            return Err(refused(name, what));
        }
    }
    for (name, what) in EMPTY {
        let is_nothing = |value: &Value| value.as_str().is_some_and(|v| NOTHING.contains(&v));
        if fields.value(name).is_some_and(|value| !is_nothing(&value)) {
            return Err(refused(name, what));
        }
    }
    scripts(fields)?;
    let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    if fields.value("styles").is_some_and(|styles| !is_empty(&styles)) {
        fields.notice("styles have no effect: there are none here");
    }
    let is = |value: &Value, number: f64| value.as_f64() == Some(number);
    if fields.value("resize_mode").is_some_and(|mode| !is(&mode, 0.0)) {
        fields.notice("resize_mode has no effect: the picture is stretched to the size");
    }
    if fields.value("initial_noise_multiplier").is_some_and(|noise| !is(&noise, 1.0)) {
        fields.notice("initial_noise_multiplier has no effect here");
    }
    if fields.filled_text("infotext")?.is_some() {
        fields.notice("infotext has no effect: send its settings as fields");
    }
    Ok(())
}

/// Scripts that run beside each job, of which clients send also those that are off.
fn scripts(fields: &mut Fields) -> Result<(), EdgeError> {
    let Some(Value::Object(scripts)) = fields.value("alwayson_scripts") else { return Ok(()) };
    match scripts.iter().find(|(_, script)| is_on(script)) {
        Some((name, _)) => {
            let what = format!("the script {}", shortened(name));
            Err(refused("alwayson_scripts", &what))
        }
        None => Ok(()),
    }
}

/// Whether a script's arguments turn it on: a leading `false` or parts that are all off do not.
fn is_on(script: &Value) -> bool {
    let arguments = script.get("args").unwrap_or(script);
    match arguments {
        Value::Array(arguments) => match arguments.first() {
            None | Some(Value::Bool(false)) => false,
            _ => arguments.iter().any(is_part_on),
        },
        Value::Object(part) => !part.is_empty() && is_part_on(arguments),
        other => is_part_on(other),
    }
}

fn is_part_on(part: &Value) -> bool {
    match part {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !NOTHING.contains(&text.as_str()),
        Value::Object(part) => {
            let is_off = |key: &str| part.get(key) == Some(&Value::Bool(false));
            !["enabled", "enable", "is_enabled"].into_iter().any(is_off)
        }
        _ => true,
    }
}

fn refused(name: &str, what: &str) -> EdgeError {
    let message = format!("{name} asks for {what}, which is not made here; hint: turn it off");
    EdgeError { status: StatusCode::UNPROCESSABLE_ENTITY, ..EdgeError::unsupported(name, message) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(body: Value) -> Result<(), EdgeError> {
        let Value::Object(object) = body else { panic!("an object") };
        check(&mut Fields::of(object))
    }

    #[test]
    fn what_is_off_or_empty_is_accepted() {
        for body in [
            json!({}),
            json!({"enable_hr": false, "restore_faces": null, "tiling": "false"}),
            json!({"script_name": "", "mask": null, "refiner_checkpoint": "None"}),
            json!({"subseed_strength": 0.0, "seed_resize_from_w": -1}),
            json!({"alwayson_scripts": {}}),
            json!({"alwayson_scripts": {"ADetailer": {"args": [false]}}}),
            json!({"alwayson_scripts": {"ControlNet": {"args": []}, "Other": {}}}),
            json!({"alwayson_scripts": {"ControlNet": {"args": [{"enabled": false, "image": "x"}]}}}),
        ] {
            assert_eq!(of(body.clone()), Ok(()), "{body}");
        }
    }

    #[test]
    fn what_is_on_is_refused_by_name() {
        for (body, param) in [
            (json!({"enable_hr": true}), "enable_hr"),
            (json!({"restore_faces": true}), "restore_faces"),
            (json!({"tiling": true}), "tiling"),
            (json!({"script_name": "X/Y/Z plot"}), "script_name"),
            (json!({"mask": "aGk="}), "mask"),
            (json!({"subseed_strength": 0.5}), "subseed_strength"),
            (json!({"refiner_checkpoint": "other"}), "refiner_checkpoint"),
            (
                json!({"alwayson_scripts": {"ADetailer": {"args": [true, {"ad_model": "f"}]}}}),
                "alwayson_scripts",
            ),
            (
                json!({"alwayson_scripts": {"ControlNet": {"args": [{"image": "x"}]}}}),
                "alwayson_scripts",
            ),
        ] {
            let error = of(body.clone()).unwrap_err();
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (422, Some(param)),
                "{body}"
            );
        }
    }
}

//! How a job is to be treated, out of JSON: `Policy` of serve.md §9.

use serde_json::Value;

use crate::serve::desk::job::{Class, KeepAlive, OnDisconnect};
use crate::serve::edge::errors::EdgeError;
use crate::serve::edge::json::Members;

use protocol::limits::STEPS_MAX;

/// Longest deadline: a week, in milliseconds.
const DEADLINE_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1000;

/// Milliseconds by unit of a time that is written as text.
const UNITS: [(&str, f64); 4] = [("ms", 1.0), ("s", 1e3), ("m", 60e3), ("h", 3600e3)];

/// What a request says of how its job is treated.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobPolicy {
    /// `priority`.
    pub class: Option<Class>,
    /// Milliseconds from acceptance in which it must be done.
    pub deadline_ms: Option<u64>,
    /// How long its model stays loaded after it.
    pub keep_alive: Option<KeepAlive>,
    /// What becomes of it where its client leaves.
    pub on_disconnect: OnDisconnect,
    /// Steps from one preview to the next.
    pub preview_every: Option<u32>,
    /// What was asked and has no effect, a sentence each.
    pub notices: Vec<String>,
}

/// Takes the members of `Policy`.
///
/// # Errors
/// One of them is wrong: 400 with its name.
pub fn read(members: &mut Members) -> Result<JobPolicy, EdgeError> {
    let mut notices = Vec::new();
    if members.take("checkpoint_every").is_some() {
        notices.push("checkpoint_every has no effect: jobs are not resumed from a step".to_owned());
    }
    Ok(JobPolicy {
        class: class(members)?,
        deadline_ms: members.whole("deadline_ms", 1, DEADLINE_MS_MAX)?,
        keep_alive: keep_alive(members)?,
        on_disconnect: on_disconnect(members)?,
        preview_every: members.whole("preview_every", 1, STEPS_MAX)?,
        notices,
    })
}

/// Takes `priority`.
///
/// # Errors
/// There is none of that name.
pub fn class(members: &mut Members) -> Result<Option<Class>, EdgeError> {
    named(members, "priority", "interactive, batch or background")
}

/// Takes `keep_alive`: seconds as a number, a time as `10m`, or less than 0 for always.
///
/// # Errors
/// It is no time.
pub fn keep_alive(members: &mut Members) -> Result<Option<KeepAlive>, EdgeError> {
    let Some(value) = members.take("keep_alive") else { return Ok(None) };
    let kept = match &value {
        Value::Number(seconds) => seconds.as_f64().and_then(|seconds| kept(seconds * 1e3)),
        Value::String(text) => parse_keep_alive(text),
        _ => None,
    };
    let wrong = "keep_alive must be a time as 10m, seconds, 0 for not at all, or -1 for always";
    kept.map(Some).ok_or_else(|| EdgeError::bad_value("keep_alive", wrong))
}

/// A time as people write it: `10m`, `90s`, `0`, `-1`.
pub fn parse_keep_alive(text: &str) -> Option<KeepAlive> {
    let text = text.trim();
    let with_unit = UNITS.iter().find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)));
    let (number, ms) = with_unit.unwrap_or((text, &1e3));
    let number: f64 = number.trim().parse().ok()?;
    kept(number * ms)
}

fn kept(ms: f64) -> Option<KeepAlive> {
    match ms {
        ms if !ms.is_finite() => None,
        ms if ms < 0.0 => Some(KeepAlive::Always),
        ms => Some(KeepAlive::Ms(ms as u64)),
    }
}

fn on_disconnect(members: &mut Members) -> Result<OnDisconnect, EdgeError> {
    Ok(named(members, "on_disconnect", "cancel or finish")?.unwrap_or_default())
}

fn named<T: serde::de::DeserializeOwned>(
    members: &mut Members,
    name: &str,
    known: &str,
) -> Result<Option<T>, EdgeError> {
    let Some(value) = members.take(name) else { return Ok(None) };
    let wrong = |_| EdgeError::bad_value(name, format!("{name} must be {known}"));
    serde_json::from_value(value).map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_json(value: Value) -> Result<JobPolicy, EdgeError> {
        let Value::Object(object) = value else { panic!("an object") };
        read(&mut Members(object))
    }

    #[test]
    fn all_of_a_policy_is_read() {
        let policy = read_json(json!({
            "priority": "background", "deadline_ms": 1000, "keep_alive": "10m",
            "on_disconnect": "finish", "preview_every": 2, "checkpoint_every": 5,
        }))
        .unwrap();
        assert_eq!(policy.class, Some(Class::Background));
        assert_eq!((policy.deadline_ms, policy.preview_every), (Some(1000), Some(2)));
        assert_eq!(policy.keep_alive, Some(KeepAlive::Ms(600_000)));
        assert_eq!(policy.on_disconnect, OnDisconnect::Finish);
        assert_eq!(policy.notices.len(), 1);
        assert_eq!(read_json(json!({})).unwrap(), JobPolicy::default());
    }

    #[test]
    fn a_time_to_stay_is_a_number_of_seconds_or_has_a_unit() {
        for (text, kept) in [
            (json!("10m"), KeepAlive::Ms(600_000)),
            (json!("1.5h"), KeepAlive::Ms(5_400_000)),
            (json!("250ms"), KeepAlive::Ms(250)),
            (json!("90 s"), KeepAlive::Ms(90_000)),
            (json!(0), KeepAlive::Ms(0)),
            (json!("0"), KeepAlive::Ms(0)),
            (json!(30), KeepAlive::Ms(30_000)),
            (json!(-1), KeepAlive::Always),
            (json!("-1"), KeepAlive::Always),
        ] {
            let policy = read_json(json!({"keep_alive": text})).unwrap();
            assert_eq!(policy.keep_alive, Some(kept), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (param, value) in [
            ("priority", json!("high")),
            ("deadline_ms", json!(0)),
            ("deadline_ms", json!(DEADLINE_MS_MAX + 1)),
            ("keep_alive", json!("soon")),
            ("keep_alive", json!("nan")),
            ("keep_alive", json!(true)),
            ("on_disconnect", json!("stay")),
            ("preview_every", json!(0)),
        ] {
            let error = read_json(json!({ param: value })).expect_err(param);
            assert_eq!(error.param.as_deref(), Some(param));
        }
    }
}

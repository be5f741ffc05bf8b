//! A plan's document made short: segments that lie side by side and are treated alike become one
//! line. Nothing that decides where a byte goes is lost but the sizes of single segments, of which
//! the sums stay.

use serde_json::Value;

/// Segments in a row on one device, with the same residency.
struct Run {
    first: String,
    last: String,
    count: u64,
    device: String,
    residency: String,
    part_bytes: Vec<u64>,
}

/// Shortens each component's segments in place. An infeasible answer has none.
pub fn reduce(document: &mut Value) {
    let components = document.get_mut("components").and_then(Value::as_array_mut);
    for component in components.into_iter().flatten() {
        let segments = component["segments"].as_array().expect("a component has segments");
        component["segments"] = runs(segments).iter().map(Run::line).collect();
    }
}

fn runs(segments: &[Value]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for segment in segments {
        let text = |field: &str| segment[field].as_str().expect("a name").to_owned();
        let bytes = segment["part_bytes"].as_array().expect("a size for each part");
        let bytes: Vec<u64> = bytes.iter().map(|b| b.as_u64().expect("bytes")).collect();
        let (name, device) = (text("name"), text("device"));
        // Those of the devices in their order, where they differ.
        let residency = match segment.get("device_residencies").and_then(Value::as_array) {
            Some(each) => {
                each.iter().map(|one| one.as_str().expect("a word")).collect::<Vec<_>>().join("/")
            }
            None => text("residency"),
        };
        match runs.last_mut() {
            Some(run) if run.device == device && run.residency == residency => {
                run.last = name;
                run.count += 1;
                run.part_bytes.iter_mut().zip(&bytes).for_each(|(sum, bytes)| *sum += bytes);
            }
            _ => runs.push(Run {
                first: name.clone(),
                last: name,
                count: 1,
                device,
                residency,
                part_bytes: bytes,
            }),
        }
    }
    runs
}

impl Run {
    /// `3 on cuda0, streamed, [1200] B: transformer_blocks.0 to transformer_blocks.2`
    fn line(&self) -> Value {
        let Run { first, last, count, device, residency, part_bytes } = self;
        let to = if count > &1 { format!(" to {last}") } else { String::new() };
        Value::from(format!("{count} on {device}, {residency}, {part_bytes:?} B: {first}{to}"))
    }
}

//! Places that cannot matter: another one is no worse in any respect.

use protocol::Bytes;

use super::place::{Place, PlacePart};
use super::search::Choice;

/// The choices, of one component, without those that another one covers: no more in any part of the score, no more bytes
/// on any device in any phase; among equals the first one stays. A combination with a covered choice is no better than
/// the same with the one that covers it, so nothing that could be best is lost.
pub fn undominated(choices: impl Iterator<Item = Choice>, places: &[Place]) -> Vec<Choice> {
    let mut kept: Vec<Choice> = Vec::new();
    for choice in choices {
        if kept.iter().any(|other| covers(other, &choice, places)) {
            continue;
        }
        kept.retain(|other| !covers(&choice, other, places));
        kept.push(choice);
    }
    kept
}

fn covers(first: &Choice, second: &Choice, places: &[Place]) -> bool {
    if !first.score.covers(&second.score) {
        return false;
    }
    let (a, b) = (&places[first.index].parts, &places[second.index].parts);
    let no_more = a.iter().all(|part| {
        let other = b.iter().find(|other| other.device == part.device);
        other.is_some_and(|other| takes_no_more(part, other))
    });
    // Of two that cover each other the first one in the inventory's order stays.
    no_more && (first.index < second.index || !second.score.covers(&first.score) || a != b)
}

/// Whether a part takes no more than another one of the same device in any phase. What is lazy counts in its own phase
/// only, beside what is resident.
fn takes_no_more(a: &PlacePart, b: &PlacePart) -> bool {
    let now = |part: &PlacePart| -> Bytes {
        part.resident_bytes + part.lazy_bytes + part.staging_bytes()
    };
    a.resident_bytes <= b.resident_bytes && now(a) <= now(b) && a.compute_bytes <= b.compute_bytes
}

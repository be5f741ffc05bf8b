//! About what a split takes with other shares, or with another device first: its bytes follow from
//! those of the split that was sized.

use protocol::profile::LayoutPart;
use protocol::{Bytes, Division};

use super::super::place::ComponentLayout;

/// A split in another division of its kind, by heads or by layers. A device has as much of each
/// segment's weights as its share is, and the arena that it has. `None` for other kinds.
pub(super) fn divided(layout: &ComponentLayout, division: Division) -> Option<ComponentLayout> {
    let parts = match (&layout.division, &division) {
        (Division::Tensor { .. }, Division::Tensor { .. }) => by_heads(layout, &division)?,
        (Division::Layer { .. }, Division::Layer { segments }) => by_layers(layout, segments),
        _ => return None,
    };
    Some(ComponentLayout { division, parts: parts.into(), ..layout.clone() })
}

/// A tensor split with another one of its devices first, which changes places with the one that
/// was: each keeps its share, and has the arena of its new place.
pub(super) fn with_first(layout: &ComponentLayout, first: usize) -> Option<ComponentLayout> {
    let mut shares = layout.division.tensor_shares()?.to_vec();
    shares.swap(0, first);
    let mut other = divided(layout, Division::Tensor { shares })?;
    other.devices.swap(0, first);
    Some(other)
}

fn by_heads(layout: &ComponentLayout, division: &Division) -> Option<Vec<LayoutPart>> {
    let [own, other] = [parts_of_all(&layout.division)?, parts_of_all(division)?];
    let mut parts = layout.parts.to_vec();
    for segment in 0..layout.segments() {
        let bytes = |part: &LayoutPart| part.segment_bytes[segment].0 as f64;
        let of_others = layout.parts.iter().skip(1).map(bytes).sum::<f64>();
        let cut = of_others / own.iter().skip(1).sum::<f64>();
        // The first device also has what is not cut.
        let whole = bytes(&layout.parts[0]) - cut * own[0];
        for (lane, (part, share)) in parts.iter_mut().zip(&other).enumerate() {
            let whole = if lane == 0 { whole } else { 0.0 };
            part.segment_bytes[segment] = Bytes((cut * share + whole).max(0.0) as u64);
        }
    }
    Some(parts)
}

fn by_layers(layout: &ComponentLayout, lanes: &[u32]) -> Vec<LayoutPart> {
    let mut parts = layout.parts.to_vec();
    for (segment, lane) in lanes.iter().enumerate() {
        let bytes = layout.segment_bytes(segment);
        for (at, part) in parts.iter_mut().enumerate() {
            part.segment_bytes[segment] = if at == *lane as usize { bytes } else { Bytes::ZERO };
        }
    }
    parts
}

/// The parts of all heads that the devices of a tensor split have.
fn parts_of_all(division: &Division) -> Option<Vec<f64>> {
    let shares = division.tensor_shares()?;
    let all: f64 = shares.iter().copied().map(f64::from).sum();
    Some(shares.iter().map(|share| f64::from(*share) / all).collect())
}

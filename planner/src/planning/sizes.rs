//! The exact bytes of layouts, as the executor states them.

use std::collections::BTreeMap;

use protocol::limits::LAYOUTS_MAX;
use protocol::{Command, Event, GraphOptions, JobShape, Layout, LayoutBytes, ModelProfile};

use super::{PlanError, Request};
use crate::engine::session::Session;
use crate::solve::{LayoutQuery, SizedLayout};

/// The exact bytes of the layouts that are wanted, in their order.
pub fn sizes<'k>(
    session: &mut Session,
    request: &Request,
    job: &JobShape,
    (options, profile): (&GraphOptions, &ModelProfile),
    wanted: &[LayoutQuery],
    known: impl Fn(&LayoutQuery) -> Option<&'k SizedLayout>,
) -> Result<Vec<SizedLayout>, PlanError> {
    let mut bytes: BTreeMap<&Layout, SizedLayout> = BTreeMap::new();
    for wanted in wanted {
        if let Some(known) = known(wanted) {
            bytes.insert(&wanted.layout, known.clone());
        }
    }
    // Devices of one kind have the same layouts: each is asked for once.
    let layouts = wanted.iter().map(|wanted| &wanted.layout);
    let mut layouts: Vec<&Layout> = layouts.filter(|layout| !bytes.contains_key(layout)).collect();
    layouts.sort_unstable();
    layouts.dedup();
    for layouts in layouts.chunks(LAYOUTS_MAX) {
        tracing::debug!(layouts = layouts.len(), "asks for the bytes of layouts");
        let command = Command::Size {
            model: request.model.clone(),
            job: job.clone(),
            options: options.clone(),
            threads: request.inventory.host.cores as u32,
            layouts: layouts.iter().copied().cloned().collect(),
        };
        let sized = session.ask("Size", command, |event| match event {
            Event::Sized(bytes) => Ok(bytes),
            other => Err(other),
        })?;
        let answers = |(layout, bytes): (&&Layout, &LayoutBytes)| {
            let lanes = layout.lanes.len();
            let mut components = profile.components.iter();
            let component = components.find(|component| component.name == layout.component);
            let segments = component.map_or(0, |component| component.segments.len());
            (lanes..=lanes + 1).contains(&bytes.parts.len())
                && bytes.parts.iter().all(|part| part.segment_bytes.len() == segments)
        };
        if sized.len() != layouts.len() || !layouts.iter().zip(&sized).all(answers) {
            return Err(PlanError::Unsettled("the sizes are of other layouts".to_owned()));
        }
        bytes.extend(layouts.iter().copied().zip(sized.into_iter().map(SizedLayout::from)));
    }
    Ok(wanted.iter().map(|wanted| bytes[&wanted.layout].clone()).collect())
}

//! A component's graph, cut over several devices by heads and features: the graph in which each of
//! them computes its part of each block, beside the others.
//!
//! ```text
//! device 0:  whole ─► rows of q, k, v ─► heads ─► columns of the next ─► summand 0 ─┬─► sum, whole
//!                                                                                  ╳
//! device 1:  whole ─► rows of q, k, v ─► heads ─► columns of the next ─► summand 1 ─┴─► sum, whole
//! ```
//! Which values are cut follows from the graph ([`Cuts`]): what a product makes that another one
//! sums up, if every operation between the two can compute on some of the features. All else is
//! whole. What of it a device needs for its parts it computes by itself, norms and residual sums;
//! other products within blocks are split by rows, and their results gathered.
//!
//! Summands cross in parts, some tokens after the others: while one is on its way, the product
//! makes the next.
//!
//! Summands are added in the order of the devices, in f32, and so on each device: all have the same
//! bits. They are not those of one device, which sums up in another order.

mod cuts;
mod parts;

pub use cuts::Cuts;

use protocol::Bytes;
use protocol::profile::SummandProfile;

use crate::graph::Graph;

/// A component's graph on devices with such shares; `cuts` are the graph's. `largest` is the graph
/// of the component's inputs at their largest: for all sizes of these the same is done in parts.
///
/// # Errors
/// Why it cannot be cut so.
pub fn cut(graph: &Graph, largest: &Graph, cuts: &Cuts, shares: &[u32]) -> Result<Graph, String> {
    let most = cuts.parts_max();
    if most < shares.len() {
        return Err(match most {
            1 => "it has no heads that devices can share".to_owned(),
            most => format!("its heads can be shared by {most} devices, not by {}", shares.len()),
        });
    }
    Ok(parts::cut(graph, largest, cuts, shares))
}

/// The summands that each device of a cut graph has of each other one: of the results that all
/// devices read. None where it cannot be cut.
pub fn summands(graph: &Graph, cuts: &Cuts) -> SummandProfile {
    if cuts.parts_max() < 2 {
        return SummandProfile::default();
    }
    let nodes = graph.nodes.iter().zip(parts::copied(graph, cuts));
    let sums = nodes.filter(|(node, copied)| *copied && cuts.sums(node)).map(|(node, _)| node);
    let products = graph.work(sums.clone());
    let mut summands = SummandProfile { products, ..SummandProfile::default() };
    for node in sums {
        let value = graph.value(node.output);
        let parts = parts::token_parts(graph, cuts, node) as u64;
        summands.bytes += value.bytes();
        summands.last_bytes += Bytes(value.bytes().0 / parts);
    }
    summands
}

#[cfg(test)]
mod tests;

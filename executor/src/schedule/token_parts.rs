//! Nodes that are computed in parts, some tokens after the others: which are so together, and which
//! tokens are in each part.

use std::ops::Range;

use crate::graph::{Graph, Node, ValueId};

/// Tokens of a part come in multiples of this: whole tiles of most kernels.
const TOKEN_MULTIPLE: usize = 32;

/// The nodes from one on that are computed in as many parts of as many tokens, none of them with
/// what another one makes.
pub fn in_parts_together(graph: &Graph, first: usize) -> Range<usize> {
    let tokens = |node: &Node| (node.token_parts, graph.value(node.output).rows());
    let of_first = tokens(&graph.nodes[first]);
    let mut end = first;
    while let Some(node) = graph.nodes.get(end).filter(|node| node.token_parts > 1) {
        let made = |input: &ValueId| graph.nodes[first..end].iter().any(|n| n.output == *input);
        if tokens(node) != of_first || node.inputs.iter().any(made) {
            break;
        }
        end += 1;
    }
    first..end
}

/// Deals tokens out to so many parts, in multiples of [`TOKEN_MULTIPLE`], and what is no whole
/// multiple to the part that would get the next. With fewer tokens no part has more of them: what
/// has room for all that a component may be given has room for less. Too few for all parts are in
/// the first, as a few rows are multiplied in another way.
pub fn token_ranges(tokens: usize, parts: usize) -> Vec<Range<usize>> {
    let (units, rest) = (tokens / TOKEN_MULTIPLE, tokens % TOKEN_MULTIPLE);
    let mut end = 0;
    let range = |part: usize| {
        let count = match units < parts {
            true if part == 0 => tokens,
            true => 0,
            false => {
                let more = usize::from(part < units % parts);
                let last = if part == units % parts { rest } else { 0 };
                (units / parts + more) * TOKEN_MULTIPLE + last
            }
        };
        end += count;
        end - count..end
    };
    (0..parts).map(range).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tokens_are_dealt_once_each_and_fewer_take_no_more_room(
            parts in 2..5_usize,
            each in 128..2000_usize,
            fewer in 1..10_000_usize,
        ) {
            let tokens = parts * each + fewer % parts;
            let fewer = 1 + fewer % tokens;
            let [all, some] = [tokens, fewer].map(|tokens| token_ranges(tokens, parts));
            for (tokens, ranges) in [(tokens, &all), (fewer, &some)] {
                let mut at = 0;
                for range in ranges {
                    prop_assert_eq!(range.start, at);
                    prop_assert!(range.len() >= TOKEN_MULTIPLE || [0, tokens].contains(&range.len()));
                    at = range.end;
                }
                prop_assert_eq!(at, tokens);
            }
            for (all, some) in all.iter().zip(&some) {
                prop_assert!(some.len() <= all.len(), "{some:?} of {all:?}");
            }
        }
    }
}

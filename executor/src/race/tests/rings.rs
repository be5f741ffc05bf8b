//! Rings of slots and pipelines over several devices, whole and with each single event left out.

use super::*;

/// A ring as a device with streams runs it: copies and computation meet in their events only.
#[derive(Clone, Copy)]
struct Ring {
    slots: usize,
    items: usize,
    /// Of all waits, counted from 0, the one that is left out.
    left_out: Option<usize>,
}

const SLOT_BYTES: u64 = 256;

impl Ring {
    /// Records `items` segments that go through the ring; the answer is how many waits there are.
    fn record(&self, trace: &Trace, region: u64, streams: [StreamId; 2]) -> usize {
        let [copies, compute] = streams;
        let mut waits = 0;
        let mut wait = |stream, event: Option<&EventId>| {
            if let Some(&event) = event {
                if self.left_out != Some(waits) {
                    trace.wait(stream, event);
                }
                waits += 1;
            }
        };
        let mut used: Vec<EventId> = Vec::new();
        for item in 0..self.items {
            let start = (item % self.slots) as u64 * SLOT_BYTES;
            let slot = [Span::new(region, start, SLOT_BYTES)];
            wait(copies, item.checked_sub(self.slots).map(|before| &used[before]));
            trace.record(copies, &format!("load {item}"), &[], &slot);
            let ready = trace.signal(copies);
            wait(compute, Some(&ready));
            let values = [Span::new(region + 1, 0, 64)];
            trace.record(compute, &format!("run {item}"), &[&slot[..], &values].concat(), &values);
            used.push(trace.signal(compute));
        }
        waits
    }
}

fn ring_trace(ring: Ring) -> (Trace, usize) {
    let (trace, streams) = trace(["slots", "compute"]);
    let waits = ring.record(&trace, 1, streams);
    (trace, waits)
}

#[test]
fn rings_are_in_order() {
    for slots in [1, 2, 3, 4, 8] {
        let ring = Ring { slots, items: 40, left_out: None };
        assert_eq!(ring_trace(ring).0.races(), [], "{slots} slots");
    }
}

#[test]
fn each_event_of_a_ring_is_needed() {
    for slots in [1, 2, 4] {
        let ring = Ring { slots, items: 9, left_out: None };
        let (_, waits) = ring_trace(ring);
        assert_eq!(waits, 9 + 9 - slots);
        for left_out in 0..waits {
            let (trace, _) = ring_trace(Ring { left_out: Some(left_out), ..ring });
            let races = trace.races();
            assert!(!races.is_empty(), "{slots} slots without wait {left_out}");
            let in_ring = |race: &Race| race.region == 1 && race.bytes.len() == 1;
            assert!(races.iter().all(in_ring), "{races:?}");
            let first = &races[0];
            let pair = [first.earlier.name.as_str(), first.later.name.as_str()];
            let is_pair =
                |words: [&str; 2]| pair[0].starts_with(words[0]) && pair[1].starts_with(words[1]);
            assert!(is_pair(["load", "run"]) || is_pair(["run", "load"]), "{first}");
        }
    }
}

#[test]
fn what_is_left_out_is_named() {
    let ring = Ring { slots: 2, items: 6, left_out: None };
    // Waits: ready 0, ready 1, used 0, ready 2, used 1, ready 3, …
    let (trace, _) = ring_trace(Ring { left_out: Some(3), ..ring });
    assert_eq!(found(&trace), ["load 2, run 2: 0..256"]);
    let (trace, _) = ring_trace(Ring { left_out: Some(4), ..ring });
    assert_eq!(found(&trace), ["run 1, load 3: 256..512"]);
}

/// Two devices with a ring each, between which values go, over many steps: as large as a long run.
fn long_run(steps: usize, left_out: Option<usize>) -> Trace {
    const LAYERS: usize = 50;
    let (trace, [host, copies0, compute0, moves, copies1, compute1]) =
        trace(["host", "slots 0", "compute 0", "moves", "slots 1", "compute 1"]);
    let mut back: Option<EventId> = None;
    for step in 0..steps {
        let issue = trace.signal(host);
        trace.wait(compute0, issue);
        back.into_iter().for_each(|event| trace.wait(compute0, event));
        let values = |region| [Span::new(region, 0, 4096)];
        for layer in 0..LAYERS {
            // Each layer writes another part of the arena.
            let part = [Span::new(2, (layer % 7) as u64 * 512, 512)];
            trace.record(compute0, "layer", &values(2), &part);
        }
        let ring = Ring { slots: 2, items: LAYERS, left_out: None };
        // Each step has a ring of its own, which was allocated for it.
        ring.record(&trace, 100 + 4 * step as u64, [copies0, compute0]);
        let there =
            trace.operation(moves, "send", &values(2), &values(3), &[trace.signal(compute0)]);
        if left_out != Some(step) {
            trace.wait(compute1, there);
        }
        trace.record(compute1, "read", &values(3), &values(4));
        ring.record(&trace, 102 + 4 * step as u64, [copies1, compute1]);
        let returned =
            trace.operation(moves, "return", &values(4), &values(5), &[trace.signal(compute1)]);
        trace.wait(host, returned);
        back = Some(returned);
    }
    trace
}

#[test]
fn a_long_run_is_checked_and_its_one_missing_event_found() {
    // 253 operations a step.
    let trace = long_run(800, None);
    assert!(trace.operations() > 200_000);
    assert_eq!(trace.races(), []);
    let trace = long_run(800, Some(700));
    // The step before returns what is read into now, and what is sent is read before it is there.
    assert_eq!(found(&trace), ["return, read: 0..4096", "send, read: 0..4096"]);
}

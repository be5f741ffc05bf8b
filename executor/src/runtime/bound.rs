//! A component in its phase: its inputs are written, its program is run, its outputs are read.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use protocol::{Bytes, DeviceId, Failure};

use super::component::Component;
use super::devices::Devices;
use crate::backend::{CancelFlag, NodeCall, Region, Stopped, Ticket};
use crate::graph::{Graph, Port};
use crate::race::{Edge, Span};
use crate::schedule::{Instruction, Schedule, Transfer};

/// The most passes of a step: for the prompt and for the negative one.
pub const PASSES_MAX: usize = 2;

/// A component, ready to run, for one size of its inputs in each pass of a step.
#[derive(Clone, Copy)]
pub struct Bound<'a> {
    component: &'a Component,
    devices: &'a Devices,
    variants: [usize; PASSES_MAX],
    pass: usize,
}

impl<'a> Bound<'a> {
    /// A component that entered its phase on these devices.
    pub fn new(component: &'a Component, devices: &'a Devices) -> Bound<'a> {
        Bound { component, devices, variants: [0; PASSES_MAX], pass: 0 }
    }

    /// The same for another size of its inputs.
    pub fn variant(self, variant: usize) -> Bound<'a> {
        Bound { variants: [variant; PASSES_MAX], ..self }
    }

    /// The same for another size of its inputs in each pass of a step.
    pub fn variants(self, variants: [usize; PASSES_MAX]) -> Bound<'a> {
        Bound { variants, ..self }
    }

    /// The same for what is written and read of another pass of a step.
    pub fn pass(self, pass: usize) -> Bound<'a> {
        Bound { pass, ..self }
    }

    /// The passes of a step that each call computes. One call computes all of them where several
    /// devices have the component's items, or groups of these follow one another; else each pass
    /// has a call of its own.
    pub fn calls(&self, passes: usize) -> Vec<Range<usize>> {
        let together = if self.is_joined() { passes.max(1) } else { 1 };
        (0..passes).step_by(together).map(|first| first..first + together).collect()
    }

    /// Writes one batch item of a floating-point input, or the whole of one without items.
    pub fn write(&self, port: &str, item: usize, values: &[f32]) -> Result<(), Failure> {
        self.write_bytes(port, item, bytemuck::cast_slice(values))
    }

    /// Gives an input its numbers of tokens.
    pub fn write_ids(&self, port: &str, ids: &[i32]) -> Result<(), Failure> {
        self.write_bytes(port, 0, bytemuck::cast_slice(ids))
    }

    fn write_bytes(&self, port: &str, item: usize, source: &[u8]) -> Result<(), Failure> {
        let start = Instant::now();
        let written = self.write_to_lanes(port, item, source);
        self.component.times.computed(start);
        written
    }

    fn write_to_lanes(&self, name: &str, item: usize, source: &[u8]) -> Result<(), Failure> {
        let schedule = self.schedule();
        let given = item * source.len()..(item + 1) * source.len();
        let mut size = 0;
        for port in Graph::ports(&schedule.graph.inputs, name).filter(|port| self.is_of_pass(port))
        {
            let held = self.held(port);
            size = size.max(held.end);
            let [begin, end] = [given.start.max(held.start), given.end.min(held.end)];
            if begin >= end {
                continue;
            }
            let part = &source[begin - given.start..end - given.start];
            for (lane, offset) in schedule.input_places(port.value) {
                let backend = self.devices.backend(&self.component.devices[lane]);
                let arena = self.arena(lane);
                let at = offset + Bytes((begin - held.start) as u64);
                if let Some(tracer) = self.devices.tracer() {
                    let bytes = Span::new(arena.id(), at.0, part.len() as u64);
                    tracer.exchange(&self.component.devices[lane], &[], &[bytes]);
                }
                backend.write(arena, at, part)?;
            }
        }
        assert!(given.end <= size, "more than input {name} holds");
        Ok(())
    }

    /// Reads a whole output.
    pub fn read(&self, name: &str, values: &mut [f32]) -> Result<(), Failure> {
        let schedule = self.schedule();
        let start = Instant::now();
        let values: &mut [u8] = bytemuck::cast_slice_mut(values);
        let mut read = 0;
        for port in Graph::ports(&schedule.graph.outputs, name).filter(|port| self.is_of_pass(port))
        {
            let held = self.held(port);
            let (lane, offset) = schedule.output_place(port.value);
            let backend = self.devices.backend(&self.component.devices[lane]);
            let arena = self.arena(lane);
            if let Some(tracer) = self.devices.tracer() {
                let bytes = Span::new(arena.id(), offset.0, held.len() as u64);
                tracer.exchange(&self.component.devices[lane], &[bytes], &[]);
            }
            read += held.len();
            backend.read(arena, offset, &mut values[held])?;
        }
        assert_eq!(read, values.len(), "size of output {name}");
        self.component.times.computed(start);
        Ok(())
    }

    /// Which bytes a port holds of all that is given or taken under its name.
    fn held(&self, port: &Port) -> Range<usize> {
        let value = self.schedule().graph.value(port.value);
        let begin = port.begin * value.element.bytes() as usize;
        begin..begin + value.bytes().as_usize()
    }

    fn is_of_pass(&self, port: &Port) -> bool {
        let runs = &self.schedule().graph.item_runs;
        runs.get(port.item_run).is_none_or(|run| run.pass == self.pass)
    }

    /// Runs the component once; between two nodes it may be cancelled.
    pub fn run(&self, cancel: &CancelFlag) -> Result<(), Failure> {
        let mut copies = vec![None; self.schedule().transfers.len()];
        let start = Instant::now();
        let done = self.steps(cancel, &mut copies);
        // Also after an error, and all of them: arenas must not go before what is computed there.
        let ended = self.component.devices.iter().map(|id| self.devices.backend(id).end_call());
        let done = ended.collect::<Vec<_>>().into_iter().fold(done, Result::and);
        self.component.times.count_call(start);
        if done.is_err() {
            // Arenas must not go before the copies that touch them.
            copies.iter().flatten().for_each(|ticket: &Ticket| drop(ticket.wait()));
        }
        Ok(done?)
    }

    fn steps(&self, cancel: &CancelFlag, copies: &mut [Option<Ticket>]) -> Result<(), Stopped> {
        // All sizes have the same instructions, each on its own values.
        for (at, instruction) in self.schedule().program.iter().enumerate() {
            match instruction {
                Instruction::Run(run) => {
                    cancel.check()?;
                    let schedule = self.schedule_of(self.schedule().graph.nodes[run.node].item_run);
                    let Instruction::Run(run) = &schedule.program[at] else {
                        panic!("sizes of {} have other instructions", self.component.name)
                    };
                    if run.is_empty() {
                        continue;
                    }
                    let memory = self.component.memory_now(run.lane);
                    let files = &self.component.files;
                    let backend = self.devices.backend(&self.component.devices[run.lane]);
                    let call = NodeCall { schedule, run, memory: &memory, files };
                    if let Some(tracer) = self.devices.tracer() {
                        let [reads, writes] = call.spans();
                        let name = schedule.graph.nodes[run.node].op.name();
                        tracer.compute(&self.component.devices[run.lane], name, &reads, &writes);
                    }
                    backend.run(&call)?;
                }
                // Of a part without tokens.
                Instruction::Start(copy) | Instruction::Wait(copy)
                    if self.transfer(*copy).bytes() == Bytes::ZERO => {}
                Instruction::Start(copy) => copies[*copy] = Some(self.start(*copy)),
                Instruction::Wait(copy) => {
                    let ticket = copies[*copy].take();
                    let ticket = ticket.expect("a copy is started before it is waited for");
                    if let Some(tracer) = self.devices.tracer() {
                        tracer.arrive(self.ends(*copy), ticket.event());
                    }
                    for device in self.ends(*copy) {
                        self.devices.backend(device).join(&ticket, Edge::Arrival)?;
                    }
                }
                Instruction::Acquire { lane, item } => {
                    let backend = self.devices.backend(&self.component.devices[*lane]);
                    self.ring(*lane).acquire(backend, *item)?;
                }
                Instruction::Release { lane, item } => {
                    let backend = self.devices.backend(&self.component.devices[*lane]);
                    self.ring(*lane).release(backend, *item);
                }
            }
        }
        Ok(())
    }

    fn start(&self, copy: usize) -> Ticket {
        let transfer = *self.transfer(copy);
        let arenas = [transfer.from_lane, transfer.to_lane].map(|lane| self.arena(lane));
        self.devices.copy(self.ends(copy), arenas, transfer)
    }

    /// The devices of a copy: from, to.
    fn ends(&self, copy: usize) -> [&'a DeviceId; 2] {
        let transfer = self.transfer(copy);
        [transfer.from_lane, transfer.to_lane].map(|lane| &self.component.devices[lane])
    }

    fn transfer(&self, copy: usize) -> &'a Transfer {
        &self.schedule_of(self.schedule().transfer_runs[copy]).transfers[copy]
    }

    /// Whether a call makes all passes of a step.
    fn is_joined(&self) -> bool {
        !self.schedule().graph.item_runs.is_empty()
    }

    /// The schedule of the pass.
    fn schedule(&self) -> &'a Arc<Schedule> {
        &self.component.variants[self.variants[self.pass]]
    }

    /// The schedule by which some items are computed, in the size that their pass has.
    fn schedule_of(&self, item_run: usize) -> &'a Arc<Schedule> {
        let own = self.schedule();
        match own.graph.item_runs.get(item_run) {
            Some(run) => &self.component.variants[self.variants[run.pass]],
            None => own,
        }
    }

    fn arena(&self, lane: usize) -> &'a Arc<Region> {
        self.component.memory[lane].arena.as_ref().expect("the component's phase was entered")
    }

    fn ring(&self, lane: usize) -> &crate::backend::Ring {
        self.component.rings[lane].as_ref().expect("the component's phase was entered")
    }
}

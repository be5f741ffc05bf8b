//! A component in its phase: its inputs are written, its program is run, its outputs are read.

use std::sync::Arc;
use std::time::Instant;

use protocol::{Bytes, DeviceId, Failure};

use super::component::Component;
use super::devices::Devices;
use crate::backend::{CancelFlag, NodeCall, Region, Stopped, Ticket};
use crate::race::{Edge, Span};
use crate::schedule::{Instruction, Schedule};

/// A component, ready to run, for one size of its inputs.
pub struct Bound<'a> {
    component: &'a Component,
    devices: &'a Devices,
    variant: usize,
}

impl<'a> Bound<'a> {
    /// A component that entered its phase on these devices.
    pub fn new(component: &'a Component, devices: &'a Devices) -> Bound<'a> {
        Bound { component, devices, variant: 0 }
    }

    /// The same for another size of its inputs.
    pub fn variant(self, variant: usize) -> Bound<'a> {
        Bound { variant, ..self }
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

    fn write_to_lanes(&self, port: &str, item: usize, source: &[u8]) -> Result<(), Failure> {
        let schedule = self.schedule();
        let value = schedule.graph.input(port);
        let size = schedule.graph.value(value).bytes();
        let start = Bytes((item * source.len()) as u64);
        assert!(start + Bytes(source.len() as u64) <= size, "more than input {port} holds");
        for (lane, offset) in schedule.input_places(value) {
            let backend = self.devices.backend(&self.component.devices[lane]);
            let arena = self.arena(lane);
            if let Some(tracer) = self.devices.tracer() {
                let bytes = Span::new(arena.id(), (offset + start).0, source.len() as u64);
                tracer.exchange(&self.component.devices[lane], &[], &[bytes]);
            }
            backend.write(arena, offset + start, source)?;
        }
        Ok(())
    }

    /// Reads a whole output.
    pub fn read(&self, port: &str, values: &mut [f32]) -> Result<(), Failure> {
        let schedule = self.schedule();
        let value = schedule.graph.output(port);
        assert_eq!(schedule.graph.value(value).elements(), values.len(), "size of output {port}");
        let (lane, offset) = schedule.output_place(value);
        let backend = self.devices.backend(&self.component.devices[lane]);
        let arena = self.arena(lane);
        if let Some(tracer) = self.devices.tracer() {
            let bytes = Span::new(arena.id(), offset.0, size_of_val(values) as u64);
            tracer.exchange(&self.component.devices[lane], &[bytes], &[]);
        }
        let values = bytemuck::cast_slice_mut(values);
        let start = Instant::now();
        backend.read(arena, offset, values)?;
        self.component.times.computed(start);
        Ok(())
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
        let schedule = self.schedule();
        for instruction in &schedule.program {
            match instruction {
                Instruction::Run(run) => {
                    cancel.check()?;
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
        let transfer = self.schedule().transfers[copy];
        let arenas = [transfer.from_lane, transfer.to_lane].map(|lane| self.arena(lane));
        self.devices.copy(self.ends(copy), arenas, transfer)
    }

    /// The devices of a copy: from, to.
    fn ends(&self, copy: usize) -> [&'a DeviceId; 2] {
        let transfer = &self.schedule().transfers[copy];
        [transfer.from_lane, transfer.to_lane].map(|lane| &self.component.devices[lane])
    }

    fn schedule(&self) -> &'a Arc<Schedule> {
        &self.component.variants[self.variant]
    }

    fn arena(&self, lane: usize) -> &'a Arc<Region> {
        self.component.memory[lane].arena.as_ref().expect("the component's phase was entered")
    }

    fn ring(&self, lane: usize) -> &crate::backend::Ring {
        self.component.rings[lane].as_ref().expect("the component's phase was entered")
    }
}

//! What a runtime records: each device's computation and copies as streams of their own, with the
//! events that order them.
//!
//! The streams are those of a device that computes by itself, as a GPU does; that this process
//! computes for its virtual devices one node after the other orders nothing here. A schedule that
//! passes is one for such devices too. Of a GPU nothing is recorded here: its own streams record
//! what they are really given ([`GpuTrace`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use protocol::DeviceId;

use super::{EventId, Span, StreamId, Trace};

/// A kind of edge between streams, which a test can leave out to see that it is missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// A slot's copy has ended before its segment is computed.
    Ready,
    /// A slot's segment was computed before the next copy into it.
    Used,
    /// What a copy reads and overwrites is done with before it starts.
    Departure,
    /// A copy has ended before what comes after its wait.
    Arrival,
    /// A component's weights are there before it is computed.
    Loaded,
}

/// The streams of one device.
#[derive(Debug, Clone, Copy)]
struct Streams {
    compute: StreamId,
    loads: StreamId,
    slots: StreamId,
    activations: StreamId,
}

/// Where a GPU's streams record.
#[derive(Debug, Clone)]
pub struct GpuTrace {
    /// Where operations are recorded.
    pub trace: Arc<Trace>,
    /// The stream of the thread that hands out work.
    pub host: StreamId,
    /// The kind of edge that is left out.
    pub left_out: Option<Edge>,
}

/// Records a runtime's work.
#[derive(Debug)]
pub struct Tracer {
    trace: Arc<Trace>,
    host: StreamId,
    devices: BTreeMap<DeviceId, Streams>,
    left_out: Option<Edge>,
}

impl Tracer {
    /// Records into a trace what these devices, none of them a GPU, do; all edges but one to leave
    /// out.
    pub fn new<'a>(
        trace: &Arc<Trace>,
        devices: impl Iterator<Item = &'a DeviceId>,
        left_out: Option<Edge>,
    ) -> Tracer {
        let host = trace.stream("host");
        let streams = |id: &DeviceId| {
            let stream = |what: &str| trace.stream(&format!("{id} {what}"));
            let compute = if id.is_host() { host } else { stream("compute") };
            let streams = Streams {
                compute,
                loads: stream("loads"),
                slots: stream("slots"),
                activations: stream("activations"),
            };
            (id.clone(), streams)
        };
        let devices = devices.map(streams).collect();
        Tracer { trace: Arc::clone(trace), host, devices, left_out }
    }

    /// Where a GPU records.
    pub fn for_gpu(&self) -> GpuTrace {
        GpuTrace { trace: Arc::clone(&self.trace), host: self.host, left_out: self.left_out }
    }

    /// A node on a device.
    pub fn compute(&self, device: &DeviceId, name: &str, reads: &[Span], writes: &[Span]) {
        if let Some(streams) = self.devices.get(device) {
            self.trace.record(streams.compute, name, reads, writes);
        }
    }

    /// A copy of activations between two devices, by one of them; the event is its end.
    pub fn copy(
        &self,
        carrier: &DeviceId,
        ends: [&DeviceId; 2],
        reads: &[Span],
        writes: &[Span],
    ) -> Option<EventId> {
        let carrier = self.devices.get(carrier)?;
        let ends = ends.into_iter().filter_map(|id| self.devices.get(id));
        let after: Vec<EventId> = ends.map(|end| self.trace.signal(end.compute)).collect();
        let after = if self.left_out == Some(Edge::Departure) { &[][..] } else { &after };
        Some(self.trace.operation(carrier.activations, "copy", reads, writes, after))
    }

    /// Both ends of a copy wait for it.
    pub fn arrive(&self, ends: [&DeviceId; 2], event: Option<EventId>) {
        ends.into_iter().for_each(|id| self.wait(Edge::Arrival, id, event));
    }

    /// Weights of a component on their way.
    pub fn load(&self, device: &DeviceId, writes: &[Span]) -> Option<EventId> {
        let streams = self.devices.get(device)?;
        let after = [self.trace.signal(self.host)];
        Some(self.trace.operation(streams.loads, "load", &[], writes, &after))
    }

    /// A device, and the pipeline's thread, wait for a component's weights.
    pub fn loaded(&self, device: &DeviceId, event: Option<EventId>) {
        self.wait(Edge::Loaded, device, event);
        if self.left_out != Some(Edge::Loaded) {
            self.join(event);
        }
    }

    /// Weights on their way into a slot that the device's computation has given back.
    pub fn fill(&self, device: &DeviceId, writes: &[Span]) -> Option<EventId> {
        let streams = self.devices.get(device)?;
        let after = [self.trace.signal(self.host), self.trace.signal(streams.compute)];
        let after = if self.left_out == Some(Edge::Used) { &after[..1] } else { &after };
        Some(self.trace.operation(streams.slots, "fill", &[], writes, after))
    }

    /// A device waits for a slot's weights.
    pub fn filled(&self, device: &DeviceId, event: Option<EventId>) {
        self.wait(Edge::Ready, device, event);
    }

    /// A copy between a device and the pipeline, which waits for it, between two runs.
    pub fn exchange(&self, device: &DeviceId, reads: &[Span], writes: &[Span]) {
        let Some(streams) = self.devices.get(device) else { return };
        let after = [self.trace.signal(streams.compute), self.trace.signal(self.host)];
        let end = self.trace.operation(streams.activations, "exchange", reads, writes, &after);
        self.trace.wait(streams.compute, end);
        self.trace.wait(self.host, end);
    }

    /// The pipeline's thread waits for a copy.
    pub fn join(&self, event: Option<EventId>) {
        event.into_iter().for_each(|event| self.trace.wait(self.host, event));
    }

    /// The pipeline's thread frees bytes of a device, once that has computed what it was given.
    pub fn free(&self, device: &DeviceId, bytes: Span) {
        let Some(streams) = self.devices.get(device) else { return };
        let computed = self.trace.signal(streams.compute);
        self.trace.wait(self.host, computed);
        self.trace.record(self.host, "free", &[], &[bytes]);
    }

    fn wait(&self, edge: Edge, device: &DeviceId, event: Option<EventId>) {
        if let (Some(event), Some(streams)) = (event, self.devices.get(device))
            && self.left_out != Some(edge)
        {
            self.trace.wait(streams.compute, event);
        }
    }
}

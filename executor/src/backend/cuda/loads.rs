//! Weights on their way to a GPU: a thread for each queue has the file mapping read into
//! page-locked memory, by several threads at once, and the GPU copies from there by itself.
//!
//! ```text
//! mapping ═► half 0 ─► copy ─► event     a half is read into again once the event after its copy
//!         ═► half 1 ─► copy ─► event     has passed
//! ```
//! A load's ticket is issued when its last copy was handed out.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use protocol::{Bytes, DeviceId};

use super::busy::Busy;
use super::driver::DriverError;
use super::gpu::Gpu;
use super::stream::{Event, Place, Stream};
use crate::backend::moving::Copiers;
use crate::backend::{Queue, Region, Stopped, Ticket, WeightLoad, WeightPiece};
use crate::race::{Edge, GpuTrace, Span};

/// Parts of a queue's staging memory.
const HALVES: usize = 2;

/// The threads.
pub struct Loads {
    device: DeviceId,
    queues: Vec<Sender<Job>>,
    busy: Vec<Arc<Busy>>,
    threads: Vec<JoinHandle<()>>,
}

struct Job {
    load: WeightLoad,
    after: Event,
    ticket: Ticket,
}

impl Loads {
    /// Starts the threads. Each has half of the staging memory, which is page-locked.
    pub fn start(
        device: &DeviceId,
        gpu: &Arc<Gpu>,
        staging: &Arc<Region>,
        trace: Option<&GpuTrace>,
    ) -> Result<Loads, DriverError> {
        let queues = [(Queue::Loads, "loads"), (Queue::Slots, "slots")];
        let mut loads = Loads {
            device: device.clone(),
            queues: Vec::new(),
            busy: Vec::new(),
            threads: Vec::new(),
        };
        let copiers = Arc::new(Copiers::start().map_err(|error| {
            DriverError::own("the threads that copy weights", error.to_string())
        })?);
        let half_bytes = staging.len().as_usize() / (queues.len() * HALVES);
        for (index, (_, name)) in queues.into_iter().enumerate() {
            let mut stager = Stager {
                device: device.clone(),
                stream: Stream::new(gpu, &format!("{device} {name}"), trace)?,
                copiers: Arc::clone(&copiers),
                staging: Arc::clone(staging),
                start: index * HALVES * half_bytes,
                half_bytes,
                reading: [const { None }; HALVES],
                next: 0,
                busy: Arc::default(),
            };
            loads.busy.push(Arc::clone(&stager.busy));
            let (sender, receiver) = channel();
            let thread = std::thread::Builder::new()
                .name("weight-loads".to_owned())
                .spawn(move || stager.serve(&receiver))
                .expect("the system can start a thread");
            loads.queues.push(sender);
            loads.threads.push(thread);
        }
        Ok(loads)
    }

    /// Starts to copy weights, after an event.
    pub fn load(&self, load: WeightLoad, queue: Queue, after: Event) -> Ticket {
        let ticket = Ticket::default();
        let job = Job { load, after, ticket: ticket.clone() };
        if self.queues[queue as usize].send(job).is_err() {
            ticket.end(Err(Stopped::copy_failed(&self.device)));
        }
        ticket
    }

    /// Milliseconds for which both queues copied since this was last asked: of a load, from its
    /// first byte's copy to its last one's, with the waits for staged bytes.
    pub fn take_busy_ms(&self) -> Result<f64, DriverError> {
        self.busy.iter().map(|busy| busy.take_ms()).sum()
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic in it has reached whoever waited for its load already.
            let _ = thread.join();
        }
    }
}

/// What a thread has.
struct Stager {
    device: DeviceId,
    stream: Stream,
    copiers: Arc<Copiers>,
    staging: Arc<Region>,
    start: usize,
    half_bytes: usize,
    /// The copy that reads each half.
    reading: [Option<Event>; HALVES],
    next: usize,
    busy: Arc<Busy>,
}

impl Stager {
    fn serve(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            // Whoever waits must hear of it, should this thread end in the middle.
            let ticket = EndsFailed { ticket: job.ticket, device: &self.device.clone() };
            match self.perform(&job.load, &job.after) {
                Ok(event) => ticket.ticket.issue(&self.device, event),
                Err(stopped) => {
                    // What was handed out may still write; who waited may free its target. An error
                    // is the same one.
                    let _ = self.stream.synchronize();
                    ticket.ticket.end(Err(stopped));
                }
            }
        }
    }

    fn perform(&mut self, load: &WeightLoad, after: &Event) -> Result<Event, Stopped> {
        self.checked(|own| own.stream.wait(after, Edge::Used))?;
        self.checked(|own| own.busy.begin(&own.stream))?;
        let copied = self.copy(load);
        self.checked(|own| own.busy.end(&own.stream))?;
        copied?;
        self.checked(|own| own.stream.recorded())
    }

    fn copy(&mut self, load: &WeightLoad) -> Result<(), Stopped> {
        for entry in load.moves.iter() {
            let mut offset = load.base + entry.offset;
            for piece in entry.pieces(&load.files, self.half_bytes) {
                load.stop.check()?;
                self.checked(|own| match &load.locked {
                    None => own.stage(&piece, &load.region, offset),
                    Some(locked) => {
                        let copy = |target: &mut [u8]| own.copiers.copy(&piece, target);
                        let at = locked.hold(&piece, offset - load.base, copy);
                        own.send((&locked.region, at), piece.bytes(), &load.region, offset)
                    }
                })?;
                offset += Bytes(piece.bytes() as u64);
            }
            load.copied(entry);
        }
        load.ended();
        Ok(())
    }

    fn checked<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, DriverError>,
    ) -> Result<T, Stopped> {
        work(self).map_err(|error| Stopped::driver(&self.device, &error))
    }

    /// Stages a piece, and hands out its copy.
    fn stage(
        &mut self,
        piece: &WeightPiece<'_>,
        region: &Region,
        offset: Bytes,
    ) -> Result<(), DriverError> {
        let half = self.next;
        self.next = (half + 1) % HALVES;
        if let Some(reading) = self.reading[half].take() {
            reading.block()?;
        }
        let at = Bytes((self.start + half * self.half_bytes) as u64);
        // SAFETY: this part of the staging memory is the thread's own, and the copy that read it
        // has ended.
        self.copiers.copy(piece, unsafe { self.staging.bytes_mut(at, piece.bytes()) });
        let staging = Arc::clone(&self.staging);
        self.send((&staging, at), piece.bytes(), region, offset)?;
        self.reading[half] = Some(self.stream.recorded()?);
        Ok(())
    }

    /// Hands out the copy of bytes that are page-locked, and stay until it has ended: staged ones
    /// until their half's event, a locked copy until its ring has ended.
    fn send(
        &self,
        (from, at): (&Region, Bytes),
        bytes: usize,
        region: &Region,
        offset: Bytes,
    ) -> Result<(), DriverError> {
        let Place::Host(source) = from.place(at, bytes) else {
            unreachable!("what is page-locked is the host's");
        };
        let to = region.address(offset, bytes);
        self.stream
            .trace("load", || [Vec::new(), vec![Span::new(region.id(), offset.0, bytes as u64)]]);
        // SAFETY: the source stays; nothing computes from the target before the load has ended, and
        // this is its only writer.
        unsafe { self.stream.copy_to_device(to, source, bytes) }
    }
}

impl Drop for Stager {
    fn drop(&mut self) {
        // The staging memory goes after the copies that read it.
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!("{}: {error}", self.device);
        }
    }
}

/// A ticket that tells of a failure unless it told of something else before.
struct EndsFailed<'a> {
    ticket: Ticket,
    device: &'a DeviceId,
}

impl Drop for EndsFailed<'_> {
    fn drop(&mut self) {
        self.ticket.end(Err(Stopped::copy_failed(self.device)));
    }
}

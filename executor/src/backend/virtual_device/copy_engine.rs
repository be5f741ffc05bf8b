//! The copy engine of a virtual device: a thread for each queue, all of them no faster than the
//! device's link.
//!
//! ```text
//! submit ──► queue ──► a piece at a time: stage, take the link, copy, wait for the link ──► ticket
//! ```
//! Queues are kept apart by who waits for them: activations for the next node, slots for the next
//! segment, loads for the next phase. Within one, copies end in their order. Weights pass through
//! staging: a piece is read from the file mapping into one half while the piece before it is on the
//! link.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use protocol::{Bytes, DeviceId};

use crate::backend::memory::{Link, PIECE_BYTES_MAX, Region, wait_until};
use crate::backend::moving::{Queue, RegionCopy, Ticket, WeightLoad, WeightPiece};
use crate::backend::stopped::Stopped;

/// Threads with queues of copies.
pub struct CopyEngine {
    queues: Vec<Sender<Copy>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<EngineState>,
}

/// What the threads share.
struct EngineState {
    device: DeviceId,
    link: Arc<Link>,
    fail_copy: Option<u32>,
    copies: AtomicU32,
}

struct Copy {
    /// Taken, and let go, before the ticket ends: whoever waited may then free what the copy held.
    work: Option<CopyWork>,
    submitted: Instant,
    /// What must be computed before.
    after: Vec<Ticket>,
    ticket: Ticket,
    device: DeviceId,
}

impl Drop for Copy {
    fn drop(&mut self) {
        // Whoever waits must hear of it, should the engine's thread end in the middle.
        self.ticket.end(Err(Stopped::copy_failed(&self.device)));
    }
}

enum CopyWork {
    Load(WeightLoad),
    Copy(RegionCopy),
    Write { region: Arc<Region>, offset: Bytes, source: HostBytes },
    Read { region: Arc<Region>, offset: Bytes, target: HostBytes },
}

/// Bytes of a slice that the submitting thread holds until the copy's end.
struct HostBytes {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the submitter keeps the slice borrowed and untouched until the ticket's end.
unsafe impl Send for HostBytes {}

impl CopyEngine {
    /// Starts the threads. `staging` is page-locked memory of the host; each queue of weights has
    /// half of it.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(
        device: DeviceId,
        link: Arc<Link>,
        fail_copy: Option<u32>,
        staging: &Arc<Region>,
    ) -> std::io::Result<CopyEngine> {
        let copies = AtomicU32::new(0);
        let shared = Arc::new(EngineState { device, link, fail_copy, copies });
        let half = staging.len().as_usize() / 2;
        let start = |queue: usize| -> std::io::Result<_> {
            let (sender, receiver) = channel();
            let shared = Arc::clone(&shared);
            let staging =
                Staging { region: Arc::clone(staging), at: queue % 2 * half, bytes: half };
            let thread = std::thread::Builder::new()
                .name("copy-engine".to_owned())
                .spawn(move || serve(&receiver, &shared, &staging))?;
            Ok((sender, thread))
        };
        // Dropped with an error, it ends the threads that were started.
        let mut engine =
            CopyEngine { queues: Vec::new(), threads: Vec::new(), shared: Arc::clone(&shared) };
        for queue in [Queue::Loads, Queue::Slots, Queue::Activations] {
            let (sender, thread) = start(queue as usize)?;
            engine.queues.push(sender);
            engine.threads.push(thread);
        }
        Ok(engine)
    }

    /// The link that it copies over.
    pub fn link(&self) -> &Arc<Link> {
        &self.shared.link
    }

    /// Starts to copy weights into a region, once something has ended, if anything is named.
    pub fn load(&self, load: WeightLoad, queue: Queue, after: Option<Ticket>) -> Ticket {
        self.submit(CopyWork::Load(load), queue, after.into_iter().collect())
    }

    /// Starts to copy between two regions.
    pub fn copy(&self, copy: RegionCopy) -> Ticket {
        let after = copy.computed.clone();
        self.submit(CopyWork::Copy(copy), Queue::Activations, after)
    }

    /// Copies a slice into a region.
    pub fn write(&self, region: &Arc<Region>, offset: Bytes, source: &[u8]) -> Result<(), Stopped> {
        let source = HostBytes { start: source.as_ptr().cast_mut(), bytes: source.len() };
        let work = CopyWork::Write { region: Arc::clone(region), offset, source };
        self.submit(work, Queue::Activations, Vec::new()).wait()
    }

    /// Copies from a region into a slice.
    pub fn read(
        &self,
        region: &Arc<Region>,
        offset: Bytes,
        target: &mut [u8],
    ) -> Result<(), Stopped> {
        let target = HostBytes { start: target.as_mut_ptr(), bytes: target.len() };
        let work = CopyWork::Read { region: Arc::clone(region), offset, target };
        self.submit(work, Queue::Activations, Vec::new()).wait()
    }

    fn submit(&self, work: CopyWork, queue: Queue, after: Vec<Ticket>) -> Ticket {
        let ticket = Ticket::default();
        let (submitted, device) = (Instant::now(), self.shared.device.clone());
        let copy = Copy { work: Some(work), submitted, after, ticket: ticket.clone(), device };
        // A copy that nobody takes any more tells its ticket when it is dropped.
        drop(self.queues[queue as usize].send(copy));
        ticket
    }
}

impl Drop for CopyEngine {
    fn drop(&mut self) {
        self.queues.clear();
        for thread in self.threads.drain(..) {
            // A panic in it has reached whoever waited for its copy already.
            let _ = thread.join();
        }
    }
}

/// A thread's part of the staging memory, in two halves.
struct Staging {
    region: Arc<Region>,
    at: usize,
    bytes: usize,
}

impl Staging {
    /// Reads a piece into the half of this number.
    fn stage(&self, piece: &WeightPiece<'_>, number: usize) -> &[u8] {
        let offset = Bytes((self.at + number % 2 * (self.bytes / 2)) as u64);
        // SAFETY: this part of the staging memory is the thread's own, and the piece before the
        // last one, which was in this half, has been copied on.
        piece.copy_to(unsafe { self.region.bytes_mut(offset, piece.bytes()) });
        // SAFETY: as above; nothing writes it while the slice is used.
        unsafe { self.region.bytes(offset, piece.bytes()) }
    }
}

fn serve(copies: &Receiver<Copy>, shared: &EngineState, staging: &Staging) {
    for mut copy in copies {
        let number = shared.copies.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(work) = copy.work.take() else { continue };
        let result = if shared.fail_copy == Some(number) {
            Err(Stopped::copy_failed(&shared.device))
        } else {
            begin(&copy).and_then(|since| perform(&work, &shared.link, since, staging))
        };
        drop(work);
        copy.ticket.end(result);
    }
}

/// Waits for what must be computed before a copy; tells since when the copy could be on the link.
fn begin(copy: &Copy) -> Result<Instant, Stopped> {
    copy.after.iter().try_for_each(Ticket::wait)?;
    Ok(if copy.after.is_empty() { copy.submitted } else { Instant::now() })
}

fn perform(work: &CopyWork, link: &Link, since: Instant, staging: &Staging) -> Result<(), Stopped> {
    match work {
        CopyWork::Load(work) => load(work, link, since, staging),
        CopyWork::Copy(work) => {
            let carried = work.transfer.bytes().as_usize();
            work.perform();
            let end = link.carry(carried, since);
            let other = work.other_link.as_ref().map(|link| link.carry(carried, since));
            wait_until(other.map_or(end, |other| end.max(other)));
            Ok(())
        }
        CopyWork::Write { region, offset, source } => {
            // SAFETY: the submitter keeps the slice borrowed until the ticket's end.
            let source = unsafe { std::slice::from_raw_parts(source.start, source.bytes) };
            // SAFETY: the submitter is the thread that runs nodes, and it waits.
            unsafe { region.bytes_mut(*offset, source.len()) }.copy_from_slice(source);
            wait_until(link.carry(source.len(), since));
            Ok(())
        }
        CopyWork::Read { region, offset, target } => {
            // SAFETY: the submitter keeps the slice borrowed, and untouched, until the ticket's
            // end.
            let target = unsafe { std::slice::from_raw_parts_mut(target.start, target.bytes) };
            // SAFETY: the submitter is the thread that runs nodes, and it waits.
            target.copy_from_slice(unsafe { region.bytes(*offset, target.len()) });
            wait_until(link.carry(target.len(), since));
            Ok(())
        }
    }
}

fn load(load: &WeightLoad, link: &Link, since: Instant, staging: &Staging) -> Result<(), Stopped> {
    let piece_bytes = link.piece_bytes().min(staging.bytes / 2).min(PIECE_BYTES_MAX);
    let (mut ready, mut end, mut number) = (since, since, 0);
    for entry in load.moves.iter() {
        let mut offset = load.base + entry.offset;
        for piece in entry.pieces(&load.files, piece_bytes) {
            load.stop.check()?;
            let staged = match &load.locked {
                Some(locked) => locked.bytes(&piece, offset - load.base),
                None => staging.stage(&piece, number),
            };
            wait_until(end);
            end = link.carry(piece.bytes(), ready);
            // SAFETY: nothing computes from these bytes before the load has ended, and it is their
            // only writer.
            unsafe { load.region.bytes_mut(offset, piece.bytes()) }.copy_from_slice(staged);
            offset += Bytes(piece.bytes() as u64);
            // From now on the link is never idle for want of this thread: it has been at it all
            // along.
            (ready, number) = (end, number + 1);
        }
        load.copied(entry);
    }
    load.ended();
    wait_until(end);
    Ok(())
}

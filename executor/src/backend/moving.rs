//! Moving bytes: weights from their files into regions, activations between regions, and the
//! tickets by which what computes waits for them.

mod copiers;
mod copies;
mod ring;
mod ticket;

pub use copiers::Copiers;
pub use copies::{LockedCopy, Queue, RegionCopy, WeightLoad, WeightMove, WeightPiece};
pub use ring::{Ring, RingItem, RingPlan};
pub use ticket::Ticket;

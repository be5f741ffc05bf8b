//! Memory: what is allocated of a device and charged to its account, what the system still lets
//! this process have, and the link by which a virtual device's memory is reached.

pub mod heap;
pub mod limits;

mod account;
mod link;
mod region;
mod shared;

pub use account::{Charge, Memory, OutOfMemory};
pub use link::{LATENESS_MAX, Link, PIECE_BYTES_MAX, wait_until};
pub use region::Region;
pub use shared::{SharedBytes, Turn};

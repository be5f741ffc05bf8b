//! What goes wrong in the made-up world, and how often.

/// What goes wrong, of a thousand.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Runs that end by the executor's death.
    pub deaths: u64,
    /// Runs that find too little memory.
    pub short: u64,
    /// Writes that fail.
    pub writes: u64,
    /// Pictures that cannot be written.
    pub files: u64,
    /// Clients that leave before their answer.
    pub leaving: u64,
    /// Cancels.
    pub cancels: u64,
    /// Ends of the daemon, of each submission.
    pub restarts: u64,
}

impl Faults {
    pub const NONE: Faults =
        Faults { deaths: 0, short: 0, writes: 0, files: 0, leaving: 0, cancels: 0, restarts: 0 };
    pub const MANY: Faults = Faults {
        deaths: 60,
        short: 60,
        writes: 30,
        files: 30,
        leaving: 100,
        cancels: 100,
        restarts: 5,
    };
}

/// A xorshift generator: Marsaglia, "Xorshift RNGs", 2003.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }

    pub fn of_thousand(&mut self, count: u64) -> bool {
        self.below(1000) < count
    }
}

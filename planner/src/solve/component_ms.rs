//! How long a component takes in a place, as the sums of a plan need it.

/// Times of one component in one place, for one job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComponentMs {
    /// The weights that it holds on their way, once.
    pub load: f64,
    /// What the first call takes longer than a later one would in its place: it reads streamed
    /// weights from their files.
    pub first_read: f64,
    /// All of its calls, with streamed weights in RAM where that has room for them.
    pub compute: f64,
    /// How long of `first_read` and `compute` the storage is busy with its weights: nothing else is
    /// loaded then.
    pub storage: f64,
    /// The same in a job whose files are in RAM as far as that has room for them.
    pub storage_again: f64,
}

impl ComponentMs {
    /// All of it, with nothing of another component beside it.
    pub fn alone(self) -> f64 {
        self.load + self.first_read + self.compute
    }

    /// Whether calls read some of its weights from the storage again, as RAM has no room for them.
    pub fn reads_again(self) -> bool {
        self.storage_again > 0.0
    }

    /// Of each time the lesser one.
    pub fn least_of_each(self, other: ComponentMs) -> ComponentMs {
        ComponentMs {
            load: self.load.min(other.load),
            first_read: self.first_read.min(other.first_read),
            compute: self.compute.min(other.compute),
            storage: self.storage.min(other.storage),
            storage_again: self.storage_again.min(other.storage_again),
        }
    }

    /// The same in a job that finds its files in RAM, and what is not loaded anew (`reloads`) in
    /// its place.
    pub fn again(self, reloads: bool) -> ComponentMs {
        let load = if reloads { self.load } else { 0.0 };
        ComponentMs { load, first_read: 0.0, storage: self.storage_again, ..self }
    }
}

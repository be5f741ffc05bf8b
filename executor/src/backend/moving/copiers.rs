//! Threads that copy a piece of a weight out of the mapping together: one alone is slower than a
//! GPU's link.

use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use super::WeightPiece;

/// Beside an H100 1, 2, 4 and 8 threads copied 7.0, 12.6, 15.2 and 7.9 GB/s (`docs/gpu-runs.md`).
const THREADS_MAX: usize = 4;

/// What a thread is woken for: as much as it copies in some tens of microseconds.
const PART_BYTES_MIN: usize = 256 << 10;

/// The threads, and the one that asks them.
pub struct Copiers {
    /// The others; `None` where there are none.
    pool: Option<ThreadPool>,
}

impl Copiers {
    /// Half as many as the machine has cores: the others compute meanwhile.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn start() -> Result<Copiers, ThreadPoolBuildError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Copiers::of((cores / 2).clamp(1, THREADS_MAX))
    }

    fn of(threads: usize) -> Result<Copiers, ThreadPoolBuildError> {
        let others = threads - 1;
        let name = |_| "weight-copies".to_owned();
        let builder = ThreadPoolBuilder::new().num_threads(others).thread_name(name);
        Ok(Copiers { pool: (others > 0).then(|| builder.build()).transpose()? })
    }

    /// Copies a piece, and returns when it is there.
    ///
    /// # Panics
    /// If `target` has room for more, or fewer bytes.
    pub fn copy(&self, piece: &WeightPiece<'_>, target: &mut [u8]) {
        let threads = 1 + self.pool.as_ref().map_or(0, ThreadPool::current_num_threads);
        let parts = (target.len() / PART_BYTES_MIN).clamp(1, threads);
        let (Some(pool), 2..) = (&self.pool, parts) else { return piece.copy_to(target) };
        assert_eq!(target.len(), piece.bytes(), "room for a piece of a weight");
        let part_bytes = target.len().div_ceil(parts);
        let (own, others) = target.split_at_mut(part_bytes);
        pool.in_place_scope(|scope| {
            for (index, part) in others.chunks_mut(part_bytes).enumerate() {
                let from = (index + 1) * part_bytes;
                scope.spawn(move |_| piece.part(from, part.len()).copy_to(part));
            }
            piece.part(0, own.len()).copy_to(own);
        });
    }
}

#[cfg(test)]
mod tests {
    use protocol::Bytes;
    use safetensors::tensor::TensorView;

    use super::*;
    use crate::backend::WeightMove;
    use crate::weights::WeightFiles;

    #[test]
    fn parts_of_a_piece_are_the_piece() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let bytes = 4 * PART_BYTES_MIN + 6;
        let data: Vec<u8> = (0..bytes).map(|at| (at * 31 / 7) as u8).collect();
        let shape = vec![bytes / 2];
        let view = TensorView::new(safetensors::Dtype::F16, shape.clone(), &data).unwrap();
        safetensors::serialize_to_file([("weight", view)], None, &path).unwrap();
        let files = WeightFiles::open_file(&path).unwrap();
        let tensor = files.require("weight", &shape).unwrap();
        for threads in 1..=5 {
            let copiers = Copiers::of(threads).unwrap();
            for (from, to) in [(0, bytes), (1, bytes), (5, 5), (7, 8), (3, PART_BYTES_MIN * 2 + 3)]
            {
                let entry = WeightMove { tensor, bytes: from..to, offset: Bytes::ZERO };
                let mut copied = vec![0; to - from];
                copiers.copy(&entry.whole(&files), &mut copied);
                assert!(copied == data[from..to], "{threads} threads, {from} to {to}");
            }
        }
    }
}

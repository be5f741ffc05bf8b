//! Which ended jobs are one too many.
//!
//! Pure: it removes nothing itself.

use super::job::{JobId, JobRecord};

/// The ended jobs to remove, the one that ended first before the others, until at most `keep_jobs`
/// ended ones are left and the files of their pictures take at most `keep_bytes` together. Jobs
/// that have not ended are never among them, and do not count.
pub fn surplus<'a>(
    records: impl IntoIterator<Item = &'a JobRecord>,
    keep_jobs: usize,
    keep_bytes: u64,
) -> Vec<JobId> {
    let mut ended: Vec<(u64, &JobId, u64)> = records
        .into_iter()
        .filter(|record| record.state.is_ended())
        .map(|record| (record.ended_at.unwrap_or(0), &record.id, pictures_bytes(record)))
        .collect();
    ended.sort_unstable();
    // u128: sizes come from a file, and their sum must not overflow.
    let mut bytes: u128 = ended.iter().map(|(.., bytes)| u128::from(*bytes)).sum();
    let mut jobs = ended.len();
    let mut removed = Vec::new();
    for (_, id, job_bytes) in ended {
        if jobs <= keep_jobs && bytes <= u128::from(keep_bytes) {
            break;
        }
        removed.push(id.clone());
        jobs -= 1;
        bytes -= u128::from(job_bytes);
    }
    removed
}

/// What the files of a job's pictures take.
fn pictures_bytes(record: &JobRecord) -> u64 {
    let files = record.pictures.iter().filter(|picture| picture.file.is_some());
    files.fold(0, |bytes, picture| bytes.saturating_add(picture.size_bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::serve::desk::job::JobState;
    use crate::serve::testing;

    fn job((number, ended_at, size_bytes, filed): (u8, u64, u64, bool)) -> JobRecord {
        let mut record = testing::record(&format!("{number:026}"));
        record.state = if ended_at == 0 { JobState::Running } else { JobState::Done };
        record.ended_at = (ended_at > 0).then_some(ended_at);
        record.pictures = vec![testing::picture(0, size_bytes)];
        if !filed {
            record.pictures[0].file = None;
        }
        record
    }

    #[test]
    fn the_oldest_ended_go_first() {
        let jobs = [(1, 30, 5, true), (2, 10, 5, true), (3, 0, 500, true), (4, 20, 5, true)];
        let jobs = jobs.map(job);
        let removed = |keep_jobs, keep_bytes| {
            let ids = surplus(&jobs, keep_jobs, keep_bytes);
            ids.iter().map(|id| id.0.parse::<u32>().unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(removed(3, 15), [0; 0]);
        assert_eq!(removed(2, 15), [2]);
        assert_eq!(removed(3, 14), [2]);
        assert_eq!(removed(3, 9), [2, 4]);
        assert_eq!(removed(0, u64::MAX), [2, 4, 1]);
        assert_eq!(removed(9, 0), [2, 4, 1]);
    }

    proptest! {
        #[test]
        fn what_is_left_fits_and_nothing_goes_for_nothing(
            jobs in prop::collection::vec((any::<u8>(), 0_u64..9, 0_u64..=u64::MAX, any::<bool>()), 0..20),
            keep_jobs in 0_usize..20,
            keep_bytes: u64,
        ) {
            let jobs: Vec<_> = jobs.into_iter().map(job).collect();
            let removed = surplus(&jobs, keep_jobs, keep_bytes);
            let ended: Vec<_> = jobs.iter().filter(|job| job.state.is_ended()).collect();
            let mut by_age = ended.clone();
            by_age.sort_by_key(|job| (job.ended_at, &job.id, pictures_bytes(job)));
            let order: Vec<_> = by_age.iter().map(|job| job.id.clone()).collect();
            prop_assert_eq!(&removed[..], &order[..removed.len()], "the oldest first");
            let fits = |left: &[&JobRecord]| {
                let bytes: u128 = left.iter().map(|job| u128::from(pictures_bytes(job))).sum();
                left.len() <= keep_jobs && bytes <= u128::from(keep_bytes)
            };
            prop_assert!(fits(&by_age[removed.len()..]));
            if let Some(last) = removed.len().checked_sub(1) {
                prop_assert!(!fits(&by_age[last..]), "one fewer would do");
            }
        }
    }
}

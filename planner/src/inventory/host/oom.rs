//! How many processes the kernel has ended for want of memory, by its own counts.
//!
//! It counts a process before it sends the signal, so a count that is read after a process has
//! ended, and that did not rise since before it started, says that the kernel did not end it.

use std::fs;
use std::path::Path;

use super::cgroup;

/// The counts at one moment; `None` where this kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomKills {
    /// Of the control group that this process and its children are in.
    group: Option<u64>,
    /// Of the whole machine.
    machine: Option<u64>,
}

/// Whether the kernel ended processes between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RanOut {
    /// One of this process's control group.
    Group,
    /// One of this machine, of whatever group.
    Machine,
    /// None that could be a child of this process.
    No,
    /// The kernel does not tell.
    Unknown,
}

impl OomKills {
    /// What the kernel has counted so far.
    pub fn now() -> OomKills {
        OomKills::read(Path::new("/"))
    }

    /// The counts of the file tree under `root`.
    pub fn read(root: &Path) -> OomKills {
        let text = fs::read_to_string(root.join("proc/vmstat")).unwrap_or_default();
        let machine = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        OomKills {
            group: cgroup::oom_kills(root),
            machine: machine.and_then(|count| count.trim().parse().ok()),
        }
    }

    /// What the kernel ended since then.
    pub fn since(self, before: OomKills) -> RanOut {
        let rose = |now: Option<u64>, before: Option<u64>| Some(now? > before?);
        // A process that is ended counts in its group whoever's memory ran out.
        match (rose(self.group, before.group), rose(self.machine, before.machine)) {
            (Some(true), _) => RanOut::Group,
            (Some(false), _) | (None, Some(false)) => RanOut::No,
            (None, Some(true)) => RanOut::Machine,
            (None, None) => RanOut::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    const V2: (&str, &str) = ("proc/self/cgroup", "0::/a/b\n");
    const EVENTS: &str = "sys/fs/cgroup/a/b/memory.events";
    const V1: (&str, &str) = ("proc/self/cgroup", "4:cpu,memory:/a\n0::/\n");
    const CONTROL: &str = "sys/fs/cgroup/memory/a/memory.oom_control";

    /// What two looks at made-up trees say.
    fn ran_out(before: &[(&str, &str)], after: &[(&str, &str)]) -> RanOut {
        let [before, after] = [before, after].map(|files| OomKills::read(tree(files).path()));
        after.since(before)
    }

    #[test]
    fn the_groups_own_count_is_surer_than_the_machines() {
        let [three, four] =
            ["nr_x 1\noom_kill 3\n", "nr_x 1\noom_kill 4\n"].map(|text| ("proc/vmstat", text));
        let none = "low 0\noom 2\noom_kill 0\n";
        let one = "low 0\noom 2\noom_kill 1\n";
        for (before, after, expected) in [
            (vec![three], vec![three], RanOut::No),
            (vec![three], vec![four], RanOut::Machine),
            (vec![three, V2, (EVENTS, none)], vec![four, V2, (EVENTS, one)], RanOut::Group),
            // Somebody else's memory.
            (vec![three, V2, (EVENTS, none)], vec![four, V2, (EVENTS, none)], RanOut::No),
            (
                vec![V1, (CONTROL, "under_oom 0\noom_kill 7\n")],
                vec![V1, (CONTROL, "under_oom 0\noom_kill 8\n")],
                RanOut::Group,
            ),
            // Kernels before 4.13 count neither.
            (vec![("proc/vmstat", "nr_x 1\n")], vec![("proc/vmstat", "nr_x 2\n")], RanOut::Unknown),
            (vec![], vec![], RanOut::Unknown),
        ] {
            assert_eq!(ran_out(&before, &after), expected, "{before:?}, then {after:?}");
        }
    }
}

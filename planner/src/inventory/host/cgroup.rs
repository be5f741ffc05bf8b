//! The memory limit of the control groups that this process is in, of both versions.
//!
//! A process is held by its own group and by each group above it, so the tightest remaining room
//! counts. A group's page cache is counted as used, but the kernel drops its inactive part before
//! it refuses memory: that part is room. Whatever is missing or unreadable is no limit, as on a
//! machine without control groups.

use std::fs;
use std::path::{Component, Path, PathBuf};

use protocol::Bytes;

/// What the control groups leave to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupMemory {
    /// The lowest limit of all groups above the process.
    pub limit_bytes: Bytes,
    /// The least room left under any limit: limit − used + inactive page cache.
    pub room_bytes: Bytes,
}

/// The names that one version of control groups gives to the same facts.
struct Version {
    limits: &'static [&'static str],
    used: &'static str,
    inactive_cache: &'static str,
    /// Where `oom_kill` is counted.
    events: &'static str,
}

/// `memory.high` counts as a limit: above it the kernel slows a process down to a crawl.
const V2: Version = Version {
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    inactive_cache: "inactive_file",
    events: "memory.events",
};

const V1: Version = Version {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    inactive_cache: "total_inactive_file",
    events: "memory.oom_control",
};

/// The room under the tightest limit below `total_bytes` under `root`; `None` where there is no
/// such limit (version 1 writes "none" as a number near 2^63, which this covers).
pub(super) fn memory_room(root: &Path, total_bytes: Bytes) -> Option<GroupMemory> {
    let mut found: Option<GroupMemory> = None;
    for (version, folders) in groups(root) {
        for folder in folders {
            let Some(group) = version.read(&folder, total_bytes) else { continue };
            found = Some(found.map_or(group, |tightest| GroupMemory {
                limit_bytes: tightest.limit_bytes.min(group.limit_bytes),
                room_bytes: tightest.room_bytes.min(group.room_bytes),
            }));
        }
    }
    found
}

/// How many processes of the group that this process is in the kernel has ended for want of memory,
/// under `root`; `None` where no group says so.
pub(super) fn oom_kills(root: &Path) -> Option<u64> {
    groups(root).into_iter().find_map(|(version, folders)| {
        let text = fs::read_to_string(folders.last()?.join(version.events)).ok()?;
        stat_field(&text, "oom_kill").map(|kills| kills.0)
    })
}

/// The groups that hold this process's memory, by version: the folders from the mount down to its
/// own.
fn groups(root: &Path) -> Vec<(&'static Version, Vec<PathBuf>)> {
    let table = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mount = root.join("sys/fs/cgroup");
    let group = |line: &str| {
        // hierarchy id : controllers : path
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if id == "0" && controllers.is_empty() {
            Some((&V2, folders_down(&mount, path)))
        } else if controllers.split(',').any(|controller| controller == "memory") {
            Some((&V1, folders_down(&mount.join("memory"), path)))
        } else {
            None
        }
    };
    table.lines().filter_map(group).collect()
}

/// The mount's folder and each one below it down to the group's. In a container the path may name
/// folders outside the mount: those that are not there say nothing, and `..` is not followed.
fn folders_down(base: &Path, path: &str) -> Vec<PathBuf> {
    let mut folders = vec![base.to_owned()];
    let mut folder = base.to_owned();
    for component in Path::new(path).components() {
        if let Component::Normal(name) = component {
            folder.push(name);
            folders.push(folder.clone());
        }
    }
    folders
}

impl Version {
    fn read(&self, folder: &Path, total_bytes: Bytes) -> Option<GroupMemory> {
        let limit = self.limits.iter().filter_map(|name| number(&folder.join(name))).min()?;
        if limit >= total_bytes {
            return None;
        }
        let used = number(&folder.join(self.used)).unwrap_or_default();
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cache = stat_field(&stat, self.inactive_cache).unwrap_or_default();
        Some(GroupMemory {
            limit_bytes: limit,
            room_bytes: limit.saturating_sub(used.saturating_sub(cache)),
        })
    }
}

/// The number in a file of one line; `max` is none.
fn number(path: &Path) -> Option<Bytes> {
    fs::read_to_string(path).ok()?.trim().parse().ok().map(Bytes)
}

fn stat_field(text: &str, field: &str) -> Option<Bytes> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == field)
        .and_then(|(_, value)| value.trim().parse().ok())
        .map(Bytes)
}

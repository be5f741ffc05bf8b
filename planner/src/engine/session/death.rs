//! What ended an executor: its exit status, read beside its limits and what the kernel counted
//! meanwhile.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use protocol::Bytes;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, Signal, getrlimit};

use crate::inventory::host::oom::{OomKills, RanOut};

/// How much less CPU time than its limit a process may seem to have had when the kernel ends it
/// there: the kernel tells the time in ticks, of its own and of the program's apart.
const CPU_TIME_SLACK: Duration = Duration::from_millis(100);

/// Why an executor died, as far as it decides whether another one can do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Nothing that another one must meet too.
    Accident,
    /// Its limit on CPU time, which the same work would reach again.
    CpuLimit,
    /// Its limit on the size of files, which the same work would reach again.
    FileSizeLimit,
    /// The kernel's want of memory.
    OutOfMemory,
}

/// The end of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Why.
    pub cause: Cause,
    /// The same for people, with a hint where one helps.
    pub words: String,
}

/// What the kernel had counted before a process began.
#[derive(Debug, Clone, Copy)]
pub struct KernelCounts {
    oom_kills: OomKills,
    /// CPU time of this process's children that have ended.
    children: Option<Duration>,
}

impl KernelCounts {
    /// What the kernel has counted so far.
    pub fn now() -> KernelCounts {
        KernelCounts { oom_kills: OomKills::now(), children: children_cpu_time() }
    }

    /// What ended a process that began after these counts, and was this process's only child since.
    pub fn death(&self, status: ExitStatus) -> Death {
        let Some(signal) = status.signal() else {
            return Death::accident(format!("exit status {}", status.code().unwrap_or(-1)));
        };
        if signal == Signal::XCPU.as_raw() {
            return Death::of_cpu_limit(getrlimit(Resource::Cpu).current);
        }
        if signal == Signal::XFSZ.as_raw() {
            return Death::of_file_size_limit(getrlimit(Resource::Fsize).current);
        }
        if signal == Signal::BUS.as_raw() {
            return Death::accident(
                "killed by signal 7 (SIGBUS); hint: a model file may have become shorter while it was in use",
            );
        }
        if signal != Signal::KILL.as_raw() {
            return Death::accident(format!("killed by signal {signal}"));
        }
        // Where both limits are the same, as `ulimit -t` sets them, the kernel sends SIGKILL.
        let limit = getrlimit(Resource::Cpu).maximum;
        match (self.cpu_time(), limit) {
            (Some(had), Some(limit)) if had + CPU_TIME_SLACK >= Duration::from_secs(limit) => {
                Death::of_cpu_limit(Some(limit))
            }
            _ => Death::of_kill(OomKills::now().since(self.oom_kills)),
        }
    }

    /// The CPU time of the child that began after these counts and has been waited for.
    fn cpu_time(&self) -> Option<Duration> {
        children_cpu_time()?.checked_sub(self.children?)
    }
}

impl Death {
    fn accident(words: impl Into<String>) -> Death {
        Death { cause: Cause::Accident, words: words.into() }
    }

    fn of_cpu_limit(seconds: Option<u64>) -> Death {
        let limit = seconds.map_or(String::new(), |seconds| format!(" of {seconds} s"));
        let words = format!(
            "it reached its limit{limit} on CPU time; hint: raise the limit (ulimit -t), or make fewer steps or a smaller picture"
        );
        Death { cause: Cause::CpuLimit, words }
    }

    fn of_file_size_limit(bytes: Option<u64>) -> Death {
        let limit = bytes.map_or(String::new(), |bytes| format!(" of {}", Bytes(bytes)));
        let words = format!(
            "it reached its limit{limit} on the size of files, which holds for the memory that pictures are handed over in; hint: raise the limit (ulimit -f)"
        );
        Death { cause: Cause::FileSizeLimit, words }
    }

    fn of_kill(ran_out: RanOut) -> Death {
        match ran_out {
            RanOut::Group => Death {
                cause: Cause::OutOfMemory,
                words: "killed by the kernel, as memory ran out; hint: allow less by --max-ram, or end what else uses memory".to_owned(),
            },
            RanOut::Machine => Death {
                cause: Cause::OutOfMemory,
                words: "killed by signal 9 (SIGKILL) while memory ran out on this machine, so likely by the kernel; hint: allow less by --max-ram, or end what else uses memory".to_owned(),
            },
            RanOut::No => Death::accident("killed by signal 9 (SIGKILL)"),
            RanOut::Unknown => Death::accident(
                "killed by signal 9 (SIGKILL); hint: the system may do this when memory runs out",
            ),
        }
    }
}

/// CPU time of this process's children that have ended and were waited for.
fn children_cpu_time() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may hold spaces; after it `cutime` and `cstime` are the 14th and 15th.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(13);
    let ticks = |field: Option<&str>| field?.parse::<u64>().ok();
    let ticks = ticks(fields.next())? + ticks(fields.next())?;
    Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death(raw: i32) -> Death {
        KernelCounts::now().death(ExitStatus::from_raw(raw))
    }

    #[test]
    fn limits_are_told_apart_from_accidents() {
        for (raw, cause, words) in [
            (24, Cause::CpuLimit, "limit on CPU time"),
            (25, Cause::FileSizeLimit, "limit on the size of files"),
            (6, Cause::Accident, "killed by signal 6"),
            (7, Cause::Accident, "may have become shorter"),
            (11 | 0x80, Cause::Accident, "killed by signal 11"),
            (7 << 8, Cause::Accident, "exit status 7"),
        ] {
            let death = death(raw);
            assert_eq!(death.cause, cause, "{death:?}");
            assert!(death.words.contains(words), "{death:?}");
        }
    }

    #[test]
    fn a_kill_is_laid_to_memory_only_where_the_kernel_counted_one() {
        for (ran_out, cause, words) in [
            (RanOut::Group, Cause::OutOfMemory, "killed by the kernel, as memory ran out"),
            (RanOut::Machine, Cause::OutOfMemory, "so likely by the kernel"),
            (RanOut::No, Cause::Accident, "killed by signal 9 (SIGKILL)"),
            (RanOut::Unknown, Cause::Accident, "may do this when memory runs out"),
        ] {
            let death = Death::of_kill(ran_out);
            assert_eq!(death.cause, cause, "{death:?}");
            assert!(death.words.contains(words), "{death:?}");
        }
    }

    #[test]
    fn the_cpu_time_of_a_child_is_read() {
        let before = KernelCounts::now();
        // Some hundredths of a second.
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let status = std::process::Command::new("sh").args(["-c", busy]).status().unwrap();
        assert!(status.success());
        assert!(before.cpu_time().is_some_and(|time| time > Duration::ZERO));
    }
}

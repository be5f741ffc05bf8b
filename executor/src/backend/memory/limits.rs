//! What the process's own limits leave to it of the host's memory.

use protocol::Bytes;
use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// What may still be mapped under the limits on address space and on data (`ulimit -v` and `-d`);
/// `None` where neither is set, so that nobody knows what a refused allocation would have had.
pub fn left() -> Option<Bytes> {
    let limits = [Resource::As, Resource::Data].map(|resource| getrlimit(resource).current);
    if limits == [None, None] {
        return None;
    }
    let used = used(&std::fs::read_to_string("/proc/self/statm").ok()?)?;
    let left = |(limit, used): (Option<u64>, Bytes)| Some(Bytes(limit?).saturating_sub(used));
    limits.into_iter().zip(used).filter_map(left).min()
}

/// Address space and data of a process as `/proc/self/statm` tells it.
fn used(statm: &str) -> Option<[Bytes; 2]> {
    let mut pages = statm.split_whitespace().map(|field| field.parse::<u64>().ok());
    // size resident shared text lib data
    let size = pages.next()??;
    let data = pages.nth(4)??;
    Some([size, data].map(|pages| Bytes(pages.saturating_mul(page_size() as u64))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_is_read_in_pages() {
        let page = page_size() as u64;
        assert_eq!(used("100 50 20 5 0 30 0\n"), Some([Bytes(100 * page), Bytes(30 * page)]));
        assert_eq!(used(""), None);
        assert_eq!(used("100 50 20"), None);
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux tells it");
        let [size, data] = used(&statm).expect("and in this form");
        assert!(size > data && data > Bytes::ZERO);
    }
}

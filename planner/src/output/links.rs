//! Where a path leads: through its links, to a file or to a descriptor of this process.

use std::io;
use std::path::{Path, PathBuf};

use super::folder_of;

/// The most links that are followed, as by the kernel (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkTarget {
    /// To a path that is no link; nothing may be there yet.
    To(PathBuf),
    /// To a descriptor of this process, as `/dev/stdout` does.
    ToDescriptor(i32),
}

/// Follows the links at the end of a path, also one that leads to nothing.
///
/// # Errors
/// A folder on the way cannot be looked into, or links lead in a circle.
pub fn follow(path: &Path) -> io::Result<LinkTarget> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if let Some(number) = descriptor(&path) {
            return Ok(LinkTarget::ToDescriptor(number));
        }
        match std::fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            // Not a link, or nothing.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput) => {
                return Ok(LinkTarget::To(path));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(LinkTarget::To(path));
            }
            Err(error) => return Err(error),
        }
    }
    Err(rustix::io::Errno::LOOP.into())
}

/// The descriptor that a path means: a number in the folder of this process's descriptors. That its
/// entries are links, whose text may be the name of a file, is not how they open.
fn descriptor(path: &Path) -> Option<i32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let folder = folder_of(path).canonicalize().ok()?;
    let own = Path::new("/proc/self").canonicalize().ok()?;
    (folder.starts_with(own) && folder.ends_with("fd")).then_some(number)
}

/// The path by which the system names a descriptor of this process.
pub fn of_descriptor(number: i32) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_to_their_end() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::write(at("file"), "").unwrap();
        symlink("file", at("one")).unwrap();
        symlink(at("one"), at("two")).unwrap();
        symlink("missing/x", at("dangling")).unwrap();
        symlink("round", at("about")).unwrap();
        symlink("about", at("round")).unwrap();
        assert_eq!(follow(&at("two")).unwrap(), LinkTarget::To(at("file")));
        assert_eq!(follow(&at("new")).unwrap(), LinkTarget::To(at("new")));
        assert_eq!(follow(&at("dangling")).unwrap(), LinkTarget::To(at("missing/x")));
        assert!(follow(&at("round")).is_err());
        assert!(follow(&at("file/x")).is_err());
    }

    #[test]
    fn descriptors_are_known_by_every_name() {
        for name in ["/dev/fd/7", "/proc/self/fd/7", "/proc/thread-self/fd/7"] {
            assert_eq!(follow(Path::new(name)).unwrap(), LinkTarget::ToDescriptor(7), "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        symlink("/proc/self/fd/2", place.path().join("7")).unwrap();
        assert_eq!(follow(&place.path().join("7")).unwrap(), LinkTarget::ToDescriptor(2));
    }
}

//! The folder of this process's sockets: one for its life, in the first place that is good for one.
//!
//! ```text
//! PLACE/.berth-PID-xxxxxx.new/    locked while its process lives, mode 0700
//!   └ .tmpxxxxxx/socket           ipc-channel's, until an executor has connected
//! ```
//! A killed planner cannot remove its folder: the next one does, as of all that is [`temporary`].
//!
//! ipc-channel makes its sockets where `tempfile` makes directories. That can be set once in a
//! process, and is set here.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::process::geteuid;

use crate::temporary::{self, TemporaryFolder};

/// Nobody else may look for what is in it.
const MODE: u32 = 0o700;

/// Longest path of a socket, in bytes: `sun_path` of `unix(7)` has 108 with the NUL.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// What stands in a folder on trial: as long as the names that ipc-channel gives, with their 6
/// random letters.
const TRIAL: &str = ".tmp------";

/// The socket's name, as ipc-channel gives it.
const SOCKET: &str = "socket";

/// This process's folder.
static OWN: Mutex<Option<TemporaryFolder>> = Mutex::new(None);

/// There can be no socket.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// No place is good for one. Of each, its name and why.
    #[error(
        "there is no place for a socket: {}; hint: set TMPDIR to a short path that can be written to",
        .0.join(", ")
    )]
    NoPlace(Vec<String>),
    /// The folder was there, and is not any more.
    #[error("another program has removed {}, where sockets were; hint: try again", .0.display())]
    Removed(PathBuf),
}

/// Makes sure of this process's folder, and removes those that killed processes left.
pub fn prepare() -> Result<(), FolderError> {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folder) = own.as_ref() {
        let path = folder.path();
        return if path.is_dir() { Ok(()) } else { Err(FolderError::Removed(path.to_owned())) };
    }
    let places = places();
    let folder = choose(&places)?;
    for (_, place) in &places {
        temporary::sweep(place);
    }
    tracing::debug!(path = %folder.path().display(), "made the folder of the sockets");
    // Refused only where it was set before, by a program that this is a library of: its choice
    // stands.
    if let Err(set) = tempfile::env::override_temp_dir(folder.path()) {
        tracing::debug!(path = %set.display(), "sockets are elsewhere");
    }
    *own = Some(folder);
    Ok(())
}

/// Removes this process's folder, at its end.
pub fn remove() {
    drop(OWN.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// Where sockets may be, best first, each with the name by which people know it.
fn places() -> Vec<(&'static str, PathBuf)> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let of_variable = |name| variable(name).map(|value| (name, PathBuf::from(value)));
    let of_user = PathBuf::from(format!("/run/user/{}", geteuid().as_raw()));
    let places = [
        of_variable("XDG_RUNTIME_DIR"),
        Some(("the runtime directory", of_user)),
        of_variable("TMPDIR"),
        Some(("the temporary directory", PathBuf::from("/tmp"))),
    ];
    let mut known: Vec<(&str, PathBuf)> = Vec::new();
    for (name, path) in places.into_iter().flatten() {
        if known.iter().all(|(_, other)| *other != path) {
            known.push((name, path));
        }
    }
    known
}

/// A folder in the first place that takes one.
fn choose(places: &[(&str, PathBuf)]) -> Result<TemporaryFolder, FolderError> {
    let mut refused = Vec::new();
    for (name, place) in places {
        match folder_in(place) {
            Ok(folder) => return Ok(folder),
            Err(why) => refused.push(format!("{name} {}: {why}", place.display())),
        }
    }
    Err(FolderError::NoPlace(refused))
}

/// A folder in a place, tried with a socket; or why there is none, as a clause.
fn folder_in(place: &Path) -> Result<TemporaryFolder, String> {
    if !place.is_absolute() {
        return Err("it does not begin with /".to_owned());
    }
    if place.to_str().is_none() {
        return Err("it is not UTF-8".to_owned());
    }
    // Of the error only its kind: its text names the folder that could not be made.
    let of_kind = |error: io::Error| error.kind().to_string();
    let folder = temporary::folder_in(place).map_err(of_kind)?;
    let trial = folder.path().join(TRIAL);
    let socket = trial.join(SOCKET);
    let bytes = socket.as_os_str().len();
    if bytes > SOCKET_PATH_BYTES_MAX {
        let most = SOCKET_PATH_BYTES_MAX;
        return Err(format!("the socket's path would have {bytes} bytes, more than {most}"));
    }
    // Whether the file system has sockets, and room for one.
    let tried = || -> io::Result<()> {
        fs::set_permissions(folder.path(), Permissions::from_mode(MODE))?;
        DirBuilder::new().mode(MODE).create(&trial)?;
        UnixListener::bind(&socket)?;
        fs::remove_dir_all(&trial)
    };
    tried().map_err(of_kind)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_told_with_the_reason_of_each() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let file = scratch.path().join("file");
        fs::write(&file, "").expect("it can be written");
        let long = scratch.path().join("x".repeat(90));
        fs::create_dir(&long).expect("it can be made");
        let name = format!("/.berth-{}-xxxxxx.new/{TRIAL}/{SOCKET}", std::process::id());
        let bytes = long.as_os_str().len() + name.len();
        let places = [
            ("A", scratch.path().join("missing")),
            ("B", file.clone()),
            ("C", long.clone()),
            ("D", PathBuf::from("tmp")),
        ];
        let told = choose(&places).err().expect("none is good").to_string();
        let expected = format!(
            "there is no place for a socket: A {0}/missing: entity not found, B {0}/file: not a directory, \
             C {1}: the socket's path would have {bytes} bytes, more than 107, \
             D tmp: it does not begin with /; hint: set TMPDIR to a short path that can be written to",
            scratch.path().display(),
            long.display()
        );
        assert_eq!(told, expected);
        assert_eq!(fs::read_dir(&long).expect("it is there").count(), 0);

        let good = ("E", scratch.path().to_owned());
        let folder = choose(&[places[0].clone(), good]).expect("the last one is good");
        assert!(folder.path().starts_with(scratch.path()));
        let mode = folder.path().metadata().expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        assert_eq!(fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}

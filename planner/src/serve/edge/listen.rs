//! Sockets: opened here, or handed over by systemd.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use listenfd::ListenFd;

use super::config::EdgeAddress;
use crate::temporary::PRIVATE_MODE;

/// A socket that takes connections, and does not wait for them.
pub enum Socket {
    /// One that other programs and hosts reach by address and port.
    Tcp(TcpListener),
    /// In the file system; the file is removed at the end where it is ours.
    Unix(UnixListener, Option<PathBuf>),
}

/// What sockets listen at.
pub struct Listening {
    /// The first address of TCP.
    pub address: Option<SocketAddr>,
    /// All of them, for people.
    pub text: String,
    /// Whether other hosts can reach one of them.
    pub others_reach: bool,
}

/// Opens the sockets of an address.
///
/// # Errors
/// They cannot be had; with systemd: there are none.
pub fn open(address: &EdgeAddress) -> io::Result<(Vec<Socket>, Listening)> {
    let sockets = match address {
        EdgeAddress::Tcp(tcp) => vec![Socket::Tcp(TcpListener::bind(tcp).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))
        })?)],
        EdgeAddress::Unix(path) => vec![unix(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"))
        })?],
        EdgeAddress::Handed => handed()?,
    };
    for socket in &sockets {
        match socket {
            Socket::Tcp(socket) => socket.set_nonblocking(true)?,
            Socket::Unix(socket, _) => socket.set_nonblocking(true)?,
        }
    }
    let listening = listening(&sockets)?;
    Ok((sockets, listening))
}

/// A socket in the file system. A file that an ended server left behind gives way.
fn unix(path: &Path) -> io::Result<Socket> {
    let is_socket = |path| fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
    if is_socket(path) {
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            _ => return Err(io::ErrorKind::AddrInUse.into()),
        }
    }
    let socket = UnixListener::bind(path)?;
    // Nobody is answered before this.
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_MODE))?;
    Ok(Socket::Unix(socket, Some(path.to_owned())))
}

fn handed() -> io::Result<Vec<Socket>> {
    let mut handed = ListenFd::from_env();
    let mut sockets = Vec::new();
    for index in 0..handed.len() {
        // One that is of another kind is an error, which leaves it where it is.
        let socket = match handed.take_tcp_listener(index) {
            Ok(socket) => socket.map(Socket::Tcp),
            Err(_) => handed.take_unix_listener(index)?.map(|socket| Socket::Unix(socket, None)),
        };
        sockets.extend(socket);
    }
    if sockets.is_empty() {
        let message = "systemd handed over no sockets; hint: start it by its .socket unit, \
                       or name an address, as 127.0.0.1:8642";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    Ok(sockets)
}

fn listening(sockets: &[Socket]) -> io::Result<Listening> {
    let mut found = Listening { address: None, text: String::new(), others_reach: false };
    let mut texts = Vec::new();
    for socket in sockets {
        match socket {
            Socket::Tcp(socket) => {
                let address = socket.local_addr()?;
                found.others_reach |= !address.ip().to_canonical().is_loopback();
                found.address.get_or_insert(address);
                texts.push(EdgeAddress::Tcp(address).to_string());
            }
            Socket::Unix(socket, _) => {
                let path = socket.local_addr()?.as_pathname().map(Path::to_owned);
                texts.push(EdgeAddress::Unix(path.unwrap_or_default()).to_string());
            }
        }
    }
    found.text = texts.join(", ");
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_behind_gives_way_and_one_in_use_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let address = EdgeAddress::Unix(path.clone());
        let (first, listening) = open(&address).unwrap();
        assert_eq!(listening.text, format!("unix:{}", path.display()));
        assert!(!listening.others_reach && listening.address.is_none());
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE_MODE);
        assert_eq!(open(&address).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(path.exists());
        assert!(open(&address).is_ok());
        fs::write(folder.path().join("file"), "kept").unwrap();
        assert!(open(&EdgeAddress::Unix(folder.path().join("file"))).is_err());
    }

    #[test]
    fn it_is_known_whether_other_hosts_reach_an_address() {
        for (text, others) in [("127.0.0.1:0", false), ("0.0.0.0:0", true)] {
            let (_, listening) = open(&EdgeAddress::parse(text).unwrap()).unwrap();
            assert_eq!(listening.others_reach, others, "{text}");
            assert_ne!(listening.address.unwrap().port(), 0);
        }
    }
}

//! Where the daemon listens.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::LISTEN;

/// How a path of a socket begins.
const UNIX: &str = "unix:";

/// The longest path of a socket: `sun_path` of unix(7), less its end.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address of the network, or a socket's file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ListenAddress {
    /// An address and a port; port 0 is any that is free.
    Tcp(SocketAddr),
    /// A path from the root.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Reads `127.0.0.1:8642`, `[::1]:8642` or `unix:/run/berth.sock`.
    ///
    /// # Errors
    /// It is none of these; as a clause with a hint.
    pub fn read(text: &str) -> Result<ListenAddress, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            return text.parse().map(ListenAddress::Tcp).map_err(|_| {
                let text: String = text.chars().take(80).collect();
                format!(
                    "`{text}` is not an address; hint: write one with its port, such as {LISTEN} or [::1]:8642, or unix:/run/berth.sock"
                )
            });
        };
        match path.starts_with('/') && path.len() <= UNIX_PATH_BYTES_MAX && !path.contains('\0') {
            true => Ok(ListenAddress::Unix(path.into())),
            false => Err(format!(
                "a socket's path must begin with / and have at most {UNIX_PATH_BYTES_MAX} bytes; hint: write unix:/run/berth.sock"
            )),
        }
    }

    /// The default.
    pub fn standard() -> ListenAddress {
        ListenAddress::read(LISTEN).expect("a constant that a test reads")
    }

    /// Whether only this machine's users reach it.
    pub fn is_local(&self) -> bool {
        match self {
            ListenAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
            ListenAddress::Unix(_) => true,
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<ListenAddress, String> {
        ListenAddress::read(&text)
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown_alike() {
        let local = ["127.0.0.1:8642", "[::1]:0", "127.8.9.1:80", "unix:/run/berth.sock"];
        let open = ["0.0.0.0:8642", "[::]:8642", "192.0.2.7:1"];
        for (texts, is_local) in [(&local[..], true), (&open[..], false)] {
            for text in texts {
                let address = ListenAddress::read(text).unwrap();
                assert_eq!(
                    (address.to_string(), address.is_local()),
                    ((*text).to_owned(), is_local)
                );
            }
        }
        assert!(ListenAddress::read("[::ffff:127.0.0.1]:80").unwrap().is_local());
        assert_eq!(ListenAddress::standard().to_string(), LISTEN);
    }

    #[test]
    fn what_is_no_address_is_refused_with_a_hint() {
        let long = format!("unix:/{}", "x".repeat(UNIX_PATH_BYTES_MAX));
        for text in ["", "8642", "localhost:8642", "127.0.0.1", "1.2.3.4:99999", "unix:run", &long]
        {
            let error = ListenAddress::read(text).unwrap_err();
            assert!(error.contains("; hint: "), "{text}: {error}");
        }
    }
}

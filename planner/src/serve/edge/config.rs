//! What the edge is started with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

use super::limits::EdgeLimits;
use super::settings::EdgeSettings;
use crate::serve::desk::job::{JobError, JobId, JobRecord, PictureRecord};
use crate::serve::metrics::Metrics;

/// Finds the file of a job's picture; `None` where there is none.
pub type FolderOfPictures = Arc<dyn Fn(&PictureRecord) -> Option<PathBuf> + Send + Sync>;

/// Keeps a picture that a request starts from, and returns its file: blocking work.
pub type KeepPicture = Arc<dyn Fn(Vec<u8>) -> Result<PathBuf, JobError> + Send + Sync>;

/// Reads all of a job from the store; `None` where it is not there any more: blocking work.
pub type ReadRecord = Arc<dyn Fn(&JobId) -> Result<Option<JobRecord>, JobError> + Send + Sync>;

/// Looks for models anew, and says what it found, or why it cannot as a sentence.
pub type Rescan = Arc<dyn Fn() -> Result<Value, String> + Send + Sync>;

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EdgeAddress {
    /// An address and port of TCP; port 0 is any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system, which only its user may open.
    Unix(PathBuf),
    /// Sockets that systemd opened (`LISTEN_FDS`).
    Handed,
}

/// All that the edge needs.
pub struct EdgeConfig {
    /// By TCP, by a file, or by what systemd opened.
    pub listen: EdgeAddress,
    /// Who may ask; everybody where it is `None`.
    pub token_file: Option<PathBuf>,
    /// Whether everybody may ask though other hosts can reach it.
    pub no_token: bool,
    /// Names of this host beside those that are its own.
    pub allowed_hosts: Vec<String>,
    /// Pages of other hosts that may ask, as `https://pictures.example`, or `*`.
    pub allowed_origins: Vec<String>,
    /// Keeps pictures of requests.
    pub inputs: KeepPicture,
    /// Where pictures of jobs are.
    pub pictures: FolderOfPictures,
    /// Where all of an ended job is.
    pub records: ReadRecord,
    /// Called when a client asks for it.
    pub rescan: Rescan,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// What requests are read by.
    pub settings: EdgeSettings,
    /// What is taken of clients.
    pub limits: EdgeLimits,
}

impl EdgeAddress {
    /// Reads `ADDRESS:PORT`, `unix:/PATH` or `systemd`.
    ///
    /// # Errors
    /// A sentence with a hint.
    pub fn parse(text: &str) -> Result<EdgeAddress, String> {
        if text == HANDED {
            return Ok(EdgeAddress::Handed);
        }
        if let Some(path) = text.strip_prefix(UNIX) {
            return match path.starts_with('/') {
                true => Ok(EdgeAddress::Unix(PathBuf::from(path))),
                false => Err(format!(
                    "{text:?} has no path from the root; hint: write unix:/run/berth.sock"
                )),
            };
        }
        text.parse().map(EdgeAddress::Tcp).map_err(|_| {
            format!("{text:?} is no address with a port; hint: write 127.0.0.1:8642 or [::1]:8642")
        })
    }
}

/// What sockets in the file system begin with.
const UNIX: &str = "unix:";

/// The word for sockets of systemd.
const HANDED: &str = "systemd";

impl fmt::Display for EdgeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EdgeAddress::Tcp(address) => write!(f, "http://{address}"),
            EdgeAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
            EdgeAddress::Handed => f.write_str(HANDED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_written() {
        for text in ["http://127.0.0.1:8642", "http://[::1]:0", "unix:/run/a", "systemd"] {
            let address = EdgeAddress::parse(text.trim_start_matches("http://")).expect(text);
            assert_eq!(address.to_string(), text);
        }
        for text in ["", "8642", "localhost:80", "unix:a", "127.0.0.1", "127.0.0.1:99999"] {
            assert!(
                EdgeAddress::parse(text).is_err_and(|error| error.contains("hint: ")),
                "{text}"
            );
        }
    }
}

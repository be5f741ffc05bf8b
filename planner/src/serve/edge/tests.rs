//! A real server, a desk that answers by script, and a client over plain sockets.

mod client;
mod fake_desk;
mod limits;
mod routes;
mod security;
mod streams;
mod wires;
mod working_desk;

use std::fs;
use std::path::PathBuf;

use ipc_channel::ipc::IpcSharedMemory;
use protocol::message::Image;
use serde_json::json;
use tempfile::TempDir;

use super::config::{EdgeAddress, EdgeConfig};
use super::limits::EdgeLimits;
use super::*;
use crate::media::PictureFormat;
use crate::serve::files::PictureFiles;
use crate::serve::metrics::Metrics;
use client::{Answer, Client};
use fake_desk::FakeDesk;

/// A server of a test; it ends with it.
struct Server {
    handle: Option<EdgeHandle>,
    desk: FakeDesk,
    folder: TempDir,
}

/// What a server is started with, for tests to change.
fn config(folder: &TempDir) -> EdgeConfig {
    let picture = folder.path().join("picture.png");
    fs::write(&picture, png()).unwrap();
    let files = PictureFiles::open(folder.path(), channel().0).unwrap();
    EdgeConfig {
        listen: EdgeAddress::parse("127.0.0.1:0").unwrap(),
        token_file: None,
        no_token: false,
        allowed_hosts: Vec::new(),
        allowed_origins: vec!["https://app.example".to_owned()],
        inputs: Arc::new(move |bytes| files.keep_picture(bytes)),
        pictures: Arc::new(move |record| record.file.as_ref().map(|_| picture.clone())),
        records: Arc::new(|id| Ok((id.0 == fake_desk::DONE).then(fake_desk::whole_record))),
        rescan: Arc::new(|| Ok(json!({"found": 2}))),
        metrics: Arc::new(Metrics::new(9)),
        settings: testing::settings(),
        limits: EdgeLimits { ping_every: Duration::from_millis(50), ..EdgeLimits::default() },
    }
}

/// A picture's file.
fn png() -> Vec<u8> {
    let pixels = IpcSharedMemory::from_bytes(&[7; 3 * 64 * 32]);
    let image = Image { index: 0, seed: 0, width: 64, height: 32, pixels };
    PictureFormat::Png.encode(&image, Some("a house"), 1).unwrap().bytes
}

impl Server {
    fn start() -> Server {
        Server::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut EdgeConfig)) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder);
        change(&mut config);
        let (events, asked) = channel();
        let handle = start(config, events).unwrap();
        let desk = FakeDesk::start(handle.edge.clone(), asked);
        Server { handle: Some(handle), desk, folder }
    }

    fn handle(&self) -> &EdgeHandle {
        self.handle.as_ref().unwrap()
    }

    fn client(&self) -> Client {
        Client::new(self.handle().address().unwrap())
    }

    fn get(&self, path: &str) -> Answer {
        self.client().send("GET", path, &[], b"")
    }

    fn post(&self, path: &str, body: &serde_json::Value) -> Answer {
        self.client().send("POST", path, &[], body.to_string().as_bytes())
    }

    /// A token file of the test's own.
    fn tokens(folder: &TempDir, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join("tokens");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.stop(Duration::from_millis(200));
        }
    }
}

/// Tries for some seconds until something holds.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}: not within 10 s");
        thread::yield_now();
    }
}

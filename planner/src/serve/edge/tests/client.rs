//! A blocking client: one request a connection, over whatever can be read and written.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// No answer of a test takes longer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Asks one server.
pub struct Client {
    address: SocketAddr,
}

/// What it answered.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Client {
        Client { address }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that refuses a body does not read all of it.
        let _ = stream.write_all(&request(method, path, headers, body));
        Answer::read(&mut stream)
    }

    /// Sends what opens a stream, and gives the connection.
    pub fn open(&self, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(&request("GET", path, headers, b"")).unwrap();
        stream
    }
}

/// A request's bytes; `Host` is `localhost` where no header says another.
pub fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        text.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        text.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

impl Answer {
    pub fn read(stream: &mut impl Read) -> Answer {
        let mut bytes = Vec::new();
        // A connection that is reset after the answer has answered.
        let _ = stream.read_to_end(&mut bytes);
        Answer::of(&bytes).unwrap_or_else(|| panic!("no answer: {:?}", text(&bytes)))
    }

    pub fn of(bytes: &[u8]) -> Option<Answer> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = text(&bytes[..end]);
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let pair = |line: &str| {
            line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        };
        let headers = lines.filter_map(pair).collect();
        Some(Answer { status, headers, body: bytes[end + 4..].to_vec() })
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{}", text(&self.body)))
    }

    pub fn code(&self) -> (u16, String) {
        let code = self.json()["error"]["code"].as_str().unwrap_or_default().to_owned();
        (self.status, code)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Reads a stream until it holds a text; returns all that was read.
pub fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    while !text(&all).contains(wanted) {
        match stream.read(&mut piece) {
            Ok(0) => panic!("the stream ended before {wanted:?}: {}", text(&all)),
            Ok(count) => all.extend_from_slice(&piece[..count]),
            Err(error) => panic!("{error} before {wanted:?}: {}", text(&all)),
        }
    }
    text(&all)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

//! Clients that mean no good, against the real daemon: whatever they send, it answers others within
//! a second, takes nothing of them that it should not, and does not grow.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use serde_json::json;

use crate::client::Server;
use crate::support::Home;
use crate::support::watched::PATIENCE;

/// How long anybody else may wait for a sign of life.
const SECOND: Duration = Duration::from_secs(1);

/// Connections of all clients, and of one: the daemon's limits.
const CONNECTIONS_MAX: usize = 256;
const CLIENT_CONNECTIONS_MAX: usize = 16;

/// Files that a daemon has open beside its connections.
const OWN_FILES_MAX: usize = 100;

/// By how much the daemon may grow over what no request should make it keep.
const GROWTH_BYTES_MAX: u64 = 96 << 20;

/// A connection from 127.0.0.`host`: to the daemon, another client for each.
fn connect_from(host: u8, server: SocketAddr) -> TcpStream {
    let SocketAddr::V4(server) = server else { panic!("{server} is of another family") };
    let made = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None);
    let made = made.expect("a socket");
    bind(made.as_raw_fd(), &SockaddrIn::new(127, 0, 0, host, 0)).expect("a loopback address");
    connect(made.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(*server.ip(), server.port())))
        .expect("it listens");
    let stream = TcpStream::from(made);
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    stream
}

/// What comes for these bytes, and then for the end of what is sent.
fn send_cut(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// What comes for these bytes until the end of the connection.
fn send(mut stream: TcpStream, bytes: &[u8]) -> Vec<u8> {
    // The daemon may have answered, and closed, before it has read all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    std::str::from_utf8(line).ok()?.parse().ok()
}

fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// That somebody else is answered, and how soon.
fn lives(server: &Server) -> Duration {
    let began = Instant::now();
    let stream = connect_from(200, server.address);
    let answer = send(stream, &request("GET", "/healthz", "", b""));
    assert_eq!(status(&answer), Some(200), "{}", String::from_utf8_lossy(&answer));
    began.elapsed()
}

/// Files that the daemon has open.
fn open_files(server: &Server) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", server.process.pid)).expect("it runs").count()
}

/// The most memory that the daemon has had, in bytes.
fn peak_bytes(server: &Server) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", server.process.pid));
    let text = text.expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn jobs(server: &Server) -> usize {
    server.get("/v1/jobs")["data"].as_array().map_or(0, Vec::len)
}

#[test]
fn ten_thousand_tiny_and_slow_connections_keep_nobody_else_waiting() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    lives(&server);
    let mut slow = Vec::new();
    let mut longest = Duration::ZERO;
    for count in 0..10_000 {
        let mut stream = connect_from(1, server.address);
        // One byte of a request; most are gone at once, some stay.
        let _ = stream.write_all(b"G");
        if count % 100 == 0 {
            slow.push(stream);
        }
        if count % 500 == 0 {
            longest = longest.max(lives(&server));
        }
    }
    assert!(longest < SECOND, "somebody else waited for {longest:?}");
    let files = open_files(&server);
    assert!(files <= CLIENT_CONNECTIONS_MAX + OWN_FILES_MAX, "{files} files are open");
    drop(slow);
    // Who did it is answered too, once the slow ones are gone.
    let deadline = Instant::now() + PATIENCE;
    let again = || send(connect_from(1, server.address), &request("GET", "/healthz", "", b""));
    while status(&again()) != Some(200) {
        assert!(Instant::now() < deadline, "the address is never answered again");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn all_clients_together_have_so_many_connections_and_the_rest_waits_its_turn() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    lives(&server);
    let mut slow = Vec::new();
    for host in 1..=20 {
        for _ in 0..CLIENT_CONNECTIONS_MAX {
            let mut stream = connect_from(host, server.address);
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHo");
            slow.push(stream);
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while open_files(&server) < CONNECTIONS_MAX {
        assert!(Instant::now() < deadline, "{} connections are taken", open_files(&server));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(open_files(&server) <= CONNECTIONS_MAX + OWN_FILES_MAX);
    // The slow ones are let go after their time for headers, and nobody has to end them.
    let waited = lives(&server);
    assert!(waited < Duration::from_secs(60), "{waited:?}");
    drop(slow);
}

#[test]
fn requests_cut_anywhere_are_no_harm() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let body = json!({"prompt": "a house", "steps": 2, "width": 64}).to_string();
    let form = "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n\
                --b\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\n\r\nx\r\n--b--\r\n";
    let form = format!(
        "POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    );
    for whole in [
        request("POST", "/v1/jobs", "", body.as_bytes()),
        request("POST", "/v1/images/generations", "", body.as_bytes()),
        request("POST", "/sdapi/v1/txt2img", "", body.as_bytes()),
        form.into_bytes(),
    ] {
        for end in (0..whole.len()).step_by(7) {
            let answer = send_cut(connect_from(1, server.address), &whole[..end]);
            let status = status(&answer);
            let refused = status.is_none_or(|status| (400..500).contains(&status));
            assert!(refused, "{end}: {}", String::from_utf8_lossy(&answer));
        }
    }
    assert_eq!(jobs(&server), 0, "nothing of it was a job");
    assert!(lives(&server) < SECOND);
}

#[test]
fn names_lead_nowhere() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let long = "n".repeat(10_000);
    let secret = home.beside("state");
    for name in ["..", "../../../../etc/passwd", "a\0b", "/etc/passwd", long.as_str(), "%2e%2e"] {
        for (route, body) in [
            ("/v1/jobs", json!({"prompt": "a", "model": name, "lora": [{"name": name}]})),
            ("/v1/plan", json!({"prompt": "a", "lora": [{"name": name}]})),
            ("/v1/images/generations", json!({"prompt": "a", "model": name, "size": name})),
            (
                "/sdapi/v1/txt2img",
                json!({"prompt": format!("a <lora:{name}:1>"), "sampler_name": name, "steps": 0}),
            ),
            ("/sdapi/v1/options", json!({"sd_model_checkpoint": format!("x{name}")})),
        ] {
            let answer = server.ask("POST", route, Some(&body));
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!((400..500).contains(&answer.status), "{route} {body}: {text}");
            assert!(text.len() < 8 << 10, "{route}: it repeats {} bytes", text.len());
            assert!(!text.contains(secret.to_str().expect("text")), "{text}");
        }
    }
    let long = format!("/v1/models/{long}");
    for path in [
        "/assets/../Cargo.toml",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/assets/..%2f..%2fetc%2fpasswd",
        "/v1/jobs/..%2f..%2fjobs.redb/pictures/0",
        "/v1/jobs/%00/events",
        "/v1/models/%2e%2e%2fdemo",
        "/v1/models/demo%00",
        "//v1//jobs",
        long.as_str(),
    ] {
        let answer = send(connect_from(1, server.address), &request("GET", path, "", b""));
        assert_eq!(status(&answer), Some(404), "{path}: {}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(jobs(&server), 0);
}

#[test]
fn bombs_are_refused_and_leave_no_memory_behind() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    server.done(&server.submit(&json!({"prompt": "a", "steps": 1})));
    let before = peak_bytes(&server);
    // A header of 30000x30000 pixels, and one of 8000x8000 with nothing behind it.
    for picture in [bomb(30_000, 30_000), bomb(8_000, 8_000)] {
        let image = base64::encode(&picture);
        for (route, body) in [
            ("/v1/jobs", json!({"prompt": "a", "image": &image})),
            ("/v1/images/edits", json!({"prompt": "a", "image": &image})),
            ("/sdapi/v1/img2img", json!({"prompt": "a", "init_images": [&image]})),
        ] {
            let answer = server.ask("POST", route, Some(&body));
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!((400..500).contains(&answer.status), "{route}: {text}");
            assert!(text.len() < 8 << 10, "{route}: {} bytes", text.len());
        }
    }
    // Settings that unpack to 128 MiB.
    let body = json!({"image": base64::encode(text_bomb())});
    assert_eq!(server.ask("POST", "/sdapi/v1/png-info", Some(&body)).status, 422);
    let nested = format!("{{\"prompt\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
    let many = format!("{{\"a\":[{}1]}}", "1,".repeat(400_000));
    for body in [nested, many] {
        for route in ["/v1/jobs", "/v1/plan", "/v1/images/generations", "/sdapi/v1/txt2img"] {
            let bytes = request("POST", route, "", body.as_bytes());
            let answer = send(connect_from(1, server.address), &bytes);
            let refused = status(&answer).is_some_and(|status| (400..500).contains(&status));
            assert!(refused, "{route}: {}", String::from_utf8_lossy(&answer));
        }
    }
    let grown = peak_bytes(&server).saturating_sub(before);
    assert!(grown < GROWTH_BYTES_MAX, "it grew by {} MiB", grown >> 20);
    assert_eq!(jobs(&server), 1);
    assert!(lives(&server) < SECOND);
}

#[test]
fn foreign_names_pages_and_tokens_are_refused() {
    let home = Home::new();
    let (_, file) = crate::client::token(&home);
    let server = Server::start(&home, &["--token-file", &file]);
    let ask = |head: &str| {
        let bytes = format!("GET /v1/queue HTTP/1.1\r\nConnection: close\r\n{head}\r\n\r\n");
        status(&send(connect_from(1, server.address), bytes.as_bytes()))
    };
    assert_eq!(ask("Host: evil.example"), Some(403));
    assert_eq!(ask("Host: localhost\r\nHost: evil.example"), Some(403));
    assert_eq!(ask("X-Nothing: 1"), Some(403), "without a Host");
    assert_eq!(ask("Host: localhost\r\nOrigin: https://evil.example"), Some(403));
    assert_eq!(ask("Host: localhost"), Some(401));
    for _ in 0..10 {
        assert_eq!(ask("Host: localhost\r\nAuthorization: Bearer guess"), Some(401));
    }
    assert_eq!(ask("Host: localhost\r\nAuthorization: Bearer guess"), Some(429));
    // Another address is not held to it.
    let other = send(connect_from(2, server.address), &request("GET", "/v1/queue", "", b""));
    assert_eq!(status(&other), Some(401));
}

/// A PNG of so many pixels, of which there is none.
fn bomb(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    // Dropped, it says that the pixels are missing; the header is written by then.
    drop(encoder.write_header().expect("a header"));
    bytes
}

/// A PNG of one pixel with a text that is far larger than its file.
fn text_bomb() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1, 1);
    let text = "x".repeat(128 << 20);
    encoder.add_ztxt_chunk("parameters".to_owned(), text).expect("a text");
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&[0]).expect("a pixel");
    writer.finish().expect("a whole picture");
    assert!(bytes.len() < 1 << 20, "{} bytes", bytes.len());
    bytes
}

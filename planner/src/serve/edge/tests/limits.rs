//! Limits on connections, headers and bodies, met by clients that mean no good.

use std::io::{Read, Write};
use std::time::Instant;

use serde_json::json;

use super::client::{read_until, request};
use super::fake_desk::{DONE, NEVER};
use super::*;
use crate::serve::edge::limits::{BODY_BYTES_MAX, HEADER_BYTES_MAX};

#[test]
fn headers_are_bounded_in_bytes_and_time() {
    let server = Server::with(|config| config.limits.header_timeout = Duration::from_millis(200));
    let long = "x".repeat(HEADER_BYTES_MAX);
    let answer = server.client().send("GET", "/v1/queue", &[("X-Long", &long)], b"");
    assert_eq!(answer.status, 431);
    let mut slow = server.client().connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: loc").unwrap();
    let began = Instant::now();
    let mut rest = Vec::new();
    let _ = slow.read_to_end(&mut rest);
    assert!(began.elapsed() < Duration::from_secs(5), "it was closed");
}

#[test]
fn bodies_are_bounded_in_bytes_depth_and_time() {
    let server = Server::with(|config| config.limits.body_timeout = Duration::from_millis(200));
    let large = vec![b' '; BODY_BYTES_MAX + 1];
    let answer = server.client().send("POST", "/v1/queue/pause", &[], &large);
    assert_eq!(answer.code(), (413, "too_large".to_owned()));
    let deep = format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100));
    let answer = server.client().send("POST", "/v1/jobs", &[], deep.as_bytes());
    assert_eq!(answer.code(), (400, "bad_value".to_owned()));
    let kind = [("Content-Type", "text/plain")];
    let answer = server.client().send("POST", "/v1/jobs", &kind, b"{}");
    assert_eq!(answer.code(), (415, "bad_media".to_owned()));
    let mut slow = server.client().connect();
    slow.write_all(b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        .unwrap();
    let mut piece = [0; 4096];
    let count = slow.read(&mut piece).unwrap();
    assert_eq!(Answer::of(&piece[..count]).unwrap().status, 408);
}

#[test]
fn a_body_that_is_announced_too_long_is_refused_unread() {
    let server = Server::start();
    let mut stream = server.client().connect();
    let head = "POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut piece = [0; 4096];
    let count = stream.read(&mut piece).unwrap();
    assert_eq!(Answer::of(&piece[..count]).unwrap().status, 413);
}

/// Sends a request's head, then its body once the server has read the head, and then another
/// request on the same connection, whose answer ends it.
fn two_on_one_connection(head: &str, body: &[u8]) -> String {
    let server = Server::start();
    let mut stream = server.client().connect();
    stream.write_all(head.as_bytes()).unwrap();
    // One thread serves everybody: once it has answered this, it has read what came before.
    assert_eq!(server.get("/healthz").status, 200);
    stream.write_all(body).unwrap();
    read_until(&mut stream, "\r\n\r\n");
    stream.write_all(&request("GET", "/healthz", &[], b"")).unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    String::from_utf8_lossy(&rest).into_owned()
}

#[test]
fn a_connection_outlives_a_body_that_nobody_wanted() {
    for path in ["/v1/queue/resume", "/none"] {
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n");
        let rest = two_on_one_connection(&head, b"{}");
        assert!(rest.contains("HTTP/1.1 200 OK"), "{path}: {rest:?}");
    }
}

#[test]
fn a_long_body_that_nobody_wanted_is_not_read() {
    let server = Server::start();
    let mut stream = server.client().connect();
    let head = "POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(Answer::of(&answer).unwrap().status, 404);
}

#[test]
fn all_bodies_together_are_bounded() {
    let server = Server::with(|config| config.limits.bodies_bytes = 128 << 10);
    let body = |bytes: usize| format!("{{\"prompt\":\"{}\"}}", "x".repeat(bytes));
    let small = server.client().send("POST", "/v1/jobs", &[], body(50_000).as_bytes());
    assert_eq!(small.status, 202);
    let large = server.client().send("POST", "/v1/jobs", &[], body(200_000).as_bytes());
    assert_eq!(large.code(), (503, "queue_full".to_owned()));
    let again = server.client().send("POST", "/v1/jobs", &[], body(50_000).as_bytes());
    assert_eq!(again.status, 202, "room is given back");
}

#[test]
fn bodies_that_end_anywhere_are_no_harm() {
    let server = Server::start();
    let whole =
        request("POST", "/v1/jobs", &[], json!({"prompt": "a house"}).to_string().as_bytes());
    for end in (0..whole.len()).step_by(3) {
        let mut stream = server.client().connect();
        stream.write_all(&whole[..end]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        if let Some(answer) = Answer::of(&rest) {
            assert_eq!(answer.status, 400, "{end}");
        }
    }
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.desk.orders.lock().unwrap().is_empty());
}

#[test]
fn who_leaves_is_told_to_the_desk() {
    let server = Server::start();
    let mut stream = server.client().connect();
    let body = json!({"prompt": NEVER}).to_string();
    stream.write_all(&request("POST", "/v1/jobs", &[], body.as_bytes())).unwrap();
    let desk = &server.desk;
    eventually("the question is asked", || !desk.unanswered.lock().unwrap().is_empty());
    assert!(desk.left.lock().unwrap().is_empty());
    drop(stream);
    eventually("the desk is told", || !desk.left.lock().unwrap().is_empty());
    assert_eq!(*desk.left.lock().unwrap(), *desk.unanswered.lock().unwrap());
}

#[test]
fn a_client_that_does_not_read_is_let_go() {
    let large = tempfile::NamedTempFile::new().unwrap();
    // More than the system keeps of a connection.
    large.as_file().set_len(64 << 20).unwrap();
    let path = large.path().to_owned();
    let server = Server::with(|config| {
        config.pictures = Arc::new(move |_| Some(path.clone()));
        config.limits.stream_stall = Duration::from_millis(200);
    });
    let picture = format!("/v1/jobs/{DONE}/pictures/0");
    let mut stream = server.client().open(&picture, &[]);
    let mut piece = [0; 64];
    assert!(stream.read(&mut piece).unwrap() > 0, "the answer has begun");
    let began = Instant::now();
    eventually("time passes", || began.elapsed() > Duration::from_millis(800));
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert!(rest.len() < 32 << 20, "{} B came in the end", rest.len());
    assert!(server.get(&picture).body.len() > 32 << 20, "who reads gets all");
}

#[test]
fn a_thousand_tiny_connections_are_bounded_and_leave_nothing() {
    let server = Server::with(|config| config.limits.header_timeout = Duration::from_millis(300));
    let most = EdgeLimits::default().client_connections;
    let mut open = Vec::new();
    for _ in 0..1000 {
        let mut stream = server.client().connect();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let _ = stream.write_all(b"G");
        open.push(stream);
    }
    eventually("most are closed", || {
        let still = open.iter().filter(|stream| {
            let mut stream = *stream;
            matches!(stream.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
        });
        still.count() <= most
    });
    eventually("it answers again", || {
        let mut stream = server.client().connect();
        let _ = stream.write_all(&request("GET", "/healthz", &[], b""));
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        Answer::of(&bytes).is_some_and(|answer| answer.status == 200)
    });
}

#[test]
fn a_server_ends_in_time_whatever_clients_do() {
    let mut server = Server::start();
    let mut waiting = server.client().connect();
    let body = json!({"prompt": NEVER}).to_string();
    waiting.write_all(&request("POST", "/v1/jobs", &[], body.as_bytes())).unwrap();
    let desk = server.desk.clone();
    eventually("the question is asked", || !desk.unanswered.lock().unwrap().is_empty());
    let (address, began) = (server.handle().address().unwrap(), Instant::now());
    server.handle.take().unwrap().stop(Duration::from_millis(300));
    assert!(began.elapsed() < Duration::from_secs(2));
    eventually("nobody listens", || std::net::TcpStream::connect(address).is_err());
}

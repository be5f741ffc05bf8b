//! Streams of events: from the first to the last, lost ones, and signs of life.

use std::io::Read;
use std::net::TcpStream;

use serde_json::json;

use super::client::read_until;
use super::fake_desk::{DONE, RUNNING};
use super::*;
use crate::serve::desk::action::{ProgressView, SlotState};
use crate::serve::desk::job::{JobId, JobState};
use crate::serve::edge::limits::NOTES_KEPT;
use crate::serve::edge::testing::view;

fn progress(step: u32) -> Note {
    let view = ProgressView { phase: "denoise".to_owned(), step, of: 4, eta_ms: Some(1.0) };
    Note::Progress(JobId(RUNNING.to_owned()), view)
}

fn ended() -> Note {
    Note::State(Box::new(view(RUNNING, "ann", JobState::Done)))
}

fn of_job(server: &Server, headers: &[(&str, &str)]) -> TcpStream {
    server.client().open(&format!("/v1/jobs/{RUNNING}/events"), headers)
}

fn last_id(text: &str) -> String {
    let mut ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
    ids.next_back().unwrap().to_owned()
}

#[test]
fn a_job_is_followed_to_its_end() {
    let server = Server::start();
    let mut stream = of_job(&server, &[]);
    let head = read_until(&mut stream, "event: state");
    assert!(head.contains("content-type: text/event-stream"), "{head}");
    server.handle().tell(progress(1));
    let text = read_until(&mut stream, "event: progress\ndata: ");
    assert!(!text.contains("lost"), "{text}");
    server.handle().tell(Note::Model("demo".to_owned(), SlotState::Warm));
    server.handle().tell(ended());
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("event: state") && rest.contains("\"done\""), "{rest}");
    assert!(!rest.contains("event: model"), "it is of no job: {rest}");
}

#[test]
fn an_ended_job_is_told_once() {
    let server = Server::start();
    let path = format!("/v1/jobs/{DONE}/events");
    let answer = server.get(&path);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.contains("event: state"), "{text}");
    let headers = [("Last-Event-ID", &*last_id(&text))];
    assert_eq!(server.client().send("GET", &path, &headers, b"").status, 204);
}

#[test]
fn a_silent_stream_shows_signs_of_life() {
    let server = Server::start();
    let mut stream = server.client().open("/v1/events", &[]);
    read_until(&mut stream, ": ping");
    read_until(&mut stream, ": ping");
}

#[test]
fn who_comes_back_goes_on_where_he_was() {
    let server = Server::start();
    let mut stream = server.client().open("/v1/events", &[]);
    read_until(&mut stream, ": ping");
    server.handle().tell(Note::Model("a".to_owned(), SlotState::Warm));
    let text = read_until(&mut stream, "\"model\":\"a\"");
    drop(stream);
    for name in ["b", "c"] {
        server.handle().tell(Note::Model(name.to_owned(), SlotState::Warm));
    }
    server.handle().set_reading(json!({"free": 5}));
    let id = last_id(&text);
    let mut again = server.client().open("/v1/events", &[("Last-Event-ID", &id)]);
    let text = read_until(&mut again, "event: reading\ndata: {\"free\":5}");
    assert!(text.contains("\"model\":\"b\"") && text.contains("\"model\":\"c\""), "{text}");
    assert!(!text.contains("\"model\":\"a\"") && !text.contains("event: lost"), "{text}");
}

#[test]
fn what_is_too_long_ago_is_told_as_lost() {
    let server = Server::start();
    for index in 0..NOTES_KEPT + 10 {
        server.handle().tell(Note::Model(index.to_string(), SlotState::Warm));
    }
    let mut stream = server.client().open("/v1/events", &[("Last-Event-ID", "another-1")]);
    let text = read_until(&mut stream, &format!("\"model\":\"{}\"", NOTES_KEPT + 9));
    assert!(text.contains("event: lost\ndata: {\"events\":10,"), "{}", &text[..400]);
    assert_eq!(text.matches("event: model").count(), NOTES_KEPT);
}

#[test]
fn streams_are_bounded_and_end_with_their_clients() {
    let server = Server::with(|config| config.limits.streams = 2);
    let mut open: Vec<TcpStream> =
        (0..2).map(|_| server.client().open("/v1/events", &[])).collect();
    for stream in &mut open {
        read_until(stream, ": ping");
    }
    assert_eq!(server.get("/v1/events").code(), (503, "queue_full".to_owned()));
    open.clear();
    eventually("there is room again", || {
        let mut stream = server.client().open("/v1/events", &[]);
        let mut piece = [0; 64];
        let count = stream.read(&mut piece).unwrap();
        piece[..count].starts_with(b"HTTP/1.1 200")
    });
}

#[test]
fn streams_end_with_the_server() {
    let mut server = Server::start();
    let mut stream = server.client().open("/v1/events", &[]);
    read_until(&mut stream, ": ping");
    server.handle.take().unwrap().stop(Duration::from_secs(5));
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
}

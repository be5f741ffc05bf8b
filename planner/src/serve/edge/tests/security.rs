//! Who may ask, by which name, and from which pages.

use std::io::Write;
use std::os::unix::net::UnixStream;

use serde_json::json;

use super::client::{Answer, request};
use super::fake_desk::RUNNING;
use super::*;

const ANN: &str = "0123456789abcdef0123456789abcdef";
const BOB: &str = "fedcba9876543210fedcba9876543210";

fn with_tokens() -> Server {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("ann:{ANN}:admin\nbob:{BOB}\n");
    let path = Server::tokens(&folder, &text);
    Server::with(|config| config.token_file = Some(path))
}

fn as_bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let server = Server::start();
    let ask =
        |method, headers: &[(&str, &str)]| server.client().send(method, "/v1/queue", headers, b"");
    assert_eq!(ask("GET", &[("Host", "evil.example")]).code(), (403, "bad_host".to_owned()));
    let foreign = ask("GET", &[("Origin", "https://evil.example")]);
    assert_eq!(foreign.code(), (403, "bad_origin".to_owned()));
    assert_eq!(foreign.header("access-control-allow-origin"), None);
    let allowed = ask("GET", &[("Origin", "https://app.example")]);
    assert_eq!(allowed.status, 200);
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://app.example"));
    let before = ask("OPTIONS", &[("Origin", "https://app.example")]);
    assert_eq!(before.status, 204);
    assert!(before.header("access-control-allow-headers").unwrap().contains("authorization"));
    assert_eq!(ask("GET", &[("Origin", "http://localhost")]).status, 200);
    let hidden = server.client().send(
        "POST",
        "/v1/queue/resume",
        &[("Sec-Fetch-Site", "cross-site")],
        b"{}",
    );
    assert_eq!(hidden.code(), (403, "bad_origin".to_owned()));
}

#[test]
fn without_tokens_any_authorization_is_taken() {
    let server = Server::start();
    for value in ["Bearer dummy", "Bearer ", "", "Basic !!"] {
        let headers = [("Authorization", value)];
        let answer = server.client().send("GET", "/v1/queue", &headers, b"");
        assert_eq!(answer.status, 200, "{value:?}");
    }
    let asker = server.desk.askers.lock().unwrap()[0].clone();
    assert_eq!((asker.client.as_str(), asker.admin), ("127.0.0.1", true));
}

#[test]
fn a_token_says_who_asks_and_what_may_be_done() {
    let server = with_tokens();
    let ask = |method, path: &str, token: &str| {
        let value = as_bearer(token);
        server.client().send(method, path, &[("Authorization", &value)], b"{}")
    };
    let none = server.get("/v1/queue");
    assert_eq!(none.code(), (401, "bad_token".to_owned()));
    let ways = ways(&none);
    assert!(ways[0] == "Bearer" && ways[1].starts_with("Basic"), "{ways:?}");
    assert_eq!(ask("GET", "/v1/queue", BOB).status, 200);
    let asker = server.desk.askers.lock().unwrap().last().unwrap().clone();
    assert_eq!((asker.client.as_str(), asker.admin), ("bob", false));
    for path in [
        "/v1/queue/pause",
        "/v1/drain",
        "/v1/warnings/acknowledge",
        "/v1/models/demo/unload",
        "/v1/models/rescan",
    ] {
        assert_eq!(ask("POST", path, BOB).code(), (403, "not_admin".to_owned()), "{path}");
        assert!(ask("POST", path, ANN).status < 300, "{path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    for path in ["/metrics", "/openapi.json", "/nothing"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    assert_eq!(server.client().send("OPTIONS", "/v1/queue", &[], b"").status, 204);
}

fn ways(answer: &Answer) -> Vec<&str> {
    let ways = answer.headers.iter().filter(|(name, _)| name == "www-authenticate");
    ways.map(|(_, value)| value.as_str()).collect()
}

#[test]
fn a_page_asks_for_a_token_by_itself() {
    let server = with_tokens();
    for header in [
        ("X-Requested-With", "berth-page"),
        ("Accept", "text/event-stream"),
        ("Sec-Fetch-Mode", "cors"),
        ("Sec-Fetch-Mode", "no-cors"),
    ] {
        let answer = server.client().send("GET", "/v1/events", &[header], b"");
        assert_eq!((answer.status, ways(&answer)), (401, vec!["Bearer"]), "{header:?}");
    }
    let visit = [("Sec-Fetch-Mode", "navigate")];
    assert_eq!(ways(&server.client().send("GET", "/v1/queue", &visit, b"")).len(), 2);
}

#[test]
fn a_login_gives_a_cookie_that_scripts_cannot_read() {
    let server = with_tokens();
    assert_eq!(server.post("/login", &json!({"token": "wrong"})).status, 401);
    let answer = server.post("/login", &json!({"token": ANN}));
    let cookie = answer.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(ANN));
    let pair = cookie.split(';').next().unwrap();
    let asked = server.client().send("GET", "/v1/queue", &[("Cookie", pair)], b"");
    assert_eq!(asked.status, 200);
}

#[test]
fn guessing_ends_after_ten_wrong_tokens() {
    let server = with_tokens();
    let ask = |token: &str| server.client().send("GET", "/v1/queue", &[("x-api-key", token)], b"");
    for _ in 0..10 {
        assert_eq!(ask("guess").status, 401);
    }
    let answer = ask(ANN);
    assert_eq!(answer.code(), (429, "bad_token".to_owned()));
    let after: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after));
}

#[test]
fn tokens_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = Server::tokens(&folder, &format!("ann:{ANN}\n"));
    let server = Server::with(|config| config.token_file = Some(path));
    let ask =
        |token: &str| server.client().send("GET", "/v1/queue", &[("x-api-key", token)], b"").status;
    assert_eq!((ask(ANN), ask(BOB)), (200, 401));
    Server::tokens(&folder, &format!("bob:{BOB}\n"));
    server.handle().reload_tokens().unwrap();
    assert_eq!((ask(ANN), ask(BOB)), (401, 200));
    Server::tokens(&folder, "nonsense\n");
    assert!(server.handle().reload_tokens().is_err());
    assert_eq!(ask(BOB), 200, "after an error the tokens are as before");
}

#[test]
fn others_reach_the_server_only_with_tokens() {
    let refused = |change: &dyn Fn(&mut EdgeConfig)| {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(&folder);
        config.listen = EdgeAddress::parse("0.0.0.0:0").unwrap();
        change(&mut config);
        start(config, channel().0).err().map(|error| error.to_string())
    };
    assert!(refused(&|_| {}).unwrap().contains("no token file"));
    assert_eq!(refused(&|config| config.no_token = true), None);
    let folder = tempfile::tempdir().unwrap();
    let tokens = Server::tokens(&folder, &format!("ann:{ANN}\n"));
    assert_eq!(refused(&|config| config.token_file = Some(tokens.clone())), None);
    let any = refused(&|config| {
        config.token_file = Some(tokens.clone());
        config.allowed_origins = vec!["*".to_owned()];
    });
    assert!(any.unwrap().contains("allowed_origins"));
}

#[test]
fn a_socket_in_the_file_system_answers_and_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("berth.sock");
    let server = Server::with(|config| config.listen = EdgeAddress::Unix(path.clone()));
    assert_eq!(server.handle().listening(), format!("unix:{}", path.display()));
    let mut stream = UnixStream::connect(&path).unwrap();
    let sent = request("GET", &format!("/v1/jobs/{RUNNING}"), &[("Host", "any")], b"");
    stream.write_all(&sent).unwrap();
    assert_eq!(Answer::read(&mut stream).status, 200);
    drop(server);
    assert!(!path.exists());
}

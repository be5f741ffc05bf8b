//! The examples of docs/api.md, run as they stand there against the real daemon, and whether they
//! are all of its routes.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::client::Server;
use crate::support::{Home, root};

/// How long a daemon may take to end that was told to.
const SOON: Duration = Duration::from_secs(30);

/// curl's own exit code where `--max-time` is over: a stream that has no end.
const TIMED_OUT: i32 = 28;

/// Where the routes stand whose clients have no use for `/openapi.json`.
const FOREIGN: [&str; 3] = [
    "planner/src/serve/edge/openai.rs",
    "planner/src/serve/edge/sdapi.rs",
    "planner/src/serve/edge/page.rs",
];

/// A command of the page, and the lines that it shows of what the daemon answers.
#[derive(Debug)]
struct Example {
    command: String,
    shown: Vec<String>,
}

fn examples() -> Vec<Example> {
    let text = fs::read_to_string(root().join("docs/api.md")).expect("docs/api.md");
    let mut examples: Vec<Example> = Vec::new();
    let mut within = false;
    for line in text.lines() {
        match line {
            "```console" => within = true,
            line if line.starts_with("```") => {
                assert!(within || line != "```sh", "an example that is not run: {line}");
                within = false;
            }
            line if within => match line.strip_prefix("$ ") {
                Some(command) => {
                    let command = command.to_owned();
                    examples.push(Example { command, shown: Vec::new() });
                }
                None => examples.last_mut().expect("a command").shown.push(line.to_owned()),
            },
            _ => {}
        }
    }
    examples
}

#[test]
fn the_examples_of_the_docs_are_answered_as_they_show() {
    let found = Command::new("curl").arg("--version").stdout(Stdio::null()).status();
    assert!(found.is_ok(), "this test runs curl; hint: install the package curl");
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let examples = examples();
    assert!(examples.len() > 50, "{}", examples.len());
    let mut id = String::new();
    for example in &examples {
        let (status, answer) = run(&home, &server, &example.command, &id);
        let shows_error = example.shown.iter().any(|line| line.starts_with("{\"error\""));
        let expected = if shows_error { 400..500 } else { 200..300 };
        let text = String::from_utf8_lossy(&answer);
        assert!(expected.contains(&status), "{}\n{status}: {text}", example.command);
        compare(example, &text);
        let told: Option<Value> = serde_json::from_str(&text).ok();
        if let Some(told) = told.and_then(|told| told["id"].as_str().map(str::to_owned))
            && told != "demo"
        {
            id = told;
        }
        if let Some(file) = written(&example.command) {
            let bytes = fs::read(home.path(file)).unwrap_or_else(|_| panic!("{file} is written"));
            assert_eq!(kind_of(&bytes), file.rsplit('.').next(), "{}", example.command);
        }
    }
    assert_eq!(server.ends(SOON), Some(0), "the last example ends it");
}

/// Runs a line of the docs by a shell; the status and what came.
fn run(home: &Home, server: &Server, command: &str, id: &str) -> (u16, Vec<u8>) {
    let curl = command.strip_prefix("curl ").unwrap_or_else(|| panic!("not curl: {command}"));
    let status = "--noproxy '*' --show-error -w '\\n%{http_code}'";
    let output = Command::new("sh")
        .args(["-c", &format!("curl {status} {curl}")])
        .current_dir(home.path(""))
        .env("BERTH", format!("http://{}", server.address))
        .env("ID", id)
        .output()
        .expect("a shell");
    let told = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    let is_endless = command.contains("--max-time") && code == Some(TIMED_OUT);
    assert!(code == Some(0) || is_endless, "{command}: {told}");
    let end = output.stdout.iter().rposition(|byte| *byte == b'\n').expect("a status");
    let status = std::str::from_utf8(&output.stdout[end + 1..]).expect("digits");
    (status.parse().expect("a status"), output.stdout[..end].to_vec())
}

/// Holds an answer against what the page shows of it.
fn compare(example: &Example, answer: &str) {
    let Example { command, shown } = example;
    let [only] = &shown[..] else {
        // Lines of a text or a stream, in this order.
        let mut rest = answer.lines();
        for line in shown {
            assert!(
                rest.any(|other| other.starts_with(line.as_str())),
                "{command}: {line}\n{answer}"
            );
        }
        return;
    };
    if let Ok(shown) = serde_json::from_str::<Value>(only) {
        let answer = serde_json::from_str(answer).unwrap_or_else(|_| panic!("{command}: {answer}"));
        compare_json(command, &shown, &answer);
    } else {
        assert!(answer.lines().any(|line| line.starts_with(only.as_str())), "{command}\n{answer}");
    }
}

/// All that is shown is there: objects by their keys, lists by their first entry, numbers by being
/// one, other values as they are, `…` by being some text.
fn compare_json(at: &str, shown: &Value, answer: &Value) {
    match (shown, answer) {
        (Value::Object(shown), Value::Object(answer)) => {
            for (key, value) in shown {
                let there = answer.get(key).unwrap_or_else(|| panic!("{at}: no {key}"));
                compare_json(&format!("{at}.{key}"), value, there);
            }
        }
        (Value::Array(shown), Value::Array(answer)) => {
            for (one, there) in shown.first().into_iter().zip(answer.first()) {
                compare_json(&format!("{at}[0]"), one, there);
            }
            assert_eq!(shown.is_empty(), answer.is_empty(), "{at}: {answer:?}");
        }
        (Value::Number(_), Value::Number(_)) => {}
        (Value::String(shown), Value::String(there)) if shown == "…" => {
            assert!(!there.is_empty(), "{at}");
        }
        _ => assert_eq!(shown, answer, "{at}"),
    }
}

/// The file that curl writes to.
fn written(command: &str) -> Option<&str> {
    command.split(" -o ").nth(1)?.split(' ').next()
}

/// The ending that a file of these bytes has.
fn kind_of(bytes: &[u8]) -> Option<&'static str> {
    let kinds = [(&b"\x89PNG"[..], "png"), (b"\xff\xd8\xff", "jpg"), (b"RIFF", "webp")];
    kinds.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, ending)| ending)
}

/// The routes of a daemon, as `GET /v1/jobs/{id}`; without a method where every one is answered.
pub fn routes(server: &Server) -> BTreeSet<String> {
    let document = server.get("/openapi.json");
    let mut routes = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let methods = methods.as_object().expect("methods").keys();
        routes.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    routes.insert("GET /openapi.json".to_owned());
    for file in FOREIGN {
        let text = fs::read_to_string(root().join(file)).expect(file);
        for row in text.split(".route(\"").skip(1) {
            let (path, handler) = row.split_once("\", ").expect("a path and a handler");
            let handler = handler.lines().next().unwrap_or_default();
            for (call, method) in [("post(", "POST "), ("any(", "POST ")] {
                if handler.contains(call) {
                    routes.insert(format!("{method}{path}"));
                }
            }
            if ["get(", "list(", "empty("].iter().any(|call| handler.contains(call)) {
                routes.insert(format!("GET {path}"));
            }
        }
    }
    routes
}

/// Method and path of an example.
fn asked(command: &str) -> (String, String) {
    let url = command.split("$BERTH").nth(1).expect("an address of the daemon");
    let path = url.split(['"', ' ', '?']).next().unwrap_or_default().replace("$ID", "{id}");
    let named = command.split("-X ").nth(1).and_then(|rest| rest.split(' ').next());
    let sends = command.contains("--json") || command.contains(" -F ");
    let method = named.unwrap_or(if sends { "POST" } else { "GET" });
    (method.to_owned(), path)
}

fn is_of(route: &str, method: &str, path: &str) -> bool {
    let (of, template) = route.split_once(' ').expect("method and path");
    let parts = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let (template, path) = (parts(template), parts(path));
    let fits = |(template, part): (&String, &String)| template.starts_with('{') || template == part;
    of == method && template.len() == path.len() && template.iter().zip(&path).all(fits)
}

#[test]
fn every_route_has_an_example() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let asked: Vec<(String, String)> =
        examples().iter().map(|example| asked(&example.command)).collect();
    let routes = routes(&server);
    assert!(routes.len() > 50, "{routes:?}");
    for route in &routes {
        let is_shown = asked.iter().any(|(method, path)| is_of(route, method, path));
        assert!(is_shown, "docs/api.md has no example of {route}");
    }
    for (method, path) in &asked {
        let is_there = routes.iter().any(|route| is_of(route, method, path));
        assert!(is_there || path == "/v1/nothing", "{method} {path} is no route");
    }
}

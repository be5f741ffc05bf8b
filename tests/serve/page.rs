//! The page as people meet it, in a real browser: with `BERTH_BROWSER=1`, as a browser takes a
//! machine's time, on which the waits of these tests depend.
//!
//! `BERTH_AXE=FILE` names a copy of axe-core (`axe.min.js` of the npm package), which then looks at
//! each view too. `BERTH_SCREENSHOTS=DIR` has a picture of each view written there.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::browser::{Browser, ENTER};
use crate::client::{Server, token};
use crate::lanes;
use crate::support::Home;

const VIEWS: [&str; 4] = ["make", "plan", "queue", "gallery"];

/// Where what was asked for last on Make stands.
const JOB: &str = "[data-job]";

fn view(address: SocketAddr, name: &str) -> String {
    format!("http://{address}/#/{name}")
}

/// A condition: the newest job of Make is in this state.
fn is(state: &str) -> String {
    format!("document.querySelector('{JOB}')?.dataset.state === '{state}'")
}

/// A condition: the quote says so.
fn quote_has(text: &str) -> String {
    format!("document.querySelector('[aria-labelledby=quote-title]')?.innerText.includes('{text}')")
}

#[test]
fn a_picture_is_made_and_is_there_after_a_reload() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let server = Server::start(&home, &[]);
    browser.go(&view(server.address, "make"));
    browser.until(&quote_has("It fits."));
    let before = browser.text("[aria-labelledby=quote-title] table");
    browser.fill("#prompt", "a red circle");
    browser.fill("#width", "256");
    browser.fill("#steps", "6");
    browser.until(&format!(
        "document.querySelector('[aria-labelledby=quote-title] table').textContent !== {before:?}"
    ));
    browser.click("button.main");
    browser.until(&is("done"));
    let drawn = "document.querySelector('[data-job] figure img')?.naturalWidth === 256";
    browser.until(drawn);
    browser.until("document.querySelector('[role=status]').textContent.includes('Done')");
    browser.reload();
    browser.until(drawn);
    assert_eq!(browser.run("return document.getElementById('prompt').value"), "a red circle");
    assert_eq!(browser.run("return document.getElementById('steps').value"), "6");
    let jobs = server.get("/v1/jobs");
    assert_eq!(jobs["data"].as_array().map(Vec::len), Some(1), "made once: {jobs}");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn what_does_not_fit_is_told_with_what_would() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let server = Server::start(&home, &["--max-vram", "3MiB"]);
    browser.go(&view(server.address, "make"));
    browser.fill("#width", "512");
    browser.fill("#height", "512");
    browser.until(&quote_has("It does not fit."));
    browser.until(&quote_has("It would fit with "));
    browser.fill("#width", "65");
    browser.until("document.querySelector('#quote-error')?.textContent.includes('multiple')");
}

#[test]
fn a_job_is_cancelled_by_keyboard_and_the_focus_stays() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let server = Server::start(&home, &[]);
    browser.go(&view(server.address, "make"));
    browser.until(&quote_has("It fits."));
    let enter = |text: &str| browser.press(&text.chars().collect::<Vec<_>>());
    browser.tab_to("a.skip");
    browser.press(&[ENTER]);
    browser.tab_to("#prompt");
    enter("a slow one");
    for (field, value) in [("#width", "512"), ("#height", "512"), ("#steps", "900")] {
        browser.tab_to(field);
        enter(value);
    }
    browser.tab_to("button.main");
    browser.press(&[ENTER]);
    browser.until(&is("running"));
    browser.until("document.querySelector('[data-job] progress')?.value > 0");
    browser.tab_to("[data-job] button");
    browser.press(&[ENTER]);
    browser.until(&is("cancelled"));
    browser.until("document.querySelector('[data-job]').contains(document.activeElement)");
    // The next view begins where its address says.
    browser.run("document.querySelector('a[href=\"#/queue\"]').focus()");
    browser.press(&[ENTER]);
    browser.until("document.activeElement.id === 'main' && document.title.startsWith('Queue')");
    browser.tab_to("[data-state=cancelled] button");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn jobs_that_run_at_once_are_both_shown() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = lanes::home();
    let server = lanes::server(&home, "");
    lanes::both(&server);
    let waits = server.submit(&lanes::long(lanes::MODELS[0], 8));
    browser.go(&view(server.address, "queue"));
    let states = "[...document.querySelectorAll('[data-job]')].map((job) => job.dataset.state)";
    browser.until(&format!("{states}.join() === 'running,running,queued'"));
    // The first of those that wait is the first, and needs not be put there.
    let place = browser.text(&format!("[data-job='{waits}'] .facts"));
    assert!(place.contains("Place1"), "{place}");
    assert_eq!(browser.all(&format!("[data-job='{waits}'] .actions button")).len(), 1);
    keep_picture(&browser, "queue-at-once");
    browser.go(&view(server.address, "plan"));
    let of_models = "[...document.querySelectorAll('[data-model]')].map((one) => one.innerText)";
    browser.until(&format!(
        "{of_models}.filter((text) => text.includes('running a job')).length === 2"
    ));
    keep_picture(&browser, "plan-at-once");
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// Writes what is shown where `BERTH_SCREENSHOTS` says.
fn keep_picture(browser: &Browser, name: &str) {
    if let Some(folder) = std::env::var_os("BERTH_SCREENSHOTS").map(PathBuf::from) {
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("{name}.png"));
        std::fs::write(file, browser.screenshot()).expect("a file");
    }
}

#[test]
fn settings_are_taken_from_the_gallery() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let job = json!({"prompt": "a red circle", "seed": 41, "steps": 3, "width": 128, "n": 2});
    server.done(&server.submit(&job));
    browser.go(&view(server.address, "gallery"));
    browser.until("document.querySelectorAll('.gallery li').length === 2");
    browser.click(".gallery li:nth-child(2) button");
    browser.until("document.title.startsWith('Make')");
    let values = "return ['prompt', 'seed', 'steps', 'width', 'n']
        .map((id) => document.getElementById(id).value)";
    assert_eq!(browser.run(values), json!(["a red circle", "42", "3", "128", ""]));
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_lost_connection_is_told_and_what_was_missed_comes() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let line = Line::to(server.address);
    browser.go(&view(line.address, "queue"));
    browser.until("document.body.innerText.includes('No job runs or waits.')");
    line.cut();
    browser.until("document.querySelector('[data-connection=lost]')");
    assert!(browser.text("[role=status]").contains("lost"));
    server.done(&server.submit(&json!({"prompt": "meanwhile", "steps": 2})));
    line.mend();
    browser.until("!document.querySelector('[data-connection=lost]')");
    browser.until("document.querySelector('[data-state=done]')?.innerText.includes('meanwhile')");
    // And it hears of what is new.
    server.done(&server.submit(&json!({"prompt": "afterwards", "steps": 2})));
    browser.until("document.body.innerText.includes('afterwards')");
}

#[test]
fn a_token_is_asked_for() {
    let Some(browser) = Browser::open(1200, 900, false) else { return };
    let home = Home::new();
    let (token, file) = token(&home);
    let server = Server::start(&home, &["--token-file", &file]);
    browser.go(&view(server.address, "make"));
    browser.fill("#token", "wrong");
    browser.click("button.main");
    browser.until("document.querySelector('#login-error')");
    browser.fill("#token", &token);
    browser.press(&[ENTER]);
    browser.until(&quote_has("It fits."));
    browser.reload();
    browser.until(&quote_has("It fits."));
}

#[test]
fn every_view_is_for_everybody() {
    let home = Home::new();
    let server = Server::start(&home, &[]);
    let job = json!({"prompt": "a red circle", "steps": 2});
    let id = server.submit(&job);
    server.done(&id);
    let axe = std::env::var_os("BERTH_AXE").map(|path| std::fs::read_to_string(path).expect("axe"));
    let screenshots = std::env::var_os("BERTH_SCREENSHOTS").map(PathBuf::from);
    screenshots.iter().for_each(|folder| std::fs::create_dir_all(folder).expect("a folder"));
    for (width, dark) in [(1200, false), (1200, true), (320, true), (320, false)] {
        let Some(browser) = Browser::open(width, 900, dark) else { return };
        let planned = format!("plan?job={id}");
        for name in VIEWS.iter().copied().chain([planned.as_str()]) {
            browser.go(&view(server.address, name));
            browser.until(ready(name));
            browser
                .run("document.querySelectorAll('details').forEach((one) => { one.open = true })");
            let beyond = "const { scrollWidth, clientWidth } = document.documentElement;
                return scrollWidth - clientWidth";
            assert_eq!(browser.run(beyond), json!(0), "{name} is as wide as its window");
            everything_has_a_name(&browser, name);
            if let Some(folder) = &screenshots {
                let (view, scheme) = (name.split('?').next(), if dark { "dark" } else { "light" });
                let view = if name.contains('?') { "job" } else { view.unwrap_or(name) };
                let file = folder.join(format!("{view}-{width}-{scheme}.png"));
                std::fs::write(file, browser.screenshot()).expect("a screenshot");
            }
            if let Some(axe) = &axe {
                let found = violations(&browser, axe);
                assert_eq!(found, json!([]), "{name}, {width} pixels, dark: {dark}");
            }
        }
        assert_eq!(browser.console(), Vec::<String>::new());
    }
}

/// A condition: a view shows what it has.
fn ready(name: &str) -> &'static str {
    match name {
        "make" => "document.querySelector('.verdict')",
        "queue" => "document.querySelector('[data-state=done]')",
        "gallery" => "document.querySelector('.gallery img')?.complete",
        _ => "document.querySelector('.chart .band') && document.querySelector('.chart .measured')",
    }
}

/// What can be pressed, filled or looked at has a name for those who hear the page.
fn everything_has_a_name(browser: &Browser, view: &str) {
    let elements = browser.all("a, button, input, select, textarea, summary, img, svg[role=img]");
    assert!(elements.len() > 5, "{view}");
    for element in &elements {
        let (role, label) = browser.role_and_label(element);
        assert!(!label.trim().is_empty(), "on {view} a {role} has no name");
    }
}

/// What axe-core finds against WCAG 2.2 AA.
fn violations(browser: &Browser, axe: &str) -> Value {
    browser.run(&format!("{axe}; window.axe = axe"));
    browser.run_async(
        "const done = arguments[0];
         const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'];
         axe.run(document, { runOnly: tags }).then(({ violations, passes }) => done(
           passes.length === 0 ? ['nothing was looked at'] : violations.map((violation) =>
             [violation.help, ...violation.nodes.map((node) => node.html)])))",
    )
}

/// A line between browser and server that can be cut.
struct Line {
    address: SocketAddr,
    state: Arc<Mutex<LineState>>,
}

#[derive(Default)]
struct LineState {
    cut: bool,
    open: Vec<TcpStream>,
}

impl Line {
    fn to(server: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(LineState::default()));
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut state = shared.lock().expect("no panic");
                if !state.cut
                    && let Ok(server) = TcpStream::connect(server)
                {
                    for (from, to) in [(&client, &server), (&server, &client)] {
                        let pair = from.try_clone().and_then(|from| Ok((from, to.try_clone()?)));
                        let (from, to) = pair.expect("a handle");
                        std::thread::spawn(move || carry(from, to));
                    }
                    state.open.extend([client, server]);
                }
            }
        });
        Line { address, state }
    }

    fn cut(&self) {
        let mut state = self.state.lock().expect("no panic");
        state.cut = true;
        for stream in state.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.state.lock().expect("no panic").cut = false;
    }
}

/// Until either side ends.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

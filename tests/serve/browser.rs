//! Debian's chromium, driven over WebDriver (W3C, "WebDriver") by its chromedriver.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::watched::PATIENCE;

/// Set where a browser is there; elsewhere its tests are passed over.
const WANTED: &str = "BERTH_BROWSER";

/// How often the driver is started until it has a port.
const STARTS_MAX: u32 = 8;

/// Between two looks at the page.
const PAUSE: Duration = Duration::from_millis(20);

/// Keys, as WebDriver writes them (section 17.4.2).
pub const TAB: char = '\u{e004}';
pub const ENTER: char = '\u{e007}';

/// How elements are named in answers (section 12).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page.
pub struct Browser {
    driver: Driver,
    session: String,
}

/// The driver's process; killed with this, and its browser with it.
struct Driver {
    child: Child,
    port: u16,
}

/// An element of the page.
#[derive(Clone)]
pub struct Element(String);

impl Browser {
    /// One of these pixels; `None` where none is wanted.
    pub fn open(width: u32, height: u32, dark: bool) -> Option<Browser> {
        let driver = Driver::start()?;
        let arguments = [
            "--headless=new".to_owned(),
            // Tests run as root in containers, where its sandbox does not start.
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        let patience_ms = u64::try_from(PATIENCE.as_millis()).expect("a short time");
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": patience_ms, "pageLoad": patience_ms},
            "goog:chromeOptions": {"args": arguments},
        }}});
        let session = driver.ask("POST", "/session", Some(&wanted));
        let session = session["sessionId"].as_str().expect("a session").to_owned();
        let browser = Browser { driver, session };
        // A window is never narrower than 500 pixels; its page may be.
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1,
            "mobile": false});
        browser.devtools("Emulation.setDeviceMetricsOverride", screen);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.devtools("Emulation.setEmulatedMedia", media);
        Some(browser)
    }

    /// Opens an address.
    pub fn go(&self, url: &str) {
        self.ask("POST", "/url", Some(&json!({"url": url})));
    }

    /// Loads the page anew.
    pub fn reload(&self) {
        self.ask("POST", "/refresh", Some(&json!({})));
    }

    /// What a script returns.
    pub fn run(&self, script: &str) -> Value {
        self.ask("POST", "/execute/sync", Some(&json!({"script": script, "args": []})))
    }

    /// What a script gives to `arguments[0]` in the end.
    pub fn run_async(&self, script: &str) -> Value {
        self.ask("POST", "/execute/async", Some(&json!({"script": script, "args": []})))
    }

    /// Waits until a script's expression is true.
    pub fn until(&self, condition: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.run(&format!("return Boolean({condition})")) != Value::Bool(true) {
            if Instant::now() > deadline {
                let text = self.run("return document.body.innerText");
                panic!("not so: {condition}\n{text}\n{:?}", self.console());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The text of an element that there is.
    pub fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector({selector:?}).textContent"));
        text.as_str().expect("a text").to_owned()
    }

    /// Waits for an element.
    pub fn find(&self, selector: &str) -> Element {
        self.until(&format!("document.querySelector({selector:?})"));
        let what = json!({"using": "css selector", "value": selector});
        Element::of(&self.ask("POST", "/element", Some(&what)))
    }

    /// All elements that a selector means now.
    pub fn all(&self, selector: &str) -> Vec<Element> {
        let what = json!({"using": "css selector", "value": selector});
        let found = self.ask("POST", "/elements", Some(&what));
        found.as_array().expect("a list").iter().map(Element::of).collect()
    }

    /// Presses an element as the mouse does.
    pub fn click(&self, selector: &str) {
        let Element(id) = self.find(selector);
        self.ask("POST", &format!("/element/{id}/click"), Some(&json!({})));
    }

    /// Puts a text into a field, in place of what is there.
    pub fn fill(&self, selector: &str, text: &str) {
        let Element(id) = self.find(selector);
        self.ask("POST", &format!("/element/{id}/clear"), Some(&json!({})));
        self.ask("POST", &format!("/element/{id}/value"), Some(&json!({"text": text})));
    }

    /// Types wherever the focus is.
    pub fn press(&self, keys: &[char]) {
        let one = |key: &char| {
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let actions: Vec<Value> = keys.iter().flat_map(one).collect();
        let keyboard = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.ask("POST", "/actions", Some(&keyboard));
    }

    /// Goes on by the keyboard until the focus is on such an element.
    pub fn tab_to(&self, selector: &str) {
        for _ in 0..100 {
            self.press(&[TAB]);
            let script = format!("return document.activeElement.matches({selector:?})");
            if self.run(&script) == Value::Bool(true) {
                return;
            }
        }
        panic!("{selector} cannot be reached by the keyboard");
    }

    /// What assistive programs call an element, and what it is to them.
    pub fn role_and_label(&self, Element(id): &Element) -> (String, String) {
        let of = |what: &str| {
            let answer = self.ask("GET", &format!("/element/{id}/{what}"), None);
            answer.as_str().expect("a text").to_owned()
        };
        (of("computedrole"), of("computedlabel"))
    }

    /// What is to be seen, as a PNG: all of the page, beyond the window too.
    pub fn screenshot(&self) -> Vec<u8> {
        let height = "return document.documentElement.scrollHeight";
        let height = self.run(height).as_u64().expect("a height");
        let width = "return window.innerWidth";
        let width = self.run(width).as_u64().expect("a width");
        let clip = json!({"x": 0, "y": 0, "width": width, "height": height, "scale": 1});
        let wanted = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.devtools("Page.captureScreenshot", wanted);
        base64::decode(answer["data"].as_str().expect("a picture")).expect("base64")
    }

    /// What the browser complained of since the last call.
    pub fn console(&self) -> Vec<String> {
        let log = self.ask("POST", "/se/log", Some(&json!({"type": "browser"})));
        let entries = log.as_array().expect("a list").iter();
        entries.map(|entry| entry["message"].to_string()).collect()
    }

    fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({"cmd": command, "params": parameters});
        self.ask("POST", "/goog/cdp/execute", Some(&body))
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.driver.ask(method, &format!("/session/{}{path}", self.session), body)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Where a test fails, so may this; the driver's end takes the browser along.
        let _ = self.driver.try_ask("DELETE", &format!("/session/{}", self.session), None);
    }
}

impl Element {
    fn of(value: &Value) -> Element {
        Element(value[ELEMENT].as_str().expect("an element").to_owned())
    }
}

impl Driver {
    fn start() -> Option<Driver> {
        if std::env::var_os(WANTED).is_none() {
            eprintln!("passed over: {WANTED}=1 asks for a browser");
            return None;
        }
        let driver = (0..STARTS_MAX).find_map(|_| Driver::try_start());
        Some(driver.expect("chromedriver says its port"))
    }

    /// It ends where the port that it was given of one family is taken in the other.
    fn try_start() -> Option<Driver> {
        let mut command = Command::new("chromedriver");
        command.args(["--port=0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let spawned = command.spawn();
        let mut child = spawned.unwrap_or_else(|e| panic!("chromedriver does not start: {e}"));
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        let port = stdout.lines().map_while(Result::ok).find_map(|line| {
            line.split_once("successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        match port {
            Some(port) => Some(Driver { child, port }),
            None => {
                child.wait().expect("it has ended");
                None
            }
        }
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        self.try_ask(method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    fn try_ask(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let told = |error: std::io::Error| error.to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).map_err(told)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.port,
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).map_err(told)?;
        let body = body_of(&mut BufReader::new(stream)).map_err(told)?;
        let answer: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
            None => Ok(answer["value"].clone()),
        }
    }
}

/// An answer's body, which is as long as its head says: the driver keeps the connection.
fn body_of(answer: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if answer.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some(digits) = line.strip_prefix("content-length:") {
            length = digits.trim().parse().expect("a length");
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body)?;
    Ok(body)
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Killed, it would leave a browser behind whose session was never told.
        let _ = self.try_ask("GET", "/shutdown", None);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

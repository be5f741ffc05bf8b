//! A running `berth serve` in a home of its own, and a plain HTTP client of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::Home;
use crate::support::watched::{PATIENCE, Process};

/// Between two looks at a job.
const PAUSE: Duration = Duration::from_millis(10);

/// A daemon. It is killed where a test ends before it.
pub struct Server {
    child: Child,
    pub process: Process,
    pub address: SocketAddr,
}

/// An answer.
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

impl Server {
    /// Starts it on virtual devices, at any port, with these arguments more.
    pub fn start(home: &Home, more: &[&str]) -> Server {
        Server::start_on(home, "virtual-2x2g", more)
    }

    /// The same on the devices of this profile.
    pub fn start_on(home: &Home, profile: &str, more: &[&str]) -> Server {
        let mut command = home.berth(&[&["serve", "--host", profile], more].concat());
        command.stderr(Stdio::inherit());
        Server::run(command)
    }

    /// Runs a command that becomes it, at any port.
    pub fn run(mut command: Command) -> Server {
        command.args(["--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("berth starts");
        let process = Process::open(child.id());
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it writes text");
        let address = line.trim().rsplit("http://").next().and_then(|text| text.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        Server { child, process, address }
    }

    /// Asks, and reads the whole answer.
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole answer");
        let head = String::from_utf8_lossy(&answer[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut body = answer.split_off(end + 4);
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            body = unchunked(&body);
        }
        Answer { status: status.unwrap_or_else(|| panic!("{head}")), body }
    }

    pub fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, None);
        assert_eq!(answer.status, 200, "{path}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()
    }

    /// Submits a job, which must be accepted.
    pub fn submit(&self, body: &Value) -> String {
        let answer = self.ask("POST", "/v1/jobs", Some(body));
        assert_eq!(answer.status, 202, "{}", String::from_utf8_lossy(&answer.body));
        answer.json()["id"].as_str().expect("a name").to_owned()
    }

    pub fn job(&self, id: &str) -> Value {
        self.get(&format!("/v1/jobs/{id}"))
    }

    /// Waits until a job is in one of these states.
    pub fn until(&self, id: &str, states: &[&str]) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if states.contains(&job["state"].as_str().expect("a state")) {
                return job;
            }
            assert!(Instant::now() < deadline, "{id} is not {states:?}: {job}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until a job denoises.
    pub fn until_denoising(&self, id: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if job["progress"]["phase"] == "denoise" && job["progress"]["step"] != 0 {
                return;
            }
            assert!(Instant::now() < deadline, "{id} does not denoise: {job}");
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits for a job's pictures.
    pub fn done(&self, id: &str) -> Value {
        let job = self.until(id, &["done", "failed", "cancelled"]);
        assert_eq!(job["state"], "done", "{job}");
        job
    }

    /// A job's picture, as its file is.
    pub fn picture(&self, id: &str, index: usize) -> Vec<u8> {
        let answer = self.ask("GET", &format!("/v1/jobs/{id}/pictures/{index}"), None);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer.body
    }

    /// The processes that it has started and that still run.
    pub fn executors(&self) -> Vec<Process> {
        let own = self.process.pid;
        let entries = std::fs::read_dir("/proc").expect("a list of processes");
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_child = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // Behind the name in brackets: the state, then the parent.
            let rest = status.rsplit(") ").next().unwrap_or_default().to_owned();
            let mut fields = rest.split(' ');
            fields.next() != Some("Z") && fields.next() == Some(&own.to_string())
        };
        pids.filter(is_child).filter_map(Process::open_running).collect()
    }

    /// Waits until a question's answer is such.
    pub fn until_answer(&self, path: &str, is_it: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.ask("GET", path, None);
            if is_it(&answer) {
                return answer;
            }
            let text = String::from_utf8_lossy(&answer.body);
            assert!(Instant::now() < deadline, "{path}: {} {text}", answer.status);
            std::thread::sleep(PAUSE);
        }
    }

    /// Waits until a model's slot is in this state.
    pub fn until_model(&self, name: &str, state: &str) {
        let path = format!("/v1/models/{name}");
        self.until_answer(&path, |answer| answer.json()["berth"]["state"] == state);
    }

    /// Kills it as the system does, and waits until it is gone.
    pub fn kill(mut self) {
        self.process.send(Signal::KILL);
        self.child.wait().expect("it can be waited for");
    }

    /// Waits for its end, which must come within this time; its exit code.
    pub fn ends(mut self, within: Duration) -> Option<i32> {
        assert!(self.process.ends_within(within), "it still runs after {within:?}");
        self.child.wait().expect("it can be waited for").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A new token, and the file with it that a daemon takes.
pub fn token(home: &Home) -> (String, String) {
    let made = home.run(&["serve", "--new-token", "ann"]);
    let token = made.stdout.trim().rsplit_once(':').expect("name and token").1.to_owned();
    let file = home.path("tokens");
    std::fs::write(&file, made.stdout).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("changed");
    (token, file.to_str().expect("text").to_owned())
}

/// A body out of its chunks.
fn unchunked(mut chunks: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = chunks.windows(2).position(|two| two == b"\r\n").expect("a chunk's length");
        let length = std::str::from_utf8(&chunks[..line]).expect("digits");
        let length = usize::from_str_radix(length.trim(), 16).expect("a number");
        if length == 0 {
            return body;
        }
        let begin = line + 2;
        body.extend(&chunks[begin..begin + length]);
        chunks = &chunks[begin + length + 2..];
    }
}

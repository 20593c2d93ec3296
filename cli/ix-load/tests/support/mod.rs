//! Processes of these tests: the generator, memcached, and servers that misbehave.
#![allow(dead_code)]
use ix_skip::{Need, skip};
pub use ix_testbed::server::free_port;
use serde_json::Value;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What a run of the generator came to.
pub struct Ran {
    pub status: i32,
    pub errors: String,
    pub rows: Vec<Value>,
    pub seconds: f64,
}

impl Ran {
    pub fn summary(&self) -> &Value {
        self.rows.last().unwrap_or_else(|| panic!("no result: {}", self.errors))
    }

    pub fn number(&self, key: &str) -> f64 {
        let value = self.summary()[key].as_f64();
        value.unwrap_or_else(|| panic!("no {key} in {}", self.summary()))
    }
}

pub fn generator() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ix-load"))
}

/// Runs the generator with these words; its result comes as JSON.
pub fn load(target: SocketAddr, words: &str) -> Ran {
    let begin = Instant::now();
    let mut command = generator();
    command.arg(target.to_string()).args(words.split_whitespace()).args(["--json", "-"]);
    let output = command.output().expect("the generator starts");
    ran(&output, begin)
}

pub fn ran(output: &Output, begin: Instant) -> Ran {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let object = text.lines().find(|line| line.starts_with('{'));
    let rows = object.map_or_else(Vec::new, |line| {
        let object: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(object["bench"], "load");
        object["rows"].as_array().expect("rows").clone()
    });
    Ran {
        status: output.status.code().unwrap_or(-1),
        errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        rows,
        seconds: begin.elapsed().as_secs_f64(),
    }
}

/// A process that ends with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's memcached; `None` (and a word about it) where there is none.
pub fn memcached(words: &[&str]) -> Option<(Running, SocketAddr)> {
    let port = free_port();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut command = Command::new("memcached");
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-t", "1"]).args(words);
    command.args(["-p", &port.to_string(), "-U", &port.to_string()]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        skip("memcached", Need::Program("apt-get install memcached"), "no memcached");
        return None;
    };
    let running = Running(child);
    wait_for(address);
    Some((running, address))
}

pub fn wait_for(address: SocketAddr) {
    let end = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < end, "nobody listens on {address}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A server each of whose connections is handled so, on a thread of its own.
pub fn server(handle: impl Fn(TcpStream, usize) + Send + Sync + Clone + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = listener.local_addr().expect("address");
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let handle = handle.clone();
            thread::spawn(move || handle(stream, number));
        }
    });
    address
}

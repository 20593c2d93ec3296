//! Commands through the control socket, as a program of its own would give them.
use super::PATIENCE;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// A client of a control socket.
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects and reads the greeting.
    pub fn new(control: &Path) -> Client {
        let stream = UnixStream::connect(control).expect("the control socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut client = Client { stream: BufReader::new(stream) };
        assert!(client.line()["hello"].is_object(), "no greeting");
        client
    }

    /// Sends a line and does not wait for the answer.
    pub fn say(&mut self, line: &str) {
        let bytes = format!("{line}\n");
        self.stream.get_mut().write_all(bytes.as_bytes()).expect("it listens");
    }

    /// The next answer, or why it was refused.
    pub fn answer(&mut self) -> Result<Value, String> {
        let mut line = self.line();
        match line.get_mut("ok").map(Value::take) {
            Some(ok) => Ok(ok),
            None => Err(line["error"]["why"].as_str().unwrap_or("no reason").to_owned()),
        }
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, line: &str) -> Result<Value, String> {
        self.say(line);
        self.answer()
    }

    /// Parks, resumes or drains a thread.
    pub fn thread(&mut self, verb: &str, thread: usize) -> Result<Value, String> {
        self.ask(&format!("{{\"do\":\"{verb}\",\"thread\":{thread}}}"))
    }

    /// Moves flow groups.
    pub fn migrate(&mut self, groups: &str, to: usize) -> Result<Value, String> {
        self.ask(&format!("{{\"do\":\"migrate\",\"groups\":\"{groups}\",\"to\":{to}}}"))
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer in time");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }
}

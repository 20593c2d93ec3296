//! Asking a running dataplane.
use super::{PROTOCOL, Request};
use ix_problem::{Problem, Result};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the greeting, and for what the broker knows by itself.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer of the dataplane: somewhat longer than the broker waits for it.
const TIMEOUT: Duration = Duration::from_secs(6);
/// Longest line that we take.
const LINE_MAX: u64 = 16 << 20;

/// A connection to the control socket of a dataplane.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    path: PathBuf,
    hello: Value,
}

impl Client {
    /// Connects, and checks that both sides speak the same protocol.
    pub fn connect(path: &Path) -> Result<Client> {
        let problem = |e: io::Error| {
            let what = format!("cannot reach the dataplane at {}", path.display());
            let mend = match e.kind() {
                ErrorKind::PermissionDenied => "ask as its user, or open it with [control]",
                _ => "is its `ix run` alive?",
            };
            Problem::new(what, e).mend(mend)
        };
        let stream = UnixStream::connect(path).map_err(problem)?;
        stream.set_read_timeout(Some(LOOK_TIMEOUT)).map_err(problem)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(problem)?;
        let mut client =
            Client { reader: BufReader::new(stream), path: path.to_owned(), hello: Value::Null };
        let mut greeting = client.line()?;
        client.hello = greeting.get_mut("hello").map(Value::take).unwrap_or_default();
        let theirs = &client.hello["protocol"];
        if *theirs != PROTOCOL {
            let version = client.hello["ix"].as_str().unwrap_or("unknown");
            let why = format!("its ix {version} speaks control protocol {theirs}");
            return Err(Problem::new(format!("cannot talk to {}", path.display()), why).mend(
                format!(
                    "this is ix {} with protocol {PROTOCOL}: use the one that runs it",
                    env!("CARGO_PKG_VERSION")
                ),
            ));
        }
        Ok(client)
    }

    /// Where it is connected to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The greeting: `protocol`, `ix`, `role`, `pid`, `program`.
    pub fn hello(&self) -> &Value {
        &self.hello
    }

    /// Asks, and waits for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Value> {
        let timeout = match request {
            Request::Status | Request::Stats => LOOK_TIMEOUT,
            Request::Subscribe { interval_ms, .. } => {
                LOOK_TIMEOUT + Duration::from_millis(*interval_ms)
            }
            _ => TIMEOUT,
        };
        let set = self.reader.get_ref().set_read_timeout(Some(timeout));
        set.map_err(|e| self.lost(e))?;
        self.send(&request.line())?;
        loop {
            let mut value = self.line()?;
            if let Some(answer) = value.get_mut("ok") {
                return Ok(answer.take());
            }
            if let Some(error) = value.get("error") {
                return Err(self.refused(error));
            }
            // A snapshot that was under way.
        }
    }

    /// The next snapshot of a subscription that was asked for last.
    pub fn next_snapshot(&mut self) -> Result<Value> {
        loop {
            let mut value = self.line()?;
            if let Some(snapshot) = value.get_mut("snapshot") {
                return Ok(snapshot.take());
            }
            if let Some(error) = value.get("error") {
                return Err(self.refused(error));
            }
        }
    }

    fn refused(&self, error: &Value) -> Problem {
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        Problem::line(text("why")).mend(text("mend"))
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let sent = self.reader.get_ref().write_all(format!("{line}\n").as_bytes());
        sent.map_err(|e| self.lost(e))
    }

    fn line(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_MAX).read_line(&mut line);
        match read {
            Ok(n) if n > 0 => serde_json::from_str(&line)
                .map_err(|e| Problem::new(format!("cannot read {}", self.path.display()), e)),
            Ok(_) => Err(self.lost(io::Error::from(ErrorKind::UnexpectedEof))),
            Err(e) => Err(self.lost(e)),
        }
    }

    fn lost(&self, e: io::Error) -> Problem {
        let what = format!("lost the dataplane at {}", self.path.display());
        match e.kind() {
            ErrorKind::WouldBlock => {
                let seconds = self.reader.get_ref().read_timeout().ok().flatten();
                let seconds = seconds.unwrap_or(TIMEOUT).as_secs();
                Problem::new(what, format!("no answer within {seconds} s"))
                    .mend("is its `ix run` stopped, or of another version?")
            }
            ErrorKind::UnexpectedEof => {
                Problem::new(what, "it has hung up").mend("has its program ended?")
            }
            _ => Problem::new(what, e),
        }
    }
}

/// One request to the dataplane at `path`: a line of JSON, or a word.
pub fn ask(path: &Path, request: &str) -> Result<Value> {
    let request = Request::read(request.as_bytes())
        .map_err(|refusal| Problem::line(&refusal).mend(refusal.mend()))?;
    Client::connect(path)?.ask(&request)
}

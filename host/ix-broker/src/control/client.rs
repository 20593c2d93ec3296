//! The client's end of the control socket.
use ix_problem::{Problem, Result};
use ix_proto::control::{Answer, Greeting, Hello, Line, Look, PROTOCOL, Refused, Request, Status};
use ix_sys::socket;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for the greeting, and for answers that the broker gives without the dataplane.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for an answer of the dataplane: a little longer than the broker waits.
const TIMEOUT: Duration = Duration::from_secs(6);
/// Longest line that a client accepts.
const LINE_MAX: u64 = 16 << 20;

/// A connection to the control socket of a dataplane.
#[derive(Debug)]
pub struct Client {
    lines: Lines,
    hello: Hello,
    /// The last request, which decides how the answer is read.
    asked: Request,
}

/// The lines on a connection.
#[derive(Debug)]
struct Lines {
    reader: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects, and checks that both ends have the same version of the protocol.
    pub fn connect(path: &Path) -> Result<Client> {
        let problem = |e: io::Error| {
            let what = format!("cannot reach the dataplane at {}", path.display());
            let mend = match e.kind() {
                ErrorKind::PermissionDenied => {
                    "run this as its user, or allow more users in [control]"
                }
                ErrorKind::WouldBlock => {
                    let why = "too many clients wait for its `ix run`";
                    return Problem::new(what, why).mend("check that it is not stopped");
                }
                _ => "check that its `ix run` is running",
            };
            Problem::new(what, e).mend(mend)
        };
        let stream = socket::connect_unix_within(path, LOOK_TIMEOUT).map_err(problem)?;
        let stream = UnixStream::from(stream);
        stream.set_read_timeout(Some(LOOK_TIMEOUT)).map_err(problem)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(problem)?;
        let mut lines = Lines { reader: BufReader::new(stream), path: path.to_owned() };
        let line = lines.next()?;
        if let Ok(Line::Error(refused)) = Line::read(&line, &Request::Unsubscribe) {
            return Err(self::problem(refused));
        }
        match Greeting::read(&line).map_err(|e| lines.unreadable(&e))? {
            Greeting::Hello(hello) => Ok(Client { lines, hello, asked: Request::Unsubscribe }),
            Greeting::Other { protocol, ix } => {
                let why = format!("its ix {ix} uses control protocol {protocol}");
                let mend = format!(
                    "this is ix {} with protocol {PROTOCOL}: use the `ix` that started the dataplane",
                    env!("CARGO_PKG_VERSION")
                );
                let what = format!("cannot talk to {}", path.display());
                Err(Problem::new(what, why).mend(mend))
            }
        }
    }

    /// Path of the socket.
    pub fn path(&self) -> &Path {
        &self.lines.path
    }

    /// The greeting.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Sends a request, and waits for its answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer> {
        let timeout = match request {
            Request::Status | Request::Stats => LOOK_TIMEOUT,
            Request::Subscribe { interval_ms, .. } => {
                LOOK_TIMEOUT + Duration::from_millis(*interval_ms)
            }
            _ => TIMEOUT,
        };
        self.lines.set_timeout(timeout)?;
        let line = request.line().map_err(|e| self.lines.unreadable(&e))?;
        self.lines.send(&line)?;
        self.asked = request.clone();
        loop {
            match self.line()? {
                Line::Ok(answer) => return Ok(answer),
                Line::Error(refused) => return Err(problem(refused)),
                // A snapshot that was sent before the answer.
                Line::Snapshot(_) | Line::Hello(_) => {}
            }
        }
    }

    /// Sends a request whose answer has this type, and waits for it.
    pub fn get<T: TryFrom<Answer>>(&mut self, request: &Request) -> Result<T> {
        let answer = self.ask(request)?;
        T::try_from(answer).map_err(|_| {
            let what =
                format!("cannot use the answer of the dataplane at {}", self.path().display());
            Problem::new(what, "it belongs to another request")
                .mend("use the `ix` that started the dataplane")
        })
    }

    /// The state of the dataplane.
    pub fn status(&mut self) -> Result<Status> {
        self.look(&Request::Status)
    }

    /// The same with all counters.
    pub fn stats(&mut self) -> Result<Status> {
        self.look(&Request::Stats)
    }

    fn look(&mut self, request: &Request) -> Result<Status> {
        self.get::<Look>(request)?.running().map_err(Problem::line)
    }

    /// Waits for the next snapshot; the last request was a subscription.
    pub fn next_snapshot(&mut self) -> Result<Status> {
        loop {
            match self.line()? {
                Line::Snapshot(look) => return look.running().map_err(Problem::line),
                Line::Error(refused) => return Err(problem(refused)),
                Line::Ok(_) | Line::Hello(_) => {}
            }
        }
    }

    fn line(&mut self) -> Result<Line> {
        let line = self.lines.next()?;
        Line::read(&line, &self.asked).map_err(|e| self.lines.unreadable(&e))
    }
}

/// A refusal, for the user.
fn problem(refused: Refused) -> Problem {
    Problem::line(refused.why).mend(refused.mend)
}

impl Lines {
    fn set_timeout(&self, timeout: Duration) -> Result<()> {
        let set = self.reader.get_ref().set_read_timeout(Some(timeout));
        set.map_err(|e| self.lost(e))
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let sent = self.reader.get_ref().write_all(format!("{line}\n").as_bytes());
        sent.map_err(|e| self.lost(e))
    }

    fn next(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = (&mut self.reader).take(LINE_MAX).read_line(&mut line);
        match read {
            Ok(n) if n > 0 => Ok(line),
            Ok(_) => Err(self.lost(io::Error::from(ErrorKind::UnexpectedEof))),
            Err(e) => Err(self.lost(e)),
        }
    }

    fn unreadable(&self, e: &serde_json::Error) -> Problem {
        Problem::new(format!("cannot read the answer from {}", self.path.display()), e)
            .mend("use the `ix` that started the dataplane")
    }

    fn lost(&self, e: io::Error) -> Problem {
        let what = format!("lost the dataplane at {}", self.path.display());
        match e.kind() {
            ErrorKind::WouldBlock => {
                let seconds = self.reader.get_ref().read_timeout().ok().flatten();
                let seconds = seconds.unwrap_or(TIMEOUT).as_secs();
                Problem::new(what, format!("no answer within {seconds} s"))
                    .mend("check that its `ix run` is not stopped and is of this version")
            }
            ErrorKind::UnexpectedEof => Problem::new(what, "it closed the connection")
                .mend("check that its program is still running"),
            _ => Problem::new(what, e),
        }
    }
}

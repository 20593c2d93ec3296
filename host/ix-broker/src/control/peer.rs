//! One client of the control socket, with its received and unsent bytes.
use ix_proto::control::{Role, Topic};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// Longest request.
pub const REQUEST_MAX: usize = 4096;
/// Most bytes that a client has not read yet. Larger than any answer.
pub const WAITING_MAX: usize = 4 << 20;

/// What is sent to a client at intervals.
pub struct Subscription {
    pub topic: Topic,
    pub interval: Duration,
    pub next: Instant,
}

/// A client.
pub struct Peer {
    pub stream: UnixStream,
    pub role: Role,
    /// Bytes that were read and not answered.
    input: Vec<u8>,
    /// Answers; those from `sent` on were not sent yet.
    output: Vec<u8>,
    sent: usize,
    /// When it last sent something.
    pub last_input: Instant,
    /// When the dataplane must have answered its request, if it has to answer one.
    pub pending: Option<Instant>,
    /// Number of its last request: how many it has sent.
    pub requests: u64,
    pub subscription: Option<Subscription>,
    /// It sends nothing more, and is closed when it has its answers.
    ended: bool,
}

/// The next part of a client's input.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A whole line.
    Line(Vec<u8>),
    /// A line that is too long; what follows it is ignored.
    TooLong,
    /// Nothing yet.
    Nothing,
}

impl Peer {
    pub fn new(stream: UnixStream, role: Role, now: Instant) -> io::Result<Peer> {
        stream.set_nonblocking(true)?;
        Ok(Peer {
            stream,
            role,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            last_input: now,
            pending: None,
            requests: 0,
            subscription: None,
            ended: false,
        })
    }

    /// Reads as much as there is room for. After an error the client cannot be served any more.
    pub fn receive(&mut self, now: Instant) -> io::Result<()> {
        let mut bytes = [0; REQUEST_MAX];
        // One byte more than the longest line, to notice lines that are longer.
        let room = (REQUEST_MAX + 1).saturating_sub(self.input.len()).min(bytes.len());
        if room == 0 || self.ended {
            return Ok(());
        }
        match (&self.stream).read(&mut bytes[..room]) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.input.extend(&bytes[..n]);
                self.last_input = now;
            }
            Err(e) if is_later(&e) => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The next request, if it may have another one: one at a time, and none while it does not read
    /// the answers.
    pub fn next(&mut self) -> Input {
        if self.pending.is_some() || self.has_output() {
            return Input::Nothing;
        }
        match self.input.iter().position(|&byte| byte == b'\n') {
            Some(end) => Input::Line(self.input.drain(..=end).collect()),
            None if self.input.len() > REQUEST_MAX => Input::TooLong,
            // The last line may lack its end.
            None if self.ended && !self.input.is_empty() => {
                Input::Line(std::mem::take(&mut self.input))
            }
            None => Input::Nothing,
        }
    }

    /// Whether there is a request that [`Peer::next`] would answer.
    pub fn has_request(&self) -> bool {
        let whole = self.input.contains(&b'\n') || self.input.len() > REQUEST_MAX;
        self.pending.is_none() && (whole || self.ended && !self.input.is_empty())
    }

    /// Whether it could say more that we would hear.
    pub fn listens(&self) -> bool {
        !self.ended && self.input.len() <= REQUEST_MAX
    }

    /// Whether all is said and done.
    pub fn is_done(&self) -> bool {
        let waits = self.pending.is_some() || self.subscription.is_some();
        self.ended && !self.has_output() && !self.has_request() && !waits
    }

    /// Says a line. An error: too much waits for it already.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        if self.output.len() - self.sent + line.len() > WAITING_MAX {
            return Err(io::Error::new(ErrorKind::WriteZero, "it does not read"));
        }
        self.output.extend(line.as_bytes());
        self.output.push(b'\n');
        self.flush()
    }

    /// It will hear no more requests of its.
    pub fn hang_up(&mut self) {
        self.ended = true;
        self.input.clear();
        self.subscription = None;
    }

    /// Sends what it takes.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.has_output() {
            match (&self.stream).write(&self.output[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if is_later(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Whether something waits for it to read.
    pub fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }
}

fn is_later(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Peer, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Peer::new(ours, Role::Operator, Instant::now()).expect("a peer"), theirs)
    }

    #[test]
    fn lines_may_come_in_pieces_and_several_at_once() {
        let (mut peer, mut theirs) = pair();
        let mut feed = |peer: &mut Peer, text: &str| {
            theirs.write_all(text.as_bytes()).expect("write");
            peer.receive(Instant::now()).expect("receive");
        };
        feed(&mut peer, "sta");
        assert_eq!(peer.next(), Input::Nothing);
        feed(&mut peer, "ts\nstatus\nx");
        assert_eq!(peer.next(), Input::Line(b"stats\n".to_vec()));
        assert!(peer.has_request());
        assert_eq!(peer.next(), Input::Line(b"status\n".to_vec()));
        assert!(!peer.has_request());
        drop(theirs);
        peer.receive(Instant::now()).expect("receive");
        assert_eq!(peer.next(), Input::Line(b"x".to_vec()));
        assert!(peer.is_done());
    }

    #[test]
    fn a_line_without_end_is_bounded() {
        let (mut peer, mut theirs) = pair();
        theirs.write_all(&vec![b'a'; 3 * REQUEST_MAX]).expect("write");
        for _ in 0..5 {
            peer.receive(Instant::now()).expect("receive");
        }
        assert_eq!(peer.next(), Input::TooLong);
        assert!(!peer.listens() && peer.input.len() == REQUEST_MAX + 1);
        peer.hang_up();
        assert!(peer.is_done());
    }

    #[test]
    fn who_does_not_read_hears_no_more() {
        let (mut peer, mut theirs) = pair();
        theirs.write_all(b"stats\n").expect("write");
        peer.receive(Instant::now()).expect("receive");
        let line = "x".repeat(100_000);
        let said = (0..400).take_while(|_| peer.say(&line).is_ok()).count();
        assert!((40..60).contains(&said), "{said}");
        assert_eq!(peer.next(), Input::Nothing, "it has not read the last answer");
        let mut all: Vec<u8> = Vec::new();
        while peer.has_output() {
            let mut piece = vec![0; 65_536];
            let n = theirs.read(&mut piece).expect("read");
            all.extend(&piece[..n]);
            peer.flush().expect("flush");
        }
        assert_eq!(peer.next(), Input::Line(b"stats\n".to_vec()));
    }
}

//! [`Rounds`] on Linux sockets.
use crate::rounds::{Next, Rounds};
use ix_programs::clock;
use ix_programs::socket;
use ix_sys::Epoll;
use libc::{EPOLLIN, EPOLLOUT};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Longest sleep, so that the thread notices the end.
const SLEEP_MS: i32 = 20;

/// Runs to the end; connection `i` goes to target `i`, in turn. `started` is called with the number
/// of connections when the clock starts.
pub fn play(
    rounds: &mut Rounds,
    targets: &[SocketAddr],
    spin: bool,
    started: impl FnOnce(usize),
) -> io::Result<()> {
    let mut player = Player { rounds, epoll: Epoll::new(256)?, streams: Vec::new() };
    let mut started = Some(started);
    let timeout_ms = if spin { 0 } else { SLEEP_MS };
    let mut buf = vec![0; 64 << 10];
    let mut next = player.open_more(targets)?;
    loop {
        if next == Next::Start
            && let Some(started) = started.take()
        {
            let alive = player.rounds.alive();
            started(alive);
            if alive == 0 {
                return Ok(());
            }
            for index in player.rounds.start(clock::now_ns()) {
                player.send(index)?;
            }
        }
        next = Next::Nothing;
        for event in 0..player.epoll.wait(timeout_ms)? {
            let (_, token) = player.epoll.event(event);
            match player.ready(token as usize, &mut buf)? {
                Next::Send(index) => player.send(index)?,
                Next::Start => next = Next::Start,
                Next::Nothing | Next::Done => {}
            }
        }
        if player.rounds.is_over(clock::now_ns()) {
            return Ok(());
        }
        if player.open_more(targets)? == Next::Start {
            next = Next::Start;
        }
    }
}

struct Player<'a> {
    rounds: &'a mut Rounds,
    epoll: Epoll,
    /// Each with whether it is still connecting.
    streams: Vec<Option<(TcpStream, bool)>>,
}

impl Player<'_> {
    fn open_more(&mut self, targets: &[SocketAddr]) -> io::Result<Next> {
        let mut next = Next::Nothing;
        while let Some(index) = self.rounds.open() {
            match socket::connect(targets[index % targets.len()]) {
                Ok(stream) => {
                    // Others may need the port: no TIME-WAIT at the end.
                    socket::reset_on_close(&stream)?;
                    self.epoll.add(&stream, EPOLLOUT, index as u64)?;
                    self.streams.push(Some((stream, true)));
                }
                Err(error) => {
                    self.streams.push(None);
                    next = self.rounds.lost(index, clock::now_ns(), &error.to_string());
                }
            }
        }
        Ok(next)
    }

    fn ready(&mut self, index: usize, buf: &mut [u8]) -> io::Result<Next> {
        let Some((stream, connecting)) = &mut self.streams[index] else {
            return Ok(Next::Nothing);
        };
        if *connecting {
            if let Some(error) = stream.take_error()? {
                self.streams[index] = None;
                return Ok(self.rounds.lost(index, clock::now_ns(), &error.to_string()));
            }
            *connecting = false;
            self.epoll.change(stream, EPOLLIN, index as u64)?;
            return Ok(self.rounds.opened(index));
        }
        match stream.read(buf) {
            Ok(0) => Ok(self.lose(index, "the server closed the connection")),
            Ok(n) => Ok(self.rounds.input(index, &buf[..n], clock::now_ns())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Next::Nothing),
            Err(error) => Ok(self.lose(index, &error.to_string())),
        }
    }

    fn lose(&mut self, index: usize, why: &str) -> Next {
        self.streams[index] = None;
        self.rounds.lost(index, clock::now_ns(), why)
    }

    /// Sends on this connection, or on the next one that takes it.
    fn send(&mut self, index: usize) -> io::Result<()> {
        let mut index = index;
        loop {
            let Some((stream, _)) = &mut self.streams[index] else { return Ok(()) };
            let message = self.rounds.message(index);
            // The socket's buffer is empty, so that a short message fits.
            let why = match stream.write(message) {
                Ok(n) if n == message.len() => return Ok(()),
                Ok(_) => "the message did not fit into the socket".to_owned(),
                Err(error) => error.to_string(),
            };
            match self.lose(index, &why) {
                Next::Send(other) => index = other,
                _ => return Ok(()),
            }
        }
    }
}

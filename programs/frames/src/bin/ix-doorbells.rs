//! Two packet queues, one of high priority, with every kind of doorbell: for the test that listens
//! to each doorbell over a real link. `ix-doorbells` prints `both` when it needs a packet for each
//! queue and then SIGUSR2, `one` when it needs a packet for the usual queue alone, and `ok` at the
//! end.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use ix_programs::exit_code;
use ix_sys::{event, signal};
use libix::Error;
use libix::event::{Bell, Claim, Conn, EventLoop, Frame, Handler, Io, Occasion, Piece, Priority};
use libix::raw::{Process, Thread, Wait};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Protocol numbers for experiments (RFC 3692).
const USUAL: u8 = 253;
const HIGH: u8 = 254;
const ETHERNET_BYTES: usize = 14;
/// For what rings by way of Linux.
const PATIENCE: Duration = Duration::from_secs(20);

/// Counts of each signal: frames arrived at the queue of high priority; frames of the other queue
/// were sent; continue.
const CAME: i32 = libc::SIGUSR1;
const LEFT: i32 = libc::SIGALRM;
const GO: i32 = libc::SIGUSR2;

/// Callbacks of the loop, in order.
#[derive(Default)]
struct Heard {
    came: Vec<u64>,
    sent: Vec<(u64, Result<(), Error>)>,
}

impl Handler for Heard {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_packets(&mut self, _: &mut Io<()>, queue: u64) {
        self.came.push(queue);
    }

    fn on_packet_sent(&mut self, _: &mut Io<()>, _: u64, cookie: u64, outcome: Result<(), Error>) {
        self.sent.push((cookie, outcome));
    }
}

struct Doorbells {
    events: EventLoop<Heard>,
    own_mac: [u8; 6],
    usual: u64,
    high: u64,
    /// Listeners of the eventfds.
    usual_came: Listener,
    high_left: Listener,
}

/// Rings of an eventfd, as read by a thread without an event loop.
struct Listener {
    rung: Arc<AtomicU64>,
    /// The eventfd, for our own rings.
    own: File,
}

/// A value that only [`Listener::settle`] adds; smaller values are rings.
const MARK: u64 = 1 << 32;

impl Listener {
    fn rings(&self) -> u64 {
        self.rung.load(SeqCst) % MARK
    }

    /// Waits until all rings so far have been read.
    fn settle(&mut self) -> Result<()> {
        self.own.write_all(&MARK.to_ne_bytes())?;
        let end = Instant::now() + PATIENCE;
        while self.rung.load(SeqCst) < MARK {
            ensure!(Instant::now() < end, "the eventfd is not read");
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// An eventfd for rings, and its listener.
fn listened() -> Result<(OwnedFd, Listener)> {
    let fd = event::open_blocking().context("no eventfd")?;
    let (mut reader, own) = (File::from(fd.try_clone()?), File::from(fd.try_clone()?));
    let rung = Arc::new(AtomicU64::new(0));
    let counts = rung.clone();
    std::thread::spawn(move || {
        let mut count = [0; 8];
        while reader.read_exact(&mut count).is_ok() {
            counts.fetch_add(u64::from_ne_bytes(count), SeqCst);
        }
    });
    Ok((fd, Listener { rung, own }))
}

impl Doorbells {
    fn new() -> Result<Doorbells> {
        for number in [CAME, LEFT, GO] {
            signal::catch_and_go_on(number)?;
        }
        // First of all: threads of an elastic thread would block signals, as it does.
        let ((usual_fd, usual_came), (high_fd, high_left)) = (listened()?, listened()?);
        let thread = Thread::enter(&Process::find()?, 0)?;
        let mut events = EventLoop::new(thread, Heard::default());
        let usual = events.packet_bind(0, Claim::IpProtocol(USUAL), Priority::Usual)?;
        let high = events.packet_bind(0, Claim::IpProtocol(HIGH), Priority::High)?;
        let own_mac = events.packet_info(usual)?.mac;
        let io = events.io();
        io.set_bell(usual, Occasion::Arrived, Some(Bell::EventFd(usual_fd)))?;
        io.set_bell(usual, Occasion::Sent, Some(Bell::Signal(LEFT)))?;
        io.set_bell(high, Occasion::Arrived, Some(Bell::Signal(CAME)))?;
        io.set_bell(high, Occasion::Sent, Some(Bell::EventFd(high_fd)))?;
        Ok(Doorbells { events, own_mac, usual, high, usual_came, high_left })
    }

    /// Rings so far: the usual queue's arrived and sent, the other's arrived and sent.
    fn rings(&self) -> [u64; 4] {
        let [came, left] = [&self.usual_came, &self.high_left].map(Listener::rings);
        [came, signal::count(LEFT).into(), signal::count(CAME).into(), left]
    }

    /// Waits for several queues: the first with frames, and among those the one of high priority.
    fn wait(&mut self, us: u64) -> Result<Option<u64>> {
        Ok(self.events.wait_queues(&[self.usual, self.high], Wait::Us(us))?)
    }

    fn waiting(&mut self) -> [usize; 2] {
        [self.usual, self.high].map(|queue| self.events.io().packets_waiting(queue))
    }

    /// Both queues have frames in the same cycle: the one of high priority comes first.
    fn both(&mut self) -> Result<()> {
        let mut pause = Duration::ZERO;
        loop {
            let gone = signal::count(GO);
            self.events.handler().came.clear();
            ix_sys::outln!("both");
            // The thread stays outside of IX meanwhile: packets wait in the device.
            while signal::count(GO) == gone {
                std::thread::yield_now();
            }
            std::thread::sleep(pause);
            let first = self.wait(1_000_000)?;
            if self.waiting().contains(&0) {
                // One was late: repeats without either, with more time for both.
                ensure!(pause < PATIENCE, "two frames never come together");
                pause = pause * 2 + Duration::from_millis(1);
                while self.waiting().contains(&0) && self.wait(10_000)?.is_some() {
                    self.events.turn(Wait::Us(10_000))?;
                }
                self.drain()?;
                continue;
            }
            ensure!(first == Some(self.high), "{first:?} is not the queue of high priority");
            let came = std::mem::take(&mut self.events.handler().came);
            ensure!(came == [self.high, self.usual], "told in another order: {came:?}");
            return Ok(());
        }
    }

    fn drain(&mut self) -> Result<()> {
        for queue in [self.usual, self.high] {
            while self.events.io().packet_receive(queue).is_some() {}
        }
        Ok(self.events.turn(Wait::Poll)?)
    }

    /// Sends each frame back; each queue reports that its frame was sent.
    fn answer(&mut self) -> Result<()> {
        for queue in [self.usual, self.high] {
            let io = self.events.io();
            let packet = io.packet_receive(queue).context("a frame")?;
            let mut frame = packet.to_vec();
            frame[..6].copy_from_slice(&packet[6..12]);
            frame[6..12].copy_from_slice(&self.own_mac);
            frame[ETHERNET_BYTES + 12..][..4].copy_from_slice(&packet[ETHERNET_BYTES + 16..][..4]);
            frame[ETHERNET_BYTES + 16..][..4].copy_from_slice(&packet[ETHERNET_BYTES + 12..][..4]);
            let mut buf = io.tx().alloc(frame.len()).context("transmit memory")?;
            buf.extend(&frame);
            ensure!(io.packet_send(queue, Frame::new([Piece::from(buf)]), queue), "not taken");
        }
        let end = Instant::now() + PATIENCE;
        while self.events.handler().sent.len() < 2 {
            ensure!(Instant::now() < end, "frames are not sent");
            self.events.turn(Wait::Us(1000))?;
        }
        let sent = std::mem::take(&mut self.events.handler().sent);
        ensure!(sent.iter().all(|(_, outcome)| outcome.is_ok()), "{sent:?}");
        ensure!([self.usual, self.high].iter().all(|q| sent.iter().any(|(of, _)| of == q)));
        Ok(())
    }

    /// A frame for the usual queue alone.
    fn one(&mut self) -> Result<()> {
        ix_sys::outln!("one");
        let end = Instant::now() + PATIENCE;
        let first = loop {
            match self.wait(10_000)? {
                None => ensure!(Instant::now() < end, "nothing came"),
                first => break first,
            }
        };
        ensure!(first == Some(self.usual), "{first:?} is not the usual queue");
        self.drain()
    }

    fn run(&mut self) -> Result<()> {
        ensure!(self.wait(1000)?.is_none(), "nothing was sent, and something came");
        let before = self.rings();
        self.both()?;
        self.answer()?;
        let end = Instant::now() + PATIENCE;
        let has_rung = |now: [u64; 4]| (0..4).all(|bell| now[bell] > before[bell]);
        while !has_rung(self.rings()) {
            ensure!(Instant::now() < end, "not all have rung: {:?}, {before:?}", self.rings());
            // Signals are let in between two cycles.
            self.events.turn(Wait::Us(1000))?;
        }
        self.one()?;
        // A queue without doorbells does not ring, and still receives.
        for queue in [self.usual, self.high] {
            for occasion in [Occasion::Arrived, Occasion::Sent] {
                self.events.io().set_bell(queue, occasion, None)?;
            }
        }
        self.usual_came.settle()?;
        self.high_left.settle()?;
        let twice = before[0] + 2;
        ensure!(self.rings()[0] >= twice, "rung {:?} times for {twice} cycles", self.rings());
        // On a busy machine threads get signals late.
        let mut silent = self.rings();
        loop {
            std::thread::sleep(Duration::from_millis(100));
            if self.rings() == silent {
                break;
            }
            silent = self.rings();
        }
        self.one()?;
        self.both()?;
        self.answer()?;
        ensure!(self.rings() == silent, "it rings on: {:?}, {silent:?}", self.rings());
        Ok(())
    }
}

fn run() -> Result<()> {
    let mut doorbells = Doorbells::new()?;
    ix_sys::outln!("ready");
    doorbells.run()?;
    ix_sys::outln!("ok");
    Ok(())
}

fn main() -> ExitCode {
    exit_code("ix-doorbells", run())
}

//! Calls and results of cycles, against libix's model of a dataplane.
use crate::confined::Locked;
use crate::elastic_thread::Pending;
use crate::mem::Gather;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;
use crate::stream::{Phase, Stream};
use crate::waiter::Waiter;
use libix::loopback::{Config, Loopback};
use libix::raw::{Event, Thread, TxBuf, Wait, call};
use std::net::SocketAddr;

/// The sockets of a program with one elastic thread.
struct Program {
    core: Box<Core>,
    thread: Thread,
}

impl Program {
    fn new(model: &Loopback) -> Program {
        let (mut core, thread) = (Box::new(Core::new()), model.enter(0).unwrap());
        core.elastic_threads[0].tx = Some(Locked(*thread.tx()));
        Program { core, thread }
    }

    fn connect(&mut self, to: SocketAddr) -> Id {
        let stream = Stream::new(Phase::ToConnect, 0, to, None);
        let id = self.core.sockets.insert(Socket::new(Kind::Stream(stream.into()), false, true));
        self.core.mark_dirty(id);
        id
    }

    fn stream(&mut self, id: Id) -> &mut Stream {
        self.core.sockets.get_mut(id).and_then(Socket::stream).unwrap()
    }

    /// Writes as many bytes as there is transmit memory for. Returns how many.
    fn write(&mut self, id: Id, data: &[u8]) -> usize {
        let piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
        let list = [piece];
        // SAFETY: a slice that is not written meanwhile.
        let mut from = unsafe { Gather::new(&list) };
        let tx = *self.thread.tx();
        let n = self.stream(id).write(&tx, &mut from, data.len());
        self.core.mark_dirty(id);
        n
    }

    /// Runs one cycle. Returns whether it has asked for transmit memory.
    fn turn(&mut self) -> bool {
        self.core.emit(0, &mut self.thread);
        let pending = self.core.elastic_threads[0].batch.pending();
        let asks = pending.iter().any(|pending| matches!(pending, Pending::Memory));
        let events = self.thread.run_io(Wait::Poll).unwrap();
        self.core.settle(0, &mut self.thread);
        self.core.dispatch(0, &self.thread, events);
        asks
    }
}

/// The other end: accepts every connection and reads all its bytes.
struct Peer {
    thread: Thread,
    bytes: Vec<u8>,
    eof: bool,
}

impl Peer {
    fn new(model: &Loopback, at: SocketAddr) -> Peer {
        let mut thread = model.enter(1).unwrap();
        thread.push(call::listen(at, 0, 0));
        thread.run_io(Wait::Poll).unwrap();
        Peer { thread, bytes: Vec::new(), eof: false }
    }

    fn turn(&mut self) {
        let events = self.thread.run_io(Wait::Poll).unwrap();
        for index in 0..events {
            match self.thread.event(index) {
                Event::Knock { handle, .. } => drop(self.thread.push(call::accept(handle, 1))),
                Event::Recv { handle, data, .. } => {
                    // SAFETY: the next cycle returns the buffer.
                    self.bytes.extend_from_slice(unsafe { data.bytes() });
                    assert!(!self.eof);
                    self.thread.push(call::recv_done(handle, data.len().into()));
                }
                Event::Eof { .. } => self.eof = true,
                _ => {}
            }
        }
    }
}

fn at() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 80))
}

#[test]
fn memory_that_was_refused_is_asked_for_again() {
    let model = Loopback::new(1, Config { tx_steps: 1, ..Config::default() });
    let mut program = Program::new(&model);
    // Until the arena asks for more, which the model does not have.
    let mut taken: Vec<TxBuf> = Vec::new();
    while !program.thread.tx().wants_memory() {
        taken.extend(program.thread.tx().alloc(128 << 10));
    }
    assert!(program.turn());
    let refused_us = program.thread.now_us();
    assert!(!program.turn(), "asked again at once");
    while !program.turn() {
        assert!(program.thread.now_us() < refused_us + 1_000_000, "never asked again");
    }
}

#[test]
fn bytes_that_found_no_resources_are_sent_later() {
    let model = Loopback::new(2, Config { refuse_one_in: 2, ..Config::default() });
    let mut peer = Peer::new(&model, at());
    let mut program = Program::new(&model);
    let id = program.connect(at());
    let data: Vec<u8> = (0..50_000usize).map(|at| (at * 31 % 251) as u8).collect();
    while program.stream(id).phase != Phase::Open {
        program.turn();
    }
    for piece in data.chunks(1000) {
        assert_eq!(program.write(id, piece), piece.len());
        program.turn();
        peer.turn();
        assert_eq!(program.core.sockets.get(id).unwrap().error, 0);
    }
    for _ in 0..1000 {
        program.turn();
        peer.turn();
    }
    assert!(peer.bytes == data, "{} of {} bytes arrived", peer.bytes.len(), data.len());
}

/// An open connection with a listening peer.
fn connected(model: &Loopback) -> (Program, Peer, Id) {
    let peer = Peer::new(model, at());
    let mut program = Program::new(model);
    let id = program.connect(at());
    for _ in 0..100 {
        program.turn();
    }
    assert_eq!(program.stream(id).phase, Phase::Open);
    (program, peer, id)
}

/// FIN goes with the last bytes: in the same cycle if the window takes them all, else later, and
/// never before them.
#[test]
fn fin_goes_with_the_last_bytes() {
    for (window_bytes, refuse_one_in) in [(100_000, 0), (500, 0), (100_000, 2)] {
        let model = Loopback::new(5, Config { window_bytes, refuse_one_in, ..Config::default() });
        let (mut program, mut peer, id) = connected(&model);
        program.write(id, &[7; 1000]);
        program.stream(id).flow.shutdown();
        program.turn();
        if refuse_one_in == 0 {
            assert_eq!(program.stream(id).flow.has_sent_fin(), window_bytes >= 1000);
        }
        for _ in 0..100 {
            peer.turn();
            program.turn();
        }
        assert!(program.stream(id).flow.has_sent_fin());
        assert_eq!((peer.bytes.len(), peer.eof), (1000, true));
    }
}

/// What `close` with `SO_LINGER` does before it waits. Another thread drives, so it sleeps.
fn linger(program: &mut Program, id: Id, wake_fd: i32) {
    let stream = program.stream(id);
    stream.flow.shutdown();
    stream.lingers = true;
    program.core.mark_dirty(id);
    let socket = program.core.sockets.get_mut(id).unwrap();
    socket.waiters.push(Waiter::Sleeper(wake_fd, 0));
}

#[test]
fn a_lingering_close_is_woken_by_the_last_acknowledgement() {
    let model = Loopback::new(3, Config::default());
    let (mut program, mut peer, id) = connected(&model);
    program.write(id, &[7; 1000]);
    linger(&mut program, id, 9);
    for _ in 0..100 {
        program.turn();
        peer.turn();
        if !program.core.wakeups.take_wake_fds().is_empty() {
            assert!(program.stream(id).is_delivered(), "woken too early");
            assert_eq!(peer.bytes.len(), 1000);
            return;
        }
    }
    panic!("never woken");
}

#[test]
fn a_lingering_close_returns_at_once_if_all_is_acknowledged() {
    let model = Loopback::new(4, Config::default());
    let (mut program, mut peer, id) = connected(&model);
    program.write(id, &[7; 1000]);
    while program.stream(id).held() > 0 {
        program.turn();
        peer.turn();
    }
    linger(&mut program, id, 9);
    // No event follows the FIN, so the cycle must not wait for one.
    assert!(program.core.emit(0, &mut program.thread));
    assert!(program.stream(id).is_delivered());
    assert_eq!(program.core.wakeups.take_wake_fds(), [9]);
}

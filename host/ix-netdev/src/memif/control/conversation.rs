//! A memif server and a client that says anything, for tests and fuzzers.
use super::super::message::{AddRegion, AddRing, Init, MESSAGE_BYTES, Message, VERSION};
use super::super::{Taken, socket, take_role};
use super::server::padded;
use super::*;
use ix_nic::memif::initialize_ring;
use ix_sys::{event, fd};
use std::sync::atomic::{AtomicU64, Ordering};

const RING_LOG2: u8 = 4;

/// A server at a path of its own.
pub(super) fn server(test: &str) -> (Control, MemifSpec) {
    let spec: MemifSpec = format!("@ix-hostile-{}-{test},role=server", std::process::id())
        .parse()
        .expect("the system gives it");
    let Ok(Taken::Server(listener)) = take_role(&spec) else { panic!("no server") };
    (Control::server(&spec, listener, [1, 2]), spec)
}

/// What the user was told.
pub(super) fn lines(events: Vec<DeviceEvent>) -> Vec<String> {
    let line = |event| match event {
        DeviceEvent::Say(line) | DeviceEvent::Tell(line) => Some(line),
        DeviceEvent::Update(_) | DeviceEvent::OtherMac => None,
    };
    events.into_iter().filter_map(line).collect()
}

pub(super) fn init(spec: &MemifSpec) -> Init {
    let (secret, name) = (padded(&spec.secret), "test".to_owned());
    Init { version: VERSION, id: spec.id, mode: 0, secret, name }
}

/// Memory with two good rings, sealed or not.
pub(super) fn memory(sealed: bool) -> OwnedFd {
    let made = if sealed { fd::sealed_memfd } else { fd::memfd };
    let fd = made(c"test", 8192, 0).expect("the system gives it");
    let mapping = Mapping::of_fd(fd.as_fd(), 8192, 0).expect("the system gives it");
    [0, 4096].into_iter().for_each(|offset| initialize_ring(&mapping, offset, RING_LOG2));
    fd
}

/// A message of a good handshake, with its descriptor, by number.
pub(super) fn good(spec: &MemifSpec, n: usize) -> (Message, Option<OwnedFd>) {
    let ring = |to_server, offset| {
        let ring = AddRing { to_server, index: 0, region: 0, offset, log2_size: RING_LOG2 };
        (Message::AddRing(ring), Some(event::open().expect("the system gives it")))
    };
    match n {
        0 => (Message::Init(init(spec)), None),
        1 => (Message::AddRegion(AddRegion { index: 0, bytes: 8192 }), Some(memory(true))),
        2 => ring(true, 0),
        3 => ring(false, 4096),
        _ => (Message::Connect("x".into()), None),
    }
}

pub(super) fn say(socket: &OwnedFd, message: &Message, fd: Option<&OwnedFd>) {
    let _ = socket::send(socket.as_fd(), &message.encode(), fd.map(|fd| fd.as_fd()));
}

/// A good client gets a link.
pub(super) fn assert_link(control: &mut Control, spec: &MemifSpec) {
    control.service();
    let socket = socket::connect(&spec.path).expect("the system gives it");
    (0..5).for_each(|n| {
        control.service();
        let (message, fd) = good(spec, n);
        say(&socket, &message, fd.as_ref());
    });
    let said = lines(control.service());
    assert!(said.iter().any(|line| line.contains("peer connected (test, 1 queue)")), "{said:?}");
}

/// Something that a client says.
#[derive(Clone, Debug)]
pub struct Utterance {
    /// Number of the message of a good handshake that it begins as.
    pub message: usize,
    /// Octets of it that are others, by their places.
    pub damage: Vec<(usize, u8)>,
    /// What comes with it: 0 nothing, 1 memory that is not sealed, 2 an eventfd, else what belongs
    /// to it.
    pub descriptor: u8,
}

/// A client says all this to a server, which survives; afterwards a good client gets a link.
pub fn memif_conversation(talk: &[Utterance]) {
    static CONVERSATIONS: AtomicU64 = AtomicU64::new(0);
    let number = CONVERSATIONS.fetch_add(1, Ordering::Relaxed);
    let (mut control, spec) = server(&format!("any-{number}"));
    let Ok(socket) = socket::connect(&spec.path) else { panic!("the server does not listen") };
    control.service();
    for Utterance { message, damage, descriptor } in talk {
        let (message, fd) = good(&spec, *message);
        let mut bytes = message.encode();
        for (at, byte) in damage {
            bytes[at % MESSAGE_BYTES] = *byte;
        }
        let fd = match descriptor {
            0 => None,
            1 => Some(memory(false)),
            2 => Some(event::open().expect("an eventfd")),
            _ => fd,
        };
        let _ = socket::send(socket.as_fd(), &bytes, fd.as_ref().map(|fd| fd.as_fd()));
        control.service();
    }
    drop(socket);
    control.service();
    assert_link(&mut control, &spec);
}

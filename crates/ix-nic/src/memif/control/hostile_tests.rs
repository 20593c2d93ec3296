//! A server against clients that say anything.
use super::super::message::{AddRegion, AddRing, Init, MESSAGE_BYTES, Message, VERSION};
use super::super::ring::{Ring, ring_bytes};
use super::super::{Taken, socket, take_role};
use super::server::padded;
use super::*;
use proptest::prelude::*;

const RING_LOG2: u8 = 4;

/// A server at a path of its own.
fn server(test: &str) -> (Control, MemifSpec) {
    let spec: MemifSpec =
        format!("@ix-hostile-{}-{test},role=server", std::process::id()).parse().unwrap();
    let Ok(Taken::Server(listener)) = take_role(&spec) else { panic!("no server") };
    (Control::server(&spec, listener, [1, 2]), spec)
}

/// What the user was told.
fn lines(events: Vec<DeviceEvent>) -> Vec<String> {
    let line = |event| match event {
        DeviceEvent::Say(line) => Some(line),
        DeviceEvent::Update(_) => None,
    };
    events.into_iter().filter_map(line).collect()
}

fn init(spec: &MemifSpec) -> Init {
    let (secret, name) = (padded(&spec.secret), "test".to_owned());
    Init { version: VERSION, id: spec.id, mode: 0, secret, name }
}

/// Memory with two good rings, sealed or not.
fn memory(sealed: bool) -> OwnedFd {
    let fd = if sealed {
        ix_mem::sealed_memfd(c"test", 8192, 0).unwrap()
    } else {
        // SAFETY: a literal name; the answer is a new descriptor or an error.
        let fd = check(unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) }).unwrap();
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: no memory is passed.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), 8192) }).unwrap();
        fd
    };
    let mapping = Mapping::of_fd(fd.as_fd(), 8192, 0).unwrap();
    for offset in [0, 4096] {
        let base = mapping.at::<[u64; 2]>(offset, ring_bytes(RING_LOG2) / 16).cast();
        // SAFETY: within the mapping, which lives until after the use.
        unsafe { Ring::new(base, RING_LOG2) }.initialize();
    }
    fd
}

/// A message of a good handshake, with its descriptor, by number.
fn good(spec: &MemifSpec, n: usize) -> (Message, Option<OwnedFd>) {
    let ring = |to_server, offset| {
        let ring = AddRing { to_server, index: 0, region: 0, offset, log2_size: RING_LOG2 };
        (Message::AddRing(ring), Some(eventfd().unwrap()))
    };
    match n {
        0 => (Message::Init(init(spec)), None),
        1 => (Message::AddRegion(AddRegion { index: 0, bytes: 8192 }), Some(memory(true))),
        2 => ring(true, 0),
        3 => ring(false, 4096),
        _ => (Message::Connect("x".into()), None),
    }
}

fn say(socket: &OwnedFd, message: &Message, fd: Option<&OwnedFd>) {
    let _ = socket::send(socket.as_fd(), &message.encode(), fd.map(|fd| fd.as_fd()));
}

/// Says the messages, one changed; answers what the user heard.
fn refusal(test: &str, at: usize, change: impl Fn(&mut Message, &mut Option<OwnedFd>)) -> String {
    let (mut control, spec) = server(test);
    let socket = socket::connect(&spec.path).unwrap();
    let mut said = Vec::new();
    for n in 0..5 {
        let (mut message, mut fd) = good(&spec, n);
        if n == at {
            change(&mut message, &mut fd);
        }
        said.extend(lines(control.service()));
        say(&socket, &message, fd.as_ref());
    }
    said.extend(lines(control.service()));
    drop(socket);
    said.extend(lines(control.service()));
    assert_link(&mut control, &spec);
    said.into_iter().find(|line| line.contains("refused") || line.contains("connected")).unwrap()
}

/// A good client gets a link.
fn assert_link(control: &mut Control, spec: &MemifSpec) {
    control.service();
    let socket = socket::connect(&spec.path).unwrap();
    (0..5).for_each(|n| {
        control.service();
        let (message, fd) = good(spec, n);
        say(&socket, &message, fd.as_ref());
    });
    let said = lines(control.service());
    assert!(said.iter().any(|line| line.contains("peer connected (test, 1 queue)")), "{said:?}");
}

#[test]
fn each_lie_is_refused_by_name_and_the_link_is_offered_again() {
    let ring = |message: &mut Message, change: &dyn Fn(&mut AddRing)| {
        if let Message::AddRing(ring) = message {
            change(ring);
        }
    };
    let region = |message: &mut Message, bytes| {
        *message = Message::AddRegion(AddRegion { index: 0, bytes });
    };
    type Change<'a> = Box<dyn Fn(&mut Message, &mut Option<OwnedFd>) + 'a>;
    let lies: Vec<(usize, &str, Change<'_>)> = vec![
        (9, "peer connected", Box::new(|_, _| {})),
        (
            0,
            "version 3.0",
            Box::new(|m, _| {
                let Message::Init(init) = m else { return };
                init.version = 3 << 8;
            }),
        ),
        (
            0,
            "only Ethernet",
            Box::new(|m, _| {
                let Message::Init(init) = m else { return };
                init.mode = 1;
            }),
        ),
        (
            0,
            "IX of another version",
            Box::new(|m, _| {
                let Message::Init(init) = m else { return };
                init.name = "ix 1 queues=999".into();
            }),
        ),
        (
            0,
            "ADD_REGION out of turn",
            Box::new(|m, fd| (*m, *fd) = good(&"@x".parse().unwrap(), 1)),
        ),
        (1, "ADD_REGION came with 0", Box::new(|_, fd| *fd = None)),
        (1, "has not", Box::new(move |m, _| region(m, 1 << 40))),
        (1, "has not", Box::new(move |m, _| region(m, 8193))),
        (1, "has not", Box::new(move |m, _| region(m, 0))),
        (1, "F_SEAL_SHRINK", Box::new(|_, fd| *fd = Some(memory(false)))),
        (1, "has not", Box::new(|_, fd| *fd = Some(eventfd().unwrap()))),
        (2, "no region 7", Box::new(move |m, _| ring(m, &|r| r.region = 7))),
        (2, "within its region", Box::new(move |m, _| ring(m, &|r| r.offset = u32::MAX))),
        (2, "within its region", Box::new(move |m, _| ring(m, &|r| r.log2_size = 200))),
        (2, "cookie", Box::new(move |m, _| ring(m, &|r| r.offset = 1024))),
        (2, "out of order", Box::new(move |m, _| ring(m, &|r| r.index = 1))),
        (2, "no eventfd", Box::new(|_, fd| *fd = Some(memory(true)))),
        (3, "queues=N", Box::new(|m, fd| (*m, *fd) = good(&"@x".parse().unwrap(), 4))),
        (
            4,
            "HELLO out of turn",
            Box::new(|m, _| {
                *m = ServerSession::hello(&"@x".parse().unwrap());
            }),
        ),
        (4, "refuses us: tired", Box::new(|m, _| *m = Message::Disconnect("tired".into()))),
    ];
    for (i, (at, says, change)) in lies.into_iter().enumerate() {
        let line = refusal(&format!("lie-{i}"), at, change);
        assert!(line.contains(says), "{i}: expected `{says}`: {line}");
    }
}

/// A message that is nearly right, or not at all, and some descriptor or none.
fn any_bytes() -> impl Strategy<Value = (usize, Vec<(usize, u8)>, u8)> {
    let damage = prop::collection::vec((0..MESSAGE_BYTES, any::<u8>()), 0..4);
    (0..5usize, damage, 0..6u8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn survives_any_conversation(talk in prop::collection::vec(any_bytes(), 0..12)) {
        let (mut control, spec) = server("any");
        let socket = socket::connect(&spec.path).unwrap();
        control.service();
        for (n, damage, which) in talk {
            let (message, fd) = good(&spec, n);
            let mut bytes = message.encode();
            damage.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            let fd = match which {
                0 => None,
                1 => Some(memory(false)),
                2 => Some(eventfd().unwrap()),
                _ => fd,
            };
            let _ = socket::send(socket.as_fd(), &bytes, fd.as_ref().map(|fd| fd.as_fd()));
            control.service();
        }
        drop(socket);
        control.service();
        assert_link(&mut control, &spec);
    }
}

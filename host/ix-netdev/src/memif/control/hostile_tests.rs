//! A server against clients that say anything.
use super::super::message::{AddRegion, AddRing, MESSAGE_BYTES, Message};
use super::super::socket;
use super::conversation::*;
use super::server::ServerSession;
use super::*;
use proptest::prelude::*;

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
            "another version of IX",
            Box::new(|m, _| {
                let Message::Init(init) = m else { return };
                init.name = "ix 1 queues=999".into();
            }),
        ),
        (
            0,
            "ADD_REGION out of order",
            Box::new(|m, fd| (*m, *fd) = good(&"@x".parse().unwrap(), 1)),
        ),
        (1, "ADD_REGION came with 0", Box::new(|_, fd| *fd = None)),
        (1, "fewer than the stated", Box::new(move |m, _| region(m, 1 << 40))),
        (1, "fewer than the stated", Box::new(move |m, _| region(m, 8193))),
        (1, "fewer than the stated", Box::new(move |m, _| region(m, 0))),
        (1, "F_SEAL_SHRINK", Box::new(|_, fd| *fd = Some(memory(false)))),
        (1, "fewer than the stated", Box::new(|_, fd| *fd = Some(ix_sys::event::open().unwrap()))),
        (2, "no region 7", Box::new(move |m, _| ring(m, &|r| r.region = 7))),
        (2, "within its region", Box::new(move |m, _| ring(m, &|r| r.offset = u32::MAX))),
        (2, "within its region", Box::new(move |m, _| ring(m, &|r| r.log2_size = 200))),
        (2, "cookie", Box::new(move |m, _| ring(m, &|r| r.offset = 1024))),
        (2, "out of order", Box::new(move |m, _| ring(m, &|r| r.index = 1))),
        (2, "not an eventfd", Box::new(|_, fd| *fd = Some(memory(true)))),
        (3, "queues=N", Box::new(|m, fd| (*m, *fd) = good(&"@x".parse().unwrap(), 4))),
        (
            4,
            "HELLO out of order",
            Box::new(|m, _| {
                *m = ServerSession::hello(&"@x".parse().unwrap());
            }),
        ),
        (
            4,
            "refused the connection: tired",
            Box::new(|m, _| *m = Message::Disconnect("tired".into())),
        ),
    ];
    for (i, (at, says, change)) in lies.into_iter().enumerate() {
        let line = refusal(&format!("lie-{i}"), at, change);
        assert!(line.contains(says), "{i}: expected `{says}`: {line}");
    }
}

/// A message that is nearly right, or not at all, and some descriptor or none.
fn utterance() -> impl Strategy<Value = Utterance> {
    let damage = prop::collection::vec((0..MESSAGE_BYTES, any::<u8>()), 0..4);
    (0..5usize, damage, 0..6u8).prop_map(|(message, damage, descriptor)| Utterance {
        message,
        damage,
        descriptor,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn survives_any_conversation(talk in prop::collection::vec(utterance(), 0..12)) {
        memif_conversation(&talk);
    }
}

//! Packet queues, doorbells and signals of the event loop on the model of a dataplane.
use libix::Error;
use libix::event::{Bell, Claim, Conn, EventLoop, Frame, Handler, Io, Occasion, Piece, Priority};
use libix::loopback::{Config, Loopback};
use libix::raw::{Wait, call};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const ETHER_TYPE: u16 = 0x88b5;

/// Echoes frames with a header of its own, and keeps a record.
#[derive(Default)]
struct Talker {
    echoes: bool,
    /// Takes nothing out of its queues.
    waits: bool,
    heard: Vec<(u64, Vec<u8>)>,
    sent: Vec<(u64, Result<(), Error>)>,
    signals: Vec<(u32, u64)>,
}

impl Handler for Talker {
    type State = ();

    fn on_readable(&mut self, _: &mut Conn<'_, ()>) {}

    fn on_packets(&mut self, io: &mut Io<()>, queue: u64) {
        while !self.waits
            && let Some(mut packet) = io.packet_receive(queue)
        {
            self.heard.push((queue, packet.to_vec()));
            if self.echoes {
                packet.skip(14);
                let mut header = io.tx().alloc(64).expect("memory");
                header.extend(&frame(ETHER_TYPE, &[]));
                let frame = Frame::new([header.into(), packet.into()]);
                assert!(io.packet_send(queue, frame, 7));
            }
        }
    }

    fn on_packet_sent(&mut self, _: &mut Io<()>, _: u64, cookie: u64, outcome: Result<(), Error>) {
        self.sent.push((cookie, outcome));
    }

    fn on_signal(&mut self, _: &mut Io<()>, from: u32, value: u64) {
        self.signals.push((from, value));
    }
}

fn frame(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &ethertype.to_be_bytes()[..], payload].concat()
}

fn send(of: &mut EventLoop<Talker>, queue: u64, bytes: &[u8], cookie: u64) -> bool {
    let io = of.io();
    let mut buf = io.tx().alloc(bytes.len()).expect("memory");
    buf.extend(bytes);
    io.packet_send(queue, Frame::new([Piece::from(buf)]), cookie)
}

fn talker(model: &Loopback, thread: u32) -> EventLoop<Talker> {
    EventLoop::new(model.enter(thread).expect("a thread"), Talker::default())
}

#[test]
fn frames_go_there_and_back_and_every_buffer_is_given_back() {
    for refuse_one_in in [0, 4] {
        let config = Config { refuse_one_in, ..Config::default() };
        let model = Loopback::new(2, config);
        let (mut near, mut far) = (talker(&model, 0), talker(&model, 1));
        far.handler().echoes = true;
        let claim = Claim::EtherType(ETHER_TYPE);
        let queue = near.packet_bind(0, claim, Priority::Usual).expect("free");
        far.packet_bind(0, claim, Priority::Usual).expect("another thread's");
        assert_eq!(near.packet_bind(0, claim, Priority::Usual), Err(Error::InUse));
        assert_eq!(near.packet_info(queue).map(|info| info.frame_bytes_max), Ok(1514));
        let count = 5000;
        for cookie in 0..count {
            assert!(send(&mut near, queue, &frame(ETHER_TYPE, &[cookie as u8; 100]), cookie));
            if cookie % 500 == 499 {
                near.turn(Wait::Poll).expect("runs");
                far.turn(Wait::Poll).expect("runs");
            }
        }
        let mut turns = 0;
        while (near.handler().sent.len() as u64) < count || model.held_frames() > 0 {
            near.turn(Wait::Poll).expect("runs");
            far.turn(Wait::Poll).expect("runs");
            turns += 1;
            assert!(turns < 10_000, "it stalled");
        }
        let handler = near.handler();
        let lost = handler.sent.iter().filter(|(_, outcome)| outcome.is_err()).count();
        assert_eq!(lost > 0, refuse_one_in > 0);
        assert!(handler.sent.iter().all(|(_, o)| matches!(o, Ok(()) | Err(Error::NoResource))));
        let mut cookies: Vec<u64> = handler.sent.iter().map(|(cookie, _)| *cookie).collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..count));
        let lost_back = far.handler().sent.iter().filter(|(_, o)| o.is_err()).count();
        assert_eq!(near.handler().heard.len(), count as usize - lost - lost_back);
        let (_, first) = &near.handler().heard[0];
        assert_eq!(first.len(), 114);
        far.handler().heard.clear();
        assert!(!send(&mut near, queue + 1, &frame(ETHER_TYPE, &[]), 0), "no such queue");
        near.io().packet_unbind(queue);
        assert!(!send(&mut near, queue, &frame(ETHER_TYPE, &[]), 0), "unbound");
    }
}

#[test]
fn doorbells_ring_and_waits_end_for_the_queue_of_high_priority() {
    let model = Loopback::new(2, Config::default());
    let (mut near, mut far) = (talker(&model, 0), talker(&model, 1));
    far.handler().waits = true;
    let queues = [(0x88b5, Priority::Usual), (0x88b6, Priority::High)];
    let bind = |of: &mut EventLoop<Talker>| {
        queues.map(|(number, priority)| {
            of.packet_bind(0, Claim::EtherType(number), priority).expect("free")
        })
    };
    let ([usual, high], sends) = (bind(&mut far), bind(&mut near));
    // SAFETY: a new descriptor that is nobody else's.
    let bell = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK)) };
    let mut reader = std::fs::File::from(bell.try_clone().expect("a descriptor"));
    assert!(reader.as_raw_fd() >= 0);
    let bell = Some(Bell::EventFd(bell));
    assert_eq!(far.io().set_bell(usual + high, Occasion::Arrived, None), Err(Error::BadHandle));
    far.io().set_bell(high, Occasion::Arrived, bell).expect("a queue");
    assert_eq!(far.wait_queues(&[usual, high], Wait::Us(50)), Ok(None));
    let mut rung = [0; 8];
    for (sends, number) in [(sends[0], 0x88b5), (sends[1], 0x88b6), (sends[1], 0x88b6)] {
        assert!(send(&mut near, sends, &frame(number, b"x"), 1));
    }
    assert!(reader.read_exact(&mut rung).is_err(), "not rung yet");
    near.turn(Wait::Poll).expect("runs");
    assert_eq!(far.wait_queues(&[usual, high], Wait::Forever), Ok(Some(high)));
    reader.read_exact(&mut rung).expect("rung");
    assert_eq!(u64::from_ne_bytes(rung), 1, "once a cycle");
    assert_eq!(far.wait_queues(&[usual], Wait::Poll), Ok(Some(usual)));
    assert_eq!(far.io().packets_waiting(high), 2);
    let kept = far.io().packet_receive(high).expect("one");
    let number = far.io().packet_keep(kept);
    assert_eq!(far.io().packet_kept(number).map(|packet| packet.len()), Some(15));
    assert!(far.io().packet_kept(number).is_none());
    far.io().packet_unbind(high);
    far.io().packet_unbind(usual);
    far.turn(Wait::Poll).expect("runs");
    assert_eq!(model.held_frames(), 0);
}

#[test]
fn loops_hear_each_other_and_none_is_lost() {
    let model = Loopback::new(2, Config::default());
    let (mut near, mut far) = (talker(&model, 0), talker(&model, 1));
    for value in 0..500 {
        near.io().signal(1, value);
    }
    far.io().signal(1, 9);
    let mut turns = 0;
    while far.handler().signals.len() < 501 {
        near.turn(Wait::Poll).expect("runs");
        far.turn(Wait::Poll).expect("runs");
        turns += 1;
        assert!(turns < 1000, "it stalled");
    }
    let mut signals = far.handler().signals.clone();
    signals.sort_unstable();
    let expected = (0..500).map(|value| (0, value)).chain([(1, 9)]);
    assert!(signals.into_iter().eq(expected));
}

/// The dataplane writes the answer during the cycle. Whatever the program does with its buffers
/// before that, none of them is changed.
#[test]
fn an_answer_is_written_into_no_buffer_of_the_program() {
    const PATTERN: [u8; 512] = [0xa5; 512];
    let model = Loopback::new(1, Config { tx_steps: 1, ..Config::default() });
    let mut thread = model.enter(0).expect("a thread");
    assert!(thread.push_packet_info(0).is_some());
    assert_eq!(thread.run_io(Wait::Poll), Ok(0));
    assert_eq!(thread.packet_info(0).err(), Some(Error::BadHandle), "there is no such queue");

    let kind = ix_abi::packet_kind::ETHER_TYPE;
    thread.push(call::packet_bind(0, kind, ETHER_TYPE.into(), 1)).expect("room");
    thread.run_io(Wait::Poll).expect("runs");
    let queue = thread.answer(0).expect("bound");
    let before = thread.tx().alloc(PATTERN.len()).expect("memory");
    let slots: Vec<usize> =
        (0..100).map(|_| thread.push_packet_info(queue).expect("room")).collect();
    drop(before);
    let all: Vec<_> = std::iter::from_fn(|| thread.tx().alloc(PATTERN.len()))
        .map(|mut buf| {
            assert_eq!(buf.extend(&PATTERN), PATTERN.len());
            buf
        })
        .collect();
    thread.run_io(Wait::Poll).expect("runs");
    for slot in slots {
        assert_eq!(thread.packet_info(slot).map(|info| info.frame_bytes_max), Ok(1514));
        assert_eq!(thread.flow_info(slot).err(), Some(Error::Invalid), "another call");
    }
    assert!(all.len() > 1000 && all.iter().all(|buf| buf[..] == PATTERN));
}

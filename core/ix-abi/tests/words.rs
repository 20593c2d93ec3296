//! The words of each call and each event, written by hand: the encoding cannot drift from what
//! programs were built with.
use ix_abi::{
    Call, CallError, CallSlot, Congestion, DatagramNotes, DeadReason, Endpoint, Event, EventSlot,
    FlowOption, IcmpMessage, MulticastOption, Revoke, RxData, SentNews, SgArray, SourceList, v4,
};

/// 10.1.2.3 as the low word of an address; the high word is 0.
const LOW: u64 = 0x0000_ffff_0a01_0203;
const PEER: Endpoint = Endpoint { addr: v4([10, 1, 2, 3]), port: 0x1f90 };
/// An address with bits in both words.
const WIDE: Endpoint =
    Endpoint { addr: [0xfe, 0x80, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], port: 0xffff };
const WIDE_HIGH: u64 = 0xfe80_0000_0000_0001;
const WIDE_LOW: u64 = 0x0203_0405_0607_0809;
const SG: SgArray = SgArray { addr: 0x7000, entries: 3 };
/// A value with bits everywhere.
const ANY: u64 = 0x8123_4567_89ab_cdef;

#[test]
fn calls() {
    let (cookie, handle) = (ANY, 0x0005_0000_0100_0007);
    let table = [
        (Call::Nop, 0, [0; 6]),
        (
            Call::Listen { at: PEER, backlog: 128, cookie, holds: false },
            1,
            [0, LOW, 0x1f90, 128, ANY, 0],
        ),
        (
            Call::Listen { at: PEER, backlog: 128, cookie, holds: true },
            1,
            [0, LOW, 0x1f90, 128, ANY, 1],
        ),
        (Call::Unlisten { listener: 9 }, 2, [9, 0, 0, 0, 0, 0]),
        (
            Call::Connect { cookie, to: WIDE, congestion: None, local_port: 7 },
            3,
            [ANY, WIDE_HIGH, WIDE_LOW, 0xffff, 7, 0],
        ),
        (
            Call::Connect { cookie, to: PEER, congestion: Some(Congestion::Cubic), local_port: 0 },
            3,
            [ANY, 0, LOW, 0x1_1f90, 0, 0],
        ),
        (
            Call::Connect { cookie, to: PEER, congestion: Some(Congestion::Reno), local_port: 0 },
            3,
            [ANY, 0, LOW, 0x2_1f90, 0, 0],
        ),
        (
            Call::Connect { cookie, to: PEER, congestion: Some(Congestion::Dctcp), local_port: 0 },
            3,
            [ANY, 0, LOW, 0x3_1f90, 0, 0],
        ),
        (Call::Accept { handle, cookie }, 4, [handle, ANY, 0, 0, 0, 0]),
        (Call::Reject { handle }, 5, [handle, 0, 0, 0, 0, 0]),
        (
            Call::SendV { handle, sg: SG, fin: false, eor: false, done: 0 },
            6,
            [handle, 0x7000, 3, 0, 0, 0],
        ),
        (
            Call::SendV { handle, sg: SG, fin: true, eor: false, done: 1460 },
            6,
            [handle, 0x7000, 3, 1, 1460, 0],
        ),
        (
            Call::SendV { handle, sg: SG, fin: false, eor: true, done: 0 },
            6,
            [handle, 0x7000, 3, 2, 0, 0],
        ),
        (Call::RecvDone { handle, bytes: 1460 }, 7, [handle, 1460, 0, 0, 0, 0]),
        (Call::Shutdown { handle }, 8, [handle, 0, 0, 0, 0, 0]),
        (Call::Close { handle }, 9, [handle, 0, 0, 0, 0, 0]),
        (Call::Abort { handle }, 10, [handle, 0, 0, 0, 0, 0]),
        (Call::SetOpt { handle, option: FlowOption::Nagle(true) }, 11, [handle, 1, 1, 0, 0, 0]),
        (Call::GetInfo { handle, to: 0x8000 }, 12, [handle, 0x8000, 0, 0, 0, 0]),
        (Call::UdpBind { at: WIDE, cookie }, 13, [WIDE_HIGH, WIDE_LOW, 0xffff, ANY, 0, 0]),
        (
            Call::UdpShare { at: WIDE, cookie, takes: false },
            13,
            [WIDE_HIGH, WIDE_LOW, 0xffff, ANY, 1, 0],
        ),
        (
            Call::UdpShare { at: WIDE, cookie, takes: true },
            13,
            [WIDE_HIGH, WIDE_LOW, 0xffff, ANY, 2, 0],
        ),
        (Call::UdpUnbind { socket: 0x8000_0001 }, 14, [0x8000_0001, 0, 0, 0, 0, 0]),
        (
            Call::UdpSendV { socket: 0x8000_0001, to: PEER, sg: SG, cookie },
            15,
            [0x1f90_8000_0001, 0x7000, 3, 0, LOW, ANY],
        ),
        (Call::UdpRecvDone { data: 0x9000 }, 16, [0x9000, 0, 0, 0, 0, 0]),
        (Call::TimerSet { cookie, delay_us: 250 }, 17, [ANY, 250, 0, 0, 0, 0]),
        (Call::TimerCancel { timer: 77 }, 18, [77, 0, 0, 0, 0, 0]),
        (Call::TxAlloc { bytes: 2 << 20 }, 19, [2 << 20, 0, 0, 0, 0, 0]),
        (Call::TxFree { addr: 0xa000, bytes: 2 << 20 }, 20, [0xa000, 2 << 20, 0, 0, 0, 0]),
        (Call::SetCookie { handle, cookie }, 21, [handle, ANY, 0, 0, 0, 0]),
        (Call::Drain, 22, [0; 6]),
        (Call::PacketBind { device: 1, kind: 2, number: 253, cookie }, 23, [1, 2, 253, ANY, 0, 0]),
        (Call::PacketUnbind { queue: 4 }, 24, [4, 0, 0, 0, 0, 0]),
        (Call::PacketSendV { queue: 4, sg: SG, cookie }, 25, [4, 0x7000, 3, ANY, 0, 0]),
        (Call::PacketRecvDone { data: 0x9000 }, 26, [0x9000, 0, 0, 0, 0, 0]),
        (Call::PacketInfo { queue: 4, to: 0x8000 }, 27, [4, 0x8000, 0, 0, 0, 0]),
        (Call::Signal { thread: 3, value: ANY }, 28, [3, ANY, 0, 0, 0, 0]),
        (
            Call::UdpSetOpt { socket: 0x8000_0001, option: FlowOption::Dscp(46) },
            29,
            [0x8000_0001, 5, 46, 0, 0, 0],
        ),
        (
            Call::ConnectFrom { cookie, to: PEER, congestion: Some(Congestion::Dctcp), from: WIDE },
            30,
            [ANY, 0, LOW, 0xffff_0003_1f90, WIDE_HIGH, WIDE_LOW],
        ),
        (Call::Backlog { listener: 9, backlog: 5, freed: 2 }, 31, [9, 5, 2, 0, 0, 0]),
        (Call::Give { handle, to: 3, token: 9 }, 32, [handle, 3, 9, 0, 0, 0]),
        (
            Call::UdpListen {
                socket: 7,
                group: WIDE.addr,
                excludes: true,
                sources: SourceList { addr: 0x9000, count: 2 },
            },
            33,
            [7, WIDE_HIGH, WIDE_LOW, 1, 0x9000, 2],
        ),
        (Call::Nudge { to: 3 }, 34, [3, 0, 0, 0, 0, 0]),
        (
            Call::ListenOpt { listener: 9, option: FlowOption::Dscp(46), is_v6: true },
            35,
            [9, 5, 46, 6, 0, 0],
        ),
    ];
    for (call, op, args) in table {
        let slot = call.encode();
        assert_eq!((slot.op, slot.reserved, slot.ret, slot.args), (op, 0, 0, args), "{call:?}");
        assert_eq!(Call::decode(&slot), Ok(call));
    }
    let mut ops: Vec<u32> = table.iter().map(|(_, op, _)| *op).collect();
    ops.dedup();
    assert_eq!(ops, (0..=35).collect::<Vec<u32>>(), "every operation is in the table");
}

#[test]
fn options() {
    for (option, words) in [
        (FlowOption::Nagle(false), [1, 0]),
        (FlowOption::Nagle(true), [1, 1]),
        (FlowOption::KeepaliveS(0x7fff), [2, 0x7fff]),
        (FlowOption::Congestion(Congestion::Cubic), [3, 0]),
        (FlowOption::Congestion(Congestion::Reno), [3, 1]),
        (FlowOption::Congestion(Congestion::Dctcp), [3, 2]),
        (FlowOption::UserTimeoutMs(u32::MAX), [4, 0xffff_ffff]),
        (FlowOption::Dscp(63), [5, 63]),
        (FlowOption::HopLimit(1), [6, 1]),
        (FlowOption::HopLimit(255), [6, 255]),
        (FlowOption::ReceiveBytes(u32::MAX), [7, 0xffff_ffff]),
        (FlowOption::KeepaliveIntervalS(0x7fff), [8, 0x7fff]),
        (FlowOption::KeepaliveProbes(127), [9, 127]),
        (FlowOption::FragmentBytes(0), [10, 0]),
        (FlowOption::FragmentBytes(68), [10, 68]),
        (FlowOption::FragmentBytes(0xffff), [10, 0xffff]),
        (FlowOption::SegmentBytes(0), [11, 0]),
        (FlowOption::SegmentBytes(88), [11, 88]),
        (FlowOption::SegmentBytes(0xffff), [11, 0xffff]),
        (FlowOption::Closed, [12, 1]),
        (FlowOption::Pace(u32::MAX), [13, 0xffff_ffff]),
        (FlowOption::Congestion(Congestion::Bbr), [3, 3]),
        (FlowOption::Multicast(MulticastOption::default()), [14, 1]),
        (
            FlowOption::Multicast(MulticastOption { loops: false, stays: true, device: Some(3) }),
            [14, 0x402],
        ),
        (FlowOption::FlowLabel(Some(0)), [15, 0]),
        (FlowOption::FlowLabel(Some(0xf_ffff)), [15, 0xf_ffff]),
        (FlowOption::FlowLabel(None), [15, 1 << 20]),
    ] {
        assert_eq!(option.encode(), words, "{option:?}");
        assert_eq!(FlowOption::decode(words[0], words[1]), Ok(option));
    }
    for (option, value) in [
        (0, 0),
        (12, 0),
        (13, 1 << 32),
        (u64::MAX, 1),
        (1, 2),
        (2, 0x8000),
        (3, 4),
        (4, 1 << 32),
        (5, 64),
        (6, 0),
        (6, 256),
        (7, 1 << 32),
        (8, 0x8000),
        (9, 128),
        (10, 67),
        (10, 0x1_0000),
        (11, 87),
        (11, 0x1_0000),
    ] {
        let decoded = FlowOption::decode(option, value);
        assert_eq!(decoded, Err(CallError::Invalid), "{option} {value:#x}");
    }
}

#[test]
fn wrong_arguments_have_their_error() {
    let decode = |op, args| Call::decode(&CallSlot { op, args, ..CallSlot::default() });
    for (op, args, error) in [
        (36, [0; 6], CallError::NoSys),
        (u32::MAX, [0; 6], CallError::NoSys),
        // LISTEN: port, backlog, and whether places are held.
        (1, [0, 0, 0x1_0000, 0, 0, 0], CallError::Invalid),
        (1, [0, 0, 80, 1 << 32, 0, 0], CallError::Invalid),
        (1, [0, 0, 80, 128, 0, 2], CallError::Invalid),
        // BACKLOG: its length, and the places that are free.
        (31, [9, 1 << 32, 0, 0, 0, 0], CallError::Invalid),
        (31, [9, 0, 1 << 32, 0, 0, 0], CallError::Invalid),
        // CONNECT: bits above the congestion control, one that does not exist, local port.
        (3, [0, 0, 0, 1 << 40 | 80, 0, 0], CallError::Invalid),
        (3, [0, 0, 0, 5 << 16 | 80, 0, 0], CallError::Invalid),
        (3, [0, 0, 0, 80, 0x1_0000, 0], CallError::Invalid),
        // CONNECT_FROM: the same, and the local port has 16 bits.
        (30, [0, 0, 0, 5 << 16 | 80, 0, 0], CallError::Invalid),
        (30, [0, 0, 0, 1 << 48 | 80, 0, 0], CallError::Invalid),
        // UDP: port, peer's port, socket.
        (13, [0, 0, 0x1_0000, 0, 0, 0], CallError::Invalid),
        (15, [1 << 48, 0, 0, 0, 0, 0], CallError::Invalid),
        (14, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        (29, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        // Options.
        (11, [7, 12, 0, 0, 0, 0], CallError::Invalid),
        (29, [7, 5, 64, 0, 0, 0], CallError::Invalid),
        // Packet queues: device, queue.
        (23, [1 << 32, 1, 0x88b5, 0, 0, 0], CallError::Invalid),
        (24, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        (25, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        (27, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        // SIGNAL: thread.
        (28, [1 << 32, 0, 0, 0, 0, 0], CallError::Invalid),
        // UDP_LISTEN: socket, which sources.
        (33, [1 << 32, 0, 0, 0, 0, 0], CallError::BadHandle),
        (33, [7, 0, 0, 2, 0, 0], CallError::Invalid),
        (29, [7, 14, 4, 0, 0, 0], CallError::Invalid),
        (29, [7, 14, 1 << 16, 0, 0, 0], CallError::Invalid),
        // LISTEN_OPT: option, version.
        (35, [9, 5, 64, 4, 0, 0], CallError::Invalid),
        (35, [9, 5, 46, 5, 0, 0], CallError::Invalid),
        // GIVE: process.
        (32, [0, 1 << 32, 0, 0, 0, 0], CallError::Invalid),
    ] {
        assert_eq!(decode(op, args), Err(error), "{op} {args:x?}");
    }
}

#[test]
fn events() {
    let (cookie, handle) = (ANY, 0x0005_0000_0100_0007);
    let data = RxData { addr: 0x9000, len: 1460 };
    let icmp = IcmpMessage { kind: 3, code: 4, detail: 1400, by: WIDE.addr };
    let zero = EventSlot::default();
    let of_flow = EventSlot { cookie, handle, ..zero };
    let table = [
        (
            Event::Knock { listener: cookie, handle, peer: PEER },
            EventSlot { kind: 1, addr: PEER.addr, port: 0x1f90, ..of_flow },
        ),
        (
            Event::Connected { cookie, handle, outcome: Ok(()) },
            EventSlot { kind: 2, code: 0, ..of_flow },
        ),
        (
            Event::Connected { cookie, handle, outcome: Err(CallError::Refused) },
            EventSlot { kind: 2, code: 9, ..of_flow },
        ),
        (
            Event::Recv { cookie, handle, data, news: SentNews::NONE },
            EventSlot { kind: 3, data: 0x9000, len: 1460, ..of_flow },
        ),
        (
            Event::Recv { cookie, handle, data, news: SentNews::new(64, 1 << 16) },
            EventSlot { kind: 3, data: 0x9000, len: 1460, more: 1 << 48 | 64, ..of_flow },
        ),
        (Event::Eof { cookie, handle }, EventSlot { kind: 4, ..of_flow }),
        (
            Event::Sent { cookie, handle, bytes: 1460, window: 1 << 40 },
            EventSlot { kind: 5, len: 1460, data: 1 << 40, ..of_flow },
        ),
        (
            Event::Dead { cookie, handle, reason: DeadReason::TimedOut },
            EventSlot { kind: 6, code: 2, ..of_flow },
        ),
        (
            Event::UdpRecv {
                cookie,
                peer: PEER,
                local: WIDE.addr,
                data,
                notes: DatagramNotes::new(64, 8, 2).with_label(0xa_1234),
            },
            EventSlot {
                kind: 7,
                code: 0x0840,
                notes: [2, 0x1234, 0xa],
                cookie,
                data: 0x9000,
                len: 1460,
                addr: PEER.addr,
                port: 0x1f90,
                handle: WIDE_HIGH,
                more: WIDE_LOW,
            },
        ),
        (Event::UdpSent { cookie }, EventSlot { kind: 8, cookie, ..zero }),
        (Event::Timer { cookie }, EventSlot { kind: 9, cookie, ..zero }),
        (
            Event::GroupLeaves { group: 127, to: 2 },
            EventSlot { kind: 10, code: 0, len: 127, data: 2, ..zero },
        ),
        (
            Event::GroupArrived { group: 127, from: 1 },
            EventSlot { kind: 10, code: 1, len: 127, data: 1, ..zero },
        ),
        (Event::Revoke(Revoke::Back), EventSlot { kind: 11, data: 0, ..zero }),
        (Event::Revoke(Revoke::Goes), EventSlot { kind: 11, data: 1, ..zero }),
        (Event::Revoke(Revoke::Drained), EventSlot { kind: 11, data: 2, ..zero }),
        (
            Event::PacketRecv { cookie, data },
            EventSlot { kind: 12, cookie, data: 0x9000, len: 1460, ..zero },
        ),
        (Event::PacketSent { cookie }, EventSlot { kind: 13, cookie, ..zero }),
        (Event::Signal { from: 3, value: ANY }, EventSlot { kind: 14, len: 3, data: ANY, ..zero }),
        (
            Event::UdpError { cookie, peer: PEER, why: CallError::TooLong, icmp, quoted: data },
            EventSlot {
                kind: 15,
                code: 13,
                cookie,
                data: 0x9000,
                len: 1460,
                addr: PEER.addr,
                port: 0x1f90,
                handle: WIDE_HIGH,
                more: WIDE_LOW,
                notes: [3, 4, 1400],
            },
        ),
        (
            Event::FlowError { cookie, handle, why: CallError::Unreachable, icmp },
            EventSlot { kind: 16, code: 8, addr: WIDE.addr, notes: [3, 4, 1400], ..of_flow },
        ),
        (
            Event::Given { token: cookie, handle, peer: PEER, from: 3, returned: 70 },
            EventSlot {
                kind: 17,
                len: 3,
                data: 70,
                cookie,
                handle,
                addr: PEER.addr,
                port: PEER.port,
                ..zero
            },
        ),
    ];
    for (event, words) in table {
        assert_eq!(event.encode(), words, "{event:?}");
        assert_eq!(Event::decode(&words), Ok(event));
    }
    let mut kinds: Vec<u16> = table.iter().map(|(_, words)| words.kind).collect();
    kinds.dedup();
    assert_eq!(kinds, (1..=17).collect::<Vec<u16>>(), "every kind is in the table");
    for unknown in [
        EventSlot { kind: 0, ..zero },
        EventSlot { kind: 18, ..zero },
        EventSlot { kind: 10, code: 2, ..zero },
        EventSlot { kind: 11, data: 3, ..zero },
    ] {
        assert!(Event::decode(&unknown).is_err(), "{unknown:?}");
    }
}

#[test]
fn codes() {
    let codes: Vec<i64> = CallError::ALL.iter().map(|error| error.code()).collect();
    assert_eq!(codes, (1..=17).collect::<Vec<i64>>());
    for (code, error) in [
        (1, CallError::NoSys),
        (2, CallError::Invalid),
        (3, CallError::BadHandle),
        (4, CallError::Fault),
        (5, CallError::NoResource),
        (6, CallError::InUse),
        (7, CallError::NotLocal),
        (8, CallError::Unreachable),
        (9, CallError::Refused),
        (10, CallError::TimedOut),
        (11, CallError::Reset),
        (12, CallError::State),
        (13, CallError::TooLong),
        (14, CallError::Moved),
        (15, CallError::Filtered),
        (16, CallError::Lost),
        (17, CallError::Again),
    ] {
        assert_eq!((CallError::from_code(code), error.code()), (error, code));
        assert_eq!(CallError::encode(Err(error)), -code);
        assert_eq!(CallError::check(-code), Err(error));
    }
    for unknown in [0, 18, -1, i64::MAX, i64::MIN] {
        assert_eq!(CallError::from_code(unknown), CallError::Invalid);
    }
    assert_eq!(CallError::check(i64::MIN), Err(CallError::Invalid));
    let reasons =
        [DeadReason::Closed, DeadReason::Reset, DeadReason::TimedOut, DeadReason::Unreachable];
    for (code, reason) in (0..).zip(reasons) {
        assert_eq!((DeadReason::from_code(code), reason.code()), (reason, code));
    }
    assert_eq!(DeadReason::from_code(4), DeadReason::Reset);
    for (number, algorithm) in (0..).zip(Congestion::ALL) {
        assert_eq!(algorithm.number(), number);
        assert_eq!(Congestion::from_number(number), Some(algorithm));
        assert_eq!(Congestion::named(algorithm.name().as_bytes()), Some(algorithm));
    }
    assert_eq!(Congestion::from_number(4), None);
}

//! Encoding and decoding undo each other, and no bits make decoding panic.
use ix_abi::{
    Call, CallError, CallSlot, Congestion, DatagramNotes, DeadReason, Endpoint, Event, EventSlot,
    FlowOption, IcmpMessage, MulticastOption, Revoke, RxData, SentNews, SgArray, SourceList,
};
use proptest::prelude::*;

fn endpoint() -> impl Strategy<Value = Endpoint> {
    any::<([u8; 16], u16)>().prop_map(|(addr, port)| Endpoint { addr, port })
}

fn sg() -> impl Strategy<Value = SgArray> {
    any::<(u64, u64)>().prop_map(|(addr, entries)| SgArray { addr, entries })
}

fn congestion() -> impl Strategy<Value = Option<Congestion>> {
    prop::option::of(prop::sample::select(&Congestion::ALL[..]))
}

fn error() -> impl Strategy<Value = CallError> {
    prop::sample::select(&CallError::ALL[..])
}

/// An option of each kind, with any value that it can have.
fn option() -> impl Strategy<Value = FlowOption> {
    (any::<u32>(), congestion(), 0..15).prop_map(|(value, congestion, kind)| match kind {
        0 => FlowOption::Nagle(value % 2 == 1),
        1 => FlowOption::KeepaliveS(value as u16 & 0x7fff),
        2 => FlowOption::UserTimeoutMs(value),
        3 => FlowOption::Congestion(congestion.unwrap_or(Congestion::Cubic)),
        4 => FlowOption::Dscp(value as u8 % 64),
        5 => FlowOption::HopLimit((value as u8).max(1)),
        6 => FlowOption::ReceiveBytes(value),
        7 => FlowOption::KeepaliveIntervalS(value as u16 & 0x7fff),
        8 => FlowOption::KeepaliveProbes(value as u8 & 0x7f),
        11 => FlowOption::Closed,
        12 => FlowOption::Pace(value),
        13 => FlowOption::Multicast(MulticastOption {
            loops: value & 1 == 1,
            stays: value & 2 == 2,
            device: (value as u8).checked_sub(1),
        }),
        14 => FlowOption::FlowLabel((value % 7 > 0).then_some(value & 0xf_ffff)),
        9 => FlowOption::FragmentBytes((value as u16).max(68) * u16::from(value % 7 > 0)),
        _ => FlowOption::SegmentBytes((value as u16).max(88) * u16::from(value % 7 > 0)),
    })
}

/// A call of each operation, with any arguments.
fn call() -> impl Strategy<Value = Call> {
    let common = (any::<[u64; 3]>(), endpoint(), endpoint(), sg(), congestion());
    let small = (any::<(u32, u32, u16)>(), option());
    (0..36u32, common, small).prop_map(|(op, common, ((id, backlog, local_port), option))| {
        let ([a, b, cookie], at, from, sg, congestion) = common;
        let (handle, to) = (a, at);
        match op {
            0 => Call::Nop,
            1 => Call::Listen { at, backlog, cookie, holds: a & 1 == 0 },
            2 => Call::Unlisten { listener: a },
            3 => Call::Connect { cookie, to, congestion, local_port },
            4 => Call::Accept { handle, cookie },
            5 => Call::Reject { handle },
            6 => Call::SendV { handle, sg, fin: b & 1 == 1, eor: b & 2 == 2, done: a },
            7 => Call::RecvDone { handle, bytes: b },
            8 => Call::Shutdown { handle },
            9 => Call::Close { handle },
            10 => Call::Abort { handle },
            11 => Call::SetOpt { handle, option },
            12 => Call::GetInfo { handle, to: b },
            13 if a & 1 == 0 => Call::UdpShare { at, cookie, takes: b & 1 == 1 },
            13 => Call::UdpBind { at, cookie },
            14 => Call::UdpUnbind { socket: id },
            15 => Call::UdpSendV { socket: id, to, sg, cookie },
            16 => Call::UdpRecvDone { data: a },
            17 => Call::TimerSet { cookie, delay_us: b },
            18 => Call::TimerCancel { timer: a },
            19 => Call::TxAlloc { bytes: a },
            20 => Call::TxFree { addr: a, bytes: b },
            21 => Call::SetCookie { handle, cookie },
            22 => Call::Drain,
            23 => Call::PacketBind { device: id, kind: a, number: b, cookie },
            24 => Call::PacketUnbind { queue: id },
            25 => Call::PacketSendV { queue: id, sg, cookie },
            26 => Call::PacketRecvDone { data: a },
            27 => Call::PacketInfo { queue: id, to: a },
            28 => Call::Signal { thread: id, value: a },
            29 => Call::UdpSetOpt { socket: id, option },
            30 => Call::Backlog { listener: a, backlog, freed: id },
            31 => Call::Give { handle, to: id, token: cookie },
            32 => Call::UdpListen {
                socket: id,
                group: to.addr,
                excludes: a & 1 == 1,
                sources: SourceList { addr: b, count: cookie },
            },
            33 => Call::Nudge { to: id },
            34 => Call::ListenOpt { listener: a, option, is_v6: b & 1 == 1 },
            _ => Call::ConnectFrom { cookie, to, congestion, from },
        }
    })
}

/// An event of each kind, with any fields.
fn event() -> impl Strategy<Value = Event> {
    let data = any::<(u64, u32)>().prop_map(|(addr, len)| RxData { addr, len });
    let icmp = any::<(u8, u8, u16, [u8; 16])>().prop_map(|(kind, code, detail, by)| IcmpMessage {
        kind,
        code,
        detail,
        by,
    });
    let fields = (any::<[u64; 3]>(), any::<[u32; 2]>(), endpoint(), any::<[u8; 16]>());
    (0..21u32, fields, data, icmp, error()).prop_map(|(kind, fields, data, icmp, why)| {
        let ([cookie, handle, window], [group, thread], peer, local) = fields;
        let reason = DeadReason::from_code((group % 4) as u16);
        match kind {
            0 => Event::Knock { listener: cookie, handle, peer },
            1 => Event::Connected { cookie, handle, outcome: Ok(()) },
            2 => Event::Connected { cookie, handle, outcome: Err(why) },
            3 => Event::Recv { cookie, handle, data, news: SentNews::new(group, thread) },
            4 => Event::Eof { cookie, handle },
            5 => Event::Sent { cookie, handle, bytes: data.len, window },
            6 => Event::Dead { cookie, handle, reason },
            7 => Event::UdpRecv {
                cookie,
                peer,
                local,
                data,
                notes: DatagramNotes::new(data.len as u8, data.addr as u8, data.len as u16)
                    .with_label(group),
            },
            8 => Event::UdpSent { cookie },
            9 => Event::UdpError { cookie, peer, why, icmp, quoted: data },
            10 => Event::FlowError { cookie, handle, why, icmp },
            11 => Event::Timer { cookie },
            12 => Event::GroupLeaves { group, to: thread },
            13 => Event::GroupArrived { group, from: thread },
            14 => Event::Revoke(Revoke::Back),
            15 => Event::Revoke(Revoke::Goes),
            16 => Event::Revoke(Revoke::Drained),
            17 => Event::PacketRecv { cookie, data },
            18 => Event::PacketSent { cookie },
            19 => Event::Given { token: cookie, handle, peer, from: thread, returned: window },
            _ => Event::Signal { from: thread, value: window },
        }
    })
}

/// A word that has mostly few bits, so that it often fits where an argument is narrow.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..16u64,
        any::<u16>().prop_map(u64::from),
        any::<u32>().prop_map(u64::from)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn each_call_is_decoded_to_itself(call in call()) {
        prop_assert_eq!(Call::decode(&call.encode()), Ok(call));
    }

    #[test]
    fn each_event_is_decoded_to_itself(event in event()) {
        prop_assert_eq!(Event::decode(&event.encode()), Ok(event));
    }

    /// Any words are a call or an error, and a call keeps its meaning when it is encoded again.
    #[test]
    fn any_words_of_a_call_are_decoded(
        op in prop_oneof![0..36u32, any::<u32>()],
        reserved: u32,
        ret: i64,
        args in prop::array::uniform6(word()),
    ) {
        if let Ok(call) = Call::decode(&CallSlot { op, reserved, ret, args }) {
            let slot = call.encode();
            prop_assert_eq!(slot.op, op);
            prop_assert_eq!(Call::decode(&slot), Ok(call));
        } else {
            prop_assert!(op != 6 && op != 7, "every bit pattern is a sendv or a recv_done");
        }
    }

    /// The same of events.
    #[test]
    fn any_words_of_an_event_are_decoded(
        kind in prop_oneof![0..18u16, any::<u16>()],
        code in prop_oneof![0..17u16, any::<u16>()],
        len: u32,
        [cookie, handle, more] in any::<[u64; 3]>(),
        data in word(),
        addr: [u8; 16],
        port: u16,
        notes: [u16; 3],
    ) {
        let slot = EventSlot { kind, code, len, cookie, handle, data, addr, port, notes, more };
        if let Ok(event) = Event::decode(&slot) {
            let again = event.encode();
            prop_assert_eq!(again.kind, kind);
            prop_assert_eq!(Event::decode(&again), Ok(event));
        }
    }

    #[test]
    fn a_return_value_is_a_value_or_an_error(ret: i64) {
        let result = CallError::check(ret);
        prop_assert_eq!(result.is_ok(), ret >= 0);
        prop_assert_eq!(CallError::check(CallError::encode(result)), result);
    }
}

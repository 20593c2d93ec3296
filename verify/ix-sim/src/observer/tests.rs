use super::*;
use ix_wire::{Checksum, FrameHeader, IpAddr, Seq, TcpFlags, TcpHeader, TcpOptions};

const A: (u8, u16) = (1, 5000);
const B: (u8, u16) = (2, 80);

/// A frame from one host to another.
fn frame(from: (u8, u16), to: (u8, u16), flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let address = |host: u8| IpAddr::v4([10, 0, 0, host]);
    let ip = FrameHeader {
        eth_src: [2; 6],
        eth_dst: [4; 6],
        src: address(from.0),
        dst: address(to.0),
        ttl: 64,
        tos: 0,
        ident: 1,
    };
    let header = TcpHeader {
        src_port: from.1,
        dst_port: to.1,
        seq: Seq(seq),
        ack: Seq(ack),
        flags: TcpFlags(flags.into()),
        window: 1000,
        options: TcpOptions::default(),
        ..TcpHeader::default()
    };
    let mut bytes = vec![0; 54 + payload.len()];
    bytes[54..].copy_from_slice(payload);
    let mut sum = Checksum::new();
    sum.add_bytes(payload);
    ip.emit_tcp(&mut bytes, &header, payload.len(), sum);
    bytes
}

struct Lab(Observer);

impl Lab {
    fn pass(&mut self, frame: &[u8]) -> Vec<String> {
        self.0.sent(frame, 0);
        self.0.arrives(frame);
        self.0.take_violations()
    }

    fn a(&mut self, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<String> {
        let start = u32::MAX - 5;
        self.pass(&frame(A, B, flags, start.wrapping_add(seq), 900 + ack, payload))
    }

    fn b(&mut self, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<String> {
        let start = u32::MAX - 5;
        self.pass(&frame(B, A, flags, 900 + seq, start.wrapping_add(ack), payload))
    }

    /// Open; numbers of A wrap soon.
    fn opened() -> Lab {
        let mut lab = Lab(Observer::new());
        assert!(lab.pass(&frame(A, B, SYN, u32::MAX - 5, 0, &[])).is_empty());
        assert!(lab.b(SYN | ACK, 0, 1, &[]).is_empty());
        assert!(lab.a(ACK, 1, 1, &[]).is_empty());
        lab
    }
}

#[test]
fn an_orderly_life_is_in_order() {
    let mut lab = Lab::opened();
    let mut all = Vec::new();
    all.extend(lab.a(ACK, 1, 1, &[7; 20]));
    all.extend(lab.a(ACK, 1, 1, &[7; 20]));
    all.extend(lab.b(ACK, 1, 21, &[3; 500]));
    all.extend(lab.a(ACK | FIN, 21, 501, &[]));
    all.extend(lab.b(ACK | FIN, 501, 22, &[]));
    all.extend(lab.a(ACK, 22, 502, &[]));
    assert_eq!(all, Vec::<String>::new());
    let lives = lab.0.into_lives();
    assert_eq!((lives.count, lives.median_segments()), (1, 9));
    use State::*;
    let seen = [(Closed, SynSent), (SynSent, Established), (FinWait1, TimeWait), (LastAck, Closed)];
    assert!(seen.iter().all(|&pair| lives.transitions(pair) > 0), "{lives}");
}

#[test]
fn each_lie_is_seen() {
    type Lie = fn(&mut Lab) -> Vec<String>;
    let lies: [(&str, Lie); 9] = [
        ("beyond the window", |lab| {
            lab.a(ACK, 1, 1, &[0; 536]).into_iter().chain(lab.a(ACK, 537, 1, &[0; 465])).collect()
        }),
        ("sequence", |lab| lab.a(ACK, 1003, 1, &[])),
        ("only 1 arrived", |lab| lab.a(ACK, 1, 2, &[])),
        ("another one", |lab| {
            lab.a(ACK, 1, 1, &[1; 9]);
            lab.a(ACK, 1, 1, &[2; 9])
        }),
        ("behind the FIN", |lab| {
            lab.a(ACK | FIN, 1, 1, &[]);
            lab.a(ACK, 1, 1, &[1])
        }),
        ("MSS", |lab| lab.a(ACK, 1, 1, &[0; 537])),
        ("no ACK", |lab| lab.a(FIN, 1, 1, &[])),
        ("SYN together", |lab| lab.a(SYN | FIN, 1, 1, &[])),
        ("after 10", |lab| {
            lab.b(ACK, 1, 1, &[0; 9]);
            lab.a(ACK, 1, 10, &[]);
            lab.a(ACK, 1, 9, &[])
        }),
    ];
    for (what, lie) in lies {
        let violations = lie(&mut Lab::opened());
        assert!(violations.len() == 1 && violations[0].contains(what), "{what}: {violations:?}");
    }
    let mut lab = Lab(Observer::new());
    assert_eq!(lab.b(ACK, 1, 1, &[]).len(), 1, "a segment of nothing");
    let mut damaged = frame(A, B, SYN, 1, 0, &[]);
    damaged[40] ^= 1;
    assert_eq!(lab.pass(&damaged).len(), 1, "damaged by its sender");
}

#[test]
fn both_may_open_at_once() {
    let mut lab = Lab(Observer::new());
    let (a, b) = (u32::MAX - 5, 900);
    let syns = [frame(A, B, SYN, a, 0, &[]), frame(B, A, SYN, b, 0, &[])];
    syns.iter().for_each(|syn| lab.0.sent(syn, 0));
    syns.iter().for_each(|syn| lab.0.arrives(syn));
    let answers =
        [frame(A, B, SYN | ACK, a, b + 1, &[]), frame(B, A, SYN | ACK, b, a.wrapping_add(1), &[])];
    answers.iter().for_each(|answer| lab.0.sent(answer, 0));
    answers.iter().for_each(|answer| lab.0.arrives(answer));
    // A had closed before it was connected.
    let mut all = lab.a(ACK | FIN, 1, 1, &[]);
    all.extend(lab.b(ACK, 1, 2, &[3; 9]));
    assert_eq!(all, Vec::<String>::new());
    let lives = lab.0.into_lives();
    use State::*;
    assert_eq!((lives.count, lives.transitions((SynSent, SynReceived))), (1, 2), "{lives}");
    let once = [(SynReceived, FinWait1), (SynReceived, CloseWait)];
    assert!(once.iter().all(|&pair| lives.transitions(pair) == 1), "{lives}");
}

#[test]
fn what_nothing_is_left_of_is_closed() {
    let mut lab = Lab(Observer::new());
    assert!(lab.pass(&frame(A, B, SYN, 7, 0, &[])).is_empty());
    // A gives up and tries again.
    assert!(lab.pass(&frame(A, B, SYN, 99, 0, &[])).is_empty());
    let lives = lab.0.into_lives();
    assert_eq!((lives.count, lives.transitions((State::SynSent, State::Closed))), (2, 2));
    assert!(lives.missing().contains(&(State::SynSent, State::SynReceived)));
}

//! Parsers of frames: they are total, and every accepted part is within the frame.
use crate::bytes::Bytes;
use ix_wire::{
    ArpPacket, ChecksumMode, Parsed, Payload, RxChecks, TcpHeader, TcpOptions, parse, parse_copied,
    parse_ip, parse_problem,
};

/// Few inputs would be IPv6 by chance.
const ETHERNET_V6: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd];

/// As a frame, and as each of the parts in it.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let modes = [ChecksumMode::Verify, ChecksumMode::AcceptPartial, ChecksumMode::Skip];
    let transport = bytes.pick(&modes);
    let cut = usize::from(bytes.u8());
    let frame = bytes.take(usize::MAX);
    if let Ok(parsed) = parse(frame, RxChecks { transport }) {
        within(&parsed, frame);
        // Octets after the packet change nothing.
        let padded = [frame, &[0x55; 7]].concat();
        if let Ok(again) = parse(&padded, RxChecks { transport }) {
            within(&again, &padded);
        }
    }
    copied(frame, cut, RxChecks { transport });
    let v6 = [&ETHERNET_V6, frame].concat();
    if let Ok(parsed) = parse(&v6, RxChecks { transport }) {
        within(&parsed, &v6);
    }
    copied(&v6, cut, RxChecks { transport });
    if let Some((ip, problem)) = parse_problem(&v6) {
        assert!(problem.pointer < v6.len() as u32 && ip.dst.is_v6() && ip.src.is_v6());
    }
    let _ = parse_ip(frame);
    let _ = ArpPacket::parse(frame);
    let _ = ix_wire::icmp::IcmpHeader::parse(frame);
    if let Ok((header, len)) = TcpHeader::parse(frame) {
        assert!(len <= frame.len() && (20..=60).contains(&len));
        same_again(header.options);
    }
    same_again(TcpOptions::parse(frame));
}

fn payload(parsed: &Parsed) -> Payload {
    match parsed {
        Parsed::Tcp(packet) => packet.payload,
        Parsed::Udp(packet) => packet.payload,
        Parsed::Icmp(packet) => packet.payload,
        Parsed::Arp(_) | Parsed::Nd(_) => Payload::default(),
    }
}

fn within(parsed: &Parsed, frame: &[u8]) {
    let payload = payload(parsed);
    assert_eq!(payload.of(frame).len(), usize::from(payload.len), "payload beyond the frame");
    assert_eq!(payload.more, 0, "nothing follows");
}

/// A parsed copy of the headers agrees with the frame.
fn copied(frame: &[u8], cut: usize, checks: RxChecks) {
    let mut parsed = Parsed::NONE;
    let head = &frame[..cut.min(frame.len())];
    if parse_copied(head, frame, frame.len(), checks, &mut parsed).is_ok() {
        let whole = parse(frame, checks).expect("the copy was good");
        assert_eq!(payload(&parsed), payload(&whole), "a copy of {cut} octets");
    }
}

/// Accepted options are the same after writing and parsing them again, unless they do not fit.
fn same_again(options: TcpOptions) {
    let mut out = [0xaa; 40];
    let len = options.emit(&mut out);
    assert_eq!(len, options.len());
    let again = TcpOptions::parse(&out[..len]);
    let fitting = again.sack.len();
    assert_eq!(again.sack.as_slice(), &options.sack.as_slice()[..fitting]);
    assert_eq!(TcpOptions { sack: options.sack, ..again }, options);
}

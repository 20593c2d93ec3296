//! Neighbour Discovery, MLD and extension headers: messages with a right checksum behind any
//! headers, given to the parser and to the machines that hear them.
use crate::bytes::Bytes;
use ix_tcp::arp::GuardMode;
use ix_tcp::groups::Listener;
use ix_tcp::nd::{DuplicateCheck, DuplicateEvent, NdCache, NdLimits};
use ix_wire::mld::Query;
use ix_wire::{Checksum, FrameHeader, IpAddr, Parsed, RxChecks, icmp6, ipv6, mld, nd, parse};

const OURS: IpAddr = IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const PEER: IpAddr = IpAddr([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// Headers in front of the message, as many bytes each: none, a router alert, an atomic fragment.
const CHAINS: [&[u8]; 3] = [&[], &[58, 0, 5, 2, 0, 0, 1, 0], &[58, 0, 0, 0, 0, 0, 0, 7]];
const FIRST: [u8; 3] = [58, 0, 44];

/// Hears one message after the other.
pub fn run(input: &[u8]) {
    let mut bytes = Bytes::new(input);
    let mut cache = NdCache::new(&[OUR_MAC], NdLimits::default());
    let mut check = DuplicateCheck::new(OURS, GuardMode::Announce, 0, 7);
    let mut listener = Listener::new(bytes.u64());
    let group = ipv6::solicited_node(OURS);
    listener.join(group, 0);
    let (mut now_us, mut out, mut reports) = (0, Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let frame = message(&mut bytes);
        match parse(&frame, RxChecks::default()) {
            Ok(Parsed::Nd(packet)) => {
                assert_eq!(frame[21], 255, "from beyond the link");
                check.on_packet(&packet);
                cache.on_packet(&packet, now_us, &mut out);
                assert!(packet.link.is_none_or(|mac| mac[0] & 1 == 0));
            }
            Ok(Parsed::Icmp(packet)) if Query::is(&packet) => {
                if let Ok(query) = Query::parse(&frame, &packet) {
                    assert!(frame[21] == 1 && frame[20] == 0 && packet.ip.src.is_link_local_v6());
                    assert!(query.within_us <= 8_387_584_000, "RFC 3810 section 5.1.3");
                    listener.on_query(&query, now_us);
                }
            }
            _ => {}
        }
        now_us += bytes.scaled(28);
        if check.tick(now_us, &mut out) == Some(DuplicateEvent::Usable) {
            cache.add_address(OURS);
        }
        cache.tick(now_us, &mut out);
        listener.tick(now_us, &mut reports);
        assert!(listener.deadline() > now_us);
        assert!(reports.drain(..).all(|report| report.group == group));
        // Nobody is answered more than once, and our own questions have their pace.
        assert!(out.len() <= 64, "{} messages", out.len());
        out.clear();
    }
}

/// A message as the input says, or any packet.
fn message(bytes: &mut Bytes) -> Vec<u8> {
    let kinds = [nd::SOLICITATION, nd::ADVERTISEMENT, mld::QUERY, icmp6::ECHO_REQUEST];
    let (kind, code) = (bytes.pick(&kinds), bytes.pick(&[0, 0, 0, 1]));
    let which = usize::from(bytes.pick(&[0u8, 0, 1, 2, 3]));
    let (src, dst) = (
        bytes.pick(&[PEER, PEER, OURS, IpAddr::UNSPECIFIED_V6]),
        bytes.pick(&[OURS, ipv6::solicited_node(OURS), ipv6::ALL_NODES]),
    );
    let ttl = bytes.pick(&[255, 1, 255, 1, 64]);
    let any_chain = usize::from(bytes.u8());
    let (chain, first) = match (CHAINS.get(which), FIRST.get(which)) {
        (Some(chain), Some(first)) => (*chain, *first),
        _ => (bytes.take(any_chain), bytes.pick(&[0, 60, 43, 44])),
    };
    let mut body = vec![kind, code, 0, 0];
    body.extend(bytes.array::<4>());
    let target = bytes.pick(&[OURS, PEER, IpAddr::UNSPECIFIED_V6]);
    body.extend(target.0);
    let rest_len = usize::from(bytes.u8() % 64);
    body.extend(bytes.take(rest_len));
    let mut sum = Checksum::pseudo_header(src, dst, ipv6::PROTOCOL_ICMP, body.len());
    sum.add_bytes(&body);
    body[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let (eth_src, eth_dst) = ([2, 0, 0, 0, 0, 1], OUR_MAC);
    let link = FrameHeader { eth_src, eth_dst, src, dst, ttl, tos: 0, ident: 0 };
    let mut frame = vec![0; 54];
    link.emit(&mut frame, first, chain.len() + body.len());
    [&frame, chain, &body].concat()
}

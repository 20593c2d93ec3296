//! ICMP errors of both families by the names that scripts give them.
use super::range;
use crate::scan::{Parsed, Scan};
use crate::script::{Body, IcmpKind, Quoted};

type Numbers = Option<(u8, u8)>;

/// Names of type and code with the numbers of RFC 792 and RFC 4443. What IPv4 calls by a name of
/// its own, and IPv6 has by another, is known by both.
const KINDS: &[(&str, &[&str], Numbers, Numbers)] = &[
    ("unreachable", &["net_unreachable", "no_route"], Some((3, 0)), Some((1, 0))),
    (
        "unreachable",
        &["host_unreachable", "addr_unreachable", "address_unreachable"],
        Some((3, 1)),
        Some((1, 3)),
    ),
    // IPv6 tells of a protocol by the octet that names it.
    ("unreachable", &["protocol_unreachable"], Some((3, 2)), Some((4, 1))),
    ("unreachable", &["port_unreachable"], Some((3, 3)), Some((1, 4))),
    ("unreachable", &["frag_needed"], Some((3, 4)), None),
    ("unreachable", &["source_route_failed"], Some((3, 5)), None),
    ("unreachable", &["net_unknown"], Some((3, 6)), None),
    ("unreachable", &["host_unknown"], Some((3, 7)), None),
    ("unreachable", &["source_host_isolated"], Some((3, 8)), None),
    ("unreachable", &["net_prohibited"], Some((3, 9)), None),
    ("unreachable", &["host_prohibited"], Some((3, 10)), None),
    ("unreachable", &["net_unreachable_for_tos"], Some((3, 11)), None),
    ("unreachable", &["host_unreachable_for_tos"], Some((3, 12)), None),
    ("unreachable", &["admin_prohibited", "packet_filtered"], Some((3, 13)), Some((1, 1))),
    ("unreachable", &["precedence_violation"], Some((3, 14)), None),
    ("unreachable", &["precedence_cutoff"], Some((3, 15)), None),
    ("unreachable", &["not_neighbour"], None, Some((1, 2))),
    ("packet_too_big", &[], None, Some((2, 0))),
    ("redirect", &[], Some((5, 1)), None),
    ("source_quench", &[], Some((4, 0)), None),
    ("parameter_problem", &["code_0"], Some((12, 0)), Some((4, 0))),
    ("parameter_problem", &["code_1"], Some((12, 1)), Some((4, 1))),
    ("parameter_problem", &["code_2"], Some((12, 2)), Some((4, 2))),
    ("source_quench", &["now"], Some((4, 0)), None),
    (
        "time_exceeded",
        &["exceeded_hop_limit", "ttl_exceeded_in_transit", "ttl"],
        Some((11, 0)),
        Some((3, 0)),
    ),
    ("time_exceeded", &["exceeded_frag_time", "frag_reass_exceeded"], Some((11, 1)), Some((3, 1))),
    ("parameter_problem", &["pointer", "header_field"], Some((12, 0)), Some((4, 0))),
    ("parameter_problem", &["unrecognized_next_header", "unknown_next_header"], None, Some((4, 1))),
    ("parameter_problem", &["unrecognized_option"], None, Some((4, 2))),
    // RFC 7112 section 8.
    ("parameter_problem", &["incomplete_header_chain"], None, Some((4, 3))),
];

/// `icmp TYPE[ CODE][ mtu N | octet N] [WHAT IT QUOTES]`
pub(super) fn icmp(scan: &mut Scan) -> Parsed<Body> {
    let family = scan.word("icmp")?;
    let kind = scan.word("a type of ICMP")?;
    scan.blank()?;
    let code = match scan.word_here() {
        "mtu" | "octet" => "",
        word => word,
    };
    scan.skip(code.len());
    let named = |(name, codes): (&str, &[&str])| {
        name == kind && if codes.is_empty() { code.is_empty() } else { codes.contains(&code) }
    };
    let Some((.., v4, v6)) = KINDS.iter().find(|(name, codes, ..)| named((name, codes))) else {
        return scan.error(format!("`{family} {kind} {code}` is not understood"));
    };
    let name = format!("{family} {kind} {code}").trim_end().to_string();
    let v4 = v4.filter(|_| family == "icmp");
    let kind = IcmpKind { name, v4, v6: *v6 };
    let word = if scan.eat_word("mtu")? {
        Some(scan.fit("an MTU")?)
    } else if scan.eat_word("octet")? {
        Some(scan.fit("the place of an octet")?)
    } else {
        None
    };
    scan.expect("[")?;
    let quoted = if scan.eat_word("udp")? {
        scan.expect("(")?;
        let len = scan.fit("the length of a datagram")?;
        scan.expect(")")?;
        Quoted::Datagram(len)
    } else {
        let (seq, len) = range(scan)?;
        Quoted::Segment(seq, len)
    };
    scan.expect("]")?;
    Ok(Body::Icmp { kind, word, quoted })
}

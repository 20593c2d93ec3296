//! Filters against a naive model: in a header space so small that all its points can be looked at,
//! a filter is the set of the points that it takes.
use ix_vnic::{Direction, Field, Filter, Header, IpHeader, Level, Ranges, UNTAGGED};
use proptest::prelude::*;

/// Some values of each field, chosen so that ranges of them can begin, end, touch and miss.
const SMALL: [u128; 4] = [0, 1, 2, 5];

fn header(is_v6: bool, protocol: Option<u8>, n: [u128; 6]) -> Header {
    let [vlan, peer, service, peer_port, service_port, mac] = n;
    let ip = protocol.map(|protocol| IpHeader {
        src: peer,
        dst: service,
        protocol,
        ports: matches!(protocol, 6 | 17).then_some((peer_port as u16, service_port as u16)),
    });
    let vlan = if vlan == 0 { UNTAGGED } else { vlan as u16 };
    let ethertype = match (ip.is_some(), is_v6) {
        (false, _) => 0x88b5,
        (true, false) => 0x0800,
        (true, true) => 0x86dd,
    };
    let mac = [0, 0, 0, 0, 0, mac as u8];
    Header { eth_src: mac, eth_dst: mac, vlan, ethertype, ip, arp: None, nd: None }
}

/// Every point of the small space.
fn space() -> Vec<Header> {
    let mut all = Vec::new();
    let kinds = [(false, None), (false, Some(1)), (false, Some(6)), (false, Some(17))];
    for (is_v6, protocol) in kinds.into_iter().chain([(true, Some(6)), (true, Some(58))]) {
        for at in 0..4usize.pow(6) {
            let n = std::array::from_fn(|i| SMALL[at >> (2 * i) & 3]);
            all.push(header(is_v6, protocol, n));
        }
    }
    all
}

fn ranges() -> impl Strategy<Value = Ranges> {
    let end = prop::sample::select(vec![0u128, 1, 2, 3, 5, 1 << 20]);
    prop::collection::vec((end.clone(), end), 1..3)
        .prop_map(|pairs| Ranges::new(pairs.into_iter().map(|(a, b)| (a.min(b), a.max(b)))))
}

fn filter() -> impl Strategy<Value = Filter> {
    let level = prop::sample::select(vec![
        Level::Ethernet,
        Level::Ipv4,
        Level::Tcp,
        Level::Udp,
        Level::Ipv6,
        Level::Tcp6,
    ]);
    let fields = prop::collection::vec((prop::sample::select(Field::ALL.to_vec()), ranges()), 0..4);
    (level, fields).prop_map(|(level, fields)| {
        let mut filter = Filter::new(Direction::Receive, level);
        for (field, values) in fields {
            if level.has(field) {
                let top = field.largest(level);
                let clamp = |(low, high): &(u128, u128)| (*low.min(&top), *high.min(&top));
                filter = filter.with(field, Ranges::new(values.as_slice().iter().map(clamp)));
            }
        }
        filter
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn overlap_and_containment_are_those_of_sets(a in filter(), b in filter()) {
        let space = space();
        let both = space.iter().any(|h| a.matches(h) && b.matches(h));
        let beyond = space.iter().any(|h| !a.matches(h) && b.matches(h));
        // The small space is a part of the whole one: a packet found there is a proof, none found
        // is not.
        prop_assert!(!both || a.overlaps(&b), "{a} and {b} share a packet");
        prop_assert!(!beyond || !a.contains(&b), "{a} does not take all of {b}");
        prop_assert_eq!(a.overlaps(&b), b.overlaps(&a));
        prop_assert!(a.contains(&a) && a.overlaps(&a));
        if a.contains(&b) {
            prop_assert!(a.overlaps(&b), "{a} contains {b}");
        }
    }

    #[test]
    fn what_is_claimed_has_a_witness(a in filter(), b in filter()) {
        // The exact result, field by field over all values that a field can have.
        let values = |filter: &Filter, field: Field| match filter.field(field) {
            Some(values) => values.clone(),
            None => Ranges::new([(0, u128::MAX)]),
        };
        let ends = |field: Field| {
            let all = [values(&a, field), values(&b, field)];
            let ends = all.iter().flat_map(|r| r.as_slice().iter().flat_map(|r| [r.0, r.1]));
            ends.collect::<Vec<_>>()
        };
        let meets = |field: &Field| {
            ends(*field).iter().any(|v| values(&a, *field).contains(*v) && values(&b, *field).contains(*v))
        };
        prop_assert_eq!(a.overlaps(&b), Field::ALL.iter().all(meets), "{} and {}", a, b);
        let near = |field: Field| {
            ends(field).into_iter().flat_map(|v| [v.saturating_sub(1), v, v.saturating_add(1)])
        };
        let covers = |field: &Field| {
            let inside = |v: u128| v <= field.largest(b.level()) && values(&b, *field).contains(v);
            near(*field).filter(|v| inside(*v)).all(|v| values(&a, *field).contains(v))
        };
        prop_assert_eq!(a.contains(&b), Field::ALL.iter().all(covers), "{} and {}", a, b);
    }

    #[test]
    fn text_is_read_as_it_was_written(a in filter()) {
        prop_assert_eq!(a.to_string().parse::<Filter>().map_err(|e| e.to_string()), Ok(a));
    }

    #[test]
    fn no_text_and_no_bytes_harm(text in "(rx|tx) (tcp|ip|eth) .{0,30}", bytes in any::<Vec<u8>>()) {
        let _ = text.parse::<Filter>();
        let _ = Header::read(&bytes);
    }
}

#[test]
fn people_write_lists_ranges_networks_and_wildcards() {
    for (text, canonical) in [
        ("rx tcp service 10.0.0.5:80", "rx tcp service 10.0.0.5:80"),
        ("tx udp service *:53,54,55 peer *", "tx udp service *:53-55"),
        ("rx ip peer 10.0.0.0/24,10.0.1.0/24", "rx ip peer 10.0.0.0/23"),
        ("rx ip service 10.0.0.1-10.0.0.9 proto 1,6", "rx ip service 10.0.0.1-10.0.0.9 proto 1,6"),
        ("rx eth type 0x88b5 vlan 7", "rx eth vlan 7 type 0x88b5"),
        ("rx eth vlan none,7", "rx eth vlan 7,none"),
        ("tx tcp vlan *", "tx tcp vlan *"),
        ("rx eth service 02:00:00:00:00:01", "rx eth service 02:00:00:00:00:01"),
        ("rx tcp peer-mac 02:00:00:00:00:01", "rx tcp peer-mac 02:00:00:00:00:01"),
        ("rx tcp service [2001:db8::5]:80", "rx tcp6 service [2001:db8::5]:80"),
        ("rx tcp6 service *:80", "rx tcp6 service *:80"),
        ("rx udp peer 2001:DB8::/32", "rx udp6 peer 2001:db8::/32"),
        (
            "tx tcp service [2001:db8::1,2001:db8::2]:80 peer [::/0]:1-9",
            "tx tcp6 service [2001:db8::1-2001:db8::2]:80 peer *:1-9",
        ),
        (
            "rx ip6 service 2001:db8::1-2001:db8::9 proto 58",
            "rx ip6 service 2001:db8::1-2001:db8::9 proto 58",
        ),
        ("rx ip service *  peer [fe80::/10]", "rx ip6 peer fe80::/10"),
    ] {
        let filter: Filter = text.parse().expect(text);
        assert_eq!(filter.to_string(), canonical);
    }
    for (text, says) in [
        ("", "must begin with rx or tx"),
        ("rx", "eth, ip, tcp, udp, ip6, tcp6 or udp6"),
        ("rx sctp", "eth, ip, tcp, udp, ip6, tcp6 or udp6"),
        ("rx tcp service 2001:db8::5:80 peer 10.0.0.1", "`10.0.0.1` is not an IPv6 address"),
        ("rx tcp6 service 10.0.0.1:80", "`10.0.0.1` is not an IPv6 address"),
        ("rx tcp service [10.0.0.1]:80 peer 2001:db8::1", "`10.0.0.1` is not an IPv6 address"),
        ("rx tcp service [2001:db8::5]80", "not an IPv6 address"),
        ("rx tcp service [2001:db8::5", "not an IPv6 address"),
        ("rx tcp service [2001:db8::5]:", "not a number up to 65535"),
        ("rx tcp service [::ffff:10.0.0.1]:80", "not an IPv6 address"),
        ("rx ip6 service 2001:db8::1/64", "not an IPv6 address, network"),
        ("rx ip6 service 2001:db8::/129", "not an IPv6 address, network"),
        ("rx ip6 service 2001:db8::9-2001:db8::1", "is empty"),
        ("rx ip6 service [2001:db8::1]:80", "only tcp and udp filters have ports"),
        ("rx tcp service", "service needs a value"),
        ("rx tcp service 10.0.0.1:0-65536", "not a number up to 65535"),
        ("rx tcp service 10.0.0.1:9-8", "is empty"),
        ("rx tcp service 10.0.0.1/24", "not an IPv4 address, network"),
        ("rx tcp service 10.0.0.0/33", "not an IPv4 address, network"),
        ("rx ip service 10.0.0.1:80", "only tcp and udp filters have ports"),
        ("rx eth proto 6", "eth filters have no proto"),
        ("rx tcp type 2048", "tcp filters have no type"),
        ("rx tcp peer * peer *", "peer is given twice"),
        ("rx tcp colour blue", "tcp filters have no colour"),
        ("rx udp service *:1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,33", "at most 16"),
    ] {
        let refusal = text.parse::<Filter>().expect_err(text).to_string();
        assert!(refusal.contains(says) && !refusal.contains('\n'), "{text}: {refusal}");
    }
}

//! Which packets a vNIC's rules let pass, and when.
use ix_vnic::{
    ArpHeader, Direction, Filter, FilterSet, Foreign, Header, Offered, Pacer, Rate, Rates, Shaper,
    VnicRules,
};
use proptest::prelude::*;
use std::collections::VecDeque;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 5];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OURS: [u8; 4] = [10, 0, 0, 5];
const THEIRS: [u8; 4] = [10, 0, 0, 9];

/// A TCP segment sent by the service.
fn segment() -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(PEER);
    frame.extend(MAC);
    frame.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend(OURS);
    frame.extend(THEIRS);
    frame.extend([0, 80, 0x10, 0]);
    frame.resize(54, 0);
    frame
}

fn arp(sender_mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend([0xff; 6]);
    frame.extend(MAC);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(sender_mac);
    frame.extend(sender);
    frame.extend([0; 6]);
    frame.extend(target);
    frame
}

fn verdict(rules: &VnicRules, frame: &[u8]) -> Result<(), Foreign> {
    let set = rules.set(Direction::Transmit).expect("filters");
    Header::read(frame).ok_or(Foreign::Other).and_then(|header| set.admits(&header, MAC))
}

#[test]
fn what_is_foreign_is_named() {
    let rules: VnicRules = "tx tcp service 10.0.0.5:80 peer 10.0.0.0/24".parse().expect("rules");
    let changed = |at: usize, bytes: &[u8]| {
        let mut frame = segment();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        verdict(&rules, &frame)
    };
    assert_eq!(changed(0, &[]), Ok(()));
    assert_eq!(changed(6, &[4]), Err(Foreign::Mac));
    assert_eq!(changed(26, &[11]), Err(Foreign::Address));
    assert_eq!(changed(34, &[1]), Err(Foreign::Port));
    assert_eq!(changed(30, &[11]), Err(Foreign::Other), "another peer");
    assert_eq!(changed(23, &[17]), Err(Foreign::Other), "another protocol");
    assert_eq!(changed(20, &[0x20]), Err(Foreign::Other), "a fragment has no ports");
    assert_eq!(changed(14, &[0x65]), Err(Foreign::Other), "not IPv4");
    assert_eq!(verdict(&rules, &segment()[..33]), Err(Foreign::Other), "cut off");
    let mut tagged = segment();
    tagged.splice(12..12, [0x81, 0, 0, 7]);
    assert_eq!(verdict(&rules, &tagged), Err(Foreign::Vlan));
    let tags: VnicRules = "tx tcp service 10.0.0.5:80 vlan 7".parse().expect("rules");
    assert_eq!(verdict(&tags, &tagged), Ok(()));
    assert_eq!(verdict(&tags, &segment()), Err(Foreign::Vlan));
    let options: Vec<u8> = {
        let mut frame = segment();
        frame[14] = 0x46;
        frame.splice(34..34, [1, 1, 1, 1]);
        frame
    };
    assert_eq!(verdict(&rules, &options), Ok(()), "behind options");
}

#[test]
fn arp_is_spoken_in_our_own_name_only() {
    let rules: VnicRules =
        "tx tcp service 10.0.0.5:80; rx tcp service 10.0.0.5:80".parse().expect("");
    assert_eq!(verdict(&rules, &arp(MAC, OURS, THEIRS)), Ok(()));
    assert_eq!(verdict(&rules, &arp(MAC, [0; 4], OURS)), Ok(()), "a probe");
    assert_eq!(verdict(&rules, &arp(MAC, [0; 4], THEIRS)), Err(Foreign::Address));
    assert_eq!(verdict(&rules, &arp(MAC, THEIRS, OURS)), Err(Foreign::Address), "poison");
    assert_eq!(verdict(&rules, &arp(PEER, OURS, THEIRS)), Err(Foreign::Mac), "for another");
    let set = rules.set(Direction::Receive).expect("filters");
    let hears = |sender, target| {
        let arp = ArpHeader { sender_mac: PEER, sender, target };
        let (eth_src, eth_dst, ip, nd) = (PEER, MAC, None, None);
        let (vlan, ethertype) = (ix_vnic::UNTAGGED, 0x0806);
        set.admits(&Header { eth_src, eth_dst, vlan, ethertype, ip, arp: Some(arp), nd }, MAC)
            .is_ok()
    };
    let (ours, theirs) = (u32::from_be_bytes(OURS), u32::from_be_bytes(THEIRS));
    assert!(hears(theirs, ours) && hears(ours, theirs) && !hears(theirs, theirs));
}

const OURS_V6: u16 = 5;
const THEIRS_V6: u16 = 9;

/// An IPv6 packet between 2001:db8::… addresses; 0: `::`.
fn packet_v6(src: u16, dst: u16, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut frame = [PEER, MAC].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    frame.extend((body.len() as u16).to_be_bytes());
    frame.extend([protocol, 255]);
    for end in [src, dst] {
        let whole = if end == 0 { 0 } else { 0x2001_0db8 << 96 | u128::from(end) };
        frame.extend(whole.to_be_bytes());
    }
    frame.extend(body);
    frame
}

/// A message of Neighbour Discovery with an option of an Ethernet address.
fn nd(kind: u8, src: u16, target: u16, mac: Option<[u8; 6]>) -> Vec<u8> {
    let mut body = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    body.extend((0x2001_0db8_u128 << 96 | u128::from(target)).to_be_bytes());
    mac.iter().for_each(|mac| body.extend([&[1 + u8::from(kind == 136), 1], &mac[..]].concat()));
    packet_v6(src, THEIRS_V6, 58, &body)
}

#[test]
fn neighbour_discovery_is_spoken_in_our_own_name_only() {
    let rules: VnicRules =
        "tx ip service 2001:db8::5; rx ip service 2001:db8::5".parse().expect("");
    let says = |frame: &[u8]| verdict(&rules, frame);
    let (ours, theirs) = (OURS_V6, THEIRS_V6);
    assert_eq!(says(&nd(135, ours, theirs, Some(MAC))), Ok(()));
    assert_eq!(says(&nd(136, ours, ours, Some(MAC))), Ok(()));
    assert_eq!(says(&nd(135, 0, ours, None)), Ok(()), "a check for duplicates");
    assert_eq!(says(&nd(135, 0, theirs, None)), Err(Foreign::Address));
    assert_eq!(says(&nd(136, ours, theirs, Some(MAC))), Err(Foreign::Address), "poison");
    assert_eq!(says(&nd(136, theirs, ours, Some(MAC))), Err(Foreign::Address));
    assert_eq!(says(&nd(135, theirs, ours, Some(MAC))), Err(Foreign::Address));
    assert_eq!(says(&nd(136, ours, ours, Some(PEER))), Err(Foreign::Mac), "for another");
    for kind in [133, 134, 137] {
        assert!(says(&nd(kind, ours, ours, Some(MAC))).is_err(), "{kind}: of routers");
    }
    // Behind extension headers, in whatever order, it is none either.
    for inside in [nd(134, ours, ours, Some(MAC)), nd(136, ours, theirs, Some(MAC))] {
        let mut hidden = vec![60, 0, 0, 0, 0, 0, 0, 0, 58, 0, 0, 0, 0, 0, 0, 0];
        hidden.extend(&inside[54..]);
        assert!(says(&packet_v6(ours, theirs, 0, &hidden)).is_err());
    }
    let ping = [128, 0, 0, 0, 0, 1, 0, 1];
    assert_eq!(says(&packet_v6(ours, theirs, 58, &ping)), Ok(()));
    assert_eq!(says(&packet_v6(theirs, ours, 58, &ping)), Err(Foreign::Address), "spoofed");
    let report =
        |src| packet_v6(src, theirs, 0, &[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!((says(&report(0)), says(&report(ours))), (Ok(()), Ok(())));
    assert!(says(&report(theirs)).is_err());

    let set = rules.set(Direction::Receive).expect("filters");
    let hears = |frame: &[u8]| set.admits(&Header::read(frame).expect("a frame"), MAC).is_ok();
    assert!(hears(&nd(135, theirs, ours, Some(PEER))) && hears(&nd(136, ours, theirs, Some(PEER))));
    assert!(!hears(&nd(135, theirs, 7, Some(PEER))));
    // Filters of IPv4 have no IPv6 addresses, whatever their numbers.
    let v4: VnicRules = "tx ip service 0.0.0.0-0.0.0.9".parse().expect("rules");
    let mut small = nd(136, 0, ours, Some(MAC));
    small[22..38].fill(0);
    small[62..78].fill(0);
    assert!(verdict(&v4, &small).is_err());
}

/// Fields behind extension headers: a filter cannot be passed by hiding them.
#[test]
fn ports_are_behind_extension_headers_and_fragments_have_none() {
    let rules: VnicRules = "tx tcp service [2001:db8::5]:80".parse().expect("rules");
    let ports = [0, 80, 0x10, 0, 0, 0, 0, 0];
    let chain = |kinds: &[u8], last: u8| {
        let mut body = Vec::new();
        for (at, _) in kinds.iter().enumerate() {
            let next = kinds.get(at + 1).copied().unwrap_or(last);
            body.extend([next, 0, 0, 0, 0, 0, 0, 0]);
        }
        body.extend(ports);
        packet_v6(OURS_V6, THEIRS_V6, kinds.first().copied().unwrap_or(last), &body)
    };
    assert_eq!(verdict(&rules, &chain(&[], 6)), Ok(()));
    assert_eq!(verdict(&rules, &chain(&[0, 60, 43, 44, 60, 60], 6)), Ok(()), "six");
    assert!(verdict(&rules, &chain(&[0, 60, 43, 44, 60, 60, 60], 6)).is_err(), "seven");
    assert!(verdict(&rules, &chain(&[0, 60], 17)).is_err(), "another protocol");
    let mut part = chain(&[44], 6);
    part[54 + 3] = 1;
    assert!(verdict(&rules, &part).is_err(), "a fragment has no ports");
    let all: VnicRules = "tx ip service 2001:db8::5".parse().expect("rules");
    assert_eq!(verdict(&all, &part), Ok(()), "and is a packet");
    let mut cut = chain(&[60], 6);
    cut.truncate(54 + 7);
    assert!(verdict(&all, &cut).is_err(), "cut off");
}

#[test]
fn no_filters_carry_everything_and_revoked_ones_nothing() {
    let open = VnicRules::default();
    assert!(open.is_open() && open.set(Direction::Transmit).is_none());
    let revoked: VnicRules = "none tx".parse().expect("rules");
    assert!(revoked.set(Direction::Receive).is_none());
    assert!(
        verdict(&revoked, &segment()).is_err()
            && verdict(&revoked, &arp(MAC, OURS, THEIRS)).is_err()
    );
}

#[test]
fn rules_survive_their_text() {
    for text in [
        "",
        "rx tcp service 10.0.0.5:80; tx tcp service 10.0.0.5:80",
        "rx tcp6 service [2001:db8::5]:80; tx ip6 service 2001:db8::5 peer fe80::/10",
        "tx ip service 10.0.0.5; rate rx 20kpps,burst=3028; rate tx 100Mbit,burst=64k",
        "none rx; none tx",
        "tx ip; rate tx 1Gbit,burst=3028; queue 1 tx tcp; queue 0 rx ip proto 253; \
         queue 0 rate tx 20Mbit,burst=3028; queue 0 rate flow 1kpps,burst=3028",
    ] {
        let rules: VnicRules = text.parse().expect(text);
        assert_eq!(rules.to_string(), text);
    }
    let many = "rx udp;".repeat(33);
    let spread = "queue 3 rx udp;".repeat(33);
    for text in [
        "rate up 1Mbit",
        "rate rx",
        "rate tx 0bit",
        "open",
        "none",
        "queue",
        "queue 1",
        "queue x rx udp",
        "queue -1 rx udp",
        "queue 1 none rx",
        "queue 1 queue 2 rx udp",
        "queue 1 rate up 1Mbit",
        many.as_str(),
        spread.as_str(),
    ] {
        assert!(text.parse::<VnicRules>().is_err(), "{text}");
    }
}

#[test]
fn rates_are_read_and_refused() {
    let rate: Rate = "1Gbit,100kpps,burst=64k".parse().expect("a rate");
    let (bits, packets) = (Some(1_000_000_000), Some(100_000));
    assert_eq!(rate, Rate { bits_per_s: bits, packets_per_s: packets, burst_bytes: 64_000 });
    assert_eq!(rate.to_string(), "1Gbit,100kpps,burst=64k");
    assert!(rate.within(1_000_000_000).is_ok());
    let refusal = rate.within(100_000_000).expect_err("too much").to_string();
    assert!(refusal.contains("1Gbit is more than the link's 100Mbit"), "{refusal}");
    for (text, says) in [
        ("", "unknown part ``"),
        ("0bit", "0 lets nothing pass"),
        ("0pps", "0 lets nothing pass"),
        ("9999Gbit", "above the maximum, 1000G"),
        ("99999999999999999999bit", "whole number"),
        ("-1bit", "whole number"),
        ("fastbit", "whole number"),
        ("burst=3000", "a limit in bit or pps"),
        ("1Mbit,burst=0", "0 lets nothing pass"),
    ] {
        let refusal = text.parse::<Rate>().expect_err(text).to_string();
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
}

/// Sends packets of `bytes` as soon as they may pass, trying every `look_ns`, for a second. Returns
/// the bytes sent and the most packets sent at once.
fn flood(rate: Rate, bytes: usize, look_ns: u64) -> (u64, usize) {
    let mut shaper = Shaper::new(rate, 0);
    let (mut sent, mut most, mut now) = (0, 0, 0);
    while now < 1_000_000_000 {
        let mut together = 0;
        while shaper.passes(now) {
            shaper.charge(now, bytes);
            sent += bytes as u64;
            together += 1;
        }
        most = most.max(together);
        now += look_ns;
    }
    (sent, most)
}

#[test]
fn a_limit_holds_within_two_percent_from_one_megabit_to_forty_gigabits() {
    let steps = [(64, 1_000), (1514, 1_000), (1514, 16_000), (1514, 1_000_000)];
    for bits in [1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 40_000_000_000] {
        for (bytes, look_ns) in steps.into_iter().filter(|(b, _)| bits <= 1_000_000_000 || *b > 64)
        {
            let (sent, most) = flood(Rate::bits(bits), bytes, look_ns);
            let wanted = bits as f64 / 8.0;
            // One frame more or less does not count.
            let error = (sent as f64 - wanted).abs() - 2.0 * bytes as f64;
            assert!(error <= 0.02 * wanted, "{bits}: {sent} of {wanted}");
            // Paced: each time at most what the time since the last try allows.
            let earned = look_ns as f64 * bits as f64 / 8e9 / bytes as f64;
            assert!(most as f64 <= earned + 2.0, "{bits}: {most} at once, {earned} earned");
        }
    }
}

/// A sender with this many packets under way, each of which returns 200 µs after it has left. Every
/// 50 ms the machine stands still for the next time of `stalls`. Returns the bytes of each whole
/// second.
fn seconds_of(rate: Rate, window: usize, stalls: &[u64]) -> Vec<u64> {
    const PACKET: usize = 1514;
    let (mut shaper, mut stalls) = (Shaper::new(rate, 0), stalls.iter().cycle());
    let (mut waiting, mut under_way) = (window, VecDeque::new());
    let (mut seconds, mut now, mut stall_at) = (vec![0; 3], 0, 20_000_000);
    loop {
        while under_way.front().is_some_and(|back| *back <= now) {
            under_way.pop_front();
            waiting += 1;
        }
        if waiting == 0 {
            shaper.idle(now);
        }
        while waiting > 0 && shaper.passes(now) {
            shaper.charge(now, PACKET);
            waiting -= 1;
            under_way.push_back(now + 200_000);
            match seconds.get_mut((now / 1_000_000_000) as usize) {
                Some(second) => *second += PACKET as u64,
                None => return seconds,
            }
        }
        now += 25_000;
        if now >= stall_at {
            stall_at = now + 50_000_000;
            now += stalls.next().unwrap_or(&0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Also where the sender has few packets and its queue runs empty while it catches up.
    #[test]
    fn each_second_has_its_rate_on_a_machine_that_stands_still(
        stalls in prop::collection::vec(0u64..15_500_000, 1..40),
        mbits in prop::sample::select(vec![1u64, 10, 100, 1000]),
        window in 100usize..600,
    ) {
        for (n, bytes) in seconds_of(Rate::bits(mbits * 1_000_000), window, &stalls).iter().enumerate() {
            let wanted = mbits as f64 * 125_000.0;
            // One packet more or less does not count.
            let error = (*bytes as f64 - wanted).abs() - 2.0 * 1514.0;
            prop_assert!(error <= 0.02 * wanted, "{} Mbit/s, second {}: {}", mbits, n, bytes);
        }
    }
}

#[test]
fn a_burst_is_for_who_was_silent_and_lateness_for_who_waited() {
    let at_once = |shaper: &mut Shaper, now: u64| {
        shaper.idle(now);
        std::iter::from_fn(|| shaper.passes(now).then(|| shaper.charge(now, 1514))).count()
    };
    let mut shaper = Shaper::new(Rate::bits(100_000_000), 0);
    // 121 µs a packet.
    assert_eq!(at_once(&mut shaper, 1_000_000_000), 3, "the burst, and one that is on credit");
    assert_eq!(at_once(&mut shaper, 1_010_000_000), 82, "held back 10 ms ago");
    assert_eq!(at_once(&mut shaper, 1_040_000_000), 133, "16 ms are made up, not 30");
    assert_eq!(at_once(&mut shaper, 2_000_000_000), 3, "silent for long");
}

#[test]
fn the_narrower_of_two_rates_holds() {
    let rate = |text: &str| text.parse::<Rate>().expect(text);
    let both = rate("1Gbit,burst=64k").and(rate("2Gbit,20kpps,burst=3028"));
    assert_eq!(both, rate("1Gbit,20kpps,burst=3028"));
    assert_eq!(rate("5kpps").and(rate("1Mbit")), rate("1Mbit,5kpps"));
}

#[test]
fn packets_are_limited_too_and_a_burst_goes_at_once() {
    let rate: Rate = "20kpps".parse().expect("a rate");
    let (sent, _) = flood(rate, 100, 1_000);
    assert!((sent as f64 / 100.0 - 20_000.0).abs() <= 400.0, "{sent}");
    let mut shaper = Shaper::new("1Mbit,burst=15140".parse().expect("a rate"), 0);
    let now = 10_000_000_000;
    let at_once = (0..100).take_while(|_| shaper.police(now, 1514)).count();
    assert_eq!(at_once, 11, "the burst, and one that is on credit");
}

proptest! {
    /// Whatever is sent when, and however often the caller tries: in no interval does more pass
    /// than rate and burst allow.
    #[test]
    fn no_pattern_beats_the_limit(
        bits in 1_000_000u64..1_000_000_000,
        steps in prop::collection::vec((0u64..3_000_000, 60usize..1515), 1..300),
    ) {
        let rate = Rate { burst_bytes: 10_000, ..Rate::bits(bits) };
        let mut shaper = Shaper::new(rate, 0);
        let (mut now, mut passed) = (0, Vec::new());
        for (pause, bytes) in steps {
            now += pause;
            if shaper.police(now, bytes) {
                passed.push((now, bytes as u64));
            }
        }
        let late_bytes = bits / 8 * 2 / 1000;
        for (i, (start, _)) in passed.iter().enumerate() {
            let mut sum = 0;
            for (end, bytes) in &passed[i..] {
                sum += bytes;
                let earned = (u128::from(end - start) * u128::from(bits) / 8_000_000_000) as u64;
                prop_assert!(sum <= earned + 10_000 + late_bytes + 1514 + 2);
            }
        }
    }
}

#[test]
fn a_set_knows_its_addresses() {
    let rules: VnicRules = "rx tcp service 10.0.0.5:80; rx eth type 0x88b5".parse().expect("rules");
    let set = FilterSet::new(Direction::Receive, &rules.filters);
    assert!(set.has_address(0x0a00_0005, false) && !set.has_address(0x0a00_0006, false));
}

proptest! {
    /// Against a list that is sorted at the end: each flow's packets leave in order, each in its
    /// slot, and no two closer than the rate allows.
    #[test]
    fn flows_are_paced_as_a_sorted_list_would(
        offers in prop::collection::vec((0u64..4, 60usize..1515, 0u64..200_000), 1..200),
        mbits in prop::sample::select(vec![1u64, 10, 1000]),
        start_s in 0u64..3,
    ) {
        const SLOT_NS: u64 = 16_384;
        let rate = Rate::bits(mbits * 1_000_000);
        let mut now = start_s * 1_000_000_000;
        let mut pacer = Pacer::new(rate, 64, now);
        let mut clocks = [0u64; 4];
        // When each packet should leave, and when it left.
        let (mut wanted, mut left) = (Vec::new(), Vec::new());
        let mut accepted = [0usize; 4];
        for (number, (flow, bytes, pause)) in offers.into_iter().enumerate() {
            let clock = &mut clocks[flow as usize];
            let due = now.max(*clock);
            let gone = left.iter().filter(|(_, (f, _))| *f == flow).count();
            let is_behind = accepted[flow as usize] > gone;
            match pacer.offer(flow, bytes, now, (flow, number)) {
                Offered::Leaves(item) => {
                    prop_assert!(*clock <= now && !is_behind);
                    accepted[flow as usize] += 1;
                    left.push((now, item));
                    wanted.push((now, item.1));
                    *clock = due + bytes as u64 * 8_000 / mbits;
                }
                Offered::Waits => {
                    // A packet may wait behind another one of its flow for the rest of a slot.
                    prop_assert!(*clock > now || pacer.waiting() > 1);
                    accepted[flow as usize] += 1;
                    wanted.push((due.div_ceil(SLOT_NS) * SLOT_NS, number));
                    *clock = due + bytes as u64 * 8_000 / mbits;
                }
                Offered::Lost(_) => prop_assert_eq!(pacer.waiting(), 64),
            }
            prop_assert!(pacer.extract(|_| false).is_empty());
            let end = now + pause;
            while let Some(due) = pacer.due_ns().filter(|due| *due <= end) {
                let at = due.max(now);
                match pacer.take(at) {
                    Some(item) => left.push((at, item)),
                    // Too early: the packets in this slot leave in a later turn.
                    None => now = at + SLOT_NS,
                }
                if now > end {
                    break;
                }
            }
            now = now.max(end);
            while let Some(item) = pacer.take(now) {
                left.push((now, item));
            }
        }
        let waiting = pacer.waiting();
        let mut rest = pacer.extract(|(flow, _)| *flow == 0);
        prop_assert!(rest.iter().all(|(flow, _)| *flow == 0));
        let others = pacer.drain();
        prop_assert!(others.iter().all(|(flow, _)| *flow != 0));
        rest.extend(others);
        prop_assert_eq!(rest.len(), waiting);
        prop_assert_eq!(left.len() + rest.len(), wanted.len());
        for (at, (_, number)) in &left {
            let due = wanted.iter().find(|(_, n)| n == number).expect("offered").0;
            prop_assert!(*at >= due, "{} left at {}, due at {}", number, at, due);
        }
        let order = left.iter().map(|(_, item)| *item).chain(rest);
        let order: Vec<(u64, usize)> = order.collect();
        for flow in 0..4 {
            let own: Vec<_> = order.iter().filter(|(f, _)| *f == flow).map(|(_, n)| *n).collect();
            prop_assert!(own.is_sorted(), "flow {}: {:?}", flow, own);
        }
    }
}

/// Filters that overlap in many ways, and frames that match some of them.
const FILTERS: [&str; 8] = [
    "tx tcp service 10.0.0.5:80",
    "tx tcp service 10.0.0.5:80-90 peer 10.0.0.0/24",
    "tx ip service 10.0.0.5",
    "tx ip service 10.0.0.6",
    "tx eth type 0x88b5",
    "rx eth type 0x88b5",
    "rx ip proto 253 service 10.0.0.5",
    "rx ip proto 250-255",
];

fn frames() -> Vec<Vec<u8>> {
    let changed = |changes: &[(usize, u8)]| {
        let mut frame = segment();
        changes.iter().for_each(|(at, byte)| frame[*at] = *byte);
        frame
    };
    let ours = [(26, 10), (27, 0), (28, 0), (29, 6)];
    vec![
        segment(),
        changed(&[(35, 85)]),
        changed(&[(35, 99)]),
        changed(&ours),
        changed(&[(30, 11)]),
        changed(&[(23, 253)]),
        changed(&[(11, 4)]),
        changed(&[(12, 0x88), (13, 0xb5)]),
        arp(MAC, OURS, THEIRS),
        arp(MAC, THEIRS, OURS),
    ]
}

proptest! {
    /// Against a simple model: a queue may send what matches a filter of its own or of all queues,
    /// ARP for the addresses of the whole vNIC, and everything where there are no filters.
    #[test]
    fn queues_hold_what_is_assigned_to_them(
        chosen in prop::collection::vec((0..FILTERS.len(), prop::option::of(0usize..3)), 0..6),
        closed in any::<bool>(),
    ) {
        let mut rules = VnicRules::default();
        let mut held: Vec<(Option<usize>, Filter)> = Vec::new();
        for (index, queue) in chosen {
            let filter: Filter = FILTERS[index].parse().expect("a filter");
            held.push((queue, filter.clone()));
            match queue {
                Some(queue) => rules.assigned.push((queue, filter)),
                None => rules.filters.push(filter),
            }
        }
        if closed {
            rules.closed.push(Direction::Transmit);
        }
        prop_assert_eq!(rules.to_string().parse::<VnicRules>(), Ok(rules.clone()));
        let sends: Vec<_> = held.iter().filter(|(_, f)| f.direction() == Direction::Transmit).collect();
        for queue in 0..3 {
            let set = rules.set_of(Direction::Transmit, queue);
            prop_assert_eq!(set.is_none(), sends.is_empty() && !closed);
            let Some(set) = set else { continue };
            for frame in frames() {
                let header = Header::read(&frame).expect("a header");
                let own_mac = header.eth_src == MAC;
                let takes = |whose: &dyn Fn(&Option<usize>) -> bool| {
                    sends.iter().any(|(at, f)| whose(at) && own_mac && f.matches(&header))
                };
                let here = takes(&|at| at.is_none_or(|at| at == queue));
                let there = takes(&|_| true);
                let named = header.arp.is_some_and(|arp| {
                    FilterSet::new(Direction::Transmit, sends.iter().map(|(_, f)| f))
                        .has_address(arp.sender.into(), false)
                });
                let verdict = set.admits(&header, MAC);
                prop_assert_eq!(verdict.is_ok(), here || named, "queue {} of {}", queue, rules);
                prop_assert_eq!(verdict == Err(Foreign::Queue), there && !here && !named);
            }
        }
        // A received packet goes to the queue of the first matching filter.
        let steering = rules.steering();
        for frame in frames() {
            let header = Header::read(&frame).expect("a header");
            let receives = |f: &Filter| f.direction() == Direction::Receive && f.matches(&header);
            let wanted = held.iter().find_map(|(at, f)| at.filter(|_| receives(f)));
            let found = steering.iter().find(|(_, f)| f.matches(&header)).map(|(at, _)| *at);
            prop_assert_eq!(found, wanted);
        }
    }

    /// Whatever is sent, no queue exceeds its own rate, and all together do not exceed the vNIC's.
    /// A queue without a rate of its own has its part.
    #[test]
    fn queues_keep_to_their_rates_and_to_the_vnics(
        whole in prop::option::of(2u64..200),
        own in prop::collection::vec(prop::option::of(1u64..200), 1..4),
    ) {
        let mbit = |n: u64| Rate::bits(n * 1_000_000);
        let mut rules = VnicRules { tx_rate: whole.map(mbit), ..VnicRules::default() };
        for (queue, rate) in own.iter().enumerate() {
            let rates = Rates { tx: rate.map(mbit), ..Rates::default() };
            rules.queue_rates.insert(queue, rates);
        }
        rules.queue_rates.retain(|_, rates| !rates.is_empty());
        prop_assert_eq!(rules.to_string().parse::<VnicRules>(), Ok(rules.clone()));
        let queues = own.len();
        let mut sum = 0;
        for (queue, rate) in own.iter().enumerate() {
            let rates = rules.rates_of(queue, queues);
            prop_assert_eq!((rates.rx, rates.flow), (None, None));
            let part = whole.map(|n| n * 1_000_000 / queues as u64);
            let wanted = part.into_iter().chain(rate.map(|n| n * 1_000_000)).min();
            prop_assert_eq!(rates.tx.and_then(|rate| rate.bits_per_s), wanted);
            let Some(rate) = rates.tx else { continue };
            let (sent, _) = flood(rate, 1514, 100_000);
            let least = wanted.unwrap_or(0) / 8;
            let error = (sent as f64 - least as f64).abs() - 2.0 * 1514.0;
            prop_assert!(error <= 0.02 * least as f64, "{}: {} of {}", rate, sent, least);
            sum += sent;
        }
        if let Some(whole) = whole {
            let most = whole as f64 * 125_000.0 * 1.02 + queues as f64 * 2.0 * 1514.0;
            prop_assert!(sum as f64 <= most, "{} of {}", sum, most);
        }
    }
}

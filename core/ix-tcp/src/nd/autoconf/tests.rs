//! Against a naive model that keeps every lifetime as the RFCs say it, and one by one.
use super::*;
use crate::nd::RETRIES_MAX;
use crate::nd::temporary::ADVANCE_US;
use ix_wire::{
    Checksum, FrameHeader, IcmpPacket, MacAddr, Parsed, RxChecks, icmp::IcmpHeader, parse,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const MAC: MacAddr = [2, 0, 0, 0, 0, 7];
const HOUR: u64 = 3600 * SECOND_US;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn router(n: u8) -> IpAddr {
    IpAddr([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n])
}

fn prefix(n: u8) -> IpAddr {
    IpAddr([0x20, 1, 0xd, 0xb8, 0, 0, 0, n, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// An advertisement's frame, after RFC 4861 section 4.2.
fn frame(from: u8, flags: u8, lifetime_s: u16, options: &[u8]) -> Vec<u8> {
    let (src, dst) = (router(from), ipv6::ALL_NODES);
    let body = [&[0; 8], options].concat();
    let (eth_src, eth_dst) = ([2, 0, 0, 0, 0, 9], ipv6::group_mac(dst));
    let link = FrameHeader { eth_src, eth_dst, src, dst, ttl: 255, tos: 0, ident: 0 };
    let [high, low] = lifetime_s.to_be_bytes();
    let header = IcmpHeader { kind: 134, code: 0, rest: [61, flags, high, low] };
    let mut frame = vec![0; 62];
    link.emit_icmp(&mut frame, &header, body.len(), Checksum::of(&body));
    [frame, body].concat()
}

fn read(frame: &[u8]) -> Result<Advertisement, ix_wire::DropReason> {
    match parse(frame, RxChecks::default()) {
        Ok(Parsed::Icmp(packet)) if Advertisement::is(&packet) => {
            Advertisement::parse(frame, &packet)
        }
        other => panic!("{other:?}"),
    }
}

/// A prefix information option (section 4.6.2).
fn option(bits: u8, flags: u8, valid_s: u32, preferred_s: u32, prefix: IpAddr) -> Vec<u8> {
    let mut option = vec![3, 4, bits, flags];
    option.extend(valid_s.to_be_bytes());
    option.extend(preferred_s.to_be_bytes());
    option.extend([0; 4]);
    option.extend(prefix.0);
    option
}

fn said(from: u8, flags: u8, lifetime_s: u16, options: &[u8]) -> Advertisement {
    read(&frame(from, flags, lifetime_s, options)).expect("an advertisement")
}

fn host() -> Autoconf {
    Autoconf::new(Identifiers::OfMac(MAC), 1500, 0, 7)
}

fn private_host() -> Autoconf {
    Autoconf::new(Identifiers::Stable([9; 16]), 1500, 0, 7)
}

#[test]
fn an_advertisement_is_read() {
    let mut options = vec![1, 1, 2, 0, 0, 0, 0, 9, 5, 1, 0, 0, 0, 0, 5, 0x14];
    options.extend(option(64, 0xc0, 7200, 1800, ip("2001:db8:0:1::ffff")));
    // A name server (RFC 8106), and a kind that nobody knows.
    options.extend([[25, 3, 0, 0, 0, 0, 0, 9].as_slice(), &[1; 16]].concat());
    options.extend([200, 1, 0, 0, 0, 0, 0, 0]);
    let said = said(3, 0x08, 1800, &options);
    assert_eq!((said.router, said.hop_limit, said.lifetime_s), (router(3), 61, 1800));
    assert_eq!((said.preference, said.link), (Preference::High, Some([2, 0, 0, 0, 0, 9])));
    assert_eq!(said.mtu, Some(1300));
    let prefix = prefix(1);
    let (on_link, autonomous) = (true, true);
    let (valid_s, preferred_s) = (7200, 1800);
    let wanted = Prefix { prefix, bits: 64, on_link, autonomous, valid_s, preferred_s };
    assert_eq!(said.prefixes(), [wanted]);
}

/// RFC 4861 section 6.1.2; RFC 6980.
#[test]
fn nonsense_is_refused() {
    let good = || frame(3, 0, 1800, &[]);
    let refused = |frame: &[u8]| match parse(frame, RxChecks::default()) {
        Ok(Parsed::Icmp(packet)) => Advertisement::parse(frame, &packet).is_err(),
        Ok(_) => false,
        Err(_) => true,
    };
    assert!(!refused(&good()));
    let mut far = good();
    far[21] = 254;
    assert!(refused(&far));
    let mut atomic = good();
    atomic.splice(54..54, [58, 0, 0, 0, 0, 0, 0, 7]);
    (atomic[20], atomic[19]) = (44, atomic[19] + 8);
    assert!(refused(&atomic));
    for options in [
        &[1, 0, 2, 0, 0, 0, 0, 9][..],
        &[1, 2, 2, 0, 0, 0, 0, 9],
        &[1, 1, 3, 0, 0, 0, 0, 9],
        &[5],
        &option(129, 0xc0, 9, 9, prefix(1)),
        &option(64, 0xc0, 9, 10, prefix(1)),
        &option(64, 0xc0, 9, 9, prefix(1))[..24],
        &[3, 1, 64, 0xc0, 0, 0, 0, 9],
    ] {
        assert!(refused(&frame(3, 0, 1800, options)), "{options:?}");
    }
}

#[test]
fn routers_are_asked_until_one_serves() {
    let mut host = host();
    let mut asked = Vec::new();
    while asked.len() < 12 {
        let now_us = host.deadline();
        if host.tick(now_us, |_| panic!("no address")) {
            asked.push(now_us);
        }
    }
    assert!(asked[0] < SECOND_US);
    let pauses: Vec<u64> = asked.windows(2).map(|two| two[1] - two[0]).collect();
    for (at, pause_us) in pauses.iter().enumerate() {
        let wanted_us = (ASK_US << at).min(ASK_US_MAX);
        assert!(pause_us.abs_diff(wanted_us) <= wanted_us / 10, "{pauses:?}");
    }
    let now_us = asked[11] + 1;
    host.on_advertisement(&said(1, 0, 0, &[]), now_us, |_| {});
    assert_ne!(host.deadline(), u64::MAX, "it is no default router");
    host.on_advertisement(&said(1, 0, 100, &[]), now_us, |_| {});
    assert_eq!((host.deadline(), host.router()), (now_us + 100 * SECOND_US, Some(router(1))));
    // It goes without a word: somebody else is asked for at once.
    assert!(host.tick(now_us + 100 * SECOND_US, |_| {}));
    assert_eq!(host.router(), None);
}

/// RFC 4191 section 3.2, RFC 4861 sections 6.3.6 and 7.2.5.
#[test]
fn the_best_router_serves() {
    let mut host = host();
    let hears = |host: &mut Autoconf, n, flags| {
        host.on_advertisement(&said(n, flags, 100, &[]), 0, |_| {});
    };
    // In turn: low, reserved (as medium), high.
    hears(&mut host, 1, 0x18);
    assert_eq!(host.router(), Some(router(1)));
    hears(&mut host, 2, 0x10);
    hears(&mut host, 3, 0);
    assert_eq!(host.router(), Some(router(2)), "the first of two");
    hears(&mut host, 4, 0x08);
    assert_eq!(host.router(), Some(router(4)));
    host.is_silent(router(4));
    assert_eq!(host.router(), Some(router(2)));
    host.is_no_router(router(2));
    assert_eq!(host.router(), Some(router(3)));
    hears(&mut host, 4, 0x08);
    assert_eq!(host.router(), Some(router(4)), "it is there again");
    // Many of low preference do not push out a better one, and a better one finds room.
    (10..90).for_each(|n| hears(&mut host, n, 0x18));
    assert_eq!((host.router(), host.routers.len()), (Some(router(4)), ROUTERS_MAX));
    host.is_no_router(router(4));
    (0..8).for_each(|n| hears(&mut host, 100 + n, 0));
    hears(&mut host, 200, 0x08);
    assert_eq!(host.router(), Some(router(200)));
}

#[test]
fn parameters_within_their_bounds_are_taken() {
    let mut host = host();
    assert_eq!((host.mtu(), host.hop_limit()), (None, None));
    for (told, then) in [(1400u32, 1400), (1279, 1400), (1501, 1400), (1280, 1280), (1500, 1500)] {
        let option = [&[5, 1, 0, 0][..], &told.to_be_bytes()].concat();
        host.on_advertisement(&said(1, 0, 100, &option), 0, |_| {});
        assert_eq!((host.mtu(), host.hop_limit()), (Some(then), Some(61)));
    }
    assert_eq!(host.link_local(), ip("fe80::ff:fe00:7"));
}

/// RFC 4862 section 5.5.3.
#[test]
fn who_is_not_known_cannot_end_an_address() {
    let mut host = host();
    let tell = |host: &mut Autoconf, now_us, valid_s, preferred_s| {
        let option = option(64, 0x40, valid_s, preferred_s, prefix(1));
        host.on_advertisement(&said(1, 0, 9000, &option), now_us, |_| {});
    };
    tell(&mut host, 0, 100_000, 50_000);
    let address = ip("2001:db8:0:1:0:ff:fe00:7");
    assert_eq!(host.addresses(0).collect::<Vec<_>>(), [(address, true)]);
    tell(&mut host, 0, 0, 0);
    assert_eq!(host.addresses(0).collect::<Vec<_>>(), [(address, false)], "deprecated at once");
    assert_eq!(host.made[0].until_us, 2 * HOUR);
    tell(&mut host, HOUR, 10, 10);
    assert_eq!(host.made[0].until_us, 2 * HOUR, "it is not shortened further");
    tell(&mut host, HOUR, 7000, 10);
    assert_eq!(host.made[0].until_us, HOUR + 7000 * SECOND_US, "but extended");
    assert_eq!(host.taken(address, 0), None);
    assert_eq!(host.addresses(HOUR).count(), 0);
    tell(&mut host, HOUR, 9000, 10);
    assert_eq!(host.addresses(HOUR).count(), 0, "another host has it");
}

/// RFC 7217 section 6: another one is tried three times, for each prefix on its own.
#[test]
fn another_address_is_tried_three_times() {
    let mut host = private_host();
    let option = [option(64, 0x40, 9000, 9000, prefix(1)), option(64, 0x40, 9000, 9000, prefix(2))];
    let tell = |host: &mut Autoconf| {
        let mut begun = Vec::new();
        host.on_advertisement(&said(1, 0, 9000, &option.concat()), 0, |change| begun.push(change));
        begun
    };
    assert_eq!(tell(&mut host).len(), 2);
    let mut all: Vec<IpAddr> = host.made().collect();
    let other = all[1];
    for _ in 0..RETRIES_MAX {
        let made = host.made().next().expect("an address");
        let another = host.taken(made, 0).expect("another one");
        assert_eq!(host.made().collect::<Vec<_>>(), [another, other]);
        assert!(another.same_network(prefix(1), 64) && !all.contains(&another));
        all.push(another);
        assert_eq!(tell(&mut host), [], "the prefix has its address");
    }
    let last = host.made().next().expect("an address");
    assert_eq!(host.taken(last, 0), None);
    assert_eq!(host.addresses(0).collect::<Vec<_>>(), [(other, true)]);
    assert_eq!(tell(&mut host), []);
    // The same on the link, and after a new start the same addresses as at first.
    let at_first = host.link_local();
    assert_eq!(host.taken(at_first, 0), Some(host.link_local()));
    assert_ne!(host.link_local(), at_first);
    let mut again = private_host();
    assert_eq!(again.link_local(), at_first);
    tell(&mut again);
    assert_eq!(again.made().collect::<Vec<_>>(), all[..2]);
}

/// A prefix of which addresses are made, with its lifetimes in seconds.
fn told(host: &mut Autoconf, now_us: u64, valid_s: u32, preferred_s: u32) -> Vec<AddressChange> {
    let mut heard = Vec::new();
    let said = said(1, 0, 1800, &option(64, 0xc0, valid_s, preferred_s, prefix(1)));
    host.on_advertisement(&said, now_us, |change| heard.push(change));
    heard
}

/// Ten days with a router that is heard each half hour. RFC 8981 sections 3.4, 3.5 and 3.8.
#[test]
fn temporary_addresses_follow_each_other_in_time() {
    const DAY: u64 = 24 * HOUR;
    let mut host = private_host().with_temporary([3; 16]);
    // Of each: when it began, was deprecated, and ended.
    let mut lives: Vec<(IpAddr, [u64; 3])> = Vec::new();
    let (mut now_us, mut next_told_us) = (0, 0);
    while now_us < 10 * DAY {
        let mut heard = Vec::new();
        if now_us == next_told_us {
            heard = told(&mut host, now_us, 30 * 86_400, 7 * 86_400);
            next_told_us += HOUR / 2;
        } else {
            host.tick(now_us, |change| heard.push(change));
        }
        let stable = host.addresses(now_us).next().expect("an address").0;
        for change in heard {
            match change {
                AddressChange::Begins(address) if address != stable => {
                    assert!(address.same_network(stable, 64));
                    assert!(lives.iter().all(|(other, _)| *other != address), "a new one");
                    lives.push((address, [now_us, 0, 0]));
                }
                AddressChange::Begins(_) => {}
                AddressChange::Deprecated(address) | AddressChange::Ends(address) => {
                    let life = lives.iter_mut().find(|(other, _)| *other == address);
                    let (_, times) = life.expect("a temporary one");
                    let ends = matches!(change, AddressChange::Ends(_));
                    times[1 + usize::from(ends)] = now_us;
                }
            }
        }
        let all: Vec<_> = host.temporary(now_us).collect();
        assert_eq!(Some(all[0].0), lives.last().map(|(address, _)| *address), "the newest first");
        assert!(all[0].1 && (1..=4).contains(&all.len()), "{all:?}");
        assert!(host.deadline() > now_us);
        now_us = host.deadline().min(next_told_us);
    }
    assert!((10..=17).contains(&lives.len()), "{}", lives.len());
    let mut spans = BTreeMap::new();
    for pair in lives.windows(2) {
        let [(_, [begin, deprecated, end]), (_, [next, ..])] = [pair[0], pair[1]];
        if end > 0 {
            assert_eq!(end - begin, 2 * DAY);
        }
        if deprecated > 0 {
            assert!((DAY / 5 * 3..=DAY).contains(&(deprecated - begin)));
            assert_eq!(next, deprecated - 5 * SECOND_US, "the next one is there before");
            spans.insert(deprecated - begin, ());
        }
    }
    assert!(spans.len() > 5, "each lasts for another time");
}

#[test]
fn a_prefix_that_is_soon_deprecated_has_no_temporary_address() {
    let mut host = private_host().with_temporary([3; 16]);
    let begun = told(&mut host, 0, 100, 5);
    assert_eq!(begun, [AddressChange::Begins(host.addresses(0).next().expect("one").0)]);
    assert_eq!(host.temporary(0).count(), 0);
    // Longer from now on.
    let begun = told(&mut host, 0, 100, 6);
    let temporary = host.temporary(0).next().expect("one").0;
    assert_eq!(begun, [AddressChange::Begins(temporary)]);
    // It is deprecated and ends with its prefix.
    assert_eq!(host.temporary(6 * SECOND_US).next(), Some((temporary, false)));
    let mut heard = Vec::new();
    host.tick(6 * SECOND_US, |change| heard.push(change));
    let stable = host.addresses(0).next().expect("one").0;
    assert_eq!(heard, [stable, temporary].map(AddressChange::Deprecated));
    heard.clear();
    host.tick(100 * SECOND_US, |change| heard.push(change));
    assert_eq!(heard, [stable, temporary].map(AddressChange::Ends));
    assert_eq!(host.made().count(), 0);
}

#[test]
fn where_other_hosts_have_temporary_addresses_others_are_tried() {
    let mut host = private_host().with_temporary([3; 16]);
    told(&mut host, 0, 1000, 1000);
    let mut seen = vec![host.addresses(0).next().expect("one").0];
    for _ in 0..RETRIES_MAX {
        let temporary = host.temporary(0).next().expect("one").0;
        assert!(!seen.contains(&temporary));
        seen.push(temporary);
        let another = host.taken(temporary, 0).expect("another one");
        assert_eq!(host.temporary(0).collect::<Vec<_>>(), [(another, true)]);
    }
    let last = host.temporary(0).next().expect("one").0;
    assert_eq!(host.taken(last, 0), None);
    assert_eq!((host.temporary(0).count(), host.addresses(0).count()), (0, 1));
    // None is made any more.
    told(&mut host, 1, 2_000, 2_000);
    assert_eq!(host.temporary(1).count(), 0);
    // Its time and its group end like those of others.
    assert!(host.made().any(|address| address == last));
}

#[test]
fn without_the_key_nothing_is_known_of_the_next_one() {
    let first = |key: u8| {
        let mut host = private_host().with_temporary([key; 16]);
        told(&mut host, 0, 1000, 1000);
        host.temporary(0).next().expect("one").0
    };
    assert_ne!(first(1), first(2));
    assert_eq!(private_host().temporary(0).count(), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Said { from: u8, lifetime_s: u16, of: u8, flags: u8, bits: u8, valid_s: u32, preferred_s: u32 },
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lifetime = || prop_oneof![Just(0u32), 1u32..30_000, Just(7200), Just(INFINITE_S)];
    let bits = prop_oneof![4 => Just(64u8), 1 => 48u8..80];
    let flags = prop_oneof![Just(0xc0u8), Just(0x40), Just(0x80), Just(0)];
    let who = (1u8..5, prop_oneof![Just(0u16), 1u16..9000]);
    let words = (who, 0u8..6, flags, bits, lifetime(), lifetime());
    let said = words.prop_map(|((from, lifetime_s), of, flags, bits, a, b)| {
        let (valid_s, preferred_s) = (a.max(b), a.min(b));
        Step::Said { from, lifetime_s, of, flags, bits, valid_s, preferred_s }
    });
    let step = prop_oneof![2 => said, 1 => (0u64..5 * HOUR).prop_map(Step::Wait)];
    prop::collection::vec(step, 1..50)
}

proptest! {
    /// Routers, prefixes of the link and addresses are those whose lifetimes, each on its own line
    /// of time, are not over; every address begins and ends once, and memory stays bounded.
    #[test]
    fn lifetimes_are_those_of_the_rfcs(steps in steps(), is_private: bool, is_watched: bool) {
        let mut host = if is_private { private_host() } else { host() };
        if is_watched {
            host = host.with_temporary([5; 16]);
        }
        let mut now_us = 0;
        let mut routers = BTreeMap::<u8, u64>::new();
        let mut links = BTreeMap::<(u8, u8), u64>::new();
        // Until when an address is valid and preferred.
        let mut made = BTreeMap::<u8, (u64, u64)>::new();
        let mut live = Vec::new();
        let end = |now_us: u64, s: u32| match s {
            INFINITE_S => u64::MAX,
            s => now_us + u64::from(s) * SECOND_US,
        };
        for step in steps {
            let mut heard = Vec::new();
            match step {
                Step::Said { from, lifetime_s, of, flags, bits, valid_s, preferred_s } => {
                    let option = option(bits, flags, valid_s, preferred_s, prefix(of));
                    let said = said(from, 0, lifetime_s, &option);
                    host.on_advertisement(&said, now_us, |change| heard.push(change));
                    match lifetime_s {
                        0 => routers.remove(&from),
                        s => routers.insert(from, end(now_us, s.into())),
                    };
                    if flags & 0x80 != 0 {
                        // Shorter prefixes of these are the same one.
                        let of = if bits < 62 { 0 } else { of };
                        let of = if bits == 62 { of & !3 } else { of };
                        let of = if bits == 63 { of & !1 } else { of };
                        match valid_s {
                            0 => links.remove(&(of, bits)),
                            s => links.insert((of, bits), end(now_us, s)),
                        };
                    }
                    if flags & 0x40 != 0 && bits == 64 {
                        let until_us = end(now_us, valid_s);
                        let room = made.len() < ADDRESSES_MAX;
                        match made.get_mut(&of) {
                            Some((old_us, preferred_us)) => {
                                *preferred_us = end(now_us, preferred_s);
                                let left_us = *old_us - now_us;
                                if until_us - now_us > 2 * HOUR || until_us > *old_us {
                                    *old_us = until_us;
                                } else if left_us > 2 * HOUR {
                                    *old_us = now_us + 2 * HOUR;
                                }
                            }
                            None if valid_s > 0 && room => {
                                made.insert(of, (until_us, end(now_us, preferred_s)));
                            }
                            None => {}
                        }
                    }
                }
                Step::Wait(us) => {
                    now_us += us;
                    host.tick(now_us, |change| heard.push(change));
                }
            }
            routers.retain(|_, until_us| *until_us > now_us);
            links.retain(|_, until_us| *until_us > now_us);
            made.retain(|_, (until_us, _)| *until_us > now_us);
            for change in heard {
                match change {
                    AddressChange::Begins(address) => {
                        prop_assert!(!live.contains(&address));
                        live.push(address);
                    }
                    AddressChange::Deprecated(address) => prop_assert!(live.contains(&address)),
                    AddressChange::Ends(address) => {
                        let before = live.len();
                        live.retain(|live| *live != address);
                        prop_assert_eq!(live.len() + 1, before);
                    }
                }
            }
            prop_assert!(host.deadline() > now_us);
            prop_assert_eq!(host.router().is_some(), !routers.is_empty());
            prop_assert!(host.router().is_none_or(|router| routers.contains_key(&router.0[15])));
            let mut wanted: Vec<(u8, bool)> =
                made.iter().map(|(of, (_, preferred_us))| (*of, now_us < *preferred_us)).collect();
            let mut got: Vec<(u8, bool)> =
                host.addresses(now_us).map(|(address, fresh)| (address.0[7], fresh)).collect();
            wanted.sort();
            got.sort();
            prop_assert_eq!(&got, &wanted);
            prop_assert_eq!(host.made().count(), live.len());
            prop_assert!(host.made().all(|address| live.contains(&address)));
            prop_assert!(is_watched || live.len() == wanted.len());
            // Temporary ones are of a prefix that has one for good, and each of these has one that
            // may begin connections, if it may for longer than the next one takes.
            let temporary: Vec<(u8, bool)> =
                host.temporary(now_us).map(|(address, fresh)| (address.0[7], fresh)).collect();
            prop_assert!(temporary.iter().all(|(of, _)| made.contains_key(of)));
            for (of, (_, preferred_us)) in &made {
                let needs = is_watched && *preferred_us > now_us + ADVANCE_US;
                prop_assert!(!needs || temporary.contains(&(*of, true)), "{}", of);
                prop_assert!(*preferred_us > now_us || !temporary.contains(&(*of, true)));
            }
            if links.len() < PREFIXES_MAX {
                for of in 0..6 {
                    let to = IpAddr({
                        let mut octets = prefix(of).0;
                        octets[8] = 0x55;
                        octets
                    });
                    let held = links.keys().any(|(n, bits)| prefix(*n).same_network(to, *bits));
                    let got = host.on_link().any(|(prefix, bits)| prefix.same_network(to, bits));
                    prop_assert_eq!(got, held);
                }
            }
        }
    }

    /// Any octets are read or refused.
    #[test]
    fn anything_is_read_or_refused(options in prop::collection::vec(any::<u8>(), 0..120)) {
        let frame = frame(1, 0, 9, &options);
        let Ok(Parsed::Icmp(packet)) = parse(&frame, RxChecks::default()) else { panic!() };
        let packet: IcmpPacket = packet;
        if let Ok(said) = Advertisement::parse(&frame, &packet) {
            prop_assert!(said.prefixes().len() <= ix_wire::ra::PREFIXES_MAX);
            let mut host = host();
            host.on_advertisement(&said, 0, |_| {});
        }
    }
}

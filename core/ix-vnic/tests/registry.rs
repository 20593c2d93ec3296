//! The registry: who may do what, which holder a refusal names, and random histories against a
//! model.
use ix_vnic::{Capability, Direction, Filter, Policy, Refusal, Registry};
use proptest::prelude::*;
use std::net::IpAddr;

fn key(n: u8) -> Capability {
    Capability::new([n; 16])
}

fn filter(text: &str) -> Filter {
    text.parse().expect(text)
}

fn registry() -> Registry {
    let mut registry = Registry::new(Policy::default());
    let linux = ["10.0.0.1", "2001:db8::1", "ff02::1"];
    registry.set_linux(linux.map(|ip| ip.parse::<IpAddr>().expect(ip)).into());
    registry
}

#[test]
fn what_is_linux_s_or_another_s_is_refused_by_name() {
    let mut registry = registry();
    registry.grant("web", filter("rx tcp service 10.0.0.5:80-90"), key(1)).expect("free");
    registry.grant("web", filter("rx tcp service 10.0.0.5:85"), key(2)).expect("its own");
    registry.grant("web", filter("rx tcp service [2001:db8::5]:80"), key(8)).expect("free");
    for (text, says) in [
        ("rx tcp service 10.0.0.5:90-99", "a filter of web: rx tcp service 10.0.0.5:80-90"),
        ("rx ip service 10.0.0.4-10.0.0.6", "a filter of web"),
        ("rx udp service 10.0.0.1:53", "Linux, which has 10.0.0.1"),
        ("tx ip service 10.0.0.0/8", "Linux, which has 10.0.0.1"),
        ("rx tcp service *:8080", "Linux, which has 10.0.0.1"),
        ("rx eth", "Linux, which receives all other frames of type 0x0800"),
        ("tx eth type 0x86dd", "0x86dd"),
        ("rx tcp6 service [2001:db8::1]:80", "Linux, which has 2001:db8::1"),
        ("tx ip6 service 2001:db8::/64", "Linux, which has 2001:db8::1"),
        ("rx udp6 service *:53", "Linux, which has 2001:db8::1"),
        ("rx ip6 service ff02::/16", "Linux, which has ff02::1"),
        ("rx tcp6 service [2001:db8::5]:1-99", "a filter of web: rx tcp6 service [2001:db8::5]:80"),
    ] {
        let refusal = registry.grant("kv", filter(text), key(9)).expect_err(text).to_string();
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
    // The other direction, and the addresses beside it, are free.
    registry.grant("kv", filter("tx tcp service 10.0.0.5:80"), key(3)).expect("tx");
    registry.grant("kv", filter("rx udp service 10.0.0.5:80"), key(4)).expect("udp");
    registry.grant("kv", filter("rx eth type 0x88b5"), key(5)).expect("a protocol of its own");
    let mut lax = Registry::new(Policy { may_overlap: true, ..Policy::default() });
    lax.grant("a", filter("rx eth"), key(1)).expect("allowed");
    lax.grant("b", filter("rx tcp"), key(2)).expect("allowed");
}

#[test]
fn a_filter_is_assigned_to_a_queue_that_there_is_and_flows_to_none() {
    let mut registry = registry();
    let vnic = registry.create_vnic("web", 2, key(1)).expect("a vNIC");
    let sends = registry.grant("web", filter("tx tcp service 10.0.0.5:80"), key(2)).expect("free");
    assert_eq!(registry.assign_queue(sends, Some(0)), Err(Refusal::Unassigned(sends)));
    registry.assign_by_id(sends, Some(vnic)).expect("assigned");
    assert_eq!(registry.assign_queue(sends, Some(1)), Ok(()));
    let beyond = registry.assign_queue(sends, Some(2)).expect_err("beyond").to_string();
    assert_eq!(beyond, "vNIC `web` has no queue 2: its queues are 0 to 1");
    let queue = |registry: &Registry| registry.rules(Direction::Transmit)[0].queue;
    assert_eq!((registry.queue_of(sends), queue(&registry)), (Some(1), Some(1)), "as before");
    assert_eq!(registry.assign_queue(sends, None), Ok(()));
    assert_eq!(queue(&registry), None);
    // Received flows go to the queue of their flow group, whatever filter matches them.
    for (n, text) in [
        "tcp service 10.0.0.5",
        "udp service 10.0.0.5:53",
        "ip service 10.0.0.5",
        "ip proto 6 service 10.0.0.5",
        "ip proto 1-20 service 10.0.0.5",
        "tcp service 2001:db8::5",
        "ip6 proto 58 service 2001:db8::5",
    ]
    .into_iter()
    .enumerate()
    {
        let id = registry.grant("web", filter(&format!("rx {text}")), key(10 + n as u8));
        let id = id.expect(text);
        registry.assign_by_id(id, Some(vnic)).expect("assigned");
        let refusal = registry.assign_queue(id, Some(0)).expect_err(text).to_string();
        assert!(refusal.contains("which go to the queue of their flow group"), "{refusal}");
        assert_eq!(registry.assign_queue(id, None), Ok(()), "{text}");
    }
    let arp = Registry::new(Policy { may_overlap: true, ..Policy::default() });
    let mut registry = [registry, arp];
    for (registry, text) in
        registry.iter_mut().zip(["rx ip proto 253 service 10.0.0.5", "rx eth type 0x88b5"])
    {
        let vnic = registry.vnic_named("web");
        let vnic = vnic.or_else(|_| registry.create_vnic("web", 2, key(40))).expect("a vNIC");
        let id = registry.grant("web", filter(text), key(41)).expect("free");
        registry.assign_by_id(id, Some(vnic)).expect("assigned");
        assert_eq!(registry.assign_queue(id, Some(1)), Ok(()), "{text}");
        // Assigned elsewhere, it is for all queues again.
        registry.assign_by_id(id, Some(vnic)).expect("assigned");
        assert_eq!(registry.queue_of(id), None);
    }
    let [_, mut lax] = registry;
    let all = lax.grant("web", filter("rx eth"), key(50)).expect("allowed");
    let vnic = lax.vnic_named("web").expect("there");
    lax.assign_by_id(all, Some(vnic)).expect("assigned");
    assert!(matches!(lax.assign_queue(all, Some(0)), Err(Refusal::Flows(_))), "it has ARP");
}

#[test]
fn limits_and_names_are_kept() {
    let policy =
        Policy { vnics_max: 2, queues_max: 4, filters_max: 2, derived_max: 2, may_overlap: false };
    let mut registry = Registry::new(policy);
    assert_eq!(registry.create_vnic("a", 0, key(1)), Err(Refusal::Queues(0, 4)));
    assert_eq!(registry.create_vnic("a", 5, key(1)), Err(Refusal::Queues(5, 4)));
    for name in ["", "far-too-long", "UP", "a b", "a/b", "é"] {
        let refusal = registry.create_vnic(name, 1, key(1));
        assert_eq!(refusal, Err(Refusal::BadName(name.to_owned())));
    }
    registry.create_vnic("a", 4, key(1)).expect("one");
    assert_eq!(registry.create_vnic("a", 1, key(2)), Err(Refusal::NameTaken("a".to_owned())));
    registry.create_vnic("b", 1, key(2)).expect("two");
    assert_eq!(registry.create_vnic("c", 1, key(3)), Err(Refusal::TooManyVnics(2)));
    registry.grant("a", filter("rx tcp service 10.0.0.5:1"), key(4)).expect("one");
    registry.grant("a", filter("rx tcp service 10.0.0.5:2"), key(5)).expect("two");
    let third = registry.grant("a", filter("rx tcp service 10.0.0.5:3"), key(6));
    assert_eq!(third, Err(Refusal::TooManyFilters(2)));
}

/// A process with a capability uses up the limits of its holder only.
#[test]
fn derived_filters_are_their_holders_to_use_up() {
    let policy = Policy { filters_max: 3, derived_max: 2, ..Policy::default() };
    let mut registry = Registry::new(policy);
    registry.grant("a", filter("rx tcp service 10.0.0.5"), key(1)).expect("granted");
    registry.grant("b", filter("rx tcp service 10.0.0.6"), key(2)).expect("granted");
    registry.derive(&key(1), None, key(3)).expect("one");
    // The capability was passed on: filters derived with it count for `a` as well.
    registry.derive(&key(3), None, key(4)).expect("two");
    for from in [1, 3, 4] {
        let refusal = registry.derive(&key(from), None, key(5));
        assert_eq!(refusal, Err(Refusal::TooManyDerived("a".to_owned(), 2)), "{from}");
    }
    registry.derive(&key(2), None, key(5)).expect("another's");
    registry.grant("c", filter("rx tcp service 10.0.0.7"), key(6)).expect("granted");
    let fourth = registry.grant("c", filter("rx tcp service 10.0.0.8"), key(7));
    assert_eq!(fourth, Err(Refusal::TooManyFilters(3)));
    registry.revoke(&key(3)).expect("both");
    registry.derive(&key(1), None, key(7)).expect("there is room again");
}

#[test]
fn a_capability_is_all_that_counts_and_ends_with_what_it_came_from() {
    let mut registry = registry();
    let a = registry.create_vnic("a", 1, key(1)).expect("a vNIC");
    let b = registry.create_vnic("b", 1, key(2)).expect("a vNIC");
    registry.grant("a", filter("rx tcp service 10.0.0.5:80-90"), key(10)).expect("granted");
    registry.assign(&key(10), a).expect("its own");
    // The capability was passed on: a part goes to another vNIC, before the whole.
    let part = filter("rx tcp service 10.0.0.5:85");
    registry.derive(&key(10), Some(part.clone()), key(11)).expect("narrower");
    registry.derive(&key(11), None, key(12)).expect("the same again");
    registry.assign(&key(12), b).expect("handed on");
    let rules = registry.rules(Direction::Receive);
    assert_eq!(rules.iter().map(|rule| rule.vnic).collect::<Vec<_>>(), [b, a]);
    let wider = registry.derive(&key(11), Some(filter("rx tcp service 10.0.0.5:84-85")), key(13));
    assert_eq!(wider, Err(Refusal::Wider(part)));
    // Forged, a vNIC's, of another kind.
    for wrong in [&key(99), &key(1)] {
        assert_eq!(registry.assign(wrong, b), Err(Refusal::NoSuchCapability));
        assert_eq!(registry.revoke(wrong), Err(Refusal::NoSuchCapability));
        assert_eq!(registry.derive(wrong, None, key(14)), Err(Refusal::NoSuchCapability));
    }
    assert_eq!(registry.vnic_of(&key(10)), Err(Refusal::NoSuchCapability));
    assert_eq!(registry.revoke(&key(11)), Ok(2));
    assert_eq!(registry.revoke(&key(12)), Err(Refusal::NoSuchCapability));
    assert_eq!(registry.rules(Direction::Receive).len(), 1);
    assert!(registry.delete_vnic(a) && !registry.delete_vnic(a));
    assert!(registry.rules(Direction::Receive).is_empty(), "Linux has it");
    registry.assign(&key(10), b).expect("the capability is still good");
    assert_eq!(registry.rules(Direction::Receive)[0].vnic, b);
}

#[test]
fn capabilities_do_not_show_themselves() {
    let capability: Capability = "00112233445566778899aabbccddeeff".parse().expect("one");
    assert_eq!(capability.reveal(), "00112233445566778899aabbccddeeff");
    assert!(!format!("{capability:?}").contains('2'));
    assert!(capability.is(&capability.clone()) && !capability.is(&key(0)));
    let mut last = *b"00112233445566778899aabbccddeefe";
    assert!(!capability.is(&std::str::from_utf8(&last).expect("text").parse().expect("one")));
    last[0] = b'+';
    assert!(std::str::from_utf8(&last).expect("text").parse::<Capability>().is_err());
}

proptest! {
    /// Random histories of grants, derivations and revocations: never more is assigned than was
    /// granted and not revoked, and the filters of two holders never overlap.
    #[test]
    fn no_history_mixes_holders(steps in prop::collection::vec((0u8..4, 0u8..8, 0u16..6, 0u16..3), 0..60)) {
        let mut registry = registry();
        let vnics: Vec<_> = (0..3u8)
            .map(|n| registry.create_vnic(&format!("v{n}"), 1, key(200 + n)).expect("a vNIC"))
            .collect();
        for (keys, (what, who, low, width)) in (0u8..).zip(steps) {
            let text = format!("rx tcp service 10.0.0.5:{}-{}", low, low + width);
            match what {
                0 => drop(registry.grant(&format!("h{}", who % 3), filter(&text), key(keys))),
                1 => drop(registry.derive(&key(who), Some(filter(&text)), key(keys))),
                2 => drop(registry.assign(&key(who), vnics[usize::from(who) % 3])),
                _ => drop(registry.revoke(&key(who))),
            }
            let all = registry.filters();
            for (i, a) in all.iter().enumerate() {
                for b in &all[i + 1..] {
                    prop_assert!(a.holder == b.holder || !a.filter.overlaps(&b.filter));
                }
                if let Some(parent) = a.parent {
                    let parent = all.iter().find(|f| f.id == parent).expect("parents outlive");
                    prop_assert!(parent.filter.contains(&a.filter));
                }
            }
        }
    }
}

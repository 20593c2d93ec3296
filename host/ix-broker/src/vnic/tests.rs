//! The vNIC of a dataplane, with devices that take every filter, and with some that do not.
use super::*;
use ix_proto::Codec;
use std::net::Ipv4Addr;

/// Devices that take every filter.
struct Calm;

impl FilteredDevices for Calm {
    fn set_receive_filters(&mut self, _filters: Option<&[Filter]>) -> Result<(), String> {
        Ok(())
    }

    fn filters_in_hardware(&self) -> Vec<Filter> {
        Vec::new()
    }
}

/// Devices that refuse a filter for one port, after they have taken the others.
#[derive(Default)]
struct Picky {
    in_force: Option<Vec<Filter>>,
    /// They refuse all from now on.
    broken: bool,
}

impl FilteredDevices for Picky {
    fn set_receive_filters(&mut self, wanted: Option<&[Filter]>) -> Result<(), String> {
        self.in_force = wanted.map(<[Filter]>::to_vec);
        let texts: Vec<_> = wanted.iter().copied().flatten().map(Filter::to_string).collect();
        let refused = texts.iter().any(|text| text.ends_with(":666"));
        self.broken |= refused && texts.len() > 2;
        if refused || self.broken { Err("the kernel refuses".to_owned()) } else { Ok(()) }
    }

    fn filters_in_hardware(&self) -> Vec<Filter> {
        Vec::new()
    }
}

#[test]
fn what_the_kernel_refuses_is_refused_and_taken_back_as_a_whole() {
    let (mut vnic, mut devices) = (vnic(), Picky::default());
    let both = filters("rx tcp service 10.0.0.5:80;rx tcp service 10.0.0.5:666");
    let refusal = vnic.create(&mut devices, &both, None, None, vec![]).err().expect("refused");
    assert_eq!(refusal, Refusal::Vnic("the kernel refuses".to_owned()));
    assert_eq!(vnic.own().filters, [], "none of both");
    assert_eq!((vnic.own().rx_filtered, vnic.rules()), (false, VnicRules::default()));
    assert_eq!(devices.in_force, None, "as before");
    // Nothing of it is in the way of what the kernel takes.
    let change = vnic.create(&mut devices, &both[..1], None, None, vec![]);
    let key = key_of(change);
    assert_eq!(devices.in_force.as_deref(), Some(&both[..1]), "in force when it is answered");
    let bad = filters("rx tcp service 10.0.0.5:666");
    assert!(vnic.create(&mut devices, &bad, None, None, vec![]).is_err());
    assert_eq!(devices.in_force.as_deref(), Some(&both[..1]));
    assert_eq!(vnic.own().filters.len(), 1);
    vnic.revoke(&mut devices, &key).expect("its own");
    assert_eq!(devices.in_force.as_deref(), Some(&[][..]), "closed");
    vnic.remove(&mut devices, None).expect("lifted");
    assert_eq!(devices.in_force, None);
}

/// What was granted while there were no devices may be refused by those that come.
#[test]
fn filters_that_other_devices_refuse_give_way_to_those_before() {
    let (mut vnic, mut devices) = (vnic(), Picky::default());
    let good = filters("rx tcp service 10.0.0.5:80");
    vnic.create(&mut Calm, &good, None, None, vec![]).expect("taken");
    let before = vnic.granted();
    assert_eq!(vnic.renew(&mut devices, &before), Ok(None));
    assert_eq!(devices.in_force.as_deref(), Some(&good[..]));
    let bad = filters("rx tcp service 10.0.0.5:666");
    vnic.create(&mut Calm, &bad, None, None, vec![]).expect("nobody refuses");
    let rates = RateChanges {
        tx: RateChange::Set("1Mbit".parse().expect("a rate")),
        ..RateChanges::default()
    };
    vnic.rate(None, rates).expect("a rate");
    assert_eq!(vnic.renew(&mut devices, &before), Ok(Some("the kernel refuses".to_owned())));
    assert_eq!(devices.in_force.as_deref(), Some(&good[..]));
    assert_eq!(vnic.rules().filters, good);
    assert!(vnic.rules().tx_rate.is_some(), "rates hold");
    // What they refuse anyway is an error.
    devices.broken = true;
    assert_eq!(vnic.renew(&mut devices, &before), Err("the kernel refuses".to_owned()));
}

/// What was revoked while there were no devices stays revoked, whatever the next ones refuse.
#[test]
fn what_was_revoked_meanwhile_does_not_come_back() {
    let (mut vnic, mut devices) = (vnic(), Picky::default());
    let all = filters("rx tcp service 10.0.0.5:80;rx tcp service 10.0.0.5:81");
    let key = key_of(vnic.create(&mut Calm, &all[..1], None, None, vec![]));
    vnic.create(&mut Calm, &all[1..], None, None, vec![]).expect("taken");
    let before = vnic.granted();
    let bad = filters("rx tcp service 10.0.0.5:666");
    vnic.create(&mut Calm, &bad, None, None, vec![]).expect("nobody refuses");
    vnic.revoke(&mut Calm, &key).expect("its own");
    assert_eq!(vnic.renew(&mut devices, &before), Ok(Some("the kernel refuses".to_owned())));
    assert_eq!(devices.in_force.as_deref(), Some(&all[1..]));
    assert_eq!(vnic.rules().filters, all[1..]);
    // Of all that was removed nothing comes back, and what was closed stays so.
    let before = vnic.granted();
    vnic.remove(&mut Calm, Some(vnic.own().filters[0].filter)).expect("removed");
    vnic.create(&mut Calm, &bad, None, None, vec![]).expect("nobody refuses");
    assert_eq!(vnic.renew(&mut devices, &before), Ok(Some("the kernel refuses".to_owned())));
    assert_eq!(devices.in_force.as_deref(), Some(&[][..]), "closed");
}

#[test]
fn what_cannot_be_restored_is_said() {
    let (mut vnic, mut devices) = (vnic(), Picky::default());
    let three = filters(
        "rx tcp service 10.0.0.5:80;rx tcp service 10.0.0.5:81;rx tcp service 10.0.0.5:666",
    );
    let refusal = vnic.create(&mut devices, &three, None, None, vec![]).err().expect("refused");
    assert!(refusal.to_string().contains("cannot be restored"), "{refusal}");
}

fn filters(text: &str) -> Vec<Filter> {
    text.split(';').map(|text| text.parse().expect(text)).collect()
}

/// What the dataplane is told, as text.
fn told(change: &Change) -> Option<String> {
    change.rules.as_ref().map(VnicRules::to_string)
}

fn vnic() -> Vnic {
    Vnic::new(&VnicRules::default(), 2).expect("a vNIC")
}

/// Puts everything into force.
struct Willing;

impl Enforcer for Willing {
    fn check(&self, _granted: &Granted) -> Result<(), Refusal> {
        Ok(())
    }

    fn apply(&mut self, _granted: &Granted) -> Result<(), Refusal> {
        Ok(())
    }
}

#[test]
fn a_filter_without_a_vnic_is_held_and_handed_on() {
    let mut granted = Granted::new(Registry::new(Policy::default()));
    let (place, web) = (Place::default(), filters("rx ip service 10.0.0.2"));
    let made = granted.create(&mut Willing, &web, "web", place, Vec::new()).expect("granted");
    let derived = granted.derive(&mut Willing, &made[0].capability, None, None).expect("derived");
    assert!(derived.id > made[0].id);
    // No vNIC has it, so it has no queues.
    let queue = Place { vnic: None, queue: Some(0) };
    let refused = granted.create(
        &mut Willing,
        &filters("rx tcp service 10.0.0.3:80"),
        "kv",
        queue,
        Vec::new(),
    );
    assert!(refused.is_err_and(|why| why.to_string().contains("assigned to no vNIC")));
    assert_eq!(granted.registry.filters().len(), 2, "nothing of it is left");
}

#[test]
fn what_was_filtered_once_is_closed_without_filters() {
    let mut vnic = vnic();
    let change = vnic.create(&mut Calm, &filters("rx tcp service 10.0.0.5:80"), None, None, vec![]);
    let change = change.expect("granted");
    assert_eq!(told(&change).as_deref(), Some("rx tcp service 10.0.0.5:80"));
    let key = capability_of(&change);
    let part = vnic.derive(&mut Calm, &key, None).expect("derived");
    assert_eq!(part.rules, change.rules, "the same packets");
    assert_eq!(vnic.revoke(&mut Calm, "ff").err(), Some(Refusal::NoCapability));
    let gone = vnic.revoke(&mut Calm, &key).expect("revoked");
    assert_eq!(
        (told(&gone).as_deref(), &gone.answer),
        (Some("none rx"), &FiltersRevoked { revoked: 2 }.into())
    );
    assert_eq!(vnic.revoke(&mut Calm, &key).err(), Some(Refusal::NoCapability), "stale");
    assert_eq!(told(&vnic.remove(&mut Calm, None).expect("lifted")).as_deref(), Some(""));
    let look = serde_json::to_string(&vnic.look()).expect("JSON");
    assert!(!look.contains(&key));
}

#[test]
fn what_a_card_has_is_told() {
    let mut vnic = vnic();
    vnic.create(
        &mut Calm,
        &filters("rx tcp service 10.0.0.5:80;tx ip service 10.0.0.5"),
        None,
        None,
        vec![],
    )
    .expect("granted");
    vnic.set_in_hardware(filters("rx tcp service 10.0.0.5:80-81"));
    let told = vnic.own();
    assert_eq!(told.in_hardware, filters("rx tcp service 10.0.0.5:80-81"));
    let each = |n: usize| told.filters[n].in_hardware;
    assert_eq!((each(0), each(1)), (true, false), "{told:?}");
}

#[test]
fn several_are_granted_or_none() {
    let mut vnic = vnic();
    let linux = vec![Ipv4Addr::new(10, 0, 0, 1).into()];
    let both = filters("rx ip service 10.0.0.5;tx ip service 10.0.0.1");
    let refusal =
        vnic.create(&mut Calm, &both, None, None, linux).err().expect("refused").to_string();
    assert!(refusal.contains("Linux, which has 10.0.0.1"), "{refusal}");
    assert_eq!(vnic.own().filters, []);
}

fn key_of(change: Result<Change, Refusal>) -> String {
    capability_of(&change.expect("granted"))
}

fn capability_of(change: &Change) -> String {
    match &change.answer {
        Answer::FiltersCreated(made) => made.filters[0].capability.clone(),
        Answer::FilterDerived(made) => made.capability.clone(),
        other => panic!("no capability: {other:?}"),
    }
}

/// What a dataplane reads of a change.
/// Changes of rates, such as `rx 1kpps; flow none`.
fn rates(text: &str) -> RateChanges {
    let mut changes = RateChanges::default();
    for (what, rate) in text.split("; ").filter_map(|part| part.split_once(' ')) {
        let change = rate.parse().expect(text);
        match what {
            "rx" => changes.rx = change,
            "tx" => changes.tx = change,
            _ => changes.flow = change,
        }
    }
    changes
}

fn rules_of(change: Result<Change, Refusal>) -> VnicRules {
    let rules = change.expect("fine").rules.expect("rules");
    assert_eq!(VnicRules::decode(&rules.encode()), Ok(rules.clone()), "the dataplane takes it");
    rules
}

#[test]
fn a_dataplane_is_never_told_more_filters_than_it_takes() {
    let mut vnic = vnic();
    let ports = |from: usize, to: usize| {
        let filter = |n| format!("tx tcp service 10.0.0.5:{n}");
        filters(&(from..=to).map(filter).collect::<Vec<_>>().join(";"))
    };
    let key =
        key_of(vnic.create(&mut Calm, &filters("tx ip service 10.0.0.5"), None, None, vec![]));
    rules_of(vnic.create(&mut Calm, &ports(1, 31), None, None, vec![]));
    // All of these were told by the first one alone. That may go, so they count.
    let refusal =
        vnic.create(&mut Calm, &ports(32, 33), None, None, vec![]).err().expect("refused");
    assert!(refusal.to_string().contains("34 tx filters are too many"), "{refusal}");
    assert_eq!(vnic.own().filters.len(), 32, "all or none");
    // The other direction has room, and what is derived goes with what covers it.
    rules_of(vnic.create(&mut Calm, &filters("rx ip service 10.0.0.5"), None, None, vec![]));
    let derived = key_of(vnic.derive(&mut Calm, &key, ports(40, 40).pop()));
    let refusal = vnic.assign(&mut Calm, &key, Some(0)).err().expect("refused");
    assert!(refusal.to_string().contains("33 tx filters"), "{refusal}");
    assert_eq!(rules_of(vnic.rate(None, rates(""))).assigned, [], "it is as it was");
    rules_of(vnic.revoke(&mut Calm, &derived));
    rules_of(vnic.assign(&mut Calm, &key, Some(0)));
    let left = rules_of(vnic.revoke(&mut Calm, &key));
    assert_eq!(left.set(Direction::Transmit).map(|set| set.filters().len()), Some(31));
}

#[test]
fn filters_are_no_longer_than_the_dataplane_takes() {
    let mut vnic = vnic();
    let list = |n: usize| {
        let one = |i: usize| format!("{}-{}", i * 1000 + n * 10, i * 1000 + n * 10 + 5);
        (1..=16).map(one).collect::<Vec<_>>().join(",")
    };
    let addresses = |n: usize| {
        let one = |i: usize| format!("10.{i}.{n}.100-10.{i}.{n}.120");
        (100..=115).map(one).collect::<Vec<_>>().join(",")
    };
    let long = |direction: &str, n: usize| {
        let (a, p) = (addresses(n), list(n));
        filters(&format!("{direction} tcp service {a}:{p} peer {a}:{p}")).remove(0)
    };
    let mut told = 0;
    let refusal = (1..=32).flat_map(|n| [long("rx", n), long("tx", n)]).find_map(|filter| {
        let change = vnic.create(&mut Calm, &[filter], None, None, vec![]);
        let rules = change.as_ref().ok().and_then(|change| change.rules.as_ref());
        told = rules.map_or(told, |rules| rules.to_string().len().max(rules.encode().len()));
        change.err()
    });
    let refusal = refusal.expect("refused at last").to_string();
    assert!(refusal.contains("characters"), "{refusal}");
    assert!((FILTER_BYTES_MAX - 4096..MESSAGE_BYTES_MAX).contains(&told), "{told}");
}

#[test]
fn queues_of_the_configuration_have_what_it_says() {
    let new = |text: &str| Vnic::new(&text.parse().expect("rules"), 2);
    let text = "rx eth type 0x88b5; queue 1 tx udp service 10.0.0.5; \
                queue 0 rate tx 2Mbit,burst=3028";
    let vnic = new(&text.replace("  ", " ")).expect("fine");
    assert_eq!(vnic.rules(), text.parse().expect("rules"));
    assert_eq!(vnic.own().filters[1].queue, Some(1));
    for (wrong, word) in [
        ("queue 2 rate tx 1Mbit", "has no queue 2: its queues are 0 to 1"),
        ("queue 2 tx udp service 10.0.0.5", "has no queue 2"),
        ("queue 0 rx udp service 10.0.0.5", "flow group"),
        ("tx ip", "Linux"),
    ] {
        let why = new(wrong).expect_err(wrong);
        assert!(why.contains(word), "{wrong}: {why}");
    }
    let mut vnic = new("queue 1 rate tx 2Gbit").expect("fine");
    assert!(vnic.set_link(Some(1_000_000_000)).expect_err("beyond").contains("link's 1Gbit"));
}

#[test]
fn what_is_a_queues_is_told_the_dataplane() {
    let mut vnic = vnic();
    let made =
        vnic.create(&mut Calm, &filters("tx tcp service 10.0.0.5:80-90"), None, None, vec![]);
    let key = &key_of(made);
    let rules = |change: Result<Change, Refusal>| told(&change.expect("fine")).expect("rules");
    let whole = "tx tcp service 10.0.0.5:80-90";
    assert_eq!(rules(vnic.assign(&mut Calm, key, Some(1))), format!("queue 1 {whole}"));
    // What another filter of the same queue contains adds nothing; at another it does.
    let part = "tx tcp service 10.0.0.5:80";
    let derived = vnic.derive(&mut Calm, key, filters(part).pop()).expect("a part");
    assert_eq!(told(&derived), Some(format!("queue 1 {whole}")));
    let part_key = capability_of(&derived);
    let both = format!("queue 0 {part}; queue 1 {whole}");
    assert_eq!(rules(vnic.assign(&mut Calm, &part_key, Some(0))), both);
    assert_eq!(rules(vnic.assign(&mut Calm, key, None)), whole);
    let beyond = vnic.assign(&mut Calm, key, Some(2)).err().expect("refused").to_string();
    assert!(beyond.contains("no queue 2"), "{beyond}");
    assert_eq!(told(&vnic.revoke(&mut Calm, key).expect("its own")).as_deref(), Some("none tx"));
    assert_eq!(vnic.assign(&mut Calm, key, Some(0)).err(), Some(Refusal::NoCapability), "stale");
}

#[test]
fn received_packets_stay_at_their_queue_beside_wider_filters() {
    let mut vnic = vnic();
    let wide = filters("rx eth type 0x88b5-0x88b9");
    vnic.create(&mut Calm, &wide, Some("web"), None, vec![]).expect("granted");
    let narrow = filters("rx eth type 0x88b5");
    let rules =
        vnic.create(&mut Calm, &narrow, Some("web"), Some(1), vec![]).expect("granted").rules;
    let rules = rules.expect("rules");
    assert!(rules.to_string().contains("; queue 1 rx eth"), "{rules}");
    let flows = vnic.create(&mut Calm, &filters("rx tcp service 10.0.0.5"), None, Some(0), vec![]);
    assert!(flows.err().expect("refused").to_string().contains("flow group"));
    assert_eq!(vnic.rate(None, rates("")).expect("fine").rules, Some(rules));
    let mut vnic = self::vnic();
    let both = filters("tx udp service 10.0.0.5;rx udp service 10.0.0.5");
    assert!(vnic.create(&mut Calm, &both, None, Some(0), vec![]).is_err());
    let change = vnic.rate(None, rates("")).expect("fine");
    assert_eq!(told(&change).as_deref(), Some(""), "none of them, so nothing is closed");
}

#[test]
fn queues_have_rates_of_their_own() {
    let mut vnic = vnic();
    vnic.rate(None, rates("tx 10Mbit")).expect("fine");
    let change = vnic.rate(Some(1), rates("rx 1kpps; tx 2Mbit; flow 1Mbit")).expect("fine");
    let Answer::RatesSet(RatesSet::Queue(of_queue)) = &change.answer else { panic!("no queue") };
    assert_eq!(of_queue.queue, 1);
    assert_eq!(
        told(&change).as_deref(),
        Some(
            "rate tx 10Mbit,burst=3028; queue 1 rate rx 1kpps,burst=3028; \
             queue 1 rate tx 2Mbit,burst=3028; queue 1 rate flow 1Mbit,burst=3028"
        )
    );
    assert_eq!(vnic.own().rates.queue_rates, [*of_queue]);
    vnic.rate(Some(1), rates("rx none; tx none")).expect("fine");
    let change = vnic.rate(Some(1), rates("flow none")).expect("fine");
    assert_eq!(told(&change).as_deref(), Some("rate tx 10Mbit,burst=3028"));
    let beyond = vnic.rate(Some(2), rates("tx 1Mbit")).err().expect("refused");
    assert!(beyond.to_string().contains("no queue 2: its queues are 0 to 1"), "{beyond}");
    vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
    let refusal = vnic.rate(Some(0), rates("tx 2Gbit")).err().expect("refused");
    assert!(refusal.to_string().contains("more than the link's 1Gbit"), "{refusal}");
}

#[test]
fn rates_change_one_by_one() {
    let mut vnic = vnic();
    vnic.rate(None, rates("rx 1kpps; tx 1Mbit; flow 2Mbit")).expect("fine");
    let change = vnic.rate(None, rates("tx none; flow none")).expect("fine");
    assert_eq!(told(&change).as_deref(), Some("rate rx 1kpps,burst=3028"));
    vnic.set_link(Some(1_000_000_000)).expect("what is set is below");
    let refusal = vnic.rate(None, rates("tx 2Gbit")).err().expect("refused").to_string();
    assert!(refusal.contains("more than the link's 1Gbit"), "{refusal}");
    // The link's own rate holds beside ours.
    let five = LinkRates::read("ix tx 5Mbit");
    let rules = vnic.set_link_rates(five).expect("other rules");
    assert_eq!(rules.to_string(), "rate rx 1kpps,burst=3028; rate tx 5Mbit,burst=3028");
    assert_eq!(vnic.set_link_rates(five), None, "the same");
    let part = vnic.set_link_rates(LinkRates::read("ix tx 5Mbit; ix part 3Mbit"));
    assert!(part.is_some_and(|rules| rules.to_string().ends_with("rate tx 3Mbit,burst=3028")));
    assert!(vnic.set_link_rates(five).is_some(), "the interface is not full any more");
    let change = vnic.rate(None, rates("tx 2Mbit")).expect("fine");
    assert!(told(&change).is_some_and(|rules| rules.ends_with("rate tx 2Mbit,burst=3028")));
    let none = LinkRates::read("my eth0");
    assert_eq!(vnic.set_link_rates(none), None, "ours is less anyway");
}

//! Programs that bring their own protocol: packet queues under a real service, asked by real Linux.
use crate::support;
use crate::support::command::errors;
use crate::support::frames::{self, Macs};
use crate::support::raw::{Raw, ring_doorbells};
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use libix::control::{Capability, Control, ControlError, Granted};
use std::process::Command;
use std::time::{Duration, Instant};

/// The EtherType for experiments, as `ix-frames` uses it.
const ETHER_TYPE: u16 = 0x88b5;

pub fn serve(net: &TestNet, carrier: &str) -> Service {
    let program = support::build_program("ix-frames");
    let service = net.start(&[program.to_str().expect("text"), carrier]);
    service.process.wait_for("ready", PATIENCE);
    service
}

pub fn question(name: &[u8; 4], numbers: &[u32]) -> Vec<u8> {
    let mut body = [b"ADD\x01", &name[..]].concat();
    body.extend((numbers.len() as u32).to_be_bytes());
    numbers.iter().for_each(|number| body.extend(number.to_be_bytes()));
    body
}

pub fn answer(name: &[u8; 4], sum: u32) -> Vec<u8> {
    [&b"ADD\x02"[..], name, &sum.to_be_bytes()].concat()
}

/// Asks, and hears the answer of this question.
#[track_caller]
pub fn ask(raw: &Raw, name: &[u8; 4], numbers: &[u32]) -> Vec<u8> {
    raw.ask(&question(name, numbers), |answer| answer.get(4..8) == Some(&name[..]))
}

#[test]
fn linux_is_answered_by_a_protocol_that_only_the_program_knows() {
    let test = "linux_is_answered_by_a_protocol_that_only_the_program_knows";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = serve(&net, "ip");
        let raw = Raw::open(&net);
        let many: Vec<u32> = (0..350).collect();
        for (name, numbers, sum) in
            [(b"none", &[][..], 0), (b"two ", &[40, 2], 42), (b"many", &many, 350 * 349 / 2)]
        {
            assert_eq!(ask(&raw, name, numbers), answer(name, sum), "{nic:?}");
        }
        // What the program does not understand it gives back.
        for _ in 0..100 {
            raw.send(b"what is this");
        }
        assert_eq!(ask(&raw, b"last", &[1]), answer(b"last", 1));
        service.finish(PATIENCE);
    }
}

#[test]
fn the_vnics_filters_hold_for_a_programs_own_protocol() {
    let test = "the_vnics_filters_hold_for_a_programs_own_protocol";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = serve(&net, "ip");
        let raw = Raw::open(&net);
        assert_eq!(ask(&raw, b"one ", &[1]), answer(b"one ", 1));
        let mut control = Control::connect(service.control()).expect("a control socket");
        let elsewhere = "tx ip proto 253 service 10.88.0.2 peer 10.88.9.9";
        let granted = control.create_filters(&[elsewhere], Some("sums"), None).expect("granted");
        // The first one may be held back behind the call: what the program hears follows.
        let told = "ix-frames: a reply was not sent: the vNIC's rules forbid sending this";
        eventually("it is told so", || {
            raw.send(&question(b"two ", &[2]));
            let came = raw.receive(Duration::from_millis(20));
            assert_ne!(came, Some(answer(b"two ", 2)), "answered without a right to");
            service.process.said().iter().any(|line| line == told)
        });
        assert!(service.stats().total("drops.tx_foreign_other") > 0);
        hand_on_and_revoke(&service, &mut control, &granted[0]);
        // Nothing of it is left, and so nothing may be sent but what another filter takes.
        let all = control
            .create_filters(&["tx ip proto 253 service 10.88.0.2"], None, None)
            .expect("granted");
        assert_eq!(ask(&raw, b"tre ", &[3]), answer(b"tre ", 3));
        control.rate(None, Some("1Gbit")).expect("below the link's");
        assert!(control.look().expect("JSON").contains("\"tx_rate\":\"1Gbit"));
        control.rate(None, Some("none")).expect("lifted");
        control.rate_of_queue(0, None, Some("2Gbit"), Some("1Gbit")).expect("below the link's");
        assert!(control.look().expect("JSON").contains("\"queue_rates\":[{"));
        control.rate_of_queue(0, None, Some("none"), Some("none")).expect("lifted");
        control.assign_queue(&all[0].capability, Some(0)).expect("the only queue");
        let beyond = control.assign_queue(&all[0].capability, Some(1)).expect_err("beyond");
        assert!(beyond.to_string().contains("has no queue 1"), "{beyond}");
        assert_eq!(ask(&raw, b"tre ", &[3]), answer(b"tre ", 3));
        control.assign_queue(&all[0].capability, None).expect("all queues");
        control.revoke(&all[0].capability).expect("revoked");
        ctl(&service, &["filter", "remove", "--all"]);
        assert_eq!(ask(&raw, b"tre ", &[3]), answer(b"tre ", 3));
        service.finish(PATIENCE);
    }
}

/// A process with a capability has the right, one without is refused.
fn hand_on_and_revoke(service: &Service, control: &mut Control, granted: &Granted) {
    let part = "tx ip proto 253 service 10.88.0.2 peer 10.88.9.9";
    let derived = control.derive(&granted.capability, Some(part)).expect("a part");
    let handed: Capability = derived.capability.reveal().parse().expect("a capability's text");
    // The other program need not be an operator.
    let socket = service.control().with_extension("ro.sock");
    let mut other = Control::connect(socket).expect("the socket of readers");
    assert_eq!(other.revoke(&handed), Ok(1));
    let refusal = |outcome: Result<usize, ControlError>| outcome.expect_err("refused").to_string();
    assert!(refusal(other.revoke(&handed)).contains("no such capability"), "stale");
    let forged = "00".repeat(16).parse().expect("it looks like one");
    assert!(refusal(other.revoke(&forged)).contains("no such capability"), "forged");
    let taken = control.create_filters(&[part], Some("others"), None).expect_err("held");
    assert!(taken.to_string().contains("a filter of sums"), "{taken}");
    let nonsense = control.create_filters(&["tx \"quoted\""], None, None);
    assert!(matches!(nonsense, Err(ControlError::Refused(_))), "{nonsense:?}");
    assert!(!format!("{granted:?}").contains(granted.capability.reveal()), "it stays a secret");
    assert_eq!(control.revoke(&granted.capability), Ok(1));
}

#[track_caller]
fn ctl(service: &Service, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("ctl").args(args).arg("--control").arg(service.control());
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{args:?}: {}", errors(&output));
}

#[test]
fn frames_of_a_type_of_their_own_come_where_linux_does_not_keep_them() {
    let test = "frames_of_a_type_of_their_own_come_where_linux_does_not_keep_them";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = serve(&net, "ether");
    let (wire, own) = (net.wire(), net.client_mac());
    is_answered_on_the_wire(&net);
    // Somebody else's frame is none of ours.
    let before = service.stats().total("drops.eth_not_for_us");
    let macs = Macs { to: [2, 0, 0, 0, 0, 0x77], from: own };
    wire.send(&frames::ethernet(macs, ETHER_TYPE, &question(b"wire", &[1]))).expect("sends");
    service.wait_until("it was dropped", PATIENCE, |s| s.total("drops.eth_not_for_us") > before);
    service.finish(PATIENCE);
    drop(net);
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let program = support::build_program("ix-frames");
    let program = [program.to_str().expect("text"), "ether"];
    let service = net.start(&program);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(!status.success() && said.iter().any(|l| l.contains("Linux keeps them")), "{said:?}");
    // A filter that names their type gives them to the dataplane.
    let (_, link) = net.service_link();
    let service = net.start_with(&config_of_frames(link, SERVICE.ip()), &program);
    service.process.wait_for("ready", PATIENCE);
    is_answered_on_the_wire(&net);
    service.finish(PATIENCE);
}

/// A dataplane that has nothing but the frames of the program's own type.
pub fn config_of_frames(link: &str, ip: &std::net::Ipv4Addr) -> String {
    let cpu = ix_testbed::cpu::allowed()[0];
    format!(
        "host_addr = \"{ip}/16\"\ncpu = {cpu}\ndevices = [\"afxdp:{link}\"]\n[vnic]\n\
         filters = [\"rx eth type 0x88b5\", \"tx eth type 0x88b5\"]\n"
    )
}

/// The program answers a frame of a type of its own.
#[track_caller]
pub fn is_answered_on_the_wire(net: &TestNet) {
    let (wire, own) = (net.wire(), net.client_mac());
    let macs = Macs { to: [0xff; 6], from: own };
    let asked = frames::ethernet(macs, ETHER_TYPE, &question(b"wire", &[20, 3]));
    let end = Instant::now() + PATIENCE;
    let answered = loop {
        assert!(Instant::now() < end, "no answer");
        wire.send(&asked).expect("sends");
        let came = wire.receive(Duration::from_secs(1)).expect("hears");
        if let Some(frame) = came.filter(|frame| frame[12..14] == ETHER_TYPE.to_be_bytes()) {
            break frame;
        }
    };
    assert_eq!(answered[..6], own);
    assert_eq!(answered[14..26], answer(b"wire", 23));
}

/// Callbacks, eventfds and signals; for what came, what came for the queue of high priority, and
/// what was sent; and waiting for several queues at once.
#[test]
fn every_doorbell_rings() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("every_doorbell_rings", nic, 1) else { return };
        let program = support::build_program("ix-frames").with_file_name("ix-doorbells");
        ring_doorbells(&net, net.start(&[program.to_str().expect("text")]));
    }
}

/// An idle program sleeps, and a packet wakes it. Printed, not asserted: how long that takes is the
/// machine's to say.
#[test]
fn an_idle_program_sleeps_until_a_packet_comes() {
    let test = "an_idle_program_sleeps_until_a_packet_comes";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = serve(&net, "ip");
        let raw = Raw::open(&net);
        let ask = |number: u32| {
            let start = Instant::now();
            assert_eq!(ask(&raw, &number.to_be_bytes(), &[number]).len(), 12);
            start.elapsed().as_secs_f64() * 1e6
        };
        let mut asleep: Vec<f64> = (0..100)
            .map(|number| {
                std::thread::sleep(Duration::from_millis(5));
                ask(number)
            })
            .collect();
        let mut awake: Vec<f64> = (0..1000).map(ask).collect();
        for all in [&mut asleep, &mut awake] {
            all.sort_by(f64::total_cmp);
        }
        let at = |all: &[f64], share: f64| all[((all.len() - 1) as f64 * share) as usize];
        println!(
            "{nic:?}: answered after {:.0} µs (p99 {:.0}) asleep, {:.0} µs (p99 {:.0}) awake",
            at(&asleep, 0.5),
            at(&asleep, 0.99),
            at(&awake, 0.5),
            at(&awake, 0.99)
        );
        service.finish(PATIENCE);
    }
}

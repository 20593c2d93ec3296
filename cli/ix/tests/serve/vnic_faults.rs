//! Bad requests about a vNIC, and links that fail under one, on every device: each gets an error
//! with the reason or a counted drop, and served clients do not notice.
use super::devices::make_pair;
use super::vnic::{capability, ctl, refused, says};
use crate::support::command::errors;
use crate::support::frames::{self, Macs};
use crate::support::memif::{MemifNet, answer};
use crate::support::process::signal;
use crate::support::traffic::{Steady, close, echo};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, connect_to, eventually};
use ix_testbed::{Namespace, PacketSocket};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const FORGED: &str = "0123456789abcdef0123456789abcdef";

/// Asks for all of it, with a capability of another dataplane's; the link carries so much, if that
/// is known. The service's address is `own`.
#[track_caller]
fn asks_for_what_cannot_be(service: &Service, own: &str, foreign: &str, beyond: Option<&str>) {
    let operator = || service.control().to_owned();
    let held = format!("tx ip service {own}");
    let key = capability(&says(service, &["filter", "create", &held, "--holder", "web"]));
    let stale = says(service, &["filter", "derive", &key])["capability"].clone();
    let stale = stale.as_str().expect("a capability");
    says(service, &["filter", "revoke", stale]);
    let none = "no such capability";
    for (args, word) in [
        (
            &["filter", "create", &format!("tx tcp service {own}:9"), "--holder", "kv"][..],
            "a filter of web",
        ),
        (&["filter", "create", "tx eth"], "Linux"),
        (&["filter", "assign", &key, "--queue", "1"], "has no queue 1"),
        (&["filter", "create", &held, "--holder", "web", "--queue", "7"], "has no queue 7"),
        (&["rate", "--queue", "1", "--tx", "1Mbit"], "has no queue 1"),
        (&["rate", "--tx", "0bit"], "0 lets nothing pass"),
        (&["rate", "--rx", "0pps"], "0 lets nothing pass"),
        (&["rate", "--flow", "0bit"], "0 lets nothing pass"),
        (&["rate", "--queue", "0", "--tx", "0bit"], "0 lets nothing pass"),
        (&["rate", "--tx", "1001Gbit"], "above the maximum"),
        (&["filter", "remove", "999"], "no filter 999"),
    ] {
        let why = refused(operator(), args);
        assert!(why.contains(word), "{args:?}: {why}");
    }
    let readers = service.control().with_extension("ro.sock");
    for capability in [FORGED, stale, foreign] {
        for args in [
            &["filter", "assign", capability, "--queue", "0"][..],
            &["filter", "derive", capability],
            &["filter", "revoke", capability],
        ] {
            let why = refused(readers.clone(), args);
            assert!(why.contains(none), "{args:?}: {why}");
        }
    }
    let counted = says(service, &["vnic"])["refused"]["no-capability"].clone();
    assert_eq!(counted, 9, "each attempt is counted");
    if let Some(rate) = beyond {
        for args in [&["rate", "--tx", rate][..], &["rate", "--queue", "0", "--rx", rate]] {
            let why = refused(operator(), args);
            assert!(why.contains("more than the link's"), "{args:?}: {why}");
        }
    }
    let empty = format!("rx tcp service {own}:9-1");
    let empty = ctl(operator(), &["filter", "create", &empty]);
    assert!(!empty.status.success() && errors(&empty).contains("is empty"));
    let many: Vec<String> = (1..=32).map(|n| format!("tx udp service {own}:{n}")).collect();
    let many: Vec<&str> = ["filter", "create", "--holder", "web"]
        .into_iter()
        .chain(many.iter().map(String::as_str))
        .collect();
    let why = refused(operator(), &many);
    assert!(why.contains("33 tx filters are too many"), "{why}");
    // What was refused has changed nothing, and what is right is still done.
    let shown = says(service, &["vnic"]);
    assert_eq!(shown["filters"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(
        (&shown["tx_rate"], &shown["rx_filtered"]),
        (&serde_json::Value::Null, &false.into())
    );
    says(service, &["filter", "create", &format!("tx udp service {own}:1"), "--holder", "web"]);
    says(service, &["filter", "remove", "--all"]);
}

#[test]
fn what_cannot_be_is_refused_while_others_are_served() {
    let test = "what_cannot_be_is_refused_while_others_are_served";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let service = net.serve(&["100"]);
        let other = net.serve_second(&["64"]);
        let made = says(&other, &["filter", "create", "tx ip service 10.89.0.2"]);
        let foreign = capability(&made);
        // A veth says that it carries 10 Gbit/s; a tap's word is nobody's.
        let beyond = (nic == Nic::Afxdp).then_some("11Gbit");
        net.client.run(|| {
            Steady::during(100, |steady| {
                asks_for_what_cannot_be(&service, "10.88.0.2", &foreign, beyond);
                steady.goes_on();
            });
        });
        let stats = service.finish(PATIENCE);
        for reason in ["tx_foreign_address", "tx_foreign_other", "rx_filtered", "tx_rate"] {
            assert_eq!(stats.total(&format!("drops.{reason}")), 0, "{nic:?}, {reason}: {stats}");
        }
        other.process.terminate();
    }
}

/// Two dataplanes that share memory, and no Linux between them. Its socket is only where they met.
#[test]
fn what_cannot_be_is_refused_over_shared_memory_too() {
    let test = "what_cannot_be_is_refused_over_shared_memory_too";
    let Some(net) = MemifNet::new(test, 1) else { return };
    let service = net.serve("role=server", &["64"]);
    let asker = net.ask("role=client", &["--connections", "16", "--seconds", "4"]);
    service.wait_until("they talk", PATIENCE, |stats| stats.total("rx_packets") > 1000);
    let made = says(&asker, &["filter", "create", "tx ip service 10.99.0.2"]);
    asks_for_what_cannot_be(&service, "10.99.0.1", &capability(&made), None);
    std::fs::remove_file(net.path()).expect("removed");
    let result = answer(asker, PATIENCE);
    assert_eq!(result["errors"], 0, "{result}");
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.total("drops.tx_foreign_address"), 0, "{stats}");
}

/// The soft and the hard limit on the descriptors of a process.
fn descriptors_of(pid: i32) -> (u64, u64) {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a line");
    let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
    (numbers.next().expect("a soft limit"), numbers.next().expect("a hard limit"))
}

/// Bounds how many descriptors a process may have. It sets the bound itself, by a system call that
/// is put in the place of the one in which it waits: `ix run` lets no other process set it, unless
/// that has a right which root lacks on some virtual machines.
fn bound_descriptors(pid: i32, most: u64) {
    let none = std::ptr::null_mut::<libc::c_void>();
    let trace = |request, at: *mut libc::c_void, data: *mut libc::c_void| {
        // SAFETY: `data` is a number, or a local that the request reads or fills.
        assert_ne!(unsafe { libc::ptrace(request, pid, at, data) }, -1, "ptrace {request}");
    };
    let stops = || {
        let mut status = 0;
        // SAFETY: fills a local.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) }, pid);
        assert!(libc::WIFSTOPPED(status), "{status}");
    };
    trace(libc::PTRACE_SEIZE, none, none);
    // SAFETY: all-zero bytes are valid registers.
    let mut before: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    loop {
        trace(libc::PTRACE_INTERRUPT, none, none);
        stops();
        trace(libc::PTRACE_GETREGS, none, (&raw mut before).cast());
        if [libc::SYS_poll, libc::SYS_ppoll].contains(&(before.orig_rax as i64)) {
            break;
        }
        trace(libc::PTRACE_CONT, none, none);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Both limits, below all that the thread has on its stack (of which 128 octets below the stack
    // pointer are its own).
    let at = (before.rsp - 1024) & !15;
    trace(libc::PTRACE_POKEDATA, at as *mut _, most as *mut _);
    trace(libc::PTRACE_POKEDATA, (at + 8) as *mut _, descriptors_of(pid).1 as *mut _);
    // It waits behind a `syscall` instruction of two octets.
    let mut call = before;
    (call.rip, call.rax, call.orig_rax) = (before.rip - 2, libc::SYS_prlimit64 as u64, u64::MAX);
    (call.rdi, call.rsi, call.rdx, call.r10) = (0, u64::from(libc::RLIMIT_NOFILE), at, 0);
    trace(libc::PTRACE_SETREGS, none, (&raw mut call).cast());
    trace(libc::PTRACE_SINGLESTEP, none, none);
    stops();
    trace(libc::PTRACE_GETREGS, none, (&raw mut call).cast());
    trace(libc::PTRACE_SETREGS, none, (&raw mut before).cast());
    trace(libc::PTRACE_DETACH, none, none);
    assert_eq!(call.rax as i64, 0, "prlimit");
}

/// A broker that can have no further descriptor can load no program, so the kernel refuses its
/// filters. The client hears so, and nothing of the change is left.
#[test]
fn what_the_kernel_refuses_is_refused_and_taken_back() {
    let test = "what_the_kernel_refuses_is_refused_and_taken_back";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let service = net.serve(&["64"]);
    let mut control = UnixStream::connect(service.control()).expect("connected");
    let mut lines = BufReader::new(control.try_clone().expect("a copy")).lines();
    let greeting = lines.next().expect("a line").expect("read");
    assert!(greeting.contains("hello"), "{greeting}");
    let mut ask = |request: &str| -> Value {
        writeln!(control, "{request}").expect("asked");
        let line = lines.next().expect("a line");
        let line = line.unwrap_or_else(|e| panic!("{e}: {:#?}", service.process.said()));
        serde_json::from_str(&line).expect("JSON")
    };
    let create = r#"{"do":"filter-create","filters":["rx tcp service 10.88.0.2"]}"#;
    let broker = service.process.pid();
    // As many as it has. (Below that poll(2) would be refused too.) Other clients get the numbers
    // that are free between those in use.
    let has = |fd: &u64| Path::new(&format!("/proc/{broker}/fd/{fd}")).exists();
    let mut clients = Vec::new();
    let free = loop {
        let free = (0..).find(|fd| !has(fd)).expect("a free number");
        if !(free..free + 100).any(|fd| has(&fd)) {
            break free;
        }
        clients.push(UnixStream::connect(service.control()).expect("connected"));
        eventually("another client is served", || has(&free));
    };
    let enough = descriptors_of(broker).0;
    bound_descriptors(broker, free);
    let refused = ask(create);
    assert_eq!(refused["error"]["code"], "vnic", "{refused}");
    let view = ask("vnic");
    assert_eq!(view["ok"]["filters"], json!([]), "{view}");
    assert_eq!(view["ok"]["rx_filtered"], false, "{view}");
    bound_descriptors(broker, enough);
    let made = ask(create);
    assert!(made["ok"]["filters"][0]["capability"].is_string(), "{made}");
    net.client.run(|| {
        let mut stream = connect_to(SERVICE);
        echo(&mut stream, 1, 64);
        close(stream);
    });
    service.finish(PATIENCE);
}

/// Filters that change while the interface is away hold when it is back; Linux, which has the same
/// address, keeps the rest.
#[test]
fn filters_hold_when_an_interface_comes_back() {
    let test = "filters_hold_when_an_interface_comes_back";
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let elsewhere = Namespace::new().expect("a namespace");
    let (namespace, link) = net.service_link();
    // Who asks for the address hears IX; Linux cannot ask in its name, so it is told.
    let give_linux_the_address = || {
        namespace.add_address(link, *SERVICE.ip(), 16).expect("an address");
        namespace.add_neighbour(link, CLIENT, net.client_mac()).expect("a neighbour");
    };
    give_linux_the_address();
    let parts =
        "[vnic]\nfilters = [\"rx tcp service 10.88.0.2:7\", \"tx tcp service 10.88.0.2:7\"]\n";
    let echo_file = crate::support::build_echo();
    let service = net.start_taking_address(parts, &[echo_file.to_str().expect("text"), "64"]);
    service.process.wait_for("ready", PATIENCE);
    let mut stream = net.connect();
    echo(&mut stream, 0, 64);
    let server = namespace.run(|| UdpSocket::bind((*SERVICE.ip(), 99))).expect("Linux' own port");
    server.set_read_timeout(Some(PATIENCE)).expect("timeout");
    for (round, port) in [(1, 51), (2, 52)] {
        match round {
            1 => namespace.delete_link(link).expect("removed"),
            _ => namespace.move_link(link, &elsewhere).expect("moved"),
        }
        service.process.wait_for_nth(&format!("ix: link {link} is gone"), round, PATIENCE);
        let filter = format!("rx udp service 10.88.0.2:{port}");
        says(&service, &["filter", "create", &filter]);
        match round {
            1 => make_pair(&net, 1),
            _ => {
                elsewhere.move_link(link, namespace).expect("moved back");
                namespace.set_up(link, true).expect("up");
            }
        }
        give_linux_the_address();
        service.process.wait_for_nth(&format!("ix: link {link} is up again"), round, PATIENCE);
        echo(&mut stream, round as u64, 64);
        let client = net.client.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
        let before = service.stats().total("drops.udp_no_socket");
        eventually("what the new filter takes comes to the dataplane", || {
            let _ = client.send_to(b"ours", (*SERVICE.ip(), port));
            service.stats().total("drops.udp_no_socket") > before
        });
        client.send_to(b"hello", (*SERVICE.ip(), 99)).expect("sends");
        assert_eq!(server.recv(&mut [0; 16]).expect("Linux hears its own"), 5);
    }
    let said = service.process.said();
    assert!(!said.iter().any(|line| line.contains("cannot")), "{said:#?}");
    close(stream);
    service.process.terminate();
}

/// What filters have kept from leaving.
fn held_back(service: &Service) -> u64 {
    let stats = service.stats();
    let reasons = ["mac", "vlan", "address", "port", "queue", "other"];
    reasons.iter().map(|reason| stats.total(&format!("drops.tx_foreign_{reason}"))).sum()
}

/// Whether the service answers a ping now: not one that was sent before.
fn is_pinged(wire: &PacketSocket, macs: Macs, number: u32) -> bool {
    let body = number.to_be_bytes();
    wire.send(&frames::ping(macs, CLIENT, *SERVICE.ip(), &body)).expect("sends");
    let is_reply = |f: &[u8]| f.len() >= 46 && f[23] == 1 && f[34] == 0 && f[42..46] == body;
    let end = Instant::now() + Duration::from_millis(100);
    while Instant::now() < end {
        let heard = wire.receive(Duration::from_millis(20)).expect("the wire");
        if heard.is_some_and(|frame| is_reply(&frame)) {
            return true;
        }
    }
    false
}

/// A program that computes, so that the guard serves the network in its place, keeps no right by
/// that; nor does one that stands still and goes on.
#[test]
fn who_does_not_come_back_loses_rights_all_the_same() {
    let test = "who_does_not_come_back_loses_rights_all_the_same";
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let program = crate::support::build_program("ix-attacker").with_file_name("ix-mortal");
        let service = net.start(&[program.to_str().expect("text"), "7"]);
        service.process.wait_for("ready", PATIENCE);
        let (wire, macs) = (net.wire(), net.macs());
        let key = capability(&says(&service, &["filter", "create", "tx ip service 10.88.0.2"]));
        let is_away = || service.stats().text("threads.0.state") == "non-responsive";
        // For ever.
        net.connect().write_all(b"c").expect("Linux takes it");
        let mut number = 0;
        let mut is_pinged = || {
            number += 1;
            is_pinged(&wire, macs, number)
        };
        eventually("the guard answers", || is_away() && is_pinged());
        let before = held_back(&service);
        says(&service, &["filter", "revoke", &key]);
        assert!(!is_pinged(), "answered without a right to");
        assert!(held_back(&service) > before, "counted");
        assert!(is_away(), "{}", service.stats());
        // The next one is revoked while the whole program is stopped.
        let key = capability(&says(&service, &["filter", "create", "tx ip service 10.88.0.2"]));
        eventually("it may again", &mut is_pinged);
        let program = service.program();
        signal(program, libc::SIGSTOP);
        says(&service, &["filter", "revoke", &key]);
        signal(program, libc::SIGCONT);
        let before = held_back(&service);
        eventually("it hears of it, and answers nobody", || {
            !is_pinged() && held_back(&service) > before
        });
        assert!(!is_pinged(), "answered without a right to");
        says(&service, &["filter", "remove", "--all"]);
        eventually("it may again", &mut is_pinged);
        service.process.signal(libc::SIGKILL);
    }
}

/// A tap's queues are the dataplane's wherever its other end is; its filters go along.
#[test]
fn a_tap_may_be_moved_to_another_namespace() {
    let Some(net) = TestNet::new("a_tap_may_be_moved_to_another_namespace", Nic::Tap, 1) else {
        return;
    };
    let mut service = net.serve(&["64"]);
    let (here, link) = net.service_link();
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    close(stream);
    let elsewhere = Namespace::new().expect("a namespace");
    here.move_link(link, &elsewhere).expect("moved");
    let line = service.process.wait_for(&format!("ix: link {link} is elsewhere"), PATIENCE);
    assert!(line.contains("another namespace"), "{line}");
    elsewhere.add_address(link, CLIENT, 16).expect("an address");
    elsewhere.set_up(link, true).expect("up");
    let made = says(&service, &["filter", "create", "tx tcp service 10.88.0.2:7"]);
    let mut stream = elsewhere.run(|| connect_to(SERVICE));
    echo(&mut stream, 2, 64);
    says(&service, &["filter", "revoke", &capability(&made)]);
    let wire = elsewhere.run(|| UdpSocket::bind((CLIENT, 0))).expect("a socket");
    let before = held_back(&service);
    eventually("what is not its own any more is counted", || {
        // Answered by what may not leave.
        let _ = wire.send_to(b"closed", (*SERVICE.ip(), 9));
        held_back(&service) > before
    });
    says(&service, &["filter", "remove", "--all"]);
    echo(&mut stream, 3, 64);
    close(stream);
    elsewhere.move_link(link, here).expect("moved back");
    here.add_address(link, CLIENT, 16).expect("an address");
    here.set_up(link, true).expect("up");
    let is_back = format!("ix: link {link} is up");
    eventually("it is back", || service.process.said().last() == Some(&is_back));
    close(net.connect());
    service.process.check();
    service.finish(PATIENCE);
}

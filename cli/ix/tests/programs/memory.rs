//! Memory of an unmodified program and its dataplane, as Linux counts it.
use super::posix::compile;
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, connect_to, domain, eventually};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// What a program that serves one socket and its dataplane may have together, KB. What they share
/// counts once.
const BASE_KB: u64 = 24 << 10;
const CONNECTIONS: usize = 500;

/// A process's share of what is in memory, KB.
fn share_kb(pid: i32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).expect("a sum");
    line.split_ascii_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number")
}

/// The dataplane's memory as `ix ctl` says it, bytes.
fn told(service: &Service, part: &str) -> u64 {
    let answer = service.client().ask(r#"{"do":"status"}"#).expect("the state");
    answer["sharing"]["memory"][part].as_u64().expect("a number")
}

/// What Linux has under the numbers of a process, of what `kind` begins.
fn files(pid: i32, kind: &str) -> Vec<String> {
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten();
    let files = numbers.filter_map(|number| std::fs::read_link(number.path()).ok());
    let names = files.map(|file| file.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(kind)).collect()
}

fn echoes(stream: &mut TcpStream) {
    stream.write_all(b"x").expect("send");
    let mut back = [0];
    stream.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, b"x");
}

fn takes_little(test: &str, nic: Nic) {
    let Some(program) = compile(test, "echo") else { return };
    let Some(net) = TestNet::new(test, nic, 1) else { return };
    let service = net.start(&[program.to_str().expect("text"), "7"]);
    service.process.wait_for("ready", PATIENCE);
    echoes(&mut net.client.run(|| connect_to(SERVICE)));
    let pids = HashSet::from([service.dataplane(), service.program()]);
    let base_kb: u64 = pids.iter().map(|pid| share_kb(*pid)).sum();
    eprintln!("{test}: {base_kb} KB");
    assert!(base_kb <= BASE_KB, "{base_kb} KB for one socket");
    if domain() == "process" {
        let parts = ["receive_bytes", "build_bytes", "transmit_bytes", "own_bytes"];
        let bytes: u64 = parts.iter().map(|part| told(&service, part)).sum();
        assert!((1 << 20..=BASE_KB << 10).contains(&bytes), "{bytes} bytes");
    }

    // No socket of Linux's is under a connection, but to all that look it is one.
    let before = files(service.program(), "socket:");
    let mut clients: Vec<TcpStream> =
        (0..CONNECTIONS).map(|_| net.client.run(|| connect_to(SERVICE))).collect();
    clients.iter_mut().for_each(echoes);
    let after = files(service.program(), "socket:");
    assert!(after.len() >= CONNECTIONS, "{} numbers", after.len());
    let [before, after] = [before, after].map(|names| HashSet::<String>::from_iter(names).len());
    assert!(after <= before + 1, "{after} sockets of Linux's, {before} without connections");
    drop(clients);
    eventually("all have ended", || service.stats().total("flows") == 0);
    service.finish(PATIENCE);
}

/// Anonymous memory of a process, KB.
fn anonymous_kb(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
    line.split_ascii_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number")
}

/// What connections have needed goes back when they are closed: the heaps of the program and of the
/// dataplane. (Receive frames are sealed, and stay. So may blocks of transmit memory that another
/// thread has given back, until more is needed.)
#[test]
#[ignore = "long; .ci/run nightly"]
fn memory_goes_back_after_a_load() {
    const MANY: usize = 4000;
    let test = "memory_goes_back_after_a_load";
    let Some(program) = compile(test, "echo") else { return };
    let Some(net) = TestNet::alone(test, Nic::Afxdp, 1) else { return };
    let flags = ["--domain", "process"];
    let service = net.start_env(&[], &flags, &[program.to_str().expect("text"), "7"]);
    service.process.wait_for("ready", PATIENCE);
    echoes(&mut net.client.run(|| connect_to(SERVICE)));
    let now = || [anonymous_kb(service.program()), anonymous_kb(service.dataplane())];
    let before = now();
    let mut clients: Vec<TcpStream> =
        (0..MANY).map(|_| net.client.run(|| connect_to(SERVICE))).collect();
    // None is acknowledged before all were sent.
    clients.iter_mut().for_each(|stream| stream.write_all(&[b'x'; 600]).expect("send"));
    clients.iter_mut().for_each(|stream| stream.read_exact(&mut [0; 600]).expect("an echo"));
    let most = now();
    assert!(most.iter().zip(before).all(|(most, before)| *most > before + 1000), "{most:?}");
    drop(clients);
    eventually("all have ended", || service.stats().total("flows") == 0);
    // So much may stay of what was needed in between, in percent: blocks of the dataplane's heap
    // are two pages long, and the first one of each holds the list.
    const MAY_STAY: [u64; 2] = [35, 75];
    let limits: Vec<u64> = (before.iter().zip(most).zip(MAY_STAY))
        .map(|((before, most), stays)| before + (most - before) * stays / 100)
        .collect();
    let end = Instant::now() + PATIENCE;
    let after = loop {
        let after = now();
        if after.iter().zip(&limits).all(|(now, limit)| now <= limit) || Instant::now() > end {
            break after;
        }
        // Nothing wakes the service meanwhile.
        std::thread::sleep(Duration::from_millis(200));
    };
    let told = format!("{before:?} KB before, {most:?} with connections, {after:?} afterwards");
    eprintln!("{test}: {told}");
    assert!(after.iter().zip(&limits).all(|(now, limit)| now <= limit), "{told}: {limits:?}");
    echoes(&mut net.client.run(|| connect_to(SERVICE)));
    service.finish(PATIENCE);
}

#[test]
fn a_service_takes_little_memory_over_afxdp() {
    takes_little("a_service_takes_little_memory_over_afxdp", Nic::Afxdp);
}

#[test]
fn a_service_takes_little_memory_over_tap() {
    takes_little("a_service_takes_little_memory_over_tap", Nic::Tap);
}

//! Memory of an unmodified program and its dataplane, as Linux counts it.
use super::posix::compile;
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, connect_to, domain, eventually};
use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;

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
    let Some(net) = TestNet::alone(test, nic, 1) else { return };
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

#[test]
fn a_service_takes_little_memory_over_afxdp() {
    takes_little("a_service_takes_little_memory_over_afxdp", Nic::Afxdp);
}

#[test]
fn a_service_takes_little_memory_over_tap() {
    takes_little("a_service_takes_little_memory_over_tap", Nic::Tap);
}

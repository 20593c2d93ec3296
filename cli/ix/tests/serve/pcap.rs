//! `ix pcap` from outside: its files are read by Debian's tcpdump, and hold what Linux' own end of
//! the link saw.
use crate::support;
use crate::support::command::errors;
use crate::support::frames::{self, L4, stranger};
use crate::support::process::Process;
use crate::support::traffic::{close, echo};
use crate::support::{
    CLIENT, Nic, PATIENCE, PREFIX, SERVICE, Service, TestNet, connect, eventually,
};
use ix_skip::{Need, skip};
use ix_testbed::cpu;
use std::path::Path;
use std::process::Command;

/// A service behind a tap that merges nothing, so that both ends see the same packets; two elastic
/// threads.
fn start(test: &str) -> Option<(TestNet, Service)> {
    if cpu::allowed().len() < 2 {
        skip(test, Need::Cpus(2), "one CPU");
        return None;
    }
    if Command::new("tcpdump").arg("--version").output().is_err() {
        skip(test, Need::Program("apt-get install tcpdump"), "no tcpdump");
        return None;
    }
    let net = TestNet::new(test, Nic::Tap, 2)?;
    let cpus = &cpu::allowed()[..2];
    let config = format!(
        "host_addr = \"{}/{PREFIX}\"\ncpu = {cpus:?}\n\
         devices = [\"tap:ixt0,queues=2,offloads=off\"]\n[tcp]\ntime_wait_us = 300000\n",
        SERVICE.ip()
    );
    let program = support::build_echo();
    let mut service = net.start_with(&config, &[program.to_str().expect("text"), "64"]);
    service.raise_tap(&net.client, "ixt0", CLIENT, PREFIX);
    service.process.wait_for("ready", PATIENCE);
    Some((net, service))
}

fn pcap(service: &Service, file: &Path, args: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("pcap").arg("--control").arg(service.control()).arg("-w").arg(file).args(args);
    let process = Process::start(command);
    process.wait_for("ix: capturing", PATIENCE);
    process
}

/// Ends it as a user does.
fn end(process: Process) -> Vec<String> {
    process.signal(libc::SIGINT);
    let (status, lines) = process.wait(PATIENCE);
    assert!(status.success(), "{lines:?}");
    lines
}

/// Every packet's bytes behind the Ethernet header, as tcpdump reads them.
#[track_caller]
fn packets(file: &Path, filter: &str) -> Vec<String> {
    read(file, filter).unwrap_or_else(|why| panic!("{why}"))
}

/// The same; an error if the file cannot be read (to its end, yet).
fn read(file: &Path, filter: &str) -> Result<Vec<String>, String> {
    let mut command = Command::new("tcpdump");
    let output = command.args(["-nn", "-t", "-x", "-r"]).arg(file).args(filter.split(' ')).output();
    let output = output.expect("tcpdump");
    if !output.status.success() {
        return Err(errors(&output));
    }
    let mut all: Vec<String> = Vec::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        match (line.trim_start().strip_prefix("0x"), all.last_mut()) {
            (Some(bytes), Some(last)) => last.push_str(bytes.split_once(':').expect("bytes").1),
            _ => all.push(String::new()),
        }
    }
    Ok(all)
}

fn contains(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).expect("the file");
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_capture_is_what_linux_saw() {
    let Some((net, service)) = start("a_capture_is_what_linux_saw") else { return };
    let (ours, theirs) = (net.file("ix.pcapng"), net.file("linux.pcap"));
    drop(net.connect());
    service.comes_to_rest(PATIENCE);
    let capture = pcap(&service, &ours, &[]);
    let mut linux = net.client.command("tcpdump", None);
    // Room for all packets: with its usual snapshot length its buffer has a handful of slots.
    linux.args(["-s", "2000", "-B", "16384", "-U", "--immediate-mode", "-Z", "root"]);
    linux.args(["-i", "ixt0", "-w"]).arg(&theirs);
    let linux = Process::start(linux);
    linux.wait_for("tcpdump: listening", PATIENCE);
    net.client.run(|| {
        for id in 0..20 {
            let mut stream = connect();
            echo(&mut stream, id, 64);
            echo(&mut stream, id + 100, 64 * 200);
            close(stream);
        }
    });
    service.comes_to_rest(PATIENCE);
    let said = end(capture);
    assert!(said.iter().any(|line| line.ends_with("packets captured, 0 lost")), "{said:?}");
    const FILTER: &str = "tcp and host 10.88.0.2";
    let mut ours = packets(&ours, FILTER);
    assert!(ours.len() > 300, "{} packets", ours.len());
    // Linux' tcpdump may be behind.
    eventually("tcpdump has written them", || {
        read(&theirs, FILTER).is_ok_and(|theirs| theirs.len() >= ours.len())
    });
    drop(linux);
    let mut theirs = packets(&theirs, FILTER);
    ours.sort();
    theirs.sort();
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|packet| those.binary_search(packet).is_err()).cloned().collect()
    };
    let counts = (ours.len(), theirs.len());
    let differ = (only(&ours, &theirs), only(&theirs, &ours));
    assert!(ours == theirs, "{counts:?} packets here and there; only on one side: {differ:?}");
    service.finish(PATIENCE);
}

#[test]
fn drops_and_moves_are_remarked_and_filters_filter() {
    let Some((net, service)) = start("drops_and_moves_are_remarked_and_filters_filter") else {
        return;
    };
    let (wire, macs) = (net.wire(), net.macs());
    let (all, drops) = (net.file("all.pcapng"), net.file("drops.pcapng"));
    let capture = pcap(&service, &all, &["--snaplen", "60"]);
    // There is one capture at a time.
    let mut second = Command::new(env!("CARGO_BIN_EXE_ix"));
    let second = second.arg("pcap").arg("--control").arg(service.control()).args(["-w", "-"]);
    let second = second.output().expect("it starts");
    assert!(!second.status.success() && errors(&second).contains("captures already"));
    let mut bad = stranger(macs).frame();
    bad[L4 + 30] ^= 4;
    net.client.run(|| {
        let mut stream = connect();
        for to in [0, 1, 0, 1] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
            command.args(["ctl", "migrate", "0-127", "--to", &to.to_string(), "--control"]);
            assert!(command.arg(service.control()).output().expect("ctl").status.success());
            (0..20).for_each(|id| echo(&mut stream, id, 64));
        }
        close(stream);
    });
    wire.send(&bad).expect("send");
    service.wait_until("a drop", PATIENCE, |s| s.total("drops.tcp_bad_checksum") == 1);
    end(capture);
    assert!(contains(&all, "dropped: tcp_bad_checksum"));
    assert!(contains(&all, "has moved from elastic thread"));
    let words = packets(&all, "tcp").iter().map(|bytes| bytes.split_whitespace().count()).max();
    // It prints a packet that was cut with its Ethernet header.
    assert_eq!(words, Some(30), "16-bit words of 60 bytes");
    // The first has ended: another may begin.
    let capture = pcap(&service, &drops, &["--count", "3", "drops", "and", "host", "10.88.0.1"]);
    net.client.run(|| echo(&mut connect(), 1, 64));
    (0..3).for_each(|_| wire.send(&bad).expect("send"));
    let (status, said) = capture.wait(PATIENCE);
    assert!(status.success(), "{said:?}");
    assert_eq!(packets(&drops, "tcp").len(), 3);
    service.finish(PATIENCE);
}

#[test]
fn a_ring_of_files_keeps_the_last_packets() {
    let Some((net, service)) = start("a_ring_of_files_keeps_the_last_packets") else { return };
    let file = net.file("ring.pcapng");
    let ring = ["--ring-files", "2", "--ring-bytes", "5000", "icmp"];
    let capture = pcap(&service, &file, &ring);
    let (wire, macs) = (net.wire(), net.macs());
    for id in 0..200u32 {
        let ping = frames::ping(macs, CLIENT, *SERVICE.ip(), &id.to_be_bytes());
        wire.send(&ping).expect("send");
    }
    let sizes = || ["ring.0.pcapng", "ring.1.pcapng"].map(|name| net.file(name).metadata());
    eventually("both files are there", || sizes().iter().all(Result::is_ok));
    service.wait_until("all are answered", PATIENCE, |s| s.total("tx_packets") >= 200);
    end(capture);
    for size in sizes() {
        assert!(size.expect("a file").len() < 5_300);
    }
    let kept = ["ring.0.pcapng", "ring.1.pcapng"].map(|name| packets(&net.file(name), "icmp"));
    let last = format!("{:04x}", 199);
    assert!(kept.iter().flatten().any(|bytes| bytes.ends_with(&last)), "the last one is kept");
    assert!(kept.iter().flatten().count() < 150);
    service.finish(PATIENCE);
}

/// Who reads a capture may die: the dataplane does not write for ever.
#[test]
fn a_capture_ends_with_who_reads_it() {
    let Some((net, service)) = start("a_capture_ends_with_who_reads_it") else { return };
    let capture = pcap(&service, &net.file("x.pcapng"), &[]);
    let writes = || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", service.dataplane()));
        maps.expect("maps").contains("ix-capture")
    };
    eventually("the dataplane writes", writes);
    capture.signal(libc::SIGKILL);
    eventually("the memory is given back", || {
        net.client.run(|| echo(&mut connect(), 1, 64));
        !writes()
    });
    service.finish(PATIENCE);
}

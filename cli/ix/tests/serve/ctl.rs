//! `ix ctl` and the metrics from outside: a service on a tap, asked by the command, by raw sockets
//! and by HTTP.
use crate::support;
use crate::support::command::errors;
use crate::support::traffic::{close, echo, http};
use crate::support::{CLIENT, Nic, PATIENCE, PREFIX, SERVICE, Service, TestNet, connect};
use ix_skip::{Need, skip};
use ix_testbed::cpu;
use ix_testbed::prometheus::Samples;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn ctl(net: &TestNet, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let command = command.arg("ctl").args(args).arg("--control").arg(control(net));
    command.output().expect("the command starts")
}

fn control(net: &TestNet) -> PathBuf {
    net.file("control.sock")
}

/// What it prints; it must be a success.
#[track_caller]
fn says(net: &TestNet, args: &[&str]) -> String {
    let output = ctl(net, args);
    assert!(output.status.success(), "{args:?}: {}", errors(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// Its only line of error; it must fail.
#[track_caller]
fn refuses(net: &TestNet, args: &[&str]) -> String {
    let output = ctl(net, args);
    assert!(!output.status.success(), "{args:?}");
    let text = errors(&output);
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    text
}

fn two_threads(test: &str) -> Option<TestNet> {
    if cpu::allowed().len() < 2 {
        skip(test, Need::Cpus(2), "one CPU");
        return None;
    }
    TestNet::new(test, Nic::Tap, 2)
}

/// The echo service on two elastic threads, with this in its `[control]`.
fn serve_with(net: &TestNet, setting: &str) -> Service {
    let (namespace, link) = net.service_link();
    let cpus = &cpu::allowed()[..2];
    let config = format!(
        "host_addr = \"{}/{PREFIX}\"\ncpu = {cpus:?}\ndevices = [\"tap:{link}\"]\n\
         [tcp]\ntime_wait_us = 300000\n[control]\n{setting}\n",
        SERVICE.ip()
    );
    let echo = support::build_echo();
    let mut service = net.start_with(&config, &[echo.to_str().expect("text"), "64"]);
    service.raise_tap(namespace, link, CLIENT, PREFIX);
    service.process.wait_for("ready", PATIENCE);
    service
}

#[test]
fn what_a_dataplane_does_is_printed_for_people_and_for_programs() {
    let test = "what_a_dataplane_does_is_printed_for_people_and_for_programs";
    let Some(net) = two_threads(test) else { return };
    let service = net.serve(&["64"]);
    let mut streams: Vec<_> = (0..40).map(|_| net.connect()).collect();
    streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
    let status = says(&net, &["status"]);
    assert!(
        status.contains("ix-echo") && status.contains("2 elastic threads: 2 active"),
        "{status}"
    );
    assert!(status.contains("40 flows"), "{status}");
    let threads = says(&net, &["threads"]);
    assert_eq!(threads.lines().count(), 3, "{threads}");
    let json: Value = serde_json::from_str(&says(&net, &["threads", "--json"])).expect("JSON");
    let flows = json["threads"].as_array().expect("threads").iter().map(|t| t["flows"].as_u64());
    assert_eq!(flows.flatten().sum::<u64>(), 40);
    let groups = says(&net, &["flow-groups", "--interval", "0.01"]);
    assert_eq!(groups.lines().filter(|line| line.contains("active")).count(), 2, "{groups}");
    let all = says(&net, &["flow-groups", "--all", "--interval", "0.01"]);
    assert_eq!(all.lines().count(), 129);
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

#[test]
fn mistakes_are_told_in_one_line() {
    let Some(net) = two_threads("mistakes_are_told_in_one_line") else { return };
    let service = net.serve(&["64"]);
    for (args, words) in [
        (&["park", "7"][..], &["no elastic thread 7", "0 to 1"][..]),
        (&["migrate", "0-3", "--to", "2"], &["no elastic thread 2"]),
        (&["resume", "9"], &["no elastic thread 9"]),
    ] {
        let said = refuses(&net, args);
        words.iter().for_each(|word| assert!(said.contains(word), "{args:?}: {said}"));
    }
    let output = ctl(&net, &["migrate", "0-128", "--to", "1"]);
    assert_eq!(output.status.code(), Some(2), "the command line itself");
    assert!(errors(&output).contains("0-128"));
    let program = service.program();
    service.finish(PATIENCE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let output = command.args(["ctl", "status", "--pid", &program.to_string()]).output();
    let said = errors(&output.expect("it starts"));
    assert!(said.contains("no such dataplane"), "{said}");
}

#[test]
fn a_stopped_broker_is_told_in_time() {
    let Some(net) = two_threads("a_stopped_broker_is_told_in_time") else { return };
    let service = net.serve(&["64"]);
    service.process.signal(libc::SIGSTOP);
    let asked = Instant::now();
    let said = refuses(&net, &["status"]);
    let took = asked.elapsed();
    service.process.signal(libc::SIGCONT);
    assert!(said.contains("no answer within 2 s"), "{said}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    service.finish(PATIENCE);
}

#[test]
fn a_file_mode_says_who_may_look_and_who_may_do() {
    let test = "a_file_mode_says_who_may_look_and_who_may_do";
    // SAFETY: cannot fail and touches no memory.
    if unsafe { libc::geteuid() } != 0 {
        skip(test, Need::Root, "it must become another user");
        return;
    }
    let Some(net) = two_threads(test) else { return };
    let service = serve_with(&net, "read_only_mode = \"0666\"");
    let control = control(&net);
    let read_only = control.with_extension("ro.sock");
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&control), mode(&read_only)), (0o600, 0o666));
    // Others must come as far as the sockets, and to a command that they may run.
    let folder = control.parent().expect("a folder");
    std::fs::set_permissions(folder, PermissionsExt::from_mode(0o755)).expect("chmod");
    let ix = folder.join("ix");
    std::fs::copy(env!("CARGO_BIN_EXE_ix"), &ix).expect("copy the command");
    let as_nobody = |args: &[&str], socket: &Path| {
        let mut command = Command::new(&ix);
        command.arg("ctl").args(args).arg("--control").arg(socket).uid(65534).gid(65534);
        command.output().expect("the command starts")
    };
    let output = as_nobody(&["status"], &control);
    let said = errors(&output);
    assert!(!output.status.success() && said.contains("ermission denied"), "{said}");
    let output = as_nobody(&["status"], &read_only);
    assert!(output.status.success(), "{}", errors(&output));
    let said = errors(&as_nobody(&["park", "1"], &read_only));
    assert!(said.contains("looking only"), "{said}");
    service.finish(PATIENCE);
}

#[test]
fn rubbish_on_the_socket_stops_nobody() {
    let Some(net) = two_threads("rubbish_on_the_socket_stops_nobody") else { return };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    let mut junk: Vec<UnixStream> = Vec::new();
    for i in 0..100u64 {
        let mut client = UnixStream::connect(control(&net)).expect("connect");
        // Some find the socket closed already.
        let _ = match i % 4 {
            0 => client.write_all(&vec![b'x'; 20_000]),
            1 => client.write_all(b"{\"do\":\"migrate\",\"groups\":\"0-"),
            2 => client.write_all(&[0xff, b'\n', 0, b'\n', b'{', b'\n']),
            _ => client.write_all(b"{\"do\":\"subscribe\",\"to\":\"stats\",\"interval_ms\":10}\n"),
        };
        junk.push(client);
        echo(&mut stream, i, 64);
    }
    assert!(says(&net, &["status"]).contains("ix-echo"));
    drop(junk);
    close(stream);
    service.finish(PATIENCE);
}

#[test]
fn a_subscription_goes_on_until_the_end() {
    let Some(net) = two_threads("a_subscription_goes_on_until_the_end") else { return };
    let service = net.serve(&["64"]);
    let mut client = BufReader::new(UnixStream::connect(control(&net)).expect("connect"));
    client.get_ref().set_read_timeout(Some(PATIENCE)).expect("timeout");
    let subscribe = b"{\"do\":\"subscribe\",\"interval_ms\":20}\n";
    client.get_ref().write_all(subscribe).expect("write");
    let mut line = String::new();
    let mut seen = 0;
    while seen < 5 {
        line.clear();
        assert!(client.read_line(&mut line).expect("a line") > 0, "it hung up");
        let value: Value = serde_json::from_str(&line).expect("JSON");
        seen += usize::from(value["snapshot"]["threads"].is_array());
    }
    service.finish(PATIENCE);
    // Whatever is under way comes, then the end.
    while client.read_line(&mut line).expect("the end, no error") > 0 {}
}

#[test]
fn prometheus_can_scrape_a_dataplane() {
    let Some(net) = two_threads("prometheus_can_scrape_a_dataplane") else { return };
    net.client.set_up("lo", true).expect("a loopback device");
    let service = serve_with(&net, "metrics = \"0\"");
    let line = service.process.wait_for("ix: metrics at http://127.0.0.1:", PATIENCE);
    let url = line.strip_prefix("ix: metrics at http://").expect("its address");
    let (address, path) = url.split_once('/').expect("a path");
    let scrape = || {
        let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        let (head, body) = http(&net.client, address, &request);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        Samples::parse(&body)
    };
    let sum = |samples: &Samples, name: &str| samples.sum(name, &[]).expect("there");
    let before = scrape();
    let mut streams: Vec<_> = net.client.run(|| (0..10).map(|_| connect()).collect());
    streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
    let after = scrape();
    assert_eq!(sum(&after, "ix_flows"), 10.0);
    let accepted = "ix_accepted_connections_total";
    assert_eq!(sum(&after, accepted) - sum(&before, accepted), 10.0);
    let sent = "ix_sent_packets_total";
    assert!(sum(&after, sent) > sum(&before, sent));
    let (head, _) = http(&net.client, address, "GET / HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = http(&net.client, address, "DELETE /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    // One that says nothing stops nobody.
    let silent = net.client.run(|| TcpStream::connect(address).expect("connect"));
    scrape();
    drop(silent);
    // The command prints the same text.
    let text = says(&net, &["metrics"]);
    assert_eq!(sum(&Samples::parse(&text), "ix_flows"), 10.0);
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

//! A program and its dataplane that take turns on one hardware thread.
use crate::support::traffic::message;
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Echoes one connection, and starts threads of computation when that sends a `!`.
const PROGRAM: &str = "
import os, signal, socket
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
print('serves', flush=True)
connection, _ = listener.accept()
while True:
    data = connection.recv(1000)
    if not data: break
    if data.startswith(b'!'):
        for _ in range(40):
            if os.fork() == 0:
                signal.alarm(60)
                while True: pass
    connection.sendall(data)
";

/// Whether the dataplane has a share of processor time of its own; `None`: it is in no group.
fn has_own_share(service: &Service) -> Option<bool> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", service.dataplane()));
    let groups = groups.expect("its groups");
    let run = format!("/ix-{}-", service.process.pid());
    groups.contains(&run).then(|| groups.lines().any(|line| line.ends_with("-dataplane")))
}

/// They hand their hardware thread to each other within one share of its time. Threads of the
/// program that compute would keep the dataplane from it for long: it gets a share of its own.
#[test]
fn one_share_serves_two_until_the_program_has_many_threads() {
    let name = "one_share_serves_two_until_the_program_has_many_threads";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let cpu = net.cpus()[0].to_string();
    let flags = ["--domain", "process", "--program-cpus", &cpu];
    let service = net.start_env(&[], &flags, &["/usr/bin/python3", "-c", PROGRAM]);
    service.process.wait_for("serves", PATIENCE);
    match has_own_share(&service) {
        Some(own) => assert!(!own, "it has a share of its own from the beginning"),
        None => {
            return skip(name, Need::Kernel("control groups that can be written"), "no group");
        }
    }
    net.client.run(|| {
        let mut stream = TcpStream::connect(SERVICE).expect("connected");
        let mut echo = |sent: &[u8]| {
            stream.write_all(sent).expect("sent");
            let mut back = vec![0; sent.len()];
            stream.read_exact(&mut back).expect("echoed");
            assert!(back == sent, "the answer differs");
        };
        (0..100).for_each(|id| echo(&message(id, 64)));
        assert_eq!(has_own_share(&service), Some(false), "the program has one thread");
        echo(b"!");
        eventually("it gets a share of its own", || {
            echo(b"x");
            has_own_share(&service) == Some(true)
        });
    });
    service.process.wait_for("ix: many threads of /usr/bin/python3", PATIENCE);
}

//! A program and its dataplane that take turns on one hardware thread.
use crate::support::traffic::message;
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_skip::{Need, skip};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

/// Echoes one connection, and starts as many processes that compute as the first argument says: all
/// at once when that sends a `!`, or before anything else if there is a second argument.
const PROGRAM: &str = "
import os, signal, socket, sys
def compute():
    waits, starts = os.pipe()
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            os.close(starts)
            os.read(waits, 1)
            signal.alarm(60)
            while True: pass
    os.close(starts)
if sys.argv[2:]: compute()
listener = socket.socket()
listener.bind(('0.0.0.0', 7))
listener.listen()
print('serves', flush=True)
connection, _ = listener.accept()
while True:
    data = connection.recv(1000)
    if not data: break
    if data.startswith(b'!'): compute()
    connection.sendall(data)
";

/// Whether the dataplane has a share of processor time of its own; `None`: it is in no group.
fn has_own_share(service: &Service) -> Option<bool> {
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", service.dataplane()));
    let groups = groups.expect("its groups");
    let run = format!("/ix-{}-", service.process.pid());
    groups.contains(&run).then(|| groups.lines().any(|line| line.ends_with("-dataplane")))
}

/// The service with so many processes that compute, on one hardware thread with its dataplane;
/// `None`, said loudly: they are in no groups.
fn start(net: &TestNet, name: &str, arguments: &[&str]) -> Option<Service> {
    let cpu = net.cpus()[0].to_string();
    let flags = ["--domain", "process", "--program-cpus", &cpu];
    let program = ["/usr/bin/python3", "-c", PROGRAM];
    let service = net.start_env(&[], &flags, &[&program, arguments].concat());
    service.process.wait_for("serves", PATIENCE);
    if has_own_share(&service).is_none() {
        skip(name, Need::Kernel("control groups that can be written"), "no group");
        return None;
    }
    Some(service)
}

fn has_python(name: &str) -> bool {
    let has = Path::new("/usr/bin/python3").exists();
    if !has {
        skip(name, Need::Program("apt install python3"), "no python3");
    }
    has
}

/// They hand their hardware thread to each other within one share of its time. Threads of the
/// program that compute would keep the dataplane from it for long: it gets a share of its own. With
/// hundreds of them it runs too seldom for many short waits.
#[test]
fn one_share_serves_two_until_the_program_has_many_threads() {
    let name = "one_share_serves_two_until_the_program_has_many_threads";
    if !has_python(name) {
        return;
    }
    for threads in ["40", "200"] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
        let Some(service) = start(&net, name, &[threads]) else { return };
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
            stream.write_all(b"!").expect("sent");
            eventually("it gets a share of its own", || {
                stream.write_all(b"x").expect("sent");
                has_own_share(&service) == Some(true)
            });
        });
        service.process.wait_for("ix: many threads of /usr/bin/python3", PATIENCE);
    }
}

/// It starts with a share of its own: with that of its program it would take too long for ever.
#[test]
fn a_dataplane_starts_beside_many_threads_of_its_program() {
    let name = "a_dataplane_starts_beside_many_threads_of_its_program";
    if !has_python(name) {
        return;
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let Some(service) = start(&net, name, &["100", "first"]) else { return };
    service.process.wait_for("ix: packet memory:", PATIENCE);
    let said = service.process.said();
    assert!(!said.iter().any(|line| line.contains("did not start")), "{said:#?}");
    let mut stream = net.connect();
    net.client.run(|| crate::support::traffic::echo(&mut stream, 1, 64));
}

/// The shortest time slice of a process's threads, ns.
fn shortest_slice_ns(pid: libc::pid_t) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let ids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    ids.filter_map(slice_ns).min().expect("a thread")
}

fn slice_ns(thread: libc::pid_t) -> Option<u64> {
    // SAFETY: numbers only; all zero is a value of it.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::sched_attr>();
    // SAFETY: fills a local of that size.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, thread, &raw mut attr, bytes, 0) };
    (got == 0).then_some(attr.sched_runtime)
}

/// A dataplane with a shorter slice than its program's thread would get the hardware thread back
/// from each yield until it has made up for the difference.
#[test]
fn a_dataplane_yields_by_its_programs_slices() {
    let name = "a_dataplane_yields_by_its_programs_slices";
    if !has_python(name) {
        return;
    }
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let Some(service) = start(&net, name, &["0"]) else { return };
    let own_ns = slice_ns(0).expect("a slice of this thread");
    if own_ns == 0 {
        skip(name, Need::Kernel("time slices of threads (Linux 6.12)"), "the kernel has none");
        return;
    }
    net.client.run(|| {
        let mut stream = TcpStream::connect(SERVICE).expect("connected");
        eventually("it has the slice of its program", || {
            for id in 0..100 {
                crate::support::traffic::echo(&mut stream, id, 64);
            }
            shortest_slice_ns(service.dataplane()) == own_ns
        });
    });
}

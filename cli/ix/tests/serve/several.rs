//! Several processes of one program on one dataplane: they serve one listener, and whoever ends
//! takes only its own connections along.
use crate::support::process::signal;
use crate::support::traffic::echo;
use crate::support::{self, Nic, PATIENCE, Service, TestNet, connect, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

const DOMAIN: [&str; 4] = ["--domain", "process", "--posix", "off"];
const PORT: &str = "7";

/// A program with so many workers, which has also started and ended so many others; and the
/// workers' processes by their numbers.
fn start(net: &TestNet, workers: usize, churn: &str) -> (Service, BTreeMap<u32, i32>) {
    support::build_others();
    let program = support::build_program("ix-workers");
    let count = workers.to_string();
    let words = [program.to_str().expect("text"), PORT, &count, churn];
    let mut service = net.start_env(&[], &DOMAIN, &words);
    let mut processes = BTreeMap::new();
    eventually("all workers serve", || {
        service.process.check();
        for line in service.process.said() {
            let mut words = line.split(' ');
            if let (Some("worker"), Some(number), Some(pid)) =
                (words.next(), words.next(), words.next())
            {
                processes.insert(number.parse().expect("a number"), pid.parse().expect("a pid"));
            }
        }
        processes.len() == workers
    });
    (service, processes)
}

/// The number of the worker that has a connection.
fn worker_of(stream: &mut TcpStream) -> u32 {
    stream.write_all(b"?").expect("asks");
    let mut number = [0; 2];
    stream.read_exact(&mut number).expect("a number");
    std::str::from_utf8(&number).expect("text").parse().expect("a number")
}

#[test]
fn workers_serve_one_listener_and_one_that_is_killed_ends_alone() {
    let name = "workers_serve_one_listener_and_one_that_is_killed_ends_alone";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let (service, workers) = start(&net, 4, "0");
    net.client.run(|| {
        let mut all: Vec<(TcpStream, u32)> = (0..40)
            .map(|_| {
                let mut stream = connect();
                let number = worker_of(&mut stream);
                (stream, number)
            })
            .collect();
        let serving: BTreeSet<u32> = all.iter().map(|(_, number)| *number).collect();
        let expected: BTreeSet<u32> = workers.keys().copied().collect();
        assert_eq!(serving, expected, "each has connections");
        for (round, (stream, _)) in all.iter_mut().enumerate() {
            echo(stream, round as u64, 64);
        }
        let (victim, pid) = workers.iter().next().expect("a worker");
        signal(*pid, libc::SIGKILL);
        for (round, (stream, number)) in all.iter_mut().enumerate() {
            if number == victim {
                let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
                assert!(ended, "the peer is told");
            } else {
                echo(stream, round as u64, 64);
            }
        }
        for round in 0..20 {
            let mut stream = connect();
            assert_ne!(worker_of(&mut stream), *victim);
            echo(&mut stream, round, 64);
        }
    });
    service.finish(PATIENCE);
}

#[test]
fn a_worker_that_computes_or_does_not_read_harms_no_other_one() {
    let name = "a_worker_that_computes_or_does_not_read_harms_no_other_one";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let (service, workers) = start(&net, 2, "0");
    net.client.run(|| {
        // One that computes without end, with a connection of its own.
        let mut busy = connect();
        let number = worker_of(&mut busy);
        busy.write_all(b"c").expect("sends");
        for round in 0..20 {
            let mut stream = connect();
            assert_ne!(worker_of(&mut stream), number, "the other one gets all");
            echo(&mut stream, round, 64);
        }
        busy.write_all(&[0; 1000]).expect("is kept");
        signal(workers[&number], libc::SIGKILL);
        let ended = matches!(busy.read(&mut [0; 64]), Ok(0) | Err(_));
        assert!(ended, "the peer is told");
    });
    service.finish(PATIENCE);
}

/// What the dataplane's process has: mappings, descriptors, and pages of memory.
fn what_it_has(service: &Service) -> [usize; 3] {
    let folder = format!("/proc/{}", service.dataplane());
    let read = |file: &str| std::fs::read_to_string(format!("{folder}/{file}")).expect(file);
    let pages = read("statm").split(' ').nth(1).and_then(|word| word.parse().ok());
    let fds = std::fs::read_dir(format!("{folder}/fd")).expect("descriptors").count();
    [read("maps").lines().count(), fds, pages.expect("a number")]
}

#[test]
fn after_a_thousand_processes_nothing_is_left_of_them() {
    const CHURN: usize = 1_000;
    /// Pages that the allocator may keep.
    const PAGES: usize = 512;
    let name = "after_a_thousand_processes_nothing_is_left_of_them";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let (mut service, _) = start(&net, 2, &CHURN.to_string());
    let done = format!("churned {CHURN}");
    let [maps, fds, pages] = what_it_has(&service);
    let mut rounds = 0;
    net.client.run(|| {
        let mut streams: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        while !service.process.said().contains(&done) {
            service.process.check();
            streams.iter_mut().for_each(|stream| echo(stream, rounds, 64));
            rounds += 1;
        }
        for stream in &mut streams {
            echo(stream, rounds, 64);
        }
    });
    assert!(rounds > 10, "{rounds}");
    // The range for transmit memory stays reserved.
    let is_left = |now: [usize; 3]| now[0] > maps + 2 || now[1] > fds || now[2] > pages + PAGES;
    eventually("nothing is left", || !is_left(what_it_has(&service)));
    service.finish(PATIENCE);
}

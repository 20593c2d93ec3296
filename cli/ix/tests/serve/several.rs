//! Several processes of one program on one dataplane. They serve one listener, and a process that
//! ends takes only its own connections along.
use crate::support::process::signal;
use crate::support::traffic::echo;
use crate::support::{self, Nic, PATIENCE, Service, TestNet, connect, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const DOMAIN: [&str; 4] = ["--domain", "process", "--posix", "off"];
const PORT: &str = "7";

/// Starts a program with `workers` workers that has started and ended `churn` others before.
/// Returns it, and the workers' processes by their numbers.
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
        // Operators see whose each is.
        for (number, pid) in &workers {
            let asked = service.client().ask(&format!(r#"{{"do":"connections","process":{pid}}}"#));
            let ports = |stream: &TcpStream| stream.local_addr().expect("an address").port();
            let theirs = all.iter().filter(|(_, of)| of == number);
            let expected: BTreeSet<u16> = theirs.map(|(stream, _)| ports(stream)).collect();
            let seen = asked.expect("connections")["connections"].clone();
            let port =
                |one: &serde_json::Value| one["peer"].as_str()?.rsplit(':').next()?.parse().ok();
            let seen: BTreeSet<u16> =
                seen.as_array().expect("a list").iter().filter_map(port).collect();
            assert_eq!(seen, expected, "of worker {number}");
        }
        let foreign = service.client().ask(r#"{"do":"connections","process":1}"#);
        assert!(foreign.expect_err("refused").contains("does not share this dataplane"));
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

/// Its bells stay open, because a child has copies of them.
#[test]
fn a_worker_that_executes_another_program_ends_for_its_peers() {
    let name = "a_worker_that_executes_another_program_ends_for_its_peers";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let (service, workers) = start(&net, 2, "0");
    net.client.run(|| {
        let mut stream = connect();
        let number = worker_of(&mut stream);
        stream.write_all(b"x").expect("sends");
        let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
        assert!(ended, "the peer is told");
        let pid = workers[&number];
        let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        assert_eq!(program, "sleep\n");
        for round in 0..20 {
            let mut stream = connect();
            assert_ne!(worker_of(&mut stream), number);
            echo(&mut stream, round, 64);
        }
        signal(pid, libc::SIGKILL);
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

/// Starts another program that shares its dataplane, and waits until it says this.
fn start_program(net: &TestNet, name: &'static str, ready: &str) -> Service {
    support::build_others();
    let program = support::build_program(name);
    let service = net.start_env(&[], &DOMAIN, &[program.to_str().expect("text"), PORT]);
    service.process.wait_for(ready, PATIENCE);
    service
}

#[test]
fn a_connection_is_given_to_another_process_with_what_was_not_read() {
    let name = "a_connection_is_given_to_another_process_with_what_was_not_read";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = start_program(&net, "ix-givers", "ready");
    let pid = |who: &str| {
        let line = service.process.wait_for(who, PATIENCE);
        line.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a pid")
    };
    let (giver, taker): (i32, i32) = (pid("giver "), pid("taker "));
    let mut streams = net.client.run(|| {
        let mut streams: Vec<TcpStream> = (0..8).map(|_| connect()).collect();
        for (round, stream) in streams.iter_mut().enumerate() {
            // The giver returns the first byte, and gives the others away unread.
            let unread = format!("{round} bytes that the giver does not read");
            stream.write_all(format!("!{unread}").as_bytes()).expect("sends");
            let mut echoed = vec![0; unread.len()];
            stream.read_exact(&mut echoed).expect("an echo");
            assert_eq!(String::from_utf8_lossy(&echoed), unread);
            echo(stream, round as u64, 64);
        }
        streams
    });
    service.process.wait_for("gave 8", PATIENCE);
    // They are the taker's: the end of the giver ends none of them.
    signal(giver, libc::SIGKILL);
    net.client.run(|| {
        streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
        signal(taker, libc::SIGKILL);
        for stream in &mut streams {
            let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
            assert!(ended, "the peer is told");
        }
    });
    // A peer that got FIN must close too. It got RST where the last echo was not acknowledged.
    drop(streams);
    service.finish(PATIENCE);
}

/// What `ix ctl status` says of who shares the dataplane.
fn sharing(service: &Service) -> serde_json::Value {
    let answer = service.client().ask("{\"do\":\"status\"}").expect("status");
    answer["sharing"].clone()
}

#[test]
fn a_process_that_is_none_of_the_programs_is_refused_and_counted() {
    let name = "a_process_that_is_none_of_the_programs_is_refused_and_counted";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let (service, workers) = start(&net, 2, "0");
    let who = sharing(&service);
    assert_eq!(who["refused"], 0, "{who}");
    let pids = who["processes"].as_array().expect("a list").iter();
    let pids: BTreeSet<u64> = pids.filter_map(|one| one["pid"].as_u64()).collect();
    let mut expected: BTreeSet<u64> = workers.values().map(|pid| *pid as u64).collect();
    expected.insert(service.program() as u64);
    assert_eq!(pids, expected);
    let foreign = support::build_program("ix-foreign");
    let asked = std::process::Command::new(foreign).arg(workers[&1].to_string()).output();
    let asked = asked.expect("it starts");
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(said.starts_with("asked ") && !said.starts_with("asked 0"), "{asked:?}");
    eventually("it is refused", || sharing(&service)["refused"].as_u64() > Some(0));
    let why = "is not one of the program's, and gets no part of its dataplane";
    eventually("it is said", || service.process.said().iter().any(|line| line.contains(why)));
    assert_eq!(sharing(&service)["processes"].as_array().map(Vec::len), Some(3));
    net.client.run(|| echo(&mut connect(), 1, 64));
    // The others can still attach and end.
    signal(workers[&1], libc::SIGKILL);
    eventually("it is gone", || sharing(&service)["processes"].as_array().map(Vec::len) == Some(2));
    net.client.run(|| echo(&mut connect(), 2, 64));
    service.finish(PATIENCE);
}

#[test]
fn connections_move_between_elastic_threads_while_processes_come_and_go() {
    const CHURN: usize = 200;
    let name = "connections_move_between_elastic_threads_while_processes_come_and_go";
    let Some(net) = TestNet::new(name, Nic::Tap, 2) else { return };
    let (mut service, _) = start(&net, 3, &CHURN.to_string());
    let done = format!("churned {CHURN}");
    let mut client = service.client();
    let (mut rounds, mut moved) = (0, 0);
    net.client.run(|| {
        let mut streams: Vec<TcpStream> = (0..12).map(|_| connect()).collect();
        while !service.process.said().contains(&done) || moved < 10 {
            service.process.check();
            // Some are refused, because a process has just begun to compute.
            moved += usize::from(client.migrate("0-127", rounds as usize % 2).is_ok());
            streams.iter_mut().for_each(|stream| echo(stream, rounds, 64));
            if rounds % 8 == 0 {
                streams.rotate_left(1);
                streams[0] = connect();
            }
            rounds += 1;
            assert!(rounds < 20_000, "{moved} moved; {:#?}", service.process.said());
        }
    });
    assert_eq!(service.stats().total("misrouted"), 0);
    service.finish(PATIENCE);
}

/// A process that computes while flow groups move hears of them later, and goes on.
#[test]
fn a_process_that_computes_while_connections_move_keeps_its_own() {
    let name = "a_process_that_computes_while_connections_move_keeps_its_own";
    let Some(net) = TestNet::new(name, Nic::Tap, 2) else { return };
    let (service, _) = start(&net, 2, "0");
    let mut client = service.client();
    let mut ends = [0, 0];
    net.client.run(|| {
        let mut streams: Vec<TcpStream> = (0..12).map(|_| connect()).collect();
        for round in 0..24 {
            let busy = round % streams.len();
            streams[busy].write_all(b"s").expect("asks");
            let moved = client.migrate("0-127", round / 2 % 2).is_ok();
            ends[usize::from(moved)] += 1;
            streams[busy].read_exact(&mut [0]).expect("an answer");
            // Nothing else wakes the threads.
            for stream in &mut streams {
                echo(stream, round as u64, 64);
            }
        }
    });
    assert!(ends[1] > 0, "{ends:?}");
    service.finish(PATIENCE);
}

/// An echo server that is stopped before it maps what it shares with its dataplane.
fn stopped_before_it_maps(net: &TestNet) -> (Service, i32) {
    let echo = support::build_echo();
    Service::stopped_before_it_maps(net, &[echo.to_str().expect("text"), "64"], "ix-echo")
}

/// The broker does not wait for a program that is stopped before it has mapped what it shares with
/// its dataplane: operators are answered, what they change holds, and the program goes on later.
#[test]
fn a_program_that_does_not_map_what_it_asked_for_keeps_nobody_waiting() {
    const LATE: Duration = Duration::from_secs(11);
    let name = "a_program_that_does_not_map_what_it_asked_for_keeps_nobody_waiting";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 2) else { return };
    let (service, program) = stopped_before_it_maps(&net);
    let since = Instant::now();
    let mut client = service.client();
    for (line, is_done) in [
        (r#"{"do":"vnic"}"#, true),
        (r#"{"do":"rate","tx":"10pps"}"#, true),
        (r#"{"do":"connections"}"#, true),
        // Carried out, or refused because no thread comes by.
        (r#"{"do":"park","thread":1}"#, false),
        (r#"{"do":"resume","thread":1}"#, false),
    ] {
        let asked = Instant::now();
        let answer = client.ask(line);
        assert!(answer.is_ok() || !is_done, "{line}: {answer:?}");
        assert!(asked.elapsed() < Duration::from_secs(4), "{line}: {:?}", asked.elapsed());
    }
    std::thread::sleep(LATE.saturating_sub(since.elapsed()));
    signal(program, libc::SIGCONT);
    service.process.wait_for("ready", PATIENCE);
    net.client.run(|| {
        let (mut stream, since) = (connect(), Instant::now());
        (0..20).for_each(|round| echo(&mut stream, round, 64));
        assert!(since.elapsed() > Duration::from_millis(500), "{:?}", since.elapsed());
    });
    service.process.terminate();
}

/// A program that ends before it has mapped what it shares ends its run, as any other one does.
#[test]
fn a_program_that_ends_before_it_maps_ends_its_run() {
    let name = "a_program_that_ends_before_it_maps_ends_its_run";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let (service, program) = stopped_before_it_maps(&net);
    signal(program, libc::SIGKILL);
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(128 + libc::SIGKILL), "{said:#?}");
}

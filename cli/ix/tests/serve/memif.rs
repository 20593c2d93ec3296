//! Service and load, each on a dataplane of its own, over shared memory.
use super::connections::{connections, list};
use crate::support;
use crate::support::memif::{Host, MemifNet, answer};
use crate::support::process::{cpu_time, signal};
use crate::support::{PATIENCE, Service};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Who listens at the memif's socket.
const ROLES: [(&str, &str); 2] = [("role=server", "role=client"), ("role=client", "role=server")];

fn assert_clean(result: &Value) {
    assert_eq!(result["errors"], 0, "{result}");
    assert!(result["msgs_per_s"].as_f64().expect("a rate") > 1000.0, "{result}");
}

#[test]
fn echoes_come_back_whoever_listens_and_whoever_starts_first() {
    for (theirs, ours) in [ROLES[0], ROLES[1], ("", "")] {
        let name = "echoes_come_back_whoever_listens_and_whoever_starts_first";
        let Some(net) = MemifNet::new(name, 1) else { return };
        let load = ["--connections", "16", "--seconds", "0.5"];
        let service = net.serve(theirs, &["64"]);
        assert_clean(&answer(net.ask(ours, &load), PATIENCE));
        service.finish(PATIENCE);

        let asker = net.ask(ours, &load);
        asker.process.wait_for("ix: device memif:", PATIENCE);
        let service = net.serve(theirs, &["64"]);
        assert_clean(&answer(asker, PATIENCE));
        service.process.wait_for(&format!("ix: memif:{}: peer", net.path().display()), PATIENCE);
        service.finish(PATIENCE);
    }
}

#[test]
fn bulk_goes_both_ways() {
    let bytes = 64 << 20;
    for (theirs, ours) in ROLES {
        let Some(net) = MemifNet::new("bulk_goes_both_ways", 1) else { return };
        let service = net.serve(theirs, &["bulk"]);
        for direction in ["send", "recv", "both"] {
            let load = ["--bulk", direction, "--bytes", &bytes.to_string()];
            let result = answer(net.ask(ours, &load), Duration::from_secs(60));
            let wanted = |wants: bool| if wants { bytes } else { 0 };
            assert_eq!(result["bytes_sent"], wanted(direction != "recv"), "{result}");
            assert_eq!(result["bytes_received"], wanted(direction != "send"), "{result}");
            eprintln!("{theirs} {direction}: {} Mbit/s", result["mbit_per_s"]);
        }
        service.finish(PATIENCE);
    }
}

#[test]
fn ten_thousand_connections() {
    for (theirs, ours) in ROLES {
        let Some(net) = MemifNet::new("ten_thousand_connections", 1) else { return };
        let service = net.serve(theirs, &["64"]);
        let load = ["--connections", "10000", "--in-flight", "256", "--seconds", "1"];
        assert_clean(&answer(net.ask(ours, &load), PATIENCE));
        // The asker's host vanishes with ten thousand resets under way: more than the link holds,
        // and nobody is left to say anew that the connections are gone.
        let stats = service.stats();
        service.process.terminate();
        assert_eq!(stats.total("flows_peak"), 10_000, "{stats}");
    }
}

#[test]
fn flows_come_in_on_the_thread_that_owns_them() {
    for (theirs, ours) in ROLES {
        let Some(net) = MemifNet::new("flows_come_in_on_the_thread_that_owns_them", 2) else {
            return;
        };
        let service = net.serve(theirs, &["64"]);
        let load = ["--connections", "64", "--seconds", "1"];
        assert_clean(&answer(net.ask(ours, &load), PATIENCE));
        let stats = service.finish(PATIENCE);
        assert!(stats.each("accepted").iter().all(|accepted| *accepted > 0), "{stats}");
        assert_eq!(stats.total("forwarded"), 0, "the peer follows our table: {stats}");
    }
}

/// One end is killed and comes back, again and again; connections end as TCP has it, new ones work,
/// and nothing is left in the end.
fn restarts(name: &str, killed: Host, times: usize) {
    for (theirs, ours) in ROLES {
        let Some(net) = MemifNet::new(name, 1) else { return };
        let serve = || net.serve(theirs, &["64"]);
        let ask = || net.ask(ours, &["--connections", "16", "--seconds", "600"]);
        let (mut service, mut asker) = (serve(), ask());
        for _ in 0..times {
            goes_on(&service, &asker);
            if killed == Host::Service {
                kill(service, &asker);
                service = serve();
            } else {
                kill(asker, &service);
                asker = ask();
            }
        }
        goes_on(&service, &asker);
        assert!(!asker.process.said().iter().any(|line| line.contains("differs")));
        // The last one leaves its connections behind. The next one answers what the service
        // sends again with resets; on a busy machine that is only after seconds.
        kill(asker, &service);
        let is_over = ["1.5", "3", "5", "20"].iter().any(|seconds| {
            let done = net.ask(ours, &["--connections", "1", "--seconds", seconds]);
            let (status, said) = done.process.wait(PATIENCE * 2);
            assert!(status.success(), "{said:#?}");
            within(Duration::from_secs(2), || service.stats().leftovers().is_empty())
        });
        assert!(is_over, "{}", service.stats());
        service.finish(PATIENCE);
    }
}

/// Whether it holds before the time is over.
fn within(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Waits until messages go back and forth.
#[track_caller]
fn goes_on(service: &Service, asker: &Service) {
    let at = service.stats().total("rx_packets") + 1000;
    let what = format!("messages go on; the other end: {}", asker.process);
    service.wait_until(&what, PATIENCE, |stats| stats.total("rx_packets") > at);
}

/// Kills the command, its program and its dataplane, and waits until they are gone. They die at a
/// moment when the other end has something to send on every connection: to who has all that he
/// asked for nothing is sent again, and nobody would ever know that he is gone. (While an
/// application is away, its dataplane acknowledges, so both are stopped.)
fn kill(service: Service, other: &Service) {
    let victims = [service.dataplane(), service.program()];
    let signal_all = |number| victims.iter().for_each(|pid| signal(*pid, number));
    let owes = |c: &Value| c["snd_queued_bytes"] != 0 || c["in_flight_bytes"] != 0;
    support::eventually("it is owed something on every connection", || {
        signal_all(libc::SIGSTOP);
        let answer = || connections(other, "");
        let is_owed = within(Duration::from_millis(200), || list(&answer()).iter().all(owes));
        if !is_owed {
            signal_all(libc::SIGCONT);
        }
        is_owed
    });
    service.process.signal(libc::SIGKILL);
    // The program dies with the command. A dataplane of its own would close the connections first.
    if victims[0] != victims[1] {
        signal(victims[0], libc::SIGKILL);
    }
    drop(service);
    let is_over = || victims.iter().all(|pid| !support::process::is_alive(*pid));
    support::eventually("all are gone", is_over);
}

#[test]
fn the_service_may_be_killed_and_restarted() {
    restarts("the_service_may_be_killed_and_restarted", Host::Service, 3);
}

#[test]
fn the_asker_may_be_killed_and_restarted() {
    restarts("the_asker_may_be_killed_and_restarted", Host::Asker, 3);
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn both_may_be_killed_and_restarted_twenty_times() {
    for host in [Host::Service, Host::Asker] {
        restarts("both_may_be_killed_and_restarted_twenty_times", host, 20);
    }
}

#[test]
fn a_silent_link_costs_nothing() {
    for (theirs, ours) in ROLES {
        let Some(net) = MemifNet::new("a_silent_link_costs_nothing", 1) else { return };
        let service = net.serve(theirs, &["64"]);
        // A host that says nothing is another server.
        let echo = support::build_echo();
        let other = net.start(Host::Asker, ours, &[echo.to_str().expect("text"), "64"]);
        other.process.wait_for("ready", PATIENCE);
        std::thread::sleep(Duration::from_secs(1));
        let asleep = Duration::from_secs(2);
        let programs = [service.program(), other.program(), service.process.pid()];
        let before = programs.map(cpu_time);
        std::thread::sleep(asleep);
        for (program, before) in programs.into_iter().zip(before) {
            let used = cpu_time(program) - before;
            assert!(used < asleep / 100, "{theirs}: {used:?} of CPU time in {asleep:?} of silence");
        }
        other.process.terminate();
        assert_clean(&answer(net.ask(ours, &["--seconds", "0.3"]), PATIENCE));
        service.finish(PATIENCE);
    }
}

/// Both ends say in one line what does not fit, and a peer that fits is still welcome.
#[test]
fn a_peer_that_does_not_fit_is_refused_in_one_line() {
    for (wrong, says) in [("role=client,secret=b", "secret"), ("role=client,secret=a,id=7", "id")] {
        let name = "a_peer_that_does_not_fit_is_refused_in_one_line";
        let Some(net) = MemifNet::new(name, 1) else { return };
        let service = net.serve("role=server,secret=a", &["64"]);
        let stranger = net.ask(wrong, &["--seconds", "0.5"]);
        let prefix = format!("ix: memif:{}", net.path().display());
        for process in [&service.process, &stranger.process] {
            support::eventually("it is told", || {
                let said = process.said();
                said.iter().any(|line| line.starts_with(&prefix) && line.contains(says))
            });
        }
        stranger.process.signal(libc::SIGKILL);
        drop(stranger);
        let right = net.ask("role=client,secret=a", &["--seconds", "0.3"]);
        assert_clean(&answer(right, PATIENCE));
        // Asked again and again, told once.
        let lines = service.process.said();
        let told = lines.iter().filter(|line| line.starts_with(&prefix) && line.contains(says));
        assert!(told.count() <= 3, "{lines:#?}");
        service.finish(PATIENCE);
    }
}

//! Elastic threads that are parked, resumed and drained under connections from Linux.
use super::vnic::says;
use crate::support::process::{cpu_time_on, signal};
use crate::support::traffic::{Crowd, close, echo};
use crate::support::{Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_testbed::cpu;
use std::time::Duration;

const CONNECTIONS: usize = 8;
const SIZE: usize = 512;

fn state_of(service: &Service, thread: usize) -> String {
    service.stats().state(thread)
}

/// Echoes on many connections, old ones and new ones, while `work` runs.
fn under_traffic(net: &TestNet, work: impl FnOnce() + Send) -> u64 {
    Crowd { service: SERVICE, size: SIZE, turnover: true }.during(&net.client, work)
}

fn parked_and_resumed(test: &str, nic: Nic) {
    let Some(net) = TestNet::alone(test, nic, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    let rounds = 20;
    let echoed = under_traffic(&net, || {
        let mut client = service.client();
        for round in 0..rounds {
            let thread = round % 2;
            client.thread("park", thread).unwrap_or_else(|e| panic!("park {thread}: {e}"));
            assert_eq!(state_of(&service, thread), "parked");
            std::thread::sleep(Duration::from_millis(20));
            let last = client.thread("park", 1 - thread).expect_err("the last one");
            assert!(last.contains("last active"), "{last}");
            client.thread("resume", thread).unwrap_or_else(|e| panic!("resume {thread}: {e}"));
            assert_eq!(state_of(&service, thread), "active");
            std::thread::sleep(Duration::from_millis(20));
            if round % 5 == 0 {
                client.migrate("0-31", thread).expect("migrates");
                client.thread("drain", thread).expect("drains");
            }
        }
    });
    let stats = service.finish(PATIENCE);
    eprintln!("{nic:?}: {rounds} times parked and resumed, {echoed} messages\n{stats}");
    assert_eq!(stats.drops(), 0, "{stats}");
    assert_eq!(stats.number("commands.timed_out"), 0);
}

#[test]
fn no_connection_breaks_when_threads_are_parked_and_resumed_over_tap() {
    let test = "no_connection_breaks_when_threads_are_parked_and_resumed_over_tap";
    parked_and_resumed(test, Nic::Tap);
}

#[test]
fn no_connection_breaks_when_threads_are_parked_and_resumed_over_afxdp() {
    let test = "no_connection_breaks_when_threads_are_parked_and_resumed_over_afxdp";
    parked_and_resumed(test, Nic::Afxdp);
}

#[test]
fn a_parked_thread_sleeps_and_wakes_at_once() {
    let Some(net) = TestNet::alone("a_parked_thread_sleeps_and_wakes_at_once", Nic::Tap, 2) else {
        return;
    };
    let service = net.serve(&[&SIZE.to_string()]);
    let mut client = service.client();
    let (program, second) = (service.program(), cpu::allowed()[1]);
    let mut wakes_us = Vec::new();
    for _ in 0..20 {
        client.thread("park", 1).expect("parks");
        std::thread::sleep(Duration::from_millis(20));
        client.thread("resume", 1).expect("resumes");
        wakes_us.push(service.stats().number("threads.1.wake_ns") as f64 / 1000.0);
    }
    wakes_us.sort_by(f64::total_cmp);
    let [least, median, most] = [0, wakes_us.len() / 2, wakes_us.len() - 1].map(|i| wakes_us[i]);
    eprintln!("from the call to awake: {least:.1} us at least, {median:.1} median, {most:.1} most");
    // A noisy machine may take its time; a thread that polls now and then takes milliseconds.
    assert!(median < 2_000.0, "{wakes_us:?}");
    client.thread("park", 1).expect("parks");
    let before = cpu_time_on(program, second);
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| net.connect()).collect();
    let end = std::time::Instant::now() + Duration::from_secs(2);
    let mut id = 0;
    while std::time::Instant::now() < end {
        for stream in &mut streams {
            echo(stream, id, SIZE);
            id += 1;
        }
    }
    let used = cpu_time_on(program, second) - before;
    eprintln!("{id} messages while it is parked: it used {used:?} of 2 s");
    assert!(used <= Duration::from_millis(20), "{used:?}");
    client.thread("resume", 1).expect("resumes");
    streams.iter_mut().for_each(|stream| echo(stream, id, SIZE));
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

/// A command that needs the program ends in time while all of it is stopped, and the next one is
/// taken. What needs no program is done.
#[test]
fn commands_end_in_time_while_the_program_is_stopped() {
    let test = "commands_end_in_time_while_the_program_is_stopped";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve_with(&["--domain", "process"], &[&SIZE.to_string()]);
    let mut stream = net.connect();
    echo(&mut stream, 1, SIZE);
    let mut client = service.client();
    signal(service.program(), libc::SIGSTOP);
    for round in 0..2 {
        let answers = [client.migrate("0-31", 1), client.thread("park", 1)];
        for answer in answers {
            let why = answer.expect_err("nobody carries it out");
            assert!(why.contains("did not return in time"), "{round}: {why}");
        }
        assert!(["active", "non-responsive"].contains(&&state_of(&service, 1)[..]), "{round}");
    }
    says(&service, &["rate", "--tx", "1Gbit"]);
    says(&service, &["rate", "--tx", "none"]);
    signal(service.program(), libc::SIGCONT);
    eventually("it is parked", || client.thread("park", 1).is_ok());
    client.thread("resume", 1).expect("resumes");
    echo(&mut stream, 2, SIZE);
    close(stream);
    service.finish(PATIENCE);
}

#[test]
fn rubbish_and_clients_that_die_leave_the_dataplane_as_it_should_be() {
    let test = "rubbish_and_clients_that_die_leave_the_dataplane_as_it_should_be";
    let Some(net) = TestNet::alone(test, Nic::Tap, 2) else { return };
    let service = net.serve(&[&SIZE.to_string()]);
    under_traffic(&net, || {
        let mut client = service.client();
        for (line, why) in [
            ("{\"do\":\"park\",\"thread\":2}", "2"),
            ("{\"do\":\"park\",\"thread\":-1}", "-1"),
            ("{\"do\":\"migrate\",\"groups\":\"0-128\",\"to\":1}", "0-128"),
            ("{\"do\":\"migrate\",\"groups\":\"-\",\"to\":1}", "no flow group"),
            ("{\"do\":\"resume\",\"thread\":1}", "elastic thread 1 is active"),
            ("{\"do\":\"explode\"}", "explode"),
            ("\u{0}", ""),
        ] {
            let said = client.ask(line).expect_err(line);
            assert!(said.contains(why), "{line:?}: {said}");
        }
        // Clients that go before their answer comes: the command is carried out, or was not read.
        for round in 0..10 {
            let (verb, wanted) =
                if round % 2 == 0 { ("park", "parked") } else { ("resume", "active") };
            service.client().say(&format!("{{\"do\":\"{verb}\",\"thread\":1}}"));
            if let Err(why) = client.thread(verb, 1) {
                assert!(why.contains(&format!("elastic thread 1 is {wanted}")), "{why}");
            }
            assert_eq!(state_of(&service, 1), wanted);
        }
        // Commands that overlap are carried out one after the other.
        let mut many: Vec<_> = (0..8).map(|_| service.client()).collect();
        many.iter_mut().for_each(|client| client.say("{\"do\":\"drain\",\"thread\":1}"));
        many.iter_mut().for_each(|client| drop(client.answer().expect("drained")));
    });
    service.finish(PATIENCE);
}

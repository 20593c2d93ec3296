//! Filters and rates of single queues of a running dataplane, with real Linux at the other end.
use super::packets::{self, ask};
use super::vnic::{capability, ctl, refused};
use crate::support::command::errors;
use crate::support::raw::Raw;
use crate::support::traffic::{Steady, close, echo};
use crate::support::{Nic, PATIENCE, Service, TestNet, eventually};
use ix_skip::{Need, skip};
use serde_json::Value;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MESSAGE: usize = 100_000;

fn has_two_cpus(test: &str) -> bool {
    let has = ix_testbed::cpu::allowed().len() >= 2;
    if !has {
        skip(test, Need::Cpus(2), "one CPU");
    }
    has
}

#[track_caller]
fn says(service: &Service, args: &[&str]) -> Value {
    let json: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    let output = ctl(service.control().to_owned(), &json);
    assert!(output.status.success(), "{args:?}: {}", errors(&output));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The elastic thread of a connection, by what the dataplane says.
fn queue_of(service: &Service, stream: &TcpStream) -> usize {
    let port = format!(":{}", stream.local_addr().expect("bound").port());
    let mut found = None;
    eventually("the connection is told", || {
        let answer = service.client().ask("{\"do\":\"connections\"}").expect("connections");
        let all = answer["connections"].as_array().expect("a list").clone();
        let ours = all.iter().find(|c| c["peer"].as_str().is_some_and(|p| p.ends_with(&port)));
        found = ours.and_then(|connection| connection["thread"].as_u64());
        found.is_some()
    });
    found.expect("a thread") as usize
}

/// A connection at each of two queues.
fn one_at_each(net: &TestNet, service: &Service) -> [TcpStream; 2] {
    let mut found = [None, None];
    // By the hash each goes to either; none of forty at one of them is 2^-39.
    for _ in 0..40 {
        let mut stream = net.connect();
        echo(&mut stream, 0, MESSAGE);
        match &mut found[queue_of(service, &stream)] {
            place @ None => *place = Some(stream),
            Some(_) => close(stream),
        }
        if found.iter().all(Option::is_some) {
            break;
        }
    }
    found.map(|stream| stream.expect("one at each queue"))
}

/// Bits a second that come back, on both connections at once.
fn received(streams: &mut [TcpStream; 2]) -> [f64; 2] {
    let rates = std::thread::scope(|scope| {
        let clients = streams.each_mut().map(|stream| {
            scope.spawn(|| {
                // What was made up for before is over then.
                echo(stream, 1, MESSAGE);
                let (start, mut messages) = (Instant::now(), 0);
                while start.elapsed() < Duration::from_millis(1500) {
                    echo(stream, 2 + messages, MESSAGE);
                    messages += 1;
                }
                messages as f64 * MESSAGE as f64 * 8.0 / start.elapsed().as_secs_f64()
            })
        });
        clients.map(|client| client.join().expect("the client ends"))
    });
    eprintln!("queue 0: {:.1} Mbit/s, queue 1: {:.1} Mbit/s", rates[0] / 1e6, rates[1] / 1e6);
    rates
}

/// A rate is a promise about the most. That the other queue has more is what it is not held to.
#[test]
fn one_queue_is_limited_and_the_other_is_not() {
    let test = "one_queue_is_limited_and_the_other_is_not";
    if !has_two_cpus(test) {
        return;
    }
    for nic in Nic::ALL {
        let Some(net) = TestNet::alone(test, nic, 2) else { return };
        let service = net.serve(&[&MESSAGE.to_string()]);
        let mut streams = one_at_each(&net, &service);
        for limited in [0, 1] {
            let queue = limited.to_string();
            let set = says(&service, &["rate", "--queue", &queue, "--tx", "20Mbit"]);
            assert_eq!(
                (&set["queue"], &set["tx_rate"]),
                (&limited.into(), &"20Mbit,burst=3028".into())
            );
            let rates = received(&mut streams);
            assert!(rates[limited] <= 20e6 * 1.02, "{nic:?}: {rates:?}");
            assert!(rates[1 - limited] >= 2.0 * 20e6, "{nic:?}: {rates:?}");
            let shown = says(&service, &["vnic"]);
            assert_eq!(shown["queue_rates"][0], set, "{shown}");
            says(&service, &["rate", "--queue", &queue, "--tx", "none"]);
            assert_eq!(says(&service, &["vnic"])["queue_rates"], Value::Array(Vec::new()));
        }
        // Its own rate and its part of the vNIC's: the less of them.
        says(&service, &["rate", "--tx", "30Mbit"]);
        says(&service, &["rate", "--queue", "1", "--tx", "5Mbit"]);
        let rates = received(&mut streams);
        assert!(rates[0] <= 15e6 * 1.02 && rates[1] <= 5e6 * 1.02, "{nic:?}: {rates:?}");
        says(&service, &["rate", "--tx", "none"]);
        says(&service, &["rate", "--queue", "1", "--tx", "none"]);
        streams.into_iter().for_each(close);
        service.finish(PATIENCE);
    }
}

/// What the file says of queues holds from the first packet on, and is what `ix ctl` changes later.
#[test]
fn the_configuration_gives_queues_filters_and_rates() {
    let test = "the_configuration_gives_queues_filters_and_rates";
    if !has_two_cpus(test) {
        return;
    }
    for nic in Nic::ALL {
        let Some(net) = TestNet::alone(test, nic, 2) else { return };
        let parts = "[vnic]\nfilters = [\"rx ip service 10.88.0.2\", \"tx tcp service 10.88.0.2:7\"]\n\
             [vnic.queue.1]\nfilters = \"tx udp service 10.88.0.2:53\"\ntx_rate = \"20Mbit\"\n";
        let echo = crate::support::build_echo();
        let program = [echo.to_str().expect("text"), &MESSAGE.to_string()];
        let service = net.start_before(parts, &program);
        service.process.wait_for("ready", PATIENCE);
        let shown = says(&service, &["vnic"]);
        let filters = shown["filters"].as_array().expect("a list");
        let queues: Vec<_> = filters.iter().map(|filter| filter["queue"].as_u64()).collect();
        assert_eq!(queues, [None, None, Some(1)], "{shown}");
        assert_eq!(shown["queue_rates"][0]["tx_rate"], "20Mbit,burst=3028", "{shown}");
        let mut streams = one_at_each(&net, &service);
        let rates = received(&mut streams);
        assert!(rates[1] <= 20e6 * 1.02 && rates[0] >= 2.0 * 20e6, "{nic:?}: {rates:?}");
        says(&service, &["rate", "--queue", "1", "--tx", "none"]);
        assert!(received(&mut streams)[1] >= 2.0 * 20e6, "{nic:?}: it was lifted");
        streams.into_iter().for_each(close);
        service.finish(PATIENCE);
    }
}

/// Always such that the load may pass: no answer is wrong, and none is missing.
#[test]
fn a_hundred_changes_of_queues_disturb_nobody() {
    let test = "a_hundred_changes_of_queues_disturb_nobody";
    if !has_two_cpus(test) {
        return;
    }
    let Some(net) = TestNet::new(test, Nic::Tap, 2) else { return };
    let service = net.serve(&["100"]);
    net.client.run(|| {
        Steady::during(100, |steady| {
            let mut client = service.client();
            let mut ask =
                |line: String| client.ask(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
            // One filter holds everywhere; the other one goes from queue to queue.
            let create = |filter: &str| {
                format!(
                    "{{\"do\":\"filter-create\",\"filters\":[\"{filter}\"],\"holder\":\"web\"}}"
                )
            };
            ask(create("tx tcp service 10.88.0.2:7"));
            let made = ask(create("tx tcp service 10.88.0.2:1-100"));
            let key = capability(&made);
            for round in 0..100u64 {
                let queue = round % 2;
                ask(format!(
                    "{{\"do\":\"filter-assign\",\"capability\":\"{key}\",\"queue\":{queue}}}"
                ));
                let rate = format!("{}Mbit", 100 + round);
                ask(format!("{{\"do\":\"rate\",\"queue\":{queue},\"tx\":\"{rate}\"}}"));
                ask(format!("{{\"do\":\"rate\",\"queue\":{},\"tx\":\"none\"}}", 1 - queue));
                if round % 20 == 0 {
                    steady.goes_on();
                }
            }
            ask("{\"do\":\"filter-remove\"}".to_owned());
            steady.goes_on();
        });
    });
    let stats = service.finish(PATIENCE);
    for reason in ["tx_foreign_queue", "tx_foreign_port", "tx_foreign_address", "tx_rate"] {
        assert_eq!(stats.total(&format!("drops.{reason}")), 0, "{reason}: {stats}");
    }
}

/// What a program receives below TCP comes to the queue that its filter is assigned to, wherever it
/// came in: only that one may answer, and it does, at once and every time.
#[test]
fn packets_are_given_to_the_queue_that_holds_their_filter() {
    let test = "packets_are_given_to_the_queue_that_holds_their_filter";
    if !has_two_cpus(test) {
        return;
    }
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 2) else { return };
        let service = packets::serve(&net, "ip");
        let raw = Raw::open(&net);
        let is_answered = |id: u32| {
            let name = id.to_be_bytes();
            assert_eq!(ask(&raw, &name, &[id, 1]), packets::answer(&name, id + 1), "{nic:?}");
        };
        is_answered(0);
        let keys = ["rx", "tx"].map(|direction| {
            let filter = format!("{direction} ip proto 253 service 10.88.0.2");
            let made = says(&service, &["filter", "create", &filter, "--queue", "1"]);
            assert_eq!(made["filters"][0]["queue"], 1, "{made}");
            capability(&made)
        });
        let shown = says(&service, &["vnic"]);
        assert!(shown["filters"].as_array().is_some_and(|all| all.iter().all(|f| f["queue"] == 1)));
        let mut client = service.client();
        let held_back = |service: &Service| service.stats().total("drops.tx_foreign_queue");
        for round in 0..100 {
            let queue = round % 2;
            for key in &keys {
                let line = format!(
                    "{{\"do\":\"filter-assign\",\"capability\":\"{key}\",\"queue\":{queue}}}"
                );
                client.ask(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
            // Both have heard of it when the other one has answered.
            is_answered(1000 + round);
            let before = held_back(&service);
            (0..3).for_each(|n| is_answered(2000 + 10 * round + n));
            assert_eq!(held_back(&service), before, "{nic:?}, round {round}");
        }
        // The filter to send by is the other queue's: what is received is not answered.
        says(&service, &["filter", "assign", &keys[1], "--queue", "0"]);
        let before = held_back(&service);
        eventually("an answer is held back", || {
            raw.send(&packets::question(b"mine", &[1]));
            held_back(&service) > before
        });
        while raw.receive(Duration::ZERO).is_some() {}
        says(&service, &["filter", "assign", &keys[1], "--queue", "none"]);
        is_answered(5000);
        service.process.terminate();
    }
}

#[test]
fn queues_that_are_not_there_and_rights_that_nobody_has_are_refused() {
    let test = "queues_that_are_not_there_and_rights_that_nobody_has_are_refused";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    let operator = service.control().to_owned();
    let filter = "tx tcp service 10.88.0.2:7";
    let key = capability(&says(&service, &["filter", "create", filter, "--holder", "web"]));
    let forged = "0".repeat(32);
    let beyond = "vNIC `dataplane` has no queue 1: its queues are 0 to 0";
    for (args, word) in [
        (&["rate", "--queue", "1", "--tx", "1Mbit"][..], beyond),
        (&["rate", "--queue", "1"], beyond),
        (&["rate", "--queue", "0", "--tx", "0bit"], "0 lets nothing pass"),
        (&["rate", "--queue", "0", "--flow", "fast"], "invalid rate"),
        (&["filter", "create", "tx udp service 10.88.0.2", "--queue", "1"], beyond),
        (&["filter", "create", "rx tcp service 10.88.0.2:7", "--queue", "0"], "flow group"),
        (&["filter", "create", "rx ip service 10.88.0.2", "--queue", "0"], "flow group"),
        (&["filter", "assign", &key, "--queue", "1"], beyond),
        (&["filter", "assign", &forged, "--queue", "0"], "no such capability"),
        (&["filter", "assign", &key, "--to", &forged], "one vNIC"),
    ] {
        let why = refused(operator.clone(), args);
        assert!(why.contains(word), "{args:?}: {why}");
    }
    let usage = ctl(operator.clone(), &["filter", "assign", &key, "--queue", "-1"]);
    assert!(!usage.status.success(), "a negative queue");
    let usage = ctl(operator, &["filter", "assign", &key]);
    assert!(errors(&usage).contains("--to"), "{}", errors(&usage));
    // What was refused has changed nothing, and the holder of the capability may assign, until it
    // ends.
    let shown = says(&service, &["vnic"]);
    assert_eq!(shown["filters"].as_array().map(Vec::len), Some(1), "{shown}");
    assert_eq!(
        (&shown["rx_filtered"], &shown["filters"][0]["queue"]),
        (&false.into(), &Value::Null)
    );
    let readers = service.control().with_extension("ro.sock");
    let assign = ["filter", "assign", &key, "--queue", "0"];
    let assigned = ctl(readers.clone(), &assign);
    assert!(assigned.status.success(), "{}", errors(&assigned));
    let part = says(&service, &["filter", "derive", &key]);
    assert!(part["capability"].is_string());
    let shown = says(&service, &["vnic"]);
    assert_eq!(shown["filters"][1]["queue"], 0, "what is derived is the same queue's: {shown}");
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    says(&service, &["filter", "revoke", &key]);
    let why = refused(readers.clone(), &assign);
    assert!(why.contains("no such capability"), "stale: {why}");
    let why = refused(readers, &["rate", "--queue", "0", "--tx", "1Mbit"]);
    assert!(why.contains("for looking only"), "{why}");
    says(&service, &["filter", "remove", "--all"]);
    close(stream);
    service.finish(PATIENCE);
}

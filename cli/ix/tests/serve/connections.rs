//! `ix ctl connections` beside what Linux' `ss` says of the other ends of the same connections.
use crate::support::command::errors;
use crate::support::traffic::{close, echo};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::cpu;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// The answer to a survey of all connections that pass the filter: `,"thread":0`, or nothing.
pub fn connections(service: &Service, filter: &str) -> Value {
    let request = format!("{{\"do\":\"connections\"{filter}}}");
    service.client().ask(&request).unwrap_or_else(|why| panic!("{request}: {why}"))
}

/// Those it tells of.
pub fn list(answer: &Value) -> &[Value] {
    answer["connections"].as_array().expect("a list")
}

fn two_threads(test: &str, nic: Nic) -> Option<TestNet> {
    if cpu::allowed().len() < 2 {
        skip(test, Need::Cpus(2), "one CPU");
        return None;
    }
    TestNet::new(test, nic, 2)
}

fn local_port(stream: &TcpStream) -> u64 {
    stream.local_addr().expect("an address").port().into()
}

fn peer_port(connection: &Value) -> u64 {
    let peer = connection["peer"].as_str().expect("a peer");
    peer.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port")
}

/// What Linux says of its connections: `name:value` by local port; `None`, said loudly, without
/// `ss`.
fn of_linux(net: &TestNet) -> Option<HashMap<u64, HashMap<String, String>>> {
    let output = net.client.command("ss", None).args(["-tinOH"]).output();
    let Ok(output) = output else {
        skip_part("the comparison with Linux", Need::Program("apt-get install iproute2"), "no ss");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let entry = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let port = words.get(3)?.rsplit(':').next()?.parse().ok()?;
        let mut facts: HashMap<String, String> = HashMap::new();
        facts.insert("state".to_owned(), (*words.first()?).to_owned());
        let pairs = words.iter().filter_map(|word| word.split_once(':'));
        facts.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
        Some((port, facts))
    };
    Some(text.lines().filter_map(entry).collect())
}

#[test]
fn both_ends_say_the_same_of_a_connection() {
    for nic in Nic::ALL {
        let Some(net) = two_threads("both_ends_say_the_same_of_a_connection", nic) else { return };
        let service = net.serve(&["64"]);
        let mut streams: Vec<TcpStream> = (0..20).map(|_| net.connect()).collect();
        for (n, stream) in streams.iter_mut().enumerate() {
            (0..=n as u64).for_each(|id| echo(stream, id, 64));
        }
        let bytes: HashMap<u64, u64> =
            streams.iter().zip(1..).map(|(stream, n)| (local_port(stream), 64 * n)).collect();
        // Acknowledgements may be under way still.
        let all = |answer: &Value, name: &str| {
            list(answer).iter().all(|c| c[name].as_u64() == bytes.get(&peer_port(c)).copied())
        };
        eventually("all bytes are told", || {
            let answer = connections(&service, "");
            list(&answer).len() == 20 && all(&answer, "bytes_in") && all(&answer, "bytes_out")
        });
        let answer = connections(&service, "");
        assert_eq!(answer["missing_flow_groups"], "-", "{answer}");
        // The order: most bytes first.
        let told: Vec<u64> = list(&answer).iter().filter_map(|c| c["bytes_in"].as_u64()).collect();
        assert!(told.is_sorted_by(|a, b| a >= b), "{told:?}");
        let linux = of_linux(&net);
        for connection in list(&answer) {
            let port = peer_port(connection);
            assert_eq!(connection["state"], "ESTABLISHED");
            assert_eq!(connection["local"], SERVICE.to_string());
            assert_eq!(connection["peer"], format!("{CLIENT}:{port}"));
            assert!(connection["srtt_us"].as_u64() > Some(0), "{connection}");
            assert!(connection["rto_us"].as_u64() >= connection["srtt_us"].as_u64());
            let Some(linux) = linux.as_ref() else { continue };
            let facts = linux.get(&port).unwrap_or_else(|| panic!("ss lacks port {port}"));
            let number = |name: &str| facts.get(name).and_then(|v| v.parse::<u64>().ok());
            assert_eq!(facts["state"], "ESTAB");
            assert_eq!(number("bytes_received"), connection["bytes_out"].as_u64(), "{facts:?}");
            // Linux counts the SYN among what was acknowledged.
            let acked = number("bytes_acked").map(|acked| acked - 1);
            assert_eq!(acked, connection["bytes_in"].as_u64(), "{facts:?}");
            assert_eq!(number("mss"), connection["mss_bytes"].as_u64(), "{facts:?}");
        }
        streams.into_iter().for_each(close);
        service.finish(PATIENCE);
    }
}

#[test]
fn filters_name_threads_groups_peers_and_states() {
    let test = "filters_name_threads_groups_peers_and_states";
    let Some(net) = two_threads(test, Nic::Tap) else { return };
    let service = net.serve(&["64"]);
    let mut streams: Vec<TcpStream> = (0..40).map(|_| net.connect()).collect();
    streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
    let count = |filter: &str| list(&connections(&service, filter)).len();
    eventually("all are there", || count("") == 40);
    let threads = [count(",\"thread\":0"), count(",\"thread\":1")];
    assert_eq!(threads.iter().sum::<usize>(), 40);
    assert!(threads.iter().all(|n| *n > 0), "{threads:?}");
    let halves = [count(",\"groups\":\"0-63\""), count(",\"groups\":\"64-127\"")];
    assert_eq!(halves.iter().sum::<usize>(), 40);
    assert_eq!(count(&format!(",\"peer\":\"{CLIENT}\"")), 40);
    assert_eq!(count(&format!(",\"peer\":\"{CLIENT}:{}\"", local_port(&streams[7]))), 1);
    assert_eq!(count(",\"peer\":\"10.99.0.0/16\""), 0);
    assert_eq!(count(",\"state\":\"established\""), 40);
    assert_eq!(count(",\"state\":\"syn-sent\""), 0);
    let answer = connections(&service, ",\"max\":5");
    assert_eq!((list(&answer).len(), answer["matched"].as_u64()), (5, Some(40)));
    let refused = service.client().ask("{\"do\":\"connections\",\"thread\":2}");
    assert!(refused.expect_err("no such thread").contains("no elastic thread 2"));
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

/// Parked threads are asked as well, and connections are told on the thread that has them now.
#[test]
fn a_parked_thread_hides_no_connection() {
    let Some(net) = two_threads("a_parked_thread_hides_no_connection", Nic::Afxdp) else { return };
    let service = net.serve(&["64"]);
    let mut streams: Vec<TcpStream> = (0..40).map(|_| net.connect()).collect();
    streams.iter_mut().for_each(|stream| echo(stream, 1, 64));
    service.client().thread("park", 1).expect("parks");
    let answer = connections(&service, "");
    assert_eq!(list(&answer).len(), 40, "{answer}");
    assert_eq!(answer["missing_flow_groups"], "-");
    assert!(list(&answer).iter().all(|connection| connection["thread"] == 0), "{answer}");
    service.client().thread("resume", 1).expect("resumes");
    // Half of them move back, while somebody asks again and again.
    eventually("they are told where they are", || {
        let answer = connections(&service, ",\"thread\":1");
        list(&connections(&service, "")).len() == 40 && !list(&answer).is_empty()
    });
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

/// The command itself, through the socket for looking only, with rates.
#[test]
fn the_busiest_connection_stands_first() {
    let Some(net) = two_threads("the_busiest_connection_stands_first", Nic::Tap) else { return };
    let service = net.serve(&["64"]);
    let mut idle: Vec<TcpStream> = (0..10).map(|_| net.connect()).collect();
    idle.iter_mut().for_each(|stream| (0..50).for_each(|id| echo(stream, id, 64)));
    let mut busy = net.connect();
    let read_only = service.control().with_extension("ro.sock");
    let ask = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
        command.args(["ctl", "connections", "--sort", "rate", "--limit", "3", "--control"]);
        let output = command.arg(&read_only).output().expect("the command starts");
        assert!(output.status.success(), "{}", errors(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    let port = local_port(&busy);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for id in 0.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                echo(&mut busy, id, 64);
            }
        });
        let first = || ask().lines().nth(1).map(str::to_owned).unwrap_or_default();
        eventually("it is first", || first().contains(&format!("{CLIENT}:{port} ")));
        let text = ask();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().next().is_some_and(|heading| heading.contains("B/s")), "{text}");
    });
    idle.into_iter().for_each(close);
    close(busy);
    service.finish(PATIENCE);
}

/// Bytes that a peer does not read wait here, and are told.
#[test]
fn what_waits_is_told() {
    let Some(net) = two_threads("what_waits_is_told", Nic::Tap) else { return };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    stream.set_nonblocking(true).expect("non-blocking");
    let chunk = [7; 65_536];
    let queued = || {
        let answer = connections(&service, ",\"sort\":\"queued\"");
        let first = list(&answer).first().cloned().unwrap_or_default();
        first["snd_queued_bytes"].as_u64().unwrap_or(0)
            + first["rcv_queued_bytes"].as_u64().unwrap_or(0)
    };
    eventually("echoes wait for a reader", || {
        while stream.write(&chunk).is_ok() {}
        queued() > 10_000
    });
    // Whatever was sent comes back.
    stream.set_nonblocking(false).expect("blocking");
    stream.shutdown(std::net::Shutdown::Write).expect("shut");
    let (mut all, mut buffer) = (0, vec![0; 1 << 20]);
    while let Ok(n) = stream.read(&mut buffer) {
        if n == 0 {
            break;
        }
        all += n;
    }
    assert!(all > 10_000);
    drop(stream);
    service.finish(PATIENCE);
}

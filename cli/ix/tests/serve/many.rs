//! Many connections: ten thousand at once, many in a row, and ten thousand that are silent.
use crate::support::process::cpu_time;
use crate::support::traffic::{self, close, echo, expect, expect_eof, message};
use crate::support::{Nic, PATIENCE, Service, TestNet, connect};
use ix_skip::{Need, skip_part};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

const MANY: u64 = 10_000;
const SIZE: usize = 64;
/// Threads of a client.
const CLIENTS: u64 = 4;

/// Opens many connections and lets each carry a message, all written before any is read.
fn open_many(net: &TestNet) -> Vec<TcpStream> {
    traffic::raise_descriptor_limit(MANY + 1000);
    net.client.run(|| {
        let mut streams = Vec::new();
        std::thread::scope(|scope| {
            let share = |_| scope.spawn(|| (0..MANY / CLIENTS).map(|_| connect()).collect());
            let clients: Vec<std::thread::ScopedJoinHandle<'_, Vec<_>>> =
                (0..CLIENTS).map(share).collect();
            for client in clients {
                streams.extend(client.join().expect("all connect"));
            }
        });
        exchange(&mut streams, 0);
        streams
    })
}

/// A message on each connection, all written before any is read.
fn exchange(streams: &mut [TcpStream], id: u64) {
    use std::io::Write;
    for (i, stream) in streams.iter_mut().enumerate() {
        stream.write_all(&message(id + i as u64, SIZE)).expect("write");
    }
    for (i, stream) in streams.iter_mut().enumerate() {
        expect(stream, &message(id + i as u64, SIZE));
    }
}

fn ten_thousand(test: &str, nic: Nic) {
    let Some(net) = TestNet::busy(test, nic, 1) else { return };
    let service = net.serve(&["64"]);
    let mut streams = open_many(&net);
    service.wait_until("all are open", PATIENCE, |stats| stats.total("flows") == MANY);
    exchange(&mut streams, MANY);
    streams.iter().for_each(|stream| stream.shutdown(Shutdown::Write).expect("shutdown"));
    streams.iter_mut().for_each(expect_eof);
    drop(streams);
    let stats = service.finish(PATIENCE);
    assert_eq!((stats.total("accepted"), stats.total("closed")), (MANY, MANY));
    assert_eq!(stats.total("flows_peak"), MANY);
}

#[test]
fn ten_thousand_connections_over_tap() {
    ten_thousand("ten_thousand_connections_over_tap", Nic::Tap);
}

#[test]
fn ten_thousand_connections_over_afxdp() {
    ten_thousand("ten_thousand_connections_over_afxdp", Nic::Afxdp);
}

fn silence(test: &str, nic: Nic) {
    let Some(net) = TestNet::alone(test, nic, 1) else { return };
    let service = net.serve(&["64"]);
    let mut streams = open_many(&net);
    let program = service.program();
    std::thread::sleep(Duration::from_secs(1));
    let before = cpu_time(program);
    let asleep = Duration::from_secs(2);
    std::thread::sleep(asleep);
    let used = cpu_time(program) - before;
    assert!(used < asleep / 100, "{nic:?}: {used:?} of CPU time in {asleep:?} of silence");
    exchange(&mut streams, MANY);
    drop(streams);
    service.finish(PATIENCE);
}

#[test]
fn ten_thousand_silent_connections_cost_nothing_over_tap() {
    silence("ten_thousand_silent_connections_cost_nothing_over_tap", Nic::Tap);
}

#[test]
fn ten_thousand_silent_connections_cost_nothing_over_afxdp() {
    silence("ten_thousand_silent_connections_cost_nothing_over_afxdp", Nic::Afxdp);
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// The client sends FIN and waits for the server's.
    Fin,
    /// The client closes without reading its answer: Linux sends RST when data are unread.
    Abandon,
    /// The client resets.
    Reset,
}

fn churn(net: &TestNet, service: Service, ends: &[End]) {
    const ROUNDS: u64 = 500;
    let connections = ROUNDS * CLIENTS * ends.len() as u64;
    net.client.run(|| {
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        ends.iter().for_each(|end| one(*end, client << 32 | round));
                    }
                });
            }
        });
    });
    let stats = service.finish(PATIENCE);
    // A reset may overtake the knock, and a connection that waits in no backlog was never accepted.
    assert_eq!(stats.total("closed"), connections, "{net} {ends:?}: {stats}");
    let peak = stats.total("flows_peak");
    assert!(peak < connections / 4, "{net} {ends:?}: ended flows pile up: {peak}");
}

fn one(end: End, id: u64) {
    use std::io::Write;
    let mut stream = connect();
    match end {
        End::Fin => {
            echo(&mut stream, id, SIZE);
            close(stream);
        }
        End::Abandon => stream.write_all(&message(id, SIZE)).expect("write"),
        End::Reset => {
            echo(&mut stream, id, SIZE);
            traffic::reset(stream);
        }
    }
}

#[test]
fn clients_come_and_go() {
    for nic in Nic::ALL {
        let mixed = &[End::Fin, End::Abandon, End::Reset][..];
        for (queues, ends) in [(1, &[End::Fin][..]), (1, &[End::Reset]), (1, mixed), (2, mixed)] {
            if ix_testbed::cpu::allowed().len() < queues {
                skip_part("clients_come_and_go", Need::Cpus(queues), "too few CPUs");
                continue;
            }
            let Some(net) = TestNet::busy("clients_come_and_go", nic, queues) else { return };
            let service = net.serve(&["64"]);
            churn(&net, service, ends);
        }
    }
}

/// The end that closes first holds the port for TIME-WAIT; here it is the server.
#[test]
fn the_server_closes_first() {
    const CONNECTIONS: u64 = 2000;
    for nic in Nic::ALL {
        let Some(net) = TestNet::busy("the_server_closes_first", nic, 1) else { return };
        let service = net.serve(&["64", "--messages-per-connection", "2"]);
        let waited = net.client.run(|| {
            let mut waited = 0;
            for id in 0..CONNECTIONS {
                let mut stream = connect();
                echo(&mut stream, id << 1, SIZE);
                echo(&mut stream, id << 1 | 1, SIZE);
                expect_eof(&mut stream);
                drop(stream);
                if id % 500 == 99 {
                    waited += service.stats().total("time_wait");
                }
            }
            waited
        });
        assert!(waited > 0, "{nic:?}: nobody was seen in TIME-WAIT");
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("closed"), CONNECTIONS);
    }
}

/// One local port, over and over: a connection of the same four numbers may come while the old one
/// is in TIME-WAIT at the server, and must be let in (RFC 6191, RFC 9293 section 3.10.7.4).
#[test]
fn a_port_is_used_again_at_once() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::alone("a_port_is_used_again_at_once", nic, 1) else { return };
        // Two ports to choose from, and the server is in TIME-WAIT: both are used again and again.
        net.client.set_sysctl("net/ipv4/ip_local_port_range", "40000 40001").expect("sysctl");
        let service = net.serve(&["64", "--messages-per-connection", "1"]);
        net.client.run(|| {
            for id in 0..300 {
                let mut stream = connect();
                echo(&mut stream, id, SIZE);
                expect_eof(&mut stream);
            }
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("closed"), 300);
        assert!(stats.total("flows_peak") <= 2, "{stats}");
    }
}

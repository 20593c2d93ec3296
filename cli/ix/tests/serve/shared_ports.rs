//! Many ports of an address that IX shares with Linux: of outgoing connections and of listeners.
use super::shared_address::{LINUX, Session, on_linux_address};
use crate::support::stats::Stats;
use crate::support::{CLIENT, PATIENCE, SERVICE, eventually};
use ix_skip::{Need, skip};
use std::collections::BTreeSet;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const PYTHON: &str = "/usr/bin/python3";

/// Opens as many connections to one destination as it is told, all at once; a line on its own
/// listener ends them by reset.
const CONNECTS: &str = "
import resource, socket, struct, sys
count = int(sys.argv[3])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
server = socket.socket()
server.bind(('0.0.0.0', 8080))
server.listen(4)
print('ready', flush=True)
server.accept()
all = []
for nth in range(count):
    one = socket.create_connection((sys.argv[1], int(sys.argv[2])), 20)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    all.append(one)
print('connected', len(all), flush=True)
server.accept()
for one in all:
    one.close()
print('closed', flush=True)
server.accept()
";

/// Ports for outgoing connections come on demand, and go back to Linux.
#[test]
fn thousands_of_connections_to_one_destination_have_ports() {
    const COUNT: usize = 2000;
    let test = "thousands_of_connections_to_one_destination_have_ports";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    ix_sys::limits::raise(ix_sys::limits::Resource::Descriptors, 8192).expect("root");
    let beyond = SocketAddrV4::new(CLIENT, 9);
    let listener = net.client.run(|| {
        net.client.set_sysctl("net/core/somaxconn", "4096").expect("set");
        TcpListener::bind(beyond).expect("free")
    });
    let heard: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
    let streams = heard.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            streams.lock().expect("whole").push(stream);
        }
    });
    let words = [PYTHON, "-c", CONNECTS, &CLIENT.to_string(), "9", &COUNT.to_string()];
    let process = net.start_shared(&words).process;
    process.wait_for("ready", PATIENCE);
    let at = SocketAddrV4::new(*SERVICE.ip(), 8080);
    let next = || net.client.run(|| TcpStream::connect(at)).expect("it listens");
    let shares = process.wait_for("ix: shares 10.88.0.2 with Linux on ixs0", PATIENCE);
    let block = shares.split(' ').find_map(|word| word.split_once('-')).expect("a range");
    let block: Vec<u16> = [block.0, block.1].map(|port| port.parse().expect("a port")).to_vec();
    next();
    process.wait_for(&format!("connected {COUNT}"), PATIENCE);
    eventually("all are there", || heard.lock().expect("whole").len() == COUNT);
    let ports: BTreeSet<u16> = {
        let streams = heard.lock().expect("whole");
        streams.iter().map(|stream| stream.peer_addr().expect("a peer").port()).collect()
    };
    assert_eq!(ports.len(), COUNT, "each has a port of its own");
    let stats = Stats::ask(&net.file("control.sock"));
    assert_eq!(stats.total("connects"), COUNT as u64, "all of them are IX's");
    // Linux is kept from each.
    let added: Vec<u16> =
        ports.into_iter().filter(|port| !(block[0]..=block[1]).contains(port)).collect();
    assert!(added.len() >= COUNT - 64);
    let bind = |port: u16| net.server.run(|| TcpListener::bind((*SERVICE.ip(), port)));
    for port in added.iter().step_by(97) {
        assert!(bind(*port).is_err(), "{port} is IX's");
    }
    next();
    process.wait_for("closed", PATIENCE);
    // No flow is left: the connections were reset.
    eventually("Linux has the others again", || {
        added.iter().step_by(97).all(|port| bind(*port).is_ok())
    });
    assert!(bind(block[0]).is_err(), "the block stays");
    process.terminate();
}

/// Opens and closes many listeners, and says what each took.
const LISTENS: &str = "
import socket, sys, time
count = int(sys.argv[1])
print('ready', flush=True)
for nth in range(2):
    began = time.monotonic()
    all = []
    for port in range(20000, 20000 + count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(('0.0.0.0', port))
        one.listen(4)
        all.append(one)
    took = time.monotonic() - began
    print('opened %d: %d us each' % (nth, took * 1e6 / count), flush=True)
    client, peer = all[0].accept()
    began = time.monotonic()
    for one in all:
        one.close()
    took = time.monotonic() - began
    print('closed %d: %d us each' % (nth, took * 1e6 / count), flush=True)
    client.close()
time.sleep(60)
";

/// A thousand listeners are opened and closed, twice, beside a session of Linux.
#[test]
fn a_thousand_listeners_come_and_go_beside_linux() {
    const COUNT: u16 = 1000;
    let test = "a_thousand_listeners_come_and_go_beside_linux";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    let Some(net) = on_linux_address(test) else { return };
    let session = Session::start(&net);
    // The program's limit is lower than what the broker needs.
    let listens = format!("ulimit -n 2048; exec {PYTHON} -c \"$0\" {COUNT}");
    let process = net.start_shared(&["/bin/sh", "-c", &listens, LISTENS]).process;
    process.wait_for("ready", PATIENCE);
    let at = |port: u16| SocketAddrV4::new(*SERVICE.ip(), port);
    for nth in 0..2 {
        let opened = process.wait_for(&format!("opened {nth}"), PATIENCE * 3);
        println!("{opened}");
        for port in [20_999, 20_500, 20_000] {
            let stream = net.client.run(|| TcpStream::connect(at(port)));
            stream.unwrap_or_else(|e| panic!("{port}: {e}"));
        }
        println!("{}", process.wait_for(&format!("closed {nth}"), PATIENCE));
        session.goes_on();
    }
    eventually("Linux has the ports again", || {
        net.server.run(|| {
            // Those with a connection are IX's until it has ended.
            [20_001, 20_501, 20_998].iter().all(|port| TcpListener::bind(at(*port)).is_ok())
        })
    });
    assert_eq!(LINUX.port(), 22);
    session.end();
    process.terminate();
}

//! To whom a port of Linux's own address goes that several want: each answer is that of Linux
//! alone.
use super::shared_address::on_linux_address;
use crate::support::process::Process;
use crate::support::{CLIENT, PATIENCE, SERVICE, TestNet, eventually};
use ix_skip::{Need, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";

/// A link with Linux's address, where there is Python.
fn with_python(test: &str) -> Option<TestNet> {
    if !std::path::Path::new(PYTHON).exists() {
        skip(test, Need::Program("apt-get install python3"), "no python3");
        return None;
    }
    on_linux_address(test)
}

/// Runs a program of Python on Linux alone, where the service is.
fn on_linux(net: &TestNet, program: &str, words: &[&str]) -> Process {
    let mut command = net.server.command(PYTHON, None);
    command.args(["-c", program]).args(words);
    Process::start(command)
}

/// Runs it under a plain `ix run`, as root, as which the tests run.
fn on_ix(net: &TestNet, name: &str, program: &str, words: &[&str]) -> Process {
    let words = [&[PYTHON, "-c", program], words].concat();
    net.start_shared_as(&format!("{name}.sock"), &["--user", "0"], &words).process
}

/// What a program says of its sockets.
fn answers(process: &Process) -> Vec<String> {
    process.wait_for("ready", PATIENCE);
    process.said().into_iter().filter(|line| line.starts_with("socket ")).collect()
}

fn ends(process: Process) {
    process.signal(libc::SIGTERM);
    process.wait(PATIENCE);
}

/// Binds sockets with these options, one after the other, has those of TCP listen, and says what
/// came of each. Answers datagrams with its name.
const PROGRAM: &str = "
import errno, selectors, socket, sys
name, asked = sys.argv[1], sys.argv[2:]
waits = selectors.DefaultSelector()
for one in asked:
    kind, options, host, port = one.split(',')
    s = socket.socket(type=socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    for letter, option in [('a', socket.SO_REUSEADDR), ('p', socket.SO_REUSEPORT)]:
        if letter in options:
            s.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        s.bind((host, int(port)))
        if kind == 'tcp':
            s.listen(16)
        print('socket', one, 'has', flush=True)
        waits.register(s, selectors.EVENT_READ)
    except OSError as e:
        print('socket', one, errno.errorcode[e.errno], flush=True)
print('ready', flush=True)
while True:
    for key, _ in waits.select():
        if key.fileobj.type == socket.SOCK_DGRAM:
            data, peer = key.fileobj.recvfrom(100)
            key.fileobj.sendto(name.encode(), peer)
";

/// What another host hears of a UDP service.
fn ask(net: &TestNet, port: u16) -> String {
    let socket = net.client.run(|| UdpSocket::bind(SocketAddrV4::new(CLIENT, 0))).expect("free");
    socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let mut answer = [0; 100];
    for _ in 0..50 {
        socket.send_to(b"?", SocketAddrV4::new(*SERVICE.ip(), port)).expect("sent");
        if let Ok(len) = socket.recv(&mut answer) {
            return String::from_utf8_lossy(&answer[..len]).into_owned();
        }
    }
    panic!("{port} is not served");
}

#[test]
fn a_port_that_linux_serves_is_in_use_whatever_its_options() {
    let test = "a_port_that_linux_serves_is_in_use_whatever_its_options";
    let Some(net) = with_python(test) else { return };
    for kind in ["tcp", "udp"] {
        for others in ["-", "a", "p"] {
            let first = format!("{kind},{others},0.0.0.0,9200");
            let service = on_linux(&net, PROGRAM, &["linux", &first]);
            assert_eq!(answers(&service), [format!("socket {first} has")]);
            // Each that Linux refuses. It lets two share a port if both have SO_REUSEPORT.
            let own = ["-", "a", "p"].map(|own| format!("{kind},{own},0.0.0.0,9200"));
            let own: Vec<&str> = own
                .iter()
                .map(String::as_str)
                .filter(|own| !own.contains(",p,") || others != "p")
                .filter(|own| !own.contains(",a,") || others != "a" || kind == "tcp")
                .collect();
            let words = [&["ix"], &own[..]].concat();
            let alone = on_linux(&net, PROGRAM, &words);
            let expected = answers(&alone);
            ends(alone);
            assert!(expected.iter().all(|line| line.ends_with("EADDRINUSE")), "{expected:?}");
            let process = on_ix(&net, "own", PROGRAM, &words);
            assert_eq!(answers(&process), expected, "beside {first}: {process}");
            if kind == "udp" {
                assert_eq!(ask(&net, 9200), "linux");
            }
            ends(process);
            // And with what shares on Linux: other hosts would hear IX alone.
            if others == "p" {
                let shares = format!("{kind},p,0.0.0.0,9200");
                let process = on_ix(&net, "own", PROGRAM, &["ix", &shares]);
                assert_eq!(answers(&process), [format!("socket {shares} EADDRINUSE")], "{process}");
                ends(process);
            }
            ends(service);
        }
    }
}

/// Sockets of one program at one port, of which the later ones come when IX has it already.
#[test]
fn a_program_shares_its_ports_with_itself_as_on_linux() {
    let test = "a_program_shares_its_ports_with_itself_as_on_linux";
    let Some(net) = with_python(test) else { return };
    let again = "
import errno, os, socket, sys, time
def tries(kind, options, port):
    s = socket.socket(type=kind)
    for option in options:
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    try:
        s.bind(('0.0.0.0', port))
        if kind == socket.SOCK_STREAM:
            s.listen(16)
        return s, 'has'
    except OSError as e:
        return None, errno.errorcode[e.errno]
A, P = socket.SO_REUSEADDR, socket.SO_REUSEPORT
port = 9300
for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM]:
    for first in [[], [A], [P], [A, P]]:
        for second in [[], [A], [P], [A, P]]:
            one, said = tries(kind, first, port)
            # So that IX has it.
            one.settimeout(0.01)
            try:
                one.accept() if kind == socket.SOCK_STREAM else one.recv(1)
            except OSError:
                pass
            two, then = tries(kind, second, port)
            one.close()
            three, last = tries(kind, second, port)
            print('socket', kind, first, second, said, then, last, flush=True)
            for s in [two, three]:
                if s:
                    s.close()
            port += 1
print('ready', flush=True)
time.sleep(60)
";
    let alone = on_linux(&net, again, &[]);
    let expected = answers(&alone);
    assert_eq!(expected.len(), 32);
    ends(alone);
    let process = on_ix(&net, "own", again, &[]);
    assert_eq!(answers(&process), expected, "{process}");
    ends(process);
}

/// Binds many sockets of UDP at ports that Linux chooses, and says how many failed, and which ports
/// they have.
const CHOSEN: &str = "
import resource, socket, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
failed, all = 0, []
for nth in range(1500):
    s = socket.socket(type=socket.SOCK_DGRAM)
    try:
        s.bind(('0.0.0.0', 0))
        all.append(s)
    except OSError:
        failed += 1
ports = [s.getsockname()[1] for s in all]
print('socket failed', failed, 'twice', len(ports) - len(set(ports)), flush=True)
for port in ports:
    print('port', port, flush=True)
print('ready', flush=True)
time.sleep(60)
";

/// Linux gives no port twice to sockets that did not ask to share ports, in one program and among
/// several.
#[test]
fn linux_chooses_a_port_for_one_socket_alone() {
    let Some(net) = with_python("linux_chooses_a_port_for_one_socket_alone") else { return };
    let runs = ["first", "second"].map(|name| on_ix(&net, name, CHOSEN, &[]));
    let mut ports = BTreeSet::new();
    for run in &runs {
        assert_eq!(answers(run), ["socket failed 0 twice 0"], "{run}");
        ports.extend(run.said().into_iter().filter(|line| line.starts_with("port ")));
    }
    assert_eq!(ports.len(), 3000, "none is another run's");
    runs.into_iter().for_each(ends);
}

/// Two programs want the same ports at the same moments: each says which it got.
const RACES: &str = "
import socket, sys, time
kind, start, host = sys.argv[1], float(sys.argv[2]), '0.0.0.0'
own, all = socket.socket(), []
own.bind((host, int(sys.argv[3])))
own.settimeout(0.001)
for nth in range(200):
    s = socket.socket(type=socket.SOCK_STREAM if kind == 'tcp' else socket.SOCK_DGRAM)
    if kind == 'tcp':
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    time.sleep(max(0, start + nth * 0.01 - time.time()))
    try:
        s.bind((host, 9500 + nth))
        if kind == 'tcp':
            s.listen(16)
        all.append(s)
        print('socket', nth, flush=True)
    except OSError:
        s.close()
    if nth == 100:
        # The dataplane begins.
        own.listen(1)
        try:
            own.accept()
        except OSError:
            pass
print('ready', flush=True)
time.sleep(60)
";

#[test]
fn of_two_runs_that_want_a_port_at_one_moment_one_has_it() {
    let test = "of_two_runs_that_want_a_port_at_one_moment_one_has_it";
    let Some(net) = with_python(test) else { return };
    for kind in ["tcp", "udp"] {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let start = (now.expect("a time").as_secs_f64() + 3.0).to_string();
        let runs = [("first", "8081"), ("second", "8082")];
        let runs = runs.map(|(name, own)| on_ix(&net, name, RACES, &[kind, &start, own]));
        let mut count = BTreeMap::<String, u32>::new();
        for run in &runs {
            answers(run).into_iter().for_each(|line| *count.entry(line).or_default() += 1);
        }
        let twice: Vec<_> = count.iter().filter(|(_, count)| **count != 1).collect();
        assert!(count.len() == 200 && twice.is_empty(), "{kind}: {} {twice:?}", count.len());
        runs.into_iter().for_each(ends);
    }
}

/// The ports for outgoing connections are those that Linux would choose among.
#[test]
fn outgoing_ports_are_of_the_range_of_linux() {
    let Some(net) = with_python("outgoing_ports_are_of_the_range_of_linux") else { return };
    let sends = format!(
        "
import socket, time
for nth in range(8):
    s = socket.socket(type=socket.SOCK_DGRAM)
    s.sendto(b'?', ('{CLIENT}', 9))
    c = socket.create_connection(('{CLIENT}', 9), 20)
print('ready', flush=True)
time.sleep(60)
"
    );
    let beyond = SocketAddrV4::new(CLIENT, 9);
    let (listener, heard) =
        net.client.run(|| (TcpListener::bind(beyond).expect("free"), UdpSocket::bind(beyond)));
    let heard = heard.expect("free");
    heard.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    for (range, reserved, expected) in [
        ("10000 20000", "", 10_000..=20_000),
        ("1024 29999", "1024-20000", 20_001..=29_999),
        ("32768 60999", "32768-60000,60500", 60_001..=60_999),
    ] {
        net.server.set_sysctl("net/ipv4/ip_local_port_range", range).expect("set");
        net.server.set_sysctl("net/ipv4/ip_local_reserved_ports", reserved).expect("set");
        let process = on_ix(&net, "own", &sends, &[]);
        let shares = process.wait_for("ix: shares 10.88.0.2 with Linux on ixs0", PATIENCE);
        let block = shares.split(' ').find_map(|word| word.split_once('-')).expect("a range");
        let block = [block.0, block.1].map(|port| port.parse::<u16>().expect("a port"));
        assert!(block.iter().all(|port| expected.contains(port)), "{block:?} of {range}");
        assert!(!(block[0]..=block[1]).contains(&60_500), "{block:?}");
        process.wait_for("ready", PATIENCE);
        for _ in 0..8 {
            let (_, tcp) = listener.accept().expect("a connection");
            let (_, udp) = heard.recv_from(&mut [0; 9]).expect("a datagram");
            for from in [tcp, udp] {
                assert!((block[0]..=block[1]).contains(&from.port()), "{from} of {block:?}");
            }
        }
        ends(process);
    }
}

/// Workers of a program are killed while they open listeners: what none of them has any more is
/// Linux's again.
#[test]
fn ports_of_workers_that_were_killed_are_linuxs_again() {
    const COUNT: u16 = 100;
    let Some(net) = with_python("ports_of_workers_that_were_killed_are_linuxs_again") else {
        return;
    };
    let kills = "
import os, signal, socket, sys, time
count = int(sys.argv[1])
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(('0.0.0.0', 8080))
server.listen(16)
print('serves', flush=True)
server.accept()
for nth in range(count):
    child = os.fork()
    if child == 0:
        s = socket.socket()
        s.bind(('0.0.0.0', 9600 + nth))
        s.listen(16)
        time.sleep(60)
    time.sleep(0.0003 * (nth % 20))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('ready', flush=True)
time.sleep(60)
";
    let process = on_ix(&net, "own", kills, &[&COUNT.to_string()]);
    process.wait_for("serves", PATIENCE);
    let at = |port| SocketAddrV4::new(*SERVICE.ip(), port);
    let _first = net.client.run(|| TcpStream::connect(at(8080))).expect("served");
    process.wait_for("ready", PATIENCE);
    eventually("Linux has the ports again", || {
        net.server.run(|| (9600..9600 + COUNT).all(|port| TcpListener::bind(at(port)).is_ok()))
    });
    ends(process);
}

/// More sockets than the broker remembers come and go beside a listener of the program.
#[test]
#[ignore = "takes a minute"]
fn a_program_that_binds_without_end_may_share_its_own_port() {
    let test = "a_program_that_binds_without_end_may_share_its_own_port";
    let Some(net) = with_python(test) else { return };
    let binds = "
import socket, sys, time
def listens():
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('0.0.0.0', 9400))
    s.listen(16)
    return s
all = [listens(), listens()]
print('serves', flush=True)
all[0].accept()
for nth in range(66000):
    s = socket.socket()
    s.bind(('0.0.0.0', 0))
    s.close()
all.append(listens())
print('ready', flush=True)
time.sleep(60)
";
    let process = on_ix(&net, "own", binds, &[]);
    process.wait_for("serves", PATIENCE);
    let at = SocketAddrV4::new(*SERVICE.ip(), 9400);
    // One of both has the connection.
    let _all: Vec<_> =
        (0..16).map(|_| net.client.run(|| TcpStream::connect(at)).expect("served")).collect();
    process.wait_for("ready", PATIENCE * 9);
    ends(process);
}

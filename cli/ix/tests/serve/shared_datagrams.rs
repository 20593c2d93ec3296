//! Datagrams at Linux's own addresses that do not come by IX's interface: Linux hears them, and the
//! program with it; answers leave by the way that they came.
use super::shared_address::on_linux_address;
use super::shared_ipv6::{addresses_beside, container, on_both_families};
use crate::support::process::Process;
use crate::support::stats::Stats;
use crate::support::{PATIENCE, SERVICE, SERVICE_V6, TestNet, eventually};
use ix_testbed::Namespace;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";
/// The ways in which programs serve UDP, in the order of `serves` below.
const PORTS: [u16; 9] = [5353, 5354, 5355, 5356, 5357, 5358, 5359, 5360, 5361];

/// Answers each datagram with its sender and length, in many ways; and serves TCP.
const PROGRAM: &str = "
import socket, select, threading, os, ctypes, signal, struct
def bound(port, blocking=False, group=False):
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    if group:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    s.bind(('::', port))
    s.setblocking(blocking)
    return s
def said(data, peer):
    return ('%s %s' % (peer[0], len(data))).encode()
def answer(s):
    data, peer = s.recvfrom(4000)
    s.sendto(said(data, peer), peer)
def all_of(s):
    try:
        while True:
            answer(s)
    except BlockingIOError:
        pass
def blocking(s):
    while True:
        answer(s)
def epolls(s, events, some):
    e = select.epoll()
    e.register(s, events)
    while True:
        e.poll()
        some(s)
def edges(s):
    epolls(s, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET, all_of)
def levels(s):
    epolls(s, select.EPOLLIN, answer)
def selects(s):
    while True:
        select.select([s], [], [])
        all_of(s)
def polls(s):
    p = select.poll()
    p.register(s, select.POLLIN)
    while True:
        p.poll()
        all_of(s)
class Message(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('name_len', ctypes.c_uint),
                ('pieces', ctypes.c_void_p), ('count', ctypes.c_size_t),
                ('control', ctypes.c_void_p), ('control_len', ctypes.c_size_t),
                ('flags', ctypes.c_size_t), ('len', ctypes.c_size_t)]
def several(s):
    libc, wait_for_one = ctypes.CDLL(None, use_errno=True), 0x10000
    while True:
        names, rooms = (ctypes.c_char * 28 * 4)(), (ctypes.c_char * 4000 * 4)()
        pieces = [(ctypes.c_size_t * 2)(ctypes.addressof(room), 4000) for room in rooms]
        messages = (Message * 4)(*[
            Message(ctypes.addressof(names[i]), 28, ctypes.addressof(pieces[i]), 1, None, 0, 0, 0)
            for i in range(4)])
        count = libc.recvmmsg(s.fileno(), messages, 4, wait_for_one, None)
        for i in range(count):
            port, = struct.unpack('!H', bytes(names[i][2:4]))
            peer = (socket.inet_ntop(socket.AF_INET6, bytes(names[i][8:24])), port)
            s.sendto(said(bytes(messages[i].len), peer), peer)
def connects(s):
    while True:
        data, peer = s.recvfrom(4000)
        one = bound(s.getsockname()[1], True, True)
        one.connect(peer)
        one.send(said(data, one.getpeername()))
        one.close()
def stream():
    server = socket.socket(socket.AF_INET6)
    server.bind(('::', 8080))
    server.listen(16)
    while True:
        client, peer = server.accept()
        client.sendall(peer[0].encode())
        client.close()
# Two processes share one socket.
children, both = [], bound(5353, True)
for _ in range(2):
    child = os.fork()
    if child == 0:
        blocking(both)
    children.append(child)
serves = [(5354, edges), (5355, levels), (5356, selects), (5357, polls), (5358, blocking),
          (5359, several), (5360, connects), (5361, edges), (5361, blocking)]
for port, serve in serves:
    s = bound(port, serve in [blocking, several, connects], port >= 5360)
    threading.Thread(target=serve, args=(s,), daemon=True).start()
threading.Thread(target=stream, daemon=True).start()
def ends(*_):
    for child in children:
        os.kill(child, signal.SIGKILL)
    os._exit(143)
signal.signal(signal.SIGTERM, ends)
print('ready', flush=True)
while True:
    signal.pause()
";

/// Another program of IX: asks each address and port that it is given, by UDP and TCP.
const ASKS: &str = "
import socket, sys
own = socket.socket()
own.bind(('0.0.0.0', 8081))
own.listen(1)
for at in sys.argv[1:]:
    family = socket.AF_INET6 if ':' in at else socket.AF_INET
    for port in range(5353, 5362):
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.settimeout(20)
        if port % 2:
            s.connect((at, port))
            s.send(b'12345')
        else:
            s.sendto(b'12345', (at, port))
        print('UDP', at, port, s.recv(100).decode(), flush=True)
    s = socket.create_connection((at, 8080), 20)
    print('TCP', at, s.recv(100).decode(), flush=True)
print('done', flush=True)
own.accept()
";

/// An address as a socket of IPv6 says it.
fn said(ip: IpAddr) -> String {
    if ip.is_ipv4() { format!("::ffff:{ip}") } else { ip.to_string() }
}

/// What the program says to somebody in this namespace who asks at this address.
#[track_caller]
fn heard(from: &Namespace, own: IpAddr, port: u16) -> String {
    let any = if own.is_ipv4() {
        IpAddr::from(Ipv4Addr::UNSPECIFIED)
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    let socket = from.run(|| UdpSocket::bind((any, 0))).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_secs(1))).expect("a timeout");
    let (mut back, mut answer) = ([0; 100], String::new());
    // A datagram may be lost while neighbours are found.
    eventually(&format!("an answer of {own} {port}"), || {
        socket.send_to(b"123", SocketAddr::new(own, port)).expect("sent");
        let Ok((n, by)) = socket.recv_from(&mut back) else { return false };
        // A socket of all addresses answers a container from the address of the route there, as on
        // Linux alone.
        assert_eq!(by.port(), port, "it comes from where it was asked");
        answer = String::from_utf8_lossy(&back[..n]).into_owned();
        true
    });
    answer
}

fn start(net: &TestNet) -> Process {
    let process = net.start_shared(&[PYTHON, "-c", PROGRAM]).process;
    process.wait_for("ready", PATIENCE);
    process
}

#[test]
fn datagrams_of_the_host_and_of_containers_reach_the_program() {
    let test = "datagrams_of_the_host_and_of_containers_reach_the_program";
    let Some(net) = on_both_families(test) else { return };
    let container = container(&net);
    let [v4, v6] = addresses_beside(2);
    let owns = [IpAddr::from(*SERVICE.ip()), SERVICE_V6.into()];
    let others = [v4, v6];
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()];
    // The host itself, at each of its addresses; a container, by its interface.
    let by_linux = || -> Vec<String> {
        let ask = |port, own: IpAddr| {
            let here = heard(&net.server, own, port);
            let there = if own.is_loopback() { here.clone() } else { heard(&container, own, port) };
            format!("{own} {port}: {here}, {there}")
        };
        let all = || owns.into_iter().chain(others).chain(loopback);
        PORTS.iter().flat_map(|port| all().map(|own| ask(*port, own))).collect()
    };
    let mut command = net.server.command(PYTHON, None);
    command.args(["-c", PROGRAM]);
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    let on_linux = by_linux();
    process.terminate();
    let process = start(&net);
    let line = "ix: receiving datagrams on [::]:5354: IX, and Linux on the loopback and its own";
    process.wait_for(line, PATIENCE);
    let by_ix = || Stats::ask(&net.file("control.sock")).total("rx_packets");
    for port in PORTS {
        // Another host, by IX.
        let before = by_ix();
        for own in owns {
            let answer = heard(&net.client, own, port);
            assert!(!answer.contains(&own.to_string()) && answer.ends_with(" 3"), "{answer}");
        }
        assert!(by_ix() >= before + 2, "IX serves other hosts");
    }
    let served = by_ix();
    assert_eq!(by_linux(), on_linux, "beside what Linux does");
    assert_eq!(by_ix(), served, "IX has seen none of them");
    process.terminate();
}

/// Two programs of IX at one address of Linux: they hear each other through Linux, by UDP and TCP,
/// over both families.
#[test]
fn programs_of_ix_hear_each_other_over_both_families() {
    let test = "programs_of_ix_hear_each_other_over_both_families";
    let Some(net) = on_both_families(test) else { return };
    let process = start(&net);
    let owns = [SERVICE.ip().to_string(), SERVICE_V6.to_string()];
    let words = [&[PYTHON, "-c", ASKS][..], &owns.each_ref().map(String::as_str)].concat();
    let other = net.start_shared_as("control-other.sock", &[], &words).process;
    other.wait_for("done", PATIENCE);
    let lines = other.said();
    for own in owns {
        let own: IpAddr = own.parse().expect("an address");
        for port in PORTS {
            let line = format!("UDP {own} {port} {} 5", said(own));
            assert!(lines.contains(&line), "{line}: {lines:#?}");
        }
        let line = format!("TCP {own} {}", said(own));
        assert!(lines.contains(&line), "{line}: {lines:#?}");
    }
    for run in ["control.sock", "control-other.sock"] {
        assert_eq!(Stats::ask(&net.file(run)).total("accepted"), 0, "none crosses the interface");
    }
    other.terminate();
    process.terminate();
}

/// Binds UDP ports, and has no time for them for a second; then it, or a child of it, receives what
/// has come, and answers.
const LATE: &str = "
import os, socket, sys, time
sockets = []
for at, port in [('0.0.0.0', 5371), (sys.argv[1], 5372), ('0.0.0.0', 5373), (sys.argv[1], 5374)]:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((at, port))
    s.settimeout(20)
    sockets.append(s)
print('bound', flush=True)
time.sleep(1)
def receives(s, count):
    for _ in range(count):
        data, peer = s.recvfrom(100)
        s.sendto(b'late ' + data + b' of ' + peer[0].encode(), peer)
for s in sockets[2:]:
    if os.fork() == 0:
        receives(s, 4)
        os._exit(0)
for count in 3, 1:
    for s in sockets[:2]:
        receives(s, count)
for _ in range(2):
    os.wait()
print('done', flush=True)
";

/// What the peer of `LATE` is answered.
fn late(net: &TestNet, process: &Process) -> Vec<String> {
    process.wait_for("bound", PATIENCE);
    let socket = net.client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut back = [0; 100];
    let send = |text: &str, port| {
        socket.send_to(text.as_bytes(), (*SERVICE.ip(), port)).expect("sent");
    };
    let ports = [5371, 5372, 5373, 5374];
    for text in ["first", "second", "third"] {
        // The neighbour is found meanwhile.
        std::thread::sleep(Duration::from_millis(20));
        ports.iter().for_each(|port| send(text, *port));
    }
    let mut answers: Vec<String> = Vec::new();
    let mut hear = |count| {
        for _ in 0..count {
            let (n, by) = socket.recv_from(&mut back).expect("an answer");
            answers.push(format!("{by} {}", String::from_utf8_lossy(&back[..n])));
        }
    };
    hear(3 * ports.len());
    ports.iter().for_each(|port| send("fourth", *port));
    hear(ports.len());
    process.wait_for("done", PATIENCE);
    answers.sort();
    answers
}

/// On Linux a datagram waits from `bind` on.
#[test]
fn datagrams_that_come_before_the_program_waits_are_kept() {
    let test = "datagrams_that_come_before_the_program_waits_are_kept";
    let Some(net) = on_linux_address(test) else { return };
    let own = SERVICE.ip().to_string();
    let mut command = net.server.command(PYTHON, None);
    command.args(["-c", LATE, &own]);
    let process = Process::start(command);
    let on_linux = late(&net, &process);
    assert_eq!(on_linux.len(), 16, "on Linux: {on_linux:#?}");
    drop(process);
    let process = net.start_shared(&[PYTHON, "-c", LATE, &own]).process;
    assert_eq!(late(&net, &process), on_linux);
}

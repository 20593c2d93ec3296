//! Unmodified programs of several processes behind the process wall: each uses the sockets that it
//! has inherited, as on Linux.
use crate::support::process::signal;
use crate::support::traffic::echo;
use crate::support::{Ends, Nic, PATIENCE, SERVICE, Service, TestNet, connect, eventually};
use ix_skip::{Need, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3";

/// A parent that listens and forks workers; it forks another one at SIGUSR1. Each worker serves one
/// connection at a time: it says its process in eight characters, and echoes until the end.
const PREFORK: &str = "
import ctypes, os, signal, socket
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)

def worker():
    while True:
        stream = listener.accept()[0]
        try:
            stream.sendall(b'%8d' % os.getpid())
            while got := stream.recv(4096): stream.sendall(got)
        except OSError: pass
        stream.close()

def fork(*_):
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL) # It ends with its parent.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        worker()
    print('worker', pid, flush=True)

for n in range(4): fork()
signal.signal(signal.SIGUSR1, fork)
print('ready', flush=True)
while True: signal.pause()
";

/// Starts a program in Python; `None`, said loudly, where there is no Python.
fn python(test: &str, nic: Nic, program: &str) -> Option<(TestNet, Service)> {
    if !Path::new(PYTHON).exists() {
        skip(test, Need::Program("apt install python3"), "no python3");
        return None;
    }
    let net = TestNet::new(test, nic, 1)?;
    let service = net.start_env(&[], &["--domain", "process"], &[PYTHON, "-c", program]);
    service.process.wait_for("ready", PATIENCE);
    Some((net, service))
}

/// The processes that the program has named.
fn workers(service: &Service) -> Vec<i32> {
    let said = service.process.said();
    let lines = said.iter().filter_map(|line| line.strip_prefix("worker "));
    lines.map(|pid| pid.parse().expect("a number")).collect()
}

/// The process that serves a connection.
fn whose(stream: &mut TcpStream) -> i32 {
    let mut pid = [0; 8];
    stream.read_exact(&mut pid).expect("a greeting");
    std::str::from_utf8(&pid).expect("text").trim().parse().expect("a number")
}

/// Whoever waits accepts: a connection never waits for a worker that is busy while another one is
/// not. A worker that is killed takes its connection along, and one that is forked later serves.
#[test]
fn forked_workers_accept_while_others_are_busy() {
    let test = "forked_workers_accept_while_others_are_busy";
    for nic in Nic::ALL {
        let Some((net, service)) = python(test, nic, PREFORK) else { return };
        net.client.run(|| {
            eventually("the first is served", || {
                let stream = TcpStream::connect_timeout(&SERVICE.into(), PATIENCE);
                stream.is_ok_and(|mut stream| stream.read_exact(&mut [0; 8]).is_ok())
            });
            let serve = |count: usize| -> BTreeMap<i32, TcpStream> {
                let all = (0..count).map(|_| {
                    let mut stream = connect();
                    (whose(&mut stream), stream)
                });
                all.collect()
            };
            for round in 0..5 {
                let mut all = serve(4);
                let expected: BTreeSet<i32> = workers(&service).into_iter().collect();
                assert_eq!(all.keys().copied().collect::<BTreeSet<i32>>(), expected);
                all.values_mut().for_each(|stream| echo(stream, round, 3000));
                // All are busy: one more waits until one of them is free, whichever that is.
                let mut late = connect();
                late.write_all(b"early").expect("sends");
                late.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
                assert!(late.read(&mut [0]).is_err(), "somebody has answered");
                late.set_read_timeout(Some(PATIENCE)).expect("a limit");
                let (free, stream) = all.pop_last().expect("one");
                drop(stream);
                assert_eq!(whose(&mut late), free);
                let mut back = [0; 5];
                late.read_exact(&mut back).expect("an echo");
                assert_eq!(&back, b"early");
            }
            // One ends, and only its connection with it.
            let mut all = serve(4);
            let (victim, mut lost) = all.pop_first().expect("one");
            signal(victim, libc::SIGKILL);
            assert!(matches!(lost.read(&mut [0; 64]), Ok(0) | Err(_)), "the peer is told");
            all.values_mut().for_each(|stream| echo(stream, 9, 3000));
            let mut late = connect();
            service.process.signal(libc::SIGUSR1);
            let next = whose(&mut late);
            assert_eq!(Some(&next), workers(&service).last(), "the new one serves");
            echo(&mut late, 1, 3000);
        });
    }
}

/// The same with a listener of its own for each worker, at one port (`SO_REUSEPORT`).
#[test]
fn workers_with_a_listener_each_share_a_port() {
    let test = "workers_with_a_listener_each_share_a_port";
    let program = PREFORK.replace(
        "    while True:\n        stream = listener",
        "    own = socket.socket()\n    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)\n    \
         own.bind(('10.88.0.2', 7))\n    own.listen(64)\n    while True:\n        stream = own",
    );
    let program = program.replace("listener.bind(('10.88.0.2', 7))\nlistener.listen(64)\n", "");
    let Some((net, service)) = python(test, Nic::Tap, &program) else { return };
    net.client.run(|| {
        let mut seen = BTreeSet::new();
        eventually("all have served", || {
            let mut stream = connect();
            seen.insert(whose(&mut stream));
            echo(&mut stream, 1, 300);
            seen == workers(&service).into_iter().collect()
        });
    });
}

/// nginx's master listens, and its workers accept. `$pid` is the worker's.
const NGINX: &str = "
daemon off;
worker_processes 4;
error_log stderr;
pid FOLDER/pid;
events { worker_connections 512; }
http {
    access_log off;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    server { listen 10.88.0.2:7 backlog=512; location / { return 200 '$pid '; } }
}
";

/// Asks nginx on a connection of its own; returns the worker that has answered.
fn ask_nginx() -> std::io::Result<i32> {
    let mut stream = TcpStream::connect_timeout(&SERVICE.into(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    let pid = said.trim_end().rsplit('\n').next().and_then(|word| word.parse().ok());
    pid.ok_or_else(|| std::io::Error::other(format!("not a worker: {said:?}")))
}

/// Four workers serve, and others after each reload, of which clients see nothing.
#[test]
fn nginx_serves_with_four_workers_and_reloads() {
    let test = "nginx_serves_with_four_workers_and_reloads";
    const NGINX_PROGRAM: &str = "/usr/sbin/nginx";
    if !Path::new(NGINX_PROGRAM).exists() {
        return skip(test, Need::Program("apt install nginx"), "no nginx");
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("nginx.conf");
    let text = NGINX.replace("FOLDER", folder.to_str().expect("text"));
    std::fs::write(&file, text).expect("a configuration");
    let words = [NGINX_PROGRAM, "-e", "stderr", "-c", file.to_str().expect("text")];
    let mut service = net.start_env(&[], &["--domain", "process"], &words);
    eventually("nginx serves", || {
        service.process.check();
        net.client.run(|| ask_nginx().is_ok())
    });
    let (is_over, served) = (AtomicBool::new(false), Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        let ends = Ends(&is_over);
        let client = || {
            net.client.run(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let worker = ask_nginx().expect("an answer");
                    served.lock().expect("a client").insert(worker);
                }
            })
        };
        let clients: Vec<_> = (0..8).map(|_| scope.spawn(client)).collect();
        for reloads in 0..5 {
            if reloads > 0 {
                service.process.signal(libc::SIGHUP);
            }
            std::thread::sleep(Duration::from_millis(700));
            eventually("four workers serve before and after each reload", || {
                served.lock().expect("a client").len() >= 4 * (reloads + 1)
            });
        }
        drop(ends);
        clients.into_iter().for_each(|client| client.join().expect("no connection is lost"));
    });
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}

/// What the parent of [`INETD`] reads itself.
const READS: &str = "stream.recv(1)";
/// A parent that accepts, reads a byte, and forks a child for each connection, which serves the
/// rest; the parent closes its copy.
const INETD: &str = "
import os, signal, socket
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
print('ready', flush=True)
while True:
    stream = listener.accept()[0]
    first = stream.recv(1)
    if os.fork() == 0:
        listener.close()
        stream.sendall(b'%8d' % os.getpid() + first)
        while got := stream.recv(4096): stream.sendall(got)
        stream.close()
        os._exit(0)
    stream.close()
";

/// A parent whose children are killed as they begin, and which has not waited for them when it
/// closes their connections.
const LOSES_CHILDREN: &str = "
import os, socket, time
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
print('ready', flush=True)
while True:
    stream = listener.accept()[0]
    stream.recv(1)
    if os.fork() == 0: os.kill(os.getpid(), 9)
    time.sleep(0.02)
    stream.close()
";

/// A parent that cannot fork, and closes each connection then.
const CANNOT_FORK: &str = "
import os, resource, socket
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
print('ready', flush=True)
while True:
    stream = listener.accept()[0]
    stream.recv(1)
    if os.getuid() == 0: os.setuid(65534)
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, before[1]))
    try:
        if os.fork() == 0: os._exit(0)
        print('forked', flush=True)
    except OSError: pass
    resource.setrlimit(resource.RLIMIT_NPROC, before)
    stream.close()
";

/// Nobody but the parent has the connection, however often that happens.
#[test]
fn a_connection_ends_with_its_parent_where_no_child_lives() {
    let test = "a_connection_ends_with_its_parent_where_no_child_lives";
    for program in [CANNOT_FORK, LOSES_CHILDREN] {
        let Some((net, service)) = python(test, Nic::Afxdp, program) else { return };
        net.client.run(|| {
            for nth in 0..70 {
                let mut stream = connect();
                stream.write_all(b"a").expect("sends");
                let ended = stream.read(&mut [0; 64]);
                assert!(matches!(ended, Ok(0)), "connection {nth}: {ended:?}");
            }
        });
        assert!(!service.process.said().iter().any(|line| line == "forked"), "it can fork");
    }
}

/// Processes that read from one connection in turn: who has read lets another one go on.
const TURNS: &str = "
import os, random, socket, struct
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
print('ready', flush=True)
streams = [listener.accept()[0] for _ in range(4)]
pipes = [os.pipe() for _ in range(4)]
def serve(own):
    while True:
        stream, = struct.unpack('B', os.read(pipes[own][0], 1))
        data = streams[stream].recv(random.randint(1, 3000))
        if data:
            streams[stream].sendall(data)
            os.write(pipes[random.randrange(4)][1], bytes([stream]))
        else:
            streams[stream].shutdown(socket.SHUT_WR)
for own in range(1, 4):
    if os.fork() == 0: serve(own)
for stream in range(4): os.write(pipes[stream][1], bytes([stream]))
serve(0)
";

/// No byte is lost, doubled or out of order, and nobody waits for ever.
#[test]
fn processes_that_take_turns_at_a_connection_get_all_of_it() {
    let test = "processes_that_take_turns_at_a_connection_get_all_of_it";
    for nic in Nic::ALL {
        let Some((net, _service)) = python(test, nic, TURNS) else { return };
        net.client.run(|| {
            let streams: Vec<_> = (0..4).map(|_| connect()).collect();
            std::thread::scope(|scope| {
                for (id, mut stream) in streams.into_iter().enumerate() {
                    scope.spawn(move || {
                        for round in 0..10 {
                            echo(&mut stream, (id * 100 + round) as u64, 20_000);
                        }
                        stream.shutdown(std::net::Shutdown::Write).expect("ends");
                        assert_eq!(stream.read(&mut [0; 64]).expect("the other end"), 0);
                    });
                }
            });
        });
    }
}

/// A parent that has a child read from each connection, kills it at any moment, reads a little
/// itself, and forks the next one. Each says how far the peer's stream was read before it reads on.
const KILLED_READERS: &str = "
import mmap, os, random, signal, socket, struct, time
TOTAL, AT_ONCE = 4_000_000, 65_536
NUMBERS = b''.join(struct.pack('<I', n) for n in range(TOTAL // 4))
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
said = mmap.mmap(-1, 8)
print('ready', flush=True)

def read_all(stream, at):
    while data := stream.recv(AT_ONCE):
        if data != NUMBERS[at:at + len(data)]: os._exit(3)
        at += len(data)
        said[:] = struct.pack('<Q', at)
    os._exit(0)

def serve(stream):
    at = 0
    while at < TOTAL:
        said[:] = struct.pack('<Q', at)
        pid = os.fork()
        if pid == 0: read_all(stream, at)
        time.sleep(random.uniform(0.004, 0.014))
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        if os.WIFEXITED(status): return 'a child found wrong bytes'
        at, = struct.unpack('<Q', said[:])
        if at == TOTAL: break
        # What the child has read last it may not have said.
        try: data = stream.recv(AT_ONCE)
        except OSError as why: return f'{why} after {at} bytes'
        if not data and at + AT_ONCE >= TOTAL: break
        place = NUMBERS.find(data[:8], at, at + AT_ONCE + 8)
        if not data or place < 0 or data != NUMBERS[place:place + len(data)]:
            return f'other bytes after {at}'
        at = place + len(data)
    stream.sendall(b'done')

while True:
    stream = listener.accept()[0]
    stream.settimeout(5)
    if why := serve(stream): print('wrong:', why, flush=True)
    stream.close()
";

/// What a killed process has read is given back: the peer's window opens, who has the connection
/// too reads all the rest, and no memory is held.
#[test]
fn a_reader_that_is_killed_leaves_the_rest_and_its_memory() {
    const BYTES: u32 = 4_000_000;
    let test = "a_reader_that_is_killed_leaves_the_rest_and_its_memory";
    let Some((net, service)) = python(test, Nic::Afxdp, KILLED_READERS) else { return };
    let sent: Vec<u8> = (0..BYTES / 4).flat_map(u32::to_le_bytes).collect();
    net.client.run(|| {
        for nth in 0..40 {
            let mut stream = connect();
            let mut done = [0; 4];
            let outcome = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut done));
            let said = service.process.said();
            assert!(outcome.is_ok() && &done == b"done", "{nth}: {outcome:?}, {said:#?}");
        }
    });
    service.wait_until("all frames are back", PATIENCE, |stats| {
        !stats.leftovers().iter().any(|left| left.contains("frames"))
    });
}

/// A program that listens and then prepares itself for seconds, without any wait.
const PREPARES: &str = "
import socket, time
listener = socket.socket()
listener.bind(('10.88.0.2', 7))
listener.listen(64)
print('ready', flush=True)
end = time.monotonic() + 6
while time.monotonic() < end: pass
print('prepared', flush=True)
while True:
    stream = listener.accept()[0]
    while got := stream.recv(4096): stream.sendall(got)
    stream.close()
";

/// As on Linux it is connected to meanwhile, whether it shares the dataplane's hardware thread or
/// not, and finds what was sent.
#[test]
fn a_program_is_reached_from_listen_on_whatever_it_does_then() {
    let test = "a_program_is_reached_from_listen_on_whatever_it_does_then";
    let cpus = ix_testbed::cpu::allowed();
    for own in cpus.iter().rev().take(2) {
        if !Path::new(PYTHON).exists() {
            return skip(test, Need::Program("apt install python3"), "no python3");
        }
        let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
        let flags = ["--domain", "process", "--program-cpus", &own.to_string()];
        let service = net.start_env(&[], &flags, &[PYTHON, "-c", PREPARES]);
        service.process.wait_for("ready", PATIENCE);
        service.process.wait_for("ix: device", PATIENCE);
        net.client.run(|| {
            let mut streams: Vec<_> = (0..5).map(|_| connect()).collect();
            streams.iter_mut().for_each(|stream| stream.write_all(b"early").expect("sends"));
            let prepared = service.process.said().iter().any(|line| line == "prepared");
            assert!(!prepared, "connected while it prepares itself: {:#?}", service.process.said());
            for stream in &mut streams {
                let mut back = [0; 5];
                stream.read_exact(&mut back).expect("an echo");
                assert_eq!(&back, b"early");
                stream.shutdown(std::net::Shutdown::Write).expect("ends");
            }
        });
    }
}

/// Binds a UDP socket, prepares itself, and answers what has come.
const PREPARES_FOR_DATAGRAMS: &str = "
import socket, time
own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
own.bind(('10.88.0.2', 7))
print('ready', flush=True)
time.sleep(3)
while True:
    data, peer = own.recvfrom(100)
    own.sendto(data, peer)
";

/// Where the address is IX's alone; shared with Linux: `shared_datagrams.rs`.
#[test]
fn datagrams_wait_for_a_program_that_has_bound_a_socket() {
    let test = "datagrams_wait_for_a_program_that_has_bound_a_socket";
    let Some((net, service)) = python(test, Nic::Afxdp, PREPARES_FOR_DATAGRAMS) else { return };
    service.process.wait_for("ix: device", PATIENCE);
    let socket = net.client.run(|| std::net::UdpSocket::bind("0.0.0.0:0")).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    // The port is opened in the first batch.
    std::thread::sleep(Duration::from_millis(200));
    for text in ["one", "two", "three"] {
        socket.send_to(text.as_bytes(), SERVICE).expect("sends");
    }
    for text in ["one", "two", "three"] {
        let mut back = [0; 100];
        let n = socket.recv(&mut back).expect("an answer");
        assert_eq!(&back[..n], text.as_bytes());
    }
}

/// The connection is the child's, with what nobody has read, and ends with the child. Most servers
/// fork before the connection was used at all.
#[test]
fn a_child_serves_the_connection_that_its_parent_has_accepted() {
    let test = "a_child_serves_the_connection_that_its_parent_has_accepted";
    let at_once = INETD.replace(READS, "b''");
    for (nic, program) in Nic::ALL.into_iter().flat_map(|nic| [(nic, INETD), (nic, &at_once)]) {
        let Some((net, _service)) = python(test, nic, program) else { return };
        net.client.run(|| {
            let mut all = Vec::new();
            for round in 0..6 {
                let mut stream = connect();
                stream.write_all(b"abcde").expect("sends");
                let pid = whose(&mut stream);
                let mut back = [0; 5];
                stream.read_exact(&mut back).expect("an echo");
                assert_eq!(&back, b"abcde");
                echo(&mut stream, round, 30_000);
                all.push((pid, stream));
            }
            let processes: BTreeSet<i32> = all.iter().map(|(pid, _)| *pid).collect();
            assert_eq!(processes.len(), all.len(), "a child for each");
            let (victim, mut lost) = all.pop().expect("one");
            signal(victim, libc::SIGKILL);
            assert!(matches!(lost.read(&mut [0; 64]), Ok(0) | Err(_)), "the peer is told");
            for (_, stream) in &mut all {
                echo(stream, 9, 3000);
                stream.shutdown(std::net::Shutdown::Write).expect("ends");
                assert_eq!(stream.read(&mut [0; 64]).expect("the other end"), 0);
            }
        });
    }
}

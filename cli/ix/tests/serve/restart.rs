//! A dataplane that dies: its program goes on with another one.
use crate::programs::posix::compile;
use crate::support::process::signal;
use crate::support::traffic::echo;
use crate::support::{self, CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const DOMAIN: [&str; 2] = ["--domain", "process"];
const DIED: &str = "ix: the dataplane ended (killed by SIGKILL): its connections are lost";

/// Kills the dataplane, and waits until the program has another one. The `nth` to die.
fn kill_dataplane(service: &Service, nth: usize) {
    let dataplane = service.dataplane();
    signal(dataplane, libc::SIGKILL);
    service.process.wait_for_nth(DIED, nth, PATIENCE);
    let what = format!("another dataplane; it said {:#?}", service.process.said());
    eventually(&what, || ![dataplane, service.program()].contains(&service.dataplane()));
}

/// A peer learns that its connection is gone when it sends.
fn is_reset(stream: &mut TcpStream) {
    let _ = stream.write_all(&[1; 64]);
    let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
    assert!(ended, "a connection has survived its dataplane");
}

/// A native program listens again by itself, as often as its dataplane dies.
#[test]
fn a_native_program_serves_after_its_dataplane_has_died() {
    let name = "a_native_program_serves_after_its_dataplane_has_died";
    for threads in [1, 2] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, threads) else { return };
        let service = net.serve_with(&DOMAIN, &["64"]);
        for round in 1..=3 {
            let mut streams: Vec<_> = (0..8).map(|_| net.connect()).collect();
            net.client.run(|| streams.iter_mut().for_each(|stream| echo(stream, round, 64)));
            kill_dataplane(&service, round as usize);
            streams.iter_mut().for_each(is_reset);
        }
        let mut stream = net.connect();
        net.client.run(|| echo(&mut stream, 4, 64));
        drop(stream);
        service.finish(PATIENCE);
    }
}

/// Threads of an unmodified program that wait in `accept`, `recv`, `epoll_wait` and `recvfrom`:
/// connections are reset, and the listeners and sockets serve again.
#[test]
fn an_unmodified_program_serves_after_its_dataplane_has_died() {
    let name = "an_unmodified_program_serves_after_its_dataplane_has_died";
    let Some(program) = compile(name, "restart") else { return };
    for threads in [1, 2] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, threads) else { return };
        let service = net.start_env(&[], &DOMAIN, &[program.to_str().expect("text")]);
        service.process.wait_for("ready", PATIENCE);
        let at = |port| SocketAddrV4::new(*SERVICE.ip(), port);
        let udp = net.client.run(|| UdpSocket::bind((CLIENT, 0)).expect("a socket"));
        udp.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        udp.connect(at(9)).expect("connect");
        let answers = || {
            udp.send(b"datagram").is_ok() && udp.recv(&mut [0; 64]).is_ok_and(|bytes| bytes == 8)
        };
        for round in 1..=3 {
            eventually("it listens", || {
                [7, 8].iter().all(|port| net.client.run(|| TcpStream::connect(at(*port)).is_ok()))
            });
            let connect = |port| net.client.run(|| support::connect_to(at(port)));
            let mut streams = [connect(7), connect(8)];
            for stream in &mut streams {
                net.client.run(|| echo(stream, round, 64));
            }
            eventually("datagrams come back", answers);
            kill_dataplane(&service, round as usize);
            streams.iter_mut().for_each(is_reset);
            let said = [
                "recv: Connection reset by peer",
                "epoll: ERR HUP RDHUP, Connection reset by peer",
            ];
            for line in said {
                service.process.wait_for_nth(line, round as usize, PATIENCE);
            }
        }
        eventually("datagrams come back", answers);
        let mut stream = net.client.run(|| support::connect_to(at(8)));
        net.client.run(|| echo(&mut stream, 4, 64));
        drop(stream);
        service.process.terminate();
    }
}

/// A dataplane that dies again and again is not started for ever.
#[test]
fn a_dataplane_that_always_dies_ends_the_run() {
    const STARTED_AGAIN: usize = 5;
    let name = "a_dataplane_that_always_dies_ends_the_run";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    let since = Instant::now();
    for nth in 1..=STARTED_AGAIN {
        kill_dataplane(&service, nth);
    }
    assert!(since.elapsed() < Duration::from_secs(50), "too slow to see anything");
    signal(service.dataplane(), libc::SIGKILL);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(!status.success(), "{said:#?}");
    let why = "its dataplane has died 6 times within 60 s and is not started again";
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
}

//! What any host must do, seen from Linux: ping, small transfers, refusals, ARP, and two elastic
//! threads behind one port.
use crate::support;
use crate::support::traffic::{self, Steady, close, echo, message};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet, frames};
use ix_skip::{Need, skip};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

#[test]
fn ping_is_answered() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("ping_is_answered", nic, 1) else { return };
        let service = net.serve(&["64"]);
        let mut ping = net.client.command("ping", None);
        ping.args(["-n", "-q", "-c", "3", "-i", "0.2", "-W", "10", "-s", "1000"]);
        ping.arg(SERVICE.ip().to_string());
        let output = match ping.output() {
            Ok(output) => output,
            Err(e) => {
                let need = Need::Program("apt-get install iputils-ping");
                skip("ping_is_answered", need, format_args!("cannot run ping: {e}"));
                return;
            }
        };
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && text.contains(" 3 received"), "{nic:?}: {text}");
        service.finish(PATIENCE);
    }
}

#[test]
fn two_elastic_threads_may_share_a_hardware_thread() {
    let test = "two_elastic_threads_may_share_a_hardware_thread";
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let (namespace, link) = net.service_link();
    let cpu = ix_testbed::cpu::allowed()[0];
    let config = format!(
        "host_addr = \"{}/16\"\ncpu = [{cpu}, {cpu}]\ndevices = [\"tap:{link},queues=2\"]\n\
         [tcp]\ntime_wait_us = 300000\n",
        SERVICE.ip()
    );
    let program = support::build_echo();
    let mut service = net.start_with(&config, &[program.to_str().expect("text"), "64"]);
    service.raise_tap(namespace, link, CLIENT, 16);
    let said = service.process.wait_for("ix: hardware thread", PATIENCE);
    assert!(said.contains(&format!("{cpu} is shared by 2 elastic threads")), "{said}");
    service.process.wait_for("ready", PATIENCE);
    let mut streams: Vec<TcpStream> = (0..20).map(|_| net.connect()).collect();
    for id in 0..20 {
        streams.iter_mut().for_each(|stream| echo(stream, id, 64));
    }
    let stats = service.stats();
    assert!(stats.each("flows").iter().all(|flows| *flows > 0), "{stats}");
    streams.into_iter().for_each(close);
    service.finish(PATIENCE);
}

/// As `nc` has it: everything is sent before anything is read.
#[test]
fn small_transfers_of_every_size() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("small_transfers_of_every_size", nic, 1) else { return };
        let service = net.serve(&["1"]);
        net.client.run(|| {
            for size in [1, 2, 63, 64, 1000, 1460, 1461, 2920, 5000, 20_000, 60_000] {
                let mut stream = support::connect();
                echo(&mut stream, size, size as usize);
                let last = message(size + 1, size as usize);
                stream.write_all(&last).expect("write");
                stream.shutdown(std::net::Shutdown::Write).expect("half close");
                let mut rest = Vec::new();
                stream.read_to_end(&mut rest).expect("all of it, and FIN");
                assert!(rest == last, "{nic:?}: {} of {size} bytes came back", rest.len());
            }
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("accepted"), 11);
    }
}

#[test]
fn closed_ports_refuse() {
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("closed_ports_refuse", nic, 1) else { return };
        let service = net.serve(&["64"]);
        net.client.run(|| {
            let closed = (*SERVICE.ip(), 4321);
            let e = TcpStream::connect_timeout(&closed.into(), PATIENCE).expect_err("no listener");
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{nic:?}");
            let socket = UdpSocket::bind((CLIENT, 0)).expect("bind");
            socket.connect(closed).expect("connect");
            socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
            socket.send(b"anybody?").expect("send");
            let e = socket.recv(&mut [0; 16]).expect_err("port unreachable");
            assert_eq!(e.kind(), ErrorKind::ConnectionRefused, "{nic:?}");
        });
        let stats = service.finish(PATIENCE);
        assert_eq!((stats.total("drops.no_flow"), stats.total("drops.udp_no_socket")), (1, 1));
    }
}

#[test]
fn two_elastic_threads_serve_one_listener() {
    const CONNECTIONS: u64 = 200;
    if ix_testbed::cpu::allowed().len() < 2 {
        skip("two_elastic_threads_serve_one_listener", Need::Cpus(2), "one CPU");
        return;
    }
    for nic in Nic::ALL {
        let Some(net) = TestNet::new("two_elastic_threads_serve_one_listener", nic, 2) else {
            return;
        };
        let service = net.serve(&["500"]);
        net.client.run(|| {
            let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| support::connect()).collect();
            for round in 0..10 {
                for (i, stream) in streams.iter_mut().enumerate() {
                    echo(stream, round << 32 | i as u64, 500);
                }
            }
            streams.into_iter().for_each(close);
        });
        let stats = service.finish(PATIENCE);
        let accepted = stats.each("accepted");
        assert_eq!(accepted.iter().sum::<u64>(), CONNECTIONS);
        // By the hash each flow group goes to either; 200 connections all on one is 2^-199.
        assert!(accepted.iter().all(|&n| n > 0), "{nic:?}: {accepted:?}");
    }
}

#[test]
fn an_address_that_another_host_claims_is_defended() {
    let thief = [2, 0, 0, 0, 0, 0x66];
    for nic in Nic::ALL {
        let name = "an_address_that_another_host_claims_is_defended";
        let Some(net) = TestNet::new(name, nic, 1) else { return };
        let service = net.serve(&["64"]);
        let wire = net.wire();
        let mac = net.service_mac();
        // Not the announcements of the start.
        while wire.receive(Duration::from_millis(2500)).expect("receive").is_some() {}
        net.client.run(|| {
            Steady::during(64, |steady| {
                let macs = frames::Macs { to: mac, from: thief };
                let claim = (thief, *SERVICE.ip());
                wire.send(&frames::arp(macs, 1, claim, ([0; 6], *SERVICE.ip()))).expect("send");
                let defence = wait_for_announcement(&wire, *SERVICE.ip());
                assert_eq!(defence, Some(mac), "{nic:?}: RFC 5227 section 2.4 (b)");
                steady.goes_on();
                // Again within ten seconds: not defended, but not given up either.
                for _ in 0..20 {
                    wire.send(&frames::arp(macs, 2, claim, (mac, CLIENT))).expect("send");
                }
                steady.goes_on();
            });
        });
        service.wait_until("conflicts are counted", PATIENCE, |stats| {
            stats.total("address_conflicts") == 21
        });
        traffic::close(net.connect());
        service.finish(PATIENCE);
    }
}

/// Who announces an address (sender and target of an ARP packet are the same), if anybody.
fn wait_for_announcement(wire: &ix_testbed::PacketSocket, ip: Ipv4Addr) -> Option<[u8; 6]> {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let Some(frame) = wire.receive(Duration::from_millis(100)).expect("receive") else {
            continue;
        };
        let is_arp = frame.len() >= 42 && frame[12..14] == [8, 6];
        if is_arp && frames::ip_at(&frame, 28) == ip && frames::ip_at(&frame, 38) == ip {
            return Some(std::array::from_fn(|i| frame[22 + i]));
        }
    }
    None
}

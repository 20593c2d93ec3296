//! Several runs share an interface at Linux's address: the keeper, the program's owners of ports,
//! and links.
use crate::common::{LINUX_IP, OUR_IP, eventually};
use crate::linux_address::pair;
use ix_netdev::{Family, HeldPorts, OpenOptions, OpenedDevice, Transport, keep, open};
use ix_sys::socket;
use ix_testbed::Namespace;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_millis(300);

/// What a run has of the interface.
struct Run {
    ports: Arc<HeldPorts>,
    device: OpenedDevice,
}

fn start(here: &Namespace) -> Run {
    let index = here.link("ix0").expect("asked").expect("there").index;
    here.run(|| {
        let start = || {
            std::thread::spawn(|| keep("ix0"));
            Ok(())
        };
        let addresses = vec![IpAddr::from(OUR_IP)];
        let ports = HeldPorts::join((addresses, index), 0, ("ix0", 1), start).expect("a part");
        let ports = Arc::new(ports);
        let options = OpenOptions {
            addresses: vec![ix_wire::IpAddr::v4(OUR_IP)],
            shared: Some(ports.clone()),
            ..OpenOptions::default()
        };
        let spec = "afxdp:ix0,queues=1".parse().expect("a device");
        Run { ports, device: open(&spec, &options).expect("opened") }
    })
}

/// What another host is told of a port.
fn ask(there: &Namespace, port: u16) -> Result<(), ErrorKind> {
    let to = SocketAddr::from((OUR_IP, port));
    there.run(|| TcpStream::connect_timeout(&to, SOON)).map(drop).map_err(|e| e.kind())
}

/// Packets that an interface has received.
fn received(here: &Namespace, name: &str) -> u64 {
    let text = here.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).expect("read");
    let line = text.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}:")));
    let words = line.expect("there").split_whitespace().nth(1).expect("a number");
    words.parse().expect("a number")
}

/// A datagram of the run as its dataplane would send it.
fn send(here: &Namespace, there: &Namespace, far: &str, port: u16) {
    let mac = |end: &Namespace, name: &str| end.link(name).expect("asked").expect("there").mac;
    let data = b"from a run";
    let mut ip = vec![0x45, 0, 0, 28 + data.len() as u8, 0, 1, 0, 0, 64, 17, 0, 0];
    ip.extend([OUR_IP, LINUX_IP].concat());
    let words = ip.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])));
    let sum = words.sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let length = (8 + data.len() as u16).to_be_bytes();
    let udp = [&port.to_be_bytes()[..], &9u16.to_be_bytes(), &length, &[0, 0], data].concat();
    let ethernet = [&mac(there, "peer0")[..], &mac(here, "ix0"), &[8, 0]].concat();
    let frame = [ethernet, ip, udp].concat();
    let index = here.link(far).expect("asked").expect("there").index;
    here.run(|| {
        let socket = socket::open_packets(index).expect("a socket");
        socket::send(socket.as_fd(), &frame, 0).expect("sent");
    });
}

/// Two runs begin at one moment, and the one that is to attach the program does not: the other one
/// is not kept waiting.
#[test]
fn a_run_that_fails_at_its_start_keeps_none_waiting() {
    let Some((here, _there)) = pair("a_run_that_fails_at_its_start_keeps_none_waiting") else {
        return;
    };
    let index = here.link("ix0").expect("asked").expect("there").index;
    let join = || {
        let start = || {
            std::thread::spawn(|| keep("ix0"));
            Ok(())
        };
        HeldPorts::join((vec![OUR_IP.into()], index), 0, ("ix0", 1), start).expect("a part")
    };
    let first = here.run(join);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| here.run(join));
        std::thread::sleep(SOON);
        let began = Instant::now();
        drop(first);
        let second = second.join().expect("it has a part");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(second.link().is_none(), "it is to attach the program");
        second.leave();
    });
}

#[test]
fn runs_share_an_interface_and_none_breaks_another() {
    let Some((here, there)) = pair("runs_share_an_interface_and_none_breaks_another") else {
        return;
    };
    let linux = here.run(|| TcpListener::bind(SocketAddr::from((OUR_IP, 22)))).expect("free");
    let heard = there.run(|| UdpSocket::bind(SocketAddr::from((LINUX_IP, 9)))).expect("free");
    heard.set_read_timeout(Some(SOON)).expect("a timeout");
    let program = || here.xdp_program("ix0").expect("asked");
    assert_eq!(ask(&there, 80), Err(ErrorKind::ConnectionRefused), "Linux alone");

    let first = start(&here);
    assert!(first.ports.link().is_none() && program().is_some(), "the first one has the queues");
    let second = start(&here);
    let far = second.ports.link().expect("the second one has a link").to_owned();
    here.run(|| {
        first.ports.hold(Transport::Tcp, Family::V4, 80).expect("free");
        second.ports.hold(Transport::Tcp, Family::V4, 81).expect("free");
        second.ports.hold(Transport::Udp, Family::V4, 53).expect("free");
        let taken =
            second.ports.hold(Transport::Tcp, Family::V4, 80).expect_err("the first one has it");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    });
    // Nobody answers for either; Linux serves on, and refuses the rest.
    let before = received(&here, &far);
    let answers = [22, 79, 80, 81].map(|port| ask(&there, port));
    let (refused, silent) = (Err(ErrorKind::ConnectionRefused), Err(ErrorKind::TimedOut));
    assert_eq!(answers, [Ok(()), refused, silent, silent]);
    assert!(received(&here, &far) > before, "the second one's went into its link");
    // What the second one sends leaves, if it is from a port of its own.
    let hears = || {
        let mut data = [0; 32];
        heard.recv_from(&mut data).map(|(_, from)| from.port()).ok()
    };
    send(&here, &there, &far, 54);
    send(&here, &there, &far, 53);
    assert_eq!((hears(), hears()), (Some(53), None));

    // The first one ends without a word.
    drop(first);
    // The keeper puts another program in the place of the one there was, for the addresses of the
    // others. At no time there is none.
    let is_there = || assert!(program().is_some(), "a program stays");
    eventually("Linux has its port", || {
        is_there();
        ask(&there, 80) == refused
    });
    is_there();
    assert_eq!([22, 81].map(|port| ask(&there, port)), [Ok(()), silent]);
    send(&here, &there, &far, 53);
    assert_eq!(hears(), Some(53));
    // The next one has a link too: the queues rest for a while.
    let third = start(&here);
    assert!(third.ports.link().is_some_and(|link| link != far));
    here.run(|| third.ports.hold(Transport::Tcp, Family::V4, 80)).expect("free again");
    assert_eq!(ask(&there, 80), silent);
    std::thread::sleep(Duration::from_secs(2));
    let fourth = start(&here);
    assert!(fourth.ports.link().is_none(), "the queues are free again");
    here.run(|| fourth.ports.hold(Transport::Tcp, Family::V4, 82)).expect("free");
    assert_eq!([22, 80, 81, 82].map(|port| ask(&there, port)), [Ok(()), silent, silent, silent]);

    // They end in order, and nothing is left.
    let last = [second, third, fourth];
    for run in last {
        run.ports.leave();
    }
    assert_eq!([22, 80, 81, 82].map(|port| ask(&there, port)), [Ok(()), refused, refused, refused]);
    assert_eq!(program(), None);
    let links = here.links().expect("asked");
    assert!(!links.iter().any(|link| link.name.starts_with("ixk")), "no link is left");
    drop(linux);
}

/// However much runs want for connections of theirs, Linux has half of its range.
#[test]
fn all_runs_together_leave_linux_half_of_its_ports() {
    let Some((here, there)) = pair("all_runs_together_leave_linux_half_of_its_ports") else {
        return;
    };
    here.set_sysctl("net/ipv4/ip_local_port_range", "33000 33383").expect("set");
    let listener = there.run(|| TcpListener::bind(SocketAddr::from((LINUX_IP, 9)))).expect("free");
    let count = |ranges: &[(u16, u16)]| -> usize {
        ranges.iter().map(|(first, last)| usize::from(last - first) + 1).sum()
    };
    let runs = [start(&here), start(&here), start(&here)];
    let ports = runs.each_ref().map(|run| &*run.ports);
    let blocks = ports.map(|ports| here.run(|| ports.hold_block(16, 0)).expect("there is room"));
    // All at once, again and again.
    let more = &|ports: &HeldPorts| -> Vec<(u16, u16)> {
        here.run(|| (0..20).flat_map(|seed| ports.add_outgoing(100, seed * 20)).collect())
    };
    let added: Vec<(u16, u16)> = std::thread::scope(|scope| {
        let threads = ports.map(|ports| scope.spawn(move || more(ports)));
        threads.into_iter().flat_map(|thread| thread.join().expect("done")).collect()
    });
    let all = count(&blocks) + count(&added);
    assert!((48 + 64..=192).contains(&all), "{all}");
    // Linux's connections have the others.
    let to = SocketAddr::from((LINUX_IP, 9));
    let connect = |_| {
        let stream = TcpStream::connect(to).expect("a port");
        ix_sys::socket::reset_on_close(&stream).expect("set");
        (stream, listener.accept().expect("it has come"))
    };
    let streams: Vec<_> = here.run(|| (0..100).map(connect).collect());
    drop(streams);
    for ports in ports {
        ports.added().into_iter().for_each(|range| ports.return_outgoing(range));
    }
    // What one has given back another one may have.
    assert_eq!(count(&more(ports[2])), 128);
    ports.iter().for_each(|ports| ports.leave());
}

/// Two runs of one user want a port at one moment: one of them has it, and no other.
#[test]
fn of_two_runs_one_has_a_port() {
    let Some((here, _there)) = pair("of_two_runs_one_has_a_port") else { return };
    let runs = [start(&here), start(&here)];
    let ports = runs.each_ref().map(|run| &*run.ports);
    // Their programs have sockets on Linux, so that holders of both can stand beside each other.
    ports.iter().for_each(|ports| ports.expect_sockets());
    let barrier = Barrier::new(2);
    for transport in Transport::ALL {
        let hold = &|ports: &HeldPorts| -> Vec<bool> {
            let tries = |port| {
                barrier.wait();
                let held = ports.hold(transport, Family::V4, port);
                barrier.wait();
                ports.release(transport, Family::V4, port);
                held.map_err(|e| assert_eq!(e.kind(), ErrorKind::AddrInUse)).is_ok()
            };
            here.run(|| (7000..7200).map(tries).collect())
        };
        let [first, second] = std::thread::scope(|scope| {
            let threads = ports.map(|ports| scope.spawn(move || hold(ports)));
            threads.map(|thread| thread.join().expect("done"))
        });
        let wrong = first.iter().zip(&second).filter(|(first, second)| first == second).count();
        assert_eq!(wrong, 0, "{transport}: {first:?} {second:?}");
    }
    ports.iter().for_each(|ports| ports.leave());
}

/// Frames in several buffers are taken there too, by the queues and by links.
#[test]
fn runs_share_an_interface_of_long_frames() {
    let Some((here, there)) = pair("runs_share_an_interface_of_long_frames") else { return };
    for (end, name) in [(&here, "ix0"), (&there, "peer0")] {
        end.set_mtu(name, 9000).expect("an MTU");
    }
    let runs = [start(&here), start(&here)];
    assert_eq!(runs.each_ref().map(|run| run.ports.link().is_some()), [false, true]);
    for run in &runs {
        let info = &run.device.info;
        assert!(info.mtu == 9000 && info.mode.starts_with("native"), "{} {}", info.mtu, info.mode);
        assert!(!info.mode.contains("refused"), "{}", info.mode);
    }
    for run in runs {
        run.ports.leave();
    }
    assert_eq!(here.xdp_program("ix0").expect("asked"), None);
}

//! A hostile network: real attackers' tools, floods and slow readers against a served port, while
//! honest clients go on. Prints the clients' rate under each attack beside that in peace.
use crate::support::frames::{ACK, Macs, PSH, RST, SYN, Seen, Segment, read_tcp, stranger};
use crate::support::process::resident_bytes;
use crate::support::traffic::{Steady, close, echo};
use crate::support::{Nic, PATIENCE, Service, TestNet, connect, eventually};
use ix_random::Rng;
use ix_skip::{Need, skip};
use ix_testbed::PacketSocket;
use std::io::{Read, Write};
use std::net::{SocketAddrV4, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An attack: what it needs, and what begins it. It ends when it is dropped.
struct Attack {
    name: &'static str,
    tool: &'static str,
    arguments: &'static str,
}

const fn hping(name: &'static str, arguments: &'static str) -> Attack {
    Attack { name, tool: "hping3", arguments }
}

/// 10 000 packets a second each: a sixth of what fills the queue of a tap on a busy machine, where
/// honest packets are lost before anybody of ours sees them.
const ATTACKS: &[Attack] = &[
    hping("SYN flood", "-q -i u100 -S -p 7 --rand-source 10.88.0.2"),
    hping("ACK flood", "-q -i u100 -A -p 7 --rand-source 10.88.0.2"),
    hping("RST flood", "-q -i u100 -R -p 7 10.88.0.2"),
    hping("ICMP flood", "-q -i u100 -1 -d 1000 10.88.0.2"),
    hping("UDP flood", "-q -i u100 -2 -p 9 --rand-source -d 500 10.88.0.2"),
    hping("fragments", "-q -i u100 -S -p 7 -f -d 64 10.88.0.2"),
    hping("Christmas trees", "-q -i u100 -F -S -R -P -A -U -X -Y -p 7 10.88.0.2"),
    Attack { name: "nmap -sS", tool: "nmap", arguments: "-Pn -n -sS -T4 -p- 10.88.0.2" },
    Attack { name: "nmap -O", tool: "nmap", arguments: "-Pn -n -O -p 1-100 10.88.0.2" },
    Attack { name: "nmap -sX", tool: "nmap", arguments: "-Pn -n -sX -T4 -p 1-2000 10.88.0.2" },
    Attack { name: "nmap -sU", tool: "nmap", arguments: "-Pn -n -sU -T4 -p 1-500 10.88.0.2" },
    Attack { name: "nmap -sO", tool: "nmap", arguments: "-Pn -n -sO -T4 10.88.0.2" },
    Attack { name: "scapy's garbage", tool: "/usr/bin/python3", arguments: "-c" },
];

/// Every layer of a packet with random fields, some of them valid.
const SCAPY: &str = "
import logging; logging.getLogger('scapy').setLevel(logging.ERROR)
from scapy.all import *
import random
random.seed(7)
conf.verb = 0
s = conf.L2socket(iface='ixt0')
def any_():
    ip = random.choice([IP(dst='10.88.0.2', src='10.88.0.1'), fuzz(IP(dst='10.88.0.2'))])
    up = random.choice([TCP(dport=7), fuzz(TCP(dport=7)), fuzz(UDP()), fuzz(ICMP()), fuzz(TCP())])
    return Ether(dst='MAC') / random.choice([ip / up, ip / up / Raw(RandBin(100)), fuzz(ARP())])
while True:
    try: s.send(any_())
    except OSError: pass
";

/// A running tool; killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Attack {
    fn begin(&self, net: &TestNet) -> Running {
        let mut command = net.client.command(self.tool, None);
        command.args(self.arguments.split(' '));
        if self.tool == "/usr/bin/python3" {
            let mac = net.service_mac().map(|byte| format!("{byte:02x}")).join(":");
            command.arg(SCAPY.replace("MAC", &mac));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Running(command.spawn().unwrap_or_else(|e| panic!("{}: {e}", self.tool)))
    }

    /// Whether the tool is there; says so, loudly, when not.
    fn is_there(&self) -> bool {
        let probe = if self.tool == "/usr/bin/python3" { "import scapy.all" } else { "" };
        let mut command = Command::new(self.tool);
        let command = match self.tool {
            "/usr/bin/python3" => command.args(["-c", probe]),
            _ => command.arg("--version"),
        };
        let there = command.stderr(Stdio::null()).stdout(Stdio::null()).status();
        let there = there.is_ok_and(|status| self.tool != "/usr/bin/python3" || status.success());
        if !there {
            let package = if self.tool == "/usr/bin/python3" { "python3-scapy" } else { self.tool };
            let remedy = format!("apt-get install {package}");
            skip(self.name, Need::Program(&remedy), format_args!("no {package}"));
        }
        there
    }
}

/// Honest clients: each opens connections, and echoes some messages on each.
struct Honest<'a> {
    over: &'a AtomicBool,
    echoes: &'a AtomicU64,
    /// Each asks at most once in so long.
    pace: Duration,
}

impl Honest<'_> {
    fn work(&self) {
        let mut due = Instant::now();
        while !self.over.load(Ordering::SeqCst) {
            let mut stream = connect();
            for id in 0..50 {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                // Who was held up does not make up for it.
                due = Instant::now() + self.pace;
                echo(&mut stream, id, 64);
                self.echoes.fetch_add(1, Ordering::SeqCst);
            }
            close(stream);
        }
    }

    /// Their rate until they have done so much, and for so long at least.
    fn rate(&self, least: u64, seconds: f64) -> f64 {
        let (begin, before) = (Instant::now(), self.echoes.load(Ordering::SeqCst));
        eventually("honest clients go on", || {
            self.echoes.load(Ordering::SeqCst) - before >= least
                && begin.elapsed().as_secs_f64() >= seconds
        });
        (self.echoes.load(Ordering::SeqCst) - before) as f64 / begin.elapsed().as_secs_f64()
    }
}

/// Ends the clients, whatever happens.
struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Clients that ask and never read.
fn slow_readers(count: usize) -> Vec<TcpStream> {
    let mut streams: Vec<TcpStream> = (0..count).map(|_| connect()).collect();
    for stream in &mut streams {
        stream.set_nonblocking(true).expect("a mode");
        while stream.write(&[7; 64 * 256]).is_ok() {}
    }
    streams
}

/// Runs every attack; returns the clients' rate under it and in peace. `pace`: see [`Honest`].
fn under_attack(
    test: &str,
    pace: Duration,
    least: u64,
    seconds: f64,
) -> Option<Vec<(&'static str, f64, f64)>> {
    let net = TestNet::alone(test, Nic::Tap, 1)?;
    let service = net.serve(&["64"]);
    let (over, echoes) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rates = Vec::new();
    net.client.run(|| {
        std::thread::scope(|scope| {
            let _stop = StopAtEnd(&over);
            for _ in 0..2 {
                scope.spawn(|| Honest { over: &over, echoes: &echoes, pace }.work());
            }
            let honest = Honest { over: &over, echoes: &echoes, pace };
            honest.rate(least, seconds);
            let pid = service.program();
            let before = resident_bytes(pid);
            for attack in ATTACKS.iter().filter(|attack| attack.is_there()) {
                let peace = honest.rate(least, seconds);
                let running = attack.begin(&net);
                let rate = honest.rate(least, seconds);
                drop(running);
                rates.push((attack.name, rate, peace));
            }
            let peace = honest.rate(least, seconds);
            let readers = slow_readers(64);
            rates.push(("64 slow readers", honest.rate(least, seconds), peace));
            drop(readers);
            let grown = resident_bytes(pid).saturating_sub(before);
            assert!(grown < 256 << 20, "{} MiB more than before", grown >> 20);
        });
    });
    rest(service);
    for (name, rate, peace) in &rates {
        println!(
            "{name:<18} {rate:>9.0}/s, {:>4.0} % of {peace:.0}/s in peace",
            100.0 * rate / peace
        );
    }
    Some(rates)
}

/// Everything that attackers left goes.
fn rest(service: Service) {
    // Half-open connections of forged sources live for as long as SYN-ACKs are sent again.
    let stats = service.finish(Duration::from_secs(200));
    assert!(stats.total("syn_cookies") + stats.drops() > 0, "nobody attacked: {stats}");
}

/// For `.ci/run nightly`.
#[test]
#[ignore = "takes a minute"]
fn honest_clients_go_on_under_every_attack() {
    under_attack("honest_clients_go_on_under_every_attack", Duration::ZERO, 100, 0.2);
}

/// Clients that ask a thousand times a second in all: what two processors can carry beside the
/// attacker, so that what is lost is the service's fault and not the attacker's use of the machine.
/// For a quiet machine: `.ci/run nightly`.
#[test]
#[ignore = "wants a quiet machine"]
fn honest_clients_keep_four_fifths_of_their_rate() {
    let test = "honest_clients_keep_four_fifths_of_their_rate";
    let pace = Duration::from_millis(2);
    for (name, rate, peace) in under_attack(test, pace, 1000, 2.0).unwrap_or_default() {
        assert!(rate >= 0.8 * peace, "{name}: {rate:.0}/s of {peace:.0}/s");
    }
}

/// Blind attacks of RFC 5961: who knows both addresses and ports, but no sequence number, tries the
/// whole sequence space in steps smaller than any window.
#[test]
fn a_blind_sweep_neither_resets_nor_injects() {
    let test = "a_blind_sweep_neither_resets_nor_injects";
    let Some(net) = TestNet::alone(test, Nic::Tap, 1) else { return };
    let service = net.serve(&["100"]);
    let (wire, macs) = (net.wire(), net.macs());
    net.client.run(|| {
        Steady::during(100, |steady| {
            let mut rng = Rng::new(11);
            for flags in [RST, SYN, ACK | PSH, RST | ACK] {
                sweep(&wire, macs, sniff(&wire, steady.local), flags, &mut rng);
                steady.goes_on();
            }
        });
    });
    let stats = service.finish(PATIENCE);
    let challenged = ["challenge_acks", "challenge_acks_limited"];
    let challenged: u64 = challenged.iter().map(|n| stats.total(&format!("tcp.{n}"))).sum();
    assert!(challenged > 0, "nothing fell into the window: {stats}");
}

/// Messages are 100 octets long, and so are the steps a multiple of it: what is sent never is where
/// the next message begins, which would be no guess but a hit.
fn sweep(wire: &PacketSocket, macs: Macs, now: Seen, flags: u8, rng: &mut Rng) {
    const STEP: u32 = 200_000;
    for step in 0..u32::MAX / STEP {
        let seq = now.ack.wrapping_add(50).wrapping_add(step * STEP);
        let ack = if flags & ACK != 0 { rng.next_u64() as u32 } else { 0 };
        let payload = if flags & PSH != 0 { vec![0xee; 100] } else { Vec::new() };
        let segment = Segment { from: now.to, seq, ack, flags, payload, ..stranger(macs) };
        // A full queue loses it.
        let _ = wire.send(&segment.frame());
        if step % 64 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A segment that the service has just sent to a client: says where their connection is.
fn sniff(wire: &PacketSocket, client: SocketAddrV4) -> Seen {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let frame = wire.receive(Duration::from_millis(100)).expect("receive");
        if let Some(seen) = frame.and_then(|f| read_tcp(&f)).filter(|s| s.to == client) {
            return seen;
        }
    }
    panic!("the connection is silent");
}

/// A reader that reads nothing for long gets everything in the end.
#[test]
fn a_slow_reader_gets_every_octet() {
    let Some(net) = TestNet::alone("a_slow_reader_gets_every_octet", Nic::Tap, 1) else { return };
    let service = net.serve(&["64"]);
    net.client.run(|| {
        let mut stream = connect();
        stream.set_nonblocking(true).expect("a mode");
        let mut sent = 0;
        while let Ok(n) = stream.write(&[9; 64 * 16]) {
            sent += n;
        }
        // Both directions are full now: honest clients do not feel it.
        (0..50).for_each(|id| echo(&mut connect(), id, 64));
        stream.set_nonblocking(false).expect("a mode");
        stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("the echo");
        // The service echoes whole messages.
        assert_eq!(got.len(), sent / 64 * 64);
        assert!(got.iter().all(|&byte| byte == 9));
    });
    service.finish(PATIENCE);
}

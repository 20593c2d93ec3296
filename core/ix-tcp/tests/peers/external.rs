//! Peers that are separate programs: IP packets over a datagram socket, in real time. The arguments
//! tell a program what its application does. It prints the result in one line: `got BYTES
//! true|false end|reset|aborted`.
use super::play::{App, Weather};
use super::stack::{Opening, Stack};
use super::{Offer, Scenario, ours::Ours};
use crate::support::pattern;
use ix_random::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// How long one conversation may take, on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);
const DELAY_US: u64 = 2_000;

/// A running peer.
struct Peer {
    child: Child,
    packets: UnixDatagram,
    report: Receiver<String>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Errors mean that it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn arguments(app: &App, offer: &Offer) -> Vec<String> {
    let opens = if app.opens == Opening::Active { "active" } else { "passive" };
    let aborts_at = app.aborts_at.map_or(-1, |bytes| bytes as i64);
    let mut all = vec![opens.to_owned()];
    all.extend(
        [
            app.sends as i64,
            i64::from(app.waits_for_end),
            aborts_at,
            (app.reads_from_us / 1000) as i64,
            i64::from(offer.mtu[1]),
            i64::from(offer.buffer_bytes[1]),
            i64::from(offer.sack),
            i64::from(offer.timestamps),
            i64::from(offer.window_scaling),
        ]
        .map(|number| number.to_string()),
    );
    all
}

fn start(program: &Path, app: &App, offer: &Offer) -> std::io::Result<Peer> {
    let (packets, theirs) = UnixDatagram::pair()?;
    packets.set_nonblocking(true)?;
    let mut child = Command::new(program)
        .args(arguments(app, offer))
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .spawn()?;
    let (sender, report) = channel();
    if let Some(stdout) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    Ok(Peer { child, packets, report })
}

/// When a packet must be forwarded, its number, and whether to our end.
type UnderWay = Reverse<(u64, u64, bool, Vec<u8>)>;

/// A conversation between our end and a program.
pub struct Played {
    ours: Ours,
    app: App,
    peer: Peer,
    weather: Weather,
    random: Rng,
    start: Instant,
    under_way: BinaryHeap<UnderWay>,
    /// Both connect: what we send waits until the peer has sent, so that the SYNs cross however
    /// late the program starts.
    held: Option<Vec<Vec<u8>>>,
    order: u64,
    data: Vec<u8>,
    sent: usize,
    got: Vec<u8>,
    closed: bool,
    aborted: bool,
    verdict: Option<String>,
}

impl Played {
    /// Plays a scenario with the peer in the file `program`. Returns the reason if it fails.
    pub fn run(scenario: &Scenario, program: &Path, seed: u64) -> Result<(), String> {
        let peer = start(program, &scenario.apps[1], &scenario.offer).map_err(|e| e.to_string())?;
        let played = Played {
            ours: Ours::new(super::config(&scenario.offer)),
            app: scenario.apps[0],
            peer,
            weather: scenario.weather,
            random: Rng::new(seed),
            start: Instant::now(),
            under_way: BinaryHeap::new(),
            held: scenario.apps.iter().all(|app| app.opens == Opening::Active).then(Vec::new),
            order: 0,
            data: pattern(scenario.apps[0].sends),
            sent: 0,
            got: Vec::new(),
            closed: false,
            aborted: false,
            verdict: None,
        };
        played.play(scenario)
    }

    fn now_us(&self) -> u64 {
        1_000_000 + self.start.elapsed().as_micros() as u64
    }

    fn play(mut self, scenario: &Scenario) -> Result<(), String> {
        self.ours.open(self.now_us(), self.app.opens);
        self.peer.packets.send(b"go").map_err(|e| e.to_string())?;
        while !(self.ours.is_over() && self.verdict.is_some()) {
            if self.start.elapsed() > PATIENCE {
                return Err(self.say("took too long"));
            }
            self.take_in();
            self.pass_on();
            self.live();
            self.send_out();
            if let Ok(line) = self.peer.report.try_recv() {
                self.verdict = Some(line);
            }
            if let Ok(Some(status)) = self.peer.child.try_wait() {
                return Err(self.say(&format!("the peer ended: {status}")));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.judge(scenario)
    }

    /// Forwards what the peer has sent.
    fn take_in(&mut self) {
        let mut buffer = vec![0; 65_536];
        while let Ok(n) = self.peer.packets.recv(&mut buffer) {
            self.under_way(true, &buffer[..n]);
            for packet in self.held.take().unwrap_or_default() {
                self.under_way(false, &packet);
            }
        }
    }

    fn under_way(&mut self, to_us: bool, packet: &[u8]) {
        let weather = self.weather;
        if self.random.per_mille(weather.loss) {
            return;
        }
        for _ in 0..1 + usize::from(self.random.per_mille(weather.duplicate)) {
            let late = self.random.per_mille(weather.reorder);
            let late_us = if late { self.random.below(4_000) } else { 0 };
            self.order += 1;
            let at_us = self.now_us() + DELAY_US + late_us;
            self.under_way.push(Reverse((at_us, self.order, to_us, packet.to_vec())));
        }
    }

    fn pass_on(&mut self) {
        let now_us = self.now_us();
        while self.under_way.peek().is_some_and(|Reverse(packet)| packet.0 <= now_us) {
            let Some(Reverse((_, _, to_us, packet))) = self.under_way.pop() else { return };
            if to_us {
                self.ours.input(now_us, &packet);
            } else if let Err(e) = self.peer.packets.send(&packet) {
                // A full socket loses packets, as wires do.
                assert!(e.kind() == ErrorKind::WouldBlock, "{e}");
            }
        }
    }

    fn live(&mut self) {
        let now_us = self.now_us();
        if self.aborted {
            return;
        }
        if self.start.elapsed().as_micros() as u64 >= self.app.reads_from_us {
            self.got.extend(self.ours.read());
        }
        if !self.ours.is_open() {
            return;
        }
        if self.app.aborts_at.is_some_and(|bytes| self.got.len() >= bytes) {
            self.ours.abort(now_us);
            self.aborted = true;
            return;
        }
        if !self.closed {
            self.sent += self.ours.send(&self.data[self.sent..]);
            let may = !self.app.waits_for_end || self.ours.at_end();
            if self.sent == self.data.len() && may && self.app.aborts_at.is_none() {
                self.ours.shutdown(now_us);
                self.closed = true;
            }
        }
    }

    fn send_out(&mut self) {
        for packet in self.ours.output(self.now_us()) {
            match &mut self.held {
                Some(held) => held.push(packet),
                None => self.under_way(false, &packet),
            }
        }
    }

    fn judge(&self, scenario: &Scenario) -> Result<(), String> {
        let theirs = &scenario.apps[1];
        let verdict = self.verdict.as_deref().unwrap_or_default();
        let aborts = self.app.aborts_at.is_some() || theirs.aborts_at.is_some();
        let fields: Vec<&str> = verdict.split_whitespace().collect();
        let ["got", bytes, right, how] = fields[..] else { return Err(self.say("what?")) };
        let wanted = pattern(theirs.sends);
        if right != "true" || !wanted.starts_with(&self.got) {
            return Err(self.say("a stream differs"));
        }
        if !aborts && (bytes != self.app.sends.to_string() || self.got.len() != wanted.len()) {
            return Err(self.say("a stream is short"));
        }
        let expected = match (self.aborted, theirs.aborts_at) {
            (true, _) => "reset",
            (_, Some(_)) => "aborted",
            _ => "end",
        };
        let heard = theirs.aborts_at.is_none() || self.ours.was_reset();
        if how == expected && heard { Ok(()) } else { Err(self.say("ended otherwise")) }
    }

    fn say(&self, what: &str) -> String {
        format!(
            "{what} after {} ms: sent {}, got {}, closed {}; peer: {:?}; {}",
            self.start.elapsed().as_millis(),
            self.sent,
            self.got.len(),
            self.closed,
            self.verdict,
            self.ours.describe()
        )
    }
}

//! Attacks on queues: a hostile program has two elastic threads, and so two queue pairs, beside
//! another user's dataplane. It sends arbitrary frames on either queue, and uses the control
//! sockets that every user may open.
use super::{Outcome, START, flip, outcome, row};
use ix_broker::control::{Client, read_only};
use ix_proto::control::vnic::{FiltersCreated, OwnVnic, QueueRates, RateChange, View};
use ix_proto::control::{Code, Line, Request};
use ix_report::problem::{Problem, Result};
use ix_report::wall::attacker;
use ix_testbed::{Namespace, PacketSocket, cpu};
use ix_vnic::Rate;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 2);
/// Linux's end of the hostile program's link.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 1);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 68, 0, 2);
const LINK: &str = "ixevil";
/// The protocol of its frames, and the port of its datagrams.
const PROTOCOL: u8 = 253;
const PORT: u16 = 7;
/// The queue that holds what the program may send; the program attacks from the other one.
const HOLDER: usize = 1;
const OTHER: usize = 0;

/// A dataplane with its program; dropping this ends both.
struct Dataplane {
    run: Child,
    control: PathBuf,
    orders: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

/// The hostile program and its victim.
struct Stage {
    evil: Dataplane,
    neighbour: Dataplane,
    /// Linux's end of the hostile program's link.
    wire: PacketSocket,
    mac: [u8; 6],
    peer_mac: [u8; 6],
    /// Capabilities: of what the queue [`HOLDER`] may send, and of the neighbour's filter.
    ours: String,
    theirs: String,
    marker: u8,
    _namespace: Namespace,
}

/// Returns a row for each attack.
pub(super) fn rows() -> Result<Vec<Value>> {
    let mut stage = Stage::new()?;
    let mut rows = stage.send()?;
    rows.extend(stage.take()?);
    rows.extend(stage.limit()?);
    Ok(rows)
}

impl Stage {
    fn new() -> Result<Stage> {
        let cannot = |e| Problem::new("cannot make links to attack queues on", e);
        let namespace = Namespace::new().map_err(cannot)?;
        let program = attacker()?;
        let program = program.to_str().unwrap_or_default();
        let mut evil = Dataplane::start(&namespace, LINK, OWN, 2, &[program, "queues"])?;
        namespace.wait_for_link(LINK, START).map_err(cannot)?;
        namespace.add_address(LINK, PEER, 24).map_err(cannot)?;
        namespace.set_up(LINK, true).map_err(cannot)?;
        let wire = PacketSocket::open(&namespace, LINK).map_err(cannot)?;
        let ix = std::env::current_exe().map_err(|e| Problem::new("cannot attack queues", e))?;
        let ix = ix.to_str().unwrap_or_default();
        let mut neighbour =
            Dataplane::start(&namespace, "ixgood", NEIGHBOUR, 1, &[ix, "echo", "64"])?;
        evil.hear("ready")?;
        evil.hear("ready")?;
        neighbour.hear("ready: ")?;
        let ours = evil.grant(&format!("tx ip proto {PROTOCOL} service {OWN}"), HOLDER)?;
        evil.grant(&format!("tx udp service {OWN}:{PORT}"), HOLDER)?;
        let theirs = neighbour.grant(&format!("tx tcp service {NEIGHBOUR}"), 0)?;
        let peer_mac = namespace.link(LINK).map_err(cannot)?.map_or([0; 6], |link| link.mac);
        let mut stage = Stage {
            evil,
            neighbour,
            wire,
            mac: [0; 6],
            peer_mac,
            ours,
            theirs,
            marker: 0,
            _namespace: namespace,
        };
        stage.learn_mac()?;
        Ok(stage)
    }

    /// Learns the dataplane's Ethernet address from a rightful datagram.
    fn learn_mac(&mut self) -> Result<()> {
        let from_us = |frame: &[u8]| frame.len() >= 34 && frame[26..30] == OWN.octets();
        self.evil.order(&format!("datagram {HOLDER} {PEER}:{PORT}"))?;
        let frame = self.hear_on_the_wire(START, from_us)?;
        let none = || Problem::new("cannot attack queues", "the program's datagram did not arrive");
        self.mac.copy_from_slice(&frame.ok_or_else(none)?[6..12]);
        Ok(())
    }

    fn hear_on_the_wire(
        &self,
        patience: Duration,
        is: impl Fn(&[u8]) -> bool,
    ) -> Result<Option<Vec<u8>>> {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.wire.receive(left);
            let heard =
                heard.map_err(|e| Problem::new("cannot listen on the attacker's link", e))?;
            if let Some(frame) = heard.filter(|frame| is(frame)) {
                return Ok(Some(frame));
            }
            if left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Sends on one queue what the other one holds: as a raw frame, and by the stack.
    fn send(&mut self) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        for (attack, by_stack) in [
            ("send from a queue what another queue holds", false),
            ("have the stack send what another queue holds", true),
        ] {
            let stolen = self.leaves(OTHER, by_stack)?;
            let own = self.leaves(HOLDER, by_stack)?;
            rows.push(row(attack, &stolen, "the queue that holds it", &own));
        }
        Ok(rows)
    }

    /// Sends on a queue, and looks whether the frame leaves or is counted as another queue's.
    fn leaves(&mut self, queue: usize, by_stack: bool) -> Result<Outcome> {
        let before = self.evil.foreign_to_queues()?;
        self.marker += 1;
        let frame = self.frame();
        let order = match by_stack {
            true => format!("datagram {queue} {PEER}:{PORT}"),
            false => {
                let hex: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("frame {queue} {hex}")
            }
        };
        let said = self.evil.order(&order)?;
        let is = |heard: &[u8]| match by_stack {
            true => heard.len() >= 34 && heard[23] == 17 && heard[26..30] == OWN.octets(),
            false => heard == frame,
        };
        let end = Instant::now() + START;
        loop {
            if self.hear_on_the_wire(super::LOOK, is)?.is_some() {
                return Ok(Outcome { succeeded: true, detail: "it left".to_owned() });
            }
            if self.evil.foreign_to_queues()? > before {
                let detail = format!("{said}; counted as tx_foreign_queue");
                return Ok(Outcome { succeeded: false, detail });
            }
            if Instant::now() > end {
                let why = format!("the dataplane returned `{said}` and has not counted it");
                return Err(Problem::new("what the attacker has sent was lost", why));
            }
        }
    }

    /// Returns a packet of the protocol that the queue [`HOLDER`] may send, with a new mark.
    fn frame(&self) -> Vec<u8> {
        let mut frame = [self.peer_mac, self.mac].concat();
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, PROTOCOL, 0, 0]);
        frame.extend(OWN.octets());
        frame.extend(PEER.octets());
        frame.resize(60, self.marker);
        frame
    }

    /// Assigns filters to queues without the right to, and to queues that do not exist.
    fn take(&self) -> Result<Vec<Value>> {
        let (here, there) = (read_only(&self.evil.control), read_only(&self.neighbour.control));
        let assign = |capability: &str, queue| Request::FilterAssign {
            capability: capability.to_owned(),
            vnic: None,
            queue: Some(queue),
        };
        let own = outcome(&here, &assign(&self.ours, HOLDER));
        let part = Request::FilterDerive { capability: self.ours.clone(), filter: None };
        let stale = super::capability_of(&here, &part)?;
        let used = outcome(&here, &assign(&stale, HOLDER));
        let revoke = Request::FilterRevoke { capability: stale.clone() };
        Client::connect(&here)?.ask(&revoke)?;
        let theirs = outcome(&there, &assign(&self.theirs, 0));
        let mut rows = Vec::new();
        for (attack, tried, by_right, right) in [
            (
                "assign to a queue by a forged capability",
                outcome(&here, &assign(&flip(&self.ours), OTHER)),
                "its own",
                &own,
            ),
            (
                "assign to a queue by a revoked capability",
                outcome(&here, &assign(&stale, OTHER)),
                "before that",
                &used,
            ),
            (
                "assign a neighbour's filter to its queue",
                outcome(&here, &assign(&self.theirs, OTHER)),
                "the neighbour itself",
                &theirs,
            ),
            (
                "assign its filter to a neighbour's queue",
                outcome(&there, &assign(&self.ours, 0)),
                "to its own",
                &own,
            ),
            (
                "assign to a queue beyond the last",
                outcome(&here, &assign(&self.ours, 2)),
                "to the last",
                &own,
            ),
        ] {
            rows.push(row(attack, &tried, by_right, right));
        }
        let refused = |dataplane: &Dataplane| dataplane.refused(Code::NoCapability);
        let counted = (refused(&self.evil)?, refused(&self.neighbour)?);
        if counted != (3, 1) {
            let why = format!("three and one were made, {} and {} counted", counted.0, counted.1);
            return Err(Problem::new("attempts without a capability are not counted", why));
        }
        Ok(rows)
    }

    /// Sets and lifts rates of queues, which no capability allows.
    fn limit(&self) -> Result<Vec<Value>> {
        let rate = |tx: RateChange| Request::Rate {
            rx: RateChange::Keep,
            tx,
            flow: RateChange::Keep,
            vnic: None,
            queue: Some(0),
            weight: None,
        };
        let mut rows = Vec::new();
        for (attack, of, tx) in [
            (
                "slow a neighbour's queue down",
                &self.neighbour,
                RateChange::Set(Rate::packets(1000)),
            ),
            ("lift the rate of a neighbour's queue", &self.neighbour, RateChange::Remove),
            ("set a rate of its own queue", &self.evil, RateChange::Set(Rate::bits(1_000_000_000))),
            ("lift the rate of its own queue", &self.evil, RateChange::Remove),
        ] {
            let before = of.rates()?;
            let mut tried = outcome(&read_only(&of.control), &rate(tx));
            // The rates in force decide.
            tried.succeeded |= of.rates()? != before;
            let right = outcome(&of.control, &rate(tx));
            rows.push(row(attack, &tried, "the operators' socket", &right));
        }
        // A request that no client of ours sends.
        let line = |more: &str| format!(r#"{{"do":"rate","queue":0,"tx":"none"{more}}}"#);
        let with_key = line(&format!(r#","capability":"{}""#, self.ours));
        rows.push(row(
            "lift a queue's rate by a filter's capability",
            &say(&read_only(&self.evil.control), &with_key, &rate(RateChange::Remove))?,
            "the operators' socket",
            &say(&self.evil.control, &line(""), &rate(RateChange::Remove))?,
        ));
        Ok(rows)
    }
}

impl Dataplane {
    /// Starts a dataplane on a tap, without a wall: no attack here is on memory.
    fn start(
        namespace: &Namespace,
        link: &str,
        own: Ipv4Addr,
        queues: usize,
        program: &[&str],
    ) -> Result<Dataplane> {
        let what = "cannot start a dataplane to attack queues";
        let problem = |e: std::io::Error| Problem::new(what, e);
        let ix = std::env::current_exe().map_err(problem)?;
        let control = std::env::temp_dir().join(format!("{link}-{}.sock", std::process::id()));
        let cpus = cpu::allowed();
        let cpus: Vec<_> = cpus.iter().cycle().take(queues).map(usize::to_string).collect();
        let mut command: Command = namespace.command(ix, None);
        command.args(["run", "--domain", "none", "--posix", "off"]);
        command.args(["--nic", &format!("tap:{link}"), "--addr", &format!("{own}/24")]);
        command.args(["--cpus", &cpus.join(","), "--control"]).arg(&control);
        command.arg("--").args(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut run = command.spawn().map_err(problem)?;
        let orders = run.stdin.take();
        match run.stdout.take() {
            Some(said) => Ok(Dataplane { run, control, orders, said: BufReader::new(said) }),
            None => Err(Problem::new(what, "it has no output")),
        }
    }

    /// Reads the next line of its program, which must begin with `begin`.
    fn hear(&mut self, begin: &str) -> Result<String> {
        let mut line = String::new();
        let read = self.said.read_line(&mut line);
        let problem = |why: String| Problem::new("the dataplane to attack does not start", why);
        read.map_err(|e| problem(e.to_string()))?;
        match line.trim_end() {
            line if line.starts_with(begin) && !line.is_empty() => Ok(line.to_owned()),
            line => Err(problem(format!("it printed `{line}`"))),
        }
    }

    /// Sends its program an order; returns what the dataplane replied.
    fn order(&mut self, order: &str) -> Result<String> {
        let to = self.orders.as_mut();
        let said = to.map_or(Ok(()), |to| to.write_all(format!("{order}\n").as_bytes()));
        said.map_err(|e| Problem::new("cannot send the attacker an order", e))?;
        self.hear("")
    }

    /// Grants a filter to a queue alone; returns its capability.
    fn grant(&self, filter: &str, queue: usize) -> Result<String> {
        let filter = filter.parse().map_err(|e| Problem::new("no filter", e))?;
        let (filters, queue) = (vec![filter], Some(queue));
        let create = Request::FilterCreate { filters, holder: None, vnic: None, queue };
        let granted: FiltersCreated = Client::connect(&self.control)?.get(&create)?;
        Ok(granted.filters.into_iter().next().map(|made| made.capability).unwrap_or_default())
    }

    fn view(&self) -> Result<OwnVnic> {
        match Client::connect(&self.control)?.get(&Request::Vnic)? {
            View::Own(vnic) => Ok(*vnic),
            View::Shared(_) => Err(Problem::new("cannot look at a vNIC", "it is an interface")),
        }
    }

    /// Requests that its control socket has refused for this reason.
    fn refused(&self, code: Code) -> Result<u64> {
        Ok(self.view()?.refused.get(&code).copied().unwrap_or(0))
    }

    fn rates(&self) -> Result<Vec<QueueRates>> {
        Ok(self.view()?.rates.queue_rates)
    }

    /// Packets that a queue was to send and another queue holds.
    fn foreign_to_queues(&self) -> Result<u64> {
        let stats = Client::connect(&self.control)?.stats()?;
        let drops = stats.threads.iter().map(|thread| &thread.drops);
        Ok(drops.filter_map(|drops| drops.get("tx_foreign_queue")).sum())
    }
}

/// Sends a line to a control socket, which need not be a request, but is much like one.
fn say(control: &Path, line: &str, like: &Request) -> Result<Outcome> {
    let cannot = |e: std::io::Error| Problem::new("cannot ask a dataplane to attack", e);
    let mut stream = UnixStream::connect(control).map_err(cannot)?;
    stream.set_read_timeout(Some(START)).map_err(cannot)?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(cannot)?;
    // The greeting is the first line.
    let answer = BufReader::new(stream).lines().nth(1).and_then(std::result::Result::ok);
    let answer = Line::read(&answer.unwrap_or_default(), like);
    match answer.map_err(|e| Problem::new("cannot read a dataplane's answer", e))? {
        Line::Error(refused) => Ok(Outcome { succeeded: false, detail: refused.why }),
        _ => Ok(Outcome { succeeded: true, detail: "granted".to_owned() }),
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        // The hostile program ends when its orders do; the other one ends by a signal.
        self.orders = None;
        // No thread has waited for this child, so the number is still its own.
        let _ = ix_sys::process::kill(self.run.id() as i32, libc::SIGTERM);
        let end = Instant::now() + START;
        while matches!(self.run.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.run.kill();
        let _ = self.run.wait();
        let _ = std::fs::remove_file(&self.control);
        let _ = std::fs::remove_file(read_only(&self.control));
    }
}

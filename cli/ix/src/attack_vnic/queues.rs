//! Attacks on queues: a hostile program with two elastic threads, and so two queue pairs, beside a
//! dataplane of somebody else's. It sends from either queue what it likes, and asks both control
//! sockets that everybody may ask.
use super::{Outcome, START, flip, outcome, row};
use ix_broker::control::{Client, Request, read_only};
use ix_report::problem::{Problem, Result};
use ix_report::wall::attacker;
use ix_testbed::{Namespace, PacketSocket, cpu};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const OWN: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 2);
/// Linux' end of the hostile program's link.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 1);
const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 68, 0, 2);
const LINK: &str = "ixevil";
/// The protocol of its frames, and the port of its datagrams, as it has them.
const PROTOCOL: u8 = 253;
const PORT: u16 = 7;
/// The queue that holds what it may send; it attacks by the other one.
const HOLDER: usize = 1;
const OTHER: usize = 0;

/// A dataplane with its program; both end with this.
struct Dataplane {
    run: Child,
    control: PathBuf,
    orders: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
}

/// The hostile program, and whom it attacks.
struct Stage {
    evil: Dataplane,
    neighbour: Dataplane,
    /// Linux' end of the hostile program's link.
    wire: PacketSocket,
    mac: [u8; 6],
    peer_mac: [u8; 6],
    /// Capabilities: of what the queue [`HOLDER`] may send, and of the neighbour's filter.
    ours: String,
    theirs: String,
    marker: u8,
    _namespace: Namespace,
}

/// A row each.
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

    /// The dataplane's own Ethernet address, of what it sends by right.
    fn learn_mac(&mut self) -> Result<()> {
        let from_us = |frame: &[u8]| frame.len() >= 34 && frame[26..30] == OWN.octets();
        self.evil.order(&format!("datagram {HOLDER} {PEER}:{PORT}"))?;
        let frame = self.hear_on_the_wire(START, from_us)?;
        let none = || Problem::new("cannot attack queues", "the program's datagram does not come");
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

    /// Sends by one queue what the other one holds: as a frame of its own making, and by the stack.
    fn send(&mut self) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        for (attack, by_stack) in [
            ("send by a queue what another queue holds", false),
            ("have the stack send what another queue holds", true),
        ] {
            let stolen = self.leaves(OTHER, by_stack)?;
            let own = self.leaves(HOLDER, by_stack)?;
            rows.push(row(attack, &stolen, "the queue that holds it", &own));
        }
        Ok(rows)
    }

    /// Sends on a queue, and looks whether it comes out, or is counted as another queue's.
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
                let detail = format!("{said}; counted as another queue's");
                return Ok(Outcome { succeeded: false, detail });
            }
            if Instant::now() > end {
                let why = format!("the dataplane says `{said}`, and has not counted it");
                return Err(Problem::new("what the attacker has sent was lost", why));
            }
        }
    }

    /// A packet of the protocol that the queue [`HOLDER`] may send, with a mark of its own.
    fn frame(&self) -> Vec<u8> {
        let mut frame = [self.peer_mac, self.mac].concat();
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, PROTOCOL, 0, 0]);
        frame.extend(OWN.octets());
        frame.extend(PEER.octets());
        frame.resize(60, self.marker);
        frame
    }

    /// Takes filters to queues without a right to, and to queues that there are not.
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
                "being the neighbour",
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
        let refused = |dataplane: &Dataplane| dataplane.look("refused", "no-capability");
        let counted = (refused(&self.evil)?, refused(&self.neighbour)?);
        if counted != (3, 1) {
            let why = format!("three and one were made, {} and {} counted", counted.0, counted.1);
            return Err(Problem::new("attempts without a capability are not counted", why));
        }
        Ok(rows)
    }

    /// Sets and lifts rates of queues: what a capability gives no right to.
    fn limit(&self) -> Result<Vec<Value>> {
        let rate = |tx: &str| Request::Rate {
            rx: None,
            tx: Some(tx.to_owned()),
            flow: None,
            vnic: None,
            queue: Some(0),
            weight: None,
        };
        let mut rows = Vec::new();
        for (attack, of, tx) in [
            ("slow a neighbour's queue down", &self.neighbour, "1kpps"),
            ("lift the rate of a neighbour's queue", &self.neighbour, "none"),
            ("set a rate of its own queue", &self.evil, "1Gbit"),
            ("lift the rate of its own queue", &self.evil, "none"),
        ] {
            let before = of.rates()?;
            let mut tried = outcome(&read_only(&of.control), &rate(tx));
            // What counts is what is in force.
            tried.succeeded |= of.rates()? != before;
            let right = outcome(&of.control, &rate(tx));
            rows.push(row(attack, &tried, "the operators' socket", &right));
        }
        // As no client of ours says it.
        let line = |more: &str| format!(r#"{{"do":"rate","queue":0,"tx":"none"{more}}}"#);
        let with_key = line(&format!(r#","capability":"{}""#, self.ours));
        rows.push(row(
            "lift a queue's rate by a filter's capability",
            &say(&read_only(&self.evil.control), &with_key)?,
            "the operators' socket",
            &say(&self.evil.control, &line(""))?,
        ));
        Ok(rows)
    }
}

impl Dataplane {
    /// On a tap of its own, without a wall: what is attacked here is no memory.
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

    /// The next line of its program, which must begin so.
    fn hear(&mut self, begin: &str) -> Result<String> {
        let mut line = String::new();
        let read = self.said.read_line(&mut line);
        let problem = |why: String| Problem::new("a dataplane to attack does not answer", why);
        read.map_err(|e| problem(e.to_string()))?;
        match line.trim_end() {
            line if line.starts_with(begin) && !line.is_empty() => Ok(line.to_owned()),
            line => Err(problem(format!("it said `{line}`"))),
        }
    }

    /// Has its program do something; answers what the dataplane says of it.
    fn order(&mut self, order: &str) -> Result<String> {
        let to = self.orders.as_mut();
        let said = to.map_or(Ok(()), |to| to.write_all(format!("{order}\n").as_bytes()));
        said.map_err(|e| Problem::new("the attacker takes no orders", e))?;
        self.hear("")
    }

    /// Grants a filter to a queue alone; answers its capability.
    fn grant(&self, filter: &str, queue: usize) -> Result<String> {
        let filter = filter.parse().map_err(|e| Problem::new("no filter", e))?;
        let (filters, queue) = (vec![filter], Some(queue));
        let create = Request::FilterCreate { filters, holder: None, vnic: None, queue };
        let answer = Client::connect(&self.control)?.ask(&create)?;
        Ok(answer["filters"][0]["capability"].as_str().unwrap_or_default().to_owned())
    }

    fn view(&self) -> Result<Value> {
        Client::connect(&self.control)?.ask(&Request::Vnic)
    }

    /// A count in what `ix ctl vnic` says.
    fn look(&self, of: &str, name: &str) -> Result<u64> {
        Ok(self.view()?[of][name].as_u64().unwrap_or(0))
    }

    fn rates(&self) -> Result<Value> {
        Ok(self.view()?["queue_rates"].clone())
    }

    /// What queues were to send that others hold.
    fn foreign_to_queues(&self) -> Result<u64> {
        let stats = Client::connect(&self.control)?.ask(&Request::Stats)?;
        let threads = stats["threads"].as_array().into_iter().flatten();
        Ok(threads.filter_map(|thread| thread["drops"]["tx_foreign_queue"].as_u64()).sum())
    }
}

/// Says a line to a control socket, which need be no request.
fn say(control: &Path, line: &str) -> Result<Outcome> {
    let cannot = |e: std::io::Error| Problem::new("cannot ask a dataplane to attack", e);
    let mut stream = UnixStream::connect(control).map_err(cannot)?;
    stream.set_read_timeout(Some(START)).map_err(cannot)?;
    stream.write_all(format!("{line}\n").as_bytes()).map_err(cannot)?;
    // The greeting comes first.
    let answer = BufReader::new(stream).lines().nth(1).and_then(std::result::Result::ok);
    let answer: Value = serde_json::from_str(&answer.unwrap_or_default()).unwrap_or_default();
    let why = answer["error"]["why"].as_str();
    let succeeded = !answer["ok"].is_null();
    Ok(Outcome { succeeded, detail: why.unwrap_or("granted").to_owned() })
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        // The hostile program has heard its last order; the other one ends by the signal.
        self.orders = None;
        // A child that no thread has waited for.
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

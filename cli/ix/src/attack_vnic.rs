//! `ix attack --vnic`: a tenant of a shared interface pretends to be another and tries to take what
//! the other holds. It owns its link, so it sends arbitrary frames there, as a hostile dataplane
//! would, and it uses the control socket that every user may open. Each attack is paired with the
//! same action done with the right to it, which must work. `queues` has the attacks within a
//! dataplane.
mod queues;

use ix_broker::control::{Client, read_only};
use ix_proto::control::vnic::{FilterDerived, FiltersCreated, RateChange, View, VnicCreated};
use ix_proto::control::{Request, VnicDevice};
use ix_report::output::JsonArgs;
use ix_report::problem::{Problem, Result};
use ix_testbed::{Namespace, PacketSocket, VethEnd};
use ix_vnic::{Policy, Rate};
use serde_json::{Value, json};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(20);
/// Time to look for a frame that must not leave, after it was counted as dropped.
const LOOK: Duration = Duration::from_millis(50);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 11);
const VICTIM: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 12);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 3);
const PORT: u16 = 7;
const OTHER_MAC: [u8; 6] = [2, 9, 9, 9, 9, 9];

/// A shared interface with two vNICs: the attacker's and its victim's.
struct Stage {
    _namespaces: [Namespace; 2],
    share: Child,
    control: PathBuf,
    /// The far end of the shared interface.
    wire: PacketSocket,
    /// The attacker's end of its link.
    link: PacketSocket,
    mac: [u8; 6],
    peer_mac: [u8; 6],
    /// Capabilities of the attacker's vNIC and filter, and of the victim's.
    ours: Keys,
    victims: Keys,
    marker: u8,
}

struct Keys {
    vnic: String,
    filter: String,
}

/// Turns a frame into one that the attacker must not send.
type Forge = fn(&mut Vec<u8>, &Stage);

const SPOOFS: [(&str, Forge); 6] = [
    ("send with another tenant's IPv4 address", |f, _| f[26..30].copy_from_slice(&VICTIM.octets())),
    ("send from a port of its address that it does not hold", |f, _| {
        f[34..36].copy_from_slice(&8u16.to_be_bytes())
    }),
    ("send with another Ethernet address", |f, _| f[6..12].copy_from_slice(&OTHER_MAC)),
    ("send with a VLAN tag", |f, _| drop(f.splice(12..12, [0x81, 0, 0, 7]))),
    ("send a protocol that it does not hold", |f, _| f[23] = 1),
    ("claim another tenant's address by ARP", |f, stage| *f = arp(stage.mac, VICTIM)),
];

/// Runs all attacks and prints the results.
pub fn main(print: &JsonArgs) -> Result<()> {
    let rows = rows()?;
    if !print.give(|| Ok(json!({ "bench": "attack", "rows": rows })))? {
        rows.iter().for_each(show);
    }
    let failed = |row: &&Value| row["refused"] != true || row["control_succeeds"] != true;
    match rows.iter().filter(failed).count() {
        0 => Ok(()),
        n => {
            let why =
                format!("{n} attacks were not refused, or the rightful action beside one failed");
            Err(Problem::new("tenants are not isolated", why))
        }
    }
}

fn show(row: &Value) {
    let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
    let verdict = if row["refused"] == true { "refused" } else { "SUCCEEDED" };
    let control = if row["control_succeeds"] == true { "succeeds" } else { "REFUSED" };
    ix_sys::outln!(
        "{:<48} {verdict:<9} ({}); by right, {}: {control} ({})",
        text("attack"),
        text("detail"),
        text("by_right"),
        text("control_detail")
    );
}

/// Returns a row for each attack.
fn rows() -> Result<Vec<Value>> {
    if !ix_sys::process::is_root() {
        let why = "sharing an interface needs XDP programs";
        return Err(Problem::new("cannot attack a vNIC without root", why).mend("run it as root"));
    }
    let mut stage = Stage::new()?;
    let mut rows = Vec::new();
    // The frame that the attacker may send.
    let honest = stage.frame();
    let fine = stage.leaves(&honest)?;
    for (attack, forge) in SPOOFS {
        let mut frame = stage.frame();
        forge(&mut frame, &stage);
        let left = stage.leaves(&frame)?;
        rows.push(row(attack, &left, "what its filters take", &fine));
    }
    rows.extend(stage.steal()?);
    drop(stage);
    rows.extend(queues::rows()?);
    Ok(rows)
}

/// Result of an attack or of the rightful action beside it.
struct Outcome {
    succeeded: bool,
    detail: String,
}

fn row(attack: &str, outcome: &Outcome, by_right: &str, control: &Outcome) -> Value {
    json!({
        "attack": attack,
        "refused": !outcome.succeeded,
        "detail": outcome.detail,
        "by_right": by_right,
        "control_succeeds": control.succeeded,
        "control_detail": control.detail,
    })
}

impl Stage {
    fn new() -> Result<Stage> {
        let cannot = |e| Problem::new("cannot make an interface to share", e);
        let (here, there) = (Namespace::new().map_err(cannot)?, Namespace::new().map_err(cannot)?);
        here.add_veth(&VethEnd::new("eth"), &there, &VethEnd::new("wire")).map_err(cannot)?;
        there.add_address("wire", PEER, 24).map_err(cannot)?;
        there.set_up("wire", true).map_err(cannot)?;
        here.set_up("eth", true).map_err(cannot)?;
        here.wait_running("eth", START).map_err(cannot)?;
        let control = std::env::temp_dir().join(format!("ix-attack-{}.sock", std::process::id()));
        let share = start_share(&here, &control)?;
        let (ours, victims) =
            (Keys::hold(&control, "evil", OURS)?, Keys::hold(&control, "good", VICTIM)?);
        let mac = here.link("eth").map_err(cannot)?.map_or([0; 6], |link| link.mac);
        let peer_mac = there.link("wire").map_err(cannot)?.map_or([0; 6], |link| link.mac);
        let wire = PacketSocket::open(&there, "wire").map_err(cannot)?;
        let link = PacketSocket::open(&here, "ixv-evil").map_err(cannot)?;
        let _namespaces = [here, there];
        Ok(Stage {
            _namespaces,
            share,
            control,
            wire,
            link,
            mac,
            peer_mac,
            ours,
            victims,
            marker: 0,
        })
    }

    /// Returns a datagram that the attacker may send, with a new mark.
    fn frame(&mut self) -> Vec<u8> {
        self.marker += 1;
        let mut frame = [self.peer_mac, self.mac].concat();
        frame.extend([8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend(OURS.octets());
        frame.extend(PEER.octets());
        frame.extend([PORT.to_be_bytes(), [0, 9], [0, 26], [0, 0]].concat());
        frame.resize(64, self.marker);
        frame
    }

    /// Sends a frame on the attacker's link and looks whether it leaves the interface.
    fn leaves(&self, frame: &[u8]) -> Result<Outcome> {
        let cannot = |e: std::io::Error| Problem::new("cannot send on the attacker's link", e);
        let before = self.counts()?;
        self.link.send(frame).map_err(cannot)?;
        let end = Instant::now() + START;
        let (sent, dropped) = loop {
            let now = self.counts()?;
            if now != before {
                break (now.0 > before.0, now.1 > before.1);
            }
            if Instant::now() > end {
                return Err(Problem::new("a frame was lost", "`ix share` has not counted it"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let end = Instant::now() + if sent { START } else { LOOK };
        let mut seen = false;
        while !seen && Instant::now() < end {
            let left = end.saturating_duration_since(Instant::now());
            let heard = self.wire.receive(left).map_err(cannot)?;
            seen = heard.is_some_and(|heard| heard == frame);
        }
        let detail = match (sent || seen, dropped) {
            (true, _) => "it left the interface",
            (false, true) => "dropped by the kernel, and counted",
            (false, false) => "it did not leave",
        };
        Ok(Outcome { succeeded: sent || seen, detail: detail.to_owned() })
    }

    /// Returns the frames that the attacker's link has sent, and those that were dropped.
    fn counts(&self) -> Result<(u64, u64)> {
        let View::Shared(shared) = Client::connect(&self.control)?.get(&Request::Vnic)? else {
            return Err(Problem::new("cannot count frames", "no interface is shared"));
        };
        let own = shared.vnics.iter().find(|vnic| vnic.vnic == "evil");
        Ok(own.map_or((0, 0), |vnic| (vnic.sent, vnic.foreign + vnic.foreign_mac)))
    }

    /// Makes requests without the right to them, and the same with it.
    fn steal(&self) -> Result<Vec<Value>> {
        let (ours, victims) = (&self.ours, &self.victims);
        let everybody = read_only(&self.control);
        let ask = |request: &Request| outcome(&everybody, request);
        let operator = |request: &Request| outcome(&self.control, request);
        let assign = |capability: &str, vnic: &str| Request::FilterAssign {
            capability: capability.to_owned(),
            vnic: Some(vnic.to_owned()),
            queue: None,
        };
        let revoke = |capability: &str| Request::FilterRevoke { capability: capability.to_owned() };
        let derive = |text: &str| -> Result<Request> {
            let filter = text.parse().map_err(|e| Problem::new("no filter", e))?;
            Ok(Request::FilterDerive { capability: ours.filter.clone(), filter: Some(filter) })
        };
        let create = |ip: Ipv4Addr, holder: &str| -> Result<Request> {
            let text = format!("rx udp service {ip}:{PORT}");
            let filter = text.parse().map_err(|e| Problem::new("no filter", e))?;
            let holder = Some(holder.to_owned());
            Ok(Request::FilterCreate { filters: vec![filter], holder, vnic: None, queue: None })
        };
        let forged = flip(&victims.filter);
        // A part of its own filter, which it then revokes: this capability is stale.
        let part = derive(&format!("rx udp service {OURS}:{PORT} peer {PEER}"))?;
        let by_right = ask(&part);
        let stale = capability_of(&everybody, &part)?;
        let stale_used = ask(&revoke(&stale));
        let mut rows = vec![
            row(
                "take a filter without being an operator",
                &ask(&create(Ipv4Addr::new(10, 66, 0, 13), "evil")?),
                "the operators' socket",
                &operator(&create(Ipv4Addr::new(10, 66, 0, 13), "evil")?),
            ),
            row(
                "take a part of another tenant's filter",
                &operator(&create(VICTIM, "evil")?),
                "the holder itself",
                &operator(&create(VICTIM, "good")?),
            ),
            row(
                "widen its own filter",
                &ask(&derive(&format!("rx ip service {VICTIM}"))?),
                "a narrower one",
                &by_right,
            ),
            row(
                "assign by a forged capability",
                &ask(&assign(&forged, &ours.vnic)),
                "its own",
                &ask(&assign(&ours.filter, &ours.vnic)),
            ),
            row(
                "use a capability that was revoked",
                &ask(&revoke(&stale)),
                "before that",
                &stale_used,
            ),
            row(
                "assign by another tenant's vNIC capability",
                &ask(&assign(&victims.vnic, &ours.vnic)),
                "its own filter's",
                &ask(&assign(&ours.filter, &ours.vnic)),
            ),
            row(
                "put its filter on a vNIC by a forged capability",
                &ask(&assign(&ours.filter, &flip(&victims.vnic))),
                "its own vNIC's",
                &ask(&assign(&ours.filter, &ours.vnic)),
            ),
        ];
        let rate = Request::Rate {
            rx: RateChange::Keep,
            tx: RateChange::Set(Rate::packets(1000)),
            flow: RateChange::Keep,
            vnic: Some("good".to_owned()),
            queue: None,
            weight: None,
        };
        let slow = |control| outcome(control, &rate);
        rows.push(row(
            "slow another tenant down",
            &slow(&everybody),
            "the operators' socket",
            &slow(&self.control),
        ));
        let delete = Request::VnicDelete { name: "good".to_owned() };
        rows.push(row(
            "delete another tenant's vNIC",
            &outcome(&everybody, &delete),
            "the operators' socket",
            &outcome(&self.control, &delete),
        ));
        // It derives until it is refused. Are filters left for others?
        let mut derived = 0;
        while derived <= Policy::default().filters_max && ask(&part).succeeded {
            derived += 1;
        }
        let next = operator(&create(Ipv4Addr::new(10, 66, 0, 14), "late")?);
        let used_up = Outcome {
            succeeded: !next.succeeded,
            detail: format!("{derived} derived, then a filter for another tenant: {}", next.detail),
        };
        rows.push(row("use up all filters by deriving them", &used_up, "deriving one", &by_right));
        Ok(rows)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.share.kill();
        let _ = self.share.wait();
        let _ = std::fs::remove_file(&self.control);
        let _ = std::fs::remove_file(read_only(&self.control));
    }
}

impl Keys {
    /// Makes a vNIC that may receive and send UDP at one port of an address.
    fn hold(control: &std::path::Path, name: &str, ip: Ipv4Addr) -> Result<Keys> {
        let mut client = Client::connect(control)?;
        let create = Request::VnicCreate {
            name: name.to_owned(),
            queues: 1,
            owner: None,
            device: VnicDevice::Afxdp,
        };
        let vnic = client.get::<VnicCreated>(&create)?.capability;
        let filter = |direction: &str| {
            let filter = format!("{direction} udp service {ip}:{PORT}").parse();
            filter.map_err(|e| Problem::new("cannot parse a filter", e))
        };
        let grant = Request::FilterCreate {
            filters: vec![filter("rx")?, filter("tx")?],
            holder: Some(name.to_owned()),
            vnic: Some(name.to_owned()),
            queue: None,
        };
        let granted = client.get::<FiltersCreated>(&grant)?.filters.into_iter().next();
        let filter = granted.map(|filter| filter.capability).unwrap_or_default();
        Ok(Keys { vnic, filter })
    }
}

/// Starts `ix share` in the namespace and waits until it listens.
fn start_share(namespace: &Namespace, control: &std::path::Path) -> Result<Child> {
    let what = "cannot share an interface";
    let ix = std::env::current_exe().map_err(|e| Problem::new(what, e))?;
    let mut command: Command = namespace.command(ix, None);
    command.args(["share", "eth", "--control"]).arg(control);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut share = command.spawn().map_err(|e| Problem::new(what, e))?;
    let end = Instant::now() + START;
    while Client::connect(control).is_err() {
        let ended = share.try_wait().is_ok_and(|status| status.is_some());
        if ended || Instant::now() > end {
            let _ = share.kill();
            let _ = share.wait();
            let mend = "try `ix share` with your own interface";
            return Err(Problem::new(what, "it does not listen").mend(mend));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(share)
}

fn outcome(control: &std::path::Path, request: &Request) -> Outcome {
    match Client::connect(control).and_then(|mut client| client.ask(request)) {
        Ok(_) => Outcome { succeeded: true, detail: "granted".to_owned() },
        Err(problem) => Outcome { succeeded: false, detail: problem.to_string() },
    }
}

fn capability_of(control: &std::path::Path, request: &Request) -> Result<String> {
    Ok(Client::connect(control)?.get::<FilterDerived>(request)?.capability)
}

/// Changes one digit: the best guess that an attacker can make.
fn flip(capability: &str) -> String {
    let other = if capability.starts_with('0') { "1" } else { "0" };
    other.chars().chain(capability.chars().skip(1)).collect()
}

/// Makes an ARP announcement of an address.
fn arp(mac: [u8; 6], ip: Ipv4Addr) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend(mac);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend(mac);
    frame.extend(ip.octets());
    frame.extend([0xff; 6]);
    frame.extend(ip.octets());
    frame.resize(60, 0);
    frame
}

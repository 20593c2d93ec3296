//! The verdict for each interface: what IX would have there, and the command to run next.
use crate::linux_firewall::{self, Obstacle};
use ix_netdev::{
    Link, Namespace, ProgramOwner, XdpSupport, is_kept, largest_mtu, owner_on, xdp_support,
};
use ix_sys::cpu;
use serde_json::{Value, json};
use std::net::IpAddr;

/// What was found of an interface.
#[derive(Clone, Debug, Default)]
struct Facts {
    name: String,
    up: bool,
    has_ethernet: bool,
    /// A tap, which a process has; `--nic tap:` uses those.
    is_tap: bool,
    /// A VRF, which has no packets of its own.
    is_vrf: bool,
    /// The bridge or bond that has this interface as a port; empty if none has.
    port_of: String,
    /// The VRF that has this interface; empty if none has.
    in_vrf: String,
    queues: u32,
    mtu: usize,
    addresses: Vec<(IpAddr, u8)>,
    /// `None`: the kernel cannot say it.
    xdp: Option<XdpSupport>,
    /// There is an XDP program.
    has_program: bool,
    /// The process that has it, if any has.
    owner: Option<ProgramOwner>,
    /// It is that of a keeper, which runs may join.
    is_kept: bool,
    /// What a firewall of Linux has there, where its address would be shared.
    firewall: Option<Obstacle>,
    /// Hardware threads that this process may run on.
    cpus: Vec<usize>,
}

/// The verdict for an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    name: String,
    mode: &'static str,
    /// Features of AF_XDP that IX uses there.
    used: Vec<String>,
    /// What the driver has and IX does not use.
    unused: Vec<String>,
    queues: u32,
    mtu: usize,
    addresses: Vec<String>,
    /// Why IX cannot use it as it is; empty if it can.
    why_not: String,
    /// The command to run next; empty if there is none.
    next: String,
}

impl Verdict {
    /// The same with a command that takes root's rights, as all of them do.
    fn by_root(self) -> Verdict {
        let next = match self.next.is_empty() {
            true => self.next,
            false => format!("sudo {}", self.next),
        };
        Verdict { next, ..self }
    }

    /// For `--json`.
    pub fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "mode": self.mode,
            "used": self.used,
            "unused": self.unused,
            "queues": self.queues,
            "mtu": self.mtu,
            "addresses": self.addresses,
            "usable": self.why_not.is_empty(),
            "why": self.why_not,
            "next": self.next,
        })
    }

    /// The lines for the terminal.
    pub fn lines(&self) -> Vec<String> {
        let queues =
            if self.queues == 1 { "one queue" } else { &format!("{} queues", self.queues) };
        let addresses = match self.addresses.is_empty() {
            true => "no address of Linux".to_owned(),
            false => format!("Linux has {}", self.addresses.join(", ")),
        };
        let state = match self.why_not.is_empty() {
            true => String::new(),
            false => format!("; not yet: {}", self.why_not),
        };
        let facts = format!("{}, {queues}, MTU {}, {addresses}", self.mode, self.mtu);
        let mut lines = vec![format!("{}: {facts}{state}", self.name)];
        if !self.used.is_empty() {
            let has = |more: &str| format!("; the driver also has {more}, which IX does not use");
            let unused = match self.unused.is_empty() {
                true => String::new(),
                false => has(&self.unused.join(", ")),
            };
            lines.push(format!("  AF_XDP with {}{unused}", self.used.join(", ")));
        }
        if !self.next.is_empty() {
            lines.push(format!("  → {}", self.next));
        }
        lines
    }
}

/// The verdicts of all interfaces of this network namespace but the loopback interface. Must run
/// before the process moves to another namespace.
pub fn all() -> Vec<Verdict> {
    let Ok(here) = Namespace::current() else { return Vec::new() };
    let links = here.links().unwrap_or_default();
    let others = links.iter().filter(|link| link.name != "lo" && !is_link_of_runs(link));
    let verdicts = others.map(|link| judge(&facts(&here, link, &links)));
    match ix_sys::process::is_root() {
        true => verdicts.collect(),
        false => verdicts.map(Verdict::by_root).collect(),
    }
}

/// Whether it is an end of a link that the keeper of an interface has made for a run: `ixn2-1` or
/// `ixk2-1`. Nothing else is to be run there.
fn is_link_of_runs(link: &Link) -> bool {
    let numbers = link.name.strip_prefix("ixn").or_else(|| link.name.strip_prefix("ixk"));
    let numbers = numbers.and_then(|numbers| numbers.split_once('-'));
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    link.kind == "veth" && numbers.is_some_and(|(of, nth)| is_number(of) && is_number(nth))
}

fn facts(here: &Namespace, link: &Link, all: &[Link]) -> Facts {
    let channels = here.channels(&link.name);
    let master = all.iter().find(|of| link.master != 0 && of.index == link.master);
    let master_of = |is_vrf: bool| {
        let its = master.filter(|of| (of.kind == "vrf") == is_vrf);
        its.map_or_else(String::new, |of| of.name.clone())
    };
    let is_kept = is_kept(&link.name);
    let has_program = here.xdp_program(&link.name).ok().flatten().is_some();
    Facts {
        name: link.name.clone(),
        up: link.up,
        has_ethernet: link.is_ethernet,
        is_tap: link.kind == "tun",
        is_vrf: link.kind == "vrf",
        port_of: master_of(false),
        in_vrf: master_of(true),
        queues: channels.as_ref().map_or(1, |c| c.rx.max(c.combined).max(1)),
        mtu: link.mtu as usize,
        addresses: addresses_to_share(here, link.index),
        xdp: xdp_support(link.index).ok(),
        has_program,
        owner: if has_program && !is_kept { owner_on(&link.name) } else { None },
        is_kept,
        firewall: linux_firewall::obstacle(&link.name),
        cpus: cpu::allowed(),
    }
}

fn judge(facts: &Facts) -> Verdict {
    let name = &facts.name;
    let mode = match &facts.xdp {
        Some(XdpSupport { native: true, zero_copy: true, .. }) => "native XDP with zero-copy",
        Some(XdpSupport { native: true, .. }) => "native XDP",
        Some(_) => "generic XDP (slower: the driver has none)",
        None => "XDP of an unknown kind (Linux 6.3 says which)",
    };
    let (why_not, next) = match obstacle(facts) {
        Some((why, next)) => (why, next),
        None => (String::new(), run(facts)),
    };
    let addresses = facts.addresses.iter().map(|(ip, prefix)| format!("{ip}/{prefix}")).collect();
    let (queues, mtu) = (facts.queues, facts.mtu);
    let (used, unused) = features(facts.xdp.as_ref().filter(|_| facts.has_ethernet));
    Verdict { name: name.clone(), mode, used, unused, queues, mtu, addresses, why_not, next }
}

/// What IX uses of AF_XDP, and what it does not of what the driver has (`ix bench afxdp` says
/// what each gives).
fn features(xdp: Option<&XdpSupport>) -> (Vec<String>, Vec<String>) {
    let Some(xdp) = xdp else { return (Vec::new(), Vec::new()) };
    let copies = if xdp.zero_copy { "zero-copy" } else { "copies" };
    let mut used = vec![copies.to_owned(), "need-wakeup".to_owned()];
    // Where the program runs in the stack, frames are in one buffer.
    if xdp.native && xdp.frags && (!xdp.zero_copy || xdp.buffers_max > 1) {
        used.push("multi-buffer".to_owned());
    }
    let hints = xdp.hints.iter().map(|hint| format!("receive hint {hint}"));
    let offloads = xdp.offloads.iter().map(|offload| format!("transmit {offload}"));
    (used, hints.chain(offloads).collect())
}

/// What keeps IX from an interface, and the command that mends it.
fn obstacle(facts: &Facts) -> Option<(String, String)> {
    let name = &facts.name;
    let is_native = facts.xdp.as_ref().is_some_and(|xdp| xdp.native);
    if facts.is_tap {
        return Some(("it is a tap or a tunnel of another process".to_owned(), String::new()));
    }
    if !facts.has_ethernet {
        return Some(("it carries no Ethernet frames".to_owned(), String::new()));
    }
    if facts.is_vrf {
        let why = "it is a VRF, whose packets come by the interfaces in it".to_owned();
        return Some((why, String::new()));
    }
    if !facts.port_of.is_empty() {
        let why = format!("it is a port of {}, which has its packets", facts.port_of);
        return Some((why, format!("ix run --nic {} PROGRAM", facts.port_of)));
    }
    if !facts.up {
        return Some(("it is down".to_owned(), format!("ip link set {name} up")));
    }
    if facts.has_program && !facts.is_kept {
        return Some(match &facts.owner {
            Some(owner) if owner.command.contains("ix share ") => {
                let why = format!("its tenants share it, by {owner}");
                let command = "ix ctl vnic create NAME";
                (why, format!("{command}     (it names a device for `ix run --nic`)"))
            }
            Some(owner) => {
                let why = format!("another XDP program is attached to it, that of {owner}");
                (why, format!("kill {}     (it ends that program)", owner.pid))
            }
            None => {
                let why = "another XDP program is attached to it, and no process has it";
                (why.to_owned(), format!("ip link set {name} xdp off"))
            }
        });
    }
    let holds_frags = is_native && facts.xdp.as_ref().is_some_and(|xdp| xdp.frags);
    let largest = largest_mtu(holds_frags, false);
    if facts.mtu > largest {
        let why = format!("its MTU is {}, at most {largest}", facts.mtu);
        return Some((why, format!("ip link set {name} mtu {largest}")));
    }
    // Without the right to ask nothing is known, and `ix run` needs it as well.
    let firewall = facts.firewall.as_ref().filter(|found| **found != Obstacle::Rights);
    if let Some(found) = firewall.filter(|_| is_shared(facts)) {
        let meant = match found {
            Obstacle::Rules(_) => "if no rule is meant for the program's ports",
            _ => "if Linux has no firewall",
        };
        let command = format!("ix run --nic {name}{} --ignore-firewall PROGRAM", cpus(facts));
        return Some((found.why(), format!("{command}     ({meant})")));
    }
    None
}

/// The command that runs a program there.
fn run(facts: &Facts) -> String {
    let mut command = format!("ix run --nic {}", facts.name);
    let is_shared = is_shared(facts);
    if !is_shared {
        command += " --addr FREE/24";
    }
    command += &cpus(facts);
    command += " PROGRAM";
    match is_shared {
        false => format!(
            "{command}     (FREE: an address of its network that no host has, with that network's \
             length)"
        ),
        true if facts.is_kept => {
            format!("{command}     (the address of Linux is shared, by port, with other runs)")
        }
        true => format!("{command}     (the address of Linux is shared, by port)"),
    }
}

/// Without an address IX shares that of Linux, but not where other routes hold.
fn is_shared(facts: &Facts) -> bool {
    !facts.addresses.is_empty() && facts.in_vrf.is_empty()
}

/// The flag for as many elastic threads as the interface has queues, if that is more than one.
fn cpus(facts: &Facts) -> String {
    let cpus: Vec<String> =
        facts.cpus.iter().take(facts.queues as usize).map(usize::to_string).collect();
    if cpus.len() > 1 { format!(" --cpus {}", cpus.join(",")) } else { String::new() }
}

/// Addresses of Linux on an interface that a run would share and others know. Those of the link,
/// which it would share as well, say little.
fn addresses_to_share(here: &Namespace, index: u32) -> Vec<(IpAddr, u8)> {
    let all = here.usable_addresses(index).unwrap_or_default();
    let is_of_link = |own: &IpAddr| matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
    all.into_iter().filter(|(own, _)| !is_of_link(own)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual() -> Facts {
        Facts {
            name: "eth0".to_owned(),
            up: true,
            has_ethernet: true,
            queues: 2,
            mtu: 1500,
            addresses: vec![([10, 0, 3, 5].into(), 22)],
            xdp: Some(XdpSupport { native: true, ..XdpSupport::default() }),
            cpus: vec![0, 1, 2],
            ..Facts::default()
        }
    }

    #[test]
    fn an_interface_that_works_has_its_command() {
        let verdict = judge(&usual());
        assert_eq!((verdict.mode, &*verdict.why_not), ("native XDP", ""));
        let command = "ix run --nic eth0 --cpus 0,1 PROGRAM  ";
        assert!(verdict.next.starts_with(command), "{verdict:?}");
        assert!(verdict.next.contains("the address of Linux is shared"), "{verdict:?}");
        let lines = verdict.lines();
        assert_eq!(lines[0], "eth0: native XDP, 2 queues, MTU 1500, Linux has 10.0.3.5/22");
        let many = judge(&Facts { queues: 8, ..usual() });
        assert_eq!(many.why_not, "", "elastic threads serve several queues each");
        assert!(many.next.starts_with("ix run --nic eth0 --cpus 0,1,2 PROGRAM  "), "{many:?}");
        let one = judge(&Facts { queues: 8, cpus: vec![5], ..usual() });
        assert!(one.next.starts_with("ix run --nic eth0 PROGRAM  "), "{one:?}");
        let apart = judge(&Facts { queues: 1, in_vrf: "red".to_owned(), ..usual() });
        assert!(apart.next.starts_with("ix run --nic eth0 --addr FREE/24 PROGRAM"), "{apart:?}");
        let alone = judge(&Facts { queues: 1, addresses: vec![], ..usual() });
        assert!(alone.next.starts_with("ix run --nic eth0 --addr FREE/24 PROGRAM"), "{alone:?}");
    }

    #[test]
    fn what_the_driver_has_is_said_and_what_ix_uses_of_it() {
        let hints = ["hash"].to_vec();
        let xdp = XdpSupport { native: true, frags: true, hints, ..XdpSupport::default() };
        let line = |xdp: XdpSupport| judge(&Facts { xdp: Some(xdp), ..usual() }).lines()[1].clone();
        let has = "; the driver also has receive hint hash, which IX does not use";
        let copies = "  AF_XDP with copies, need-wakeup";
        assert_eq!(line(xdp.clone()), format!("{copies}, multi-buffer{has}"));
        assert_eq!(line(XdpSupport { native: false, ..xdp.clone() }), format!("{copies}{has}"));
        let card = XdpSupport {
            zero_copy: true,
            buffers_max: 1,
            hints: vec![],
            offloads: vec!["checksum"],
            ..xdp
        };
        let has = "; the driver also has transmit checksum, which IX does not use";
        assert_eq!(line(card), format!("  AF_XDP with zero-copy, need-wakeup{has}"));
        let tunnel = Facts { has_ethernet: false, ..usual() };
        assert_eq!(judge(&tunnel).to_json()["used"], json!([]));
        assert_eq!(judge(&usual()).to_json()["used"], json!(["copies", "need-wakeup"]));
    }

    #[test]
    fn what_is_in_the_way_has_the_command_that_mends_it() {
        let jumbo = Facts { mtu: 9000, ..usual() };
        let owner = ProgramOwner { pid: 7, command: "filter --all".to_owned() };
        let frags = XdpSupport { native: true, frags: true, ..XdpSupport::default() };
        for (facts, why, next) in [
            (Facts { up: false, ..usual() }, "it is down", "ip link set eth0 up"),
            (
                Facts { has_program: true, ..usual() },
                "another XDP program is attached to it, and no process has it",
                "ip link set eth0 xdp off",
            ),
            (
                Facts { has_program: true, owner: Some(owner), ..usual() },
                "that of process 7, `filter --all`",
                "kill 7 ",
            ),
            (jumbo.clone(), "its MTU is 9000, at most 1778", "ip link set eth0 mtu 1778"),
            (
                Facts { firewall: Some(Obstacle::Rules("inet filter input".into())), ..usual() },
                "has rules there: inet filter input",
                "ix run --nic eth0 --cpus 0,1 --ignore-firewall PROGRAM  ",
            ),
            (
                Facts { firewall: Some(Obstacle::Unknown("no answer".into())), ..usual() },
                "no answer",
                "ix run --nic eth0 --cpus 0,1 --ignore-firewall PROGRAM     (if Linux has no",
            ),
            (Facts { has_ethernet: false, ..usual() }, "no Ethernet", ""),
            (Facts { is_tap: true, ..usual() }, "a tap", ""),
            (Facts { is_vrf: true, ..usual() }, "a VRF", ""),
            (
                Facts { port_of: "br0".to_owned(), ..usual() },
                "a port of br0",
                "ix run --nic br0 PROGRAM",
            ),
        ] {
            let verdict = judge(&facts);
            assert!(verdict.why_not.contains(why), "{verdict:?}");
            assert!(verdict.next.starts_with(next), "{verdict:?}");
            assert_eq!(verdict.to_json()["usable"], false, "{verdict:?}");
        }
        assert_eq!(judge(&Facts { xdp: Some(frags), ..jumbo }).why_not, "");
        // Nothing of a firewall is known, or it has nothing to do with an address of IX's own.
        let rights = Facts { firewall: Some(Obstacle::Rights), ..usual() };
        let rules = Some(Obstacle::Rules("inet filter input".into()));
        let own = Facts { firewall: rules, addresses: vec![], ..usual() };
        assert_eq!([judge(&rights).why_not, judge(&own).why_not], ["", ""]);
        let kept = judge(&Facts { has_program: true, is_kept: true, ..usual() });
        assert_eq!(kept.why_not, "");
        assert!(kept.next.contains("with other runs"), "{kept:?}");
    }
}

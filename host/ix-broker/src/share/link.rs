//! The link between a vNIC's dataplane and the exchange.
use super::LINK_PREFIX;
use crate::link_rates::LinkRates;
use ix_netdev::{Exchange, PortRates};
use ix_netdev::{Namespace, VethEnd};
use ix_proto::control::VnicDevice;
use ix_sys::Error;
use ix_sys::process::Process;
use ix_vnic::Rate;
use std::fmt::Write;

/// MTU of a link, if the interface's is not smaller.
const MTU_MAX: u32 = 1500;

/// A vNIC's link, with its owner.
pub struct Link {
    /// The vNIC's name.
    pub name: String,
    /// The device that its dataplane opens.
    pub far: String,
    /// The interface with the exchange's program; for a tap, the tap itself.
    pub near: String,
    /// The owner's process.
    pub owner: Option<Process>,
    /// What it is made of.
    kind: VnicDevice,
    /// The device specification for `ix run --nic`.
    pub device: String,
    /// The rates and the weight that the operator has set.
    pub rates: PortRates,
    /// Its part of a full interface, bits per second.
    pub part: Option<u64>,
    /// Whether its dataplane can learn both, as far as is known.
    pub hears: bool,
}

impl Link {
    /// Creates a link without an owner, and joins it to the exchange.
    pub fn new(
        name: &str,
        kind: VnicDevice,
        queues: usize,
        here: &Namespace,
        exchange: &mut Exchange,
    ) -> Result<Link, String> {
        let (near, far) = match kind {
            VnicDevice::Afxdp => (format!("ixn-{name}"), format!("{LINK_PREFIX}{name}")),
            VnicDevice::Tap => (format!("{LINK_PREFIX}{name}"), format!("{LINK_PREFIX}{name}")),
        };
        let there = |name: &str| matches!(here.link(name), Ok(Some(_)));
        if there(&near) || there(&far) {
            return Err(format!(
                "a link {near} or {far} exists already; remove it with `ip link del {near}`"
            ));
        }
        match kind {
            VnicDevice::Afxdp => make_veth(&near, &far, queues, here, exchange.mac())?,
            VnicDevice::Tap => make_tap(&near, queues, here)?,
        }
        let device = specification(kind, &far, exchange.mac());
        join(&near, &far, here, exchange).inspect_err(|_| drop(here.delete_link(&near)))?;
        let (name, rates) = (name.to_owned(), PortRates::default());
        Ok(Link { name, far, near, owner: None, kind, device, rates, part: None, hears: true })
    }

    /// Writes the rates as the alias of the tenant's end. Its dataplane then lets packets wait that
    /// would be dropped here. An end in another namespace can be reached if its owner is there.
    pub fn tell(&mut self, here: &Namespace) {
        let limit = self.rates.tx;
        let text = LinkRates { limit, part: self.part.map(Rate::bits) }.written();
        self.hears = self.at_far_end(here, |there, name| there.set_alias(name, &text));
    }

    /// Changes the tenant's end, in this namespace or in its owner's; returns whether it was done.
    fn at_far_end(
        &self,
        here: &Namespace,
        change: impl Fn(&Namespace, &str) -> Result<(), Error>,
    ) -> bool {
        let there = || {
            let owner = self.owner.as_ref()?;
            let peer = here.link(&self.near).ok()??.peer;
            let there = Namespace::of_process(owner.pid()).ok()?;
            // It still exists, so the number was its own.
            owner.signal(0).ok()?;
            let end = there.links().ok()?.into_iter().find(|link| link.index == peer)?;
            change(&there, &end.name).ok()
        };
        change(here, &self.far).is_ok() || there().is_some()
    }

    /// Gives the tenant's end the interface's new Ethernet address, by which its dataplane hears of
    /// it; returns a line if that cannot be.
    pub fn set_mac(&mut self, here: &Namespace, mac: [u8; 6]) -> Option<String> {
        self.device = specification(self.kind, &self.far, mac);
        let mend = match self.kind {
            VnicDevice::Afxdp if self.at_far_end(here, |there, name| there.set_mac(name, mac)) => {
                return None;
            }
            VnicDevice::Afxdp => "its link is in a namespace that is not its owner's; delete the vNIC and make it anew".to_owned(),
            VnicDevice::Tap => format!("a tap's dataplane cannot hear of it; start it anew with `--nic {}`", self.device),
        };
        Some(format!("vNIC {} still has the old Ethernet address: {mend}", self.name))
    }

    /// Gives both ends the MTU of the interface, as far as links have it.
    pub fn set_mtu(&self, here: &Namespace, interface: u32) {
        let mtu = interface.min(MTU_MAX);
        // A link that refuses it loses what is longer.
        let _ = here.set_mtu(&self.near, mtu);
        if self.far != self.near {
            self.at_far_end(here, |there, name| there.set_mtu(name, mtu));
        }
    }

    /// Makes this process the owner: the vNIC is deleted when it ends.
    pub fn set_owner(&mut self, pid: u32) -> Result<(), String> {
        let owner = Process::open(pid);
        self.owner = Some(owner.map_err(|e| format!("cannot watch process {pid}: {e}"))?);
        Ok(())
    }

    /// Removes the link.
    pub fn remove(&self, here: &Namespace) {
        // It may have been removed already.
        let _ = here.delete_link(&self.near);
    }
}

/// A veth pair with the interface's Ethernet address at the tenant's end.
fn make_veth(
    near: &str,
    far: &str,
    queues: usize,
    here: &Namespace,
    mac: [u8; 6],
) -> Result<(), String> {
    let count = queues as u32;
    let ends = (VethEnd::new(near).queues(count), VethEnd::new(far).queues(count).mac(mac));
    here.add_veth(&ends.0, here, &ends.1).map_err(|e| e.to_string())
}

fn make_tap(name: &str, queues: usize, here: &Namespace) -> Result<(), String> {
    if queues != 1 {
        // The kernel gives redirected packets to the queue of the processor that it runs on.
        return Err("a vNIC on a tap has one queue pair; remove --queues".to_owned());
    }
    here.add_tap(name).map_err(|e| e.to_string())
}

/// How `ix run --nic` names the tenant's end. A tap is opened with the interface's Ethernet address
/// `mac`, and without offloads: what crosses the exchange leaves as it is.
fn specification(kind: VnicDevice, far: &str, mac: [u8; 6]) -> String {
    if kind == VnicDevice::Afxdp {
        // Without `queues=`: an elastic thread serves as many of them as it must.
        return format!("afxdp:{far}");
    }
    let mut device = format!("tap:{far},offloads=off,mac=");
    for (i, byte) in mac.iter().enumerate() {
        let colon = if i == 0 { "" } else { ":" };
        let _ = write!(device, "{colon}{byte:02x}");
    }
    device
}

fn join(near: &str, far: &str, here: &Namespace, exchange: &mut Exchange) -> Result<(), String> {
    for end in [near, far] {
        // Linux must not send packets of its own there. Fails where Linux has no IPv6.
        let _ = here.set_sysctl(&format!("net/ipv6/conf/{end}/disable_ipv6"), "1");
        here.set_up(end, true).map_err(|e| e.to_string())?;
    }
    exchange.add_port(near).map_err(|e| e.to_string())
}

//! The default: the address of Linux, shared by port. What the program's sockets own is IX's, all
//! else stays Linux's; neighbours, routes and changes of addresses come from Linux.
use crate::keeper_process;
use ix_broker::low_ports::SharedInterface;
use ix_broker::shared_address::SharedAddress;
use ix_netdev::{DeviceSpec, HeldPorts, HostNet, JoinError, Namespace, OpenedDevice};
use ix_proto::Config;
use ix_proto::config::{Addr6, AddressCheck};
use ix_proto::device::NicKind;
use ix_report::problem::{Problem, Result};
use ix_sys::{Interface, random, say};
use ix_wire::IpAddr;
use std::net;
use std::sync::Arc;

/// Ports for connections that the program opens. Each serves many: a port is free for each
/// destination by itself. A socket of Linux holds each for each protocol.
const OUTGOING_PORTS: u16 = 64;

/// The interface of Linux's default route, if neither a device nor an address is named.
pub fn usual_device(devices: &mut Vec<String>, config: &Config) -> Result<()> {
    if !devices.is_empty() || !config.host_addrs.is_empty() || config.addr6 == Addr6::Auto {
        return Ok(());
    }
    let what = "no device: neither --nic nor `devices` names one";
    let asked = |e: ix_sys::Error| Problem::new(what, e).mend("for example --nic eth0");
    let found = Namespace::current().and_then(|here| here.default_interfaces()).map_err(asked)?;
    match &found[..] {
        [one] => devices.push(one.name.clone()),
        [] => {
            let why = "Linux has no default route, whose interface it would be";
            return Err(Problem::new(what, why)
                .mend("name it with --nic; `ix doctor` has a verdict on each interface"));
        }
        [first, ..] => {
            let names: Vec<_> = found.iter().map(|link| link.name.as_str()).collect();
            let why = format!("Linux has default routes by {}", names.join(" and by "));
            return Err(Problem::new(what, why).mend(format!("for example --nic {}", first.name)));
        }
    }
    Ok(())
}

/// A device to name for whom has named an address and none: the interface of Linux's default route.
pub fn likely_device(config: &Config) -> String {
    let found = Namespace::current().and_then(|here| here.default_interfaces());
    let link = found.unwrap_or_default().into_iter().next();
    // What routers tell is Linux's there.
    let link = link.filter(|_| config.addr6 != Addr6::Auto);
    link.map_or_else(|| "tap:ix0".to_owned(), |link| link.name)
}

/// An error if one of these interfaces carries no Ethernet frames: not even an address of IX's own
/// could be reached there.
pub fn refuse_without_ethernet(devices: &[String]) -> Result<()> {
    for device in devices {
        let Ok(DeviceSpec::Afxdp { ifname, .. }) = device.parse() else { continue };
        // What is not there is said when it is opened.
        let link = Namespace::current().and_then(|here| here.link(&ifname)).ok().flatten();
        let Some(link) = link else { continue };
        let (why, mend) = match (link.is_loopback, link.is_ethernet) {
            (true, _) => (
                "it is the loopback, whose connections never leave the host",
                "name the interface that other hosts reach; `ip link` lists them",
            ),
            (_, false) => (
                "its packets have no Ethernet header: it is a tunnel",
                "name the interface that carries it, such as eth0",
            ),
            _ => continue,
        };
        return Err(Problem::new(format!("cannot use {ifname}"), why).mend(mend));
    }
    Ok(())
}

/// Gives the dataplane the addresses of Linux on its interface, if no address is named and the
/// device is one that can be shared. Those of the link, which need no configuration, come later.
pub fn settle(devices: &[String], config: &mut Config) -> Result<()> {
    let [device] = devices else { return Ok(()) };
    let Ok(DeviceSpec::Afxdp { ifname, vlan, .. }) = device.parse() else { return Ok(()) };
    if !config.host_addrs.is_empty() {
        return Ok(());
    }
    let what = format!("cannot share the address of Linux on {ifname}");
    let refused = |why: String, mend: &str| Err(Problem::new(&what, why).mend(mend));
    if let Some(vlan) = vlan {
        let why = format!("it is for frames without a tag, and vlan={vlan} is for those with one");
        let mend = "give an address that no host has with --addr, or name Linux's interface of the \
                    VLAN, such as eth0.5";
        return refused(why, mend);
    }
    let asked = |e: ix_sys::Error| Problem::new(&what, e);
    let here = Namespace::current().map_err(asked)?;
    let Some(link) = here.link(&ifname).map_err(asked)? else {
        return refused("there is no such interface".to_owned(), "`ip link` lists the interfaces");
    };
    if link.kind == "vrf" {
        let why = "it is a VRF, whose packets come by the interfaces in it".to_owned();
        return refused(why, "name one of those, and an address that no host has with --addr");
    }
    if link.master != 0 {
        let links = here.links().map_err(asked)?;
        let of = links.into_iter().find(|of| of.index == link.master);
        let is_table = of.as_ref().is_some_and(|of| of.kind == "vrf");
        let master = of.map_or_else(|| format!("interface {}", link.master), |of| of.name);
        if is_table {
            let why = format!("it is in {master}, a VRF with routes of its own");
            return refused(why, "name an address that no host has with --addr");
        }
        let why = format!("it is a port of {master}, which has its packets");
        return refused(why, &format!("--nic {master}"));
    }
    let all = here.usable_addresses(link.index).map_err(asked)?;
    let mut addresses: Vec<_> =
        all.iter().map(|(own, prefix)| (IpAddr::from(*own), *prefix)).collect();
    addresses.retain(|(own, _)| !own.is_link_local_v6());
    if addresses.is_empty() {
        let why = "Linux has no address there that other links know, and neither --addr nor \
                   `host_addr` names one";
        return refused(why.to_owned(), "for example --addr 192.0.2.2/24");
    }
    config.host_addrs = addresses;
    config.shares_address = true;
    config.address_check = AddressCheck::Off;
    config.gateway_addrs = HostNet::new(link.index).map_err(asked)?.network().gateways();
    Ok(())
}

/// The ports that IX has of the address.
pub struct Sharing {
    interface: String,
    ports: Arc<HeldPorts>,
}

impl Sharing {
    /// Joins the runs that share the interface, and takes the ports for outgoing connections, which
    /// the configuration names from now on. `user`: the program's. `threads`: the elastic ones.
    pub fn begin(
        config: &mut Config,
        interface: &str,
        user: u32,
        threads: usize,
    ) -> Result<Option<Sharing>> {
        if !config.shares_address {
            return Ok(None);
        }
        let what = format!("cannot share the address of Linux on {interface}");
        let asked = |e: ix_sys::Error| Problem::new(&what, e);
        let index = Interface::new(interface).and_then(|i| i.index());
        let index = index.map_err(|e| Problem::new(&what, e))?;
        let here = Namespace::current().map_err(asked)?;
        let all = here.usable_addresses(index).map_err(asked)?;
        let addresses: Vec<net::IpAddr> = all.into_iter().map(|(own, _)| own).collect();
        let listed: Vec<_> = addresses.iter().map(net::IpAddr::to_string).collect();
        let part = (interface, threads as u32);
        let start = || keeper_process::start(interface);
        let ports = match HeldPorts::join((addresses.clone(), index), user, part, start) {
            Ok(ports) => ports,
            Err(JoinError::NoKeeper(why)) => {
                say!("no other run can share {interface} beside this one: no keeper: {why}");
                HeldPorts::new(addresses, index, user).map_err(asked)?
            }
            Err(JoinError::Refused(why)) => {
                let why = format!("its keeper refuses this run: {why}");
                return Err(Problem::new(&what, why).mend("stop another `ix run` there"));
            }
        };
        let mut seed = [0; 8];
        random::fill(&mut seed).map_err(|why| Problem::new("cannot draw random keys", why))?;
        let block = ports.hold_block(OUTGOING_PORTS, u64::from_le_bytes(seed)).map_err(|e| {
            let why = format!("no {OUTGOING_PORTS} ports for outgoing connections: {e}");
            Problem::new(&what, why).mend(match e.raw_os_error() {
                Some(libc::EADDRINUSE) => {
                    "they must follow each other in net.ipv4.ip_local_port_range, outside of \
                     ip_local_reserved_ports: close sockets of Linux, or widen the range"
                }
                _ => "raise `ulimit -n`",
            })
        })?;
        config.local_ports = block;
        say!(
            "shares {} with Linux on {interface}: the program's ports are IX's, and {}-{} for \
             connections that it opens",
            listed.join(", "),
            block.0,
            block.1
        );
        if let Some(link) = ports.link() {
            say!("another run has the queues of {interface}: this one has link {link}");
        }
        Ok(Some(Sharing { interface: interface.to_owned(), ports: Arc::new(ports) }))
    }

    /// The interface, by its present number.
    pub fn interface(&self) -> SharedInterface {
        SharedInterface { index: self.ports.interface(), ports: self.ports() }
    }

    /// The ports, for the device.
    pub fn ports(&self) -> Arc<HeldPorts> {
        Arc::clone(&self.ports)
    }

    /// The broker's part, on this device.
    pub fn address(&self, devices: &[OpenedDevice]) -> Result<Option<SharedAddress>> {
        // With a link the device is another interface than the one whose network it is.
        let index = devices.iter().find_map(|device| match &device.info.kind {
            NicKind::Afxdp(bind) if self.ports.link().is_none() => Some(bind.ifindex),
            NicKind::Afxdp(_) => Some(self.ports.interface()),
            _ => None,
        });
        let Some(index) = index else { return Ok(None) };
        let net = HostNet::new(index)
            .map_err(|e| Problem::new("cannot follow the network of Linux", e))?;
        // Its name may be another one than at first.
        let links = Namespace::current().and_then(|here| here.links()).unwrap_or_default();
        let link = links.into_iter().find(|link| link.index == index);
        let name = link.map_or_else(|| self.interface.clone(), |link| link.name);
        Ok(Some(SharedAddress::new(name, self.ports(), net)))
    }
}

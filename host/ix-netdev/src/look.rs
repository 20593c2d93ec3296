//! What an interface can do, and what it has, without a change of it.
use crate::host_routes::{DefaultRoute, Way, default_routes, way_to};
use crate::link::{Link, parse_ifinfo};
use crate::namespace::Namespace;
use crate::netlink::{Message, Netlink, attribute, ifinfomsg, number};
use ix_sys::Error;
use std::net::{IpAddr, Ipv4Addr};

impl Namespace {
    /// The IPv4 addresses of an interface by its number, with their prefix lengths.
    pub fn ipv4_addresses(&self, index: u32) -> Result<Vec<(Ipv4Addr, u8)>, Error> {
        let v4 = |(address, prefix)| match address {
            IpAddr::V4(address) => Some((address, prefix)),
            IpAddr::V6(_) => None,
        };
        Ok(self.addresses(index)?.into_iter().filter_map(v4).collect())
    }

    /// The interfaces that Linux's default route goes by: several if several routes are equally
    /// good. IPv4's count before IPv6's, and those with the lowest metric.
    pub fn default_interfaces(&self) -> Result<Vec<Link>, Error> {
        let routes = default_routes(&mut self.netlink())?;
        let Some(best) = routes.iter().min() else { return Ok(Vec::new()) };
        let is_best =
            |route: &&DefaultRoute| (route.is_v6, route.metric) == (best.is_v6, best.metric);
        let indexes: Vec<u32> = routes.iter().filter(is_best).map(|route| route.index).collect();
        let links = self.links()?;
        Ok(links.into_iter().filter(|link| indexes.contains(&link.index)).collect())
    }

    /// By what Linux sends packets to an address; `None`: it has no route there.
    pub fn way_to(&self, to: IpAddr) -> Result<Option<Way>, Error> {
        way_to(&mut self.netlink(), to)
    }

    /// The addresses of an interface by its number that Linux uses, with their prefix lengths, in
    /// the order in which it prefers them as a source.
    pub fn usable_addresses(&self, index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
        usable_addresses(&mut self.netlink(), index)
    }

    /// The addresses of both families of an interface by its number, with their prefix lengths.
    pub fn addresses(&self, index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
        addresses(&mut self.netlink(), index)
    }

    /// The number of the XDP program that an interface has, by the interface's name.
    pub fn xdp_program(&self, name: &str) -> Result<Option<u32>, Error> {
        // linux/if_link.h; libc lacks them.
        const IFLA_XDP: u16 = 43;
        const IFLA_XDP_PROG_ID: u16 = 4;
        let message = Message::new(libc::RTM_GETLINK, 0)
            .put(&ifinfomsg(0, 0, 0))
            .text(libc::IFLA_IFNAME, name);
        let what = || format!("cannot ask for the XDP program of {name}");
        let answers = self.netlink().request(message, what)?;
        let program = |body: &[u8]| {
            parse_ifinfo(body)?;
            let xdp = attribute(body.get(16..)?, IFLA_XDP)?;
            attribute(xdp, IFLA_XDP_PROG_ID).and_then(number)
        };
        Ok(answers.iter().find_map(|answer| program(&answer.body)))
    }
}

/// The addresses of all interfaces in the calling thread's network namespace, the loopback's
/// included.
pub fn own_addresses() -> Result<Vec<IpAddr>, Error> {
    let what = || "cannot ask for the addresses of this host".to_owned();
    let all = all_addresses(&mut Netlink::open()?, what)?;
    Ok(all.into_iter().map(|address| address.address).collect())
}

/// The addresses of both families of an interface by its number, with their prefix lengths.
pub(crate) fn addresses(asks: &mut Netlink, index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
    let all = addresses_with_flags(asks, index)?;
    Ok(all.into_iter().map(|(address, prefix, _)| (address, prefix)).collect())
}

/// Those of them that Linux uses, in the order in which it prefers them as a source (RFC 6724
/// section 5, rules 2, 3 and 7): IPv4's as they are; of IPv6's those of the link last, before them
/// deprecated ones, and temporary ones first. None that is still checked, or that another host has.
pub(crate) fn usable_addresses(asks: &mut Netlink, index: u32) -> Result<Vec<(IpAddr, u8)>, Error> {
    let mut all = addresses_with_flags(asks, index)?;
    all.retain(|(address, _, flags)| {
        let is_checked = flags & (IFA_F_TENTATIVE | IFA_F_DADFAILED) == 0;
        address.is_ipv4() || is_checked || flags & IFA_F_OPTIMISTIC != 0
    });
    all.sort_by_key(|(address, _, flags)| match address {
        IpAddr::V4(_) => 0,
        IpAddr::V6(own) if own.is_unicast_link_local() => 4,
        IpAddr::V6(_) if flags & IFA_F_DEPRECATED != 0 => 3,
        IpAddr::V6(_) if flags & IFA_F_TEMPORARY == 0 => 2,
        IpAddr::V6(_) => 1,
    });
    Ok(all.into_iter().map(|(address, prefix, _)| (address, prefix)).collect())
}

/// Flags of an address of IPv6 (linux/if_addr.h).
const IFA_F_TEMPORARY: u32 = 0x01;
const IFA_F_OPTIMISTIC: u32 = 0x04;
const IFA_F_DADFAILED: u32 = 0x08;
const IFA_F_DEPRECATED: u32 = 0x20;
const IFA_F_TENTATIVE: u32 = 0x40;

/// Addresses of an interface with their prefix lengths and flags.
fn addresses_with_flags(asks: &mut Netlink, index: u32) -> Result<Vec<(IpAddr, u8, u32)>, Error> {
    let what = || format!("cannot ask for the addresses of interface {index}");
    let mut all = all_addresses(asks, what)?;
    all.retain(|address| address.index == index);
    Ok(all.into_iter().map(|of| (of.address, of.prefix, of.flags)).collect())
}

/// An address of an interface.
struct Address {
    /// The interface's number.
    index: u32,
    address: IpAddr,
    prefix: u8,
    /// `IFA_F_…`.
    flags: u32,
}

fn all_addresses(asks: &mut Netlink, what: impl Fn() -> String) -> Result<Vec<Address>, Error> {
    /// The flags of which the message's head has eight bits.
    const IFA_FLAGS: u16 = 8;
    // Of `struct ifaddrmsg`: family, prefix length, flags, scope, index.
    const BODY: usize = 8;
    let message = Message::new(libc::RTM_GETADDR, libc::NLM_F_DUMP).put(&[0; BODY]);
    let answers = asks.request(message, what)?;
    let address = |body: &[u8]| {
        let head = body.get(..BODY)?;
        let index = u32::from_ne_bytes(head.get(4..8)?.try_into().ok()?);
        let found = |wanted: u16| attribute(&body[BODY..], wanted);
        // An IPv6 address of an interface that is no tunnel has only the second one.
        let bytes = found(libc::IFA_LOCAL).or_else(|| found(libc::IFA_ADDRESS))?;
        let address = match bytes.len() {
            4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
            _ => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        };
        let flags = found(IFA_FLAGS).and_then(number).unwrap_or(head[2].into());
        Some(Address { index, address, prefix: head[1], flags })
    };
    Ok(answers.iter().filter_map(|answer| address(&answer.body)).collect())
}

//! The Linux interfaces of the dataplane's devices, whose numbers `IP_PKTINFO` has.
use crate::real;
use crate::route::Network;
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// One address of the dataplane.
struct Interface {
    network: Network,
    /// `None` if Linux does not have the interface (memif).
    name: Option<CString>,
    /// Linux's number; 0 if it is not known yet.
    index: u32,
}

/// The interfaces, by the dataplane's address on each.
#[derive(Default)]
pub struct Interfaces(Vec<Interface>);

impl Interfaces {
    /// No interface.
    pub const fn none() -> Interfaces {
        Interfaces(Vec::new())
    }

    /// Reads lists from `ix run`: addresses with prefix lengths, and as many names. An empty name
    /// is no interface of Linux's.
    pub fn parse(addresses: &str, names: &str) -> Interfaces {
        let both = addresses.split(',').zip(names.split(','));
        let list = both.filter_map(|(text, name)| {
            let name = CString::new(name).ok().filter(|name| !name.is_empty());
            Some(Interface { network: Network::parse(text)?, name, index: 0 })
        });
        Interfaces(list.collect())
    }

    /// All addresses with their networks, and the names of their interfaces.
    pub fn all(&self) -> impl Iterator<Item = (Network, Option<&CStr>)> {
        self.0.iter().map(|one| (one.network, one.name.as_deref()))
    }

    /// The name of the first interface.
    pub fn name(&self) -> Option<&CStr> {
        self.0.iter().find_map(|one| one.name.as_deref())
    }

    /// These are the addresses on the only interface now.
    pub fn follow(&mut self, networks: &[Network]) {
        let Some(name) = self.name().map(CStr::to_owned) else { return };
        let of =
            |network: &Network| Interface { network: *network, name: Some(name.clone()), index: 0 };
        // An interface without an address keeps its name.
        if !networks.is_empty() {
            self.0 = networks.iter().map(of).collect();
        }
    }

    /// Whether a device of the dataplane is Linux's interface of this number. One that was made
    /// again has another number, so Linux is asked.
    pub fn has_number(&mut self, number: u32) -> bool {
        let is = |one: &Interface| number != 0 && one.index == number;
        if self.0.iter().any(is) {
            return true;
        }
        for one in &mut self.0 {
            if let Some(name) = &one.name {
                // SAFETY: a string of ours.
                one.index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            }
        }
        self.0.iter().any(is)
    }

    /// The dataplane's address of a family on Linux's interface of this number.
    pub fn address_numbered(&mut self, number: u32, is_v6: bool) -> Option<IpAddr> {
        self.has_number(number);
        let its = self.0.iter().filter(|one| number != 0 && one.index == number);
        its.map(|one| one.network.address).find(|address| address.is_ipv6() == is_v6)
    }

    /// The number of the device that has an address, in the contract: addresses of a family and
    /// devices belong to each other in order. `None`: there is only one device.
    pub fn device_of(&self, address: IpAddr) -> Option<u8> {
        let first = self.0.first()?;
        if self.0.iter().all(|one| one.name == first.name) {
            return None;
        }
        let mut its =
            self.0.iter().filter(|one| one.network.address.is_ipv6() == address.is_ipv6());
        its.position(|one| one.network.address == address).and_then(|at| u8::try_from(at).ok())
    }

    /// Whether a device of the dataplane is this Linux interface.
    pub fn has(&self, name: &CStr) -> bool {
        self.0.iter().any(|one| one.name.as_deref() == Some(name))
    }

    /// Whether all addresses of the dataplane are on this interface.
    pub fn is_only(&self, name: &CStr) -> bool {
        self.0.iter().all(|one| one.name.as_deref() == Some(name))
    }

    /// The dataplane's address of a family on this interface.
    pub fn address_of(&self, name: &CStr, is_v6: bool) -> Option<IpAddr> {
        let all = self.0.iter().filter(|one| one.name.as_deref() == Some(name));
        all.map(|one| one.network.address).find(|address| address.is_ipv6() == is_v6)
    }

    /// Returns the number, in the program's namespace, of the interface that reaches an address of
    /// the dataplane; 0 if no interface does. The interface may be made after the program has
    /// started, so the first call asks Linux.
    pub fn index_of(&mut self, address: IpAddr) -> u32 {
        let found = self.0.iter_mut().find(|one| one.network.address == address.to_canonical());
        let Some(Interface { name: Some(name), index, .. }) = found else { return 0 };
        if *index == 0 {
            // SAFETY: a string of ours.
            *index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        }
        *index
    }
}

/// The networks of Linux's interfaces, or of that of this name.
pub fn linux_networks(of: Option<&CStr>) -> Vec<Network> {
    let mut networks = Vec::new();
    let mut first = core::ptr::null_mut();
    // SAFETY: the list is the C library's; it is read, and freed once.
    unsafe {
        if real::getifaddrs(&mut first) != 0 {
            return networks;
        }
        let mut next = first;
        while let Some(interface) = next.as_ref() {
            next = interface.ifa_next;
            let (address, mask) = (interface.ifa_addr, interface.ifa_netmask);
            if address.is_null() || mask.is_null() {
                continue;
            }
            if of.is_some_and(|name| CStr::from_ptr(interface.ifa_name) != name) {
                continue;
            }
            // The mask has the family of the address, but need not say so.
            let ip = |at: *mut libc::sockaddr| match i32::from((*address).sa_family) {
                libc::AF_INET => {
                    let at = at.cast::<libc::sockaddr_in>();
                    Some(IpAddr::V4(Ipv4Addr::from(u32::from_be((*at).sin_addr.s_addr))))
                }
                libc::AF_INET6 => {
                    let at = at.cast::<libc::sockaddr_in6>();
                    Some(IpAddr::V6(Ipv6Addr::from((*at).sin6_addr.s6_addr)))
                }
                _ => None,
            };
            let prefix = match ip(mask) {
                Some(IpAddr::V4(mask)) => mask.to_bits().count_ones() as u8,
                Some(IpAddr::V6(mask)) => mask.to_bits().count_ones() as u8,
                None => continue,
            };
            networks.extend(ip(address).map(|address| Network { address, prefix }));
        }
        real::freeifaddrs(first);
    }
    networks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_numbers_of_their_interfaces() {
        let mut all = Interfaces::parse("10.0.0.2/24,10.1.0.2/16,10.2.0.2/8", "lo,,ixnosuch");
        // SAFETY: a string.
        let expected = unsafe { libc::if_nametoindex(c"lo".as_ptr()) };
        assert_ne!(expected, 0);
        let mut index = |text: &str| all.index_of(text.parse().unwrap());
        assert_eq!((index("10.0.0.2"), index("::ffff:10.0.0.2")), (expected, expected));
        assert_eq!((index("10.1.0.2"), index("10.2.0.2"), index("10.9.9.9")), (0, 0, 0));
        assert!(all.has_number(expected) && !all.has_number(0) && !all.has_number(u32::MAX));
        let networks = ["10.7.0.2/24", "10.8.0.2/24"].map(|text| Network::parse(text).unwrap());
        all.follow(&networks);
        assert_eq!(all.index_of("10.8.0.2".parse().unwrap()), expected);
        assert_eq!(all.index_of("10.0.0.2".parse().unwrap()), 0, "it is gone");
    }

    #[test]
    fn an_interface_has_an_address_of_each_family() {
        let all = Interfaces::parse("10.0.0.2/24,2001:db8::2/64,10.1.0.2/16", "eth0,eth0,eth1");
        let of = |name, is_v6| all.address_of(name, is_v6).map(|address| address.to_string());
        assert_eq!(of(c"eth0", false).as_deref(), Some("10.0.0.2"));
        assert_eq!(of(c"eth0", true).as_deref(), Some("2001:db8::2"));
        assert_eq!((of(c"eth1", true), all.is_only(c"eth0")), (None, false));
    }
}

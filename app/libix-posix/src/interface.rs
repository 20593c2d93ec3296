//! The Linux interfaces of the dataplane's devices, whose numbers `IP_PKTINFO` has.
use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr};

/// One address of the dataplane.
struct Interface {
    address: Ipv4Addr,
    prefix: u8,
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
        let network = |text: &str| {
            let (address, prefix) = text.split_once('/')?;
            Some((address.parse().ok()?, prefix.parse().ok()?))
        };
        let both = addresses.split(',').zip(names.split(','));
        let list = both.filter_map(|(text, name)| {
            let name = CString::new(name).ok().filter(|name| !name.is_empty());
            let (address, prefix) = network(text)?;
            Some(Interface { address, prefix, name, index: 0 })
        });
        Interfaces(list.collect())
    }

    /// All addresses, each with its prefix length and the name of its interface.
    pub fn all(&self) -> impl Iterator<Item = (Ipv4Addr, u8, Option<&CStr>)> {
        self.0.iter().map(|one| (one.address, one.prefix, one.name.as_deref()))
    }

    /// Whether a device of the dataplane is this Linux interface.
    pub fn has(&self, name: &CStr) -> bool {
        self.0.iter().any(|one| one.name.as_deref() == Some(name))
    }

    /// The dataplane's address on this interface.
    pub fn address_of(&self, name: &CStr) -> Option<Ipv4Addr> {
        let found = self.0.iter().find(|one| one.name.as_deref() == Some(name));
        found.map(|one| one.address)
    }

    /// Returns the number, in the program's namespace, of the interface that reaches an address of
    /// the dataplane; 0 if no interface does. The interface may be made after the program has
    /// started, so the first call asks Linux.
    pub fn index_of(&mut self, address: IpAddr) -> u32 {
        let found = self.0.iter_mut().find(|one| IpAddr::V4(one.address) == address.to_canonical());
        let Some(Interface { name: Some(name), index, .. }) = found else { return 0 };
        if *index == 0 {
            // SAFETY: a string of ours.
            *index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        }
        *index
    }
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
    }
}

//! What routers have told, as each elastic thread has it: own addresses, and ways to others.
use ix_wire::IpAddr;

/// A copy of what the table of neighbours has learnt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Learnt {
    /// Routers are listened to. Where they are not, packets cost no more than this look.
    pub is_any: bool,
    /// Own addresses that may be used; those that may begin connections first.
    pub addresses: Vec<IpAddr>,
    pub link_local: Option<IpAddr>,
    /// Prefixes whose hosts are on the link, with their lengths.
    pub on_link: Vec<(IpAddr, u8)>,
    pub router: Option<IpAddr>,
    /// Longest packet of the link, bytes.
    pub mtu: Option<usize>,
    pub hop_limit: Option<u8>,
}

impl Learnt {
    /// Whether an address is one of ours.
    #[cold]
    #[inline(never)]
    pub fn is_local(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.link_local == Some(address)
    }

    /// Our address and the next hop for packets to an IPv6 address (RFC 4861 section 5.2).
    pub fn route(&self, remote: IpAddr) -> Option<(IpAddr, IpAddr)> {
        if !remote.is_v6() {
            return None;
        }
        if remote.is_link_local_v6() {
            return self.link_local.map(|own| (own, remote));
        }
        let own = *self.addresses.first()?;
        let on_link = |(prefix, bits): &(IpAddr, u8)| prefix.same_network(remote, *bits);
        let hop = if self.on_link.iter().any(on_link) { Some(remote) } else { self.router };
        hop.map(|hop| (own, hop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn by_the_link_or_by_the_router() {
        let [own, router] = ["2001:db8::7", "fe80::1"].map(ip);
        let mut learnt = Learnt {
            addresses: vec![own, ip("2001:db8:9::7")],
            link_local: Some(ip("fe80::7")),
            on_link: vec![(ip("2001:db8::"), 64)],
            router: Some(router),
            ..Learnt::default()
        };
        assert_eq!(learnt.route(ip("2001:db8::9")), Some((own, ip("2001:db8::9"))));
        assert_eq!(learnt.route(ip("2001:db8:0:1::9")), Some((own, router)));
        assert_eq!(learnt.route(ip("fe80::9")), Some((ip("fe80::7"), ip("fe80::9"))));
        assert_eq!(learnt.route(ip("10.0.0.1")), None);
        assert!(learnt.is_local(own) && learnt.is_local(ip("fe80::7")) && !learnt.is_local(router));
        learnt.router = None;
        assert_eq!(learnt.route(ip("2001:db8:0:1::9")), None);
        learnt.addresses.clear();
        assert_eq!(learnt.route(ip("2001:db8::9")), None);
    }
}

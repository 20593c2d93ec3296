//! Links, addresses and routes of a namespace.
use crate::Namespace;
use crate::netlink::{Answer, Message, Netlink, attributes, ifinfomsg, text};
use ix_sys::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// `VETH_INFO_PEER` of the kernel's `linux/veth.h`.
const VETH_INFO_PEER: u16 = 1;
/// Longest interface name: IFNAMSIZ without the zero.
const NAME_MAX: usize = 15;

/// What the kernel reports about a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Transmit queues.
    pub tx_queues: u32,
    /// Receive queues.
    pub rx_queues: u32,
    /// Kind of a virtual device (`veth`, `tun`), empty for others.
    pub kind: String,
    /// Its alias, empty if it has none.
    pub alias: String,
    /// Number of the link that it is joined to, in that link's namespace; 0 if there is none.
    pub peer: u32,
    /// Queues that processes have, of a tap with several; 0 for others.
    pub tap_queues: u32,
    /// Number of the link that it is a port of, such as a bridge; 0 if there is none.
    pub master: u32,
    /// Its frames have an Ethernet header.
    pub is_ethernet: bool,
    /// It is the loopback.
    pub is_loopback: bool,
}

/// Attributes of a tap (linux/if_link.h): its queues that take packets, and those that do not now.
const TAP_QUEUES: [u16; 2] = [8, 9];

/// Settings of one end of a veth pair.
#[derive(Clone, Debug)]
pub struct VethEnd {
    /// Name, at most 15 bytes.
    pub name: String,
    /// Ethernet address; `None`: the kernel chooses one.
    pub mac: Option<[u8; 6]>,
    /// Queues in each direction.
    pub queues: u32,
    /// Largest IP packet, bytes.
    pub mtu: u32,
}

impl VethEnd {
    /// One queue, MTU 1500, any Ethernet address.
    pub fn new(name: &str) -> VethEnd {
        VethEnd { name: name.to_owned(), mac: None, queues: 1, mtu: 1500 }
    }

    /// Sets the number of queues.
    pub fn queues(mut self, queues: u32) -> VethEnd {
        self.queues = queues;
        self
    }

    /// Sets the MTU.
    pub fn mtu(mut self, mtu: u32) -> VethEnd {
        self.mtu = mtu;
        self
    }

    /// Sets the Ethernet address.
    pub fn mac(mut self, mac: [u8; 6]) -> VethEnd {
        self.mac = Some(mac);
        self
    }

    fn put(&self, message: Message) -> Message {
        let queues = self.queues.to_ne_bytes();
        let message = message
            .text(libc::IFLA_IFNAME, &self.name)
            .attr(libc::IFLA_MTU, &self.mtu.to_ne_bytes())
            .attr(libc::IFLA_NUM_TX_QUEUES, &queues)
            .attr(libc::IFLA_NUM_RX_QUEUES, &queues);
        match &self.mac {
            Some(mac) => message.attr(libc::IFLA_ADDRESS, mac),
            None => message,
        }
    }
}

impl Namespace {
    /// Makes a pair of virtual Ethernet interfaces: `here` in this namespace, `there` in `other`.
    pub fn add_veth(
        &self,
        here: &VethEnd,
        other: &Namespace,
        there: &VethEnd,
    ) -> Result<(), Error> {
        for end in [here, there] {
            if end.name.len() > NAME_MAX || end.name.is_empty() {
                let why = io::Error::from_raw_os_error(libc::EINVAL);
                return Err(Error::new(format!("not an interface name: {:?}", end.name), why));
            }
        }
        let peer_ns = other.fd().as_raw_fd().to_ne_bytes();
        let message = here.put(
            Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL)
                .put(&ifinfomsg(0, 0, 0)),
        );
        let message = message.nest(libc::IFLA_LINKINFO, |m| {
            m.text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |m| {
                m.nest(VETH_INFO_PEER, |m| {
                    there.put(m.put(&ifinfomsg(0, 0, 0))).attr(libc::IFLA_NET_NS_FD, &peer_ns)
                })
            })
        });
        self.ask(message, || format!("cannot make the veth pair {}, {}", here.name, there.name))
    }

    /// Reads an interface; `None` if no interface has that name.
    pub fn link(&self, name: &str) -> Result<Option<Link>, Error> {
        let message = Message::new(libc::RTM_GETLINK, 0)
            .put(&ifinfomsg(0, 0, 0))
            .text(libc::IFLA_IFNAME, name);
        match self.netlink().request(message, || format!("cannot look for {name}")) {
            Ok(answers) => Ok(answers.iter().find_map(parse_link)),
            Err(e) if [libc::ENODEV, libc::ERANGE, libc::EINVAL].contains(&e.errno()) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All interfaces.
    pub fn links(&self) -> Result<Vec<Link>, Error> {
        let message = Message::new(libc::RTM_GETLINK, libc::NLM_F_DUMP).put(&ifinfomsg(0, 0, 0));
        let answers = self.netlink().request(message, || "cannot list interfaces".to_owned())?;
        Ok(answers.iter().filter_map(parse_link).collect())
    }

    /// Waits for an interface that another process makes.
    pub fn wait_for_link(&self, name: &str, timeout: Duration) -> Result<Link, Error> {
        self.wait_link(name, timeout, "did not appear", |_| true)
    }

    /// Waits until an interface is up and has a carrier.
    pub fn wait_running(&self, name: &str, timeout: Duration) -> Result<Link, Error> {
        self.wait_link(name, timeout, "has no carrier", |link| link.running)
    }

    fn wait_link(
        &self,
        name: &str,
        timeout: Duration,
        what: &str,
        enough: impl Fn(&Link) -> bool,
    ) -> Result<Link, Error> {
        let end = Instant::now() + timeout;
        loop {
            if let Some(link) = self.link(name)?.filter(&enough) {
                return Ok(link);
            }
            if Instant::now() > end {
                let why = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                return Err(Error::new(format!("interface {name} {what}"), why));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn index(&self, name: &str) -> Result<u32, Error> {
        self.link(name)?.map(|link| link.index).ok_or_else(|| {
            let why = io::Error::from_raw_os_error(libc::ENODEV);
            Error::new(format!("no interface {name}"), why)
        })
    }

    /// Sets an interface up or down.
    pub fn set_up(&self, name: &str, up: bool) -> Result<(), Error> {
        let flags = if up { libc::IFF_UP } else { 0 };
        let header = ifinfomsg(self.index(name)?, flags, libc::IFF_UP);
        let message = Message::new(libc::RTM_NEWLINK, 0).put(&header);
        self.ask(message, || format!("cannot set {name} {}", if up { "up" } else { "down" }))
    }

    /// Sets the largest IP packet of an interface.
    pub fn set_mtu(&self, name: &str, mtu: u32) -> Result<(), Error> {
        self.set_link(name, libc::IFLA_MTU, &mtu.to_ne_bytes(), "the MTU")
    }

    /// Sets the Ethernet address of an interface.
    pub fn set_mac(&self, name: &str, mac: [u8; 6]) -> Result<(), Error> {
        self.set_link(name, libc::IFLA_ADDRESS, &mac, "the address")
    }

    /// Gives an interface another name.
    pub fn rename_link(&self, name: &str, to: &str) -> Result<(), Error> {
        let text = [to.as_bytes(), &[0]].concat();
        self.set_link(name, libc::IFLA_IFNAME, &text, "the name")
    }

    /// Sets an interface's alias, which others can read; an empty text removes it.
    pub fn set_alias(&self, name: &str, text: &str) -> Result<(), Error> {
        self.set_link(name, libc::IFLA_IFALIAS, text.as_bytes(), "the alias")
    }

    /// Moves an interface to another namespace; it goes down and loses its addresses.
    pub fn move_link(&self, name: &str, to: &Namespace) -> Result<(), Error> {
        let fd = to.fd().as_raw_fd().to_ne_bytes();
        self.set_link(name, libc::IFLA_NET_NS_FD, &fd, "the namespace")
    }

    fn set_link(&self, name: &str, kind: u16, value: &[u8], what: &str) -> Result<(), Error> {
        let header = ifinfomsg(self.index(name)?, 0, 0);
        let message = Message::new(libc::RTM_NEWLINK, 0).put(&header).attr(kind, value);
        self.ask(message, || format!("cannot set {what} of {name}"))
    }

    /// Removes an interface (of a veth pair, both ends).
    pub fn delete_link(&self, name: &str) -> Result<(), Error> {
        let header = ifinfomsg(self.index(name)?, 0, 0);
        let message = Message::new(libc::RTM_DELLINK, 0).put(&header);
        self.ask(message, || format!("cannot remove {name}"))
    }

    /// Gives an interface an address. An IPv6 one may be used at once: nobody is asked whether it
    /// is another's (RFC 4862).
    pub fn add_address(
        &self,
        name: &str,
        address: impl Into<IpAddr>,
        prefix: u8,
    ) -> Result<(), Error> {
        let address = address.into();
        let (family, flags, octets) = match address {
            IpAddr::V4(v4) => (libc::AF_INET, 0, v4.octets().to_vec()),
            IpAddr::V6(v6) => (libc::AF_INET6, libc::IFA_F_NODAD as u8, v6.octets().to_vec()),
        };
        let mut header = [family as u8, prefix, flags, libc::RT_SCOPE_UNIVERSE, 0, 0, 0, 0];
        header[4..8].copy_from_slice(&self.index(name)?.to_ne_bytes());
        let message = Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
            .put(&header)
            .attr(libc::IFA_LOCAL, &octets)
            .attr(libc::IFA_ADDRESS, &octets);
        self.ask(message, || format!("cannot give {name} the address {address}/{prefix}"))
    }

    /// Lets an interface have IPv6 addresses, which interfaces of a namespace of
    /// [`Namespace::new`] do not have.
    pub fn enable_ipv6(&self, name: &str) -> Result<(), Error> {
        self.set_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")
    }

    /// Sends packets for `destination`/`prefix` to `gateway`; prefix 0 is the default route.
    pub fn add_route(
        &self,
        destination: impl Into<IpAddr>,
        prefix: u8,
        gateway: impl Into<IpAddr>,
    ) -> Result<(), Error> {
        let (destination, gateway) = (destination.into(), gateway.into());
        let octets = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let family = if destination.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let mut header = [0; 12];
        header[..8].copy_from_slice(&[
            family as u8,
            prefix,
            0,
            0,
            libc::RT_TABLE_MAIN,
            libc::RTPROT_STATIC,
            libc::RT_SCOPE_UNIVERSE,
            libc::RTN_UNICAST,
        ]);
        let message = Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
            .put(&header)
            .attr(libc::RTA_DST, &octets(destination))
            .attr(libc::RTA_GATEWAY, &octets(gateway));
        self.ask(message, || format!("cannot route {destination}/{prefix} to {gateway}"))
    }

    /// Fixes the Ethernet address of an IPv4 address on a link, so that Linux sends no ARP request
    /// for it.
    pub fn add_neighbour(&self, name: &str, address: Ipv4Addr, mac: [u8; 6]) -> Result<(), Error> {
        let mut header = [0; 12];
        header[0] = libc::AF_INET as u8;
        header[4..8].copy_from_slice(&self.index(name)?.to_ne_bytes());
        header[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
        let message = Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_REPLACE)
            .put(&header)
            .attr(libc::NDA_DST, &address.octets())
            .attr(libc::NDA_LLADDR, &mac);
        self.ask(message, || format!("cannot fix the neighbour {address} on {name}"))
    }

    fn ask(&self, message: Message, what: impl Fn() -> String) -> Result<(), Error> {
        let mut netlink: std::sync::MutexGuard<'_, Netlink> = self.netlink();
        netlink.request(message, what).map(drop)
    }
}

fn parse_link(answer: &Answer) -> Option<Link> {
    if answer.kind != libc::RTM_NEWLINK {
        return None;
    }
    parse_ifinfo(&answer.body)
}

/// Whether an `ifinfomsg` about a removed link says which namespace it has moved to.
pub(crate) fn was_moved(body: &[u8]) -> bool {
    // linux/if_link.h; libc lacks it.
    const IFLA_NEW_NETNSID: u16 = 45;
    let attributes = body.get(16..).map(attributes);
    attributes.into_iter().flatten().any(|(kind, _)| kind == IFLA_NEW_NETNSID)
}

/// Parses an `ifinfomsg` with its attributes.
pub(crate) fn parse_ifinfo(body: &[u8]) -> Option<Link> {
    let word = |b: &[u8]| b.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let flags = word(body.get(8..12)?) as i32;
    let hardware = u16::from_ne_bytes(body.get(2..4)?.try_into().ok()?);
    let mut link = Link {
        name: String::new(),
        index: word(body.get(4..8)?),
        mac: [0; 6],
        mtu: 0,
        up: flags & libc::IFF_UP != 0,
        running: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
        tx_queues: 0,
        rx_queues: 0,
        kind: String::new(),
        alias: String::new(),
        peer: 0,
        tap_queues: 0,
        master: 0,
        is_ethernet: hardware == libc::ARPHRD_ETHER,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
    };
    for (kind, payload) in attributes(body.get(16..)?) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(payload),
            libc::IFLA_MTU => link.mtu = word(payload),
            libc::IFLA_NUM_TX_QUEUES => link.tx_queues = word(payload),
            libc::IFLA_NUM_RX_QUEUES => link.rx_queues = word(payload),
            libc::IFLA_ADDRESS => link.mac = payload.try_into().unwrap_or([0; 6]),
            libc::IFLA_IFALIAS => link.alias = text(payload),
            libc::IFLA_LINK => link.peer = word(payload),
            libc::IFLA_MASTER => link.master = word(payload),
            libc::IFLA_LINKINFO => {
                for (kind, payload) in attributes(payload) {
                    match kind {
                        libc::IFLA_INFO_KIND => link.kind = text(payload),
                        libc::IFLA_INFO_DATA if link.kind == "tun" => {
                            let counts =
                                attributes(payload).filter(|(kind, _)| TAP_QUEUES.contains(kind));
                            link.tap_queues = counts.map(|(_, count)| word(count)).sum();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(link)
}

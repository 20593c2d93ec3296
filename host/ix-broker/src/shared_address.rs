//! The addresses that IX shares with Linux: the broker claims ports for the dataplane, and tells it
//! what Linux knows of addresses, routes and next hops, now and whenever it changes.
use ix_entry::Channel;
use ix_netdev::{
    Conflict, Family, FirewallWatch, HeldPorts, HostNet, Neighbour, Network, Transport,
};
use ix_proto::{ClaimRefused, Codec, FromImage, SharedPort, ToImage};
use ix_sys::{random, say};
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::io;
use std::net;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Messages that wait for room in the channel. The dataplane asks again for what was not answered.
const WAITING_MAX: usize = 4096;
/// Time between two attempts to send something while the channel is full, ms.
pub(crate) const RETRY_MS: u64 = 10;
/// Most lines about ports that Linux keeps from IX: a program may ask for them without end.
const REFUSALS_TOLD_MAX: u32 = 16;
/// Addresses of an interface that are shared, at most: all of them are in each message.
const ADDRESSES_MAX: usize = 1024;
/// Routes in one message: it holds three times as many.
const ROUTES_IN_MESSAGE: usize = 256;

/// One interface's addresses.
pub struct SharedAddress {
    /// The interface, for lines.
    name: String,
    ports: Arc<HeldPorts>,
    net: HostNet,
    /// `None`: Linux does not tell of its firewall.
    firewall: Option<FirewallWatch>,
    waiting: VecDeque<ToImage>,
    /// The addresses that the device was told.
    told: Vec<net::IpAddr>,
    /// The user knows that some routes are left out.
    said_too_many: bool,
    /// And that some addresses are.
    said_too_many_addresses: bool,
    /// Addresses of which the user knows that they stay Linux's alone.
    said_alone: Vec<net::IpAddr>,
    /// New addresses that nobody was told of.
    new: Vec<net::IpAddr>,
    /// Lines about ports that Linux keeps from IX.
    refusals_told: u32,
}

impl SharedAddress {
    /// On the interface of this name, with these ports, whose holders outlive a dataplane, in the
    /// calling thread's network namespace.
    pub fn new(name: String, ports: Arc<HeldPorts>, net: HostNet) -> SharedAddress {
        let firewall = FirewallWatch::new(&name).ok();
        let (waiting, said_alone) = (VecDeque::new(), Vec::new());
        // Others may have come since.
        let told = ports.addresses();
        let mut shared = SharedAddress {
            name,
            ports,
            net,
            firewall,
            waiting,
            told,
            said_too_many: false,
            said_too_many_addresses: false,
            said_alone,
            new: Vec::new(),
            refusals_told: 0,
        };
        let network = shared.net.network().clone();
        // A dataplane before this one may have had others.
        shared.follow(&network);
        for (first, last) in shared.ports.added() {
            shared.tell(ToImage::Outgoing { first, last });
        }
        shared
    }

    /// They poll readable when [`SharedAddress::service`] has something to do, or the keeper of
    /// the interface has ended.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let firewall = self.firewall.as_ref().map(FirewallWatch::fd);
        [self.net.fd()].into_iter().chain(firewall).chain(self.ports.keeper())
    }

    /// The interface, if its keeper has ended: the program there is gone, and no run can go on.
    pub fn without_keeper(&self) -> Option<&str> {
        self.ports.has_lost_keeper().then_some(&*self.name)
    }

    /// When to call [`SharedAddress::service`] though nothing is readable, ms.
    pub fn service_in_ms(&self) -> Option<u64> {
        let full = (!self.waiting.is_empty()).then_some(RETRY_MS);
        full.into_iter().chain(self.follow_in_ms()).min()
    }

    /// The same as long as there is no dataplane to tell.
    pub fn follow_in_ms(&self) -> Option<u64> {
        let firewall = self.firewall.as_ref().and_then(FirewallWatch::due);
        let due = [self.net.due(), firewall].into_iter().flatten();
        due.map(|due| due.as_millis() as u64 + 1).min()
    }

    /// The addresses that are shared now.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.ports.addresses().into_iter().map(IpAddr::from).collect()
    }

    /// The interface has this number now.
    pub fn moved(&mut self, index: u32) {
        self.ports.moved(index);
        self.net.moved(index);
    }

    /// The interface has another Ethernet address.
    pub fn has_other_mac(&mut self) {
        self.net.has_other_mac();
    }

    /// Tells the dataplane what has changed. Returns whether the device is to be told others than
    /// before.
    pub fn service(&mut self, channel: Option<&Channel>) -> bool {
        let changes = self.net.changes();
        for neighbour in changes.neighbours {
            self.tell(said(neighbour));
        }
        if let Some(network) = changes.network {
            self.follow(&network);
        }
        let rules = self.firewall.as_mut().map_or(Vec::new(), FirewallWatch::new_chains);
        if !rules.is_empty() {
            say!(
                "Linux's firewall has new rules for {}, and does not see packets of the program's \
                 ports: {}",
                self.name,
                rules.join(", ")
            );
        }
        self.send(channel);
        let now = self.ports.addresses();
        let are_others = now != self.told;
        self.told = now;
        are_others
    }

    /// Says which addresses are new: packets to them come to IX now.
    pub fn say_new(&mut self) {
        for new in self.new.drain(..) {
            say!("shares {new} with Linux on {} now", self.name);
        }
    }

    /// Takes over what Linux knows of the network now.
    fn follow(&mut self, network: &Network) {
        let before = self.ports.addresses();
        let all = network.addresses.iter().map(|(own, _)| *own).take(ADDRESSES_MAX);
        let all: Vec<net::IpAddr> = all.collect();
        let conflicts = self.ports.follow(&all);
        let shared = self.ports.addresses();
        let name = &self.name;
        for gone in before.iter().filter(|own| !shared.contains(own)) {
            say!(
                "Linux has {gone} on {name} no more: connections there stand still until it is \
                 back, and end as Linux's do"
            );
        }
        self.new.extend(shared.iter().filter(|own| !before.contains(own)));
        let is_alone = |address: &net::IpAddr| conflicts.iter().any(|one| one.address == *address);
        self.said_alone.retain(is_alone);
        for Conflict { address, transport, port, errno } in conflicts {
            // It is found again whenever another address comes or goes.
            if self.said_alone.contains(&address) {
                continue;
            }
            self.said_alone.push(address);
            match errno {
                libc::EADDRINUSE => say!(
                    "{address} on {name} stays Linux's alone: it has {transport} port {port} \
                     there, which is IX's on other addresses; end what has it, then set the \
                     address again"
                ),
                libc::EMFILE => say!(
                    "{address} on {name} stays Linux's alone: `ix run` has too few descriptors \
                     for IX's ports there; give it more (ulimit -n)"
                ),
                errno => say!(
                    "{address} on {name} stays Linux's alone: IX cannot have {transport} port \
                     {port} there: {}",
                    io::Error::from_raw_os_error(errno)
                ),
            }
        }
        let are_too_many = network.addresses.len() > ADDRESSES_MAX;
        if are_too_many && !std::mem::replace(&mut self.said_too_many_addresses, true) {
            say!(
                "Linux has more than {ADDRESSES_MAX} addresses on {name}: the others stay Linux's \
                 alone"
            );
        }
        if network.too_many && !std::mem::replace(&mut self.said_too_many, true) {
            say!(
                "Linux has more than {} routes: those with the longest prefixes are not followed",
                network.routes.len()
            );
        }
        let addresses: Vec<(IpAddr, u8)> = network
            .addresses
            .iter()
            .filter(|(own, _)| shared.contains(own))
            .map(|(own, prefix)| (IpAddr::from(*own), *prefix))
            .collect();
        // What was not sent yet is old.
        self.waiting.retain(|message| !matches!(message, ToImage::Network { .. }));
        let mut parts = network.routes.chunks(ROUTES_IN_MESSAGE).peekable();
        loop {
            let routes = parts.next().unwrap_or_default().to_vec();
            let more = parts.peek().is_some();
            // All or nothing: a few neighbours that are lost are asked for again.
            self.waiting.push_back(ToImage::Network { addresses: addresses.clone(), routes, more });
            if !more {
                break;
            }
        }
    }

    /// Handles a message of the dataplane, if it is about the address.
    pub fn handle(&mut self, message: &FromImage, channel: Option<&Channel>) {
        match message {
            FromImage::Claim(port) => {
                let refused = self.claim(*port).err();
                self.tell(ToImage::Claimed { port: *port, refused });
            }
            FromImage::WantPorts { count } => self.add_outgoing(*count),
            FromImage::ReturnPorts { first, last } => {
                self.ports.return_outgoing((*first, *last));
            }
            FromImage::Release(port) => {
                self.ports.release(transport(*port), family(*port), port.number);
            }
            FromImage::Resolve { hop } => {
                let known = self.net.want((*hop).into());
                known.into_iter().for_each(|neighbour| self.tell(said(neighbour)));
            }
            _ => return,
        }
        self.send(channel);
    }

    /// Takes more ports for outgoing connections.
    fn add_outgoing(&mut self, count: u16) {
        let mut seed = [0; 8];
        // Without randomness the search begins somewhere else than others expect, no more.
        let _ = random::fill(&mut seed);
        let new = self.ports.add_outgoing(count, u64::from_le_bytes(seed));
        if new.is_empty() {
            self.tell(ToImage::Outgoing { first: 0, last: 0 });
        }
        for (first, last) in new {
            self.tell(ToImage::Outgoing { first, last });
        }
    }

    fn claim(&mut self, port: SharedPort) -> Result<(), ClaimRefused> {
        if port.number == 0 {
            return Err(ClaimRefused::Denied);
        }
        let held = self.ports.hold(transport(port), family(port), port.number);
        held.map_err(|e| match e.raw_os_error() {
            Some(libc::EADDRINUSE) => ClaimRefused::InUse,
            why => {
                if why != Some(libc::EACCES) && self.refusals_told < REFUSALS_TOLD_MAX {
                    self.refusals_told += 1;
                    let (transport, number) = (transport(port), port.number);
                    let last = self.refusals_told == REFUSALS_TOLD_MAX;
                    let rest = if last { "; further ones are not named" } else { "" };
                    let mend = match why {
                        Some(libc::EMFILE) => "; give `ix run` more descriptors (ulimit -n)",
                        _ => "",
                    };
                    say!(
                        "cannot have {transport} port {number} of Linux's address: {e}{mend}{rest}"
                    );
                }
                ClaimRefused::Denied
            }
        })
    }

    fn tell(&mut self, message: ToImage) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(message);
        }
    }

    fn send(&mut self, channel: Option<&Channel>) {
        let Some(channel) = channel else { return };
        while let Some(message) = self.waiting.front() {
            match channel.try_send(&message.encode(), &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // An error: the process has ended, which the broker notices by itself.
                Ok(()) | Err(_) => drop(self.waiting.pop_front()),
            }
        }
    }
}

fn transport(port: SharedPort) -> Transport {
    if port.udp { Transport::Udp } else { Transport::Tcp }
}

fn family(port: SharedPort) -> Family {
    if port.v6 { Family::V6 } else { Family::V4 }
}

fn said((hop, mac): Neighbour) -> ToImage {
    ToImage::Neighbour { hop: hop.into(), mac }
}

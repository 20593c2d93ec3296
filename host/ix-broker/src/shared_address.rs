//! The address that IX shares with Linux: the broker claims ports for the dataplane, and tells it
//! what Linux knows of next hops.
use ix_entry::Channel;
use ix_netdev::{HeldPorts, HostNet, Neighbour, Transport};
use ix_proto::{ClaimRefused, Codec, FromImage, SharedPort, ToImage};
use ix_sys::say;
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Messages that wait for room in the channel. The dataplane asks again for what was not answered.
const WAITING_MAX: usize = 4096;

/// One interface's address.
pub struct SharedAddress {
    ports: Arc<HeldPorts>,
    net: HostNet,
    waiting: VecDeque<ToImage>,
}

impl SharedAddress {
    /// With these ports, whose holders outlive a dataplane.
    pub fn new(ports: Arc<HeldPorts>, net: HostNet) -> SharedAddress {
        SharedAddress { ports, net, waiting: VecDeque::new() }
    }

    /// Polls readable when [`SharedAddress::service`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.net.fd()
    }

    /// Whether messages wait for room.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The interface has this number now.
    pub fn moved(&mut self, index: u32) {
        self.net.moved(index);
    }

    /// Tells the dataplane what has changed.
    pub fn service(&mut self, channel: Option<&Channel>) {
        for neighbour in self.net.changes() {
            self.tell(said(neighbour));
        }
        self.send(channel);
    }

    /// Handles a message of the dataplane, if it is about the address.
    pub fn handle(&mut self, message: &FromImage, channel: Option<&Channel>) {
        match message {
            FromImage::Claim(port) => {
                let refused = self.claim(*port).err();
                self.tell(ToImage::Claimed { port: *port, refused });
            }
            FromImage::Release(port) => self.ports.release(transport(*port), port.number),
            FromImage::Resolve { hop } => {
                let known = hop.as_v4().and_then(|hop| self.net.want(hop.into()));
                known.into_iter().for_each(|neighbour| self.tell(said(neighbour)));
            }
            _ => return,
        }
        self.send(channel);
    }

    fn claim(&self, port: SharedPort) -> Result<(), ClaimRefused> {
        if port.number == 0 {
            return Err(ClaimRefused::Denied);
        }
        let held = self.ports.hold(transport(port), port.number);
        held.map_err(|e| match e.raw_os_error() {
            Some(libc::EADDRINUSE) => ClaimRefused::InUse,
            why => {
                if why != Some(libc::EACCES) {
                    let (transport, number) = (transport(port), port.number);
                    say!("cannot have {transport} port {number} of Linux's address: {e}");
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

fn said((hop, mac): Neighbour) -> ToImage {
    ToImage::Neighbour { hop: IpAddr::v4(hop.octets()), mac }
}

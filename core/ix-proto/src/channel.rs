//! What the broker and the dataplane say to each other. Said when a dataplane starts, when a device
//! changes and when the control plane wants something, never for a packet.
use crate::codec::{codec_enum, codec_struct};
use crate::command::{Order, Outcome};
use crate::config::Start;
use crate::crossing::Attach;
use crate::device::DeviceChange;
use crate::routes::Route;
use ix_wire::{IpAddr, MacAddr};

/// What the image says.
#[derive(Clone, Debug, PartialEq)]
pub enum FromImage {
    /// I am here, in this process: tell me what to be. Answered by [`ToImage::Start`].
    Hello {
        /// The process, as it knows itself. The broker uses the kernel's word instead.
        pid: u32,
        /// Comes back with [`ToImage::Attach`], because a program's processes read from one socket.
        asker: u64,
    },
    /// A queue is attached: do now what needs privilege. Answered by [`ToImage::Ok`] or
    /// [`ToImage::Refused`].
    Attached {
        /// Number of the device in the configuration.
        device: usize,
        /// Its queue.
        queue: usize,
    },
    /// The dataplane stands; the program starts.
    Ready,
    /// The dataplane cannot start, or a process of the program cannot have it; the image ends
    /// itself, unless the program runs in it.
    Failed {
        /// What the process's hello said; 0: the dataplane's own, or no hello was said.
        asker: u64,
        /// The reason.
        why: String,
    },
    /// The update of this number was read: the next one may come.
    Taken {
        /// Number of the device in the configuration.
        device: usize,
        /// The update's number.
        serial: u64,
    },
    /// A queue has taken an update over: do now what needs privilege. Not answered.
    Updated {
        /// Number of the device in the configuration.
        device: usize,
        /// Its queue.
        queue: usize,
        /// The update's number.
        serial: u64,
    },
    /// An update cannot be used, and why; the device stays as it was.
    UpdateFailed {
        /// Number of the device in the configuration.
        device: usize,
        /// The update's number.
        serial: u64,
        /// The reason.
        why: String,
    },
    /// What became of the order of this number.
    Outcome {
        /// The order's number.
        serial: u64,
        /// What became of it.
        outcome: Outcome,
    },
    /// The survey of this number is complete.
    Surveyed {
        /// The survey's number.
        serial: u64,
    },
    /// Said by the process that will close the program's connections.
    Survivor {
        /// This process. The broker uses the kernel's word instead.
        pid: u32,
    },
    /// A process of the program shares the dataplane now: what [`ToImage::Join`] has brought is
    /// mapped.
    Joined {
        /// Its number.
        number: usize,
    },
    /// A process cannot share the dataplane, and why.
    NotJoined {
        /// Its number.
        number: usize,
        /// The reason.
        why: String,
    },
    /// Nothing is left of a process that has ended: its number may be given to another one.
    Parted {
        /// Its number.
        number: usize,
    },
    /// A port of the shared address is wanted. Answered by [`ToImage::Claimed`].
    Claim(SharedPort),
    /// A port that was claimed is not needed any more.
    Release(SharedPort),
    /// More ports for outgoing connections are wanted. Answered by [`ToImage::Outgoing`], for each
    /// range that IX gets.
    WantPorts {
        /// How many.
        count: u16,
    },
    /// A range of those is not needed any more.
    ReturnPorts {
        /// The first one.
        first: u16,
        /// The last one.
        last: u16,
    },
    /// The Ethernet address of a next hop is wanted, or used. Answered by [`ToImage::Neighbour`],
    /// now and whenever it changes.
    Resolve {
        /// The next hop.
        hop: IpAddr,
    },
    /// The groups that UDP sockets listen to now: devices take what is sent to them.
    Groups {
        /// The groups.
        groups: Vec<IpAddr>,
    },
}

codec_enum!(FromImage {
    0 = Hello { pid, asker },
    1 = Attached { device, queue },
    2 = Ready,
    3 = Failed { asker, why },
    4 = Taken { device, serial },
    5 = Updated { device, queue, serial },
    6 = UpdateFailed { device, serial, why },
    7 = Outcome { serial, outcome },
    8 = Surveyed { serial },
    9 = Survivor { pid },
    10 = Joined { number },
    11 = NotJoined { number, why },
    12 = Parted { number },
    13 = Claim(port),
    14 = Release(port),
    15 = Resolve { hop },
    16 = WantPorts { count },
    17 = ReturnPorts { first, last },
    18 = Groups { groups },
});

/// A port of the addresses of one family that IX shares with Linux. As on Linux, the other family's
/// port of the same number may be another program's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedPort {
    /// Of UDP, not of TCP.
    pub udp: bool,
    /// Of IPv6, not of IPv4.
    pub v6: bool,
    /// Its number.
    pub number: u16,
}

codec_struct!(SharedPort { udp, v6, number });

/// Why a port cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimRefused {
    /// Linux has it.
    InUse,
    /// The program's user may not have it, or the system has refused it otherwise.
    Denied,
}

codec_enum!(ClaimRefused { 0 = InUse, 1 = Denied });

/// What the broker says.
#[derive(Clone, Debug, PartialEq)]
pub enum ToImage {
    /// What the dataplane is to be; its descriptors travel with it.
    Start(Box<Start>),
    /// Done.
    Ok,
    /// It could not be done, and why.
    Refused(String),
    /// A device changed while the dataplane runs; descriptors with it. Answered by
    /// [`FromImage::Taken`] once it is read, which takes until an elastic thread is inside the
    /// dataplane; then by [`FromImage::Updated`] of each queue, or [`FromImage::UpdateFailed`].
    Update {
        /// Number of the device in the configuration.
        device: usize,
        /// Grows with each update of the device.
        serial: u64,
        /// What changed.
        change: DeviceChange,
    },
    /// The control plane wants something of the running dataplane. Answered by
    /// [`FromImage::Outcome`], which takes until an elastic thread is inside the dataplane.
    Order {
        /// Grows with each order.
        serial: u64,
        /// An order that was not begun by then is refused, µs of the monotonic clock: the process
        /// that wanted it is told that it timed out.
        until_us: u64,
        /// What.
        order: Order,
    },
    /// All connections are to be told; the memory for it comes along. Answered by
    /// [`FromImage::Surveyed`] unless time is over before.
    Survey {
        /// Grows with each survey.
        serial: u64,
        /// Then no client waits for it any more, µs of the monotonic clock.
        until_us: u64,
    },
    /// The dataplane is in another process and stands: map what it shares with the program. Its
    /// descriptors: receive memory, transmit memory, the pages that the program writes, those that
    /// it reads, and the program's end of each elastic thread's bell.
    Attach(Attach),
    /// The process of this number, which was to close the program's connections, has ended before
    /// it.
    SurvivorEnded {
        /// As it has called itself.
        pid: u32,
    },
    /// Another process of the program is to share the dataplane. Its descriptors: the pages that it
    /// writes, those that it reads, its transmit memory, the dataplane's end of each elastic
    /// thread's bell, and a pidfd; without one it is prepared for a process that will ask. Answered
    /// by [`FromImage::Joined`] or [`FromImage::NotJoined`], and by [`FromImage::Parted`] after its
    /// end.
    Join {
        /// Its number.
        number: usize,
        /// Its transmit memory before this offset is its own already, bytes.
        given_bytes: u64,
    },
    /// A process has what was prepared with this number by [`ToImage::Join`]. Its descriptor is a
    /// pidfd.
    Begin {
        /// Its number.
        number: usize,
    },
    /// The process of this number has executed another program: it has ended for the dataplane,
    /// also if others still have copies of its bells. Or the broker gives back what it had prepared
    /// with this number. Answered by [`FromImage::Parted`].
    Executed {
        /// Its number.
        number: usize,
    },
    /// The process that has asked with this number gets no dataplane, and why.
    NotAttached {
        /// What its [`FromImage::Hello`] said.
        asker: u64,
        /// The reason.
        why: String,
    },
    /// A port is IX's from the next packet on, or cannot be.
    Claimed {
        /// The port.
        port: SharedPort,
        /// Why not.
        refused: Option<ClaimRefused>,
    },
    /// These ports too are for outgoing connections from now on.
    Outgoing {
        /// The first one; 0: there are no more.
        first: u16,
        /// The last one.
        last: u16,
    },
    /// What the Ethernet address of a next hop is.
    Neighbour {
        /// The next hop.
        hop: IpAddr,
        /// None: Linux has found none.
        mac: Option<MacAddr>,
    },
    /// What Linux knows of the network of the shared address has changed: a part of all that it
    /// knows now. It counts with the last part.
    Network {
        /// Its addresses and their prefix lengths: the same in each part.
        addresses: Vec<(IpAddr, u8)>,
        /// Some of the routes.
        routes: Vec<Route>,
        /// More parts follow.
        more: bool,
    },
}

codec_enum!(ToImage {
    0 = Start(start),
    1 = Ok,
    2 = Refused(why),
    3 = Update { device, serial, change },
    4 = Order { serial, until_us, order },
    5 = Survey { serial, until_us },
    6 = SurvivorEnded { pid },
    7 = Attach(attach),
    8 = Join { number, given_bytes },
    9 = NotAttached { asker, why },
    10 = Claimed { port, refused },
    11 = Neighbour { hop, mac },
    12 = Network { addresses, routes, more },
    13 = Executed { number },
    14 = Outgoing { first, last },
    15 = Begin { number },
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::codec::tests::{harmless, survives};
    use crate::config::{Config, Place, WallPart};
    use crate::device::tests::{any_change, any_info_with};
    use crate::routes::Via;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn everything_survives(
            (device, queue, serial, pid) in any::<(usize, usize, u64, u32)>(),
            text in ".*",
            // Few enough descriptors for one message.
            info in any_info_with(1..=16, 16),
            change in any_change(),
        ) {
            let port = SharedPort { udp: pid % 2 == 0, v6: pid % 3 == 0, number: pid as u16 };
            let hop = ix_wire::IpAddr::v4(pid.to_be_bytes());
            for message in [
                FromImage::Hello { pid, asker: serial },
                FromImage::Joined { number: device },
                FromImage::NotJoined { number: device, why: text.clone() },
                FromImage::Parted { number: device },
                FromImage::Attached { device, queue },
                FromImage::Ready,
                FromImage::Failed { asker: serial, why: text.clone() },
                FromImage::Taken { device, serial },
                FromImage::Updated { device, queue, serial },
                FromImage::UpdateFailed { device, serial, why: text.clone() },
                FromImage::Outcome { serial, outcome: Outcome::Refused(text.clone()) },
                FromImage::Surveyed { serial },
                FromImage::Survivor { pid },
                FromImage::Claim(port),
                FromImage::WantPorts { count: pid as u16 },
                FromImage::ReturnPorts { first: 1, last: pid as u16 },
                FromImage::Release(port),
                FromImage::Resolve { hop },
                FromImage::Groups { groups: vec![hop; queue % 64] },
            ] {
                survives(&message);
            }
            let until_us = serial / 2;
            let order = Order::Command(crate::Command::Park { thread: queue });
            let addr = ix_wire::IpAddr::v4([10, 0, 0, 2]);
            let config = Config::with_address(addr, 24);
            let (without, place) = (vec![WallPart::Code], Place::Apart);
            let start = Start { config, devices: vec![info], without, place, given_bytes: 0 };
            for message in [
                ToImage::Start(Box::new(start)),
                ToImage::Ok,
                ToImage::Refused(text.clone()),
                ToImage::Join { number: device, given_bytes: serial },
                ToImage::Executed { number: device },
                ToImage::Begin { number: device },
                ToImage::NotAttached { asker: serial, why: text },
                ToImage::Update { device, serial, change },
                ToImage::Claimed { port, refused: None },
                ToImage::Outgoing { first: pid as u16, last: u16::MAX },
                ToImage::Claimed { port, refused: Some(ClaimRefused::InUse) },
                ToImage::Neighbour { hop, mac: None },
                ToImage::Network {
                    addresses: vec![(hop, 24)],
                    routes: [Via::Link, Via::Gateway(hop), Via::Elsewhere, Via::Nowhere]
                        .map(|via| Route {
                            to: addr,
                            prefix: 8,
                            via,
                            source: Some(hop),
                            mtu: pid,
                            metric: pid,
                        })
                        .to_vec(),
                    more: pid % 2 == 1,
                },
                ToImage::Neighbour { hop, mac: Some([2, 0, 0, 0, 0, 9]) },
                ToImage::Order { serial, until_us, order },
                ToImage::Survey { serial, until_us },
                ToImage::SurvivorEnded { pid },
                ToImage::Attach(Attach {
                    asker: serial,
                    number: queue % 64,
                    threads: 1 + queue % 256,
                    packet_bytes: [1, 2, 3],
                    pins: true,
                }),
            ] {
                survives(&message);
            }
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            harmless::<FromImage>(&bytes);
            harmless::<ToImage>(&bytes);
        }
    }

    #[test]
    fn a_survivor_needs_few_bytes_and_no_heap() {
        let message = FromImage::Survivor { pid: u32::MAX };
        let mut buffer = [0; 8];
        let bytes = message.encode_into(&mut buffer).expect("room");
        assert_eq!(FromImage::decode(bytes), Ok(message));
    }
}

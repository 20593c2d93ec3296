//! What a device is, as the broker that opened it tells the dataplane that uses it, and how it
//! changes while the dataplane runs.
use crate::codec::{codec_enum, codec_struct};
use crate::limits::MESSAGE_FDS_MAX;
use crate::memif::Plan;
use core::fmt;
use core::iter::StepBy;
use core::ops::Range;
use ix_wire::VlanId;
use ix_wire::vlan::TAG_BYTES;

/// Most queue pairs of a device.
pub const QUEUES_MAX: usize = 128;

/// What a device is and does; the same for all its queue pairs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicInfo {
    /// Of which kind it is.
    pub kind: NicKind,
    /// Its name on the host (`tap0`, `eth1`), for messages.
    pub name: String,
    /// The mode really in use, for people: "native, copy, need-wakeup".
    pub mode: String,
    /// Queue pairs, numbered from 0: one for each elastic thread. An interface may have more queues
    /// ([`XdpBind::sockets`]), which are dealt out to them.
    pub queues: usize,
    /// Our Ethernet address on it.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes. A tag does not count.
    pub mtu: usize,
    /// Frames have the tag of this VLAN on the link, and none before they reach it.
    pub vlan: Option<VlanId>,
    /// How the device spreads packets over queues.
    pub steering: Steering,
    /// The peer may hand over frames whose transport checksum is only the pseudo-header sum
    /// (a Linux stack on the same machine, over veth or virtio).
    pub partial_checksums: bool,
    /// The peer can change a received frame after we have it (`memif`, client): headers must be
    /// copied before they are parsed.
    pub shared_frames: bool,
    /// Behind the queues' descriptors there is one of the redirection table, for
    /// `ix_nic::attach_table`.
    pub table_fd: bool,
}

codec_struct!(NicInfo {
    kind,
    name,
    mode,
    queues,
    mac,
    mtu,
    vlan,
    steering,
    partial_checksums,
    shared_frames,
    table_fd,
} if check);

/// A device that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuesError {
    /// It has no queue pair, or more than [`QUEUES_MAX`].
    Pairs(usize),
    /// It has fewer sockets than queue pairs, or more than a message carries.
    Sockets(usize),
}

impl fmt::Display for QueuesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueuesError::Pairs(pairs) => write!(f, "{pairs} queues are not from 1 to {QUEUES_MAX}"),
            QueuesError::Sockets(sockets) => write!(
                f,
                "{sockets} sockets are not one for each queue pair, or more than {MESSAGE_FDS_MAX}"
            ),
        }
    }
}

impl std::error::Error for QueuesError {}

impl NicInfo {
    /// Refuses a device that cannot be.
    pub fn check(&self) -> Result<(), QueuesError> {
        if !(1..=QUEUES_MAX).contains(&self.queues) {
            return Err(QueuesError::Pairs(self.queues));
        }
        let sockets = self.sockets();
        let fits = (self.queues..=MESSAGE_FDS_MAX).contains(&sockets);
        if fits { Ok(()) } else { Err(QueuesError::Sockets(sockets)) }
    }

    /// Number of descriptors of its queue pairs: the sockets of an interface's queues, else one for
    /// each pair.
    pub fn sockets(&self) -> usize {
        match self.kind {
            NicKind::Afxdp(bind) => bind.sockets as usize,
            _ => self.queues,
        }
    }

    /// Bytes that a frame has on the link and not before it.
    pub fn tag_bytes(&self) -> usize {
        if self.vlan.is_some() { TAG_BYTES } else { 0 }
    }

    /// Number of descriptors that travel with it.
    pub fn descriptors(&self) -> usize {
        self.sockets() + usize::from(self.table_fd)
    }

    /// The queue pair that serves a queue of the interface.
    pub fn pair_of(&self, socket: usize) -> usize {
        socket % self.queues
    }

    /// The queues of the interface that a queue pair serves, in order. The first one has the pair's
    /// own number.
    pub fn sockets_of(&self, pair: usize) -> StepBy<Range<usize>> {
        (pair..self.sockets()).step_by(self.queues)
    }
}

/// The kinds of devices that users name: the list that all others are made from or compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// An Ethernet link to the Linux stack of this machine.
    Tap,
    /// A Linux interface, by AF_XDP.
    Afxdp,
    /// A link through shared memory to another process.
    Memif,
}

impl DeviceKind {
    /// All kinds.
    pub const ALL: [DeviceKind; 3] = [DeviceKind::Tap, DeviceKind::Afxdp, DeviceKind::Memif];

    /// Its name, with which a specification begins.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Tap => "tap",
            DeviceKind::Afxdp => "afxdp",
            DeviceKind::Memif => "memif",
        }
    }

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<DeviceKind> {
        DeviceKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The shortest specification, such as `tap:NAME`.
    pub const fn short_form(self) -> &'static str {
        match self {
            DeviceKind::Tap => "tap:NAME",
            DeviceKind::Afxdp => "afxdp:IFNAME",
            DeviceKind::Memif => "memif:PATH",
        }
    }

    /// All options of a specification, which follow the short form.
    pub const fn options(self) -> &'static str {
        match self {
            DeviceKind::Tap => "[,queues=N][,mtu=N][,vlan=N][,offloads=on|off][,mac=ADDRESS]",
            DeviceKind::Afxdp => "[,queues=N][,mtu=N][,vlan=N][,mode=zerocopy|copy|generic]",
            DeviceKind::Memif => {
                "[,id=N][,role=server|client][,queues=N][,secret=S][,mtu=N][,vlan=N][,peer-user=N]"
            }
        }
    }
}

/// What a device is to the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicKind {
    /// An Ethernet link to the Linux stack of this machine.
    Tap,
    /// A Linux interface, by AF_XDP.
    Afxdp(XdpBind),
    /// A link through shared memory to another process.
    Memif,
    /// In memory, for tests. It has no descriptors.
    Sim,
}

codec_enum!(NicKind { 0 = Tap, 1 = Afxdp(bind), 2 = Memif, 3 = Sim });

impl NicKind {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            NicKind::Tap => DeviceKind::Tap.name(),
            NicKind::Afxdp(_) => DeviceKind::Afxdp.name(),
            NicKind::Memif => DeviceKind::Memif.name(),
            NicKind::Sim => "sim",
        }
    }
}

impl fmt::Display for NicKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who decides which queue a packet goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Nobody we know: packets of a flow group may come in on any queue, and the elastic thread
    /// that polled one hands it to the owner of its flow group.
    Software,
    /// The device looks up our table with the dataplane's own flow hash (`ix_wire::FlowHash`); the
    /// table is changed with `ix_nic::SetReta`.
    Table,
    /// The device hashes as RSS does, with this Toeplitz key.
    Rss([u8; 40]),
}

codec_enum!(Steering { 0 = Software, 1 = Table, 2 = Rss(key) });

/// How AF_XDP sockets move packets: what the user insists on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// The fastest that works: zero-copy, else copying in the driver, else in the stack.
    Auto,
    /// Zero-copy or nothing.
    ZeroCopy,
    /// Copying in the driver.
    Copy,
    /// Copying, with the program in the stack behind the driver (works with every driver).
    Generic,
}

codec_enum!(XdpMode { 0 = Auto, 1 = ZeroCopy, 2 = Copy, 3 = Generic });

impl XdpMode {
    const ALL: [XdpMode; 4] = [XdpMode::Auto, XdpMode::ZeroCopy, XdpMode::Copy, XdpMode::Generic];

    /// As in `mode=`.
    pub fn name(self) -> &'static str {
        match self {
            XdpMode::Auto => "auto",
            XdpMode::ZeroCopy => "zerocopy",
            XdpMode::Copy => "copy",
            XdpMode::Generic => "generic",
        }
    }

    /// The mode that [`XdpMode::name`] names so.
    pub fn from_name(name: &str) -> Option<XdpMode> {
        XdpMode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// How the sockets of an interface bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpBind {
    /// The interface's number in the network namespace of the sockets.
    pub ifindex: u32,
    /// Ways that are still to be tried; `Generic` and `Copy` leave only copying.
    pub mode: XdpMode,
    /// The program takes frames of several buffers, so sockets shall ask for them.
    pub frags: bool,
    /// Queues of the interface, each with a socket: at least [`NicInfo::queues`].
    pub sockets: u32,
    /// What the sockets ask of the kernel beside that.
    pub features: XdpFeatures,
}

codec_struct!(XdpBind { ifindex, mode, frags, sockets, features });

/// What AF_XDP sockets ask of the kernel beside their mode. The default is what gives most
/// (`ix bench afxdp`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpFeatures {
    /// The kernel says when it must be called, to send and to take frames for packets to receive.
    pub need_wakeup: bool,
    /// In front of each sent frame stands what the device shall do with it: make its checksum.
    pub describes: bool,
}

codec_struct!(XdpFeatures { need_wakeup, describes });

impl XdpFeatures {
    /// The default.
    pub const DEFAULT: XdpFeatures = XdpFeatures { need_wakeup: true, describes: false };
}

impl Default for XdpFeatures {
    fn default() -> XdpFeatures {
        XdpFeatures::DEFAULT
    }
}

/// What changes for a device while the dataplane runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// The interface is there again, and is this now; a new socket for each queue comes along.
    Reopened(NicInfo),
    /// The interface has more queues, for each of which a socket comes along, or another MTU or
    /// Ethernet address.
    Grown(NicInfo),
    /// The memif has a peer; the descriptors that [`Plan`] names come along.
    PeerUp(Plan),
    /// The memif has no peer any more.
    PeerDown,
}

codec_enum!(DeviceChange { 0 = Reopened(info), 1 = PeerUp(plan), 2 = PeerDown, 3 = Grown(info) });

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::codec::tests::{harmless, survives};
    use crate::codec::{Codec, DecodeError};
    use crate::memif::tests::any_plan;
    use core::ops::RangeInclusive;
    use proptest::prelude::*;

    fn any_kind() -> impl Strategy<Value = NicKind> {
        let bind = (any::<u32>(), 0..4usize, any::<[bool; 3]>());
        prop_oneof![
            Just(NicKind::Tap),
            Just(NicKind::Memif),
            Just(NicKind::Sim),
            bind.prop_map(|(ifindex, mode, [frags, need_wakeup, describes])| {
                let mode = XdpMode::ALL[mode];
                let features = XdpFeatures { need_wakeup, describes };
                NicKind::Afxdp(XdpBind { ifindex, mode, frags, sockets: 0, features })
            }),
        ]
    }

    pub(crate) fn any_info() -> impl Strategy<Value = NicInfo> {
        any_info_with(1..=QUEUES_MAX, MESSAGE_FDS_MAX - QUEUES_MAX)
    }

    /// Devices with so many queue pairs, and at most so many sockets more.
    pub(crate) fn any_info_with(
        queues: RangeInclusive<usize>,
        more_max: usize,
    ) -> impl Strategy<Value = NicInfo> {
        let steering = prop_oneof![
            Just(Steering::Software),
            Just(Steering::Table),
            prop::collection::vec(any::<u8>(), 40)
                .prop_map(|key| Steering::Rss(key.try_into().expect("40 bytes"))),
        ];
        let numbers = (queues, any::<([u8; 6], usize, [bool; 3], u16)>());
        let sockets = 0..=more_max;
        (any_kind(), (".{0,15}", ".*"), (numbers, sockets), steering).prop_map(
            |(kind, (name, mode), ((queues, (mac, mtu, flags, vlan)), more), steering)| {
                let [partial_checksums, shared_frames, table_fd] = flags;
                let kind = match kind {
                    NicKind::Afxdp(bind) => {
                        NicKind::Afxdp(XdpBind { sockets: (queues + more) as u32, ..bind })
                    }
                    kind => kind,
                };
                NicInfo {
                    kind,
                    name,
                    mode,
                    queues,
                    mac,
                    mtu,
                    vlan: VlanId::new(vlan),
                    steering,
                    partial_checksums,
                    shared_frames,
                    table_fd,
                }
            },
        )
    }

    pub(crate) fn any_change() -> impl Strategy<Value = DeviceChange> {
        prop_oneof![
            any_info().prop_map(DeviceChange::Reopened),
            any_info().prop_map(DeviceChange::Grown),
            any_plan().prop_map(DeviceChange::PeerUp),
            Just(DeviceChange::PeerDown),
        ]
    }

    proptest! {
        #[test]
        fn devices_and_their_changes_survive(info in any_info(), change in any_change()) {
            survives(&info);
            survives(&change);
        }

        #[test]
        fn a_device_has_queues_and_not_too_many(info in any_info(), queues in any::<usize>()) {
            let info = NicInfo { queues, ..info };
            let read = NicInfo::decode(&info.encode());
            match info.check() {
                Ok(()) => prop_assert_eq!(read, Ok(info)),
                Err(_) => prop_assert_eq!(read, Err(DecodeError::Value)),
            }
        }

        #[test]
        fn each_queue_of_an_interface_has_one_pair(info in any_info()) {
            let mut pairs = vec![None; info.sockets()];
            for pair in 0..info.queues {
                let sockets: Vec<usize> = info.sockets_of(pair).collect();
                prop_assert_eq!(sockets.first(), Some(&pair));
                for socket in sockets {
                    prop_assert_eq!(pairs[socket].replace(pair), None);
                    prop_assert_eq!(info.pair_of(socket), pair);
                }
            }
            prop_assert!(pairs.iter().all(Option::is_some));
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(0u8..8, 0..90)) {
            harmless::<NicInfo>(&bytes);
            harmless::<DeviceChange>(&bytes);
        }
    }

    #[test]
    fn modes_have_names() {
        for mode in XdpMode::ALL {
            assert_eq!(XdpMode::from_name(mode.name()), Some(mode));
        }
        assert_eq!(XdpMode::from_name("fast"), None);
    }
}

//! The features of AF_XDP, whether IX uses them, and why.

/// How two ends are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    pub need_wakeup: bool,
    pub frags: bool,
    pub busy_poll: bool,
    pub checksums: bool,
    pub large_pages: bool,
    pub generic: bool,
    /// Headers and payload in a buffer each.
    pub apart: bool,
}

/// What IX uses, where the driver copies.
pub const USUAL: Setting = Setting {
    need_wakeup: true,
    frags: true,
    busy_poll: false,
    checksums: false,
    large_pages: true,
    generic: false,
    apart: false,
};

/// A feature.
pub struct Feature {
    pub name: &'static str,
    /// IX uses it.
    pub used: bool,
    /// The setting that differs from [`USUAL`] in this alone; `None`: it cannot be measured.
    pub other: Option<Setting>,
    /// Why it is used or not, or cannot be measured.
    pub why: &'static str,
}

/// All of them.
pub const FEATURES: [Feature; 10] = [
    Feature {
        name: "native",
        used: true,
        other: Some(Setting { generic: true, ..USUAL }),
        why: "on a card the program runs before Linux has made a packet of its own, and sockets \
              may receive without a copy; on veth that packet is there already, and the driver \
              copies it once more, so that generic gives more there",
    },
    Feature {
        name: "need-wakeup",
        used: true,
        other: Some(Setting { need_wakeup: false, ..USUAL }),
        why: "where the driver copies, the kernel must be called to send in any case; with \
              zero-copy it saves the calls while the driver is awake",
    },
    Feature {
        name: "multi-buffer",
        used: true,
        other: Some(Setting { frags: false, ..USUAL }),
        why: "packets that are longer than a buffer need it; others pay for one test",
    },
    Feature {
        name: "large pages",
        used: true,
        other: Some(Setting { large_pages: false, ..USUAL }),
        why: "fewer entries of the TLB for the frames, at the dataplane's end alone: the kernel \
              reaches them by addresses of its own",
    },
    Feature {
        name: "busy poll",
        used: false,
        other: Some(Setting { busy_poll: true, ..USUAL }),
        why: "each look at the ring would be a system call, and veth's queue is worked through by \
              the sender's hardware thread: no interrupt is saved",
    },
    Feature {
        name: "transmit checksum",
        used: false,
        other: Some(Setting { checksums: true, ..USUAL }),
        why: "a driver that copies makes none, and the description in front of a packet \
              gives nothing; `ix doctor` says where a driver makes them",
    },
    Feature {
        name: "payload apart",
        used: false,
        other: Some(Setting { apart: true, ..USUAL }),
        why: "what sending without the dataplane's copy would take: headers and payload in a \
              buffer each. A kernel that copies takes a page for each further buffer, which costs \
              more than the copy",
    },
    Feature {
        name: "transmit launch time",
        used: false,
        other: None,
        why: "veth has none: packets leave in order and at once. Paces are the dataplane's own",
    },
    Feature {
        name: "receive hash",
        used: false,
        other: None,
        why: "a program may ask for it by a function of the kernel that is for programs under the \
              GPL alone; and a hash whose key others know cannot choose the place of a flow",
    },
    Feature {
        name: "receive timestamp, VLAN tag",
        used: false,
        other: None,
        why: "by such functions too; nothing in the dataplane reads them, and packets with a VLAN \
              tag are Linux's",
    },
];

//! What a driver has for XDP and AF_XDP, as the kernel says (`netdev` of generic netlink).
use crate::netlink::{Answer, Message, Netlink, attribute};
use ix_sys::Error;

// linux/genetlink.h, linux/netdev.h.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_ZC_MAX_SEGS: u16 = 4;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
/// Attributes of generic netlink are behind `struct genlmsghdr`.
const ATTRIBUTES_AT: usize = 4;

// Bits of the features: it runs programs, they may redirect; zero-copy; several buffers.
const BASIC_AND_REDIRECT: u64 = 0b11;
const XSK_ZEROCOPY: u64 = 1 << 3;
const RX_SG: u64 = 1 << 5;
/// What it can tell of a received packet.
const HINTS: [(u64, &str); 3] = [(1, "timestamp"), (2, "hash"), (4, "VLAN tag")];
/// What it can do with a packet to be sent.
const OFFLOADS: [(u64, &str); 3] = [(1, "timestamp"), (2, "checksum"), (4, "launch time")];

/// What a driver has for XDP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdpSupport {
    /// It runs XDP programs itself, which can send packets to sockets.
    pub native: bool,
    /// It writes packets into the memory of AF_XDP sockets.
    pub zero_copy: bool,
    /// It takes packets in several buffers.
    pub frags: bool,
    /// Most buffers of a packet with zero-copy; 0: it has none.
    pub buffers_max: u32,
    /// What it can tell a program of a received packet.
    pub hints: Vec<&'static str>,
    /// What it can do with a packet that a socket sends, where that is described in front of it.
    pub offloads: Vec<&'static str>,
}

/// Asks for what the driver of an interface has, by the interface's number in the calling thread's
/// network namespace. An error if the kernel cannot say it (before Linux 6.3).
pub fn xdp_support(index: u32) -> Result<XdpSupport, Error> {
    let what = || format!("cannot ask for what interface {index} has for XDP");
    let unknown = || Error::new(what(), std::io::Error::from_raw_os_error(libc::ENOENT));
    let mut netlink = Netlink::open_generic()?;
    let message = Message::new(GENL_ID_CTRL, 0)
        .put(&[CTRL_CMD_GETFAMILY, 1, 0, 0])
        .text(CTRL_ATTR_FAMILY_NAME, "netdev");
    let answers = netlink.request(message, what)?;
    let family = find(&answers, CTRL_ATTR_FAMILY_ID).and_then(|id| id.try_into().ok());
    let family = family.map(u16::from_ne_bytes).ok_or_else(unknown)?;
    let message = Message::new(family, 0)
        .put(&[NETDEV_CMD_DEV_GET, 1, 0, 0])
        .attr(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
    let answers = netlink.request(message, what)?;
    support(&answers).ok_or_else(unknown)
}

/// Reads the kernel's answer; `None` if it has no features of XDP.
fn support(answers: &[Answer]) -> Option<XdpSupport> {
    let bits = |wanted| {
        let bytes = find(answers, wanted)?;
        bytes.try_into().ok().map(u64::from_ne_bytes)
    };
    let features = bits(NETDEV_A_DEV_XDP_FEATURES)?;
    let names = |bits: Option<u64>, all: &[(u64, &'static str)]| {
        // Kernels that do not know them say nothing.
        let bits = bits.unwrap_or(0);
        all.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
    };
    let buffers = find(answers, NETDEV_A_DEV_XDP_ZC_MAX_SEGS).and_then(|n| n.try_into().ok());
    Some(XdpSupport {
        native: features & BASIC_AND_REDIRECT == BASIC_AND_REDIRECT,
        zero_copy: features & XSK_ZEROCOPY != 0,
        frags: features & RX_SG != 0,
        buffers_max: buffers.map_or(0, u32::from_ne_bytes),
        hints: names(bits(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES), &HINTS),
        offloads: names(bits(NETDEV_A_DEV_XSK_FEATURES), &OFFLOADS),
    })
}

/// The first attribute of a kind.
fn find(answers: &[Answer], wanted: u16) -> Option<&[u8]> {
    answers.iter().find_map(|answer| attribute(answer.body.get(ATTRIBUTES_AT..)?, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(attributes: &[(u16, &[u8])]) -> Vec<Answer> {
        let message = Message::new(0, 0).put(&[0; ATTRIBUTES_AT]);
        let message = attributes.iter().fold(message, |m, (kind, bytes)| m.attr(*kind, bytes));
        vec![Answer { kind: 0, body: message.finish(0)[16..].to_vec() }]
    }

    #[test]
    fn what_a_driver_has_is_read_and_what_the_kernel_does_not_say_is_missing() {
        let bits = |bits: u64| bits.to_ne_bytes();
        let veth = answer(&[
            (NETDEV_A_DEV_IFINDEX, &2u32.to_ne_bytes()),
            (NETDEV_A_DEV_XDP_FEATURES, &bits(0b10_0011)),
            (NETDEV_A_DEV_XDP_RX_METADATA_FEATURES, &bits(7)),
            (NETDEV_A_DEV_XSK_FEATURES, &bits(0)),
        ]);
        let all = ["timestamp", "hash", "VLAN tag"].to_vec();
        let wanted = XdpSupport { native: true, frags: true, hints: all, ..XdpSupport::default() };
        assert_eq!(support(&veth), Some(wanted));
        let card = answer(&[
            (NETDEV_A_DEV_XDP_FEATURES, &bits(0b1011)),
            (NETDEV_A_DEV_XDP_ZC_MAX_SEGS, &8u32.to_ne_bytes()),
            (NETDEV_A_DEV_XSK_FEATURES, &bits(0b1_0110)),
        ]);
        let wanted = XdpSupport {
            native: true,
            zero_copy: true,
            buffers_max: 8,
            offloads: ["checksum", "launch time"].to_vec(),
            ..XdpSupport::default()
        };
        assert_eq!(support(&card), Some(wanted));
        let none = answer(&[(NETDEV_A_DEV_XDP_FEATURES, &bits(0))]);
        assert_eq!(support(&none), Some(XdpSupport::default()));
        assert_eq!(support(&answer(&[])), None);
    }
}

//! The text that names a device.
use crate::memif::MTU_DEFAULT as MEMIF_MTU_DEFAULT;
use crate::{MemifSpec, MemifSpecError};
use ix_nic::{DeviceKind, MTU_MAX, XdpMode, memif};
use ix_sys::Interface;
use ix_wire::VlanId;
use std::fmt;
use std::str::FromStr;

/// A device as the user writes it. [`DeviceKind`] has the text of each kind; an interface's name
/// alone is an AF_XDP device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSpec {
    /// An Ethernet link to the Linux stack of this machine.
    Tap {
        /// The interface's name; the interface is made if there is none.
        name: String,
        /// Queue pairs.
        queues: usize,
        /// Largest IP packet, bytes, which the interface gets; by default it keeps its own.
        mtu: Option<usize>,
        /// The VLAN whose tag frames have on the link.
        vlan: Option<VlanId>,
        /// Whether checksums and segmentation may be left to the other end (the default).
        offloads: bool,
        /// Our Ethernet address; by default it is derived from the kernel end's.
        mac: Option<[u8; 6]>,
    },
    /// An interface of Linux.
    Afxdp {
        /// The interface's name.
        ifname: String,
        /// Queue pairs: at most as many as the interface has. All queues of the interface are dealt
        /// out to them.
        queues: usize,
        /// Largest IP packet, bytes, at most the interface's, which is the default.
        mtu: Option<usize>,
        /// The VLAN whose frames are IX's, by their tag; all others stay Linux's.
        vlan: Option<VlanId>,
        /// [`XdpMode::Auto`] by default.
        mode: XdpMode,
    },
    /// A link through shared memory to another process.
    Memif(MemifSpec),
}

/// Why a text does not name a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    spec: String,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Reason {
    Kind,
    Name,
    Option(String),
    Queues,
    Mtu,
    Vlan,
    Mode,
    Offloads,
    Mac,
    Memif(MemifSpecError),
}

const MAX_QUEUES: usize = 128;
/// Least MTU of a link for IPv4 (RFC 791).
const MTU_MIN: usize = 68;

impl DeviceSpec {
    /// Its kind.
    pub fn kind(&self) -> DeviceKind {
        match self {
            DeviceSpec::Tap { .. } => DeviceKind::Tap,
            DeviceSpec::Afxdp { .. } => DeviceKind::Afxdp,
            DeviceSpec::Memif(_) => DeviceKind::Memif,
        }
    }

    /// Queue pairs asked for.
    pub fn queues(&self) -> usize {
        match self {
            DeviceSpec::Tap { queues, .. } | DeviceSpec::Afxdp { queues, .. } => *queues,
            DeviceSpec::Memif(spec) => spec.queues,
        }
    }

    /// Number of descriptors of its queue pairs: an interface that has more queues has a socket for
    /// each.
    pub fn sockets(&self) -> usize {
        let pairs = self.queues();
        match self {
            DeviceSpec::Afxdp { ifname, .. } => {
                let interface = Interface::new(ifname);
                interface.map_or(pairs, |interface| interface.queues().rx.max(pairs))
            }
            DeviceSpec::Tap { .. } | DeviceSpec::Memif(_) => pairs,
        }
    }

    /// The same device with so many queue pairs; the error is how many its kind has at most.
    pub fn with_queues(mut self, wanted: usize) -> Result<DeviceSpec, usize> {
        let (most, queues) = match &mut self {
            DeviceSpec::Tap { queues, .. } | DeviceSpec::Afxdp { queues, .. } => {
                (MAX_QUEUES, queues)
            }
            DeviceSpec::Memif(spec) => (memif::QUEUES_MAX, &mut spec.queues),
        };
        *queues = wanted;
        if (1..=most).contains(&wanted) { Ok(self) } else { Err(most) }
    }

    /// The same device with this MTU, unless its text has one already.
    pub fn with_mtu(mut self, wanted: usize) -> DeviceSpec {
        match &mut self {
            DeviceSpec::Tap { mtu, .. } | DeviceSpec::Afxdp { mtu, .. } => {
                *mtu = mtu.or(Some(wanted));
            }
            DeviceSpec::Memif(spec) if spec.mtu == MEMIF_MTU_DEFAULT => spec.mtu = wanted,
            DeviceSpec::Memif(_) => {}
        }
        self
    }

    /// The VLAN that it is in.
    pub fn vlan(&self) -> Option<VlanId> {
        match self {
            DeviceSpec::Tap { vlan, .. } | DeviceSpec::Afxdp { vlan, .. } => *vlan,
            DeviceSpec::Memif(spec) => spec.vlan,
        }
    }

    /// Whether its peer may work in the dataplane's packet memory.
    pub fn may_share_memory(&self) -> bool {
        matches!(self, DeviceSpec::Memif(_))
    }

    /// The interface's name, or a memif's socket.
    pub fn name(&self) -> &str {
        match self {
            DeviceSpec::Tap { name, .. } => name,
            DeviceSpec::Afxdp { ifname, .. } => ifname,
            DeviceSpec::Memif(spec) => &spec.path,
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(spec: &str) -> Result<DeviceSpec, SpecError> {
        let error = |reason| SpecError { spec: spec.to_owned(), reason };
        let head = spec.split(',').next().unwrap_or_default();
        let (kind, rest) = match spec.split_once(':') {
            Some((kind, rest)) if head.contains(':') => (DeviceKind::from_name(kind), rest),
            _ => (is_interface_name(head).then_some(DeviceKind::Afxdp), spec),
        };
        let kind = kind.ok_or_else(|| error(Reason::Kind))?;
        if kind == DeviceKind::Memif {
            let memif = rest.parse().map_err(|e| error(Reason::Memif(e)))?;
            return Ok(DeviceSpec::Memif(memif));
        }
        let mut words = rest.split(',');
        let name = words.next().unwrap_or_default().to_owned();
        if !is_interface_name(&name) {
            return Err(error(Reason::Name));
        }
        let (mut queues, mut mode, mut offloads, mut mac) = (1, XdpMode::Auto, true, None);
        let (mut mtu, mut vlan) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("queues", value)) => {
                    let number = value.parse().ok().filter(|n| (1..=MAX_QUEUES).contains(n));
                    queues = number.ok_or_else(|| error(Reason::Queues))?;
                }
                Some(("mtu", value)) => {
                    let number = value.parse().ok().filter(|n| (MTU_MIN..=MTU_MAX).contains(n));
                    mtu = Some(number.ok_or_else(|| error(Reason::Mtu))?);
                }
                Some(("vlan", value)) => {
                    vlan = Some(value.parse().map_err(|_| error(Reason::Vlan))?);
                }
                Some(("mode", value)) if kind == DeviceKind::Afxdp => {
                    mode = XdpMode::from_name(value).ok_or_else(|| error(Reason::Mode))?;
                }
                Some(("offloads", value)) if kind == DeviceKind::Tap => {
                    offloads = match value {
                        "on" => true,
                        "off" => false,
                        _ => return Err(error(Reason::Offloads)),
                    };
                }
                Some(("mac", value)) if kind == DeviceKind::Tap => {
                    mac = Some(read_mac(value).ok_or_else(|| error(Reason::Mac))?);
                }
                _ => return Err(error(Reason::Option(word.to_owned()))),
            }
        }
        Ok(match kind {
            DeviceKind::Tap => DeviceSpec::Tap { name, queues, mtu, vlan, offloads, mac },
            _ => DeviceSpec::Afxdp { ifname: name, queues, mtu, vlan, mode },
        })
    }
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSpec::Memif(spec) => spec.fmt(f),
            DeviceSpec::Tap { name, queues, mtu, vlan, offloads, mac } => {
                write!(f, "{}:{name},queues={queues}", self.kind().name())?;
                mtu.map_or(Ok(()), |mtu| write!(f, ",mtu={mtu}"))?;
                vlan.map_or(Ok(()), |vlan| write!(f, ",vlan={vlan}"))?;
                f.write_str(if *offloads { "" } else { ",offloads=off" })?;
                let Some([a, b, c, d, e, g]) = mac else { return Ok(()) };
                write!(f, ",mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            DeviceSpec::Afxdp { ifname, queues, mtu, vlan, mode } => {
                write!(f, "{}:{ifname},queues={queues}", self.kind().name())?;
                mtu.map_or(Ok(()), |mtu| write!(f, ",mtu={mtu}"))?;
                vlan.map_or(Ok(()), |vlan| write!(f, ",vlan={vlan}"))?;
                if *mode == XdpMode::Auto { Ok(()) } else { write!(f, ",mode={}", mode.name()) }
            }
        }
    }
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device `{}`: ", self.spec.escape_debug())?;
        match &self.reason {
            Reason::Kind => {
                let forms = DeviceKind::ALL.map(DeviceKind::short_form);
                write!(
                    f,
                    "no such kind of device; write an interface's name, or one of {}",
                    forms.join(", ")
                )
            }
            Reason::Memif(e) => e.fmt(f),
            Reason::Name => {
                write!(f, "an interface name has 1 to 15 characters without space or /")
            }
            Reason::Option(word) if word.starts_with("mode=") => {
                write!(f, "`mode=` is for afxdp only; remove it")
            }
            Reason::Option(word) => {
                write!(
                    f,
                    "unknown option `{}`; use queues=N, mtu=N and vlan=N, for tap offloads=off or mac=, for afxdp ",
                    word.escape_debug()
                )?;
                write!(f, "mode=zerocopy|copy|generic")
            }
            Reason::Offloads => write!(f, "offloads= must be on or off"),
            Reason::Mac => {
                write!(f, "mac= must be one station's address, such as 02:00:00:00:00:01")
            }
            Reason::Mtu => write!(f, "mtu=N must be a number from {MTU_MIN} to {MTU_MAX}"),
            Reason::Vlan => {
                write!(
                    f,
                    "vlan=N must be a number from 1 to {}; leave it out for frames ",
                    VlanId::MAX
                )?;
                write!(f, "without a tag")
            }
            Reason::Queues => write!(f, "queues=N must be a number from 1 to {MAX_QUEUES}"),
            Reason::Mode => write!(f, "mode= must be zerocopy, copy or generic"),
        }
    }
}

impl std::error::Error for SpecError {}

/// Parses an Ethernet address of one station: neither a group address nor zero.
fn read_mac(text: &str) -> Option<[u8; 6]> {
    let one = |part: &str| (part.len() == 2).then(|| u8::from_str_radix(part, 16).ok()).flatten();
    let bytes: Vec<u8> = text.split(':').map(one).collect::<Option<_>>()?;
    let mac: [u8; 6] = bytes.try_into().ok()?;
    (mac[0] & 1 == 0 && mac != [0; 6]).then_some(mac)
}

/// The kernel's own rule (dev_valid_name), without `%`, which the kernel replaces by a number.
fn is_interface_name(name: &str) -> bool {
    let forbidden = |c: char| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control();
    !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && !matches!(name, "." | "..")
        && !name.contains(forbidden)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_command_line_documents() {
        let tap = |name: &str, queues| DeviceSpec::Tap {
            name: name.into(),
            queues,
            mtu: None,
            vlan: None,
            offloads: true,
            mac: None,
        };
        let xdp = |queues, mode| {
            let (ifname, mtu, vlan) = ("eth1".into(), None, None);
            DeviceSpec::Afxdp { ifname, queues, mtu, vlan, mode }
        };
        assert_eq!("tap:tap0".parse(), Ok(tap("tap0", 1)));
        assert_eq!("tap:ix-0,queues=4".parse(), Ok(tap("ix-0", 4)));
        assert_eq!("afxdp:eth1".parse(), Ok(xdp(1, XdpMode::Auto)));
        let mac = Some([2, 0, 0, 0, 0, 0xfe]);
        let (name, mtu, vlan) = ("t".into(), Some(9000), VlanId::new(5));
        let plain = DeviceSpec::Tap { name, queues: 2, mtu, vlan, offloads: false, mac };
        let text = "tap:t,queues=2,mtu=9000,vlan=5,offloads=off,mac=02:00:00:00:00:fe";
        assert_eq!(text.parse(), Ok(plain.clone()));
        assert_eq!(plain.to_string().parse(), Ok(plain));
        assert_eq!("eth1".parse(), Ok(xdp(1, XdpMode::Auto)));
        assert_eq!("eth1,queues=2,mode=copy".parse(), Ok(xdp(2, XdpMode::Copy)));
        let text = "afxdp:eth1,queues=2,mode=generic";
        assert_eq!(text.parse(), Ok(xdp(2, XdpMode::Generic)));
        assert_eq!(xdp(2, XdpMode::Generic).to_string(), text);
        let tagged: DeviceSpec = "eth1,vlan=4094".parse().expect("a VLAN");
        assert_eq!(tagged.vlan(), VlanId::new(4094));
        assert_eq!(tagged.to_string(), "afxdp:eth1,queues=1,vlan=4094");
        assert_eq!(xdp(2, XdpMode::Auto).to_string().parse(), Ok(xdp(2, XdpMode::Auto)));
    }

    /// Each option that a kind lists is one that its parser takes.
    #[test]
    fn every_kind_is_read_with_all_its_options() {
        for kind in DeviceKind::ALL {
            let (_, name) = kind.short_form().split_once(':').expect("a name");
            let mut text = format!("{}:{}", kind.name(), name.to_ascii_lowercase());
            for option in kind.options().split_terminator(']') {
                let option = option.strip_prefix('[').expect("in brackets");
                let (key, value) = option.split_once('=').expect("a value");
                let value = match value {
                    "N" => "100",
                    "ADDRESS" => "02:00:00:00:00:01",
                    values => values.split('|').next().expect("one"),
                };
                let value = if key == ",queues" { "2" } else { value };
                text.push_str(&format!("{key}={value}"));
            }
            let spec: DeviceSpec = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!((spec.kind(), spec.queues()), (kind, 2), "{text}");
            // The text of a memif has no secret.
            let again: DeviceSpec = spec.to_string().parse().expect("its own text");
            assert_eq!((again.kind(), again.name()), (kind, spec.name()), "{text}");
        }
    }

    #[test]
    fn refuses_in_one_line_that_says_what_to_write() {
        for (spec, says) in [
            ("", "one of tap:NAME, afxdp:IFNAME, memif:PATH"),
            ("a-name-far-too-long", "write an interface's name, or one of tap:NAME"),
            ("/run/link.memif", "one of tap:NAME"),
            ("dpdk:0", "one of tap:NAME"),
            ("eth0,mac=02:00:00:00:00:01", "unknown option"),
            ("tap:", "1 to 15 characters"),
            ("tap:a-name-far-too-long", "1 to 15 characters"),
            ("tap:a b", "1 to 15 characters"),
            ("tap:tap%d", "1 to 15 characters"),
            ("tap:t,queues=0", "from 1 to"),
            ("tap:t,queues=many", "from 1 to"),
            ("tap:t,mtu=67", "from 68 to 9216"),
            ("afxdp:e,mtu=9217", "from 68 to 9216"),
            ("tap:t,vlan=0", "from 1 to 4094; leave it out for frames without a tag"),
            ("tap:t,vlan=4095", "from 1 to 4094"),
            ("eth0,vlan=4096", "from 1 to 4094"),
            ("afxdp:e,vlan=", "from 1 to 4094"),
            ("tap:t,queue=1", "unknown option `queue=1`"),
            ("tap:t,mode=copy", "is for afxdp only"),
            ("tap:t,offloads=no", "on or off"),
            ("tap:t,mac=02:00:00:00:00", "one station's address"),
            ("tap:t,mac=ff:ff:ff:ff:ff:ff", "one station's address"),
            ("tap:t,mac=2:+0:00:00:00:01", "one station's address"),
            ("afxdp:e,mac=02:00:00:00:00:01", "unknown option"),
            ("afxdp:e,offloads=off", "for tap offloads=off"),
            ("afxdp:e,mode=fast", "zerocopy, copy or generic"),
            ("afxdp:e,", "unknown option"),
        ] {
            let text = spec.parse::<DeviceSpec>().unwrap_err().to_string();
            assert!(text.contains(says) && !text.contains('\n'), "{spec}: {text}");
        }
    }
}

//! Reads and sets properties of a network interface, by ioctl(2).
//!
//! The interface is looked up in the network namespace of the calling thread.
use crate::{check, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

// linux/ethtool.h
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// The card chooses the rule's location.
const RX_CLS_LOC_SPECIAL: u32 = 1 << 31;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_GFLAGS: u32 = 0x25;
const FLAG_RXVLAN: u32 = 1 << 8;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const HASH_TOEPLITZ: u8 = 1;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Words of `struct ethtool_rxfh` before the table.
const RXFH_WORDS: usize = 6;

/// Bytes of a flow rule, a `struct ethtool_rx_flow_spec`.
pub const RULE_BYTES: usize = 168;
/// Offset of the location in a flow rule.
pub const LOCATION: usize = 160;
/// As a location: the card chooses one.
pub const LOCATION_ANY: u32 = u32::MAX;

// Words of `struct ethtool_rxnfc`.
const RXNFC_DATA: usize = 2;
const RXNFC_RULE: usize = 4;
const RXNFC_COUNT: usize = RXNFC_RULE + RULE_BYTES / 4;
/// Where the locations follow, if they were asked for.
const RXNFC_PLACES: usize = RXNFC_COUNT + 1;
const RXNFC_WORDS: usize = RXNFC_PLACES + 1;
/// Offset of the location in a rule.
const RXNFC_LOCATION: usize = RXNFC_RULE + LOCATION / 4;

/// An interface by its name.
#[derive(Debug)]
pub struct Interface {
    name: String,
    socket: OwnedFd,
}

/// Number of queues in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues.
    pub rx: usize,
    /// Transmit queues.
    pub tx: usize,
}

/// `struct ethtool_channels`: queues in use, and the most that the interface can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    /// Most receive queues.
    pub max_rx: u32,
    /// Most transmit queues.
    pub max_tx: u32,
    /// Most queues for other purposes, such as link interrupts.
    pub max_other: u32,
    /// Most queue pairs.
    pub max_combined: u32,
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
    /// Queues for other purposes.
    pub other: u32,
    /// Queue pairs.
    pub combined: u32,
}

/// Work that a device can do for the stack. The numbers are ethtool's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Offload {
    /// Checksums of received packets.
    RxChecksum = 0x15,
    /// Checksums of sent packets.
    TxChecksum = 0x17,
    /// Segmentation of TCP (TSO).
    TcpSegmentation = 0x1f,
    /// Segmentation just before the driver (GSO).
    GenericSegmentation = 0x24,
    /// Merging of received segments (GRO).
    GenericReceive = 0x2c,
}

impl Offload {
    /// All offloads, in the order in which to switch them on. Checksums are switched off last,
    /// because TSO needs them.
    pub const ALL: [Offload; 5] = [
        Offload::RxChecksum,
        Offload::TxChecksum,
        Offload::TcpSegmentation,
        Offload::GenericSegmentation,
        Offload::GenericReceive,
    ];

    /// Name for messages: "tcp segmentation".
    pub fn name(self) -> &'static str {
        match self {
            Offload::RxChecksum => "rx checksum",
            Offload::TxChecksum => "tx checksum",
            Offload::TcpSegmentation => "tcp segmentation",
            Offload::GenericSegmentation => "generic segmentation",
            Offload::GenericReceive => "generic receive",
        }
    }
}

/// The current receive-side scaling of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The redirection table: queue numbers.
    pub table: Vec<u32>,
    /// The Toeplitz key. Devices may have a longer one; TCP/IP uses only this part.
    pub key: [u8; 40],
}

impl Interface {
    /// The interface of this name. It need not exist yet.
    pub fn new(name: &str) -> io::Result<Interface> {
        Ok(Interface::on(socket::open(libc::AF_INET, libc::SOCK_DGRAM)?, name))
    }

    /// The interface of this name in the network namespace of a socket.
    pub fn on(socket: OwnedFd, name: &str) -> Interface {
        Interface { name: name.to_owned(), socket }
    }

    /// Its index; `ENODEV` if there is no interface of this name.
    pub fn index(&self) -> io::Result<u32> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        Ok(u32::from_ne_bytes(request.part(0)))
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // Behind the family of a socket address.
        Ok(request.part(size_of::<libc::sa_family_t>()))
    }

    /// Largest IP packet, bytes.
    pub fn mtu(&self) -> io::Result<usize> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        Ok(i32::from_ne_bytes(request.part(0)) as usize)
    }

    /// Sets the largest IP packet, bytes; needs CAP_NET_ADMIN.
    pub fn set_mtu(&self, mtu: usize) -> io::Result<()> {
        let mut request = self.request();
        let mtu = i32::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
        request.set(mtu.to_ne_bytes());
        self.ioctl(libc::SIOCSIFMTU, &mut request)
    }

    /// True if it is switched on.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP as i16 != 0)
    }

    /// Switches it on or off.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let flags = self.flags()?;
        let mut request = self.request();
        let bit = libc::IFF_UP as i16;
        request.set(if up { flags | bit } else { flags & !bit }.to_ne_bytes());
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Its speed in bits per second, if known.
    pub fn speed_bits_per_s(&self) -> Option<u64> {
        // `struct ethtool_cmd` has the speed in Mbit/s in two halves.
        let mut settings = [0u32; 11];
        settings[0] = ETHTOOL_GSET;
        self.ethtool(&mut settings).ok()?;
        let mbit = settings[3] & 0xffff | settings[7] << 16;
        // SPEED_UNKNOWN is -1, with old drivers in the lower half alone.
        let known = !matches!(mbit, 0 | 0xffff | u32::MAX);
        known.then_some(u64::from(mbit) * 1_000_000)
    }

    /// The driver's name.
    pub fn driver(&self) -> io::Result<String> {
        let mut info = [0u32; 49];
        info[0] = ETHTOOL_GDRVINFO;
        self.ethtool(&mut info)?;
        let bytes = info[1..9].iter().flat_map(|word| word.to_ne_bytes());
        Ok(bytes.take_while(|b| *b != 0).map(char::from).collect())
    }

    /// Queues in use, with those for both directions; one of each if the driver does not report
    /// them.
    pub fn queues(&self) -> Queues {
        match self.channels() {
            Ok(Channels { rx, tx, combined, .. }) => {
                Queues { rx: (rx + combined) as usize, tx: (tx + combined) as usize }
            }
            Err(_) => Queues { rx: 1, tx: 1 },
        }
    }

    /// Queues in use, and the most it can have.
    pub fn channels(&self) -> io::Result<Channels> {
        let mut words = [ETHTOOL_GCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        self.ethtool(&mut words)?;
        let [_, max_rx, max_tx, max_other, max_combined, rx, tx, other, combined] = words;
        Ok(Channels { max_rx, max_tx, max_other, max_combined, rx, tx, other, combined })
    }

    /// Sets the receive and transmit queues in use, of a device without combined ones such as veth.
    pub fn set_channels(&self, rx: u32, tx: u32) -> io::Result<()> {
        let Channels { max_rx, max_tx, max_other, max_combined, other, combined, .. } =
            self.channels()?;
        let wanted = [max_rx, max_tx, max_other, max_combined, rx, tx, other, combined];
        let mut words = [ETHTOOL_SCHANNELS, 0, 0, 0, 0, 0, 0, 0, 0];
        words[1..].copy_from_slice(&wanted);
        self.ethtool(&mut words)
    }

    /// Switches one offload on or off.
    pub fn set_offload(&self, offload: Offload, on: bool) -> io::Result<()> {
        self.ethtool(&mut [offload as u32, u32::from(on)])
    }

    /// True if it may deliver packets whose checksum is not finished.
    pub fn leaves_checksums(&self) -> io::Result<bool> {
        let mut value = [ETHTOOL_GTXCSUM, 0];
        self.ethtool(&mut value)?;
        Ok(value[1] != 0)
    }

    /// Whether it takes the tags of VLANs off received frames, and hands them over beside the
    /// frames.
    pub fn takes_tags_off(&self) -> io::Result<bool> {
        let mut value = [ETHTOOL_GFLAGS, 0];
        self.ethtool(&mut value)?;
        Ok(value[1] & FLAG_RXVLAN != 0)
    }

    /// Its receive-side scaling; `None` if it has none, or not with Toeplitz hashes.
    pub fn rss(&self) -> Option<Rss> {
        let mut head = [ETHTOOL_GRSSH, 0, 0, 0, 0, 0];
        self.ethtool(&mut head).ok()?;
        let (entries, key_bytes) = (head[2] as usize, head[3] as usize);
        if entries == 0 || key_bytes < 40 {
            return None;
        }
        let mut whole = vec![0u32; RXFH_WORDS + entries + key_bytes.div_ceil(4)];
        whole[..RXFH_WORDS].copy_from_slice(&head);
        self.ethtool(&mut whole).ok()?;
        if whole[4].to_ne_bytes()[0] != HASH_TOEPLITZ {
            return None;
        }
        let (table, key_words) = whole[RXFH_WORDS..].split_at(entries);
        let mut key = [0; 40];
        for (to, from) in key.chunks_exact_mut(4).zip(key_words) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        Some(Rss { table: table.to_vec(), key })
    }

    /// Replaces the redirection table by one of the same length. Nothing else changes.
    pub fn set_rss_table(&self, table: &[u32]) -> io::Result<()> {
        let mut head = [ETHTOOL_GRSSH, 0, 0, 0, 0, 0];
        self.ethtool(&mut head)?;
        let mut whole = vec![ETHTOOL_SRSSH, 0, table.len() as u32, 0, 0, 0];
        // Hash function 0 means unchanged. The input transformation has no such value, so it is
        // repeated.
        let [_, transformation, ..] = head[4].to_ne_bytes();
        whole[4] = u32::from_ne_bytes([0, transformation, 0, 0]);
        whole.extend_from_slice(table);
        self.ethtool(&mut whole)
    }

    /// True if it can steer packets by rules.
    pub fn has_flow_rules(&self) -> bool {
        self.count_flow_rules().is_ok()
    }

    /// Number of rules, and whether the card chooses the location of a new one.
    fn count_flow_rules(&self) -> io::Result<(usize, bool)> {
        let mut request = [0u32; RXNFC_WORDS];
        request[0] = ETHTOOL_GRXCLSRLCNT;
        self.ethtool(&mut request)?;
        let chooses = request[RXNFC_DATA] & RX_CLS_LOC_SPECIAL != 0;
        Ok((request[RXNFC_COUNT] as usize, chooses))
    }

    /// Adds a flow rule; returns its location.
    pub fn insert_flow_rule(&self, rule: &[u8; RULE_BYTES]) -> io::Result<u32> {
        let (count, chooses) = self.count_flow_rules()?;
        let place = if chooses { LOCATION_ANY } else { self.free_place(count)? };
        let mut request = [0u32; RXNFC_WORDS];
        request[0] = ETHTOOL_SRXCLSRLINS;
        let words = rule.as_chunks::<4>().0.iter().map(|bytes| u32::from_ne_bytes(*bytes));
        request[RXNFC_RULE..].iter_mut().zip(words).for_each(|(to, word)| *to = word);
        request[RXNFC_LOCATION] = place;
        self.ethtool(&mut request)?;
        Ok(request[RXNFC_LOCATION])
    }

    /// The last free location. Those before it have priority, and may be used by others.
    fn free_place(&self, count: usize) -> io::Result<u32> {
        let mut request = vec![0u32; RXNFC_WORDS + count];
        (request[0], request[RXNFC_COUNT]) = (ETHTOOL_GRXCLSRLALL, count as u32);
        self.ethtool(&mut request)?;
        let used = &request[RXNFC_PLACES..RXNFC_PLACES + count];
        let free = (0..request[RXNFC_DATA]).rev().find(|place| !used.contains(place));
        free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
    }

    /// Deletes the flow rule at a location.
    pub fn delete_flow_rule(&self, place: u32) -> io::Result<()> {
        let mut request = [0u32; RXNFC_WORDS];
        (request[0], request[RXNFC_LOCATION]) = (ETHTOOL_SRXCLSRLDEL, place);
        self.ethtool(&mut request)
    }

    fn flags(&self) -> io::Result<i16> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        Ok(i16::from_ne_bytes(request.part(0)))
    }

    fn request(&self) -> Request {
        Request::new(&self.name)
    }

    fn ethtool(&self, data: &mut [u32]) -> io::Result<()> {
        let mut request = self.request();
        request.set(data.as_mut_ptr().expose_provenance().to_ne_bytes());
        self.ioctl(SIOCETHTOOL, &mut request)
    }

    fn ioctl(&self, number: libc::c_ulong, request: &mut Request) -> io::Result<()> {
        // SAFETY: all requests used here take an `ifreq`; what ETHTOOL's points to is as long as
        // its first words say.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, &raw mut *request) })
            .map(drop)
    }
}

/// A `struct ifreq`: the name of an interface, and a value of which each request has another type
/// (netdevice(7)).
#[repr(C, align(8))]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; size_of::<libc::ifreq>() - libc::IFNAMSIZ],
}

impl Request {
    /// One with this name, cut to the length that fits.
    pub(crate) fn new(name: &str) -> Request {
        let mut request = Request { name: [0; _], value: [0; _] };
        let len = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        request
    }

    /// Bytes of the value.
    pub(crate) fn part<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        std::array::from_fn(|i| self.value[at + i])
    }

    /// Sets the first bytes of the value.
    pub(crate) fn set<const BYTES: usize>(&mut self, bytes: [u8; BYTES]) {
        self.value[..BYTES].copy_from_slice(&bytes);
    }
}

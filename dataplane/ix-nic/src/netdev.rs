//! What Linux knows of a network interface, through ioctl(2).
//!
//! The interface is looked up in the network namespace of the calling thread.
use crate::hardware::{FlowRule, LOCATION, LOCATION_ANY, RULE_BYTES};
use crate::sys::{check, socket};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

// linux/ethtool.h
const ETHTOOL_GSET: u32 = 0x01;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
const ETHTOOL_GRXCLSRLALL: u32 = 0x30;
const ETHTOOL_SRXCLSRLDEL: u32 = 0x31;
const ETHTOOL_SRXCLSRLINS: u32 = 0x32;
/// The card chooses where a rule goes.
const RX_CLS_LOC_SPECIAL: u32 = 1 << 31;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_GRSSH: u32 = 0x46;
const ETHTOOL_SRSSH: u32 = 0x47;
const HASH_TOEPLITZ: u8 = 1;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// Words of `struct ethtool_rxfh` in front of the table.
const RXFH_WORDS: usize = 6;

// Words of `struct ethtool_rxnfc`.
const RXNFC_DATA: usize = 2;
const RXNFC_RULE: usize = 4;
const RXNFC_COUNT: usize = RXNFC_RULE + RULE_BYTES / 4;
/// Where places follow, if they were asked for.
const RXNFC_PLACES: usize = RXNFC_COUNT + 1;
const RXNFC_WORDS: usize = RXNFC_PLACES + 1;
/// In a rule.
const RXNFC_LOCATION: usize = RXNFC_RULE + LOCATION / 4;

/// An interface by its name.
#[derive(Debug)]
pub struct Interface {
    name: String,
    socket: OwnedFd,
}

/// How many queues an interface has in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues.
    pub rx: usize,
    /// Transmit queues.
    pub tx: usize,
}

/// Receive-side scaling as the interface does it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The redirection table: queue numbers.
    pub table: Vec<u32>,
    /// The Toeplitz key; devices may have a longer one, of which TCP/IP uses only this.
    pub key: [u8; 40],
}

impl Interface {
    /// The interface of this name, which may not exist yet.
    pub fn new(name: &str) -> io::Result<Interface> {
        Ok(Interface { name: name.to_owned(), socket: socket(libc::AF_INET, libc::SOCK_DGRAM)? })
    }

    /// Its number; `ENODEV` when there is none of this name.
    pub fn index(&self) -> io::Result<u32> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX answers in this field; any bytes are an integer.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex } as u32)
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> io::Result<[u8; 6]> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: SIOCGIFHWADDR answers in this field; any bytes are a socket address.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        Ok(std::array::from_fn(|i| address.sa_data[i] as u8))
    }

    /// Largest IP packet, bytes.
    pub fn mtu(&self) -> io::Result<usize> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU answers in this field; any bytes are an integer.
        Ok(unsafe { request.ifr_ifru.ifru_mtu } as usize)
    }

    /// Whether it was switched on.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP as i16 != 0)
    }

    /// Switches it on or off.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let flags = self.flags()?;
        let mut request = self.request();
        let bit = libc::IFF_UP as i16;
        request.ifr_ifru.ifru_flags = if up { flags | bit } else { flags & !bit };
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Its speed, bits a second, if it tells.
    pub fn speed_bits_per_s(&self) -> Option<u64> {
        // `struct ethtool_cmd`: the speed in Mbit/s stands in two halves.
        let mut settings = [0u32; 11];
        settings[0] = ETHTOOL_GSET;
        self.ethtool(&mut settings).ok()?;
        let mbit = settings[3] & 0xffff | settings[7] << 16;
        // SPEED_UNKNOWN is -1, in the lower half alone with old drivers.
        let known = !matches!(mbit, 0 | 0xffff | u32::MAX);
        known.then_some(u64::from(mbit) * 1_000_000)
    }

    /// The driver's name; empty when the interface does not tell.
    pub fn driver(&self) -> String {
        let mut info = [0u32; 49];
        info[0] = ETHTOOL_GDRVINFO;
        if self.ethtool(&mut info).is_err() {
            return String::new();
        }
        let bytes = info[1..9].iter().flat_map(|word| word.to_ne_bytes());
        bytes.take_while(|b| *b != 0).map(char::from).collect()
    }

    /// Queues in use; one of each when the driver does not tell.
    pub fn channels(&self) -> Channels {
        let mut channels = [0u32; 9];
        channels[0] = ETHTOOL_GCHANNELS;
        if self.ethtool(&mut channels).is_err() {
            return Channels { rx: 1, tx: 1 };
        }
        let [.., rx, tx, _other, combined] = channels.map(|n| n as usize);
        Channels { rx: rx + combined, tx: tx + combined }
    }

    /// Its receive-side scaling; `None` when it has none, or not by Toeplitz.
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

    /// Replaces the redirection table, of the same length, and nothing else.
    pub fn set_rss_table(&self, table: &[u32]) -> io::Result<()> {
        let mut head = [ETHTOOL_GRSSH, 0, 0, 0, 0, 0];
        self.ethtool(&mut head)?;
        let mut whole = vec![ETHTOOL_SRSSH, 0, table.len() as u32, 0, 0, 0];
        // Hash function 0 means unchanged; the input transformation has no such value: repeat it.
        let [_, transformation, ..] = head[4].to_ne_bytes();
        whole[4] = u32::from_ne_bytes([0, transformation, 0, 0]);
        whole.extend_from_slice(table);
        self.ethtool(&mut whole)
    }

    /// Whether it steers packets by rules.
    pub fn has_flow_rules(&self) -> bool {
        self.count_flow_rules().is_ok()
    }

    /// How many rules there are, and whether the card chooses where one goes.
    fn count_flow_rules(&self) -> io::Result<(usize, bool)> {
        let mut request = [0u32; RXNFC_WORDS];
        request[0] = ETHTOOL_GRXCLSRLCNT;
        self.ethtool(&mut request)?;
        let chooses = request[RXNFC_DATA] & RX_CLS_LOC_SPECIAL != 0;
        Ok((request[RXNFC_COUNT] as usize, chooses))
    }

    /// Adds a rule; answers where it is.
    pub(crate) fn insert_flow_rule(&self, rule: &FlowRule) -> io::Result<u32> {
        let (count, chooses) = self.count_flow_rules()?;
        let place = if chooses { LOCATION_ANY } else { self.free_place(count)? };
        let mut request = [0u32; RXNFC_WORDS];
        request[0] = ETHTOOL_SRXCLSRLINS;
        request[RXNFC_RULE..].iter_mut().zip(rule.words()).for_each(|(to, word)| *to = word);
        request[RXNFC_LOCATION] = place;
        self.ethtool(&mut request)?;
        Ok(request[RXNFC_LOCATION])
    }

    /// The last place that no rule has: those before it are asked first, and somebody else's.
    fn free_place(&self, count: usize) -> io::Result<u32> {
        let mut request = vec![0u32; RXNFC_WORDS + count];
        (request[0], request[RXNFC_COUNT]) = (ETHTOOL_GRXCLSRLALL, count as u32);
        self.ethtool(&mut request)?;
        let used = &request[RXNFC_PLACES..RXNFC_PLACES + count];
        let free = (0..request[RXNFC_DATA]).rev().find(|place| !used.contains(place));
        free.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))
    }

    pub(crate) fn delete_flow_rule(&self, place: u32) -> io::Result<()> {
        let mut request = [0u32; RXNFC_WORDS];
        (request[0], request[RXNFC_LOCATION]) = (ETHTOOL_SRXCLSRLDEL, place);
        self.ethtool(&mut request)
    }

    fn flags(&self) -> io::Result<i16> {
        let mut request = self.request();
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS answers in this field; any bytes are an integer.
        Ok(unsafe { request.ifr_ifru.ifru_flags })
    }

    fn request(&self) -> libc::ifreq {
        request(&self.name)
    }

    fn ethtool(&self, data: &mut [u32]) -> io::Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_data = data.as_mut_ptr().cast();
        self.ioctl(SIOCETHTOOL, &mut request)
    }

    fn ioctl(&self, number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: all requests used here take an `ifreq`; what ETHTOOL's points to is as long as
        // its first words say.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), number as _, &raw mut *request) })
            .map(drop)
    }
}

/// An `ifreq` of this name, cut to the length that fits.
pub(crate) fn request(name: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes().take(room)) {
        *to = from as libc::c_char;
    }
    request
}

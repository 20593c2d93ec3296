//! What a dataplane begins with.
use crate::codec::{Codec, codec_enum, codec_struct};
use crate::config::Config;
use crate::device::{NicInfo, NicKind};
use crate::limits::{MESSAGE_BYTES_MAX, MESSAGE_FDS_MAX};
use core::fmt;

/// Most devices of a dataplane.
pub const DEVICES_MAX: usize = 64;

/// What a dataplane begins with. Its descriptors travel with it: an empty memfd for the control
/// page; packet memory, if a device shares its frames with a peer or the program is in another
/// process; in that case the pages that the program writes, those that it reads, the program's
/// process (a pidfd) and the dataplane's end of each elastic thread's bell; then the queues of each
/// device ([`NicInfo::sockets`]), and the device's redirection table where [`NicInfo::table_fd`]
/// says so.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// What is fixed from then on.
    pub config: Config,
    /// Its devices, in the order in which messages number them.
    pub devices: Vec<NicInfo>,
    /// Parts of the wall that are not to stand.
    pub without: Vec<WallPart>,
    /// Where the program is.
    pub place: Place,
    /// Transmit memory before this offset belongs to the program already: an earlier dataplane has
    /// given it out. Bytes.
    pub given_bytes: u64,
}

codec_struct!(Start { config, devices, without, place, given_bytes } if check);

/// Where the dataplane is, as seen from its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In the program's process.
    #[default]
    Within,
    /// In a process of its own.
    Apart,
}

codec_enum!(Place { 0 = Within, 1 = Apart });

/// Descriptors of the control page, and of packet memory.
const PAGE_FDS: usize = 1;
const MEMORY_FDS: usize = 3;
/// Descriptors of the pages that a program in another process shares, and of its process.
const CROSSING_FDS: usize = 3;

/// Why a dataplane cannot begin so: more than one message carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    /// So many devices.
    Devices(usize),
    /// So many descriptors.
    Descriptors(usize),
    /// So many bytes.
    Bytes(usize),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Devices(count) => write!(f, "{count} devices, at most {DEVICES_MAX}"),
            StartError::Descriptors(count) => write!(
                f,
                "{count} descriptors of queues and memory, at most {MESSAGE_FDS_MAX}: use fewer \
                 devices, fewer elastic threads, or interfaces with fewer queues"
            ),
            StartError::Bytes(count) => write!(
                f,
                "the configuration has {count} bytes, at most {MESSAGE_BYTES_MAX}: use fewer \
                 filters, ARP entries or devices"
            ),
        }
    }
}

impl std::error::Error for StartError {}

/// Most queues that all devices of a dataplane have together, if there are so many devices.
pub const fn queues_max(devices: usize) -> usize {
    MESSAGE_FDS_MAX.saturating_sub(PAGE_FDS + MEMORY_FDS + devices)
}

impl Start {
    /// Number of descriptors that travel with it.
    pub fn fds(&self) -> usize {
        let shared = self.devices.iter().any(|info| info.shared_frames);
        let of_device = |info: &NicInfo| match info.kind {
            NicKind::Sim => 0,
            _ => info.descriptors(),
        };
        let apart = match self.place {
            Place::Within => 0,
            Place::Apart => CROSSING_FDS + self.config.cpus.len(),
        };
        let memory = if shared || apart > 0 { MEMORY_FDS } else { 0 };
        PAGE_FDS + memory + apart + self.devices.iter().map(of_device).sum::<usize>()
    }

    /// Refuses more than one message carries.
    pub fn check(&self) -> Result<(), StartError> {
        if self.devices.len() > DEVICES_MAX {
            return Err(StartError::Devices(self.devices.len()));
        }
        if self.fds() > MESSAGE_FDS_MAX {
            return Err(StartError::Descriptors(self.fds()));
        }
        // One byte says that the message is this one.
        match 1 + self.encoded_len() {
            bytes if bytes > MESSAGE_BYTES_MAX => Err(StartError::Bytes(bytes)),
            _ => Ok(()),
        }
    }
}

/// A part of the wall that can be left out, so that `ix attack` can show what it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WallPart {
    /// Protection keys on the dataplane's memory.
    Keys,
    /// What may be asked of Linux: the list, seals and the filter behind it.
    Calls,
    /// The look at code before it runs.
    Code,
    /// The process's files in `/proc` are root's.
    Files,
}

codec_enum!(WallPart { 0 = Keys, 1 = Calls, 2 = Code, 3 = Files });

impl WallPart {
    /// Every part.
    pub const ALL: [WallPart; 4] =
        [WallPart::Keys, WallPart::Calls, WallPart::Code, WallPart::Files];

    /// As in `--without`.
    pub fn name(self) -> &'static str {
        match self {
            WallPart::Keys => "keys",
            WallPart::Calls => "calls",
            WallPart::Code => "code",
            WallPart::Files => "files",
        }
    }
}

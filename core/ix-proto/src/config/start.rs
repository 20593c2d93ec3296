//! What a dataplane begins with.
use crate::codec::{codec_enum, codec_struct};
use crate::config::Config;
use crate::device::NicInfo;

/// Most devices of a dataplane.
pub const DEVICES_MAX: usize = 64;

/// What a dataplane begins with. Its descriptors travel with it: an empty memfd for the control
/// page; packet memory, if a device shares its frames with a peer; then the queues of each device,
/// one for each elastic thread, and the device's redirection table where [`NicInfo::table_fd`] says
/// so.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    /// What is fixed from then on.
    pub config: Config,
    /// Its devices, in the order in which messages number them.
    pub devices: Vec<NicInfo>,
    /// Parts of the wall that are not to stand.
    pub without: Vec<WallPart>,
}

codec_struct!(Start { config, devices, without } if check);

/// More devices than [`DEVICES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevicesError;

impl Start {
    /// Refuses more devices than there can be.
    pub fn check(&self) -> Result<(), DevicesError> {
        let fits = self.devices.len() <= DEVICES_MAX;
        if fits { Ok(()) } else { Err(DevicesError) }
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

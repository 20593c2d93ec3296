//! The few ethtool questions that matter here, by its old ioctl interface.
use crate::{Error, Namespace};
use std::os::fd::AsRawFd;

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;
/// Commands that switch one offload: receive and transmit checksums, TSO, GSO, GRO. Checksums go
/// first when switching on and last when switching off, for TSO needs them.
const OFFLOADS: [(u32, &str); 5] = [
    (0x15, "rx checksum"),
    (0x17, "tx checksum"),
    (0x1f, "tcp segmentation"),
    (0x24, "generic segmentation"),
    (0x2c, "generic receive"),
];

/// Queues of a device: those in use and the most it can have.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    cmd: u32,
    /// Most receive queues.
    pub max_rx: u32,
    /// Most transmit queues.
    pub max_tx: u32,
    max_other: u32,
    /// Most queue pairs.
    pub max_combined: u32,
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
    other: u32,
    /// Queue pairs.
    pub combined: u32,
}

#[repr(C)]
struct Value {
    cmd: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`: the driver's name stands first.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

impl Namespace {
    /// Switches all checksum and segmentation offloads of an interface on or off. What the device
    /// has not is passed over.
    pub fn set_offloads(&self, name: &str, on: bool) -> Result<(), Error> {
        let mut order = OFFLOADS;
        if !on {
            order.reverse();
        }
        for (cmd, what) in order {
            let mut value = Value { cmd, data: u32::from(on) };
            match self.ethtool(name, &mut value) {
                Err(e) if e.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                    return Err(Error::new(format!("cannot switch {what} of {name}"), e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether an interface hands on packets whose checksum is not finished.
    pub fn tx_checksum_offload(&self, name: &str) -> Result<bool, Error> {
        const ETHTOOL_GTXCSUM: u32 = 0x16;
        let mut value = Value { cmd: ETHTOOL_GTXCSUM, data: 0 };
        self.ethtool(name, &mut value)
            .map_err(|e| Error::new(format!("cannot ask {name} for its offloads"), e))?;
        Ok(value.data != 0)
    }

    /// How many queues an interface has.
    pub fn channels(&self, name: &str) -> Result<Channels, Error> {
        let mut channels = Channels { cmd: ETHTOOL_GCHANNELS, ..Channels::default() };
        self.ethtool(name, &mut channels)
            .map_err(|e| Error::new(format!("cannot ask {name} for its queues"), e))?;
        Ok(channels)
    }

    /// Sets the receive and transmit queues in use (of a device without combined ones, as veth).
    pub fn set_channels(&self, name: &str, rx: u32, tx: u32) -> Result<(), Error> {
        let mut channels = self.channels(name)?;
        (channels.cmd, channels.rx, channels.tx) = (ETHTOOL_SCHANNELS, rx, tx);
        self.ethtool(name, &mut channels)
            .map_err(|e| Error::new(format!("cannot set the queues of {name}"), e))
    }

    /// Name of an interface's driver.
    pub fn driver(&self, name: &str) -> Result<String, Error> {
        let mut info = DriverInfo { cmd: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        self.ethtool(name, &mut info)
            .map_err(|e| Error::new(format!("cannot ask {name} for its driver"), e))?;
        let name = info.driver.split(|&b| b == 0).next().unwrap_or(&[]);
        Ok(String::from_utf8_lossy(name).into_owned())
    }

    /// `T` is one of the structures above, which start with their command.
    fn ethtool<T>(&self, name: &str, argument: &mut T) -> std::io::Result<()> {
        // SAFETY: all zeroes is a valid ifreq.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let room = request.ifr_name.len() - 1;
        for (to, from) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = (&raw mut *argument).cast();
        let fd = self.socket().as_raw_fd();
        // SAFETY: the request and the structure it points to live across the call, and the
        // structure is the one that its command reads and writes.
        if unsafe { libc::ioctl(fd, SIOCETHTOOL as _, &raw mut request) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    }
}

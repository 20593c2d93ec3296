//! Opening a device, and all that its broker does for it afterwards.
use crate::error::OpenError;
use crate::hardware::HardwareFilters;
use crate::{DeviceSpec, afxdp, memif, tap};
use ix_mem::Sizes;
use ix_nic::{NicInfo, SetReta};
use ix_vnic::Filter;
use ix_wire::IpAddr;
use std::fmt;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

/// What a device must know of its user.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Addresses whose packets are ours, for devices that share the interface with Linux.
    pub addresses: Vec<IpAddr>,
    /// What of them is ours, for devices that leave the rest to Linux; none: all.
    pub filters: Option<Vec<Filter>>,
    /// Key of the dataplane's [`ix_wire::FlowHash`], for devices with a steering program.
    pub flow_hash_key: [u64; 2],
    /// The dataplane's packet memory, for devices that may share it with a peer: whoever opens a
    /// `memif` gives one. Whether it is needed says [`OpenedDevice::shares_memory`].
    pub memory: Option<SharedMemory>,
    /// The end of this process is told before the kernel has taken the XDP program off, for which a
    /// process of its own has it a moment longer. Not for processes that wait for any child.
    pub has_keeper: bool,
}

/// Packet memory that [`ix_mem::memory_fd`] made.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    /// Its descriptor.
    pub fd: Arc<OwnedFd>,
    /// The sizes it was made with.
    pub sizes: Sizes,
}

/// Something changed while the dataplane runs: goes to the dataplane's process, where
/// [`ix_nic::read_update`] reads it.
#[derive(Debug)]
pub struct DeviceUpdate {
    /// One line of text.
    pub line: String,
    /// Descriptors that the line counts on, in order.
    pub fds: Vec<OwnedFd>,
}

/// What came of [`OpenedDevice::service`].
#[derive(Debug)]
pub enum DeviceEvent {
    /// The dataplane must hear this.
    Update(DeviceUpdate),
    /// The user must hear this: one line, which begins with the device's name.
    Say(String),
}

/// An open device. Dropping it takes the XDP program off the interface.
pub struct OpenedDevice {
    /// What it is, as far as is known before a queue is attached.
    pub info: NicInfo,
    /// One descriptor a queue, for [`ix_nic::attach`]. Pass them on and drop them here: a queue
    /// lives as long as any copy of its descriptor.
    pub queue_fds: Vec<OwnedFd>,
    /// Where [`NicInfo::table_fd`] says so, the descriptor for [`ix_nic::attach_table`].
    pub table_fd: Option<OwnedFd>,
    /// The device's redirection table, if it has one that this process writes without being asked.
    pub reta: Option<Box<dyn SetReta>>,
    xdp: Option<afxdp::Attachment>,
    /// The redirection table that the dataplane asks to be written.
    rss: Option<afxdp::RssTable>,
    /// The card's own filters.
    hardware: Option<HardwareFilters>,
    memif: Option<memif::Control>,
    /// What `open` was called with, to do it again.
    again: Option<(DeviceSpec, OpenOptions)>,
    /// Says to other users of this crate that the interface is in use.
    _claim: Option<UnixDatagram>,
}

impl OpenedDevice {
    pub(crate) fn new(
        info: NicInfo,
        queue_fds: Vec<OwnedFd>,
        reta: Option<Box<dyn SetReta>>,
    ) -> OpenedDevice {
        let (table_fd, xdp, rss, hardware, memif, again) = Default::default();
        let _claim = None;
        OpenedDevice { info, queue_fds, table_fd, reta, xdp, rss, hardware, memif, again, _claim }
    }

    /// The descriptors that the dataplane gets: one a queue, then the table's.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        let mut fds = std::mem::take(&mut self.queue_fds);
        fds.extend(self.table_fd.take());
        fds
    }

    pub(crate) fn with_table_fd(self, table_fd: Option<OwnedFd>) -> OpenedDevice {
        OpenedDevice { table_fd, ..self }
    }

    pub(crate) fn with_claim(self, claim: UnixDatagram) -> OpenedDevice {
        OpenedDevice { _claim: Some(claim), ..self }
    }

    pub(crate) fn with_xdp(self, xdp: afxdp::Attachment) -> OpenedDevice {
        OpenedDevice { xdp: Some(xdp), ..self }
    }

    pub(crate) fn with_rss(self, rss: Option<afxdp::RssTable>) -> OpenedDevice {
        OpenedDevice { rss, ..self }
    }

    pub(crate) fn with_hardware(self, hardware: Option<HardwareFilters>) -> OpenedDevice {
        OpenedDevice { hardware, ..self }
    }

    pub(crate) fn with_memif(self, control: memif::Control) -> OpenedDevice {
        OpenedDevice { memif: Some(control), ..self }
    }

    /// Lets packets into a queue that was attached. Until then Linux has them.
    pub fn finish(&mut self, queue: usize) -> Result<(), OpenError> {
        match &mut self.xdp {
            Some(xdp) => xdp.finish(queue, &self.info.name),
            None => Ok(()),
        }
    }

    /// Other receive filters, from the next packet on; none: everything for our addresses is ours.
    /// For devices that have nobody to leave the rest to it does nothing: there the dataplane drops
    /// it. A network card gets them as well, as far as it can; answers a line for the user where it
    /// refuses one.
    pub fn set_filters(
        &mut self,
        filters: Option<Vec<Filter>>,
    ) -> Result<Option<String>, OpenError> {
        let Some((_, options)) = &mut self.again else { return Ok(None) };
        let changes = options.filters != filters;
        // An interface that is away gets them when it is opened anew.
        let before = std::mem::replace(&mut options.filters, filters);
        if let Some(xdp) = self.xdp.as_mut().filter(|_| changes) {
            let set =
                xdp.set_filters(&options.addresses, options.filters.as_deref(), &self.info.name);
            if let Err(refused) = set {
                // The next change is one from what is in force.
                options.filters = before;
                return Err(refused);
            }
        }
        Ok(self.set_hardware())
    }

    /// After the program, which judges alone meanwhile.
    fn set_hardware(&mut self) -> Option<String> {
        let (_, options) = self.again.as_ref()?;
        self.hardware.as_mut()?.set(options.filters.as_deref().unwrap_or_default())
    }

    /// The receive filters that the network card asks as well.
    pub fn filters_in_hardware(&self) -> Vec<Filter> {
        self.hardware.iter().flat_map(|hardware| hardware.filters().cloned()).collect()
    }

    /// Takes the XDP program off: all packets are Linux's.
    pub fn close(&mut self) {
        (self.xdp, self.hardware) = (None, None);
    }

    /// Whether the dataplane must use [`OpenOptions::memory`] ([`ix_mem::PacketMemory::map`]) as
    /// its packet memory, because a peer will have it too.
    pub fn shares_memory(&self) -> bool {
        self.memif.as_ref().is_some_and(memif::Control::shares_memory)
    }

    /// Descriptors that the broker polls for reading on this device's behalf; they change with
    /// each [`OpenedDevice::service`].
    pub fn watch_fds(&self) -> Vec<RawFd> {
        let memif = self.memif.as_ref().map(memif::Control::watch_fds).unwrap_or_default();
        memif.into_iter().chain(self.rss.as_ref().map(afxdp::RssTable::fd)).collect()
    }

    /// In how many ms to call [`OpenedDevice::service`] though nothing is readable.
    pub fn service_in_ms(&self) -> Option<u64> {
        self.memif.as_ref().and_then(memif::Control::service_in_ms)
    }

    /// Serves the device's control channel; never blocks. Answers what the dataplane and the user
    /// must hear, in order. To be called once when the dataplane stands, and then whenever one of
    /// [`OpenedDevice::watch_fds`] is readable or [`OpenedDevice::service_in_ms`] are over.
    pub fn service(&mut self) -> Vec<DeviceEvent> {
        let events = self.memif.as_mut().map(memif::Control::service).unwrap_or_default();
        let refused = self.rss.as_mut().and_then(afxdp::RssTable::service);
        events.into_iter().chain(refused.map(DeviceEvent::Say)).collect()
    }

    /// Opens an interface anew that was removed and made again, or moved: the update has the new
    /// sockets. `None` for devices that mend themselves. After the dataplane has taken the update,
    /// call [`OpenedDevice::finish`] for each queue.
    pub fn reopen(&mut self) -> Result<Option<DeviceUpdate>, OpenError> {
        let Some((spec, options)) = self.again.take() else { return Ok(None) };
        // The old program goes first: it may hang on an interface that has only been moved.
        (self.xdp, self.hardware) = (None, None);
        let opened = open(&spec, &options);
        self.again = Some((spec, options));
        let mut opened = opened?;
        let fds = std::mem::take(&mut opened.queue_fds);
        let line = format!("reopened {}", opened.info.to_line());
        // The dataplane goes on asking through the socket that it has.
        let mut rss = self.rss.take();
        if let (Some(rss), Some(back)) = (&mut rss, opened.rss.take()) {
            // Refused: its packets come in where they come in, and are handed over.
            let _ = rss.again(back);
        }
        (opened.rss, opened.table_fd) = (rss, None);
        *self = opened;
        // Refused: that was told of the old one, or is not worth a second word.
        self.set_hardware();
        Ok(Some(DeviceUpdate { line, fds }))
    }
}

impl fmt::Debug for OpenedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Opens a device: everything that needs privilege.
///
/// - tap: `/dev/net/tun` and CAP_NET_ADMIN in the network namespace, for which that of a user
///   namespace will do; CAP_BPF for the steering program, without which flows are steered in
///   software.
/// - afxdp: CAP_NET_RAW for the sockets, CAP_NET_ADMIN and CAP_BPF for the XDP program.
///   [`OpenedDevice::finish`] puts a socket into the program's map, for which the map's descriptor
///   is enough; but a socket must be bound before, and the owner of the memory does that.
/// - memif: may write to the directory of the control socket (server), or to the socket (client).
///
/// [`ix_nic::attach`] needs none of these. It registers all packet memory with each socket, and that is
/// charged to RLIMIT_MEMLOCK of the attaching process unless it has CAP_IPC_LOCK: raise the limit
/// with [`ix_sys::limits::raise_memlock`] in the broker before it starts the process.
pub fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<OpenedDevice, OpenError> {
    match spec {
        DeviceSpec::Tap { name, queues, offloads, mac } => {
            tap::open(name, *queues, *offloads, *mac, options)
        }
        DeviceSpec::Afxdp { ifname, queues, mode } => {
            let opened = afxdp::open(ifname, *queues, *mode, options)?;
            Ok(OpenedDevice { again: Some((spec.clone(), options.clone())), ..opened })
        }
        DeviceSpec::Memif(spec) => memif::open(spec, options),
    }
}

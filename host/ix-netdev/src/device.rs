//! Opens a device, and serves it for its broker afterwards.
use crate::error::OpenError;
use crate::hardware::HardwareFilters;
use crate::held_ports::HeldPorts;
use crate::tap::Claim;
use crate::{DeviceSpec, afxdp, memif, tap};
use ix_mem::{MemoryFds, Sizes};
use ix_nic::{DeviceChange, NicInfo, NicKind, SetReta};
use ix_sys::Interface;
use ix_vnic::Filter;
use ix_wire::IpAddr;
use ix_wire::vlan::{self, TAG_BYTES};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at the number of an interface's queues.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What a device must know of its user.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Addresses whose packets belong to IX, for devices that share the interface with Linux.
    pub addresses: Vec<IpAddr>,
    /// Groups that its sockets listen to, of which UDP is IX's.
    pub groups: Vec<IpAddr>,
    /// Broadcasts of its networks, of which UDP is IX's.
    pub broadcasts: Vec<IpAddr>,
    /// Filters that say which of these packets belong to IX, for devices that leave the rest to
    /// Linux; none: all.
    pub filters: Option<Vec<Filter>>,
    /// Key of the dataplane's [`ix_wire::FlowHash`], for devices with a steering program.
    pub flow_hash_key: [u64; 2],
    /// The dataplane's packet memory, for devices that may share it with a peer: a caller that
    /// opens a `memif` gives one. [`OpenedDevice::shares_memory`] says whether the device needs it.
    pub memory: Option<SharedMemory>,
    /// The addresses are Linux's, and only what belongs to these ports is IX's. Without filters.
    pub shared: Option<Arc<HeldPorts>>,
    /// Tells others of this process's end before the kernel has removed the XDP program: another
    /// process keeps the program a moment longer. Not for processes that wait for any child.
    pub has_keeper: bool,
}

/// Packet memory that [`MemoryFds::new`] made.
#[derive(Clone, Debug)]
pub struct SharedMemory {
    /// Its descriptors.
    pub fds: Arc<MemoryFds>,
    /// The sizes it was made with.
    pub sizes: Sizes,
}

/// A change while the dataplane runs. The caller sends it to the dataplane's process, where
/// [`ix_nic::read_update`] reads it.
#[derive(Debug)]
pub struct DeviceUpdate {
    /// The change, encoded.
    pub change: DeviceChange,
    /// Descriptors that belong to it, in order.
    pub fds: Vec<OwnedFd>,
}

/// A result of [`OpenedDevice::service`].
#[derive(Debug)]
pub enum DeviceEvent {
    /// An update that the caller must send to the dataplane.
    Update(DeviceUpdate),
    /// One line that the caller must show to the user: the device's state. It begins with the
    /// device's name.
    Say(String),
    /// One line that the caller must show to the user. The device's state stays.
    Tell(String),
    /// The interface has another Ethernet address, which the update before has.
    OtherMac,
}

/// An open device. Dropping it removes the XDP program from the interface.
pub struct OpenedDevice {
    /// The device's properties, as far as they are known before a queue is attached.
    pub info: NicInfo,
    /// The descriptors of its queue pairs, for [`ix_nic::deal`] and [`ix_nic::attach`]. Pass them
    /// on and drop them here: a queue lives as long as any copy of its descriptor.
    pub queue_fds: Vec<OwnedFd>,
    /// Where [`NicInfo::table_fd`] says so, the descriptor for [`ix_nic::attach_table`].
    pub table_fd: Option<OwnedFd>,
    /// The device's redirection table, if it has one that this process writes on its own.
    pub reta: Option<Box<dyn SetReta>>,
    xdp: Option<afxdp::Attachment>,
    /// The redirection table that this process writes for the dataplane.
    rss: Option<afxdp::RssTable>,
    /// The card's own filters.
    hardware: Option<HardwareFilters>,
    memif: Option<memif::Control>,
    /// When the queues of the interface are to be counted next.
    count_at: Instant,
    /// What the caller of `open` gave, to open the device again.
    again: Option<(DeviceSpec, OpenOptions)>,
    /// Tells other users of this crate that the interface is in use.
    _claim: Option<Claim>,
}

impl OpenedDevice {
    pub(crate) fn new(
        info: NicInfo,
        queue_fds: Vec<OwnedFd>,
        reta: Option<Box<dyn SetReta>>,
    ) -> OpenedDevice {
        let (table_fd, xdp, rss, hardware, memif, again) = Default::default();
        let (_claim, count_at) = (None, Instant::now() + COUNT_EVERY);
        OpenedDevice {
            info,
            queue_fds,
            table_fd,
            reta,
            xdp,
            rss,
            hardware,
            memif,
            count_at,
            again,
            _claim,
        }
    }

    /// The descriptors that the dataplane receives: those of the queue pairs, then the table's.
    pub fn take_fds(&mut self) -> Vec<OwnedFd> {
        let mut fds = std::mem::take(&mut self.queue_fds);
        fds.extend(self.table_fd.take());
        fds
    }

    /// Sends a frame before a dataplane has the queues. By memif nothing is sent: no peer is there.
    ///
    /// # Errors
    /// Of the system: the link is down, or the queues were taken.
    pub fn send_early(&self, frame: &[u8]) -> io::Result<()> {
        let tagged = self.info.vlan.map(|vlan| {
            let mut tagged = [&[0; TAG_BYTES][..], frame].concat();
            vlan::insert(&mut tagged, vlan.tag());
            tagged
        });
        let frame = tagged.as_deref().unwrap_or(frame);
        match self.info.kind {
            NicKind::Tap => match self.queue_fds.first() {
                Some(queue) => tap::send(queue, frame),
                None => Err(io::ErrorKind::NotConnected.into()),
            },
            NicKind::Afxdp(_) => {
                let index = Interface::new(&self.info.name)?.index()?;
                let socket = ix_sys::socket::open_packets(index)?;
                File::from(socket).write_all(frame)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn with_table_fd(self, table_fd: Option<OwnedFd>) -> OpenedDevice {
        OpenedDevice { table_fd, ..self }
    }

    pub(crate) fn with_claim(self, claim: Claim) -> OpenedDevice {
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

    /// Lets packets into a queue pair that was attached. Until then Linux receives them.
    pub fn finish(&mut self, queue: usize) -> Result<(), OpenError> {
        match &mut self.xdp {
            Some(xdp) => xdp.finish(queue, &self.info.name),
            None => Ok(()),
        }
    }

    /// Sets other receive filters, from the next packet on. None: all packets for our addresses
    /// belong to IX. For devices that do not share with Linux it does nothing: there the dataplane
    /// drops packets. A network card gets the filters as well, as far as it can hold them. Returns
    /// a line for the user where the card refuses one.
    pub fn set_filters(
        &mut self,
        filters: Option<Vec<Filter>>,
    ) -> Result<Option<String>, OpenError> {
        let Some((_, options)) = &mut self.again else { return Ok(None) };
        let changes = options.filters != filters;
        // An interface that is away gets them when it is opened again.
        let before = std::mem::replace(&mut options.filters, filters);
        if let Some(xdp) = self.xdp.as_mut().filter(|_| changes) {
            let set =
                xdp.set_filters(&options.addresses, options.filters.as_deref(), &self.info.name);
            if let Err(refused) = set {
                // The next change starts from what is in force.
                options.filters = before;
                return Err(refused);
            }
        }
        Ok(self.set_hardware())
    }

    /// The addresses that are shared with Linux are others, from the next packet on.
    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) -> Result<(), OpenError> {
        let Some((_, options)) = &mut self.again else { return Ok(()) };
        options.addresses = addresses;
        match &mut self.xdp {
            Some(xdp) => xdp.set_filters(&options.addresses, None, &self.info.name),
            None => Ok(()),
        }
    }

    /// The sockets listen to these groups, from the next packet on. Devices that do not share with
    /// Linux take all groups. Returns those that stay Linux's alone, because its programs listen to
    /// them; to be called again when that may have changed.
    pub fn set_groups(&mut self, groups: Vec<IpAddr>) -> Result<Vec<IpAddr>, OpenError> {
        let Some((_, options)) = &mut self.again else { return Ok(Vec::new()) };
        options.groups = groups;
        let filters = if options.shared.is_some() { None } else { options.filters.as_deref() };
        match &mut self.xdp {
            Some(xdp) => {
                let to = [&options.groups[..], &options.broadcasts].concat();
                xdp.set_groups(&to, &options.addresses, filters, &self.info.name)
            }
            None => Ok(Vec::new()),
        }
    }

    /// Set after the program, which decides alone meanwhile.
    fn set_hardware(&mut self) -> Option<String> {
        let (_, options) = self.again.as_ref()?;
        self.hardware.as_mut()?.set(options.filters.as_deref().unwrap_or_default())
    }

    /// The receive filters that the network card applies as well.
    pub fn filters_in_hardware(&self) -> Vec<Filter> {
        self.hardware.iter().flat_map(|hardware| hardware.filters().cloned()).collect()
    }

    /// Removes the XDP program: Linux receives all packets.
    pub fn close(&mut self) {
        (self.xdp, self.hardware) = (None, None);
    }

    /// Whether the dataplane must use [`OpenOptions::memory`] ([`ix_mem::PacketMemory::map`]) as
    /// its packet memory, because the peer maps it too.
    pub fn shares_memory(&self) -> bool {
        self.memif.as_ref().is_some_and(memif::Control::shares_memory)
    }

    /// Descriptors that the broker must poll for reading for this device. They may change with each
    /// [`OpenedDevice::service`].
    pub fn watch_fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let memif = self.memif.iter().flat_map(memif::Control::watch_fds);
        memif.chain(self.rss.as_ref().map(afxdp::RssTable::fd))
    }

    /// Time after which to call [`OpenedDevice::service`] though no descriptor is readable, ms.
    pub fn service_in_ms(&self) -> Option<u64> {
        let memif = self.memif.as_ref().and_then(memif::Control::service_in_ms);
        let count = self.xdp.as_ref().map(|_| {
            let left = self.count_at.saturating_duration_since(Instant::now());
            left.as_millis() as u64 + 1
        });
        memif.into_iter().chain(count).min()
    }

    /// Serves the device's control channel; never blocks. Returns what the caller must tell the
    /// dataplane and the user, in order. The caller calls it once when the dataplane runs, and then
    /// when one of [`OpenedDevice::watch_fds`] is readable or [`OpenedDevice::service_in_ms`] have
    /// passed.
    pub fn service(&mut self) -> Vec<DeviceEvent> {
        let events = self.memif.as_mut().map(memif::Control::service).unwrap_or_default();
        let refused = self.rss.as_mut().and_then(afxdp::RssTable::service);
        let grown = self.look_again();
        events.into_iter().chain(refused.map(DeviceEvent::Say)).chain(grown).collect()
    }

    /// Has the next [`OpenedDevice::service`] look at what the interface is now: Linux says that it
    /// has changed.
    pub fn look_soon(&mut self) {
        self.count_at = Instant::now();
    }

    /// The interface that runs share, where another one has its queues and this one a link to it.
    pub fn uplink(&self) -> Option<&str> {
        let (DeviceSpec::Afxdp { ifname, .. }, options) = self.again.as_ref()? else { return None };
        options.shared.as_ref()?.kept()?.link().map(|_| ifname.as_str())
    }

    /// Looks now and then whether the interface has more queues than before, or another MTU or
    /// Ethernet address. Of queues no message of Linux tells, and packets on one without a socket
    /// are not ours. There cannot be fewer, because Linux keeps queues that have sockets.
    fn look_again(&mut self) -> Vec<DeviceEvent> {
        let now = Instant::now();
        if now < self.count_at {
            return Vec::new();
        }
        let uplink = self.uplink().map(str::to_owned);
        let (Some(xdp), NicKind::Afxdp(bind), Some((spec, options))) =
            (&mut self.xdp, &mut self.info.kind, &self.again)
        else {
            return Vec::new();
        };
        self.count_at = now + COUNT_EVERY;
        let name = &self.info.name;
        // Another interface may have the name meanwhile.
        let Ok(interface) = Interface::new(name) else { return Vec::new() };
        if interface.index().ok() != Some(bind.ifindex) {
            return Vec::new();
        }
        let queues = interface.queues().rx;
        let mut fds = Vec::new();
        let mut news = Vec::new();
        if queues > bind.sockets as usize {
            fds = match xdp.grow(queues, name) {
                Ok(fds) => fds,
                Err(e) => return vec![DeviceEvent::Say(format!("afxdp:{name}: {e}"))],
            };
        }
        if !fds.is_empty() {
            // veth gives its new queues the program only when another one is set.
            if let Err(e) = xdp.set_filters(&options.addresses, options.filters.as_deref(), name) {
                return vec![DeviceEvent::Say(format!("afxdp:{name}: {e}"))];
            }
            bind.sockets += fds.len() as u32;
            news.push(format!("{} queues", bind.sockets));
        }
        let most = match spec {
            DeviceSpec::Afxdp { mtu: Some(mtu), .. } => *mtu,
            _ => usize::MAX,
        };
        if let Ok(mtu) = interface.mtu().map(|mtu| mtu.min(most))
            && mtu != self.info.mtu
        {
            self.info.mtu = mtu;
            news.push(format!("MTU {mtu}"));
        }
        let mut events = Vec::new();
        if !news.is_empty() {
            let line = format!("afxdp:{name}: up, with {} now", news.join(", "));
            events.push(DeviceEvent::Tell(line));
        }
        if let Ok(mac) = interface.mac()
            && mac != self.info.mac
        {
            self.info.mac = mac;
            let bytes = mac.map(|byte| format!("{byte:02x}")).join(":");
            let called = uplink.as_ref().unwrap_or(name);
            let line = format!("{called} has Ethernet address {bytes} now");
            events.extend([DeviceEvent::Tell(line), DeviceEvent::OtherMac]);
        }
        if !events.is_empty() {
            let change = DeviceChange::Grown(self.info.clone());
            events.insert(0, DeviceEvent::Update(DeviceUpdate { change, fds }));
        }
        events
    }

    /// Opens again an interface that was removed and made again, or moved. The update has the new
    /// sockets. `None` for devices that recover by themselves. After the dataplane has taken the
    /// update, the caller must call [`OpenedDevice::finish`] for each queue.
    pub fn reopen(&mut self) -> Result<Option<DeviceUpdate>, OpenError> {
        let Some((spec, options)) = self.again.take() else { return Ok(None) };
        // The old program is removed first: it may still be on an interface that has only been
        // moved.
        (self.xdp, self.hardware) = (None, None);
        let opened = open(&spec, &options);
        self.again = Some((spec, options));
        let mut opened = opened?;
        let fds = std::mem::take(&mut opened.queue_fds);
        let change = DeviceChange::Reopened(opened.info.clone());
        // The dataplane keeps its socket, and asks through it.
        let mut rss = self.rss.take();
        if let (Some(rss), Some(back)) = (&mut rss, opened.rss.take()) {
            // On refusal packets still arrive on the queues of the interface's own table, and
            // threads forward them.
            let _ = rss.again(back);
        }
        (opened.rss, opened.table_fd) = (rss, None);
        *self = opened;
        // A refusal was reported for the old interface, or is not worth a second line.
        self.set_hardware();
        Ok(Some(DeviceUpdate { change, fds }))
    }
}

impl fmt::Debug for OpenedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedDevice").field("info", &self.info).finish_non_exhaustive()
    }
}

/// Opens a device. This is everything that needs privilege.
///
/// - tap: `/dev/net/tun` and CAP_NET_ADMIN in the network namespace, for which that of a user
///   namespace will do; CAP_BPF for the steering program, without which flows are steered in
///   software.
/// - afxdp: CAP_NET_RAW for the sockets, CAP_NET_ADMIN and CAP_BPF for the XDP program.
///   [`OpenedDevice::finish`] puts a socket into the program's map, for which the map's descriptor
///   is enough; but a socket must be bound before, and the owner of the memory does that.
/// - memif: may write to the directory of the control socket (server), or to the socket (client).
///
/// [`ix_nic::attach`] needs none of these. It registers all packet memory for each queue pair, and
/// that is charged to RLIMIT_MEMLOCK of the attaching process unless it has CAP_IPC_LOCK: raise the
/// limit with [`ix_sys::limits::raise_memlock`] in the broker before it starts the process.
pub fn open(spec: &DeviceSpec, options: &OpenOptions) -> Result<OpenedDevice, OpenError> {
    match spec {
        DeviceSpec::Tap { name, queues, mtu, vlan, offloads, mac } => {
            let mut opened = tap::open(name, (*queues, *mtu), *offloads, *mac, options)?;
            opened.info.vlan = *vlan;
            Ok(opened)
        }
        DeviceSpec::Afxdp { ifname, queues, mtu, vlan, mode } => {
            let opened = afxdp::open(ifname, (*queues, *mtu, *vlan), *mode, options)?;
            Ok(OpenedDevice { again: Some((spec.clone(), options.clone())), ..opened })
        }
        DeviceSpec::Memif(spec) => memif::open(spec, options),
    }
}

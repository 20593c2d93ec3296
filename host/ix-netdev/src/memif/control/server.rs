//! The server's side of the handshake: each message of a possibly hostile client is checked here
//! before any of it reaches the dataplane.
use super::super::message::{AddRegion, AddRing, Hello, Init, MODE_ETHERNET, Message, VERSION};
use super::super::spec::{MemifSpec, SECRET_BYTES};
use super::refusal::Refusal;
use super::{Established, Step, our_name, queues_of_ix};
use ix_nic::MemifRole;
use ix_nic::memif::PAGE_BYTES;
use ix_nic::memif::{COOKIE, LOG2_SIZE_MAX};
use ix_nic::memif::{Plan, REGION_BYTES_MAX, REGIONS_MAX, RingPlace};
use ix_sys::{Mapping, fd};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A handshake in progress.
pub struct ServerSession {
    spec: MemifSpec,
    /// INIT was received.
    introduced: bool,
    peer: String,
    /// The queues of a peer that is IX.
    ix_queues: Option<usize>,
    regions: Vec<(OwnedFd, u64)>,
    to_server: Vec<(RingPlace, OwnedFd)>,
    to_client: Vec<(RingPlace, OwnedFd)>,
}

impl ServerSession {
    /// Waits for INIT.
    pub fn new(spec: &MemifSpec) -> ServerSession {
        ServerSession {
            spec: spec.clone(),
            introduced: false,
            peer: String::new(),
            ix_queues: None,
            regions: Vec::new(),
            to_server: Vec::new(),
            to_client: Vec::new(),
        }
    }

    /// The greeting.
    pub fn hello(spec: &MemifSpec) -> Message {
        let last_ring = (spec.queues - 1) as u16;
        Message::Hello(Hello {
            name: our_name(spec.queues),
            min_version: VERSION,
            max_version: VERSION,
            max_region: REGIONS_MAX as u16 - 1,
            max_m2s_ring: last_ring,
            max_s2m_ring: last_ring,
            max_log2_ring_size: LOG2_SIZE_MAX,
        })
    }

    /// Whether the client has sent INIT.
    pub fn introduced(&self) -> bool {
        self.introduced
    }

    /// Handles a message.
    pub fn on_message(&mut self, message: Message, mut fds: Vec<OwnedFd>) -> Result<Step, Refusal> {
        let (name, count) = (message.name(), fds.len());
        let wants_fd = matches!(message, Message::AddRegion(_) | Message::AddRing(_));
        if count != usize::from(wants_fd) {
            return Err(Refusal::Descriptors { message: name, count });
        }
        match (message, fds.pop()) {
            (Message::Init(init), _) if !self.introduced => self.on_init(&init)?,
            (Message::AddRegion(region), Some(fd)) if self.introduced => {
                self.on_region(region, fd)?;
            }
            (Message::AddRing(ring), Some(fd)) if self.introduced => self.on_ring(ring, fd)?,
            (Message::Connect(_), _) if self.introduced => {
                return Ok(Step::Established(Box::new(self.establish()?)));
            }
            (Message::Disconnect(reason), _) => return Err(Refusal::Peer(reason)),
            _ => return Err(Refusal::Unexpected(name)),
        }
        Ok(Step::Reply(Message::Ack, None))
    }

    fn on_init(&mut self, init: &Init) -> Result<(), Refusal> {
        if init.version != VERSION {
            return Err(Refusal::Version { min: init.version, max: init.version });
        }
        if init.id != self.spec.id {
            return Err(Refusal::Interface { asked: init.id, ours: self.spec.id });
        }
        if init.mode != MODE_ETHERNET {
            return Err(Refusal::Mode(init.mode));
        }
        if init.secret != padded(&self.spec.secret) {
            return Err(Refusal::Secret);
        }
        self.ix_queues = queues_of_ix(&init.name)?;
        self.peer.clone_from(&init.name);
        self.introduced = true;
        Ok(())
    }

    fn on_region(&mut self, region: AddRegion, memory: OwnedFd) -> Result<(), Refusal> {
        let AddRegion { index, bytes } = region;
        if usize::from(index) != self.regions.len() || self.regions.len() == REGIONS_MAX {
            return Err(Refusal::RegionOrder(index));
        }
        if bytes == 0 || bytes > REGION_BYTES_MAX || bytes > fd::file_bytes(memory.as_fd())? {
            return Err(Refusal::RegionSize { region: index, bytes });
        }
        // An access beyond the end of a file that was shrunk is a SIGBUS.
        if !fd::cannot_shrink(memory.as_fd()) {
            return Err(Refusal::RegionShrinks(index));
        }
        self.regions.push((memory, bytes));
        Ok(())
    }

    fn on_ring(&mut self, ring: AddRing, fd: OwnedFd) -> Result<(), Refusal> {
        let AddRing { to_server, index, region, offset, log2_size } = ring;
        let expected = self.spec.queues * self.ix_queues.unwrap_or(1);
        let rings = if to_server { &mut self.to_server } else { &mut self.to_client };
        if usize::from(index) != rings.len() || rings.len() == expected {
            return Err(Refusal::RingOrder(index));
        }
        let Some((memory, bytes)) = self.regions.get(usize::from(region)) else {
            return Err(Refusal::RegionMissing(region));
        };
        let place = RingPlace { region, offset, log2_size };
        // `fits` looks up the region by its number.
        if !(RingPlace { region: 0, ..place }).fits(&[*bytes]) {
            return Err(Refusal::RingPlace(index));
        }
        if first_word(memory.as_fd(), offset)? != COOKIE {
            return Err(Refusal::RingCookie(index));
        }
        make_nonblocking_eventfd(fd.as_fd())?;
        rings.push((place, fd));
        Ok(())
    }

    /// Checks that everything is there; fails with the first thing that is missing.
    fn establish(&mut self) -> Result<Established, Refusal> {
        let ours = self.spec.queues;
        let peer_queues = self.ix_queues.unwrap_or(self.to_server.len().min(self.to_client.len()));
        let mesh = self.ix_queues.is_some() && peer_queues * ours > 1;
        let expected = if mesh { ours * peer_queues } else { ours };
        if self.to_server.len() != expected || self.to_client.len() != expected {
            return Err(Refusal::RingCount { peer: peer_queues, ours });
        }
        let (regions, sizes): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.regions).into_iter().unzip();
        let steering = if mesh { Some(sizes.len() as u16 - 1) } else { None };
        let page = match steering {
            Some(last) if sizes[usize::from(last)] < PAGE_BYTES as u64 => {
                return Err(Refusal::Steering);
            }
            Some(last) => Some(Mapping::of_fd(regions[usize::from(last)].as_fd(), PAGE_BYTES, 0)?),
            None => None,
        };
        // Of the rings of one receiving queue, the first one's eventfd stands for all.
        let senders = |of: usize| if mesh { of } else { 1 };
        let (rx, rx_bells): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.to_server).into_iter().unzip();
        let (tx, tx_bells): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.to_client).into_iter().unzip();
        let mut fds = regions;
        fds.extend(rx_bells.into_iter().step_by(senders(peer_queues)));
        fds.extend(tx_bells.into_iter().step_by(senders(ours)));
        let peer = std::mem::take(&mut self.peer);
        let plan = Plan {
            role: MemifRole::Server,
            peer,
            queues: ours,
            peer_queues,
            steering,
            regions: sizes,
            rx,
            tx,
        };
        plan.check().map_err(|e| Refusal::Unexpected(e.name()))?;
        let reply = Some(Message::Connected("ix".to_owned()));
        Ok(Established { plan, fds, page, reply })
    }
}

/// A secret as it is in INIT.
pub fn padded(secret: &str) -> [u8; SECRET_BYTES] {
    let mut bytes = [0; SECRET_BYTES];
    bytes.iter_mut().zip(secret.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

/// The word at an offset of a region, read without mapping it.
fn first_word(region: BorrowedFd<'_>, offset: u32) -> io::Result<u32> {
    let mut bytes = [0u8; 4];
    let n = fd::read_at(region, &mut bytes, u64::from(offset))?;
    if n == bytes.len() { Ok(u32::from_ne_bytes(bytes)) } else { Ok(0) }
}

/// Refuses descriptors that are not eventfds: reads and writes of others could block the dataplane.
fn make_nonblocking_eventfd(event: BorrowedFd<'_>) -> Result<(), Refusal> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()))?;
    if link.as_os_str() != "anon_inode:[eventfd]" {
        return Err(Refusal::NoEventfd);
    }
    fd::set_nonblocking(event)?;
    Ok(())
}

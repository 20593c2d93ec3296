//! The client's side of the handshake: the client provides all the memory.
use super::super::message::{AddRegion, AddRing, Hello, Init, MODE_ETHERNET, Message, VERSION};
use super::super::spec::MemifSpec;
use super::refusal::Refusal;
use super::server::padded;
use super::{Established, Step, our_name, queues_of_ix};
use crate::device::SharedMemory;
use ix_nic::MemifRole;
use ix_nic::memif::PAGE_BYTES;
use ix_nic::memif::{HEADERS_REGION, RECEIVE_REGION, initialize_ring, ring_bytes};
use ix_nic::memif::{Plan, RingPlace};
use ix_sys::{Mapping, event, fd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

/// Binary logarithm of the size of our rings.
const LOG2_RING_SIZE: u8 = 10;
/// Region numbers: the rings and the steering page. The dataplane's frames are between
/// them.
const RINGS: u16 = 0;
const STEERING: u16 = 3;

/// A handshake in progress.
pub struct ClientSession {
    spec: MemifSpec,
    memory: SharedMemory,
    /// The eventfd of each of our queues, to pass on.
    bells: Vec<OwnedFd>,
    /// Messages to send, one per ACK; `None` before HELLO.
    offers: Option<VecDeque<(Message, Option<OwnedFd>)>>,
    agreed: Option<Established>,
    page_taken: bool,
}

impl ClientSession {
    /// Waits for HELLO. `bells` are copies of our queues' eventfds.
    pub fn new(spec: &MemifSpec, memory: SharedMemory, bells: Vec<OwnedFd>) -> ClientSession {
        ClientSession {
            spec: spec.clone(),
            memory,
            bells,
            offers: None,
            agreed: None,
            page_taken: false,
        }
    }

    /// Handles a message.
    pub fn on_message(&mut self, message: Message, fds: Vec<OwnedFd>) -> Result<Step, Refusal> {
        let name = message.name();
        if !fds.is_empty() {
            return Err(Refusal::Descriptors { message: name, count: fds.len() });
        }
        match (message, &mut self.offers) {
            (Message::Hello(hello), None) => {
                self.offers = Some(self.on_hello(&hello)?);
                self.next_offer()
            }
            (Message::Ack, Some(offers)) if !offers.is_empty() => self.next_offer(),
            (Message::Connected(_), Some(offers)) if offers.is_empty() => {
                let agreed = self.agreed.take().ok_or(Refusal::Unexpected(name))?;
                Ok(Step::Established(Box::new(agreed)))
            }
            (Message::Disconnect(reason), _) => Err(Refusal::Peer(reason)),
            _ => Err(Refusal::Unexpected(name)),
        }
    }

    /// The steering page and the number of the peer's queues, once, after HELLO: our table must be
    /// in the page before the peer has it.
    pub fn take_page(&mut self) -> Option<(Option<Mapping>, usize)> {
        self.agreed
            .as_mut()
            .filter(|_| !std::mem::replace(&mut self.page_taken, true))
            .map(|agreed| (agreed.page.take(), agreed.plan.peer_queues))
    }

    fn next_offer(&mut self) -> Result<Step, Refusal> {
        let next = self.offers.as_mut().and_then(VecDeque::pop_front);
        let (message, fd) = next.ok_or(Refusal::Unexpected("ACK"))?;
        Ok(Step::Reply(message, fd))
    }

    fn on_hello(&mut self, hello: &Hello) -> Result<VecDeque<(Message, Option<OwnedFd>)>, Refusal> {
        if !(hello.min_version..=hello.max_version).contains(&VERSION) {
            return Err(Refusal::Version { min: hello.min_version, max: hello.max_version });
        }
        let ix_queues = queues_of_ix(&hello.name)?;
        let ours = self.spec.queues;
        let most = 1 + usize::from(hello.max_s2m_ring.min(hello.max_m2s_ring));
        if ix_queues.is_none() && most < ours {
            return Err(Refusal::RingCount { peer: most, ours });
        }
        let log2_size = LOG2_RING_SIZE.min(hello.max_log2_ring_size);
        if log2_size == 0 {
            return Err(Refusal::RingSize);
        }
        let theirs = ix_queues.unwrap_or(ours);
        let mesh = ours * theirs > 1 && ix_queues.is_some();
        if hello.max_region < HEADERS_REGION + u16::from(mesh) {
            return Err(Refusal::RegionOrder(hello.max_region + 1));
        }
        self.offer(hello, theirs, mesh, log2_size)
    }

    /// Makes rings and page, and the list of messages to send.
    fn offer(
        &mut self,
        hello: &Hello,
        theirs: usize,
        mesh: bool,
        log2_size: u8,
    ) -> Result<VecDeque<(Message, Option<OwnedFd>)>, Refusal> {
        let ours = self.spec.queues;
        let each_way = if mesh { ours * theirs } else { ours };
        let places = places(2 * each_way, log2_size);
        let (rings, bytes) = rings(&places, log2_size)?;
        let page = match mesh {
            true => Some(fd::sealed_memfd(c"ix-steering", PAGE_BYTES, 0)?),
            false => None,
        };
        let (tx, rx) = places.split_at(each_way);
        let their_bells = (0..theirs).map(|_| event::open()).collect::<Result<Vec<_>, _>>()?;

        let mut offers = VecDeque::from([(self.init(), None)]);
        let [received, headers, _] = self.memory.sizes.areas().map(|bytes| bytes as u64);
        let mut region = |index, bytes, fd: &OwnedFd| {
            let message = Message::AddRegion(AddRegion { index, bytes });
            fd.try_clone().map(|fd| offers.push_back((message, Some(fd))))
        };
        region(RINGS, bytes, &rings)?;
        // The application's transmit memory is none of the peer's business.
        region(RECEIVE_REGION, received, &self.memory.fds.rx)?;
        region(HEADERS_REGION, headers, &self.memory.fds.tx)?;
        if let Some(page) = &page {
            region(STEERING, PAGE_BYTES as u64, page)?;
        }
        // All rings that lead to one queue ring that queue's doorbell.
        for (to_server, places, bells) in [(true, tx, &their_bells), (false, rx, &self.bells)] {
            let senders = each_way / bells.len();
            for (i, place) in places.iter().enumerate() {
                let RingPlace { region, offset, log2_size } = *place;
                let ring = AddRing { to_server, index: i as u16, region, offset, log2_size };
                offers.push_back((Message::AddRing(ring), Some(bells[i / senders].try_clone()?)));
            }
        }
        offers.push_back((Message::Connect("ix".to_owned()), None));

        let mut regions = vec![bytes];
        let mut fds = vec![rings];
        let mapped = page.as_ref().map(|page| Mapping::of_fd(page.as_fd(), PAGE_BYTES, 0));
        if let Some(page) = page {
            regions.push(PAGE_BYTES as u64);
            fds.push(page);
        }
        fds.extend(their_bells);
        let plan = Plan {
            role: MemifRole::Client,
            peer: hello.name.clone(),
            queues: ours,
            peer_queues: theirs,
            steering: mesh.then_some(1),
            regions,
            rx: rx.to_vec(),
            tx: tx.to_vec(),
        };
        self.agreed = Some(Established { plan, fds, page: mapped.transpose()?, reply: None });
        Ok(offers)
    }

    fn init(&self) -> Message {
        Message::Init(Init {
            version: VERSION,
            id: self.spec.id,
            mode: MODE_ETHERNET,
            secret: padded(&self.spec.secret),
            name: our_name(self.spec.queues),
        })
    }
}

/// Rings one after another.
fn places(count: usize, log2_size: u8) -> Vec<RingPlace> {
    // The cache line after a ring's last descriptors is fetched along with them: keep the next
    // header off it.
    let stride = (ring_bytes(log2_size) as u32).next_multiple_of(128);
    (0..count as u32).map(|i| RingPlace { region: RINGS, offset: i * stride, log2_size }).collect()
}

/// A new region with empty rings: a former peer may still have the old one mapped.
fn rings(places: &[RingPlace], log2_size: u8) -> Result<(OwnedFd, u64), Refusal> {
    let last = places.last().map_or(0, |place| place.offset as usize);
    let bytes = (last + ring_bytes(log2_size)).next_multiple_of(4096);
    let fd = fd::sealed_memfd(c"ix-rings", bytes, 0)?;
    let mapping = Mapping::of_fd(fd.as_fd(), bytes, 0)?;
    places.iter().for_each(|place| initialize_ring(&mapping, place.offset, place.log2_size));
    Ok((fd, bytes as u64))
}

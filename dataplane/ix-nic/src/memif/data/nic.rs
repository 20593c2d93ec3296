//! One queue pair of a memif.
use super::super::MemifRole;
use super::super::page::{Sender, Taken};
use super::super::ring::Ring;
use super::client::{ClientRx, ClientTx};
use super::server::{FETCHED_AHEAD, ServerRx, ServerTx};
use super::{Context, LinkFence, LinkMemory, QueueLink, RingFence, RxRing, TxRing};
use crate::device::RingSizes;
use crate::update::{Change, QueueUpdate};
use crate::{
    AttachError, DeviceDrops, Fence, NEVER_RINGS, Nic, NicInfo, RxPacket, SetReta, Steering,
};
use ix_mem::{Mbuf, PacketMemory, Pool};
use ix_sys::event;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Most packets that wait for a peer that takes none. Later ones are lost, as on a wire, so that a
/// peer that never wakes cannot hold all frames.
const WAITING_MAX: usize = 1024;

/// A queue pair. Without a peer it receives nothing, and what is sent is lost.
pub(crate) struct MemifNic {
    info: NicInfo,
    queue: usize,
    /// The doorbell of a client's queue. A server gets its doorbell with the link.
    bell: OwnedFd,
    /// Most receive frames that the device holds.
    rx_frames: usize,
    link: Option<Link>,
    /// The peer was told that this thread sleeps.
    armed: bool,
    /// Packets wait for room in a ring, for which there is no doorbell.
    blocked: bool,
    drops: DeviceDrops,
}

struct Link {
    rings: LinkRings,
    sender: Option<Sender>,
    table: Option<Arc<dyn SetReta>>,
    taken: Option<Taken>,
    /// Numbers of the peer's queues that the rings of `tx` lead to.
    theirs: Vec<usize>,
    rx_bell: Option<OwnedFd>,
    /// The ring that is polled first.
    first: usize,
    memory: Arc<LinkMemory>,
}

enum LinkRings {
    Client(Rings<ClientRx, ClientTx>),
    Server(Rings<ServerRx, ServerTx>),
}

struct Rings<R, T> {
    rx: Vec<R>,
    tx: Vec<T>,
}

/// The same for both roles, whose rings are of different types.
macro_rules! on_rings {
    ($link_rings:expr, $rings:ident => $what:expr) => {
        match $link_rings {
            LinkRings::Client($rings) => $what,
            LinkRings::Server($rings) => $what,
        }
    };
}

impl MemifNic {
    /// The queue pair, before there is a peer.
    pub fn new(info: NicInfo, queue: usize, bell: OwnedFd, sizes: RingSizes) -> MemifNic {
        MemifNic {
            info,
            queue,
            bell,
            rx_frames: sizes.fill as usize,
            link: None,
            armed: false,
            blocked: false,
            drops: DeviceDrops::default(),
        }
    }

    /// The role that decides whether frames are shared: only the client's are.
    fn role(&self) -> MemifRole {
        if self.info.shared_frames { MemifRole::Client } else { MemifRole::Server }
    }

    fn connect(&mut self, new: QueueLink, rx_pool: &mut Pool) {
        let QueueLink { plan, memory, rx_bell, sender, table, taken } = new;
        let rx: Vec<Ring> = plan.rx_of(self.queue).iter().map(|place| memory.ring(place)).collect();
        let (tx, theirs): (Vec<_>, Vec<_>) = plan.tx_of(self.queue).into_iter().unzip();
        let tx: Vec<Ring> = tx.iter().map(|place| memory.ring(place)).collect();
        rx.iter().for_each(|ring| ring.mask_interrupts(true));
        let rings = match plan.role {
            MemifRole::Client => {
                let each = self.rx_frames / rx.len().max(1);
                let mut rx: Vec<_> = rx.into_iter().map(|r| ClientRx::new(r, each)).collect();
                rx.iter_mut().for_each(|ring| ring.refill(rx_pool));
                LinkRings::Client(Rings { rx, tx: tx.into_iter().map(ClientTx::new).collect() })
            }
            MemifRole::Server => {
                let rx = rx.into_iter().map(ServerRx::new).collect();
                LinkRings::Server(Rings { rx, tx: tx.into_iter().map(ServerTx::new).collect() })
            }
        };
        let steered = sender.is_some() && plan.queues > 1;
        self.info.steering = if steered { Steering::Table } else { Steering::Software };
        self.info.mode = super::super::mode(plan.role, self.info.queues, Some(&plan.peer));
        self.link = Some(Link { rings, sender, table, taken, theirs, rx_bell, first: 0, memory });
    }
}

/// Polls the rings, beginning with another one each time.
fn poll<R: RxRing>(
    rings: &mut [R],
    first: &mut usize,
    cx: &mut Context<'_>,
    max: usize,
    out: &mut Vec<RxPacket>,
) {
    let (before, n) = (out.len(), rings.len());
    // Mostly there is one, and a division takes as long as a look at it.
    if let [ring] = rings {
        return ring.receive(cx, max, out);
    }
    for i in 0..n {
        let left = max.saturating_sub(out.len() - before);
        if left == 0 {
            break;
        }
        rings[(*first + i) % n].receive(cx, left, out);
    }
    *first = if *first + 1 < n { *first + 1 } else { 0 };
}

/// Sends from the front of `packets` while there is room.
fn send<T: TxRing>(
    rings: &mut [T],
    sender: Option<&Sender>,
    cx: &mut Context<'_>,
    packets: &mut VecDeque<Mbuf>,
) {
    let several = sender.filter(|_| rings.len() > 1);
    while let Some(mbuf) = packets.pop_front() {
        if mbuf.len() == 0 {
            cx.drops.tx_failed += 1;
            cx.pool.put_frame(cx.memory, mbuf);
            continue;
        }
        let ring = several.map_or(0, |sender| sender.queue_of(mbuf.bytes(cx.memory)));
        match rings[ring].push(cx, mbuf) {
            // The last one leaves first, and what comes after it is fetched then.
            Ok(()) if packets.is_empty() => {}
            Ok(()) => rings[ring].fetch_ahead(FETCHED_AHEAD, cx.regions),
            // Other queues must not wait for a full one: the packet is lost, as in a network card.
            Err(mbuf) if several.is_some() => {
                cx.drops.tx_failed += 1;
                cx.pool.put_frame(cx.memory, mbuf);
            }
            Err(mbuf) => {
                packets.push_front(mbuf);
                while packets.len() > WAITING_MAX
                    && let Some(mbuf) = packets.pop_back()
                {
                    cx.drops.tx_failed += 1;
                    cx.pool.put_frame(cx.memory, mbuf);
                }
                return;
            }
        }
    }
}

/// Publishes what was sent, and wakes the peer's queues that sleep. Then fetches what is written
/// next: a peer waits for the index, and would wait for that too.
fn publish<T: TxRing>(rings: &mut [T], theirs: &[usize], memory: &LinkMemory) {
    let mut published = 0u32;
    for (i, ring) in rings.iter_mut().enumerate() {
        published |= u32::from(ring.publish()) << i;
    }
    if published == 0 {
        return;
    }
    // The index must be visible before the flag is read. The peer sets the flag, then reads the
    // index, so at least one of the two sees the other's change.
    fence(Ordering::SeqCst);
    for (i, ring) in rings.iter().enumerate() {
        if published >> i & 1 != 0 && ring.ring().wants_interrupt() {
            event::ring(memory.tx_bells[theirs[i]].as_fd());
        }
        if published >> i & 1 != 0 {
            ring.fetch_ahead(0, &memory.regions);
        }
    }
}

impl Nic for MemifNic {
    fn info(&self) -> &NicInfo {
        &self.info
    }

    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let Some(link) = &mut self.link else { return 0 };
        let before = out.len();
        on_rings!(&mut link.rings, rings => {
            if self.armed {
                rings.rx.iter().for_each(|ring| ring.ring().mask_interrupts(true));
                self.armed = false;
            }
            let (regions, drops) = (&link.memory.regions[..], &mut self.drops);
            let mut cx = Context { memory, pool: rx_pool, regions, drops };
            poll(&mut rings.rx, &mut link.first, &mut cx, max, out);
            if let Some(taken) = link.taken.as_ref().filter(|_| out.len() > before) {
                rings.rx.iter().enumerate().for_each(|(i, ring)| taken.set(i, ring.next()));
            }
        });
        out.len() - before
    }

    fn waiting(&self) -> Option<usize> {
        let Some(link) = &self.link else { return Some(0) };
        on_rings!(&link.rings, rings => Some(rings.rx.iter().map(RxRing::waiting).sum()))
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        let Some(link) = &mut self.link else {
            self.drops.tx_failed += packets.len() as u64;
            return packets.drain(..).for_each(|mbuf| tx_pool.put_frame(memory, mbuf));
        };
        if let Some(sender) = &mut link.sender {
            sender.begin();
        }
        on_rings!(&mut link.rings, rings => {
            let (regions, drops) = (&link.memory.regions[..], &mut self.drops);
            let mut cx = Context { memory, pool: tx_pool, regions, drops };
            send(&mut rings.tx, link.sender.as_ref(), &mut cx, packets);
        });
        self.blocked = !packets.is_empty();
    }

    fn kick(&mut self, _memory: &PacketMemory, tx_pool: &mut Pool) {
        let Some(link) = &mut self.link else { return };
        on_rings!(&mut link.rings, rings => {
            publish(&mut rings.tx, &link.theirs, &link.memory);
            rings.tx.iter_mut().for_each(|ring| ring.reclaim(tx_pool));
        });
        // All that was sent by the old table is published now.
        if let Some(sender) = &mut link.sender {
            sender.end();
        }
    }

    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        let link = self.link.as_ref()?;
        // With other peers each queue is linked to one queue: the peer decides where its packets
        // go.
        let (sender, queue) = (link.sender.as_ref()?, self.queue);
        let server = matches!(link.rings, LinkRings::Server(_));
        let rings = on_rings!(&link.rings, rings => {
            let ring = |(ring, theirs): (&_, &usize)| RingFence {
                ring: *TxRing::ring(ring),
                taken: server.then(|| sender.taken_by(*theirs)),
                sender: queue,
                published: TxRing::published(ring),
            };
            rings.tx.iter().zip(&link.theirs).map(ring).collect()
        });
        let fence = LinkFence { rings, _memory: link.memory.clone() };
        (!fence.passed()).then(|| Box::new(fence) as Box<dyn Fence>)
    }

    fn reta(&self) -> Option<Arc<dyn SetReta>> {
        self.link.as_ref().and_then(|link| link.table.clone())
    }

    fn frames_held(&self) -> (usize, usize) {
        let Some(link) = &self.link else { return (0, 0) };
        on_rings!(&link.rings, rings => {
            (rings.rx.iter().map(RxRing::held).sum(), rings.tx.iter().map(TxRing::held).sum())
        })
    }

    fn doorbell(&self) -> Option<RawFd> {
        match &self.link {
            None => Some(NEVER_RINGS),
            Some(_) if self.blocked => None,
            Some(link) => Some(link.rx_bell.as_ref().unwrap_or(&self.bell).as_raw_fd()),
        }
    }

    fn arm(&mut self) -> bool {
        let Some(link) = &mut self.link else { return true };
        event::silence(link.rx_bell.as_ref().unwrap_or(&self.bell).as_fd());
        if let Some(sender) = &mut link.sender {
            sender.sleep();
        }
        on_rings!(&mut link.rings, rings => {
            rings.rx.iter().for_each(|ring| ring.ring().mask_interrupts(false));
            // The flag must be visible before the index is read, as in `publish`.
            fence(Ordering::SeqCst);
            self.armed = true;
            rings.rx.iter().all(|ring| ring.waiting() == 0)
        })
    }

    fn drops(&mut self) -> DeviceDrops {
        self.drops
    }

    fn update(
        &mut self,
        update: QueueUpdate,
        _memory: &PacketMemory,
        rx_pool: &mut Pool,
        tx_pool: &mut Pool,
    ) -> Result<(), AttachError> {
        let QueueUpdate(Change::Memif(link)) = update else { return Ok(()) };
        self.close(rx_pool, tx_pool);
        if let Some(link) = link {
            self.connect(*link, rx_pool);
        }
        Ok(())
    }

    fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool) {
        let Some(mut link) = self.link.take() else { return };
        on_rings!(&mut link.rings, rings => {
            rings.rx.iter_mut().for_each(|ring| ring.close(rx_pool));
            rings.tx.iter_mut().for_each(|ring| ring.close(tx_pool));
        });
        (self.armed, self.blocked) = (false, false);
        self.info.steering = Steering::Software;
        self.info.mode = super::super::mode(self.role(), self.info.queues, None);
    }
}

//! The AF_XDP sockets of one elastic thread as one queue pair.
use super::queue::Queue;
use super::socket::MTU_OF_BUFFER;
use crate::device::RingSizes;
use crate::error::AttachError;
use crate::update::{Change, QueueUpdate};
use crate::{DeviceDrops, Fence, MTU_MAX, Nic, NicInfo, NicKind, RxPacket, XdpBind};
use ix_mem::{Mbuf, PacketMemory, Pool};
use std::collections::VecDeque;
use std::os::fd::{OwnedFd, RawFd};

/// A queue pair on the sockets of one or several queues of an interface. It receives from all of
/// them in turn and sends by the first.
pub(crate) struct AfxdpNic {
    info: NicInfo,
    pair: usize,
    sizes: RingSizes,
    /// The queue that sends. Most interfaces have one for each elastic thread, so this is usually
    /// the only one.
    first: Queue,
    /// The others, where the interface has more queues than there are elastic threads.
    more: Vec<Queue>,
    /// Number of the queue of which packets are taken first next time; the first one is 0.
    turn: usize,
    /// What was lost on queues that are closed.
    counted: DeviceDrops,
}

impl AfxdpNic {
    /// Binds the sockets of this queue pair, of which there is at least one, and gives them receive
    /// frames: `sizes` are of all of them together.
    pub fn attach(
        info: &NicInfo,
        bind: XdpBind,
        pair: usize,
        fds: Vec<OwnedFd>,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        sizes: RingSizes,
    ) -> Result<AfxdpNic, AttachError> {
        let (numbers, name) = (info.sockets_of(pair), info.name.as_str());
        let expected = numbers.clone().count();
        if fds.len() != expected || expected == 0 {
            let name = name.to_owned();
            return Err(AttachError::Sockets { name, pair, sockets: fds.len(), expected });
        }
        let mut queues: Vec<Queue> = Vec::with_capacity(expected);
        for (number, fd) in numbers.zip(fds) {
            let each = of_each(sizes, expected, queues.len());
            let to = (bind, info.mtu + info.tag_bytes());
            let queue = Queue::bind(name, to, number, fd, memory, queues.first(), each)?;
            queues.push(queue);
        }
        // All have their rings before one has frames: a failure above leaves the pool as it was.
        let most = rx_pool.near() / queues.len();
        queues.iter_mut().for_each(|queue| queue.begin(rx_pool, most));
        let first = queues.remove(0);
        let mode = format!("{}, {}", info.mode, first.mode());
        let info = NicInfo { mode, ..info.clone() };
        let counted = DeviceDrops::default();
        Ok(AfxdpNic { info, pair, sizes, first, more: queues, turn: 0, counted })
    }

    fn queues(&self) -> impl Iterator<Item = &Queue> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn queues_mut(&mut self) -> impl Iterator<Item = &mut Queue> {
        std::iter::once(&mut self.first).chain(&mut self.more)
    }

    /// Adds the sockets of new queues. The others do not notice.
    fn grow(
        &mut self,
        info: NicInfo,
        fds: Vec<OwnedFd>,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
    ) -> Result<(), AttachError> {
        let NicKind::Afxdp(bind) = info.kind else { return Ok(()) };
        let (pair, count) = (self.pair, info.sockets_of(self.pair).count());
        let numbers = info.sockets_of(pair).skip(1 + self.more.len());
        let each = of_each(self.sizes, count, 1);
        let bind_one = |(number, fd)| {
            let to = (bind, info.mtu + info.tag_bytes());
            Queue::bind(&info.name, to, number, fd, memory, Some(&self.first), each)
        };
        let mut new = numbers.zip(fds).map(bind_one).collect::<Result<Vec<_>, _>>()?;
        let most = rx_pool.near() / count;
        new.iter_mut().for_each(|queue| queue.begin(rx_pool, most));
        self.more.append(&mut new);
        // Sockets that are bound stay as they are.
        let of_buffer = MTU_OF_BUFFER - info.tag_bytes();
        let most = if self.first.takes_chains() { MTU_MAX } else { of_buffer };
        let (mode, mtu) = (std::mem::take(&mut self.info.mode), info.mtu.min(most));
        self.info = NicInfo { mode, mtu, ..info };
        Ok(())
    }

    /// Takes packets of all queues, each time of another one first, so that a busy queue never
    /// keeps the batch for itself. Less than `max` comes only if all queues were emptied.
    fn receive_of_all(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        let (count, begin) = (1 + self.more.len(), self.turn);
        self.turn = if begin + 1 < count { begin + 1 } else { 0 };
        let mut taken = 0;
        for number in (begin..count).chain(0..begin) {
            if taken >= max {
                break;
            }
            let queue = match number.checked_sub(1) {
                None => &mut self.first,
                Some(other) => &mut self.more[other],
            };
            taken += queue.receive(memory, rx_pool, max - taken, out);
        }
        taken
    }
}

/// Rings of one of `count` queues: an equal part of the receive frames. Only the first one sends;
/// the transmit ring of the others stays empty.
fn of_each(sizes: RingSizes, count: usize, number: usize) -> RingSizes {
    if count == 1 {
        let [rx, fill, tx] = [sizes.rx, sizes.fill, sizes.tx].map(u32::next_power_of_two);
        return RingSizes { rx, fill, tx };
    }
    let part = (sizes.fill / count as u32).max(1);
    let fill = 1 << part.ilog2();
    let tx = if number == 0 { sizes.tx.next_power_of_two() } else { 1 };
    RingSizes { rx: sizes.rx.next_power_of_two().min(fill), fill, tx }
}

impl Nic for AfxdpNic {
    fn info(&self) -> &NicInfo {
        &self.info
    }

    #[inline]
    fn receive(
        &mut self,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        max: usize,
        out: &mut Vec<RxPacket>,
    ) -> usize {
        if self.more.is_empty() {
            return self.first.receive(memory, rx_pool, max, out);
        }
        self.receive_of_all(memory, rx_pool, max, out)
    }

    fn pending(&self) -> bool {
        self.queues().any(Queue::pending)
    }

    fn backlog(&self) -> Option<usize> {
        Some(self.queues().map(Queue::backlog).sum())
    }

    fn transmit(
        &mut self,
        memory: &PacketMemory,
        tx_pool: &mut Pool,
        packets: &mut VecDeque<Mbuf>,
    ) {
        self.first.transmit(memory, tx_pool, packets);
    }

    fn kick(&mut self, _memory: &PacketMemory, tx_pool: &mut Pool) {
        self.first.kick(tx_pool);
    }

    fn fence(&mut self) -> Option<Box<dyn Fence>> {
        self.first.fence()
    }

    fn frames_held(&self) -> (usize, usize) {
        let held = self.queues().map(Queue::frames_held);
        held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1))
    }

    fn doorbell(&self) -> Option<RawFd> {
        Some(self.first.doorbell())
    }

    fn more_doorbells(&self, each: &mut dyn FnMut(RawFd)) {
        self.more.iter().for_each(|queue| each(queue.doorbell()));
    }

    fn arm(&mut self) -> bool {
        self.queues().all(Queue::may_sleep)
    }

    fn drops(&mut self) -> DeviceDrops {
        self.queues().map(Queue::drops).fold(self.counted, sum)
    }

    /// Continues with the new interface, which may have another number of queues, or receives from
    /// new queues of the old one as well.
    fn update(
        &mut self,
        update: QueueUpdate,
        memory: &PacketMemory,
        rx_pool: &mut Pool,
        tx_pool: &mut Pool,
    ) -> Result<(), AttachError> {
        let (info, fds) = match update.0 {
            Change::Reopened { info, fds } => (info, fds),
            Change::Grown { info, fds } => return self.grow(info, fds, memory, rx_pool),
            Change::Memif(_) => return Ok(()),
        };
        self.close(rx_pool, tx_pool);
        let NicKind::Afxdp(bind) = info.kind else { return Ok(()) };
        let counted = self.drops();
        let nic = AfxdpNic::attach(&info, bind, self.pair, fds, memory, rx_pool, self.sizes)?;
        *self = AfxdpNic { counted, ..nic };
        Ok(())
    }

    fn close(&mut self, rx_pool: &mut Pool, tx_pool: &mut Pool) {
        self.queues_mut().for_each(|queue| queue.close(rx_pool, tx_pool));
    }
}

fn sum(a: DeviceDrops, b: DeviceDrops) -> DeviceDrops {
    DeviceDrops {
        rx_overrun: a.rx_overrun + b.rx_overrun,
        rx_invalid: a.rx_invalid + b.rx_invalid,
        tx_failed: a.tx_failed + b.tx_failed,
        ..DeviceDrops::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_one_thread_share_its_receive_frames() {
        let sizes = RingSizes::default();
        assert_eq!(of_each(sizes, 1, 0), sizes);
        assert_eq!(of_each(sizes, 8, 0), RingSizes { rx: 256, fill: 256, tx: 1024 });
        assert_eq!(of_each(sizes, 8, 7), RingSizes { rx: 256, fill: 256, tx: 1 });
        for count in 1..=253 {
            let rings: Vec<_> = (0..count).map(|number| of_each(sizes, count, number)).collect();
            let fill: u32 = rings.iter().map(|rings| rings.fill).sum();
            assert!(fill <= sizes.fill && fill > sizes.fill / 2, "{count}: {fill}");
        }
        assert_eq!(of_each(RingSizes { rx: 1, fill: 1, tx: 1 }, 3, 2).fill, 1);
    }
}

//! Packet queues and signals of the model: a wire on which every other thread receives every frame.
use super::World;
use super::calls::Answer;
use super::memory::copy_out;
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{CallError, Cookie, Event, PacketInfo, RxData, SgArray, event_kind, packet_kind};
use std::collections::BTreeMap;

/// Longest frame, as with an Ethernet MTU of 1500 bytes.
const FRAME_BYTES_MAX: usize = 1514;
/// Most signals that wait for a thread.
const SIGNALS_MAX: usize = 64;

struct Queue {
    thread: usize,
    ethertype: u16,
    cookie: u64,
}

#[derive(Default)]
pub(super) struct Packets {
    queues: BTreeMap<u64, Queue>,
    /// Frames not given back: their threads, by address. Their memory is never used again.
    held: BTreeMap<u64, usize>,
}

impl Packets {
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }
}

impl World {
    /// Supports EtherTypes only.
    pub(super) fn packet_bind(
        &mut self,
        thread: usize,
        (device, kind, number): (u32, u64, u64),
        cookie: Cookie,
    ) -> Answer {
        let ethertype = u16::try_from(number).map_err(|_| CallError::Invalid)?;
        if (device, kind) != (0, packet_kind::ETHER_TYPE) {
            return Err(CallError::Invalid);
        }
        let mut queues = self.packets.queues.values();
        if queues.any(|queue| (queue.thread, queue.ethertype) == (thread, ethertype)) {
            return Err(CallError::InUse);
        }
        let id = self.name();
        self.packets.queues.insert(id, Queue { thread, ethertype, cookie });
        Ok(id)
    }

    fn packet_queue(&self, thread: usize, id: u32) -> Result<(), CallError> {
        let queue = self.packets.queues.get(&id.into()).filter(|queue| queue.thread == thread);
        queue.map(|_| ()).ok_or(CallError::BadHandle)
    }

    pub(super) fn packet_unbind(&mut self, thread: usize, id: u32) -> Answer {
        self.packet_queue(thread, id)?;
        self.packets.queues.remove(&id.into());
        Ok(0)
    }

    pub(super) fn packet_sendv(
        &mut self,
        thread: usize,
        queue: u32,
        sg: SgArray,
        cookie: Cookie,
    ) -> Answer {
        self.packet_queue(thread, queue)?;
        if self.refuses() {
            return Err(CallError::NoResource);
        }
        let mut frame = Vec::new();
        for entry in self.read_sg(sg)? {
            let held = self.packets.held.range(..=entry.base).next_back();
            let in_frame = held.is_some_and(|(base, _)| entry.base - base < FRAME_BYTES_MAX as u64);
            if !in_frame && !self.in_tx(entry.base, entry.len) {
                return Err(CallError::Fault);
            }
            frame.extend(copy_out(entry.base, entry.len));
        }
        let Some(ethertype) = frame.get(12..14).and_then(|bytes| bytes.first_chunk::<2>()) else {
            return Err(CallError::Invalid);
        };
        if frame.len() > FRAME_BYTES_MAX {
            return Err(CallError::TooLong);
        }
        let ethertype = u16::from_be_bytes(*ethertype);
        let hear = |queue: &&Queue| queue.thread != thread && queue.ethertype == ethertype;
        let hearing = self.packets.queues.values().filter(hear);
        let hearing: Vec<_> = hearing.map(|queue| (queue.thread, queue.cookie)).collect();
        for (to, listener) in hearing {
            // Leaked: a program may keep a frame for longer than the model exists.
            let addr = frame.clone().leak().as_ptr().expose_provenance() as u64;
            self.packets.held.insert(addr, to);
            let data = RxData { addr, len: frame.len() as u32 };
            self.threads[to].tell(Event::PacketRecv { cookie: listener, data });
        }
        self.threads[thread].tell(Event::PacketSent { cookie });
        Ok(frame.len() as u64)
    }

    pub(super) fn packet_recv_done(&mut self, thread: usize, base: u64) -> Answer {
        let holder = self.packets.held.remove(&base).expect("a frame was given back twice");
        assert_eq!(holder, thread, "given back by another thread");
        Ok(0)
    }

    pub(super) fn packet_info(&mut self, thread: usize, queue: u32, to: u64) -> Answer {
        self.packet_queue(thread, queue)?;
        if !self.tx.contains(to, size_of::<PacketInfo>() as u64) {
            return Err(CallError::Fault);
        }
        let mac = [2, 0, 0, 0, 0, thread as u8];
        let frame_bytes_max = FRAME_BYTES_MAX as u32;
        let info = PacketInfo { mac, frame_bytes_max, ..PacketInfo::default() };
        // SAFETY: within transmit memory, checked above; the application is in the gate.
        unsafe { with_exposed_provenance_mut::<PacketInfo>(to as usize).write(info) };
        Ok(0)
    }

    pub(super) fn signal(&mut self, thread: usize, target: u32, value: u64) -> Answer {
        let to = self.threads.get_mut(target as usize).ok_or(CallError::Invalid)?;
        if to.queue.iter().filter(|event| event.kind == event_kind::SIGNAL).count() >= SIGNALS_MAX {
            return Err(CallError::NoResource);
        }
        to.tell(Event::Signal { from: thread as u32, value });
        Ok(0)
    }
}

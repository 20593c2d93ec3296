//! Packet queues and signals of the model: a wire on which every other thread hears every frame.
use super::World;
use super::memory::copy_out;
use core::ptr::with_exposed_provenance_mut;
use ix_abi::{Event, PacketInfo, SG_MAX, SgEntry, error, event_kind, packet_kind};
use std::collections::BTreeMap;

/// Longest frame, as with an Ethernet MTU of 1500 bytes.
const FRAME_BYTES_MAX: usize = 1514;
/// Signals that wait for a thread.
const SIGNALS_MAX: usize = 64;

struct Queue {
    lane: usize,
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
    /// Knows EtherTypes only.
    pub(super) fn packet_bind(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        let ethertype = u16::try_from(args[2]).map_err(|_| error::INVALID)?;
        if (args[0], args[1]) != (0, packet_kind::ETHER_TYPE) {
            return Err(error::INVALID);
        }
        let mut queues = self.packets.queues.values();
        if queues.any(|queue| (queue.lane, queue.ethertype) == (lane, ethertype)) {
            return Err(error::IN_USE);
        }
        let id = self.name();
        self.packets.queues.insert(id, Queue { lane, ethertype, cookie: args[3] });
        Ok(id as i64)
    }

    fn packet_queue(&self, lane: usize, id: u64) -> Result<(), i64> {
        let queue = self.packets.queues.get(&id).filter(|queue| queue.lane == lane);
        queue.map(|_| ()).ok_or(error::BAD_HANDLE)
    }

    pub(super) fn packet_unbind(&mut self, lane: usize, id: u64) -> Result<i64, i64> {
        self.packet_queue(lane, id)?;
        self.packets.queues.remove(&id);
        Ok(0)
    }

    pub(super) fn packet_sendv(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        self.packet_queue(lane, args[0])?;
        if self.refuses() {
            return Err(error::NO_RESOURCE);
        }
        assert!((1..=SG_MAX as u64).contains(&args[2]), "an array of {} pieces", args[2]);
        if !self.tx.contains(args[1], args[2] * size_of::<SgEntry>() as u64) {
            return Err(error::FAULT);
        }
        let array = with_exposed_provenance_mut::<SgEntry>(args[1] as usize);
        let mut frame = Vec::new();
        for index in 0..args[2] as usize {
            // SAFETY: within transmit memory, checked above; the application is in the gate.
            let entry = unsafe { array.add(index).read() };
            let held = self.packets.held.range(..=entry.base).next_back();
            let in_frame = held.is_some_and(|(base, _)| entry.base - base < FRAME_BYTES_MAX as u64);
            if !in_frame && !self.in_tx(entry.base, entry.len) {
                return Err(error::FAULT);
            }
            frame.extend(copy_out(entry.base, entry.len));
        }
        let Some(ethertype) = frame.get(12..14).and_then(|bytes| bytes.first_chunk::<2>()) else {
            return Err(error::INVALID);
        };
        if frame.len() > FRAME_BYTES_MAX {
            return Err(error::TOO_LONG);
        }
        let ethertype = u16::from_be_bytes(*ethertype);
        let hear = |queue: &&Queue| queue.lane != lane && queue.ethertype == ethertype;
        let hearing = self.packets.queues.values().filter(hear);
        let hearing: Vec<_> = hearing.map(|queue| (queue.lane, queue.cookie)).collect();
        for (to, cookie) in hearing {
            // Leaked: a program may keep a frame for longer than the model.
            let data = frame.clone().leak().as_ptr().expose_provenance() as u64;
            self.packets.held.insert(data, to);
            let (kind, len) = (event_kind::PACKET_RECV, frame.len() as u32);
            self.lanes[to].queue.push_back(Event { kind, cookie, data, len, ..Event::default() });
        }
        let kind = event_kind::PACKET_SENT;
        self.lanes[lane].queue.push_back(Event { kind, cookie: args[3], ..Event::default() });
        Ok(frame.len() as i64)
    }

    pub(super) fn packet_recv_done(&mut self, lane: usize, base: u64) -> Result<i64, i64> {
        let holder = self.packets.held.remove(&base).expect("a frame was given back twice");
        assert_eq!(holder, lane, "given back by another thread");
        Ok(0)
    }

    pub(super) fn packet_info(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        self.packet_queue(lane, args[0])?;
        if !self.tx.contains(args[1], size_of::<PacketInfo>() as u64) {
            return Err(error::FAULT);
        }
        let mac = [2, 0, 0, 0, 0, lane as u8];
        let frame_bytes_max = FRAME_BYTES_MAX as u32;
        let info = PacketInfo { mac, frame_bytes_max, ..PacketInfo::default() };
        // SAFETY: within transmit memory, checked above; the application is in the gate.
        unsafe { with_exposed_provenance_mut::<PacketInfo>(args[1] as usize).write(info) };
        Ok(0)
    }

    pub(super) fn signal(&mut self, lane: usize, args: &[u64; 6]) -> Result<i64, i64> {
        let queue = match self.lanes.get_mut(args[0] as usize) {
            Some(to) => &mut to.queue,
            None => return Err(error::INVALID),
        };
        if queue.iter().filter(|event| event.kind == event_kind::SIGNAL).count() >= SIGNALS_MAX {
            return Err(error::NO_RESOURCE);
        }
        let (kind, len, data) = (event_kind::SIGNAL, lane as u32, args[1]);
        queue.push_back(Event { kind, len, data, ..Event::default() });
        Ok(0)
    }
}

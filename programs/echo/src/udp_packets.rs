//! Echo of datagrams by a program that brings its own UDP: whole frames come and go, and nothing of
//! them is copied but the front, whose ends change places.
use anyhow::{Context, Result};
use ix_abi::{PacketInfo, SgEntry, packet_flag, packet_kind};
use libix::raw::{Event, Received, Thread, TxBuf, Wait, call};
use std::collections::VecDeque;

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
/// Ethernet, IPv4 with all its options, UDP.
const FRONT_MAX: usize = ETHERNET_BYTES + 60 + UDP_BYTES;
/// Of the datagram's checksum in its header.
const UDP_CHECKSUM: usize = 6;

/// A frame on its way back.
struct Answer {
    front: TxBuf,
    question: Option<Received>,
}

/// A server's turn-by-turn state.
pub struct PacketEcho {
    thread: Thread,
    queue: u64,
    info: PacketInfo,
    /// By cookie.
    answers: Vec<Answer>,
    free: Vec<usize>,
    /// What the call array had no room for.
    waiting: VecDeque<Received>,
    done: Vec<Received>,
    /// Calls of the batch that send, with their cookies.
    sends: Vec<(usize, usize)>,
}

impl PacketEcho {
    /// Takes the datagrams to a port, of the first device.
    pub fn new(mut thread: Thread, port: u16) -> Result<PacketEcho> {
        let bind = call::packet_bind(0, packet_kind::UDP_PORT, port.into(), 0);
        let slot = thread.push(bind).context("the first call has room")?;
        thread.run_io(Wait::Poll)?;
        let queue = thread.answer(slot).with_context(|| format!("cannot have port {port}"))?;
        let mut to = thread.tx().alloc(size_of::<PacketInfo>()).context("no transmit memory")?;
        let slot = thread.push(call::packet_info(queue, &mut to)).context("there is room")?;
        thread.run_io(Wait::Poll)?;
        thread.answer(slot)?;
        let info = call::packet_info_in(&to).context("it was written")?;
        Ok(PacketEcho {
            thread,
            queue,
            info,
            answers: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            done: Vec::new(),
            sends: Vec::new(),
        })
    }

    /// One cycle: answers what came.
    pub fn turn(&mut self, wait: Wait) -> Result<()> {
        let pending = !self.waiting.is_empty() || !self.done.is_empty();
        let events = self.thread.run_io(if pending { Wait::Poll } else { wait })?;
        for at in 0..self.sends.len() {
            let (slot, cookie) = self.sends[at];
            // A refused frame is lost, and no event says that its memory is free.
            if self.thread.answer(slot).is_err() {
                self.ended(cookie);
            }
        }
        self.sends.clear();
        for index in 0..events {
            match self.thread.event(index) {
                Event::PacketRecv { data, .. } => self.waiting.push_back(data),
                Event::PacketSent { cookie } => self.ended(cookie as usize),
                _ => {}
            }
        }
        while let Some(data) = self.done.pop() {
            if self.thread.push(call::packet_recv_done(data)).is_none() {
                self.done.push(data);
                break;
            }
        }
        while let Some(data) = self.waiting.pop_front() {
            if !self.answer(data)? {
                self.waiting.push_front(data);
                break;
            }
        }
        Ok(())
    }

    fn ended(&mut self, cookie: usize) {
        self.free.push(cookie);
        self.done.extend(self.answers[cookie].question.take());
    }

    /// A place for an answer, with more transmit memory where that is short.
    fn place(&mut self) -> Result<usize> {
        if let Some(cookie) = self.free.pop() {
            return Ok(cookie);
        }
        let front = self.thread.tx().alloc(FRONT_MAX).context("no transmit memory")?;
        self.answers.push(Answer { front, question: None });
        Ok(self.answers.len() - 1)
    }

    /// Sends a frame back; `false`: there is no room in this batch.
    fn answer(&mut self, data: Received) -> Result<bool> {
        let cookie = self.place()?;
        // SAFETY: given back only when the answer has left.
        let frame = unsafe { data.bytes() };
        let partial = self.info.flags & packet_flag::PARTIAL_CHECKSUMS != 0;
        let Some((front, len, bytes)) = turned(frame, self.info.mac, partial) else {
            self.free.push(cookie);
            self.done.push(data);
            return Ok(true);
        };
        let place = &mut self.answers[cookie];
        place.front.clear();
        place.front.extend(&front[..len]);
        let front = SgEntry { base: place.front.base(), len: len as u64 };
        let rest = SgEntry { base: data.base() + len as u64, len: (bytes - len) as u64 };
        let pieces = [front, rest].into_iter();
        match self.thread.push_packet_sendv(self.queue, pieces, cookie as u64) {
            Some((slot, _)) => {
                self.sends.push((slot, cookie));
                self.answers[cookie].question = Some(data);
                Ok(true)
            }
            None => {
                self.free.push(cookie);
                Ok(false)
            }
        }
    }
}

/// The front of a datagram's frame with its ends in each other's places, how long it is, and how
/// long the frame is without padding. Neither checksum minds: sums know no order. A checksum that
/// is only begun goes out as none, which IPv4 allows (RFC 768).
fn turned(
    frame: &[u8],
    own_mac: [u8; 6],
    partial: bool,
) -> Option<([u8; FRONT_MAX], usize, usize)> {
    let ip = frame.get(ETHERNET_BYTES..)?;
    let header = usize::from(*ip.first()? & 0x0f) * 4;
    let total = usize::from(u16::from_be_bytes(*ip.get(2..)?.first_chunk()?));
    let (udp, bytes) = (ETHERNET_BYTES + header, ETHERNET_BYTES + total);
    let len = udp + UDP_BYTES;
    let mut front = [0; FRONT_MAX];
    front.get_mut(..len)?.copy_from_slice(frame.get(..len)?);
    if bytes < len || bytes > frame.len() {
        return None;
    }
    front[..6].copy_from_slice(&frame[6..12]);
    front[6..12].copy_from_slice(&own_mac);
    front[ETHERNET_BYTES + 12..ETHERNET_BYTES + 20].rotate_left(4);
    front[udp..udp + 4].rotate_left(2);
    if partial {
        front[udp + UDP_CHECKSUM..udp + UDP_CHECKSUM + 2].fill(0);
    }
    Some((front, len, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_change_places_and_padding_stays_behind() {
        let (ours, theirs) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let mut frame = [&ours[..], &theirs, &[8, 0]].concat();
        frame.extend([0x45, 0, 0, 33, 0, 1, 0, 0, 64, 17, 1, 2, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x10, 0x20, 0, 7, 0, 13, 9, 8]);
        frame.extend(b"hello");
        let short = frame.clone();
        frame.resize(60, 0);
        let (front, len, bytes) = turned(&frame, ours, false).expect("a datagram");
        assert_eq!((len, bytes), (42, 47));
        assert_eq!(front[..14], [&theirs[..], &ours, &[8, 0]].concat());
        assert_eq!(front[14..26], frame[14..26], "the sum of the header stays");
        assert_eq!(front[26..34], [10, 0, 0, 2, 10, 0, 0, 1]);
        assert_eq!(front[34..42], [0, 7, 0x10, 0x20, 0, 13, 9, 8]);
        let (front, ..) = turned(&frame, ours, true).expect("a datagram");
        assert_eq!(front[40..42], [0, 0]);
        assert!((0..47).all(|len| turned(&short[..len], ours, false).is_none()));
    }
}

//! Echo of datagrams by a program with its own UDP over whole frames. Only the headers, with
//! swapped addresses, are copied.
use anyhow::{Context, Result};
use ix_abi::{PacketInfo, SgEntry, packet_flag, packet_kind};
use libix::raw::{Event, Received, Thread, TxBuf, Wait, call};
use std::collections::VecDeque;

const ETHERNET_BYTES: usize = 14;
const UDP_BYTES: usize = 8;
/// Ethernet, IPv4 with all its options, UDP.
const FRONT_MAX: usize = ETHERNET_BYTES + 60 + UDP_BYTES;
/// Offset of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// A frame that is being sent back: its own headers, and the rest of the received frame.
struct Answer {
    front: TxBuf,
    rest: SgEntry,
    question: Option<Received>,
}

/// A server's state between cycles.
pub struct PacketEcho {
    thread: Thread,
    queue: u64,
    info: PacketInfo,
    /// By cookie.
    answers: Vec<Answer>,
    free: Vec<usize>,
    /// Frames that the call array had no room for, by cookie.
    waiting: VecDeque<usize>,
    done: Vec<Received>,
    /// Calls of the batch that send, with their cookies.
    sends: Vec<(usize, usize)>,
}

impl PacketEcho {
    /// Takes the datagrams to a port, from the first device.
    pub fn new(mut thread: Thread, port: u16) -> Result<PacketEcho> {
        let bind = call::packet_bind(0, packet_kind::UDP_PORT, port.into(), 0);
        let slot = thread.push(bind).context("the first call has room")?;
        thread.run_io(Wait::Poll)?;
        let queue = thread.answer(slot).with_context(|| format!("cannot have port {port}"))?;
        let slot = thread.push_packet_info(queue).context("there is room")?;
        thread.run_io(Wait::Poll)?;
        let info = thread.packet_info(slot)?;
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

    /// One cycle: sends back what arrived.
    pub fn turn(&mut self, wait: Wait) -> Result<()> {
        let pending = !self.waiting.is_empty() || !self.done.is_empty();
        let events = self.thread.run_io(if pending { Wait::Poll } else { wait })?;
        for at in 0..self.sends.len() {
            let (slot, cookie) = self.sends[at];
            // A refused frame is lost, and no event reports that its memory is free.
            if self.thread.answer(slot).is_err() {
                self.ended(cookie);
            }
        }
        self.sends.clear();
        for index in 0..events {
            match self.thread.event(index) {
                Event::PacketRecv { data, .. } => self.came(index, data)?,
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
        while let Some(cookie) = self.waiting.pop_front() {
            if !self.answer(cookie) {
                self.waiting.push_front(cookie);
                break;
            }
        }
        Ok(())
    }

    fn ended(&mut self, cookie: usize) {
        self.free.push(cookie);
        self.done.extend(self.answers[cookie].question.take());
    }

    /// A place for a reply; adds transmit memory if it is short.
    fn place(&mut self) -> Result<usize> {
        if let Some(cookie) = self.free.pop() {
            return Ok(cookie);
        }
        let front = self.thread.tx().alloc(FRONT_MAX).context("no transmit memory")?;
        self.answers.push(Answer { front, rest: SgEntry { base: 0, len: 0 }, question: None });
        Ok(self.answers.len() - 1)
    }

    /// Makes the answer to a frame that event `index` has brought.
    fn came(&mut self, index: usize, data: Received) -> Result<()> {
        let cookie = self.place()?;
        let partial = self.info.flags & packet_flag::PARTIAL_CHECKSUMS != 0;
        let turned = turned(self.thread.received(index), self.info.mac, partial);
        let Some((front, len, bytes)) = turned else {
            self.free.push(cookie);
            self.done.push(data);
            return Ok(());
        };
        let answer = &mut self.answers[cookie];
        answer.front.clear();
        answer.front.extend(&front[..len]);
        answer.rest = SgEntry { base: data.base() + len as u64, len: (bytes - len) as u64 };
        answer.question = Some(data);
        self.waiting.push_back(cookie);
        Ok(())
    }

    /// Sends an answer; `false`: there is no room in this batch.
    fn answer(&mut self, cookie: usize) -> bool {
        let Answer { front, rest, .. } = &self.answers[cookie];
        let front = SgEntry { base: front.base(), len: front.len() as u64 };
        let pieces = [front, *rest].into_iter();
        let pushed = self.thread.push_packet_sendv(self.queue, pieces, cookie as u64);
        self.sends.extend(pushed.map(|(slot, _)| (slot, cookie)));
        pushed.is_some()
    }
}

/// The headers of a datagram's frame with swapped addresses and ports, their length, and the
/// frame's length without padding. Swapping changes neither checksum, because sums have no order. A
/// checksum that was only begun is sent as none, which IPv4 allows (RFC 768).
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

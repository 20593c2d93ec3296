//! Who may hold how much transmit memory, so that clients that do not read leave some for others.
//!
//! While more than half of an elastic thread's share is free, a connection may hold an eighth of
//! what is above the half: more than its send buffer, unless many hold much. The lower half is for
//! small amounts only, ever smaller ones the less is left, so that it lasts for thousands.
//!
//! A socket that may not hold more, or finds no memory, is *starving*: it is not writable until
//! memory is free again, and then its waiters hear of it, level- and edge-triggered ones alike.
use crate::elastic_thread::{ElasticThread, Seen};
use crate::slab::Id;
use crate::socket::Kind;
use crate::state::Core;
use crate::stream::Phase;
use libc::{EPOLLOUT, EPOLLWRNORM};
use libix::raw::TxArena;

/// What a connection may hold in any case, if there is memory.
const LEAST_BYTES: u64 = 512;

/// How many bytes a connection may hold while `spare` of `share` are free.
fn most(spare: u64, share: u64) -> usize {
    let of_upper = spare.saturating_sub(share / 2) / 8;
    let most = of_upper.max(spare / 4096).max(LEAST_BYTES) as usize;
    // Whole blocks: what is more would take a larger one.
    match TxArena::SIZES.iter().rev().find(|size| **size as usize <= most) {
        Some(size) if most < TxArena::LARGEST_BYTES as usize => *size as usize,
        _ => most,
    }
}

/// Whether there is enough more than before that waiters should try again: an eighth more, or half
/// of all that was missing.
fn is_more(now: u64, seen: u64, all: u64) -> bool {
    now > seen + (seen / 8).min(all.saturating_sub(seen) / 2)
}

impl ElasticThread {
    /// Free transmit memory, with what the dataplane may still give of this share.
    fn spare(&self, share: u64) -> u64 {
        let Some(tx) = &self.tx else { return share };
        let to_come = if self.memory.is_refused() { 0 } else { share };
        tx.0.free_bytes() + to_come.saturating_sub(tx.0.all_bytes())
    }

    fn memory_now(&self, share: u64) -> Seen {
        let free = self.tx.as_ref().map_or(share, |tx| tx.0.free_bytes());
        Seen { spare: self.spare(share), free }
    }

    /// Whether there is clearly more of either kind than `seen`.
    fn has_more(&self, now: Seen, seen: Seen, share: u64) -> bool {
        let all = self.tx.as_ref().map_or(share, |tx| tx.0.all_bytes());
        is_more(now.free, seen.free, all) || is_more(now.spare, seen.spare, share.max(all))
    }

    /// How many bytes a connection may hold now, with a send buffer of this size.
    pub fn send_limit(&self, share: u64, send_buffer: usize) -> usize {
        send_buffer.min(most(self.spare(share), share))
    }

    /// A socket has to wait for memory.
    pub fn starves(&mut self, share: u64, id: Id) {
        self.starving.push(id);
        self.memory_seen = self.memory_now(share);
    }
}

impl Core {
    /// An elastic thread's share of the transmit memory.
    pub fn tx_share(&self) -> u64 {
        self.tx_bytes / self.elastic_count as u64
    }

    /// How many bytes a connection may hold: if it waits for memory, as much as there is for it.
    pub fn send_limit(&self, id: Id) -> usize {
        let Some(socket) = self.sockets.get(id) else { return 0 };
        let send_buffer = socket.send_buffer();
        match socket.starving {
            false => send_buffer,
            true => self.elastic_threads[socket.elastic].send_limit(self.tx_share(), send_buffer),
        }
    }

    /// There is memory for a connection again, or its own was acknowledged.
    pub fn no_longer_starves(&mut self, id: Id) {
        if let Some(socket) = self.sockets.get_mut(id) {
            socket.starving = false;
        }
    }

    /// All transmit memory is free, because its dataplane was lost: every socket that waits for
    /// some is told.
    pub fn feed_all(&mut self, elastic: usize) {
        for id in core::mem::take(&mut self.elastic_threads[elastic].starving) {
            self.no_longer_starves(id);
            self.notify(id, EPOLLOUT | EPOLLWRNORM);
        }
    }

    /// After a cycle: sockets that wait for memory are told if there is more than before.
    pub fn feed_starving(&mut self, elastic: usize) {
        let share = self.tx_share();
        let own = &mut self.elastic_threads[elastic];
        if own.starving.is_empty() {
            return;
        }
        let (now, seen) = (own.memory_now(share), own.memory_seen);
        if !own.has_more(now, seen, share) {
            // What is told of is a growth from the least.
            let (spare, free) = (now.spare.min(seen.spare), now.free.min(seen.free));
            own.memory_seen = Seen { spare, free };
            return;
        }
        own.memory_seen = now;
        for id in core::mem::take(&mut own.starving) {
            let Some(socket) = self.sockets.get_mut(id).filter(|socket| socket.starving) else {
                continue;
            };
            let limit = socket.send_buffer().min(most(now.spare, share));
            socket.starving = match &socket.kind {
                Kind::Stream(stream) => stream.phase == Phase::Open && !stream.is_writable(limit),
                _ => false,
            };
            if socket.starving {
                self.elastic_threads[elastic].starving.push(id);
            } else {
                self.notify(id, EPOLLOUT | EPOLLWRNORM);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{SEND_BUFFER, SEND_BUFFER_MAX};

    const SHARE: u64 = 64 << 20;

    #[test]
    fn waiters_hear_whatever_was_free_when_they_began_to_wait() {
        for seen in [0, 1 << 20, SHARE / 2, SHARE - SHARE / 16, SHARE - 4096] {
            assert!(!is_more(seen, seen, SHARE));
            assert!(is_more(SHARE, seen, SHARE), "{seen}");
        }
        assert!(is_more(1, 0, SHARE) && !is_more((9 << 20) - 1, 8 << 20, SHARE));
    }

    #[test]
    fn few_get_what_they_ask_for_and_thousands_leave_some() {
        assert!(most(SHARE, SHARE) >= 4 << 20);
        for buffer in [SEND_BUFFER, SEND_BUFFER_MAX] {
            for (holders, least) in [(600, 2 << 10), (4_000, 2 << 10), (10_000, 512)] {
                let mut spare = SHARE;
                for _ in 0..holders {
                    spare -= most(spare, SHARE).min(buffer) as u64;
                }
                assert!(most(spare, SHARE) >= least, "{holders} leave {spare}");
                assert!(spare >= 1 << 20, "{holders} leave {spare}");
            }
        }
    }
}

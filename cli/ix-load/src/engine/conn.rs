//! One connection of the engine.
use super::overdue::Queue;
use super::slots::Window;
use super::stats::Class;
use super::udp::Parts;
use crate::protocol::Partial;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Down,
    Dialing,
    Up,
}

pub(super) struct Conn {
    /// When the last reply came, or the first request after it was sent.
    pub(super) progress_ns: u64,
    pub(super) window: Window,
    pub(super) partial: Partial,
    pub(super) queue: Queue,
    pub(super) life: Life,
    pub(super) class: Class,
    /// Requests and replies since the connection was opened.
    pub(super) asked: u64,
    pub(super) answers: u64,
    /// The beginning of a reply that is not complete yet.
    pub(super) kept: Option<Box<[u8]>>,
    /// Replies of which some datagrams came.
    pub(super) parts: Vec<Parts>,
}

impl Conn {
    pub(super) fn new(class: Class, first: u32, depth: u32) -> Conn {
        Conn {
            progress_ns: 0,
            window: Window { first, depth, head: 0, len: 0 },
            partial: Partial::default(),
            queue: Queue::default(),
            life: Life::Down,
            class,
            asked: 0,
            answers: 0,
            kept: None,
            parts: Vec::new(),
        }
    }

    pub(super) fn reset(&mut self) {
        (self.life, self.partial, self.kept) = (Life::Down, Partial::default(), None);
        self.parts.clear();
        (self.asked, self.answers) = (0, 0);
    }
}

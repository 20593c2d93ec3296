//! Hearing of links that go down and come back.
use crate::link::parse_ifinfo;
use crate::netlink::{self, messages};
use crate::{Error, Link};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Something happened to a link that matters to who uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It is up and has a carrier.
    Up(String),
    /// It was set down or lost its carrier.
    Down(String),
    /// It is gone.
    Removed(String),
    /// It has another name now.
    Renamed {
        /// Its name before.
        from: String,
        /// Its name now.
        to: String,
    },
}

/// Says when links of one namespace change.
pub struct LinkWatch {
    fd: OwnedFd,
    /// Known links by number: name, and whether it was running.
    known: HashMap<u32, (String, bool)>,
}

impl LinkWatch {
    /// Watches the calling thread's namespace, starting from `now` (its links).
    pub fn new(now: &[Link]) -> Result<LinkWatch, Error> {
        let known = now.iter().map(|l| (l.index, (l.name.clone(), l.running))).collect();
        Ok(LinkWatch { fd: netlink::open(libc::RTMGRP_LINK)?, known })
    }

    /// A descriptor that polls readable when there is something to hear.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// What changed since the last call; never waits.
    pub fn changes(&mut self) -> Vec<LinkChange> {
        let mut changes = Vec::new();
        let mut buffer = vec![0u8; 16 << 10];
        while let Ok(n) = netlink::receive(&self.fd, &mut buffer, libc::MSG_DONTWAIT) {
            for (kind, _, _, body) in messages(&buffer[..n]) {
                if let Some(link) = parse_ifinfo(body) {
                    changes.extend(self.note(kind, link));
                }
            }
        }
        changes
    }

    fn note(&mut self, kind: u16, link: Link) -> Option<LinkChange> {
        if kind == libc::RTM_DELLINK {
            return self.known.remove(&link.index).map(|(name, _)| LinkChange::Removed(name));
        }
        let before = self.known.insert(link.index, (link.name.clone(), link.running));
        if let Some((from, _)) = before.as_ref().filter(|(from, _)| *from != link.name) {
            return Some(LinkChange::Renamed { from: from.clone(), to: link.name });
        }
        match (before.map(|(_, running)| running), link.running) {
            (Some(true), false) => Some(LinkChange::Down(link.name)),
            (Some(false) | None, true) => Some(LinkChange::Up(link.name)),
            _ => None,
        }
    }
}

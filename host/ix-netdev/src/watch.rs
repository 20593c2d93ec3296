//! Watching links that go down, come back or change.
use crate::Link;
use crate::link::{parse_ifinfo, was_moved};
use crate::netlink::{self, messages};
use ix_sys::{Error, socket};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A change of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It is up and has a carrier.
    Up(String),
    /// It was set down or lost its carrier.
    Down(String),
    /// It was removed.
    Removed(String),
    /// It was moved to another namespace.
    Moved(String),
    /// It has another name now.
    Renamed {
        /// Its name before.
        from: String,
        /// Its name now.
        to: String,
    },
    /// It has another MTU or another Ethernet address.
    Altered(String),
    /// Its alias was changed.
    Alias {
        /// Its name.
        name: String,
        /// The new alias; empty: it was removed.
        text: String,
    },
}

/// Reports changes of the links of one namespace.
pub struct LinkWatch {
    fd: OwnedFd,
    /// Known links by number.
    known: HashMap<u32, Link>,
}

impl LinkWatch {
    /// Watches the calling thread's namespace, starting from `now` (its links).
    pub fn new(now: &[Link]) -> Result<LinkWatch, Error> {
        let known = now.iter().map(|link| (link.index, link.clone())).collect();
        Ok(LinkWatch { fd: netlink::open(libc::RTMGRP_LINK as u32)?, known })
    }

    /// A descriptor that polls readable when there are changes.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the link of this name was up and had a carrier when its changes were last read;
    /// `None`: there was none.
    pub fn is_running(&self, name: &str) -> Option<bool> {
        self.known.values().find(|link| link.name == name).map(|link| link.running)
    }

    /// The changes since the last call; never blocks.
    pub fn changes(&mut self) -> Vec<LinkChange> {
        let mut changes = Vec::new();
        let mut buffer = vec![0u8; 16 << 10];
        while let Ok(n) = socket::receive(self.fd(), &mut buffer, libc::MSG_DONTWAIT) {
            for (kind, _, _, body) in messages(&buffer[..n]) {
                match parse_ifinfo(body) {
                    Some(link) if kind == libc::RTM_DELLINK => {
                        let gone = self.known.remove(&link.index).map(|gone| gone.name);
                        let how =
                            if was_moved(body) { LinkChange::Moved } else { LinkChange::Removed };
                        changes.extend(gone.map(how));
                    }
                    Some(link) => changes.extend(self.note(link)),
                    None => {}
                }
            }
        }
        changes
    }

    fn note(&mut self, link: Link) -> Vec<LinkChange> {
        let before = self.known.insert(link.index, link.clone());
        let known_alias = before.as_ref().map_or("", |before| before.alias.as_str());
        let is_altered =
            before.as_ref().is_some_and(|old| (old.mtu, old.mac) != (link.mtu, link.mac));
        let altered = is_altered.then(|| LinkChange::Altered(link.name.clone()));
        let (name, text) = (link.name.clone(), link.alias);
        let alias = (known_alias != text).then_some(LinkChange::Alias { name, text });
        let change = match before {
            Some(before) if before.name != link.name => {
                Some(LinkChange::Renamed { from: before.name, to: link.name })
            }
            Some(before) if before.running && !link.running => Some(LinkChange::Down(link.name)),
            Some(before) if before.running => None,
            _ => link.running.then_some(LinkChange::Up(link.name)),
        };
        change.into_iter().chain(altered).chain(alias).collect()
    }
}

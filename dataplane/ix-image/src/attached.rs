//! The processes of the program that share this dataplane, in the dataplane's main thread: the
//! broker says which attach; a pidfd, or a bell that is closed, says which have ended. The broker
//! says it too, of a process that has executed another program and whose bells others still have.
use ix_dataplane::{CrossingPages, Dataplane, Life, Shares};
use ix_entry::Channel;
use ix_proto::{Codec, FromImage, ToImage};
use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Time between looks at whether anything is left of processes that have ended, ms: the first, and
/// the longest. Most leave nothing, and others wait for their numbers.
const LOOKS_MS: (i32, i32) = (1, 50);
/// Bytes of a note that a process has closed a bell: its number, and which one it is.
const NOTE: usize = 8;
/// Most notes that are read at a time.
const NOTES_MAX: usize = 32;

/// The processes that are attached.
pub struct Attached<'a> {
    dataplane: &'a Dataplane,
    /// Those that have not ended, by their numbers.
    processes: BTreeMap<usize, Begun>,
    /// What is prepared for processes that have not asked yet, by their numbers.
    prepared: BTreeMap<usize, Life>,
    joins: Channel,
    /// Brings notes of closed bells.
    closed: PipeReader,
    /// Time until the next look at what has ended.
    look_ms: i32,
}

/// A process that has not ended.
struct Begun {
    life: Life,
    pidfd: OwnedFd,
}

/// Notes that a process has closed a bell.
pub fn note(mut closed: &PipeWriter, life: Life) {
    let number = (life.number as u32).to_ne_bytes();
    let mut note = [0; NOTE];
    note[..4].copy_from_slice(&number);
    note[4..].copy_from_slice(&life.which.to_ne_bytes());
    // Once for each process and elastic thread: the pipe has room, and takes all or nothing.
    let _ = closed.write(&note);
}

impl<'a> Attached<'a> {
    /// With the program's first process.
    pub fn new(
        dataplane: &'a Dataplane,
        first: OwnedFd,
        joins: Channel,
        closed: PipeReader,
    ) -> Attached<'a> {
        let first = Begun { life: Life::FIRST, pidfd: first };
        Attached {
            dataplane,
            processes: BTreeMap::from([(0, first)]),
            prepared: BTreeMap::new(),
            joins,
            closed,
            look_ms: LOOKS_MS.0,
        }
    }

    /// Returns when the last process has ended, or the broker, whose channel this is.
    pub fn serve(&mut self, channel: BorrowedFd<'_>) {
        while !self.processes.is_empty() {
            let poll = |fd: BorrowedFd<'_>, events| libc::pollfd {
                fd: fd.as_raw_fd(),
                events,
                revents: 0,
            };
            // Only the hang-up of the channel is of interest, which needs no asking.
            let mut polls = vec![
                poll(channel, 0),
                poll(self.joins.as_fd(), libc::POLLIN),
                poll(self.closed.as_fd(), libc::POLLIN),
            ];
            polls.extend(self.processes.values().map(|one| poll(one.pidfd.as_fd(), libc::POLLIN)));
            let timeout_ms = if self.dataplane.waits_for_ends() { self.look_ms } else { -1 };
            let count = polls.len() as libc::nfds_t;
            // SAFETY: an array with its length.
            if unsafe { libc::poll(polls.as_mut_ptr(), count, timeout_ms) } < 0 {
                continue;
            }
            let happened = |index: usize| polls[index].revents != 0;
            if happened(0) {
                return;
            }
            let ended =
                self.processes.keys().zip(&polls[3..]).filter(|(_, poll)| poll.revents != 0);
            let mut ended: Vec<usize> = ended.map(|(number, _)| *number).collect();
            let (is_told, is_closed) = (happened(1), happened(2));
            // Who attaches now keeps the dataplane, even if all others have just ended.
            if is_told && !self.hear(&mut ended) {
                return;
            }
            if is_closed {
                self.read_closed(&mut ended);
            }
            self.look_ms = (self.look_ms * 2).min(LOOKS_MS.1);
            for number in ended {
                let has_begun = self.processes.remove(&number).is_some();
                let was_prepared = self.prepared.remove(&number).is_some();
                // The end of the last one is the end of the dataplane.
                if was_prepared || has_begun && !self.processes.is_empty() {
                    self.dataplane.detach(number);
                    self.look_ms = LOOKS_MS.0;
                }
            }
            for number in self.dataplane.take_gone() {
                self.say(&FromImage::Parted { number });
            }
        }
    }

    /// Adds those that have closed a bell to `ended`. What was heard of a process whose number
    /// another one has by now is passed over.
    fn read_closed(&mut self, ended: &mut Vec<usize>) {
        let mut notes = [0; NOTE * NOTES_MAX];
        // Readable, so this does not wait. The rest is read the next time.
        let read = self.closed.read(&mut notes).unwrap_or(0);
        for note in notes[..read].chunks_exact(NOTE) {
            let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|n| note[at + n]));
            let life = Life { number: word(0) as usize, which: word(4) };
            let begun = self.processes.get(&life.number).map(|begun| begun.life);
            if begun.or(self.prepared.get(&life.number).copied()) == Some(life) {
                ended.push(life.number);
            }
        }
    }

    /// Reads what the broker says, and adds those that have executed another program to `ended`.
    /// False: it has ended, or does not want this dataplane any more.
    fn hear(&mut self, ended: &mut Vec<usize>) -> bool {
        loop {
            match self.joins.try_receive() {
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return true,
                Ok(Some((bytes, fds))) => match ToImage::decode(&bytes) {
                    Ok(ToImage::Join { number, given_bytes }) => {
                        self.join(number, given_bytes, fds);
                    }
                    Ok(ToImage::Begin { number }) => {
                        // Without its pidfd a closed bell says that it has ended.
                        for pidfd in fds {
                            // If it has let go already, nothing is prepared any more.
                            let Some(life) = self.prepared.remove(&number) else { break };
                            self.processes.insert(number, Begun { life, pidfd });
                        }
                    }
                    Ok(ToImage::Executed { number }) => {
                        // One that has ended already may have another one's number soon.
                        let is_there = self.processes.contains_key(&number)
                            || self.prepared.contains_key(&number);
                        ended.extend(is_there.then_some(number));
                    }
                    _ => {}
                },
                Ok(None) | Err(_) => return false,
            }
        }
    }

    fn join(&mut self, number: usize, given_bytes: u64, fds: Vec<OwnedFd>) {
        let message = match self.attach(number, given_bytes, fds) {
            Ok((life, process)) => {
                match process {
                    Some(pidfd) => _ = self.processes.insert(number, Begun { life, pidfd }),
                    None => _ = self.prepared.insert(number, life),
                }
                FromImage::Joined { number }
            }
            Err(why) => FromImage::NotJoined { number, why },
        };
        self.say(&message);
    }

    /// Maps what the process shares; returns its pidfd as well. `None`: no process has asked for it
    /// yet.
    fn attach(
        &self,
        number: usize,
        given_bytes: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<(Life, Option<OwnedFd>), String> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("the dataplane has too many open descriptors");
        let (written, read, arena) = (next()?, next()?, next()?);
        let threads = self.dataplane.threads();
        let bells = (0..threads).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        let process = fds.next();
        let pages = CrossingPages::map_another(written.as_fd(), read.as_fd(), threads);
        let shares = Shares::new(pages.map_err(|e| e.to_string())?, bells);
        let attached = self.dataplane.attach(number, shares, (arena.as_fd(), given_bytes));
        Ok((attached.map_err(|refused| refused.to_string())?, process))
    }

    fn say(&self, message: &FromImage) {
        // If the broker does not listen it has ended.
        let _ = self.joins.try_send(&message.encode(), &[]);
    }
}

//! The processes of the program that share this dataplane, in the dataplane's main thread: the
//! broker says which attach; a pidfd, or a bell that is closed, says which have ended. The broker
//! says it too, of a process that has executed another program and whose bells others still have.
use ix_dataplane::{CrossingPages, Dataplane, Shares};
use ix_entry::Channel;
use ix_proto::{Codec, FromImage, ToImage};
use std::collections::BTreeMap;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Time between looks at whether anything is left of processes that have ended, ms.
const LOOK_MS: i32 = 50;

/// The processes that are attached.
pub struct Attached<'a> {
    dataplane: &'a Dataplane,
    /// Those that have not ended, each with its pidfd.
    processes: BTreeMap<usize, OwnedFd>,
    joins: Channel,
    /// Brings the numbers of processes that have closed their bells.
    closed: PipeReader,
}

/// Notes that a process has closed a bell.
pub fn note(mut closed: &PipeWriter, number: usize) {
    // A number below 64, once for each process and elastic thread: the pipe has room.
    let _ = closed.write(&[number as u8]);
}

impl<'a> Attached<'a> {
    /// With the program's first process.
    pub fn new(
        dataplane: &'a Dataplane,
        first: OwnedFd,
        joins: Channel,
        closed: PipeReader,
    ) -> Attached<'a> {
        Attached { dataplane, processes: BTreeMap::from([(0, first)]), joins, closed }
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
            polls.extend(self.processes.values().map(|fd| poll(fd.as_fd(), libc::POLLIN)));
            let timeout_ms = if self.dataplane.waits_for_ends() { LOOK_MS } else { -1 };
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
            if happened(2) {
                ended.extend(self.read_closed());
            }
            // A process that begins now may have a number that was noted for another one.
            ended.retain(|number| self.processes.contains_key(number));
            // Who attaches now keeps the dataplane, even if all others have just ended.
            if happened(1) && !self.hear(&mut ended) {
                return;
            }
            for number in ended {
                let has_ended = self.processes.remove(&number).is_some();
                // The end of the last one is the end of the dataplane.
                if has_ended && !self.processes.is_empty() {
                    self.dataplane.detach(number);
                }
            }
            for number in self.dataplane.take_gone() {
                self.say(&FromImage::Parted { number });
            }
        }
    }

    fn read_closed(&mut self) -> Vec<usize> {
        let mut numbers = [0; 256];
        // Readable, so this does not wait.
        let read = self.closed.read(&mut numbers).unwrap_or(0);
        numbers[..read].iter().map(|number| usize::from(*number)).collect()
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
                        // It was prepared. Without its pidfd a closed bell says that it has ended.
                        fds.into_iter().for_each(|process| {
                            self.processes.insert(number, process);
                        });
                    }
                    Ok(ToImage::Executed { number }) => ended.push(number),
                    _ => {}
                },
                Ok(None) | Err(_) => return false,
            }
        }
    }

    fn join(&mut self, number: usize, given_bytes: u64, fds: Vec<OwnedFd>) {
        let message = match self.attach(number, given_bytes, fds) {
            Ok(process) => {
                process.map(|process| self.processes.insert(number, process));
                FromImage::Joined { number }
            }
            Err(why) => FromImage::NotJoined { number, why },
        };
        self.say(&message);
    }

    /// Maps what the process shares; returns its pidfd. `None`: it is for a process that has not
    /// asked yet.
    fn attach(
        &self,
        number: usize,
        given_bytes: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<Option<OwnedFd>, String> {
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or("the dataplane has too many open descriptors");
        let (written, read, arena) = (next()?, next()?, next()?);
        let threads = self.dataplane.threads();
        let bells = (0..threads).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
        let process = fds.next();
        let pages = CrossingPages::map_another(written.as_fd(), read.as_fd(), threads);
        let shares = Shares::new(pages.map_err(|e| e.to_string())?, bells);
        let attached = self.dataplane.attach(number, shares, (arena.as_fd(), given_bytes));
        attached.map_err(|refused| refused.to_string())?;
        Ok(process)
    }

    fn say(&self, message: &FromImage) {
        // If the broker does not listen it has ended.
        let _ = self.joins.try_send(&message.encode(), &[]);
    }
}

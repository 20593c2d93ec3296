//! The redirection table of an interface with receive-side scaling, as the broker writes it.
//!
//! Writing it takes CAP_NET_ADMIN, which the dataplane does not have. The dataplane asks over a
//! socket ([`ix_nic::attach_table`]); [`RssTable`] writes and replies. Flow group `g` owns the
//! entries whose number is `g` modulo [`FLOW_GROUPS`]. A queue pair that has several queues gets
//! its flow groups on all of them in turn. Linux's own packets follow the table as well.
use ix_nic::{TableAnswer, TableRequest, initial_queue};
use ix_sys::Interface;
use ix_sys::interface::Rss;
use ix_wire::FLOW_GROUPS;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

/// An interface whose redirection table can be written.
pub(crate) trait WriteTable: Send {
    /// Replaces the whole table, of the same length.
    fn write(&self, table: &[u32]) -> io::Result<()>;
}

impl WriteTable for Interface {
    fn write(&self, table: &[u32]) -> io::Result<()> {
        self.set_rss_table(table)
    }
}

/// How the queues of an interface are dealt out: queue `q` belongs to queue pair `q % pairs`
/// ([`ix_nic::NicInfo::pair_of`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deal {
    /// Queue pairs, at least one.
    pub pairs: usize,
    /// Queues, at least as many.
    pub queues: usize,
}

impl Deal {
    /// The queue of this pair that a flow group goes to.
    fn queue_of(self, group: usize, pair: usize) -> u32 {
        let of_pair = (self.queues - pair).div_ceil(self.pairs);
        (pair + self.pairs * (group / self.pairs % of_pair)) as u32
    }

    /// The queue of a flow group before the table was ever changed.
    fn initial(self, group: usize) -> u32 {
        self.queue_of(group, initial_queue(group, self.pairs))
    }
}

/// The broker's end. Dropping it restores the table as it was found.
pub(crate) struct RssTable {
    name: String,
    device: Box<dyn WriteTable>,
    deal: Deal,
    table: Vec<u32>,
    found: Vec<u32>,
    socket: UnixDatagram,
    answer: TableAnswer,
}

impl RssTable {
    /// Whether the flow groups fit on this table.
    pub(crate) fn fits(rss: &Rss, deal: Deal) -> bool {
        deal.pairs > 1 && !rss.table.is_empty() && rss.table.len().is_multiple_of(FLOW_GROUPS)
    }

    /// Spreads the flow groups over the queues; returns the dataplane's end as well.
    pub(crate) fn open(
        name: &str,
        device: Box<dyn WriteTable>,
        found: Vec<u32>,
        deal: Deal,
    ) -> io::Result<(RssTable, OwnedFd)> {
        let queue = |entry: usize| deal.initial(entry % FLOW_GROUPS);
        let table: Vec<u32> = (0..found.len()).map(queue).collect();
        let (socket, other) = UnixDatagram::pair()?;
        for end in [&socket, &other] {
            end.set_nonblocking(true)?;
        }
        device.write(&table)?;
        let (name, answer) = (name.to_owned(), TableAnswer::default());
        let rss = RssTable { name, device, deal, table, found, socket, answer };
        Ok((rss, other.into()))
    }

    /// Readable when the dataplane asks for a change.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Carries out all requests in one write, and replies. Returns a line for the user when the
    /// interface refuses a write for the first time.
    pub(crate) fn service(&mut self) -> Option<String> {
        let mut changed = self.table.clone();
        let (mut asked, mut wrong) = (0, 0);
        let mut request = [0; TableRequest::BYTES + 1];
        while let Ok(len) = self.socket.recv(&mut request) {
            asked += 1;
            match self.entry(&request[..len]) {
                Some((group, queue)) => {
                    let entries = changed.iter_mut().skip(group).step_by(FLOW_GROUPS);
                    entries.for_each(|entry| *entry = queue);
                }
                None => wrong += 1,
            }
        }
        if asked == 0 {
            return None;
        }
        let written = if changed == self.table { Ok(()) } else { self.device.write(&changed) };
        let first = self.answer.refused == 0;
        self.answer.done += asked;
        let line = match written {
            Ok(()) => {
                self.table = changed;
                self.answer.refused += wrong;
                None
            }
            Err(e) => {
                self.answer.refused += asked;
                let name = &self.name;
                first.then(|| {
                    format!(
                        "afxdp:{name}: cannot write its redirection table: {e}; flow groups that \
                         move are handed over in software"
                    )
                })
            }
        };
        // A dataplane that did not read this reply reads the next one.
        let _ = self.socket.send(&self.answer.to_bytes());
        line
    }

    /// Any process of the program may send any bytes.
    fn entry(&self, request: &[u8]) -> Option<(usize, u32)> {
        let TableRequest { flow_group, queue } = TableRequest::from_bytes(request)?;
        let (group, pair) = (flow_group as usize, queue as usize);
        let fits = group < FLOW_GROUPS && pair < self.deal.pairs;
        fits.then(|| (group, self.deal.queue_of(group, pair)))
    }

    /// `back` is the interface after it was made again. It gets the table that the old one had.
    pub(crate) fn again(&mut self, mut back: RssTable) -> io::Result<()> {
        std::mem::swap(&mut self.device, &mut back.device);
        std::mem::swap(&mut self.found, &mut back.found);
        // The old one goes first: it restores the table that it found, and it has the name that the
        // new interface has as well.
        drop(back);
        self.device.write(&self.table)
    }
}

impl Drop for RssTable {
    fn drop(&mut self) {
        // The interface may have been removed.
        let _ = self.device.write(&self.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ix_nic::{
        NicInfo, NicKind, SetReta, Steering, XdpBind, XdpFeatures, XdpMode, attach_table,
    };
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    const SAME: Deal = Deal { pairs: 2, queues: 2 };

    /// An interface with a table of 256 entries that may refuse to change.
    #[derive(Clone)]
    struct Fake(Arc<Mutex<(Vec<u32>, bool, usize)>>);

    impl Fake {
        fn new() -> Fake {
            Fake(Arc::new(Mutex::new(((0..256).map(|n| n % 3).collect(), false, 0))))
        }

        fn table(&self) -> Vec<u32> {
            self.0.lock().unwrap().0.clone()
        }

        fn refuse(&self, refuses: bool) {
            self.0.lock().unwrap().1 = refuses;
        }

        fn writes(&self) -> usize {
            self.0.lock().unwrap().2
        }

        fn open(&self, queues: usize) -> io::Result<(RssTable, Arc<dyn SetReta>)> {
            self.open_dealt(Deal { pairs: queues, queues })
        }

        fn open_dealt(&self, deal: Deal) -> io::Result<(RssTable, Arc<dyn SetReta>)> {
            let (rss, fd) = RssTable::open("eth9", Box::new(self.clone()), self.table(), deal)?;
            Ok((rss, asked(fd, deal.pairs)))
        }
    }

    impl WriteTable for Fake {
        fn write(&self, table: &[u32]) -> io::Result<()> {
            let mut state = self.0.lock().unwrap();
            if state.1 {
                return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            }
            assert_eq!(table.len(), 256);
            state.0 = table.to_vec();
            state.2 += 1;
            Ok(())
        }
    }

    /// The dataplane's end.
    fn asked(fd: OwnedFd, queues: usize) -> Arc<dyn SetReta> {
        let (mode, features) = (XdpMode::Auto, XdpFeatures::DEFAULT);
        let bind = XdpBind { ifindex: 1, mode, frags: false, sockets: 2, features };
        let info = NicInfo {
            kind: NicKind::Afxdp(bind),
            name: "eth9".to_owned(),
            mode: String::new(),
            queues,
            mac: [2; 6],
            mtu: 1500,
            steering: Steering::Rss([0; 40]),
            partial_checksums: false,
            shared_frames: false,
            vlan: None,
            table_fd: true,
        };
        attach_table(&info, fd).expect("it maps nothing")
    }

    fn comes_to_rest(asked: &dyn SetReta) {
        let end = Instant::now() + Duration::from_secs(20);
        while asked.is_sending() {
            assert!(Instant::now() < end, "it was answered");
        }
    }

    #[test]
    fn a_migration_writes_the_table_once_and_is_answered() {
        let fake = Fake::new();
        let found = fake.table();
        let (mut rss, asked) = fake.open(2).unwrap();
        let begin: Vec<u32> = (0..256).map(|entry| entry % 2).collect();
        assert_eq!(fake.table(), begin, "dealt out at the start");
        assert!(!asked.is_sending());
        for group in [0, 2, 100] {
            asked.set(group, 1).unwrap();
        }
        assert!(asked.is_sending(), "nobody has written it");
        assert_eq!(fake.table(), begin);
        let writes = fake.writes();
        assert_eq!(rss.service(), None);
        assert_eq!(fake.writes(), writes + 1, "one write for all of them");
        let mut wanted = begin;
        for group in [0, 2, 100] {
            (wanted[group], wanted[group + 128]) = (1, 1);
        }
        assert_eq!(fake.table(), wanted);
        comes_to_rest(&*asked);
        // And back. An entry that is right already is not written.
        asked.set(2, 0).unwrap();
        asked.set(100, 1).unwrap();
        rss.service();
        (wanted[2], wanted[130]) = (0, 0);
        assert_eq!(fake.table(), wanted);
        let writes = fake.writes();
        asked.set(2, 0).unwrap();
        rss.service();
        assert_eq!(fake.writes(), writes);
        comes_to_rest(&*asked);
        drop(rss);
        assert_eq!(fake.table(), found, "put back");
        assert!(asked.set(0, 1).is_err(), "nobody is there any more");
    }

    /// Each group arrives on a queue of the pair that has it, and all queues have some.
    #[test]
    fn groups_of_a_pair_are_on_all_its_queues() {
        for (pairs, queues) in [(2, 2), (2, 3), (2, 8), (3, 8), (3, 64)] {
            let fake = Fake::new();
            let (mut rss, asked) = fake.open_dealt(Deal { pairs, queues }).unwrap();
            let pair_of = |group: usize| fake.table()[group] as usize % pairs;
            assert!((0..FLOW_GROUPS).all(|group| pair_of(group) == initial_queue(group, pairs)));
            let mut used: Vec<u32> = fake.table();
            used.sort_unstable();
            used.dedup();
            assert_eq!(used, (0..queues as u32).collect::<Vec<_>>(), "{pairs} {queues}");
            (0..FLOW_GROUPS).for_each(|group| asked.set(group, 1).unwrap());
            assert!(asked.set(0, pairs).is_err(), "no such pair");
            rss.service();
            let table = fake.table();
            assert!((0..FLOW_GROUPS).all(|group| pair_of(group) == 1), "{table:?}");
            assert!(table.iter().all(|queue| (*queue as usize) < queues), "{table:?}");
            assert_eq!(table[..128], table[128..]);
        }
    }

    #[test]
    fn an_interface_that_refuses_is_told_of_once_and_keeps_its_table() {
        let fake = Fake::new();
        fake.refuse(true);
        assert!(fake.open(2).is_err(), "software it is");
        fake.refuse(false);
        let (mut rss, asked) = fake.open(2).unwrap();
        let before = fake.table();
        fake.refuse(true);
        asked.set(0, 1).unwrap();
        let line = rss.service().expect("told");
        assert!(line.starts_with("afxdp:eth9: cannot write its redirection table: "), "{line}");
        comes_to_rest(&*asked);
        asked.set(2, 1).unwrap();
        assert_eq!(rss.service(), None, "once");
        comes_to_rest(&*asked);
        assert_eq!(fake.table(), before);
        // The interface may accept later. A refused change is not repeated by itself.
        fake.refuse(false);
        asked.set(4, 1).unwrap();
        rss.service();
        assert_eq!((fake.table()[4], fake.table()[2], fake.table()[0]), (1, 0, 0));
    }

    #[test]
    fn rubbish_changes_nothing() {
        let fake = Fake::new();
        let device = Box::new(fake.clone());
        let (mut rss, fd) = RssTable::open("eth9", device, fake.table(), SAME).unwrap();
        let socket = UnixDatagram::from(fd.try_clone().unwrap());
        let asked = asked(fd, 2);
        let before = fake.table();
        for (group, queue) in [(128, 0), (0, 2), (usize::MAX, 0)] {
            assert!(asked.set(group, queue).is_err());
        }
        let wrong: [&[u8]; 5] =
            [b"", b"x", &[0xff; 8], &[0; 9], &[[128u8, 0, 0, 0], [0; 4]].concat()];
        for bytes in wrong {
            socket.send(bytes).unwrap();
        }
        assert_eq!(rss.service(), None);
        assert_eq!((fake.table(), rss.answer), (before, TableAnswer { done: 5, refused: 5 }));
    }

    #[test]
    fn an_interface_that_is_back_gets_the_table_that_the_old_one_had() {
        let (old, new) = (Fake::new(), Fake::new());
        let (mut rss, asked) = old.open(2).unwrap();
        asked.set(0, 1).unwrap();
        rss.service();
        let (again, _) = new.open(2).unwrap();
        let had = old.table();
        rss.again(again).unwrap();
        assert_eq!(new.table(), had);
        asked.set(2, 1).unwrap();
        rss.service();
        assert_eq!(new.table()[2], 1, "the new one is written from now on");
    }

    #[test]
    fn a_device_without_a_table_says_so() {
        let loopback = Interface::new("lo").unwrap();
        assert_eq!(loopback.rss(), None);
        assert!(loopback.set_rss_table(&[0; 128]).is_err());
        let rss = |len| Rss { table: vec![0; len], key: [0; 40] };
        assert!(RssTable::fits(&rss(128), SAME) && RssTable::fits(&rss(512), SAME));
        assert!(!RssTable::fits(&rss(0), SAME) && !RssTable::fits(&rss(64), SAME));
        let one = |queues| Deal { pairs: 1, queues };
        assert!(!RssTable::fits(&rss(128), one(1)), "one queue has all");
        assert!(!RssTable::fits(&rss(128), one(8)), "one thread has all: Linux's table stays");
    }
}

//! The state machine of migrations alone: no elastic thread, no device, no memory. Three machines
//! exchange messages and packets in all kinds of orders. Packets of a group must be processed in
//! the order in which they came, each once, and only by the owner of the group.
use super::message::{Forwarded, Message, Ship};
use super::on_cpu::OnCpu;
use super::{Action, Input, MigrateError, Migrations, Sight, Table, Way};
use crate::receive::batch::Origin;
use ix_mem::Mbuf;
use ix_nic::RxPacket;
use ix_proto::GroupSet;
use ix_proto::MigrationEnd;
use ix_random::Rng;
use std::collections::VecDeque;

const THREADS: usize = 3;
const GROUPS: usize = 4;

/// What one machine sees of its thread.
struct Eyes<'a> {
    now_us: u64,
    owners: &'a [usize],
    waiting: usize,
    in_order: bool,
}

impl Sight for Eyes<'_> {
    fn now_us(&self) -> u64 {
        self.now_us
    }

    fn on_cpu(&self) -> OnCpu {
        OnCpu::in_virtual_time(self.now_us)
    }

    fn owner(&self, group: usize) -> usize {
        self.owners.get(group).copied().unwrap_or(0)
    }

    fn has_room(&self) -> bool {
        true
    }

    fn keeps_packets(&self) -> bool {
        false
    }

    fn ports(&self) -> usize {
        1
    }

    fn table(&self, _port: usize) -> Option<Table> {
        Some(Table { settled: false, in_order: self.in_order, is_sending: false })
    }

    fn waiting(&self, _port: usize) -> Option<usize> {
        Some(self.waiting)
    }

    fn handed(&self, _port: usize) -> u64 {
        0
    }
}

struct Thread {
    machine: Migrations,
    /// From each other thread, and from the device.
    rings: Vec<VecDeque<Forwarded>>,
    queue: VecDeque<u32>,
    records: Vec<(u64, MigrationEnd)>,
}

struct World {
    threads: Vec<Thread>,
    owners: Vec<usize>,
    /// The thread that has each group's flows; `None` while they are moving.
    places: Vec<Option<usize>>,
    /// The queue into which the device puts a group's packets.
    table: Vec<usize>,
    now_us: u64,
    /// A packet's number is `sent` of its group, times [`GROUPS`], plus the group.
    sent: Vec<u32>,
    handled: Vec<u32>,
    in_order: bool,
}

fn packet(number: u32) -> RxPacket {
    // SAFETY: no memory behind the number; it is only carried.
    RxPacket { mbuf: unsafe { Mbuf::from_frame(number) }, more: false }
}

impl World {
    fn new(in_order: bool) -> World {
        let owners: Vec<usize> = (0..GROUPS).map(|group| group % THREADS).collect();
        let thread = |index| Thread {
            machine: Migrations::new(index, |group| group % THREADS),
            rings: (0..THREADS).map(|_| VecDeque::new()).collect(),
            queue: VecDeque::new(),
            records: Vec::new(),
        };
        World {
            threads: (0..THREADS).map(thread).collect(),
            places: owners.iter().map(|owner| Some(*owner)).collect(),
            table: owners.clone(),
            owners,
            now_us: 1_000,
            sent: vec![0; GROUPS],
            handled: vec![0; GROUPS],
            in_order,
        }
    }

    /// A packet arrives.
    fn send(&mut self, group: usize) {
        let number = self.sent[group] * GROUPS as u32 + group as u32;
        self.sent[group] += 1;
        self.threads[self.table[group]].queue.push_back(number);
    }

    fn step(&mut self, index: usize, input: Input) {
        let thread = &mut self.threads[index];
        let waiting = thread.queue.len();
        let (now_us, in_order) = (self.now_us, self.in_order);
        thread.machine.step(input, &Eyes { now_us, owners: &self.owners, waiting, in_order });
        self.act(index);
    }

    fn act(&mut self, index: usize) {
        while let Some(action) = self.threads[index].machine.next_action() {
            match action {
                Action::Tell(to, message) => {
                    self.threads[to].rings[index].push_back(Forwarded::Message(message));
                }
                Action::HandOver { to, port, packet } => {
                    let ring = &mut self.threads[to].rings[index];
                    ring.push_back(Forwarded::Packet { port, packet });
                }
                Action::Leaves { group, to } => self.table[group] = to,
                Action::Ship { to, serial, groups, held, record } => {
                    for group in groups.iter() {
                        assert_eq!(self.places[group].take(), Some(index), "it was not here");
                        self.owners[group] = to;
                    }
                    let ship = Ship {
                        serial,
                        groups: Vec::new(),
                        frames: Vec::new(),
                        touched: Vec::new(),
                        to_announce: Vec::new(),
                        waiting: Vec::new(),
                        cookies: Vec::new(),
                        packets: held,
                        fences: Vec::new(),
                        queued: false,
                        unsent: Vec::new(),
                        record,
                        now_us: self.now_us,
                    };
                    let message = Forwarded::Message(Message::Ship(Box::new(ship)));
                    self.threads[to].rings[index].push_back(message);
                    self.step(index, Input::Shipped { serial, unsent: None });
                }
                Action::Arrived { group, .. } => {
                    assert_eq!(self.places[group].replace(index), None, "it is elsewhere");
                }
                Action::Misrouted(_) => panic!("no queue for a packet that is held"),
                Action::TellSent { .. } => panic!("nothing was built"),
                Action::Unpack(_)
                | Action::Touch(_)
                | Action::Announce(_)
                | Action::Send(_)
                | Action::Relink(_) => {}
            }
        }
    }

    /// One cycle of a thread: at most `batch` packets.
    fn cycle(&mut self, index: usize, batch: usize) {
        let mut burst = Vec::new();
        let thread = &mut self.threads[index];
        while burst.len() < batch {
            match thread.machine.pop_replay() {
                None => break,
                Some(Forwarded::Packet { packet, .. }) => burst.push((Origin::REPLAY, packet)),
                Some(Forwarded::Message(message)) => thread.machine.receive(index, message),
            }
        }
        for from in 0..THREADS {
            while burst.len() < batch {
                match thread.rings[from].pop_front() {
                    None => break,
                    Some(Forwarded::Packet { packet, .. }) => burst.push((from as u8, packet)),
                    Some(Forwarded::Message(message)) => {
                        thread.machine.receive(from, message);
                        break;
                    }
                }
            }
        }
        let room = if thread.machine.holds_too_many(1 << 20) { 0 } else { batch - burst.len() };
        let got = room.min(thread.queue.len());
        burst.extend(thread.queue.drain(..got).map(|number| (Origin::DEVICE, packet(number))));
        if room > 0 && thread.machine.is_active() {
            thread.machine.polled(0, room, got);
        }
        let mut here = Vec::new();
        for (from, packet) in burst {
            let number = packet.mbuf.frame();
            let group = number as usize % GROUPS;
            let thread = &mut self.threads[index];
            if thread.machine.is_home(group) {
                here.push(number);
                continue;
            }
            let waiting = thread.queue.len();
            let (now_us, in_order) = (self.now_us, self.in_order);
            let eyes = Eyes { now_us, owners: &self.owners, waiting, in_order };
            match thread.machine.way(group, from, &eyes) {
                Way::Here => here.push(number),
                Way::To(to) => {
                    let item = Forwarded::Packet { port: 0, packet };
                    self.act(index);
                    self.threads[to].rings[index].push_back(item);
                }
                Way::Hold => {
                    self.act(index);
                    let origin = Origin { port: 0, from };
                    self.threads[index].machine.hold(group, origin, packet);
                }
            }
            self.act(index);
        }
        for number in here {
            let group = number as usize % GROUPS;
            assert_eq!(self.places[group], Some(index), "handled where its group is not");
            assert_eq!(number / GROUPS as u32, self.handled[group], "overtaken or lost");
            self.handled[group] += 1;
        }
        if self.threads[index].machine.is_active() {
            self.step(index, Input::BetweenCycles);
        }
        let thread = &mut self.threads[index];
        let records = std::iter::from_fn(|| thread.machine.take_record());
        thread.records.extend(records.map(|record| (record.command, record.end)));
    }

    fn is_quiet(&self) -> bool {
        let quiet = |thread: &Thread| {
            !thread.machine.is_active()
                && thread.queue.is_empty()
                && thread.rings.iter().all(VecDeque::is_empty)
        };
        self.threads.iter().all(quiet)
    }
}

/// Migrations at random, many at a time. Returns how each ended.
fn play(seed: u64, in_order: bool) -> Vec<MigrationEnd> {
    let mut random = Rng::new(seed);
    let mut world = World::new(in_order);
    let mut wanted = 0;
    for round in 0..600 {
        world.now_us += 1 + random.below(120);
        for _ in 0..random.index(4) {
            world.send(random.index(GROUPS));
        }
        let index = random.index(THREADS);
        if round < 450 && random.per_mille(60) {
            let groups: GroupSet = (0..GROUPS).filter(|_| random.per_mille(500)).collect();
            let to = (index + 1 + random.index(THREADS - 1)) % THREADS;
            wanted += 1;
            match world.threads[index].machine.request(groups, to, wanted) {
                Ok(()) => {}
                Err(MigrateError::Busy | MigrateError::NoTarget) => wanted -= 1,
            }
        }
        if random.per_mille(400) && world.threads[index].machine.is_active() {
            world.step(index, Input::Returned);
        }
        world.cycle(index, 1 + random.index(5));
    }
    for _ in 0..20_000 {
        if world.is_quiet() {
            break;
        }
        world.now_us += 50;
        let index = random.index(THREADS);
        if world.threads[index].machine.is_active() {
            world.step(index, Input::Returned);
        }
        world.cycle(index, 8);
    }
    assert!(world.is_quiet(), "seed {seed}: something goes on for ever");
    assert_eq!(world.handled, world.sent, "seed {seed}");
    let records = world.threads.iter().flat_map(|thread| thread.records.iter().copied());
    let mut records: Vec<(u64, MigrationEnd)> = records.collect();
    records.sort_by_key(|(command, _)| *command);
    let commands: Vec<u64> = records.iter().map(|(command, _)| *command).collect();
    assert_eq!(commands, (1..=wanted).collect::<Vec<_>>(), "seed {seed}: one record each");
    records.into_iter().map(|(_, end)| end).collect()
}

#[test]
fn packets_keep_their_order_wherever_their_groups_go() {
    for in_order in [false, true] {
        let ends: Vec<MigrationEnd> = (0..400).flat_map(|seed| play(seed, in_order)).collect();
        let count = |wanted| ends.iter().filter(|end| **end == wanted).count();
        let moved = count(MigrationEnd::Early) + count(MigrationEnd::Bound);
        assert!(moved > 2_000, "{moved} of {} moved something", ends.len());
        assert_eq!(count(MigrationEnd::Overdue), 0);
    }
}

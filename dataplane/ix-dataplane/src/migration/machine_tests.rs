//! The state machine of migrations alone: no elastic thread, no device, no memory. Three machines
//! exchange messages and packets in all kinds of orders. Packets of a group must be processed in
//! the order in which they came, each once, and only by the owner of the group. A device with a
//! table goes on to use the old one for a while after a change, as long as the protocol allows.
use super::message::{Forwarded, Message, Ship};
use super::on_cpu::OnCpu;
use super::planted::{Bug, plant};
use super::{Action, BOUND_US, Input, MigrateError, Migrations, Sight, Table, Way};
use crate::receive::batch::{Origin, Via};
use ix_mem::Mbuf;
use ix_nic::RxPacket;
use ix_proto::GroupSet;
use ix_proto::MigrationEnd;
use ix_random::Rng;
use std::collections::VecDeque;

const THREADS: usize = 3;
const GROUPS: usize = 4;

/// What the device has to steer packets by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    /// A table, and no word of when it is in use.
    Table,
    /// A table, and one pipe: a packet in the new queue proves that none comes into the old one.
    Pipe,
    /// No table: the packets of a group always come into the same queue.
    Fixed,
}

/// What one machine sees of its thread.
struct Eyes<'a> {
    now_us: u64,
    owners: &'a [usize],
    waiting: usize,
    device: Device,
    patience_us: u64,
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

    fn patience_us(&self) -> u64 {
        self.patience_us
    }

    fn ports(&self) -> usize {
        1
    }

    fn table(&self, _port: usize) -> Option<Table> {
        let in_order = self.device == Device::Pipe;
        let table = Table { settled: false, in_order, is_sending: false };
        (self.device != Device::Fixed).then_some(table)
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

/// Where the device puts a group's packets.
#[derive(Clone, Copy)]
struct Entry {
    queue: usize,
    /// The queue before the last change, in use until this time.
    old: usize,
    until_us: u64,
}

impl Entry {
    fn in_use(&self, now_us: u64) -> usize {
        if now_us < self.until_us { self.old } else { self.queue }
    }
}

struct World {
    random: Rng,
    threads: Vec<Thread>,
    owners: Vec<usize>,
    /// The thread that has each group's flows; `None` while they are moving.
    places: Vec<Option<usize>>,
    /// The device's redirection table.
    table: Vec<Entry>,
    /// When it was changed last, and how long that took.
    change: (u64, u64),
    now_us: u64,
    /// A packet's number is `sent` of its group, times [`GROUPS`], plus the group.
    sent: Vec<u32>,
    handled: Vec<u32>,
    device: Device,
    patience_us: u64,
}

fn packet(number: u32) -> RxPacket {
    // SAFETY: no memory behind the number; it is only carried.
    RxPacket { mbuf: unsafe { Mbuf::from_frame(number) }, more: false }
}

impl World {
    fn new(seed: u64, device: Device) -> World {
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
            table: owners.iter().map(|&queue| Entry { queue, old: queue, until_us: 0 }).collect(),
            change: (0, 0),
            random: Rng::new(!seed),
            owners,
            now_us: 1_000,
            sent: vec![0; GROUPS],
            handled: vec![0; GROUPS],
            device,
            patience_us: u64::MAX,
        }
    }

    /// A packet arrives.
    fn send(&mut self, group: usize) {
        let number = self.sent[group] * GROUPS as u32 + group as u32;
        self.sent[group] += 1;
        let queue = self.table[group].in_use(self.now_us);
        self.threads[queue].queue.push_back(number);
    }

    fn step(&mut self, index: usize, input: Input) {
        let thread = &mut self.threads[index];
        let waiting = thread.queue.len();
        let (now_us, device, patience_us) = (self.now_us, self.device, self.patience_us);
        let eyes = Eyes { now_us, owners: &self.owners, waiting, device, patience_us };
        thread.machine.step(input, &eyes);
        self.act(index);
    }

    fn act(&mut self, index: usize) {
        while let Some(action) = self.threads[index].machine.next_action() {
            match action {
                Action::Tell(to, message) => {
                    self.threads[to].rings[index].push_back(Forwarded::Message(message));
                }
                Action::HandOver { to, port, looped, packet } => {
                    let ring = &mut self.threads[to].rings[index];
                    ring.push_back(Forwarded::Packet { port, looped, packet });
                }
                Action::Leaves { .. } if self.device == Device::Fixed => {}
                Action::Leaves { group, to } => {
                    // The entries of one migration come into use together.
                    if self.change.0 != self.now_us {
                        self.change = (self.now_us, self.random.below(BOUND_US + 1));
                    }
                    let old = self.table[group].in_use(self.now_us);
                    let until_us = self.now_us + self.change.1;
                    self.table[group] = Entry { queue: to, old, until_us };
                }
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
                        under_way: None,
                    };
                    let message = Forwarded::Message(Message::Ship(Box::new(ship)));
                    self.threads[to].rings[index].push_back(message);
                    self.step(index, Input::Shipped { serial, unsent: None });
                }
                Action::Stays { group, .. } => {
                    assert_eq!(self.places[group], Some(index), "it has not left");
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
                Some(Forwarded::Packet { packet, .. }) => burst.push((Via::REPLAY, packet)),
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
        burst.extend(thread.queue.drain(..got).map(|number| (Via::DEVICE, packet(number))));
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
            let (now_us, device, patience_us) = (self.now_us, self.device, self.patience_us);
            let eyes = Eyes { now_us, owners: &self.owners, waiting, device, patience_us };
            match thread.machine.way(group, from, &eyes) {
                Way::Here => here.push(number),
                Way::To(to) => {
                    let item = Forwarded::Packet { port: 0, looped: false, packet };
                    self.act(index);
                    self.threads[to].rings[index].push_back(item);
                }
                Way::Hold => {
                    self.act(index);
                    let origin = Origin { port: 0, from: Via::of(from, false) };
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
fn play(seed: u64, device: Device) -> Vec<MigrationEnd> {
    play_in(World::new(seed, device), seed)
}

fn play_in(mut world: World, seed: u64) -> Vec<MigrationEnd> {
    let mut random = Rng::new(seed);
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
        let returns = if world.patience_us == u64::MAX { 400 } else { 20 };
        if random.per_mille(returns) && world.threads[index].machine.is_active() {
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

const DEVICES: [Device; 3] = [Device::Table, Device::Pipe, Device::Fixed];

#[test]
fn packets_keep_their_order_wherever_their_groups_go() {
    for device in DEVICES {
        let ends: Vec<MigrationEnd> = (0..400).flat_map(|seed| play(seed, device)).collect();
        let count = |wanted| ends.iter().filter(|end| **end == wanted).count();
        let moved = count(MigrationEnd::Early) + count(MigrationEnd::Bound);
        assert!(moved > 2_000, "{moved} of {} moved something over {device:?}", ends.len());
        assert_eq!(count(MigrationEnd::Overdue), 0);
    }
}

/// Where several processes share the threads, one that computes is waited for no longer than this.
#[test]
fn a_process_that_computes_is_not_waited_for_for_ever() {
    let ends: Vec<MigrationEnd> = (0..400)
        .flat_map(|seed| {
            let world = World { patience_us: 2_000, ..World::new(seed, Device::Fixed) };
            play_in(world, seed)
        })
        .collect();
    let count = |wanted| ends.iter().filter(|end| **end == wanted).count();
    let (moved, stayed) = (count(MigrationEnd::Early), count(MigrationEnd::Refused));
    assert!(moved > 100 && stayed > 100, "{moved} moved, {stayed} stayed, of {}", ends.len());
}

/// A model that finds nothing proves nothing.
#[test]
fn planted_bugs_are_found() {
    for bug in [Bug::LocalFirst, Bug::NoQuestion, Bug::NoBound] {
        plant(Some(bug));
        let mut plays = (0..400).flat_map(|seed| DEVICES.map(|device| (seed, device)));
        let found =
            plays.find(|&(seed, device)| std::panic::catch_unwind(|| play(seed, device)).is_err());
        plant(None);
        let (seed, device) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        play(seed, device);
    }
}

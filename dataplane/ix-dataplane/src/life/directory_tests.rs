//! The directory with threads that move groups as the real ones do, in any order.
use super::*;
use proptest::prelude::*;

/// Threads, the owners of groups, and migrations in progress.
struct World {
    directory: Directory,
    owner: [usize; FLOW_GROUPS],
    run: Vec<u64>,
    moving: Vec<(u64, GroupSet, usize)>,
    takes: Vec<bool>,
    /// What each application was last told.
    revoked: Vec<bool>,
    drained: Vec<bool>,
    now_us: u64,
}

impl World {
    fn new(threads: usize) -> World {
        let owner = std::array::from_fn(|group| group % threads);
        let mut directory = Directory::new(threads, |group| group % threads);
        for thread in 0..threads {
            assert!(directory.enter(thread).is_empty(), "nothing moves at the start");
        }
        World {
            directory,
            owner,
            run: vec![1; threads],
            moving: Vec::new(),
            takes: vec![true; threads],
            revoked: vec![false; threads],
            drained: vec![false; threads],
            now_us: 0,
        }
    }

    fn begin(&mut self, serial: u64, command: Command) -> Result<Vec<usize>, String> {
        self.directory.begin(serial, command, self.now_us + 1_000_000, self.now_us)
    }

    fn here(&self, thread: usize) -> GroupSet {
        (0..FLOW_GROUPS).filter(|group| self.owner[*group] == thread).collect()
    }

    fn attend(&mut self, index: usize) -> Orders {
        let here = self.here(index);
        let at_rest = !self.moving.iter().any(|(_, groups, to)| {
            *to == index || groups.iter().any(|group| self.owner[group] == index)
        });
        let sight = Sight { index, run: self.run[index], here, at_rest };
        let orders = self.directory.attend(&sight, self.now_us);
        if let Some(takes) = orders.takes_groups {
            self.takes[index] = takes;
        }
        if let Some(revoked) = orders.revoke {
            assert_ne!(self.revoked[index], revoked, "told twice");
            self.revoked[index] = revoked;
        }
        if orders.drained {
            assert!(here.is_empty(), "it is not drained");
            self.drained[index] = true;
        }
        for (groups, to, number) in &orders.send {
            assert!(groups.iter().all(|group| self.owner[group] == index), "not its to send");
            assert_ne!(*to, index);
            self.moving.push((*number, *groups, *to));
        }
        orders
    }

    /// The application of a thread returns.
    fn come_back(&mut self, thread: usize) {
        self.run[thread] += 1;
    }

    /// A migration ends, or its target refuses.
    fn arrive(&mut self, at: usize, refuse: bool) {
        let (number, groups, to) = self.moving.swap_remove(at);
        let mut record =
            MigrationRecord { command: number, flow_groups: groups, ..Default::default() };
        if refuse || !self.takes[to] {
            record.end = MigrationEnd::Refused;
        } else {
            groups.iter().for_each(|group| self.owner[group] = to);
        }
        self.directory.ended(&record);
    }

    /// All threads do what they have to do.
    fn settle(&mut self) {
        for _ in 0..50 {
            for thread in 0..self.run.len() {
                self.attend(thread);
                self.come_back(thread);
            }
            while !self.moving.is_empty() {
                self.arrive(0, false);
            }
        }
        assert!(!self.directory.is_unsettled(|group| self.owner[group]));
    }

    fn leave(&mut self, thread: usize) {
        self.directory.leave(thread);
        (self.revoked[thread], self.drained[thread]) = (false, false);
    }

    fn ended(&mut self) -> Vec<(u64, Outcome)> {
        self.directory.take_ended()
    }
}

#[test]
fn a_thread_is_parked_when_its_application_has_heard_and_its_groups_are_gone() {
    let mut world = World::new(2);
    assert_eq!(world.begin(7, Command::Park { thread: 1 }), Ok(vec![0, 1]));
    assert_eq!(world.directory.state(1), ThreadState::Parking);
    let orders = world.attend(1);
    assert_eq!((orders.revoke, orders.takes_groups), (Some(true), Some(false)));
    assert!(orders.go_on && orders.send.is_empty(), "it hears of it before it happens");
    assert!(world.attend(1).send.is_empty(), "its application has not come back");
    world.come_back(1);
    let orders = world.attend(1);
    let [(groups, 0, number)] = orders.send[..] else { panic!("{orders:?}") };
    assert_eq!((groups, command_of(number)), (world.here(1), 7));
    assert!(world.attend(1).send.is_empty(), "once");
    // The other thread is not ready yet: it is asked again.
    world.arrive(0, true);
    assert_eq!(world.attend(1).send.len(), 1);
    assert!(world.begin(8, Command::Drain { thread: 0 }).unwrap_err().contains("7 (`park 1`)"));
    world.arrive(0, false);
    assert_eq!(world.ended(), []);
    let orders = world.attend(1);
    assert_eq!((orders.go_on, orders.takes_groups), (false, Some(true)), "at once, when it wakes");
    assert_eq!(world.ended(), [(7, Outcome::Done)]);
    assert_eq!(world.directory.state(1), ThreadState::Parked);
    // And back.
    assert_eq!(world.begin(9, Command::Resume { thread: 1 }), Ok(vec![0, 1]));
    assert_eq!(world.attend(1).revoke, None, "its groups have not come");
    world.attend(0);
    world.arrive(0, false);
    assert_eq!(world.attend(1).revoke, Some(false));
    assert_eq!(world.ended(), [(9, Outcome::Done)]);
    assert_eq!(world.here(1), (0..FLOW_GROUPS).filter(|group| group % 2 == 1).collect());
}

#[test]
fn what_cannot_be_is_refused_and_says_why() {
    let mut world = World::new(2);
    let all = GroupSet::all();
    for (command, why) in [
        (Command::Park { thread: 2 }, "there is no elastic thread 2, only 2"),
        (Command::Migrate { groups: all, to: usize::MAX }, "there is no elastic thread"),
        (Command::Migrate { groups: GroupSet::EMPTY, to: 1 }, "no flow groups were given"),
        (Command::Resume { thread: 1 }, "elastic thread 1 is active"),
    ] {
        let said = world.begin(1, command).unwrap_err();
        assert!(said.contains(why), "{command}: {said}");
    }
    let late = world.directory.begin(1, Command::Park { thread: 1 }, 5, 6).unwrap_err();
    assert!(late.contains("too late"), "{late}");
    world.begin(1, Command::Park { thread: 1 }).unwrap();
    world.settle();
    assert_eq!(world.ended(), [(1, Outcome::Done)]);
    for (command, why) in [
        (
            Command::Park { thread: 0 },
            "elastic thread 0 is the last active one; `ix ctl resume` another one first",
        ),
        (Command::Drain { thread: 0 }, "the last active one"),
        (Command::Park { thread: 1 }, "elastic thread 1 is parked"),
        (Command::Migrate { groups: all, to: 1 }, "elastic thread 1 is parked"),
    ] {
        let said = world.begin(2, command).unwrap_err();
        assert!(said.contains(why), "{command}: {said}");
    }
    let mut world = World::new(2);
    world.directory.share(1);
    let groups = [1].into_iter().collect();
    for (command, why) in [
        (
            Command::Park { thread: 1 },
            "elastic thread 1 cannot be parked: the program does not know",
        ),
        (Command::Drain { thread: 0 }, "elastic thread 0 cannot be drained: the program does not"),
        (Command::Migrate { groups, to: 0 }, "flow group 1 cannot move: the program does not know"),
    ] {
        let said = world.begin(1, command).unwrap_err();
        assert!(said.contains(why), "{command}: {said}");
    }
    // It was not entered.
    let mut directory = Directory::new(2, |group| group % 2);
    directory.enter(0);
    let groups = [1].into_iter().collect();
    let said = directory.begin(1, Command::Migrate { groups, to: 0 }, 1, 0).unwrap_err();
    assert!(said.contains("group 1 cannot move: elastic thread 1 was not entered"), "{said}");
}

#[test]
fn an_application_leaves_a_thread_and_comes_back() {
    let mut world = World::new(2);
    assert_eq!(world.directory.drain(1), Some(vec![0, 1, 1]));
    assert_eq!(world.directory.drain(0), None, "it is the last one");
    let said = world.begin(1, Command::Park { thread: 1 }).unwrap_err();
    assert!(said.contains("is leaving elastic thread 1"), "{said}");
    assert_eq!(world.attend(1).send.len(), 1);
    assert!(!world.drained[1]);
    world.arrive(0, false);
    world.attend(1);
    assert!(world.drained[1]);
    world.leave(1);
    assert_eq!(world.directory.state(1), ThreadState::Background);
    world.settle();
    assert_eq!(world.here(0), GroupSet::all());
    // It returns and gets its share.
    assert_eq!(world.directory.enter(1), [0, 1]);
    world.settle();
    assert_eq!(world.here(1), (0..FLOW_GROUPS).filter(|group| group % 2 == 1).collect());
    // A thread that is just left: the thread that looks after it sends its groups.
    world.begin(2, Command::Park { thread: 1 }).unwrap();
    world.leave(1);
    assert!(matches!(&world.ended()[..], [(2, Outcome::Refused(why))] if why.contains("left")));
    world.settle();
    assert_eq!(world.here(0), GroupSet::all());
}

/// Each process of such a program enters all threads and leaves all. Between the last one that
/// leaves a thread and the next one that enters it, another thread may have either of them.
#[test]
fn flow_groups_of_a_program_that_would_not_hear_of_it_stay_where_they_are() {
    let mut directory = Directory::new(2, |group| group % 2);
    directory.share(0);
    assert!(directory.enter(0).is_empty());
    assert!(directory.abandon(1).is_empty(), "its process enters it in a moment");
    directory.share(1);
    for step in [Directory::enter, Directory::leave, Directory::abandon, Directory::enter] {
        assert!(step(&mut directory, 1).is_empty());
    }
    assert!(directory.leave(1).is_empty() && directory.leave(0).is_empty());
    assert!(directory.enter(1).is_empty() && directory.enter(0).is_empty());
    assert!(!directory.is_unsettled(|group| group % 2));
}

#[test]
fn threads_that_nobody_has_entered_have_no_groups_once_another_is_active() {
    let mut directory = Directory::new(3, |group| group % 3);
    assert!(directory.abandon(1).is_empty(), "nobody is there to take them");
    assert!(directory.enter(0).is_empty());
    assert_eq!([directory.abandon(0), directory.abandon(1)], [vec![], vec![0, 1]]);
    assert_eq!(directory.abandon(2), [0, 2]);
    let orders = |directory: &mut Directory, index| {
        let here = (0..FLOW_GROUPS).filter(|group| group % 3 == index).collect();
        directory.attend(&Sight { index, run: 9, here, at_rest: true }, 0)
    };
    for index in [1, 2] {
        let send = orders(&mut directory, index).send;
        assert!(matches!(send[..], [(_, 0, _)]), "{send:?}");
    }
    assert!(orders(&mut directory, 0).send.is_empty());
}

#[test]
fn a_command_that_takes_too_long_is_undone() {
    let mut world = World::new(3);
    world.begin(1, Command::Park { thread: 1 }).unwrap();
    world.attend(1);
    world.come_back(1);
    assert_eq!(world.attend(1).send.len(), 2);
    // One part arrives; the other thread's application never returns.
    world.arrive(0, false);
    world.now_us += 10_000_000;
    let orders = world.attend(0);
    assert_eq!(orders.call, [0, 1, 2]);
    assert!(matches!(&world.ended()[..], [(1, Outcome::TimedOut(_))]));
    assert_eq!(world.directory.state(1), ThreadState::Active);
    assert!(world.revoked[1], "it hears that it stays when it looks");
    world.settle();
    assert!(!world.revoked[1] && world.takes[1]);
    assert!((0..FLOW_GROUPS).all(|group| world.owner[group] == group % 3));
}

#[test]
fn a_late_command_ends_although_no_thread_can_look() {
    let mut world = World::new(3);
    world.begin(1, Command::Park { thread: 1 }).unwrap();
    world.attend(1);
    assert!(!world.directory.is_late(world.now_us));
    assert!(world.directory.end_late(world.now_us).is_empty());
    world.now_us += 10_000_000;
    assert!(world.directory.is_late(world.now_us));
    assert_eq!(world.directory.end_late(world.now_us), [0, 1, 2]);
    assert!(matches!(&world.ended()[..], [(1, Outcome::TimedOut(_))]));
    assert!(!world.directory.is_late(world.now_us));
    assert_eq!(world.directory.state(1), ThreadState::Active);
    world.begin(2, Command::Park { thread: 1 }).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Begin(u8, usize),
    Attend(usize),
    ComeBack(usize),
    Arrive(usize, bool),
    Wait,
    Drain(usize),
    Leave(usize),
    Enter(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u8..4, 0usize..5).prop_map(|(verb, thread)| Step::Begin(verb, thread)),
        8 => (0usize..5).prop_map(Step::Attend),
        6 => (0usize..5).prop_map(Step::ComeBack),
        6 => (0usize..8, prop::bool::weighted(0.3)).prop_map(|(at, no)| Step::Arrive(at, no)),
        1 => Just(Step::Wait),
        1 => (0usize..5).prop_map(Step::Drain),
        1 => (0usize..5).prop_map(Step::Leave),
        2 => (0usize..5).prop_map(Step::Enter),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_every_group_has_an_active_thread_and_every_command_an_end(
        threads in 1usize..=5,
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut world = World::new(threads);
        let (mut serial, mut begun, mut ended) = (0, vec![], vec![]);
        for step in steps {
            match step {
                Step::Begin(verb, thread) => {
                    let groups = (0..FLOW_GROUPS).filter(|group| group % 3 == 0).collect();
                    let command = match verb {
                        0 => Command::Park { thread },
                        1 => Command::Resume { thread },
                        2 => Command::Drain { thread },
                        _ => Command::Migrate { groups, to: thread },
                    };
                    serial += 1;
                    if world.begin(serial, command).is_ok() {
                        begun.push(serial);
                    }
                }
                Step::Attend(thread) if thread < threads => drop(world.attend(thread)),
                Step::ComeBack(thread) if thread < threads => world.come_back(thread),
                Step::Arrive(at, refuse) if at < world.moving.len() => world.arrive(at, refuse),
                Step::Wait => world.now_us += 1_000_000,
                Step::Drain(thread)
                    if thread < threads
                        && world.directory.state(thread) == ThreadState::Active =>
                {
                    world.directory.drain(thread);
                }
                // The last one stays, so that there is an owner for the groups.
                Step::Leave(thread)
                    if thread < threads && world.directory.active_but(thread).is_some() =>
                {
                    world.leave(thread);
                }
                Step::Enter(thread)
                    if thread < threads
                        && world.directory.state(thread) == ThreadState::Background =>
                {
                    world.directory.enter(thread);
                }
                _ => {}
            }
            ended.extend(world.ended().into_iter().map(|(serial, _)| serial));
            prop_assert!(!world.directory.active().is_empty(), "one stays active");
            for thread in 0..threads {
                if world.directory.state(thread) == ThreadState::Parked {
                    prop_assert!(world.here(thread).is_empty(), "a parked thread has groups");
                }
            }
        }
        world.settle();
        ended.extend(world.ended().into_iter().map(|(serial, _)| serial));
        prop_assert_eq!(&ended, &begun);
        let active = world.directory.active();
        for thread in 0..threads {
            let state = world.directory.state(thread);
            prop_assert_ne!(state, ThreadState::Parking);
            prop_assert_eq!(state == ThreadState::Parked, world.revoked[thread]);
            let leaving = state == ThreadState::Active && !active.contains(&thread);
            prop_assert_eq!(leaving, world.drained[thread]);
        }
        for owner in world.owner {
            prop_assert!(active.contains(&owner), "thread {} has groups", owner);
        }
    }
}

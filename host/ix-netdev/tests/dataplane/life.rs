//! The life of elastic threads: a dataplane in this process with raw calls, a real Linux peer
//! behind it, and commands as a broker sends them.
use ix_abi::{
    Call, CallError, CallSlot, Endpoint, Event, EventSlot, ProcessHeader, Revoke, SgArray, SgEntry,
    ThreadArea,
};
use ix_dataplane::metrics::{ControlPage, Snapshot, ThreadState};
use ix_dataplane::{
    Command, Config, Dataplane, Device, FromBroker, GroupSet, Order, OrderMessage, Outcome,
    UpdateOutcome, UpdateSource,
};
use ix_wire::IpAddr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// The link, named once for both ends.
const SERVICE: &str = "10.78.0.2:7";

/// The broker's end of the commands.
struct Control {
    commands: Sender<OrderMessage>,
    bell: std::io::PipeWriter,
    outcomes: Receiver<(u64, Outcome)>,
    serial: u64,
}

/// The dataplane's end; a byte in the pipe for each.
struct Source {
    commands: Receiver<OrderMessage>,
    bell: std::io::PipeReader,
    outcomes: Sender<(u64, Outcome)>,
}

impl UpdateSource for Source {
    fn fd(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }

    fn next(&mut self) -> Option<FromBroker> {
        let command = self.commands.try_recv().ok()?;
        self.bell.read_exact(&mut [0]).expect("a byte for each command");
        Some(FromBroker::Order(command))
    }

    fn tell(&mut self, device: usize, outcome: UpdateOutcome) {
        panic!("no device changed: {device} {outcome:?}");
    }

    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome) {
        // The test may be over.
        let _ = self.outcomes.send((serial, outcome.clone()));
    }

    fn tell_surveyed(&mut self, serial: u64) {
        panic!("nobody has asked for survey {serial}");
    }
}

fn message(serial: u64, until_us: u64, command: Command) -> OrderMessage {
    OrderMessage { serial, until_us, order: Order::Command(command), memory: None }
}

impl Control {
    fn pair() -> (Control, Source) {
        let (commands, receiver) = channel();
        let (sender, outcomes) = channel();
        let (reader, writer) = std::io::pipe().unwrap();
        let source = Source { commands: receiver, bell: reader, outcomes: sender };
        (Control { commands, bell: writer, outcomes, serial: 0 }, source)
    }

    fn send(&mut self, command: Command) -> Outcome {
        self.serial += 1;
        self.commands.send(message(self.serial, u64::MAX / 2, command)).unwrap();
        self.bell.write_all(&[1]).unwrap();
        let (serial, outcome) = self.outcomes.recv_timeout(PATIENCE).expect("an outcome");
        assert_eq!(serial, self.serial);
        outcome
    }

    #[track_caller]
    fn done(&mut self, command: Command) {
        assert_eq!(self.send(command), Outcome::Done, "{command}");
    }
}

/// What the program does with one of its threads.
const RUNS: u8 = 0;
const LEAVES: u8 = 1;
const AWAY: u8 = 2;
const STUCK: u8 = 3;

/// A dataplane with an echo service on port 7.
struct World {
    dataplane: Dataplane,
    page: Arc<ControlPage>,
    wishes: Vec<AtomicU8>,
    stop: AtomicBool,
    control: Mutex<Control>,
    /// What the applications heard.
    heard: Mutex<Vec<(usize, Revoke)>>,
}

impl World {
    fn wish(&self, thread: usize, wish: u8) {
        self.wishes[thread].store(wish, Ordering::SeqCst);
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.page)
    }

    #[track_caller]
    fn wait_until(&self, what: &str, holds: impl Fn(&Snapshot) -> bool) {
        let end = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.snapshot();
            if holds(&snapshot) {
                return;
            }
            assert!(Instant::now() < end, "not in time: {what}: {snapshot:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn control(&self) -> std::sync::MutexGuard<'_, Control> {
        self.control.lock().unwrap()
    }
}

/// Runs `work` in the Linux side's namespace beside the service. Threads begin as `wishes` say.
fn with_service(
    test: &str,
    kind: &str,
    wishes: &[u8],
    work: impl FnOnce(&World) + Send,
) -> Option<Snapshot> {
    let tcp = ix_tcp::Config { time_wait_us: 100_000, ..ix_tcp::Config::default() };
    let config = Config::with_address(IpAddr::v4([10, 78, 0, 2]), 24);
    let config = Config { cpus: vec![0; wishes.len()], tcp, ..config };
    let (namespaces, mut opened) = super::link::link(test, kind, "10.78.0.1", &config)?;
    let device =
        Device { info: opened.info.clone(), queues: std::mem::take(&mut opened.queue_fds) };
    let page = Arc::new(ControlPage::anonymous(wishes.len()).unwrap());
    let dataplane = Dataplane::boot(config, vec![device], &page, 0, |_, queue| {
        opened.finish(queue).map_err(|e| e.to_string())
    })
    .unwrap();
    let (control, source) = Control::pair();
    dataplane.set_update_source(Box::new(source));
    let world = World {
        dataplane,
        page,
        wishes: wishes.iter().map(|wish| AtomicU8::new(*wish)).collect(),
        stop: AtomicBool::new(false),
        control: Mutex::new(control),
        heard: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let (world, stop) = (&world, &world.stop);
        for thread in 0..wishes.len() {
            scope.spawn(move || Echo::new(world, thread).run());
        }
        world.wait_until("those run that are to", |s| {
            let mut threads = s.threads.iter().zip(wishes);
            threads.all(|(t, wish)| *wish != RUNS || t.state != ThreadState::Background)
        });
        std::thread::sleep(Duration::from_millis(20));
        let worked = scope.spawn(|| namespaces[0].run(|| work(world))).join();
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::SeqCst);
        worked.expect("the test's own part");
    });
    Some(world.snapshot())
}

/// A thread of the service. It keeps nothing of a connection, so that any thread can go on with it.
struct Echo<'a> {
    world: &'a World,
    thread: usize,
    calls: *mut CallSlot,
    events: *const EventSlot,
    sg: *mut SgEntry,
    count: usize,
    sgs: usize,
    drained: bool,
}

impl<'a> Echo<'a> {
    fn new(world: &'a World, thread: usize) -> Echo<'a> {
        // SAFETY: the header and its areas live as long as the dataplane.
        let (header, area): (ProcessHeader, ThreadArea) = unsafe {
            let header = *world.dataplane.header();
            (header, *(header.thread_areas as *const ThreadArea).add(thread))
        };
        Echo {
            world,
            thread,
            calls: area.calls as *mut CallSlot,
            events: area.events as *const EventSlot,
            sg: (header.tx_base + thread as u64 * (2 << 20)) as *mut SgEntry,
            count: 0,
            sgs: 0,
            drained: false,
        }
    }

    fn call(&mut self, call: Call) {
        // SAFETY: below CALLS_MAX; this thread's own array.
        unsafe { self.calls.add(self.count).write(call.encode()) };
        self.count += 1;
    }

    fn wish(&self) -> u8 {
        self.world.wishes[self.thread].load(Ordering::SeqCst)
    }

    fn run(mut self) {
        let mut listens = false;
        while !self.world.stop.load(Ordering::SeqCst) {
            match self.wish() {
                AWAY | STUCK => {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                LEAVES if self.drained => {
                    // SAFETY: this Linux thread is the only one to use this elastic thread.
                    unsafe { self.world.dataplane.leave(self.thread) };
                    self.world.wish(self.thread, AWAY);
                    self.drained = false;
                    continue;
                }
                LEAVES => self.call(Call::Drain),
                _ if !listens => {
                    let at = Endpoint { addr: ix_abi::v4([0; 4]), port: 7 };
                    self.call(Call::Listen { at, backlog: 0, cookie: 99, holds: false });
                }
                _ => {}
            }
            listens = true;
            self.cycle();
        }
    }

    fn cycle(&mut self) {
        // SAFETY: this Linux thread is the only one to use this elastic thread.
        let events = unsafe { self.world.dataplane.run_io(self.thread, self.count, 5_000) };
        for slot in 0..self.count {
            // SAFETY: this thread's own array.
            let call = unsafe { *self.calls.add(slot) };
            let (call, ret) = (Call::decode(&call).expect("a call"), CallError::check(call.ret));
            let fine = match call {
                Call::Listen { .. } => ret.is_ok_and(|listener| listener > 0),
                Call::Drain => true,
                // Its peer may have closed it meanwhile; but never is it another thread's.
                _ => ret.is_ok() || ret == Err(CallError::BadHandle),
            };
            assert!(fine, "{call:x?} on thread {}: {ret:?}", self.thread);
        }
        (self.count, self.sgs) = (0, 0);
        for index in 0..events {
            // SAFETY: the dataplane wrote that many events.
            let event = unsafe { *self.events.add(index) };
            self.on_event(Event::decode(&event).expect("an event"));
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Knock { handle, .. } => self.call(Call::Accept { handle, cookie: handle }),
            Event::Recv { cookie, handle, data, news } => {
                assert_eq!(cookie, handle);
                // SAFETY: within transmit memory; this thread's own part.
                let sg = unsafe { self.sg.add(self.sgs) };
                // SAFETY: as above.
                unsafe { sg.write(SgEntry { base: data.addr, len: data.len.into() }) };
                self.sgs += 1;
                let sg = SgArray { addr: sg as u64, entries: 1 };
                self.call(Call::SendV {
                    handle,
                    sg,
                    fin: false,
                    eor: false,
                    done: news.bytes().into(),
                });
            }
            Event::Sent { handle, bytes, .. } => {
                self.call(Call::RecvDone { handle, bytes: bytes.into() });
            }
            Event::Eof { handle, .. } => self.call(Call::Close { handle }),
            Event::Revoke(what) => {
                self.drained |= what == Revoke::Drained;
                self.world.heard.lock().unwrap().push((self.thread, what));
            }
            _ => {}
        }
    }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(SERVICE).expect("connects");
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn echo(stream: &mut TcpStream, round: usize, size: usize) {
    let message: Vec<u8> = (0..size).map(|i| (i * 31 + round * 7) as u8).collect();
    stream.write_all(&message).expect("write");
    let mut answer = vec![0; size];
    stream.read_exact(&mut answer).expect("the answer");
    assert!(answer == message, "the answer differs");
}

/// Echoes on connections that stay and on ones that come and go, until `work` is over.
fn under_traffic(connections: usize, work: impl FnOnce()) -> usize {
    let stop = AtomicBool::new(false);
    let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
    std::thread::scope(|scope| {
        let traffic = || {
            // SAFETY: a plain system call with our descriptor: the thread joins its parent's link.
            assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
            let mut streams: Vec<_> = (0..connections).map(|_| connect()).collect();
            let mut round = 0;
            while !stop.load(Ordering::SeqCst) {
                for stream in &mut streams {
                    echo(stream, round, 1 + round % 3000);
                    round += 1;
                }
                let at = round % connections;
                streams[at] = connect();
            }
            round
        };
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(traffic)).collect();
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::SeqCst);
        let rounds = clients.into_iter().map(|client| client.join().expect("no client fails"));
        let rounds = rounds.sum();
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rounds
    })
}

#[track_caller]
fn assert_nothing_left(snapshot: &Snapshot) {
    assert_eq!(snapshot.total("flows"), Some(0), "{snapshot:?}");
    for [used, device] in
        [["rx_frames_in_use", "rx_frames_in_device"], ["tx_frames_in_use", "tx_frames_in_device"]]
    {
        assert_eq!(snapshot.total(used), snapshot.total(device), "{snapshot:?}");
    }
    assert_eq!(snapshot.total("misrouted"), Some(0), "{snapshot:?}");
    let owners: usize = snapshot.threads.iter().map(|thread| thread.owned.len()).sum();
    assert_eq!(owners, GroupSet::all().len(), "{snapshot:?}");
}

fn parked_and_resumed(test: &str, kind: &str) {
    let Some(snapshot) = with_service(test, kind, &[RUNS, RUNS], |world| {
        let rounds = under_traffic(8, || {
            for thread in [1, 0, 1, 0, 1, 1] {
                world.control().done(Command::Park { thread });
                let snapshot = world.snapshot();
                assert_eq!(snapshot.threads[thread].state, ThreadState::Parked);
                let last = world.control().send(Command::Park { thread: 1 - thread });
                assert!(matches!(last, Outcome::Refused(_)), "{last:?}");
                std::thread::sleep(Duration::from_millis(5));
                world.control().done(Command::Resume { thread });
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        eprintln!("{kind}: {rounds} messages");
        let heard = world.heard.lock().unwrap();
        for thread in [0, 1] {
            let told: Vec<Revoke> = heard.iter().filter(|h| h.0 == thread).map(|h| h.1).collect();
            let pairs = told.chunks(2).all(|pair| pair == [Revoke::Goes, Revoke::Back]);
            assert!(pairs && told.len() >= 4, "{told:?}");
        }
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
    let [first, second] = [0, 1].map(|i| snapshot.threads[i].owned.len());
    assert_eq!((first, second), (64, 64), "{snapshot:?}");
    assert!(snapshot.migrations_ever >= 12, "{snapshot:?}");
}

#[test]
fn connections_survive_parking_and_resuming_over_tap() {
    parked_and_resumed("connections_survive_parking_and_resuming_over_tap", "tap");
}

#[test]
fn connections_survive_parking_and_resuming_over_afxdp() {
    parked_and_resumed("connections_survive_parking_and_resuming_over_afxdp", "afxdp");
}

/// The program runs one of two threads; later it enters the other, leaves it and comes back.
fn background_and_back(test: &str, kind: &str) {
    let Some(snapshot) = with_service(test, kind, &[RUNS, AWAY], |world| {
        world.wait_until("all groups are where somebody is", |s| s.threads[0].owned.len() == 128);
        let rounds = under_traffic(8, || {
            for _ in 0..4 {
                world.wish(1, RUNS);
                world.wait_until("it has its share", |s| s.threads[1].owned.len() == 64);
                std::thread::sleep(Duration::from_millis(10));
                world.wish(1, LEAVES);
                world.wait_until("it has left", |s| s.threads[1].state == ThreadState::Background);
                world.wait_until("the other has all", |s| s.threads[0].owned.len() == 128);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        eprintln!("{kind}: {rounds} messages");
        // The last one may not go; and nobody can be parked for it.
        let refused = world.control().send(Command::Park { thread: 0 });
        assert!(matches!(refused, Outcome::Refused(why) if why.contains("last")));
        let refused = world.control().send(Command::Resume { thread: 1 });
        assert!(matches!(refused, Outcome::Refused(why) if why.contains("not entered")));
        let heard = world.heard.lock().unwrap();
        assert!(heard.iter().all(|told| *told == (1, Revoke::Drained)), "{heard:?}");
        assert!(heard.len() >= 4, "{heard:?}");
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
}

#[test]
fn threads_turn_into_background_threads_and_back_over_tap() {
    background_and_back("threads_turn_into_background_threads_and_back_over_tap", "tap");
}

#[test]
fn threads_turn_into_background_threads_and_back_over_afxdp() {
    background_and_back("threads_turn_into_background_threads_and_back_over_afxdp", "afxdp");
}

#[test]
fn a_program_that_does_not_come_back_undoes_a_command_and_is_named() {
    let test = "a_program_that_does_not_come_back_undoes_a_command_and_is_named";
    let Some(snapshot) = with_service(test, "tap", &[RUNS, RUNS], |world| {
        world.wish(1, STUCK);
        world.wait_until("it is named", |s| s.threads[1].state == ThreadState::NonResponsive);
        let mut control = world.control();
        // In time by its own clock: what nobody carries out is undone by who is there.
        control.serial += 1;
        let until_us = world.snapshot().now_us + 500_000;
        let park = message(control.serial, until_us, Command::Park { thread: 1 });
        control.commands.send(park).unwrap();
        control.bell.write_all(&[1]).unwrap();
        let busy = control.outcomes.recv_timeout(Duration::from_millis(20));
        assert!(busy.is_err(), "it cannot be carried out: {busy:?}");
        let (_, outcome) = control.outcomes.recv_timeout(PATIENCE).expect("an outcome");
        assert!(matches!(outcome, Outcome::TimedOut(_)), "{outcome:?}");
        world.wish(1, RUNS);
        world.wait_until("it is back", |s| s.threads[1].state == ThreadState::Active);
        world.wait_until("all is as it was", |s| s.threads[1].owned.len() == 64);
        // And now it can.
        control.done(Command::Park { thread: 1 });
        control.done(Command::Resume { thread: 1 });
        for command in [
            Command::Park { thread: 2 },
            Command::Resume { thread: usize::MAX },
            Command::Drain { thread: 2 },
            Command::Migrate { groups: GroupSet::all(), to: 2 },
            Command::Migrate { groups: GroupSet::EMPTY, to: 1 },
        ] {
            let outcome = control.send(command);
            assert!(matches!(outcome, Outcome::Refused(_)), "{command}: {outcome:?}");
        }
        let late = message(0, 1, Command::Drain { thread: 1 });
        control.commands.send(late).unwrap();
        control.bell.write_all(&[1]).unwrap();
        let (_, outcome) = control.outcomes.recv_timeout(PATIENCE).expect("an outcome");
        assert!(matches!(outcome, Outcome::Refused(why) if why.contains("too late")));
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
    assert_eq!(snapshot.commands.timed_out, 1);
}

#[test]
fn frames_find_their_way_home_after_many_migrations() {
    many_migrations("frames_find_their_way_home_after_many_migrations", 500);
}

#[test]
#[ignore = "a minute; .ci/run nightly"]
fn frames_find_their_way_home_after_ten_thousand_migrations() {
    many_migrations("frames_find_their_way_home_after_ten_thousand_migrations", 10_000);
}

fn many_migrations(test: &str, count: usize) {
    let Some(snapshot) = with_service(test, "tap", &[RUNS, RUNS, RUNS], |world| {
        let mut seed = 1u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let rounds = under_traffic(16, || {
            for _ in 0..count {
                let (first, len, to) = (random(128), random(40) + 1, random(3));
                let groups = (first as usize..(first + len) as usize).collect();
                world.control().done(Command::Migrate { groups, to: to as usize });
            }
        });
        eprintln!("{count} migrations, {rounds} messages");
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
    let (made, slack) = (Config::default().rx_frames as u64, 2 * 256);
    for thread in &snapshot.threads {
        let owned = thread.get("rx_frames_owned").expect("a gauge");
        assert!(owned.abs_diff(made) <= slack, "{owned} of {made}: {snapshot:?}");
    }
}

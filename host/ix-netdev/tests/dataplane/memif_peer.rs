//! Two dataplanes in this process on one memif, with raw calls: devices that change under them.
use ix_abi::{
    Call, CallSlot, Endpoint, Event, EventSlot, FlowInfo, ProcessHeader, SgArray, SgEntry,
    ThreadArea,
};
use ix_dataplane::metrics::{ControlPage, Snapshot};
use ix_dataplane::{
    Config, Dataplane, Device, FromBroker, Outcome, Update, UpdateOutcome, UpdateSource,
    memory_sizes,
};
use ix_mem::PacketMemory;
use ix_netdev::{DeviceEvent, DeviceSpec, OpenOptions, OpenedDevice, SharedMemory};
use ix_wire::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

/// Updates by way of a queue in this process; a byte in the pipe for each.
struct Queue {
    updates: Receiver<Update>,
    bell: std::io::PipeReader,
}

impl UpdateSource for Queue {
    fn fd(&self) -> RawFd {
        self.bell.as_fd().as_raw_fd()
    }

    fn next(&mut self) -> Option<FromBroker> {
        let update = self.updates.try_recv().ok()?;
        use std::io::Read;
        self.bell.read_exact(&mut [0]).expect("a byte for each update");
        Some(FromBroker::Update(update))
    }

    fn tell(&mut self, device: usize, outcome: UpdateOutcome) {
        assert!(matches!(outcome, UpdateOutcome::Updated { .. }), "{device}: {outcome:?}");
    }

    fn tell_outcome(&mut self, serial: u64, outcome: &Outcome) {
        panic!("nobody has sent command {serial}: {outcome:?}");
    }

    fn tell_surveyed(&mut self, serial: u64) {
        panic!("nobody has asked for survey {serial}");
    }
}

/// One end: the dataplane, and its broker's part.
struct End {
    dataplane: Dataplane,
    page: Arc<ControlPage>,
    broker: Mutex<Broker>,
}

struct Broker {
    opened: Option<OpenedDevice>,
    updates: Sender<Update>,
    bell: std::io::PipeWriter,
    serial: u64,
}

impl End {
    fn new(spec: &str, addresses: [[u8; 4]; 2]) -> End {
        let host_addrs = addresses.map(|addr| (IpAddr::v4(addr), 24)).to_vec();
        let config = Config { host_addrs, rx_frames: 4096, tx_frames: 2048, ..Config::default() };
        let sizes = memory_sizes(&config);
        let fds = Arc::new(ix_mem::MemoryFds::new(sizes).unwrap());
        let memory = PacketMemory::map(fds.as_fds(), sizes).unwrap();
        let mut opened = open(spec, Some(SharedMemory { fds, sizes }));
        let queues: Vec<OwnedFd> = std::mem::take(&mut opened.queue_fds);
        let device = Device { info: opened.info.clone(), queues };
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let reach = ix_dataplane::Reach::default();
        let dataplane =
            Dataplane::boot_in(memory, config, vec![device], &page, reach, |_, _| Ok(())).unwrap();
        let (reader, bell) = std::io::pipe().unwrap();
        let (updates, receiver) = channel();
        dataplane.set_update_source(Box::new(Queue { updates: receiver, bell: reader }));
        let broker = Mutex::new(Broker { opened: Some(opened), updates, bell, serial: 0 });
        End { dataplane, page, broker }
    }

    /// Serves the device's control channel, as `ix run` does.
    fn serve(&self) {
        let mut broker = self.broker.lock().unwrap();
        let events = broker.opened.as_mut().map(OpenedDevice::service).unwrap_or_default();
        for event in events {
            let DeviceEvent::Update(update) = event else { continue };
            broker.serial += 1;
            let serial = broker.serial;
            let (change, fds) = (update.change, update.fds);
            broker.updates.send(Update { device: 0, serial, change, fds }).unwrap();
            use std::io::Write;
            broker.bell.write_all(&[1]).unwrap();
        }
    }

    fn total(&self, name: &str) -> u64 {
        Snapshot::of(&self.page).total(name).unwrap()
    }

    /// No frame is in use but those that the device holds.
    fn at_rest(&self) -> bool {
        ["rx", "tx"].iter().all(|kind| {
            self.total(&format!("{kind}_frames_in_use"))
                == self.total(&format!("{kind}_frames_in_device"))
        })
    }
}

fn open(spec: &str, memory: Option<SharedMemory>) -> OpenedDevice {
    let spec: DeviceSpec = spec.parse().unwrap();
    ix_netdev::open(&spec, &OpenOptions { memory, ..OpenOptions::default() }).unwrap()
}

/// An application on an end.
struct App<'a> {
    dataplane: &'a Dataplane,
    calls: *mut CallSlot,
    events: *const EventSlot,
    /// Transmit memory: the scatter-gather entries first, then a message.
    sg: *mut SgEntry,
    count: usize,
    sgs: usize,
}

impl<'a> App<'a> {
    fn new(end: &'a End) -> App<'a> {
        let dataplane = &end.dataplane;
        // SAFETY: the header and its areas live as long as the dataplane.
        let (header, area): (ProcessHeader, ThreadArea) = unsafe {
            let header = *dataplane.header();
            (header, *(header.thread_areas as *const ThreadArea))
        };
        let (calls, events) = (area.calls as *mut CallSlot, area.events as *const EventSlot);
        App { dataplane, calls, events, sg: header.tx_base as *mut SgEntry, count: 0, sgs: 0 }
    }

    fn call(&mut self, call: Call) {
        // SAFETY: below CALLS_MAX; this application's own array.
        unsafe { self.calls.add(self.count).write(call.encode()) };
        self.count += 1;
    }

    fn send(&mut self, handle: u64, base: u64, len: u64, done: u64) {
        // SAFETY: within transmit memory, which is this application's own.
        let sg = unsafe { self.sg.add(self.sgs) };
        // SAFETY: as above.
        unsafe { sg.write(SgEntry { base, len }) };
        self.sgs += 1;
        let sg = SgArray { addr: sg as u64, entries: 1 };
        self.call(Call::SendV { handle, sg, fin: false, eor: false, done });
    }

    fn send_datagram(&mut self, socket: u32, to: Endpoint, base: u64, len: u64) {
        // SAFETY: within transmit memory, which is this application's own.
        let sg = unsafe { self.sg.add(self.sgs) };
        // SAFETY: as above.
        unsafe { sg.write(SgEntry { base, len }) };
        self.sgs += 1;
        let sg = SgArray { addr: sg as u64, entries: 1 };
        self.call(Call::UdpSendV { socket, to, sg, cookie: 0 });
    }

    /// The answer of the last batch's first call.
    fn answer(&self) -> i64 {
        // SAFETY: our own array; the dataplane has answered.
        unsafe { (*self.calls).ret }
    }

    fn run_io(&mut self, wait: Duration) -> Vec<Event> {
        // SAFETY: one Linux thread drives this end.
        let n = unsafe { self.dataplane.run_io(0, self.count, wait.as_micros() as u64) };
        (self.count, self.sgs) = (0, 0);
        // SAFETY: the dataplane wrote that many events.
        let slots = (0..n).map(|i| unsafe { *self.events.add(i) });
        slots.map(|slot| Event::decode(&slot).expect("an event")).collect()
    }
}

fn at(address: [u8; 4], port: u16) -> Endpoint {
    Endpoint { addr: ix_abi::v4(address), port }
}

fn echo_server(end: &End, stop: &AtomicBool) {
    let mut app = App::new(end);
    app.call(Call::Listen { at: at([0; 4], 7), backlog: 0, cookie: 99, holds: false });
    app.call(Call::UdpBind { at: at([0; 4], 9), cookie: 98 });
    let mut datagrams = 0;
    app.run_io(Duration::ZERO);
    // SAFETY: the answer of the second call, in our own array.
    let socket = unsafe { (*app.calls.add(1)).ret } as u32;
    while !stop.load(Ordering::SeqCst) {
        for event in app.run_io(Duration::from_millis(100)) {
            match event {
                Event::Knock { handle, .. } => app.call(Call::Accept { handle, cookie: handle }),
                Event::Recv { handle, data, news, .. } => {
                    app.send(handle, data.addr, data.len.into(), news.bytes().into());
                }
                Event::Sent { handle, bytes, .. } => {
                    app.call(Call::RecvDone { handle, bytes: bytes.into() });
                }
                Event::Eof { handle, .. } => app.call(Call::Close { handle }),
                Event::UdpRecv { peer, local, data, .. } => {
                    // The answer to a datagram: the address that was asked.
                    datagrams += 1;
                    // SAFETY: transmit memory far behind the scatter-gather entries.
                    let place = unsafe { app.sg.cast::<u8>().add((1 << 20) + 16 * datagrams) };
                    // SAFETY: as above, for this answer alone.
                    unsafe { place.cast::<[u8; 16]>().write_unaligned(local) };
                    app.send_datagram(socket, peer, place as u64, 16);
                    app.call(Call::UdpRecvDone { data: data.addr });
                }
                _ => {}
            }
        }
    }
}

/// A connection that sends a message and waits for the same.
struct Asker<'a> {
    app: App<'a>,
    handle: u64,
}

impl<'a> Asker<'a> {
    fn connect(end: &'a End) -> Asker<'a> {
        let mut app = App::new(end);
        let to = at([10, 98, 0, 1], 7);
        app.call(Call::Connect { cookie: 5, to, congestion: None, local_port: 0 });
        let until = Instant::now() + PATIENCE;
        loop {
            let events = app.run_io(Duration::from_millis(100));
            let connected = events.iter().find_map(|event| match *event {
                Event::Connected { handle, .. } => Some(handle),
                _ => None,
            });
            if let Some(handle) = connected {
                return Asker { handle, app };
            }
            assert!(Instant::now() < until, "not connected");
        }
    }

    fn ask(&mut self, number: u64) {
        let message: Vec<u8> = (0..64).map(|i| (number * 31 + i) as u8).collect();
        // SAFETY: transmit memory far behind the scatter-gather entries.
        let place = unsafe { self.app.sg.cast::<u8>().add(1 << 20) };
        // SAFETY: as above; nothing of an earlier message is under way.
        unsafe { place.copy_from_nonoverlapping(message.as_ptr(), message.len()) };
        self.app.send(self.handle, place as u64, message.len() as u64, 0);
        let (mut answer, until) = (Vec::new(), Instant::now() + PATIENCE);
        while answer.len() < message.len() {
            assert!(Instant::now() < until, "message {number} has no answer");
            for event in self.app.run_io(Duration::from_millis(100)) {
                assert!(!matches!(event, Event::Dead { .. }), "message {number}");
                if let Event::Recv { data, .. } = event {
                    let (data, len) = (data.addr as *const u8, data.len as usize);
                    // SAFETY: received memory, ours until RECV_DONE.
                    answer.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
                    self.app.call(Call::RecvDone { handle: self.handle, bytes: len as u64 });
                }
            }
        }
        assert_eq!(answer, message);
    }

    /// Closes, and serves this end until its gauges say that nothing is under way any more.
    fn close(mut self, end: &End) {
        self.app.call(Call::Close { handle: self.handle });
        let (start, mut rounds) = (Instant::now(), 0);
        // The gauges are written every 100 ms: the first rounds may read what was before.
        while rounds < 15 || !end.at_rest() {
            assert!(start.elapsed() < PATIENCE, "frames stay in use after the close");
            self.app.run_io(Duration::from_millis(20));
            rounds += 1;
        }
    }
}

/// Runs both ends, their brokers, and `work` at the client's.
fn with_link(name: &str, work: impl FnOnce(&End, &End)) {
    let path = format!("{}/{name}-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    let (ours, theirs) = ([[10, 98, 0, 1], [10, 98, 0, 4]], [[10, 98, 0, 2], [10, 98, 0, 3]]);
    let server = End::new(&format!("memif:{path},role=server"), ours);
    let client = End::new(&format!("memif:{path},role=client"), theirs);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| echo_server(&server, &stop));
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                server.serve();
                client.serve();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let _stop = StopAtEnd(&stop);
        work(&server, &client);
        // Gauges are written every 100 ms: the first look may be at what was before.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(300) || !server.at_rest() {
            assert!(start.elapsed() < PATIENCE, "the server's frames stay in use");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for end in [&server, &client] {
        for kind in ["rx", "tx"] {
            let held = end.total(&format!("{kind}_frames_in_device"));
            assert_eq!(end.total(&format!("{kind}_frames_in_use")), held, "{kind} frames leak");
        }
    }
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The link goes and comes back under a connection, with both ends alive: TCP repairs what was
/// lost.
#[test]
fn a_connection_outlives_links_that_come_and_go() {
    with_link("flap", |server, client| {
        let mut asker = Asker::connect(client);
        for round in 0..5 {
            (0..200).for_each(|number| asker.ask(round * 1000 + number));
            // The server's broker hangs up and listens anew; the client's comes back by itself.
            let mut broker = server.broker.lock().unwrap();
            let spec = format!("memif:{},role=server", broker.opened.as_ref().unwrap().info.name);
            broker.opened = None;
            broker.opened = Some(open(&spec, None));
        }
        (0..200).for_each(|number| asker.ask(9000 + number));
        asker.close(client);
        let end = Instant::now() + PATIENCE;
        while server.total("flows") > 0 {
            assert!(Instant::now() < end, "the server's flow stays");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

/// A thread inside `run_io` with nothing to do sleeps on the doorbell, and hears the next request.
#[test]
fn a_silent_link_costs_nothing_and_the_next_request_is_answered() {
    with_link("silent", |_, client| {
        let mut asker = Asker::connect(client);
        asker.ask(1);
        let used = || {
            // SAFETY: all zeroes is a valid timespec.
            let mut time: libc::timespec = unsafe { std::mem::zeroed() };
            // SAFETY: writes to a local.
            unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let (before, start) = (used(), Instant::now());
        while start.elapsed() < Duration::from_secs(1) {
            asker.app.run_io(Duration::from_secs(1));
        }
        let spent = used() - before;
        assert!(spent < Duration::from_millis(10), "{spent:?} in a second of silence");
        asker.ask(2);
        asker.close(client);
    });
}

/// RFC 1122 sections 3.3.4.2 and 4.1.3.5, RFC 9293 MUST-43: a connection leaves from the address
/// that was named, and a socket of every address hears which one was asked.
#[test]
fn an_application_chooses_and_hears_local_addresses() {
    with_link("addresses", |_, client| {
        let mut app = App::new(client);
        let to = at([10, 98, 0, 1], 7);
        let mut connect = |from: [u8; 4]| {
            let from = at(from, 0);
            app.call(Call::ConnectFrom { cookie: 5, to, congestion: None, from });
            app.run_io(Duration::ZERO);
            app.answer()
        };
        assert_eq!(connect([10, 98, 0, 9]), -ix_abi::error::NOT_LOCAL);
        let handle = connect([10, 98, 0, 3]);
        assert!(handle > 0);
        // SAFETY: transmit memory far behind the scatter-gather entries.
        let info = unsafe { app.sg.cast::<u8>().add(1 << 20) }.cast::<FlowInfo>();
        app.call(Call::GetInfo { handle: handle as u64, to: info as u64 });
        app.run_io(Duration::ZERO);
        assert_eq!(app.answer(), 0);
        // SAFETY: the dataplane has written it.
        assert_eq!(unsafe { info.read() }.local_addr, ix_abi::v4([10, 98, 0, 3]));
        wait_for(&mut app, |event| matches!(event, Event::Connected { .. }));

        app.call(Call::UdpBind { at: at([0; 4], 5000), cookie: 6 });
        app.run_io(Duration::ZERO);
        let socket = app.answer() as u32;
        for asked in [[10, 98, 0, 1], [10, 98, 0, 4]].map(ix_abi::v4) {
            app.send_datagram(socket, Endpoint { addr: asked, port: 9 }, info as u64, 1);
            let event = wait_for(&mut app, |event| matches!(event, Event::UdpRecv { .. }));
            let Event::UdpRecv { local, data, .. } = event else { unreachable!() };
            // SAFETY: received memory, ours until UDP_RECV_DONE.
            let said = unsafe { (data.addr as *const ix_abi::Addr).read_unaligned() };
            assert_eq!((data.len, said), (16, asked));
            assert_eq!(local, ix_abi::v4([10, 98, 0, 2]));
            app.call(Call::UdpRecvDone { data: data.addr });
        }
        app.run_io(Duration::ZERO);
        Asker { app, handle: handle as u64 }.close(client);
    });
}

fn wait_for(app: &mut App<'_>, wanted: impl Fn(&Event) -> bool) -> Event {
    let until = Instant::now() + PATIENCE;
    loop {
        let events = app.run_io(Duration::from_millis(100));
        if let Some(event) = events.into_iter().find(&wanted) {
            return event;
        }
        assert!(Instant::now() < until, "the event does not come");
    }
}

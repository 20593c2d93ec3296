//! A dataplane in this process, with raw calls and a real Linux peer behind a TAP device.
use ix_abi::{
    Call, CallSlot, Endpoint, Event, EventSlot, ProcessHeader, SgArray, SgEntry, ThreadArea,
    gate_op,
};
use ix_dataplane::metrics::{ControlPage, Snapshot};
use ix_dataplane::{Config, Dataplane, Device};
use ix_testbed::Namespace;
use ix_wire::{IpAddr, MacAddr};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Runs an echo service on port 7 while `client` works in the Linux side's namespace; returns the
/// counters after everything has ended.
fn with_echo(kind: &str, queues: usize, client: impl FnOnce() + Send) -> Option<Snapshot> {
    let tcp = ix_tcp::Config { time_wait_us: 200_000, ..ix_tcp::Config::default() };
    let config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    let config = Config { cpus: vec![0; queues], tcp, ..config };
    serving(kind, config, |namespace, _| namespace.run(client))
}

/// The same with this configuration at all addresses of both families; `client` gets the Linux
/// side's namespace and the dataplane's Ethernet address.
pub fn serving(
    kind: &str,
    config: Config,
    client: impl FnOnce(&Namespace, MacAddr) + Send,
) -> Option<Snapshot> {
    let queues = config.cpus.len();
    let (namespaces, mut opened) = super::link::link("linux_peer", kind, "10.77.0.1", &config)?;
    let (namespace, mac) = (&namespaces[0], opened.info.mac);
    let device =
        Device { info: opened.info.clone(), queues: std::mem::take(&mut opened.queue_fds) };
    let page = Arc::new(ControlPage::anonymous(queues).unwrap());
    let dataplane = Dataplane::boot(config, vec![device], &page, 0, |_, q| {
        opened.finish(q).map_err(|e| e.to_string())
    })
    .unwrap();
    // SAFETY: nobody uses the elastic threads yet.
    eprintln!("{:?}", unsafe { dataplane.modes() });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..queues {
            let (dataplane, stop) = (&dataplane, &stop);
            scope.spawn(move || Echo::new(dataplane, thread).run(stop));
        }
        // Also if the client panics, for the scope waits for all of them.
        let _stops = Stops(&stop);
        std::thread::sleep(Duration::from_millis(50));
        client(namespace, mac);
        std::thread::sleep(Duration::from_millis(500));
    });
    Some(Snapshot::of(&page))
}

struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

struct Echo<'a> {
    dataplane: &'a Dataplane,
    thread: usize,
    calls: *mut CallSlot,
    events: *const EventSlot,
    sg: *mut SgEntry,
    count: usize,
    sgs: usize,
}

impl<'a> Echo<'a> {
    fn new(dataplane: &'a Dataplane, thread: usize) -> Echo<'a> {
        // SAFETY: the header and its areas live as long as the dataplane.
        let (header, area): (ProcessHeader, ThreadArea) = unsafe {
            let header = *dataplane.header();
            (header, *(header.thread_areas as *const ThreadArea).add(thread))
        };
        let sg = header.tx_base + thread as u64 * (2 << 20);
        Echo {
            dataplane,
            thread,
            calls: area.calls as *mut CallSlot,
            events: area.events as *const EventSlot,
            sg: sg as *mut SgEntry,
            count: 0,
            sgs: 0,
        }
    }

    fn call(&mut self, call: Call) {
        // SAFETY: below CALLS_MAX; this thread's own array.
        unsafe { self.calls.add(self.count).write(call.encode()) };
        self.count += 1;
    }

    fn run(mut self, stop: &AtomicBool) {
        let at = Endpoint { addr: [0; 16], port: 7 };
        self.call(Call::Listen { at, backlog: 0, cookie: 99, holds: false });
        let mut listening = false;
        while !stop.load(Ordering::SeqCst) {
            // SAFETY: this Linux thread is the only one to use this elastic thread.
            let events = unsafe { self.dataplane.run_io(self.thread, self.count, 20_000) };
            // SAFETY: this thread's own array.
            let results: Vec<CallSlot> =
                (0..self.count).map(|i| unsafe { *self.calls.add(i) }).collect();
            if !listening {
                assert!(results[0].ret > 0, "listen: {}", results[0].ret);
                listening = true;
            }
            for call in &results {
                if let Ok(Call::SendV { .. }) = Call::decode(call) {
                    // Small messages: the window always has room.
                    assert!(call.ret > 0, "sendv: {}", call.ret);
                }
            }
            (self.count, self.sgs) = (0, 0);
            for i in 0..events {
                // SAFETY: the dataplane wrote that many events.
                let event = unsafe { *self.events.add(i) };
                self.on_event(Event::decode(&event).expect("an event"));
            }
        }
        let _ = gate_op::RUN_IO;
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
            _ => {}
        }
    }
}

pub fn echo_rounds(rounds: usize, size: usize) {
    let mut stream = TcpStream::connect("10.77.0.2:7").unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for round in 0..rounds {
        let message: Vec<u8> = (0..size).map(|i| (i * 31 + round) as u8).collect();
        stream.write_all(&message).unwrap();
        let mut answer = vec![0; size];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, message);
    }
}

fn assert_nothing_left(snapshot: &Snapshot) {
    assert_eq!(snapshot.total("flows"), Some(0), "{snapshot:?}");
    let in_use = snapshot.total("rx_frames_in_use").unwrap();
    assert_eq!(in_use, snapshot.total("rx_frames_in_device").unwrap(), "{snapshot:?}");
    let in_use = snapshot.total("tx_frames_in_use").unwrap();
    assert_eq!(in_use, snapshot.total("tx_frames_in_device").unwrap(), "{snapshot:?}");
    assert_eq!(snapshot.total("misrouted"), Some(0));
}

fn echoes_and_leaves_nothing_behind(kind: &str) {
    let Some(snapshot) = with_echo(kind, 1, || {
        echo_rounds(1000, 64);
        for size in [1, 1000, 5000, 60_000] {
            echo_rounds(20, size);
        }
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
}

fn two_elastic_threads_serve_one_listener(kind: &str) {
    let Some(snapshot) = with_echo(kind, 2, || {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        echo_rounds(50, 100);
                    }
                });
            }
        });
    }) else {
        return;
    };
    assert_nothing_left(&snapshot);
    for thread in &snapshot.threads {
        assert!(thread.get("accepted").unwrap() > 0, "both threads accept");
    }
}

#[test]
fn echo_over_tap() {
    echoes_and_leaves_nothing_behind("tap");
}

#[test]
fn echo_over_afxdp() {
    echoes_and_leaves_nothing_behind("afxdp");
}

#[test]
fn two_threads_over_tap() {
    two_elastic_threads_serve_one_listener("tap");
}

#[test]
fn two_threads_over_afxdp() {
    two_elastic_threads_serve_one_listener("afxdp");
}

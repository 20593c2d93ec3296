//! An application that calls with rubbish: every call is answered, nothing is read or written that
//! the application may not name, and the dataplane goes on.
use ix_abi::{
    CALLS_MAX, CallSlot, EVENTS_MAX, ProcessHeader, ThreadArea, call_op, error, flow_opt,
};
use ix_dataplane::metrics::ControlPage;
use ix_dataplane::{Config, Dataplane};
use ix_wire::IpAddr;
use std::sync::Arc;

struct App {
    dataplane: Dataplane,
    header: ProcessHeader,
    calls: *mut CallSlot,
}

impl App {
    fn new() -> App {
        let config = Config {
            rx_frames: 256,
            tx_frames: 256,
            arena_bytes: 4 << 20,
            timers_max: 100,
            ..Config::with_address(IpAddr::v4([10, 0, 0, 2]), 24)
        };
        let page = Arc::new(ControlPage::anonymous(1).unwrap());
        let dataplane = Dataplane::boot(config, vec![], &page, 0, |_, _| Ok(())).unwrap();
        // SAFETY: header and area live as long as the dataplane.
        let (header, area) = unsafe {
            let header = *dataplane.header();
            (header, *(header.thread_areas as *const ThreadArea))
        };
        App { dataplane, header, calls: area.calls as *mut CallSlot }
    }

    /// Runs calls, returns their return codes.
    fn run(&mut self, calls: &[CallSlot]) -> Vec<i64> {
        for (i, call) in calls.iter().enumerate() {
            // SAFETY: below CALLS_MAX, our own array.
            unsafe { self.calls.add(i).write(*call) };
        }
        // SAFETY: nobody else uses the thread.
        let events = unsafe { self.dataplane.run_io(0, calls.len(), 0) };
        assert!(events <= EVENTS_MAX);
        // SAFETY: as above.
        (0..calls.len()).map(|i| unsafe { (*self.calls.add(i)).ret }).collect()
    }

    fn one(&mut self, op: u32, args: &[u64]) -> i64 {
        let mut call = CallSlot { op, ret: 12345, ..CallSlot::default() };
        call.args[..args.len()].copy_from_slice(args);
        self.run(&[call])[0]
    }
}

const ANY: [u64; 2] = [0, 0xffff_0000_0000];

fn v4(a: [u8; 4]) -> [u64; 2] {
    [0, 0xffff_0000_0000 | u64::from(u32::from_be_bytes(a))]
}

#[test]
fn each_wrong_argument_has_its_error() {
    let mut app = App::new();
    let stale = 1 << 24;
    for op in [
        call_op::ACCEPT,
        call_op::REJECT,
        call_op::SENDV,
        call_op::RECV_DONE,
        call_op::SHUTDOWN,
        call_op::CLOSE,
        call_op::ABORT,
        call_op::GET_INFO,
        call_op::UNLISTEN,
        call_op::UDP_UNBIND,
        call_op::TIMER_CANCEL,
    ] {
        for handle in [0, 1, stale, u64::MAX, 127 << 48 | stale, 128 << 48 | stale] {
            assert_eq!(app.one(op, &[handle, 0, 0]), -error::BAD_HANDLE, "{op} {handle:x}");
        }
    }
    assert_eq!(app.one(call_op::SET_OPT, &[stale, flow_opt::NAGLE, 1]), -error::BAD_HANDLE);
    assert_eq!(app.one(9999, &[]), -error::NO_SYS);
    assert_eq!(app.one(call_op::LISTEN, &[ANY[0], ANY[1], 65536, 0, 0]), -error::INVALID);
    assert_eq!(app.one(call_op::LISTEN, &[ANY[0], ANY[1], 0, 0, 0]), -error::INVALID);
    let foreign = v4([10, 0, 0, 9]);
    assert_eq!(app.one(call_op::LISTEN, &[foreign[0], foreign[1], 80, 0, 0]), -error::NOT_LOCAL);
    let listener = app.one(call_op::LISTEN, &[ANY[0], ANY[1], 80, 0, 0]);
    assert!(listener > 0);
    assert_eq!(app.one(call_op::LISTEN, &[ANY[0], ANY[1], 80, 0, 0]), -error::IN_USE);
    assert_eq!(app.one(call_op::UNLISTEN, &[listener as u64]), 0);
    assert_eq!(app.one(call_op::UNLISTEN, &[listener as u64]), -error::BAD_HANDLE);
    let far = v4([8, 8, 8, 8]);
    assert_eq!(app.one(call_op::CONNECT, &[0, far[0], far[1], 80]), -error::UNREACHABLE);
    let near = v4([10, 0, 0, 1]);
    assert_eq!(app.one(call_op::CONNECT, &[0, near[0], near[1], 0]), -error::INVALID);
    assert_eq!(app.one(call_op::CONNECT, &[0, near[0], near[1], 1 << 40]), -error::INVALID);
    // A congestion control that there is none of.
    assert_eq!(app.one(call_op::CONNECT, &[0, near[0], near[1], 5 << 16 | 80]), -error::INVALID);
    for group in [[224, 0, 0, 1], [255; 4], [10, 0, 0, 255]].map(v4) {
        let connect = app.one(call_op::CONNECT, &[0, group[0], group[1], 80]);
        assert_eq!(connect, -error::INVALID, "connecting to a group");
    }
    assert_eq!(app.one(call_op::UDP_BIND, &[foreign[0], foreign[1], 53, 0]), -error::NOT_LOCAL);
    let socket = app.one(call_op::UDP_BIND, &[ANY[0], ANY[1], 53, 0]);
    assert!(socket >= 0);
    assert_eq!(app.one(call_op::UDP_BIND, &[ANY[0], ANY[1], 53, 0]), -error::IN_USE);
    for data in [0, app.header.rx_base, app.header.rx_base + 4096, u64::MAX] {
        let ret = app.one(call_op::UDP_RECV_DONE, &[data]);
        assert!(ret == -error::FAULT || ret == -error::BAD_HANDLE, "{ret}");
    }
    assert_eq!(app.one(call_op::TX_ALLOC, &[u64::MAX]), -error::NO_RESOURCE);
    assert_eq!(app.one(call_op::TX_FREE, &[app.header.tx_base, 1]), -error::INVALID);
}

#[test]
fn timers_are_bounded_and_fire() {
    let mut app = App::new();
    let set =
        CallSlot { op: call_op::TIMER_SET, args: [7, 1000, 0, 0, 0, 0], ..CallSlot::default() };
    let answers = app.run(&[set; 120]);
    assert_eq!(answers.iter().filter(|ret| **ret > 0).count(), 100);
    assert_eq!(answers[119], -error::NO_RESOURCE);
    let mut fired = 0;
    for _ in 0..100 {
        // SAFETY: nobody else uses the thread.
        fired += unsafe { app.dataplane.run_io(0, 0, 1000) };
    }
    assert_eq!(fired, 100);
    assert!(app.one(call_op::TIMER_SET, &[7, u64::MAX]) > 0);
    assert!(app.one(call_op::TIMER_SET, &[7, 0]) > 0);
}

#[test]
fn random_calls_are_all_answered() {
    let mut app = App::new();
    let mut seed = 42u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let header = app.header;
    for _ in 0..400 {
        let calls: Vec<CallSlot> = (0..random() % CALLS_MAX as u64)
            .map(|_| {
                let mut call = CallSlot { op: (random() % 22) as u32, ..CallSlot::default() };
                for arg in &mut call.args {
                    *arg = match random() % 8 {
                        0 => random(),
                        1 => header.tx_base + random() % (header.tx_len + 64),
                        2 => header.rx_base + random() % (header.rx_len + 64),
                        3 => u64::MAX - random() % 64,
                        4 => 0xffff_0a00_0000 + random() % 8,
                        5 => (1 << 24) | (random() % 4),
                        _ => random() % 100,
                    };
                }
                call
            })
            .collect();
        app.run(&calls);
    }
}

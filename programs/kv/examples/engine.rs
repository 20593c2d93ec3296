//! Cycles of the engine alone, without any network: one request fed to each of 64 connections in
//! turn. `cargo run --release -p ix-kv --example engine`
use ix_kv::context::Context;
use ix_kv::expiry::Now;
use ix_kv::reply::Reply;
use ix_kv::session::Session;
use ix_kv::store::{Limits, Store};
use ix_kv::words::Words;
use ix_sys::tsc::ticks;

const CONNECTIONS: usize = 64;
const REQUESTS: usize = 2_000_000;

fn key(number: u64) -> String {
    format!("{:019}", number)
}

fn main() {
    println!("{:>9} {:>7} {:>6} {:>8} {:>8}", "items", "value", "verb", "cycles", "ns");
    for items in [10_000u64, 1_000_000] {
        for (value, lends) in [(2, false), (100, false), (1000, false), (4000, false), (4000, true)]
        {
            if items * value < 1 << 30 {
                measure(items, value as usize, lends);
            }
        }
    }
}

fn measure(items: u64, value: usize, lends: bool) {
    let limits = Limits { memory_bytes: 2 << 30, ..Limits::default() };
    let words = Words::private(limits.region_bytes() as usize).expect("memory");
    let store = Store::new(words, limits, 21, 7);
    let me = store.counters(0);
    let context = Context { store, me, now: Now::new(0, 1_800_000_000) };
    let mut reply = Reply::new(lends);
    let mut session = Session::default();
    for number in 0..items {
        let head = format!("set {} 0 0 {value}\r\n", key(number));
        let set = [head.as_bytes(), &vec![b'v'; value], b"\r\n"].concat();
        session.feed(&set, &context, &mut reply);
        reply.clear();
    }
    let mut random = 88_172_645_463_325_252u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % items
    };
    for verb in ["get", "set"] {
        let tail = if verb == "get" {
            Vec::new()
        } else {
            [b"v".repeat(value), b"\r\n".to_vec()].concat()
        };
        let request = |number| {
            let line = match verb {
                "get" => format!("get {}\r\n", key(number)),
                _ => format!("set {} 0 0 {value}\r\n", key(number)),
            };
            [line.as_bytes(), &tail].concat()
        };
        let requests: Vec<Vec<u8>> = (0..100_000).map(|_| request(next())).collect();
        let mut sessions: Vec<Session> = (0..CONNECTIONS).map(|_| Session::default()).collect();
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..3 {
            let (start, clock) = (ticks(), std::time::Instant::now());
            for number in 0..REQUESTS {
                let request = &requests[number % requests.len()];
                sessions[number % CONNECTIONS].feed(request, &context, &mut reply);
                reply.clear();
            }
            let each = (ticks() - start) as f64 / REQUESTS as f64;
            best =
                (best.0.min(each), best.1.min(clock.elapsed().as_nanos() as f64 / REQUESTS as f64));
        }
        let shown = if lends { format!("{value}*") } else { value.to_string() };
        println!("{items:>9} {shown:>7} {verb:>6} {:>8.0} {:>8.1}", best.0, best.1);
    }
}

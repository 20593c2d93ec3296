//! ix-kv's protocols: any requests, cut into any pieces.
use crate::bytes::Bytes;
use ix_kv::context::Context;
use ix_kv::expiry::Now;
use ix_kv::reply::Reply;
use ix_kv::session::Session;
use ix_kv::store::{Limits, Store};
use ix_kv::words::Words;
use std::cell::Cell;

/// A store lives as long as the process; what earlier inputs left in it is removed.
fn store() -> &'static Store {
    thread_local! {
        static STORE: Cell<Option<&'static Store>> = const { Cell::new(None) };
    }
    STORE.get().unwrap_or_else(|| {
        let limits = Limits { memory_bytes: 4 << 20, factor: 4.0, ..Limits::default() };
        let words = Words::private(limits.region_bytes() as usize).expect("memory for a store");
        let store = Store::new(words, limits, 10, 1);
        STORE.set(Some(store));
        store
    })
}

/// Feeds the requests in pieces: a session takes everything, or stops because its reply is full or
/// the connection is closed.
pub fn run(input: &[u8]) {
    let store = store();
    let mut bytes = Bytes::new(input);
    let step = 1 + usize::from(bytes.u8());
    let lends = bytes.u8() & 1 == 1;
    let context = Context { store, me: store.counters(0), now: Now::new(1, 1_800_000_000) };
    let (mut session, mut reply) = (Session::default(), Reply::new(lends));
    for mut piece in bytes.take(usize::MAX).chunks(step) {
        loop {
            let taken = session.feed(piece, &context, &mut reply);
            assert!(taken <= piece.len());
            piece = &piece[taken..];
            let (full, closed) = (reply.is_full(), session.is_closed());
            assert!(piece.is_empty() || full || closed, "{} octets left lying", piece.len());
            reply.clear();
            if !full || closed {
                break;
            }
        }
    }
    store.flush(store.counters(0), 0, Now::new(1, 1_800_000_000));
}

//! The output of `stats`. Names are memcached's; only measured or set values are listed.
use crate::context::Context;
use crate::counters::{ClassCounters, Counter, Counters};
use crate::store::{KEY_MAX, Store};
use std::time::{SystemTime, UNIX_EPOCH};

/// The output of `version`: memcached's version whose behaviour this has, which clients rely on,
/// and this program's.
pub const VERSION: &str = concat!("1.6.18-ix-kv-", env!("CARGO_PKG_VERSION"));

/// Writes the statistics of one kind; returns whether there is such a kind.
pub fn each(what: &[u8], context: &Context<'_>, mut tell: impl FnMut(&str, &str)) -> bool {
    match what {
        b"" => general(context, &mut tell),
        b"settings" => settings(context.store, &mut tell),
        b"items" => items(context.store, &mut tell),
        b"slabs" => slabs(context.store, &mut tell),
        _ => return false,
    }
    true
}

/// `stats reset`.
pub fn reset(store: &Store) {
    store.all_counters().iter().for_each(Counters::reset);
}

fn sum(store: &Store, field: impl Fn(&Counters) -> &Counter) -> u64 {
    store.all_counters().iter().fold(0, |sum, one| sum.wrapping_add(field(one).get()))
}

fn class(store: &Store, number: usize) -> ClassCounters {
    let total = ClassCounters::default();
    store.all_counters().iter().for_each(|one| total.merge(one.classes.of(number)));
    total
}

fn all_classes(store: &Store) -> ClassCounters {
    let total = ClassCounters::default();
    let classes = store.all_counters().iter().flat_map(|one| one.classes.0.iter());
    classes.for_each(|one| total.merge(one));
    total
}

fn general(context: &Context<'_>, tell: &mut impl FnMut(&str, &str)) {
    let store = context.store;
    let mut number = |name: &str, value: u64| tell(name, itoa::Buffer::new().format(value));
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    number("pid", std::process::id().into());
    number("uptime", store.started.elapsed().as_secs());
    number("time", unix_s);
    number("pointer_size", usize::BITS.into());
    number("curr_connections", sum(store, |one| &one.curr_connections));
    number("total_connections", sum(store, |one| &one.total_connections));
    number("rejected_connections", sum(store, |one| &one.rejected_connections));
    let classes = all_classes(store);
    let (hits, misses) = (classes.get_hits.get(), sum(store, |one| &one.get_misses));
    number("cmd_get", hits + misses);
    number("cmd_set", classes.cmd_set.get());
    number("cmd_flush", sum(store, |one| &one.cmd_flush));
    number("cmd_touch", sum(store, |one| &one.cmd_touch));
    number("get_hits", hits);
    number("get_misses", misses);
    number("get_expired", sum(store, |one| &one.get_expired));
    number("get_flushed", sum(store, |one| &one.get_flushed));
    number("delete_misses", sum(store, |one| &one.delete_misses));
    number("delete_hits", classes.delete_hits.get());
    number("incr_misses", sum(store, |one| &one.incr_misses));
    number("incr_hits", classes.incr_hits.get());
    number("decr_misses", sum(store, |one| &one.decr_misses));
    number("decr_hits", classes.decr_hits.get());
    number("cas_misses", sum(store, |one| &one.cas_misses));
    number("cas_hits", classes.cas_hits.get());
    number("cas_badval", classes.cas_badval.get());
    number("touch_hits", classes.touch_hits.get());
    number("touch_misses", sum(store, |one| &one.touch_misses));
    number("store_too_large", sum(store, |one| &one.store_too_large));
    number("store_no_memory", sum(store, |one| &one.store_no_memory));
    number("bytes_read", sum(store, |one| &one.bytes_read));
    number("bytes_written", sum(store, |one| &one.bytes_written));
    number("limit_maxbytes", store.limits.memory_bytes);
    number("threads", store.limits.threads as u64);
    number("hash_power_level", store.hash_power().into());
    number("hash_bytes", 4 << store.hash_power());
    number("bytes", sum(store, |one| &one.bytes));
    number("curr_items", sum(store, |one| &one.curr_items));
    number("total_items", sum(store, |one| &one.total_items));
    number("expired_unfetched", sum(store, |one| &one.expired_unfetched));
    number("evicted_unfetched", sum(store, |one| &one.evicted_unfetched));
    number("evictions", sum(store, |one| &one.evictions));
    number("reclaimed", sum(store, |one| &one.reclaimed));
    tell("version", VERSION);
}

fn settings(store: &Store, tell: &mut impl FnMut(&str, &str)) {
    let limits = &store.limits;
    let mut number = |name: &str, value: u64| tell(name, itoa::Buffer::new().format(value));
    number("maxbytes", limits.memory_bytes);
    number("item_size_max", limits.item_bytes);
    number("num_threads", limits.threads as u64);
    number("key_size_max", KEY_MAX as u64);
    number("hashpower_init", store.hash_power().into());
    tell("evictions", if limits.evict { "on" } else { "off" });
    tell("growth_factor", &format!("{:.2}", limits.factor));
    tell("cas_enabled", "yes");
    tell("binding_protocol", "auto-negotiate");
    tell("hash_algorithm", "foldhash");
}

fn items(store: &Store, tell: &mut impl FnMut(&str, &str)) {
    for number in 0..store.class_stats().len() {
        let class = class(store, number);
        if class.number.get() == 0 {
            continue;
        }
        let mut say = |name: &str, value: u64| {
            let name = format!("items:{}:{name}", number + 1);
            tell(&name, itoa::Buffer::new().format(value));
        };
        say("number", class.number.get());
        say("mem_requested", class.bytes.get());
        say("evicted", class.evicted.get());
        say("evicted_nonzero", class.evicted_nonzero.get());
        say("outofmemory", class.outofmemory.get());
        say("reclaimed", class.reclaimed.get());
    }
}

fn slabs(store: &Store, tell: &mut impl FnMut(&str, &str)) {
    let stats = store.class_stats();
    for (number, slab) in stats.iter().enumerate().filter(|(_, slab)| slab.pages > 0) {
        let class = class(store, number);
        let mut say = |name: &str, value: u64| {
            let name = format!("{}:{name}", number + 1);
            tell(&name, itoa::Buffer::new().format(value));
        };
        let chunks = slab.pages * slab.per_page;
        say("chunk_size", slab.chunk_bytes);
        say("chunks_per_page", slab.per_page);
        say("total_pages", slab.pages);
        say("total_chunks", chunks);
        say("used_chunks", slab.used);
        say("free_chunks", chunks - slab.used);
        say("get_hits", class.get_hits.get());
        say("cmd_set", class.cmd_set.get());
        say("delete_hits", class.delete_hits.get());
        say("incr_hits", class.incr_hits.get());
        say("decr_hits", class.decr_hits.get());
        say("cas_hits", class.cas_hits.get());
        say("cas_badval", class.cas_badval.get());
        say("touch_hits", class.touch_hits.get());
    }
    let active = stats.iter().filter(|slab| slab.pages > 0).count() as u64;
    tell("active_slabs", itoa::Buffer::new().format(active));
    tell("total_malloced", itoa::Buffer::new().format(store.used_bytes()));
}

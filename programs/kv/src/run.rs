//! Memory and threads of the server.
use crate::args::Args;
use crate::server::Client;
use crate::service::Service;
use crate::store::{Limits, Store};
use crate::words::Words;
use crate::{linux, server};
use anyhow::{Context, Result, anyhow, bail};
use ix_programs::socket;
use ix_programs::threads::{self, Listening, Place, pin};
use libix::event::Team;
use libix::raw::{Process, Thread};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Least and most bits of a hash bucket's number.
const HASH_POWERS: (u32, u32) = (16, 26);
/// Assumed memory of an item: there are as many buckets as such items.
const ITEM_BYTES: u64 = 128;

/// Where a thread serves.
#[derive(Clone, Copy)]
struct Addresses {
    tcp: Option<SocketAddr>,
    udp: Option<SocketAddr>,
}

/// Runs the command line: serves until killed, and prints `ready` once all threads listen.
pub fn run(args: &Args) -> Result<()> {
    let at = |port| (port != 0).then(|| SocketAddr::new(args.listen, port));
    let addresses = Addresses { tcp: at(args.port), udp: at(args.udp_port) };
    if args.port == 0 && args.udp_port == 0 {
        bail!("no TCP port and no UDP port; give -p or -U");
    }
    let place = Place::find(args.linux)?;
    let threads = place.threads(args.threads);
    let limits = Limits {
        memory_bytes: args.memory_limit << 20,
        item_bytes: args.max_item_size.0,
        evict: !args.disable_evictions,
        factor: args.slab_growth_factor,
        threads: threads as usize,
    };
    if limits.item_bytes > limits.memory_bytes {
        bail!("an item of -I bytes does not fit into the memory of -m; raise -m or lower -I");
    }
    if args.linux {
        SERVICE.get_or_init(|| service(private(&limits), limits.clone(), args, linux::clock_us()));
    }
    let ready = || {
        let names = [("TCP", addresses.tcp), ("UDP", addresses.udp)];
        let names = names.iter().filter_map(|(name, at)| at.map(|at| format!("{name} {at}")));
        ix_sys::outln!("ready: {}, {threads} threads", names.collect::<Vec<_>>().join(", "));
    };
    let team = Team::new(threads);
    let serve = |index, listening: &Listening| match &place {
        Place::Ix(process) => serve_ix(args, process, index, &limits, addresses, &team, listening),
        Place::Linux => serve_linux(args, index, addresses, listening),
    };
    threads::serve("ix-kv", threads, serve, ready);
    Ok(())
}

static SERVICE: OnceLock<Service> = OnceLock::new();

fn private(limits: &Limits) -> Words {
    let words = Words::private(limits.region_bytes() as usize);
    words
        .unwrap_or_else(|error| exit(&anyhow!("no memory for -m {}: {error}", limits.memory_bytes)))
}

fn service(words: Words, limits: Limits, args: &Args, origin_us: u64) -> Service {
    let buckets = (limits.memory_bytes / ITEM_BYTES).max(1).next_power_of_two();
    let power = buckets.ilog2().clamp(HASH_POWERS.0, HASH_POWERS.1);
    let seed = RandomState::new().build_hasher().finish();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Service {
        store: Store::new(words, limits, power, seed),
        lends: false,
        connections: args.conn_limit.into(),
        origin_us,
        start_unix_s: now.map_or(0, |since| since.as_secs() as i64),
    }
}

/// Item memory that can be sent from, if the dataplane has enough.
fn shared(thread: &mut Thread, limits: &Limits) -> Option<Words> {
    match thread.shared_memory(limits.region_bytes()) {
        Ok(words) => Some(Words::over(words)),
        Err(error) => {
            eprintln!(
                "ix-kv: cannot have {} MB of transmit memory for items ({error}): long values are \
                 copied; give the dataplane more with arena_mb",
                limits.region_bytes() >> 20
            );
            None
        }
    }
}

fn serve_ix(
    args: &Args,
    process: &Process,
    index: u32,
    limits: &Limits,
    addresses: Addresses,
    team: &Team<Client>,
    listening: &Listening,
) -> Result<()> {
    let mut thread = Thread::enter(process, index)?;
    let service = if index == 0 {
        let shared = shared(&mut thread, limits);
        let lends = shared.is_some();
        let words = shared.unwrap_or_else(|| private(limits));
        let service = service(words, limits.clone(), args, thread.now_us());
        SERVICE.get_or_init(|| Service { lends, ..service })
    } else {
        SERVICE.wait()
    };
    let Addresses { tcp, udp } = addresses;
    let mut server = server::server(thread, service, tcp, (udp, args.udp_steps), team)
        .with_context(|| format!("cannot listen on {}", tcp.or(udp).unwrap_or(UNKNOWN)))?;
    listening.say();
    server.run()?;
    Ok(())
}

const UNKNOWN: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

fn serve_linux(args: &Args, index: u32, addresses: Addresses, listening: &Listening) -> Result<()> {
    pin(args.cpus.as_ref(), index)?;
    let cannot = |at| move || format!("cannot listen on {at}");
    let listen = |at| socket::listen(at).with_context(cannot(at));
    let bind = |at| socket::bind_udp(at).with_context(cannot(at));
    let listener = addresses.tcp.map(listen).transpose()?;
    let datagrams = addresses.udp.map(bind).transpose()?;
    listening.say();
    linux::serve(SERVICE.wait(), index as usize, listener, datagrams, args.spin)?;
    Ok(())
}

/// Ends the program although other threads still serve.
fn exit(error: &anyhow::Error) -> ! {
    eprintln!("ix-kv: {error:#}");
    std::process::exit(1);
}

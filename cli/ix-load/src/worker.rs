//! One thread of the generator: stores its records, opens its connections, waits for the others,
//! makes its load.
use crate::args::ProtocolName;
use crate::clock::Clock;
use crate::engine::{Engine, Interval, Setup, Times};
use crate::ix::OnIx;
use crate::linux::Linux;
use crate::plan::Plan;
use crate::protocol::{Ascii, Binary, Echo, Http, Protocol, Workload};
use anyhow::{Context, Result, anyhow, bail};
use ix_programs::cpu::Cpus;
use ix_programs::threads::{Place, pin};
use libix::raw::{Process, Thread};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

/// Time to open all connections: this, and 1 ms for each.
const CONNECT_NS: u64 = 15_000_000_000;
const CONNECT_EACH_NS: u64 = 1_000_000;
/// A run that does not end this long after its last request is given up.
const OVERTIME_NS: u64 = 10_000_000_000;
/// Time between two reports of stored records.
const TELL_NS: u64 = 200_000_000;

/// An engine with its input and output.
pub trait Backend<P> {
    /// The engine.
    fn engine(&mut self) -> &mut Engine<P>;
    /// One turn: sends what is due, and reads what came.
    fn turn(&mut self, clock: &Clock) -> Result<()>;
    /// Resets all connections.
    fn finish(&mut self) -> Result<()>;
}

/// Messages of a thread.
pub enum News {
    /// This many more records are stored.
    Stored(u64),
    /// All connections are open.
    Ready,
    /// What was measured in an interval.
    Interval(Box<Interval>),
    /// It has ended.
    Ended(Result<()>),
}

/// What all threads share.
pub struct Hub {
    /// The run.
    pub plan: Plan,
    /// Number of threads.
    pub threads: u32,
    /// The common clock.
    pub clock: Clock,
    /// When the load begins, ns of the clock; 0: not known yet.
    pub go_ns: AtomicU64,
    /// The run must end now.
    pub stop: AtomicBool,
}

impl Hub {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Where a thread's sockets are.
enum Sockets {
    Ix(Process, Box<Thread>),
    Linux,
    /// The elastic thread ended with an error.
    Gone,
}

/// Runs thread `index` from start to end; the end is reported, too.
pub fn run(hub: &Hub, place: Place, index: u32, news: &Sender<News>) {
    let ended = live(hub, place, index, news);
    // The receiver lives until all threads have ended.
    let _ = news.send(News::Ended(ended));
}

fn live(hub: &Hub, place: Place, index: u32, news: &Sender<News>) -> Result<()> {
    let args = &hub.plan.args;
    let mut sockets = match place {
        Place::Ix(process) => Sockets::Ix(process, Box::new(Thread::enter(&process, index)?)),
        Place::Linux => {
            let cpus = args.place.cpus.as_deref().map(str::parse::<Cpus>).transpose();
            pin(cpus.map_err(|e| anyhow!(e))?.as_ref(), index)?;
            Sockets::Linux
        }
    };
    let plan = &hub.plan;
    if plan.preloads() {
        preload(hub, &mut sockets, index, news).context("cannot store the records")?;
    }
    if args.preload_only {
        return Ok(());
    }
    let setup = plan.setup(index, hub.threads);
    let (seed, verify) = (setup.seed, !args.no_verify);
    let workload = || -> Result<Workload> {
        let records = plan.records.clone().context("no records")?;
        Ok(Workload::mixed(records, plan.popularity(), plan.update, seed))
    };
    match args.protocol {
        ProtocolName::Echo => {
            load(hub, &mut sockets, Echo::new(args.size, seed, verify), setup, news)
        }
        ProtocolName::Memcached => {
            load(hub, &mut sockets, Ascii::new(workload()?, verify), setup, news)
        }
        ProtocolName::MemcachedBinary => {
            load(hub, &mut sockets, Binary::new(workload()?, verify), setup, news)
        }
        ProtocolName::Http => {
            let host = args.target.split(',').next().unwrap_or_default();
            load(hub, &mut sockets, Http::new(host, &args.path, verify), setup, news)
        }
    }
}

/// Stores this thread's records.
fn preload(hub: &Hub, sockets: &mut Sockets, index: u32, news: &Sender<News>) -> Result<()> {
    let range = hub.plan.preload_range(index, hub.threads);
    let Some(records) = hub.plan.records.clone().filter(|_| !range.is_empty()) else {
        return Ok(());
    };
    let (setup, verify) = (hub.plan.preload_setup(index), true);
    let workload = Workload::load(Arc::clone(&records), range);
    if hub.plan.args.protocol == ProtocolName::Memcached {
        on_sockets(hub, sockets, Ascii::new(workload, verify), setup, |b| store(hub, b, news))
    } else {
        on_sockets(hub, sockets, Binary::new(workload, verify), setup, |b| store(hub, b, news))
    }
}

/// Runs `work` with an engine on the thread's sockets.
fn on_sockets<P: Protocol>(
    hub: &Hub,
    sockets: &mut Sockets,
    protocol: P,
    setup: Setup,
    work: impl FnOnce(&mut dyn Backend<P>) -> Result<()>,
) -> Result<()> {
    let engine = Engine::new(protocol, setup, hub.clock.now_ns());
    let (args, targets): (_, Vec<SocketAddr>) = (&hub.plan.args, hub.plan.targets.clone());
    match core::mem::replace(sockets, Sockets::Gone) {
        Sockets::Gone => bail!("the elastic thread has ended"),
        Sockets::Linux => {
            if args.back_ends.is_some() {
                bail!(
                    "--back-ends needs a dataplane (--nic); on Linux run ix-httpd beside the load"
                );
            }
            let mut backend = Linux::new(engine, targets, args.source.clone(), args.place.spin)?;
            backend.sleep(args.place.sleep);
            let worked = work(&mut backend);
            *sockets = Sockets::Linux;
            backend.finish()?;
            worked
        }
        Sockets::Ix(process, thread) => {
            let local = process.local_addr();
            let mut backend = OnIx::new(engine, *thread, local, targets, args.place.spin);
            if let (Some(site), Some(at)) = (&hub.plan.pages, &args.back_ends) {
                backend.serve(Arc::clone(site), &at.ports);
            }
            let worked = work(&mut backend);
            backend.finish()?;
            *sockets = Sockets::Ix(process, Box::new(backend.into_thread()));
            worked
        }
    }
}

fn store<P: Protocol>(hub: &Hub, backend: &mut dyn Backend<P>, news: &Sender<News>) -> Result<()> {
    let start_ns = hub.clock.now_ns();
    backend.engine().start(Times { start_ns, from_ns: start_ns, to_ns: u64::MAX / 2 });
    let (mut told, mut tell_ns) = (0, start_ns + TELL_NS);
    let mut stored = 0;
    while !backend.engine().is_over() && !hub.stops() {
        let now_ns = hub.clock.now_ns();
        if let Some(interval) = backend.engine().tick(now_ns) {
            stored += interval.classes[0].answers;
            fail_on_faults(&interval)?;
        }
        let so_far = stored + backend.engine().answers();
        if now_ns >= tell_ns {
            // As above.
            let _ = news.send(News::Stored(so_far - told));
            (told, tell_ns) = (so_far, now_ns + TELL_NS);
        }
        if let Some(what) = backend.engine().first_fault() {
            bail!("{what}");
        }
        backend.turn(&hub.clock)?;
    }
    if let Some(why) = backend.engine().gave_up() {
        bail!("{why}");
    }
    if let Some(interval) = backend.engine().tick(hub.clock.now_ns()) {
        stored += interval.classes[0].answers;
    }
    let _ = news.send(News::Stored(stored + backend.engine().answers() - told));
    Ok(())
}

fn fail_on_faults(interval: &Interval) -> Result<()> {
    match interval.counts.faults.kinds().next() {
        Some((fault, _, what)) => bail!("{}: {what}", fault.name()),
        None => Ok(()),
    }
}

fn load<P: Protocol>(
    hub: &Hub,
    sockets: &mut Sockets,
    protocol: P,
    setup: Setup,
    news: &Sender<News>,
) -> Result<()> {
    on_sockets(hub, sockets, protocol, setup, |backend| {
        connect(hub, backend)?;
        let _ = news.send(News::Ready);
        let Some(times) = wait_for_start(hub, backend)? else { return Ok(()) };
        backend.engine().start(times);
        let deadline_ns = times.to_ns + OVERTIME_NS;
        let mut told_to_stop = false;
        loop {
            let now_ns = hub.clock.now_ns();
            if let Some(interval) = backend.engine().tick(now_ns) {
                let _ = news.send(News::Interval(interval));
                // The flag of another thread is read only now and then.
                if hub.stops() && !told_to_stop {
                    backend.engine().stop(now_ns);
                    told_to_stop = true;
                }
            }
            if backend.engine().is_over() || now_ns > deadline_ns {
                break;
            }
            backend.turn(&hub.clock)?;
        }
        let rest = backend.engine().conclude(hub.clock.now_ns());
        let _ = news.send(News::Interval(rest));
        match backend.engine().gave_up() {
            Some(why) => bail!("all connections were lost: {why}; is the server still running?"),
            None => Ok(()),
        }
    })
}

/// Opens all connections.
fn connect<P>(hub: &Hub, backend: &mut dyn Backend<P>) -> Result<()>
where
    P: Protocol,
{
    let total = backend.engine().connections();
    let deadline_ns = hub.clock.now_ns() + CONNECT_NS + total as u64 * CONNECT_EACH_NS;
    while backend.engine().up() < total {
        let now_ns = hub.clock.now_ns();
        let _ = backend.engine().tick(now_ns);
        let up = backend.engine().up();
        if let Some(why) = backend.engine().gave_up() {
            bail!("cannot connect to {}: {why}; is the server running?", hub.plan.args.target);
        }
        if now_ns > deadline_ns {
            let why = backend.engine().first_fault().unwrap_or_else(|| "no answer".into());
            bail!("only {up} of {total} connections could be made: {why}");
        }
        if hub.stops() {
            bail!("stopped");
        }
        backend.turn(&hub.clock)?;
    }
    Ok(())
}

/// Keeps the connections alive until the common start; `None`: the run was cancelled.
fn wait_for_start<P>(hub: &Hub, backend: &mut dyn Backend<P>) -> Result<Option<Times>>
where
    P: Protocol,
{
    loop {
        let now_ns = hub.clock.now_ns();
        let start_ns = hub.go_ns.load(Ordering::Acquire);
        if hub.stops() {
            return Ok(None);
        }
        if start_ns != 0 && now_ns >= start_ns {
            let from_ns = start_ns + (hub.plan.warmup_s * 1e9) as u64;
            let to_ns = from_ns + (hub.plan.args.seconds * 1e9) as u64;
            return Ok(Some(Times { start_ns, from_ns, to_ns }));
        }
        let _ = backend.engine().tick(now_ns);
        backend.turn(&hub.clock)?;
    }
}

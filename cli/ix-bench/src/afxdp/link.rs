//! Two bare AF_XDP sockets on a veth pair, and echoes between them: no stack, so that what a
//! feature of the kernel costs is not hidden by what else there is.
use super::feature::Setting;
use ix_mem::{HEADROOM_BYTES, Mbuf, MemoryFds, PacketMemory, Pool, Sizes};
use ix_netdev::{OpenOptions, OpenedDevice};
use ix_nic::{Nic, NicKind, RingSizes, XdpBind, XdpFeatures, attach};
use ix_report::problem::{Problem, Result};
use ix_sys::{cpu, socket};
use ix_testbed::{Namespace, VethEnd};
use ix_wire::IpAddr;
use std::collections::VecDeque;
use std::fmt::Display;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NAMES: [&str; 2] = ["ix-xdp0", "ix-xdp1"];
const ADDRESSES: [[u8; 4]; 2] = [[10, 68, 0, 1], [10, 68, 0, 2]];
const LINK_UP: Duration = Duration::from_secs(5);
/// Longest wait for an echo.
const PATIENCE: Duration = Duration::from_secs(5);
/// Packets of a burst, as in the dataplane.
const BURST: usize = 64;
/// Frames as the dataplane gives a device.
const SIZES: Sizes = Sizes { rx_frames: 8192, tx_frames: 2048, arena_bytes: 0 };
const HEADERS_BYTES: usize = 42;

// asm-generic/socket.h; libc lacks some.
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
const BUSY_POLL_US: i32 = 20;

/// The link.
pub struct Link {
    ends: [Namespace; 2],
    cpus: [usize; 2],
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Echoes a second with one under way, then with [`BURST`].
    pub echoes: [f64; 2],
}

impl Link {
    /// Makes it. It is removed with this value, and when the process dies.
    pub fn new() -> Result<Link> {
        let cannot = |e: &dyn Display| {
            Problem::new("cannot make a veth pair for AF_XDP", e.to_string())
                .mend("run it as root, and see `ix doctor`")
        };
        let cpus = cpu::allowed();
        let &[first, second, ..] = &cpus[..] else {
            return Err(Problem::new(
                "cannot measure AF_XDP",
                "each of two ends needs a hardware thread of its own",
            ));
        };
        let make = || {
            let ends = [Namespace::new()?, Namespace::new()?];
            let [near, far] = NAMES.map(VethEnd::new);
            ends[0].add_veth(&near, &ends[1], &far)?;
            for (end, name) in ends.iter().zip(NAMES) {
                end.set_up(name, true)?;
            }
            ends[0].wait_running(NAMES[0], LINK_UP)?;
            Ok(ends)
        };
        let ends = make().map_err(|e: ix_testbed::Error| cannot(&e))?;
        Ok(Link { ends, cpus: [first, second] })
    }

    /// Echoes frames of this length with these settings at both ends, for this long with each
    /// number under way; and the mode in which the sockets are.
    pub fn measure(&self, with: Setting, bytes: usize, time: Duration) -> Result<(Rate, String)> {
        let [mut client, mut server] = [self.open(0, with, bytes)?, self.open(1, with, bytes)?];
        let mode = format!("{}, {:?} pages", client.nic.info().mode, client.memory.pages());
        let done = AtomicBool::new(false);
        let echoes = std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let pinned = cpu::pin(self.cpus[1]);
                while pinned.is_ok() && !done.load(Ordering::Relaxed) {
                    server.cycle(None, ADDRESSES[0]);
                }
                pinned
            });
            // A thread of its own: the caller's affinity stays as it is.
            let asking = scope.spawn(|| {
                cpu::pin(self.cpus[0])?;
                Ok([1, BURST].map(|window| client.ask(window, time)))
            });
            let asked = asking.join().unwrap_or_else(|_| panicked());
            done.store(true, Ordering::Relaxed);
            serving.join().unwrap_or_else(|_| panicked()).and(asked)
        });
        let echoes =
            echoes.map_err(|e: std::io::Error| Problem::new("cannot measure AF_XDP", e))?;
        match echoes.iter().all(|rate| *rate > 0.0) {
            true => Ok((Rate { echoes }, mode)),
            false => Err(Problem::new("cannot measure AF_XDP", format!("no echo came: {mode}"))),
        }
    }

    fn open(&self, which: usize, with: Setting, bytes: usize) -> Result<End> {
        let name = NAMES[which];
        let cannot =
            |e: &dyn Display| Problem::new(format!("cannot use AF_XDP on {name}"), e.to_string());
        let place = if with.generic { "generic" } else { "copy" };
        let spec = format!("afxdp:{name},mode={place}").parse().map_err(|e| cannot(&e))?;
        let addresses = vec![IpAddr::v4(ADDRESSES[which])];
        let options = OpenOptions { addresses, ..OpenOptions::default() };
        let opened = self.ends[which].run(|| ix_netdev::open(&spec, &options));
        let mut device = opened.map_err(|e| cannot(&e))?;
        if let NicKind::Afxdp(bind) = &mut device.info.kind {
            let features = XdpFeatures { need_wakeup: with.need_wakeup, describes: with.checksums };
            *bind = XdpBind { frags: bind.frags && with.frags, features, ..*bind };
        }
        // As behind the process wall: shared memory, whose pages Linux merges if it is asked to.
        let fds = MemoryFds::new(SIZES).map_err(|e| cannot(&e))?;
        let mut memory = PacketMemory::map(fds.as_fds(), SIZES).map_err(|e| cannot(&e))?;
        if with.large_pages {
            memory.populate();
        }
        let (mut rx, tx) = memory.take_pools().expect("the first that takes them");
        let fds = std::mem::take(&mut device.queue_fds);
        let polled = match with.busy_poll {
            true => Some(polls_itself(&fds[0]).map_err(|e| cannot(&e))?),
            false => None,
        };
        let nic = attach(&device.info, 0, fds, &memory, &mut rx, RingSizes::default());
        let nic = nic.map_err(|e| cannot(&e))?;
        device.finish(0).map_err(|e| cannot(&e))?;
        let queued = VecDeque::with_capacity(BURST);
        let first = if with.apart { HEADERS_BYTES } else { bytes };
        let pieces = [first, bytes - first];
        Ok(End { nic, rx, tx, memory, polled, pieces, queued, _device: device })
    }
}

fn panicked<T>() -> std::io::Result<T> {
    Err(std::io::Error::other("a thread panicked"))
}

/// Makes calls on this socket work through its device's queue; returns another descriptor of it.
fn polls_itself(fd: &OwnedFd) -> std::io::Result<OwnedFd> {
    for (option, value) in [
        (SO_PREFER_BUSY_POLL, 1),
        (SO_BUSY_POLL, BUSY_POLL_US),
        (SO_BUSY_POLL_BUDGET, BURST as i32),
    ] {
        socket::set_option(fd.as_fd(), libc::SOL_SOCKET, option, value)?;
    }
    fd.try_clone()
}

/// One end.
struct End {
    nic: Box<dyn Nic>,
    rx: Pool,
    tx: Pool,
    memory: PacketMemory,
    /// The socket, where calls on it work through its device's queue.
    polled: Option<OwnedFd>,
    /// Bytes of the first buffer of a frame, and of the second one.
    pieces: [usize; 2],
    queued: VecDeque<Mbuf>,
    _device: OpenedDevice,
}

impl End {
    /// One cycle: sends back what came in, or `fresh` frames. Returns how many came in.
    fn cycle(&mut self, fresh: Option<usize>, to: [u8; 4]) -> usize {
        let mut burst = Vec::with_capacity(BURST);
        if let Some(fd) = &self.polled {
            // The call is what counts; there is nothing to read.
            let _ = socket::receive(fd.as_fd(), &mut [], libc::MSG_DONTWAIT);
        }
        self.nic.receive(&self.memory, &mut self.rx, BURST, &mut burst);
        let came = burst.iter().filter(|packet| !packet.more).count();
        for packet in burst {
            self.rx.put(packet.mbuf);
        }
        for _ in 0..fresh.unwrap_or(came) {
            let Some(mut mbuf) = self.tx.take() else { break };
            let [first, second] = self.pieces;
            mbuf.set_range(HEADROOM_BYTES, first);
            fill(mbuf.bytes_mut(&self.memory), to);
            if second > 0 && !self.tx.extend(&self.memory, &mut mbuf, second) {
                self.tx.put(mbuf);
                break;
            }
            self.queued.push_back(mbuf);
        }
        self.nic.transmit(&self.memory, &mut self.tx, &mut self.queued);
        self.nic.kick(&self.memory, &mut self.tx);
        if came == 0 && self.nic.frames_held().1 > 0 {
            // The kernel's threads may have to send what it holds.
            std::thread::yield_now();
        }
        came
    }

    /// Echoes a second with this number under way; 0: one was lost, or the other end is silent.
    fn ask(&mut self, window: usize, time: Duration) -> f64 {
        let (mut echoed, mut under_way) = (0, 0);
        let (start, mut heard) = (Instant::now(), Instant::now());
        while start.elapsed() < time {
            let fresh = window - under_way;
            under_way = window;
            let came = self.cycle(Some(fresh), ADDRESSES[1]).min(under_way);
            under_way -= came;
            echoed += came;
            if came > 0 {
                heard = Instant::now();
            } else if heard.elapsed() > PATIENCE.min(time) {
                return 0.0;
            }
        }
        let rate = echoed as f64 / start.elapsed().as_secs_f64();
        // What is still under way is no echo of the next window.
        while under_way > 0 && heard.elapsed() < PATIENCE {
            under_way -= self.cycle(Some(0), ADDRESSES[1]).min(under_way);
        }
        rate
    }
}

/// Headers of a datagram over IPv4, and zeros: no end verifies checksums.
fn fill(frame: &mut [u8], to: [u8; 4]) {
    let Some((headers, _)) = frame.split_first_chunk_mut::<HEADERS_BYTES>() else { return };
    *headers = [0; HEADERS_BYTES];
    headers[..6].fill(0xff);
    headers[12..15].copy_from_slice(&[8, 0, 0x45]);
    headers[23] = libc::IPPROTO_UDP as u8;
    headers[30..34].copy_from_slice(&to);
}

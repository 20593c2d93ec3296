//! The process of a dataplane whose program is in others.
//!
//! Linux executes the image for it, as a user of its own and without rights. It has a Linux thread
//! for each elastic thread, and the guard. It ends when the last of the program's processes that
//! share it has ended ([`crate::attached`]), or when the broker has ended; then it closes the
//! program's connections first.
use crate::attached::{self, Attached};
use crate::boot::{self, text};
use crate::updates::ChannelUpdates;
use crate::{dataplane_calls, linux_thread, sys};
use ix_dataplane::metrics::ControlPage;
use ix_dataplane::{Clock, CrossingPages, Dataplane, Reach, Shares, memory_sizes};
use ix_entry::{Channel, DATAPLANE, IMAGE_ARGV0, ReservedFds};
use ix_mem::PacketMemory;
use ix_proto::config::Place;
use ix_proto::crossing::WINDOW;
use ix_proto::{Codec, FromImage, Start};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long connections may take to end in order, µs.
const PATIENCE_US: u64 = 300_000;

/// The channel's descriptor, if the command line is that of a dataplane's process
/// (`ix_entry::apart`).
///
/// # Safety
/// `argv` holds `argc` pointers to C strings.
pub unsafe fn channel_of(argc: c_int, argv: *const *const c_char) -> Option<RawFd> {
    if argc != 3 {
        return None;
    }
    let words: [Option<&str>; 3] = core::array::from_fn(|i| {
        // SAFETY: `i` is below argc.
        unsafe { CStr::from_ptr(*argv.add(i)) }.to_str().ok()
    });
    let [Some(IMAGE_ARGV0), Some(DATAPLANE), Some(channel)] = words else { return None };
    channel.parse().ok()
}

/// Runs a dataplane until its program has ended; returns the process's exit status.
pub fn main(channel: Channel) -> c_int {
    // SAFETY: no pointers but to a constant. A process that cannot be traced or read by others of
    // its user; the name is for people.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0);
        libc::prctl(libc::PR_SET_NAME, c"ix-dataplane".as_ptr());
    }
    match run(&channel) {
        Ok(()) => 0,
        Err(why) => {
            // If the broker is gone too, nothing can be reported.
            let _ = channel.send(&FromImage::Failed { asker: 0, why }.encode(), &[]);
            1
        }
    }
}

/// An elastic thread that has not come back by then, whatever it does, is not waited for: ports and
/// queues are free for the next run, though peers are told nothing.
const LATE: Duration = Duration::from_secs(1);

/// What the broker has given.
struct Begun {
    dataplane: Dataplane,
    /// The program's first process, by a pidfd.
    program: OwnedFd,
    /// Where the broker says that another process attaches.
    joins: Channel,
}

fn run(channel: &Channel) -> Result<(), String> {
    let Begun { dataplane, program, joins } = begin(channel)?;
    linux_thread::keep_memory_locks();
    let reserved = ReservedFds::of_this_process().map_err(|e| text("getrlimit", e))?;
    let closed = std::io::pipe().map_err(|e| text("pipe", e))?;
    dataplane_calls::confine().map_err(|e| text("seccomp", e))?;
    channel.send(&FromImage::Ready.encode(), &[]).map_err(boot::broken)?;
    // The same socket twice: elastic threads read the broker's messages, this one waits for its
    // end.
    let copy = channel.as_fd().try_clone_to_owned().map_err(|e| text("dup", e))?;
    let updates = ChannelUpdates::new(Channel::from_fd(copy), reserved, false);
    dataplane.set_update_source(Box::new(updates));
    let ends = AtomicBool::new(false);
    let left = AtomicUsize::new(dataplane.threads());
    std::thread::scope(|scope| {
        let mut attached = Attached::new(&dataplane, program, joins, closed.0);
        for thread in 0..dataplane.threads() {
            let (dataplane, ends, left, closed) = (&dataplane, &ends, &left, &closed.1);
            scope.spawn(move || {
                linux_thread::take_short_slices();
                dataplane.serve_requests(thread, ends, &|life| attached::note(closed, life));
                left.fetch_sub(1, Ordering::AcqRel);
            });
        }
        scope.spawn(|| dataplane.guard());
        attached.serve(channel.as_fd());
        ends.store(true, Ordering::SeqCst);
        dataplane.end_requests();
        let until = Instant::now() + LATE;
        while left.load(Ordering::Acquire) > 0 {
            if Instant::now() >= until {
                // SAFETY: ends the process.
                unsafe { sys::syscall(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
            }
            std::thread::yield_now();
        }
        dataplane.end_guard();
        // SAFETY: no thread runs an elastic thread any more, and the guard stays out.
        unsafe { dataplane.wind_up(PATIENCE_US) };
        // The guard may sleep for long.
        // SAFETY: ends the process.
        unsafe { sys::syscall(libc::SYS_exit_group, [0; 6]) };
    });
    Ok(())
}

/// Makes the dataplane that the broker describes.
fn begin(channel: &Channel) -> Result<Begun, String> {
    let (start, fds) = boot::ask(channel)?;
    let Start { config, devices: infos, without: _, place, given_bytes } = start;
    if place != Place::Apart {
        return Err("the broker started the wrong kind of dataplane; build ix again".to_owned());
    }
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or("the broker sent too few descriptors; build ix again");
    let page_fd = next()?;
    let areas = [next()?, next()?, next()?];
    let (written, read, program, joins) = (next()?, next()?, next()?, next()?);
    let threads = config.cpus.len();
    let bells = (0..threads).map(|_| next()).collect::<Result<Vec<_>, _>>()?;
    let memory =
        PacketMemory::map_at(WINDOW, areas.each_ref().map(|fd| fd.as_fd()), memory_sizes(&config));
    let memory = memory.map_err(|e| e.to_string())?;
    let pages = CrossingPages::map(written.as_fd(), read.as_fd(), threads);
    let pages = pages.map_err(|e| e.to_string())?;
    let devices = boot::devices(infos, &mut fds);
    let ticks_per_us = Clock::new().ticks_per_us();
    let page = ControlPage::create(page_fd.as_fd(), threads, ticks_per_us);
    let page = Arc::new(page.map_err(|e| e.to_string())?);
    let attached = |device, queue| boot::finish_attachment(channel, device, queue);
    let shares = Some(Shares::new(pages, bells));
    let reach = Reach { shares, given_bytes, ..Reach::default() };
    let dataplane = Dataplane::boot_in(memory, config, devices, &page, reach, attached);
    let dataplane = dataplane.map_err(|e| e.to_string())?;
    Ok(Begun { dataplane, program, joins: Channel::from_fd(joins) })
}

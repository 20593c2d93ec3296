//! The cost of an intercepted call of an unmodified program, for `ix bench gate`. The program is
//! this command again under `ix run`. It exchanges bytes with `ix-echo` on sockets and times calls
//! whose bytes are already there. From `epoll_wait`, which runs a cycle, the cycle is subtracted;
//! from a call that is forwarded to Linux, the time of Linux alone.
use super::lab::Lab;
use super::serve::Serve;
use crate::samples::{SAMPLES, percentiles, row};
use ix_report::problem::{Problem, Result};
use ix_report::wall::attacker;
use ix_sys::poll::{PollFd, poll};
use ix_sys::{Epoll, event, fd, socket};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Calls of one sample. The bytes of all samples, one each, fit into a send buffer and are whole
/// messages.
const CALLS: u32 = 512;
/// Bytes of a message of `ix-echo`.
const MESSAGE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(20);
/// The timed calls, and what is subtracted from each: the same on the native path, if it takes any
/// time there. Natively, bytes are read in place and written into transmit memory.
const ROWS: [(&str, Option<&str>); 6] = [
    ("recv", None),
    ("send", None),
    ("ioctl", None),
    ("getsockopt", None),
    ("epoll_wait", Some("cycle")),
    ("forwarded write", Some("write")),
];

/// Measures in the lab; returns the rows.
pub fn rows(lab: &Lab, ticks_per_us: f64) -> Result<Vec<Value>> {
    let serve = Serve::echo(&[MESSAGE.to_string()]);
    let server = lab.start_for_client(&serve)?;
    let ix = lab.ix_file().as_os_str().to_owned();
    let address = server.address().to_string();
    let words = [ix, "bench".into(), "gate".into(), "--calls-to".into(), address.into()];
    let said = lab.run_at_client(&["--posix", "on"], &words);
    let crossing: [OsString; 2] = [attacker()?.into(), "cycle".into()];
    let cycle = lab.run_at_client(&["--posix", "off"], &crossing);
    server.stop();
    let all = read(&format!("{}cycle {}", said?, cycle?));
    let figure = |name: &str| {
        let why = "the program under `ix run` did not print it";
        let found = all.get(name).copied();
        found.ok_or_else(|| Problem::new(format!("cannot measure {name}"), why))
    };
    let ns = |ticks: f64| (ticks * 1000.0 / ticks_per_us.max(1.0)).round();
    let mut rows = Vec::new();
    for (name, native) in ROWS {
        let ticks = figure(name)?;
        let off = native.map_or(Ok([0.0; 3]), figure)?;
        let mut row = row(&format!("sockets: {name}"), Some("none"), ticks, ticks_per_us);
        row["over_native_ns"] = ns(ticks[1] - off[1]).into();
        rows.push(row);
    }
    Ok(rows)
}

/// Parses lines of a name and three numbers.
fn read(text: &str) -> BTreeMap<String, [f64; 3]> {
    let line = |line: &str| {
        let words: Vec<&str> = line.rsplitn(4, ' ').collect();
        let [high, mid, low, name] = words[..] else { return None };
        Some((name.to_owned(), [low.parse().ok()?, mid.parse().ok()?, high.parse().ok()?]))
    };
    text.lines().filter_map(line).collect()
}

/// The program under `ix run`: prints what it measured against an `ix-echo`.
pub fn subject(to: SocketAddr) -> Result<()> {
    measure(to).map_err(|e| Problem::new(format!("cannot measure calls to {to}"), e))
}

fn measure(to: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    let mut byte = [0u8; MESSAGE];
    stream.write_all(&byte)?;
    stream.peek(&mut byte)?;
    let mut unread = 0;
    timed("ioctl", || {
        let bytes = socket::unread_bytes(&stream);
        unread = bytes.as_ref().map_or(unread, |bytes| *bytes);
        bytes.is_ok()
    })?;
    timed("getsockopt", || {
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        socket::get_option::<i32>(stream.as_fd(), level, name).is_ok()
    })?;
    let mut set = Epoll::new(1)?;
    set.add(&stream, libc::EPOLLIN, 0)?;
    // A call that has to wait takes over the cycles from the library's own thread.
    let _ = poll(&mut [PollFd::new(&stream, libc::POLLPRI)], Some(Duration::from_millis(2)));
    timed("epoll_wait", || set.wait(-1).is_ok_and(|n| n == 1))?;
    stream.read_exact(&mut byte)?;
    timed("send", || socket::send(stream.as_fd(), &byte[..1], 0).is_ok_and(|n| n == 1))?;
    let (wanted, start) = (SAMPLES * CALLS as usize, Instant::now());
    while unread < wanted && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        unread = socket::unread_bytes(&stream).unwrap_or(unread);
    }
    timed("recv", || socket::receive(stream.as_fd(), &mut byte[..1], 0).is_ok_and(|n| n == 1))?;
    let bell = event::open_blocking()?;
    let one = 1u64.to_ne_bytes();
    timed("forwarded write", || fd::write(bell.as_fd(), &one).is_ok_and(|n| n == one.len()))?;
    // Bypasses the library.
    timed("write", || fd::write_bare(bell.as_fd(), &one).is_ok_and(|n| n == one.len()))
}

/// Prints percentiles 10, 50 and 90 of the ticks of a call, which returns whether it succeeded.
fn timed(name: &str, mut call: impl FnMut() -> bool) -> std::io::Result<()> {
    let mut failed = 0;
    let [low, mid, high] = percentiles(CALLS, || {
        let start = ix_dataplane::ticks();
        failed += (0..CALLS).filter(|_| !call()).count();
        ix_dataplane::ticks() - start
    });
    if failed > 0 {
        return Err(std::io::Error::other(format!("{name} failed {failed} times")));
    }
    ix_sys::outln!("{name} {low:.1} {mid:.1} {high:.1}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_by_their_names() {
        let all = read("recv 1.0 2.5 3.0\nnoise\nforwarded write 4 5 6\ncycle 7.0 8.0 9.0\n");
        assert_eq!(all["recv"], [1.0, 2.5, 3.0]);
        assert_eq!(all["forwarded write"], [4.0, 5.0, 6.0]);
        assert_eq!((all.len(), all["cycle"]), (3, [7.0, 8.0, 9.0]));
    }
}

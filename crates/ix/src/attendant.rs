//! What the broker does while the program runs: answers `ix ctl`, and tells of links that go down
//! and come back.
use crate::control::Control;
use crate::problem::{Problem, Result};
use ix_testbed::{LinkChange, LinkWatch, Namespace};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;

/// A thread of the broker's. It ends, and the control socket goes, when this is dropped.
pub struct Attendant {
    /// Closing it ends the thread.
    stop: Option<io::PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Attendant {
    /// Starts it. `links` are the interfaces that the dataplane has, `snapshot` its counters.
    pub fn start(
        control: Control,
        links: Vec<String>,
        snapshot: impl Fn() -> Value + Send + 'static,
    ) -> Result<Attendant> {
        let problem = |e: &dyn std::fmt::Display| Problem::new("cannot watch the links", e);
        let here = Namespace::current().and_then(|here| here.links()).map_err(|e| problem(&e))?;
        let mut watch = LinkWatch::new(&here).map_err(|e| problem(&e))?;
        let (stopped, stop) = io::pipe().map_err(|e| problem(&e))?;
        let stopped = OwnedFd::from(stopped);
        let thread = std::thread::spawn(move || {
            loop {
                let [asked, changed, stop] = wait([control.fd(), watch.fd(), stopped.as_fd()]);
                if stop {
                    return;
                }
                if asked {
                    control.serve_one(&snapshot);
                }
                if changed {
                    watch.changes().iter().filter_map(|c| tell(c, &links)).for_each(|line| {
                        eprintln!("ix: {line}");
                    });
                }
            }
        });
        Ok(Attendant { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Attendant {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A panic there was printed when it happened.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Waits until one of the descriptors is readable or closed; answers which.
fn wait<const N: usize>(fds: [BorrowedFd<'_>; N]) -> [bool; N] {
    let mut polls =
        fds.map(|fd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // SAFETY: an array that lives across the call, with its length. An interrupted call leaves
    // `revents` as zero.
    unsafe { libc::poll(polls.as_mut_ptr(), N as libc::nfds_t, -1) };
    polls.map(|poll| poll.revents != 0)
}

/// The line for a change, if it is about one of ours.
fn tell(change: &LinkChange, links: &[String]) -> Option<String> {
    let (name, what) = match change {
        LinkChange::Down(name) => (name, "is down: packets are lost until it is up again"),
        LinkChange::Up(name) => (name, "is up again"),
        LinkChange::Removed(name) => (name, "is gone: start `ix run` anew when it is back"),
    };
    links.contains(name).then(|| format!("link {name} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn it_answers_until_it_is_dropped() {
        let path = std::env::temp_dir().join(format!("ix-attendant-{}.sock", std::process::id()));
        let control = Control::listen(Some(&path), 0).expect("listen");
        let attendant = Attendant::start(control, vec![], || json!({ "n": 1 })).expect("start");
        for _ in 0..2 {
            assert_eq!(crate::control::ask(&path, "stats").expect("answer")["n"], 1);
        }
        drop(attendant);
        assert!(!path.exists());
    }

    #[test]
    fn only_our_links_are_told_of() {
        let ours = ["eth1".to_owned()];
        let line = tell(&LinkChange::Down("eth1".into()), &ours).expect("told");
        assert!(line.starts_with("link eth1 is down"));
        assert_eq!(tell(&LinkChange::Down("eth0".into()), &ours), None);
    }
}

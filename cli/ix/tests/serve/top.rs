//! `ix top` from outside: one picture as text, and the live view on a terminal of its own, which
//! must be left as it was found.
use crate::support::command::errors;
use crate::support::traffic::{close, echo};
use crate::support::{Nic, PATIENCE, Service, TestNet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

fn served(test: &str) -> Option<(TestNet, Service)> {
    let net = TestNet::new(test, Nic::Tap, 1)?;
    let service = net.serve(&["64"]);
    Some((net, service))
}

#[test]
fn one_picture_is_text() {
    let Some((net, service)) = served("one_picture_is_text") else { return };
    let mut stream = net.connect();
    echo(&mut stream, 1, 64);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.args(["top", "--once", "--interval", "0.1", "--size", "100x30", "--control"]);
    let output = command.arg(net.file("control.sock")).output().expect("it starts");
    assert!(output.status.success(), "{}", errors(&output));
    let text = String::from_utf8(output.stdout).expect("text");
    for says in ["ix-echo", "tap:", "active", "128 flow groups", "drops", "commands", "q quit"] {
        assert!(text.contains(says), "{says}:\n{text}");
    }
    assert_eq!(text.lines().count(), 30);
    assert!(!text.contains('\u{1b}'), "no escape sequences");
    close(stream);
    service.finish(PATIENCE);
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let Some((net, service)) = served("without_a_terminal_it_says_what_to_do") else { return };
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    let output = command.args(["top", "--control"]).arg(net.file("control.sock")).output();
    let output = output.expect("it starts");
    let said = errors(&output);
    assert!(!output.status.success() && said.contains("--once"), "{said}");
    assert_eq!(said.lines().count(), 1);
    service.finish(PATIENCE);
}

/// `ix top` on a terminal.
struct Live {
    child: Child,
    keys: File,
    /// Our copy of its end: its settings must be seen after it has gone.
    theirs: OwnedFd,
    seen: Arc<Mutex<String>>,
}

impl Live {
    fn start(net: &TestNet) -> Live {
        Live::start_with(net, "")
    }

    /// With this value of `NO_COLOR`.
    fn start_with(net: &TestNet, no_color: &str) -> Live {
        let (mut ours, mut theirs) = (0, 0);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: writes two descriptors; no name, no settings, a size.
        let made = unsafe {
            let none = std::ptr::null_mut();
            libc::openpty(&mut ours, &mut theirs, none, std::ptr::null(), &size)
        };
        assert_eq!(made, 0, "a terminal");
        // SAFETY: two descriptors that were just made and belong to nobody else.
        let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let end = || Stdio::from(theirs.try_clone().expect("a copy"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
        command.args(["top", "--interval", "0.1", "--control"]).arg(net.file("control.sock"));
        command.env("NO_COLOR", no_color);
        command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("it starts");
        let keys = File::from(ours);
        let (mut screen, seen) = (keys.try_clone().expect("a copy"), Arc::new(Mutex::default()));
        let all: Arc<Mutex<String>> = Arc::clone(&seen);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = screen.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
                all.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
            }
        });
        Live { child, keys, theirs, seen }
    }

    fn seen(&self) -> String {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.seen().contains(text) {
            assert!(Instant::now() < end, "no {text:?} in {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("it reads");
    }

    /// Its end; the terminal must be as it was.
    #[track_caller]
    fn ends(mut self, code: i32) {
        let end = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break status,
                None => assert!(Instant::now() < end, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(code), "{status}");
        self.wait_for("\u{1b}[?1049l");
        assert!(self.seen().contains("\u{1b}[?25h"), "the cursor is back");
        // SAFETY: all zeroes is a valid value; the call fills it.
        let settings = unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            let fd = std::os::fd::AsRawFd::as_raw_fd(&self.theirs);
            assert_eq!(libc::tcgetattr(fd, &mut settings), 0);
            settings
        };
        let wanted = libc::ICANON | libc::ECHO | libc::ISIG;
        assert_eq!(settings.c_lflag & wanted, wanted, "lines and echo are back");
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a terminal was told a colour of letters or of the ground: SGR 30 to 49, 90 to 107.
fn has_colours(seen: &str) -> bool {
    let sequences = seen.split("\u{1b}[").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        rest[end..].starts_with('m').then_some(&rest[..end])
    });
    let is_colour = |number: &str| {
        let number: u32 = number.parse().unwrap_or(0);
        // 39 and 49 are the terminal's own.
        (30..=48).contains(&number) && number != 39 || (90..=107).contains(&number)
    };
    sequences.flat_map(|sequence| sequence.split(';')).any(is_colour)
}

#[test]
fn colours_are_left_out_where_the_user_wants_none() {
    let test = "colours_are_left_out_where_the_user_wants_none";
    let Some((net, service)) = served(test) else { return };
    for (no_color, expected) in [("", true), ("1", false)] {
        let mut live = Live::start_with(&net, no_color);
        live.wait_for("flow groups");
        assert_eq!(has_colours(&live.seen()), expected, "{:?}", live.seen());
        live.press("q");
        live.ends(0);
    }
    service.finish(PATIENCE);
}

#[test]
fn the_live_view_shows_what_happens_and_gives_the_terminal_back() {
    let test = "the_live_view_shows_what_happens_and_gives_the_terminal_back";
    let Some((net, service)) = served(test) else { return };
    let mut live = Live::start(&net);
    live.wait_for("flow groups");
    live.press("?");
    live.wait_for("waiting batches");
    live.press("\u{1b}");
    live.press("q");
    live.ends(0);
    service.finish(PATIENCE);
}

#[test]
fn signals_give_the_terminal_back_as_well() {
    let Some((net, service)) = served("signals_give_the_terminal_back_as_well") else { return };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let live = Live::start(&net);
        live.wait_for("flow groups");
        // SAFETY: signals a child of ours that was not waited for yet.
        assert_eq!(unsafe { libc::kill(live.child.id() as i32, signal) }, 0);
        live.ends(128 + signal);
    }
    service.finish(PATIENCE);
}

#[test]
fn a_dataplane_that_ends_is_told_and_the_view_stays() {
    let test = "a_dataplane_that_ends_is_told_and_the_view_stays";
    let Some((net, service)) = served(test) else { return };
    let mut live = Live::start(&net);
    live.wait_for("flow groups");
    service.finish(PATIENCE);
    live.wait_for("the dataplane at");
    live.press("q");
    live.ends(0);
}

//! The process of the keeper of an interface, which outlives the run that starts it: it is no child
//! of that run, and in no control group that ends with it.
//!
//! A service manager ends all processes in the control group of a service that it stops. So where
//! systemd manages the machine the keeper asks it for a scope of its own (systemd-run(1)), which is
//! neither the first service's nor the operator's session. Elsewhere, and where systemd refuses, it
//! has a group below that of the run that starts it.
use ix_broker::group;
use ix_sys::process;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What the keeper is called in the list of processes.
const NAME: &str = "ix-keeper";
/// Flag of `ix keeper` for the keeper itself.
const APART: &str = "--apart";
/// It is there when systemd manages the machine (sd_booted(3)).
const SYSTEMD: &str = "/run/systemd/system";
/// Longest wait for systemd, which answers in some tens of milliseconds. The run waits longer.
const SCOPE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(5);

/// Starts a keeper that is no child of this process.
pub fn start(interface: &str) -> io::Result<()> {
    match keeper(&["keeper", interface]).status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("cannot start its process: {status}"))),
    }
}

/// The process between a run and its keeper: starts the keeper apart from the run, and ends, so
/// that the keeper is no child of it.
pub fn start_apart(interface: &str) -> io::Result<()> {
    be_untouchable()?;
    if has_scope(interface) {
        return Ok(());
    }
    group::set_apart(&group_of(interface));
    keeper(&["keeper", APART, interface]).spawn().map(drop)
}

/// The keeper's process, until its last run has ended.
pub fn keep(interface: &str) -> io::Result<()> {
    if std::env::args_os().next().is_none_or(|own| own != NAME) {
        // systemd-run has started it by the path of the command.
        return Err(keeper(&["keeper", APART, interface]).exec());
    }
    be_untouchable()?;
    let kept = ix_netdev::keep(interface);
    group::leave_apart(&group_of(interface));
    kept
}

/// A program that is root of a namespace can neither trace nor signal this process.
fn be_untouchable() -> io::Result<()> {
    process::forbid_tracing()?;
    process::hide_user()
}

/// The control group of a keeper that systemd gives no scope.
fn group_of(interface: &str) -> String {
    format!("keeper-{interface}")
}

/// Starts the keeper in a scope of systemd's, if systemd gives one. Returns whether it did.
fn has_scope(interface: &str) -> bool {
    if !process::is_root() || !Path::new(SYSTEMD).exists() {
        return false;
    }
    let own = std::process::id();
    let mut command = Command::new("systemd-run");
    command.args(["--scope", "--quiet", "--collect", "--slice=system.slice"]);
    // Another keeper's scope may not have ended yet.
    command.arg(format!("--unit=ix-keeper-{interface}-{own}.scope"));
    command.arg(format!("--description=Keeper of {interface} for all ix run"));
    // At the machine's end the runs end first, and the keeper with the last one: it is not to be
    // asked before, but after as long as they may take.
    command.args(["--property=KillSignal=SIGCONT", "--property=TimeoutStopSec=60"]);
    command.arg(format!("/proc/{own}/exe")).args(["keeper", APART, interface]);
    silent(&mut command);
    command.spawn().is_ok_and(|mut child| is_kept_by(&mut child))
}

/// Whether systemd-run has become the keeper, or a keeper that has found another one.
fn is_kept_by(child: &mut Child) -> bool {
    let end = Instant::now() + SCOPE;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => {}
            Err(_) => return false,
        }
        let words = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
        if words.split(|byte| *byte == 0).next() == Some(NAME.as_bytes()) {
            return true;
        }
        std::thread::sleep(PAUSE);
    }
    // It has ended by itself meanwhile, or never becomes a keeper.
    let _ = child.kill().and_then(|()| child.wait());
    false
}

fn keeper(words: &[&str]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).args(words);
    silent(&mut command);
    command
}

/// It hears and says nothing, and no signal to the run's group is its own.
fn silent(command: &mut Command) {
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
}

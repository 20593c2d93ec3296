//! Checks of what the walls need; docs/design/wall.md says what each part of `--domain pku` stops.
use super::{Check, State};
use ix_broker::own_user::OwnUser;
use ix_broker::program_root::ProgramRoot;
use ix_report::machine::read;
use ix_sys::probe;

fn parts() -> [Check; 8] {
    [keys(), seal(), dispatch(), descriptors(), signal_stack(), seccomp(), vector_state(), user()]
}

fn is_missing(check: &&Check) -> bool {
    check.state == State::Missing
}

/// Returns the first thing that `--domain pku` lacks on this machine; `None`: it works.
pub fn lacking() -> Option<String> {
    parts().iter().find(is_missing).map(|check| check.why.clone())
}

/// Returns the checks; the first says whether the wall works.
pub(super) fn checks() -> Vec<Check> {
    let parts = parts();
    let lacking: Vec<_> = parts.iter().filter(is_missing).map(|check| check.name).collect();
    let whole = match lacking.as_slice() {
        [] => {
            let what = "--domain pku keeps programs out of the dataplane's memory, too, without a \
                        second process (`ix attack` tries it)";
            Check::ok("pku", what)
        }
        lacking => {
            let why = format!("--domain pku does not work here: missing {}", lacking.join(", "));
            Check::limited("pku", why)
                .mend("use a processor with protection keys, and Linux 6.12 or later")
        }
    };
    // A machine works without the wall: what is missing for it is only a limit.
    let limit = |mut check: Check| {
        if check.state == State::Missing {
            check.state = State::Limited;
        }
        check
    };
    [process(), root(), whole].into_iter().chain(parts.map(limit)).collect()
}

/// The default: a dataplane that is a process of its own.
fn process() -> Check {
    match ix_sys::process::is_root() {
        true => Check::ok(
            "wall-process",
            "--domain process, the default: the dataplane is a process and a user of its own",
        ),
        false => Check::limited(
            "wall-process",
            "--domain process, the default: the dataplane is a process of its own, of the program's \
             user, which can end it",
        )
        .mend("run ix as root, which gives the dataplane a user of its own"),
    }
}

/// How a program that is root is kept from its dataplane.
fn root() -> Check {
    let name = "wall-root";
    if !OwnUser::can_be() {
        return Check::limited(
            name,
            "root's programs cannot be kept from their dataplanes here: users 61184 to 65520 are \
             missing",
        )
        .mend("run ix as root, outside of user namespaces that lack these users");
    }
    match ProgramRoot::make() {
        Ok(Some(root)) if !root.is_scoped() => Check::limited(
            name,
            "programs that must be root are root of a user namespace without the dataplane's user, \
             but can end any process by a signal: this kernel has no Landlock with signals (Linux \
             6.12)",
        )
        .mend("boot a newer kernel, with lsm=landlock,...; or name another user with --user"),
        Ok(_) => Check::ok(
            name,
            "programs that must be root are root of a user namespace without the dataplane's user, \
             cannot signal others, and see control groups, /sys and /proc/sys read-only",
        ),
        Err(why) => Check::limited(name, why.to_string()),
    }
}

fn keys() -> Check {
    match probe::protection_keys() {
        Ok(()) => Check::ok("wall-keys", "memory protection keys (Linux 4.9)"),
        Err(e) => {
            let why = format!("no memory protection keys (processor; Linux 4.9): {e}");
            Check::missing("wall-keys", why)
        }
    }
}

fn seal() -> Check {
    match probe::seals() {
        Ok(()) => Check::ok("wall-seals", "mappings can be sealed (mseal, Linux 6.10)"),
        Err(e) => Check::missing("wall-seals", format!("no mseal (Linux 6.10): {e}")),
    }
}

fn dispatch() -> Check {
    match probe::user_dispatch() {
        Ok(()) => Check::ok(
            "wall-dispatch",
            "system calls can be intercepted (Syscall User Dispatch, Linux 5.11)",
        ),
        Err(e) => {
            let why = format!("no Syscall User Dispatch (Linux 5.11): {e}");
            Check::missing("wall-dispatch", why)
        }
    }
}

/// A thread is known by a segment descriptor, which only a 32-bit system call can set.
fn descriptors() -> Check {
    if probe::calls_of_32_bits() {
        return Check::ok(
            "wall-threads",
            "32-bit system calls can set the segment descriptors of threads",
        );
    }
    let why = "no 32-bit system calls, which set the segment descriptors that identify threads";
    Check::missing("wall-threads", why).mend("boot with ia32_emulation=1")
}

/// Since this version Linux writes a signal's frame with the rights of the stack's owner. Without
/// keys this cannot be tried.
fn signal_stack() -> Check {
    const FROM: (u32, u32) = (6, 12);
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= FROM {
        return Check::ok("wall-signals", "signal stacks may have a protection key (Linux 6.12)");
    }
    let why =
        format!("signal stacks may have a protection key only since Linux 6.12; this is {release}");
    Check::missing("wall-signals", why)
}

fn seccomp() -> Check {
    match probe::seccomp() {
        Ok(()) => Check::ok("wall-seccomp", "system calls can be filtered (seccomp, Linux 4.14)"),
        Err(e) => Check::missing("wall-seccomp", format!("no seccomp filters (Linux 4.14): {e}")),
    }
}

/// `xrstor` loads the rights as a part of the vector state.
fn vector_state() -> Check {
    if probe::saves_key_rights() {
        return Check::ok(
            "wall-xstate",
            "the processor saves key rights with the vector registers",
        );
    }
    Check::missing(
        "wall-xstate",
        "the processor does not save key rights with the vector registers",
    )
}

fn user() -> Check {
    if ix_sys::process::is_root() {
        return Check::ok("wall-user", "programs behind the wall run as another user");
    }
    let why =
        "programs behind the wall run as you, so they can signal and read your other processes";
    Check::limited("wall-user", why)
        .mend("start `ix run` as root, which runs the program as another user")
}

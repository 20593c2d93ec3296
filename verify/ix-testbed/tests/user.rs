//! Root's rights without root. A process of its own, for it must have one thread.
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd, enter_user_namespace, try_user_namespace};

/// libtest's first and last line, for the command that counts tests: this is one without libtest.
const RESULT: &str =
    "running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

/// Runs in a forked child as nobody; returns an exit status.
fn as_nobody() -> i32 {
    // SAFETY: changes the credentials of this forked child only; who has just given up root must
    // ask to own its files in /proc as others do from the start.
    let dropped = unsafe {
        libc::getuid() != 0
            || libc::setresuid(65534, 65534, 65534) == 0
                && libc::prctl(libc::PR_SET_DUMPABLE, 1) == 0
    };
    if !dropped || Namespace::new().is_ok() {
        return 2;
    }
    if let Err(e) = enter_user_namespace() {
        eprintln!("{e}");
        return 3;
    }
    let made = Namespace::new().and_then(|a| {
        let b = Namespace::new()?;
        a.add_veth(&VethEnd::new("left"), &b, &VethEnd::new("right"))
    });
    made.map_or_else(
        |e| {
            eprintln!("{e}");
            4
        },
        |()| 0,
    )
}

fn main() {
    if let Err(e) = try_user_namespace() {
        let need = Need::Kernel("sysctl kernel.unprivileged_userns_clone=1, or no AppArmor");
        skip("anybody_may_make_links_in_a_user_namespace", need, e);
        println!("{RESULT}");
        return;
    }
    // SAFETY: this process has one thread, so the child may do anything.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        std::process::exit(as_nobody());
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
    println!("test anybody_may_make_links_in_a_user_namespace ... ok\n\n{RESULT}");
}

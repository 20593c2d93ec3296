//! Programs of all kinds run to their end with the image in them, and do not notice.
use crate::common::{begin, boot, boot_with, compile, run, run_loaded, start, start_by};
use ix_launch::{Entry, Exit, LaunchError, Occurrence, ServeError, memfd, serve};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn exit_statuses_come_through() {
    assert_eq!(run("/bin/true", &[]), Exit::Status(0));
    assert_eq!(run("sh", &["-c", "exit 3"]), Exit::Status(3));
}

#[test]
fn ends_by_signals_come_through() {
    let crash = compile("crash", &[]);
    for (how, signal) in [
        ("segv", libc::SIGSEGV),
        ("abort", libc::SIGABRT),
        ("term", libc::SIGTERM),
        ("pipe", libc::SIGPIPE),
    ] {
        assert_eq!(run(&crash, &[how]), Exit::Signal(signal), "{how}");
    }
    assert_eq!(run(&crash, &[]), Exit::Status(42));
}

#[test]
fn addresses_differ_and_it_always_works() {
    let mut one_thread = begin();
    one_thread.config.cpus = vec![0];
    for _ in 0..200 {
        let mut child = start("/bin/true", &[]).expect("starts");
        boot_with(&mut child, one_thread.clone());
        assert_eq!(child.wait().expect("ends"), Exit::Status(0));
    }
}

#[test]
fn the_program_break_is_the_programs_alone() {
    assert_eq!(run(compile("heap", &[]), &[]), Exit::Status(0));
    assert_eq!(run(compile("heap", &["-static"]), &["static"]), Exit::Status(0));
}

#[test]
fn threads_and_their_storage_work() {
    assert_eq!(run(compile("threads", &[]), &[]), Exit::Status(0));
    assert_eq!(run(compile("threads", &["-static"]), &[]), Exit::Status(0));
}

/// Tests that a script has put into the background were told to ignore some signals.
fn take_default_actions() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: the default action, which this process had when it was started by hand.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

#[test]
fn the_program_finds_everything_as_the_kernel_leaves_it() {
    take_default_actions();
    for flags in [&[][..], &["-static"], &["-static-pie"]] {
        let program = compile("native", flags);
        let path = program.to_str().expect("plain path");
        // A test may have been given more descriptors than three.
        let native = Command::new(&program).arg("count").status().expect("runs");
        let descriptors = native.code().expect("exited").to_string();
        let args = [path, "two words", &descriptors];
        assert_eq!(run(&program, &args), Exit::Status(0), "{flags:?}");
    }
    let bare = compile("registers", &["-nostdlib", "-static"]);
    assert_eq!(run(bare, &[]), Exit::Status(0));
}

#[test]
fn a_rust_program_runs() {
    let own = std::env::current_exe().expect("own path");
    let args = ["--exact", "plant::a_rust_program", "--ignored", "--quiet"];
    assert_eq!(run(&own, &args), Exit::Status(0));
    assert_eq!(run_loaded(own, &args), Exit::Status(0));
}

/// All but `/proc/self/exe` is as Linux leaves it.
#[test]
fn programs_are_loaded_as_linux_does_it() {
    take_default_actions();
    for flags in [&[][..], &["-static"], &["-static-pie"], &["-no-pie"]] {
        let program = compile("native", flags);
        let path = program.to_str().expect("plain path");
        let native = Command::new(&program).arg("count").status().expect("runs");
        let descriptors = native.code().expect("exited").to_string();
        let args = [path, "two words", &descriptors];
        assert_eq!(run_loaded(&program, &args), Exit::Status(0), "{flags:?}");
        let threads = compile("threads", flags);
        assert_eq!(run_loaded(threads, &[]), Exit::Status(0), "{flags:?}");
    }
    assert_eq!(run_loaded(compile("heap", &[]), &[]), Exit::Status(0));
    let bare = compile("registers", &["-nostdlib", "-static"]);
    assert_eq!(run_loaded(bare, &[]), Exit::Status(0));
    let crash = compile("crash", &[]);
    assert_eq!(run_loaded(&crash, &["segv"]), Exit::Signal(libc::SIGSEGV));
    assert_eq!(run_loaded("sh", &["-c", "exit 3"]), Exit::Status(3));
}

#[test]
fn what_cannot_be_loaded_is_refused_with_the_reason() {
    let script = scratch("loaded-script", "#!/bin/sh\n", 0o755);
    let mut child = start_by(Entry::Loading, &script, &[]).expect("the image starts");
    let page = memfd(c"ix-controller").expect("memfd");
    use std::os::fd::AsFd;
    let refused = serve(&mut child, begin(), &[page.as_fd()], &mut |_, _| Ok(()));
    let Err(ServeError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("loaded-script") && why.contains("--entry planted"), "{why}");
}

/// Run by the test above, inside a process with the image in it.
#[test]
#[ignore = "part of another test"]
fn a_rust_program() {
    let threads: Vec<_> = (0..16u64)
        .map(|n| std::thread::spawn(move || (0..10_000u64).map(|i| vec![i ^ n; 3][1]).sum::<u64>()))
        .collect();
    let sum: u64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert!(sum > 0);
    assert!(std::env::var("IX_ABI").is_ok_and(|value| value != ix_entry::ABI_PLACEHOLDER));
}

#[test]
fn a_script_runs_its_interpreter() {
    let script = scratch("script", "#!/bin/sh\ntest -n \"$IX_ABI\" && exit 7\n", 0o755);
    assert_eq!(run(script, &[]), Exit::Status(7));
}

#[test]
fn a_program_that_executes_another_leaves() {
    let mut child = start("sh", &["-c", "exec sleep 0.5"]).expect("starts");
    boot(&mut child);
    assert!(matches!(child.next(&[], 5000).expect("next"), Occurrence::Left));
    assert_eq!(child.wait().expect("ends"), Exit::Status(0));
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    let mut foreign = std::fs::read("/bin/true").expect("readable");
    foreign[18] = 183;
    let foreign_path = scratch("foreign", "", 0o755);
    std::fs::write(&foreign_path, foreign).expect("write");
    type Check = fn(&LaunchError) -> bool;
    let cases: [(PathBuf, Check, &str); 7] = [
        ("/no/such".into(), |e| matches!(e, LaunchError::NotFound(_)), "no such program"),
        ("no-such".into(), |e| matches!(e, LaunchError::NotFound(_)), "no such program"),
        ("/etc".into(), |e| matches!(e, LaunchError::Directory(_)), "directory"),
        (
            scratch("data", "just text", 0o755),
            |e| matches!(e, LaunchError::NotExecutable(_)),
            "neither an executable nor a script",
        ),
        (
            scratch("plain", "#!/bin/sh\n", 0o644),
            |e| matches!(e, LaunchError::NoPermission(_)),
            "chmod +x",
        ),
        (
            scratch("orphan", "#!/no/such/interpreter\n", 0o755),
            |e| matches!(e, LaunchError::NoInterpreter(_)),
            "interpreter is missing",
        ),
        (foreign_path, |e| matches!(e, LaunchError::WrongMachine(_)), "x86-64"),
    ];
    for (program, is_expected, says) in cases {
        let error = start(&program, &[]).expect_err("refused");
        assert!(is_expected(&error), "{program:?}: {error:?}");
        let text = error.to_string();
        assert!(text.contains(says) && !text.contains('\n'), "{text}");
    }
}

/// A file with this content and mode.
fn scratch(name: &str, content: &str, mode: u32) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{name}-{}", std::process::id()));
    std::fs::write(&path, content).expect("write");
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&path, permissions).expect("chmod");
    path
}

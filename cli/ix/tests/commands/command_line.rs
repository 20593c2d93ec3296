//! Wrong input: each a one-line error that names the thing, and a status that is not 0.
use crate::support::command::{errors, ix};
use std::fs;

/// The command must fail with exactly one line that contains every word.
#[track_caller]
fn refuses(args: &[&str], status: i32, words: &[&str]) {
    let output = ix(args);
    let text = errors(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: {text}");
    }
}

const RUN: [&str; 5] = ["run", "--nic", "tap:ixt0", "--addr", "10.9.0.2/24"];
const BARE: [&str; 4] = ["--domain", "none", "--", "/bin/true"];

#[track_caller]
fn run_refuses(more: &[&str], status: i32, words: &[&str]) {
    refuses(&[&RUN[..], more].concat(), status, words);
}

#[test]
fn wrong_command_lines_are_told_apart_from_failures() {
    for (args, status) in [
        (&["run"][..], 125),
        (&["fly"], 2),
        (&["bench", "nothing"], 2),
        (&["run", "--domain", "x", "--"], 125),
    ] {
        let output = ix(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert!(errors(&output).contains("Usage") || errors(&output).contains("--help"));
    }
}

#[test]
fn help_teaches() {
    for (args, words) in [
        (&["--help"][..], &["ix doctor", "ix demo", "run to completion"][..]),
        (&["run", "--help"], &["afxdp:", "host_addr", "ix echo 64"]),
        (&["bench", "short", "--help"], &["--connections", "--quick", "--json"]),
    ] {
        let output = ix(args);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout);
        words.iter().for_each(|word| assert!(text.contains(word), "{args:?} {word}: {text}"));
    }
}

/// A full disk, say: one line, and no panic.
#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    for args in [&["doctor"][..], &["doctor", "--json"], &["cp", "--print-policy", "energy"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("opened");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ix"));
        let output = command.args(args).stdout(full).output().expect("the command starts");
        let said = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        let words = "ix: cannot write to standard output: No space left on device";
        assert!(said.lines().count() == 1 && said.starts_with(words), "{args:?}: {said}");
    }
}

#[test]
fn programs_that_cannot_run() {
    run_refuses(&["--", "no-such-program"], 127, &["no-such-program", "PATH"]);
    run_refuses(&["--", "/no/such"], 127, &["/no/such", "No such file"]);
    run_refuses(&["--", "/etc"], 126, &["folder"]);
    run_refuses(&["--", "/etc/passwd"], 126, &["not executable", "chmod"]);
}

/// The shortest command, and both ways to write it wrongly.
#[test]
fn programs_need_no_dashes_before_them() {
    run_refuses(&["no-such-program", "-p", "11211"], 127, &["no-such-program", "PATH"]);
    let right = "write `ix run --nic tap:ixt0 --addr 10.9.0.2/24 /bin/true -x`";
    refuses(
        &["run", "/bin/true", "-x", "--nic", "tap:ixt0", "--addr", "10.9.0.2/24"],
        125,
        &["`--nic` behind /bin/true", right],
    );
    refuses(
        &["--nic", "tap:ixt0", "--addr=10.9.0.2/24", "run", "/bin/true"],
        125,
        &["write `ix run --nic tap:ixt0 --addr=10.9.0.2/24 /bin/true`"],
    );
    refuses(&["sh", "-c", "true"], 2, &["it is a program", "write `ix run sh -c true`"]);
}

/// An error of a command that was asked for JSON is JSON too, in one line.
#[test]
fn errors_are_json_where_json_was_asked_for() {
    for (args, status, error) in [
        (&["ctl", "stats", "--json", "--control", "/no/such.sock"][..], 1, "/no/such.sock"),
        (&["bench", "echo", "--json", "--domain", "pku"], 1, "pku"),
        (&["ctl", "stats", "--json", "--speed"], 2, "--speed"),
        (&["load", "nonsense", "--json"], 2, "nonsense"),
        (&["load", "nonsense", "--json", "-"], 2, "nonsense"),
    ] {
        let output = ix(args);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("one line of JSON");
        let said = format!("{} {}", value["error"], value["why"]);
        assert!(said.contains(error), "{args:?}: {value}");
        assert!(value["mend"].is_string(), "{args:?}: {value}");
    }
}

/// Each script is one that its shell reads without a complaint, where the machine has that shell.
#[test]
fn completions_are_scripts_of_their_shells() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let output = ix(&["completions", shell]);
        assert!(output.status.success(), "{shell}");
        let script = String::from_utf8(output.stdout).expect("text");
        for word in ["program-cpus", "doctor", "flow-groups", "measure-connections"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        let file = std::env::temp_dir().join(format!("ix-{}.{shell}", std::process::id()));
        fs::write(&file, script).expect("a file");
        match std::process::Command::new(shell).arg(check).arg(&file).output() {
            Ok(read) => assert!(read.status.success(), "{shell}: {read:?}"),
            Err(e) => ix_skip::skip(
                "completions_are_scripts_of_their_shells",
                ix_skip::Need::Program(&format!("apt-get install {shell}")),
                e,
            ),
        }
        fs::remove_file(&file).expect("removed");
    }
    refuses_with_usage(&["completions", "csh"]);
}

#[track_caller]
fn refuses_with_usage(args: &[&str]) {
    let output = ix(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(errors(&output).contains("--help"), "{args:?}");
}

#[test]
fn devices_that_cannot_be() {
    let run = |nic| [&["run", "--nic", nic, "--addr", "10.9.0.2/24"], &BARE[..]].concat();
    refuses(&run("dpdk:0"), 125, &["`--nic dpdk:0`", "tap:NAME"]);
    refuses(&run("tap:much-too-long-a-name"), 125, &["15 characters"]);
    refuses(&run("tap:ixt0,queues=9"), 125, &["9 queues", "1 elastic thread"]);
    refuses(&["run", "--addr", "10.9.0.2/24", "--", "/bin/true"], 125, &["no device", "--nic"]);
    refuses(&run("afxdp:nowhere"), 125, &["`--nic afxdp:nowhere`"]);
    refuses(&run("nowhere"), 125, &["`--nic nowhere`", "no interface"]);
}

#[test]
fn addresses_that_cannot_be() {
    let run = |addr| ["run", "--nic", "tap:ixt0", "--addr", addr, "--", "/bin/true"];
    refuses(&run("10.9.0.2"), 125, &["10.9.0.2", "PREFIX"]);
    refuses(&run("10.9.0.256/24"), 125, &["10.9.0.256/24", "not an address"]);
    refuses(&run("10.9.0.2/33"), 125, &["out of range", "--addr"]);
    refuses(&run("fe80::1/64"), 125, &["fe80::1/64", "link-local"]);
    refuses(&run("2001:db8::1/129"), 125, &["out of range", "128", "--addr"]);
    for none in ["224.0.0.1/24", "ff02::1/64", "::1/64"] {
        refuses(&run(none), 125, &[none, "not an address of a host"]);
    }
    refuses(&["run", "--nic", "tap:ixt0", "--", "/bin/true"], 125, &["no address", "--addr"]);
    run_refuses(
        &["--gateway", "10.8.0.1", "--", "/bin/true"],
        125,
        &["`--gateway 10.8.0.1`", "networks"],
    );
}

#[test]
fn hardware_threads_that_cannot_be() {
    run_refuses(
        &["--cpus", "1000", "--", "/bin/true"],
        125,
        &["1000 of `--cpus 1000`", "may run on"],
    );
    run_refuses(&["--cpus", "x", "--", "/bin/true"], 125, &["`--cpus x`", "not a list"]);
}

/// Of queues that there are not, filters that take nothing or too much, and rates that let nothing
/// pass: all of it before a device is opened.
#[test]
fn parts_of_the_vnic_that_cannot_be() {
    let file = std::env::temp_dir().join(format!("ix-vnic-{}.toml", std::process::id()));
    let many: Vec<String> =
        (1..=33).map(|port| format!("\"rx udp service 10.9.0.2:{port}\"")).collect();
    let many = format!("[vnic]\nfilters = [{}]", many.join(","));
    for (part, words) in [
        (
            "[vnic]\ntx_rate = \"0bit\"",
            &["`tx_rate = \"0bit\"`", "line 4", "0 lets nothing pass"][..],
        ),
        (
            "[vnic]\nrx_rate = \"fast\"",
            &["`rx_rate = \"fast\"`", "line 4", "invalid rate", "100Mbit"],
        ),
        ("[vnic]\nspeed = \"1Mbit\"", &["`speed`", "line 4", "no such key", "`flow_rate`"]),
        ("[vnic]\ngate = \"none rx\"", &["`gate`", "line 4", "no such key"]),
        ("[vnic]\nfilters = \"rx ip service 10.0.0.9-10.0.0.1\"", &["is empty"]),
        ("[vnic]\nfilters = \"tx eth\"", &["[vnic]", "Linux"]),
        (&many, &["33 rx filters are too many", "at most 32"]),
        ("[vnic.queue.1]\ntx_rate = \"1Mbit\"", &["has no queue 1", "0 to 0"]),
        ("[vnic.queue.9]\nfilters = \"tx udp service 10.9.0.2\"", &["has no queue 9"]),
        ("[vnic.queue.x]\ntx_rate = \"1Mbit\"", &["`x` is no queue's number"]),
        (
            "[vnic.queue.0]\ntx_rate = \"0pps\"",
            &["`tx_rate = \"0pps\"`", "line 4", "0 lets nothing pass"],
        ),
        ("[vnic.queue.0]\nfilters = \"rx tcp service 10.9.0.2\"", &["flow group"]),
        ("[vnic.queue.0]\nfilters = \"rx tcp service 10.9.0.2:9-1\"", &["is empty"]),
        ("[vnic]\nqueue = 1", &["[vnic.queue.0]"]),
    ] {
        let head = "host_addr = \"10.9.0.2/24\"\ndevices = \"afxdp:nowhere\"\n";
        fs::write(&file, format!("{head}{part}\n")).expect("a file");
        let path = file.to_str().expect("text");
        refuses(&["run", "-c", path, "--domain", "none", "--", "/bin/true"], 125, words);
    }
    fs::remove_file(&file).expect("removed");
}

#[test]
fn protection_that_is_not_there_is_not_pretended() {
    // SAFETY: no pointers; a key that could be had goes with the process.
    if unsafe { libc::syscall(libc::SYS_pkey_alloc, 0, 0) } < 0 {
        let words = ["pku", "protection keys", "leave --domain out"];
        run_refuses(&["--domain", "pku", "--", "/bin/true"], 125, &words);
    }
    refuses(&["bench", "echo", "--domain", "pku"], 1, &["pku", "ix bench gate"]);
}

#[test]
fn memifs_that_cannot_be() {
    let run = |spec| [&["run", "--nic", spec, "--addr", "10.9.0.2/24"], &BARE[..]].concat();
    refuses(&run("memif:"), 125, &["memif:"]);
    refuses(&run("memif:/tmp/x,role=boss"), 125, &["role=", "server"]);
    refuses(&run("memif:/no/such/folder/x,role=server"), 125, &["/no/such/folder/x"]);
}

#[test]
fn configuration_files_that_cannot_be_used() {
    refuses(&["run", "-c", "/no/such.toml", "--", "/bin/true"], 125, &["/no/such.toml"]);
    let path = std::env::temp_dir().join(format!("ix-test-{}.toml", std::process::id()));
    let name = path.to_str().expect("text");
    for (text, word) in [
        ("host_addr = ", "such"),
        ("devices = 'tap:ixt0'\nhost_addr = 5", "`host_addr = 5`"),
        ("devices = 'nonsense:0'\nhost_addr = '10.9.0.2/24'", "`devices = \"nonsense:0\"` in"),
    ] {
        fs::write(&path, text).expect("write");
        let word = if word == "such" { name } else { word };
        refuses(&["run", "-c", name, "--", "/bin/true"], 125, &[word]);
    }
    // Flags override the file.
    fs::write(&path, "devices = 'tap:ixt0'\nhost_addr = '10.9.0.2/24'\n").expect("write");
    let args = ["run", "-c", name, "--addr", "10.9.0.3/77", "--", "/bin/true"];
    refuses(&args, 125, &["10.9.0.3/77"]);
    fs::remove_file(&path).expect("clean up");
}

#[test]
fn a_dataplane_that_is_not_there() {
    refuses(&["ctl", "stats", "--control", "/no/such.sock"], 1, &["/no/such.sock", "ix run"]);
    refuses(&["ctl", "stats", "--pid", "1"], 1, &["process 1", "--control"]);
}

#[test]
fn the_doctor_answers_for_everything_in_json() {
    let output = ix(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let checks = value["checks"].as_array().expect("checks");
    for name in [
        "kernel",
        "fsgsbase",
        "hugepages",
        "memlock",
        "userns",
        "tap",
        "run",
        "afxdp",
        "cpus",
        "counters",
    ] {
        let check = checks.iter().find(|c| c["name"] == name).expect(name);
        let state = check["state"].as_str().expect("state");
        assert!(["ok", "limited", "missing"].contains(&state), "{check}");
        assert!(!check["why"].as_str().expect("why").is_empty(), "{check}");
    }
    assert_eq!(value["works"].as_bool(), Some(output.status.success()));
    assert!(value["machine"]["kernel"].as_str().expect("kernel").contains('.'));
}

#[test]
fn the_doctor_leaves_nothing_behind() {
    let interfaces = || fs::read_to_string("/proc/net/dev").expect("read").lines().count();
    let before = interfaces();
    ix(&["doctor"]);
    assert_eq!(interfaces(), before);
}

/// A program that never used IX is told, with the reason; `--require-ix` makes that an error.
#[test]
fn a_program_that_never_used_ix_is_told() {
    let test = "a_program_that_never_used_ix_is_told";
    let Some(namespace) = crate::support::command::namespace(test) else { return };
    let run = |more: &[&str]| {
        let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
        command.args(RUN).args(more).output().expect("it starts")
    };
    let loopback = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()";
    for (program, status, why) in [
        (&["/bin/sh", "-c", "exit 7"][..], 7, "no socket on 10.9.0.2"),
        (&["/usr/bin/python3", "-c", loopback], 0, "on the loopback"),
        (&["--posix", "off", "/bin/true"], 0, "--posix off gives it Linux's sockets"),
        (&["--domain", "none", "/bin/sh", "-c", "kill -9 $$"], 137, "no socket on 10.9.0.2"),
    ] {
        let output = run(program);
        let text = errors(&output);
        let last = text.lines().find(|line| line.starts_with("ix: this program never used IX: "));
        assert!(last.is_some_and(|line| line.contains(why)), "{program:?}: {text}");
        assert_eq!(output.status.code(), Some(status), "{program:?}: {text}");
        let output = run(&[&["--require-ix"], program].concat());
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(125), "{program:?}: {text}");
        assert!(text.lines().last().is_some_and(|line| line.contains(why)), "{program:?}: {text}");
    }
    // What it was refused says more than that it was without sockets, and is told once, when it
    // happens; an error says so again.
    let twice = "import socket; a, b = socket.socket(), socket.socket(); a.bind(('', 7)); \
                 b.bind(('', 7))";
    let at_once =
        "ix: the program was refused 0.0.0.0:7: another socket has that port (EADDRINUSE)";
    let at_end = "ix: this program was refused port 7: another socket has that port (EADDRINUSE)";
    let required = &["--require-ix", "/usr/bin/python3", "-c", twice][..];
    for (words, times) in [(&required[1..], [1, 0]), (required, [1, 1])] {
        let text = errors(&run(words));
        let told = [at_once, at_end].map(|line| text.matches(line).count());
        assert_eq!(told, times, "{text}");
        assert!(!text.contains("never used IX"), "{text}");
    }
    // A program that has made another file of its standard error has not said it to the user.
    let hidden = format!("import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 2)\n{twice}");
    let text = errors(&run(&["/usr/bin/python3", "-c", &hidden]));
    let told = [at_once, at_end].map(|line| text.matches(line).count());
    assert_eq!(told, [0, 1], "{text}");
    let wildcard = "import socket; s = socket.socket(); s.bind(('', 7)); s.listen(); \
                    s.settimeout(0.1)\ntry: s.accept()\nexcept TimeoutError: pass";
    let output = run(&["--require-ix", "/usr/bin/python3", "-c", wildcard]);
    let text = errors(&output);
    assert!(output.status.success() && !text.contains("never used IX"), "{text}");
}

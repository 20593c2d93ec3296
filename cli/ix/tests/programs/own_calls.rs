//! Programs that call Linux themselves and not through the C library: Go with and without cgo, and
//! static ones. Their sockets are IX's behind the wall that ships.
use crate::support::command::errors;
use crate::support::process::{Process, signal};
use crate::support::traffic::{echo, http};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, Service, TestNet, connect, eventually};
use ix_skip::{Need, skip, skip_part};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Behind other walls such programs are Linux's, or refused.
const WALL: [&str; 2] = ["--domain", "process"];
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../app/libix-posix/tests/programs");

/// Go's command.
fn go() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).chain(["/usr/local/go/bin".into()]);
    found.map(|folder| folder.join("go")).find(|file| file.is_file())
}

/// Builds the server in Go, with cgo or without; `None`, said loudly, where there is no Go.
fn build(test: &str, cgo: bool) -> Option<PathBuf> {
    let Some(go) = go() else {
        skip(test, Need::Program("install Go from https://go.dev/dl"), "no go");
        return None;
    };
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{cgo}"));
    let mut command = Command::new(go);
    command.env("CGO_ENABLED", if cgo { "1" } else { "0" }).args(["build", "-o"]).arg(&program);
    let output = command.arg(format!("{SOURCES}/net_http.go")).output().expect("go runs");
    assert!(output.status.success(), "{}", errors(&output));
    Some(program)
}

fn text(program: &Path) -> &str {
    program.to_str().expect("text")
}

/// A web server that waits with deadlines, datagrams, parked goroutines, one that must be stopped
/// by a signal, and children; many connections at once; and its graceful end.
fn serves(test: &str, cgo: bool) {
    let Some(program) = build(test, cgo) else { return };
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let words = [text(&program), "serve", "10.88.0.2", "7"];
    let service = net.start_env(&[], &WALL, &words);
    service.process.wait_for("ready", PATIENCE);
    let url = format!("http://{SERVICE}/echo");
    net.client.run(|| {
        let mut silent = None;
        eventually("a connection", || {
            silent = TcpStream::connect(("10.88.0.2", 8)).ok();
            silent.is_some()
        });
        let mut silent = silent.expect("connected");
        silent.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut line = [0; 13];
        silent.read_exact(&mut line).expect("a line");
        assert_eq!(&line, b"timeout true\n");
        silent.write_all(b"no longer").expect("sent");
        silent.shutdown(Shutdown::Write).expect("shut down");
        let mut back = String::new();
        silent.read_to_string(&mut back).expect("an echo");
        assert_eq!(back, "no longer");
        let datagrams = UdpSocket::bind((CLIENT, 0)).expect("a socket");
        datagrams.set_read_timeout(Some(PATIENCE)).expect("a limit");
        datagrams.send_to(b"a datagram", SERVICE).expect("sent");
        let mut room = [0; 64];
        let (n, from) = datagrams.recv_from(&mut room).expect("an answer");
        assert_eq!((&room[..n], from), (&b"a datagram"[..], SERVICE.into()));
    });
    let get = |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        http(&net.client, &SERVICE.to_string(), &request).1
    };
    assert!(get("/a/page").starts_with("page /a/page for 10.88.0.1:"), "{}", get("/a/page"));
    // The child is executed with IX.
    assert_eq!(get("/exec"), "a child speaks\n<nil>\n");
    let mut command = net.client.command(text(&program), None);
    command.args(["get", &url, "50", "20"]);
    let client = Process::start(command);
    client.wait_for("all answered", PATIENCE);
    service.process.signal(libc::SIGTERM);
    service.process.wait_for("shut down", PATIENCE);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    for port in [7, 8] {
        assert!(said.contains(&format!("ix: listening on 10.88.0.2:{port}: IX")), "{said:#?}");
    }
    assert!(!said.iter().any(|line| line.contains("Linux's")), "{said:#?}");
}

#[test]
fn a_go_server_without_cgo_is_ixs() {
    serves("a_go_server_without_cgo_is_ixs", false);
}

#[test]
fn a_go_server_with_cgo_is_ixs() {
    serves("a_go_server_with_cgo_is_ixs", true);
}

/// Go's client connects over IX to a server on Linux, which is the same program.
#[test]
fn a_go_client_is_ixs() {
    let test = "a_go_client_is_ixs";
    for cgo in [false, true] {
        let Some(program) = build(test, cgo) else { return };
        let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
        let mut command = net.client.command(text(&program), None);
        command.args(["serve", "10.88.0.1", "8080"]);
        let server = Process::start(command);
        server.wait_for("ready", PATIENCE);
        let url = "http://10.88.0.1:8080/echo";
        let words = [text(&program), "get", url, "20", "10"];
        let service = net.start_env(&[], &WALL, &words);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "cgo {cgo}: {said:#?}");
        assert!(said.contains(&"all answered".to_owned()), "cgo {cgo}: {said:#?}");
        let first = "ix: first connection to 10.88.0.1:8080: IX".to_owned();
        assert!(said.contains(&first), "cgo {cgo}: {said:#?}");
    }
}

/// A server in Go as Debian has it.
#[test]
fn debians_node_exporter_is_ixs() {
    let test = "debians_node_exporter_is_ixs";
    let program = "/usr/bin/prometheus-node-exporter";
    if !Path::new(program).exists() {
        let need =
            Need::Program("apt-get install --no-install-recommends prometheus-node-exporter");
        return skip(test, need, "no prometheus-node-exporter");
    }
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let words = [program, "--web.listen-address=10.88.0.2:7"];
    let service = net.start_env(&[], &WALL, &words);
    service.process.wait_for("ix: listening on 10.88.0.2:7: IX", PATIENCE);
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let (head, body) = http(&net.client, &SERVICE.to_string(), request);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(body.contains("\nnode_exporter_build_info{"), "{} bytes", body.len());
}

/// Compiles the static echo server; `None` where this compiler or its C library is missing.
fn compile(test: &str, compiler: &str, package: &str) -> Option<PathBuf> {
    compile_named(test, "own_calls", compiler, package)
}

/// The same with another program.
fn compile_named(test: &str, name: &str, compiler: &str, package: &str) -> Option<PathBuf> {
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{compiler}"));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-w", "-static", "-pthread", "-o"]).arg(&program);
    let output = command.arg(format!("{SOURCES}/{name}.c")).output();
    match output {
        Ok(output) => {
            assert!(output.status.success(), "{}", errors(&output));
            Some(program)
        }
        Err(_) => {
            let need = format!("apt-get install {package}");
            skip_part(test, Need::Program(&need), format_args!("no {compiler}"));
            None
        }
    }
}

const COMPILERS: [(&str, &str); 2] = [("cc", "gcc libc6-dev"), ("musl-gcc", "musl-tools")];

/// Threads that the program starts itself, a child, an executed program, signals that end a call
/// and signals that do not, and calls by hand.
#[test]
fn static_servers_are_ixs() {
    let test = "static_servers_are_ixs";
    for (compiler, package) in COMPILERS {
        let Some(program) = compile(test, compiler, package) else { continue };
        let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
        let service = net.start_env(&[], &WALL, &[text(&program), "10.88.0.2", "7"]);
        let ready = service.process.wait_for("ready", PATIENCE);
        let pid = ready.split(' ').nth(1).and_then(|pid| pid.parse().ok()).expect("a number");
        service.process.wait_for("accept: Interrupted system call after 1 alarms", PATIENCE);
        net.client.run(|| {
            let mut streams: Vec<_> = (0..16).map(|_| connect()).collect();
            for size in [1, 100, 60_000] {
                for (stream, id) in streams.iter_mut().zip(0..) {
                    echo(stream, id, size);
                }
            }
            drop(streams);
            // Threads end, and others take their places.
            for id in 0..50 {
                echo(&mut connect(), id, 1000);
            }
            signal(pid, libc::SIGUSR1);
            // The call goes on after the handler.
            eventually("the handler has run", || {
                echo(&mut connect(), 7, 10);
                service.process.said().iter().any(|line| line == "accepted after 1 others")
            });
        });
        // Each connection has some calls at least; most traps are of threads that begin.
        let [trapped, rewritten] = calls_of(&service, |[_, rewritten]| *rewritten > 50);
        assert!(rewritten > 50, "{compiler}: {trapped} trapped, {rewritten} did not");
        let said = service.process.said();
        for line in ["a child speaks", "child ended with 0", "ix: listening on 10.88.0.2:7: IX"] {
            assert!(said.iter().any(|said| said == line), "{compiler}: no `{line}`: {said:#?}");
        }
        assert!(!said.iter().any(|line| line.ends_with("1 others") && line.starts_with("accept:")));
        service.process.signal(libc::SIGTERM);
        service.process.wait(PATIENCE);
    }
}

/// Calls by the program's own instructions: those that trapped, and those that did not. Waits until
/// they are as they should be, because they are shown now and then only.
fn calls_of(service: &Service, are_so: impl Fn(&[u64; 2]) -> bool) -> [u64; 2] {
    let sum = |sites: &serde_json::Value, name: &str| -> u64 {
        let sites = sites.as_array().expect("sites").iter();
        sites.map(|site| site[name].as_u64().expect("a number")).sum()
    };
    let ask = || {
        let stats = service.stats();
        ["trapped", "rewritten"].map(|name| sum(stats.value("own_calls"), name))
    };
    let end = Instant::now() + Duration::from_secs(2);
    loop {
        let calls = ask();
        if are_so(&calls) || Instant::now() > end {
            return calls;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What a call keeps, signals at any time, threads that call while their instructions are
/// rewritten, jumps out of handlers, cancelled threads, children, and a program that puts back its
/// code: Linux is the oracle. With instructions rewritten, and by traps alone.
#[test]
fn rewritten_calls_are_as_linuxs() {
    let test = "rewritten_calls_are_as_linuxs";
    for (compiler, package) in COMPILERS {
        let Some(program) = compile_named(test, "sites", compiler, package) else { continue };
        let output = Command::new(&program).args(["127.0.0.1", "0"]).output();
        let linux = String::from_utf8(output.expect("it runs on Linux").stdout).expect("text");
        let linux: Vec<&str> = linux.lines().collect();
        assert_eq!(linux.last(), Some(&"done"), "on Linux: {linux:#?}");
        for syscalls in ["auto", "trap"] {
            let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
            let flags = [&WALL[..], &["--syscalls", syscalls]].concat();
            let env = [("IX_POSIX_CALLS", "1")];
            let service = net.start_env(&env, &flags, &[text(&program), "10.88.0.2", "7"]);
            let (status, said) = service.process.wait(Duration::from_secs(60));
            assert!(status.success(), "{compiler}, {syscalls}: {said:#?}");
            let own = said.iter().filter(|line| !line.starts_with("ix: "));
            assert_eq!(own.collect::<Vec<_>>(), linux, "{compiler}, {syscalls}: {said:#?}");
            let counts = said.iter().find(|line| line.contains(" calls trapped and "));
            let counts = counts.unwrap_or_else(|| panic!("no counts: {said:#?}"));
            let numbers: Vec<u64> =
                counts.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
            let is_spared = numbers[1] > 10 * numbers[0];
            assert_eq!(is_spared, syscalls == "auto", "{compiler}: {counts}");
            if syscalls == "trap" {
                assert_eq!(numbers[1], 0, "{compiler}: {counts}");
            }
        }
    }
}

/// A program that forbids executable memory, or filters its calls, is left as it is; one line says
/// so of a filter that refuses what IX needs.
#[test]
fn programs_that_limit_themselves_are_left_as_they_are() {
    let test = "programs_that_limit_themselves_are_left_as_they_are";
    let Some(program) = compile_named(test, "limits", "cc", "gcc libc6-dev") else { return };
    for how in ["mdwe", "filter", "lethal"] {
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let env = [("IX_POSIX_CALLS", "1")];
        let words = [text(&program), "10.88.0.2", "7", how];
        let service = net.start_env(&env, &WALL, &words);
        let (status, said) = service.process.wait(Duration::from_secs(60));
        assert!(status.success(), "{how}: {said:#?}");
        assert!(said.contains(&"done".to_owned()), "{how}: {said:#?}");
        let told = said.iter().filter(|line| line.contains("forbids itself the system call ppoll"));
        assert_eq!(told.count(), usize::from(how == "lethal"), "{how}: {said:#?}");
        let counts = said.iter().find(|line| line.contains(" calls trapped and "));
        let is_left = counts.is_some_and(|line| line.contains(" trapped and 0 did not"));
        assert!(is_left, "{how}: {said:#?}");
    }
}

/// A program that checks its own code finds it changed, unless `--syscalls trap` says to leave it.
#[test]
fn code_that_a_program_checks_is_left_alone_by_trap() {
    let test = "code_that_a_program_checks_is_left_alone_by_trap";
    let Some(program) = compile_named(test, "own_text", "cc", "gcc libc6-dev") else { return };
    for (syscalls, found) in [("auto", "has changed"), ("trap", "is as it was")] {
        let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
        let flags = [&WALL[..], &["--syscalls", syscalls]].concat();
        let service = net.start_env(&[], &flags, &[text(&program), "10.88.0.2", "7"]);
        let (status, said) = service.process.wait(PATIENCE);
        assert!(status.success(), "{syscalls}: {said:#?}");
        assert!(said.contains(&format!("the code {found}")), "{syscalls}: {said:#?}");
    }
}

/// A server of Rust's standard library, statically linked with musl.
#[test]
fn a_static_server_in_rust_is_ixs() {
    let test = "a_static_server_in_rust_is_ixs";
    let target = "x86_64-unknown-linux-musl";
    let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(test);
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let has_target = rustc.args(["--print", "sysroot"]).output().is_ok_and(|output| {
        let sysroot = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Path::new(&sysroot).join("lib/rustlib").join(target).join("lib").exists()
    });
    if !has_target {
        let need = Need::Program("rustup target add x86_64-unknown-linux-musl");
        return skip(test, need, "Rust's standard library is not there for musl");
    }
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "-O", "--target", target, "-o"]).arg(&program);
    let output = rustc.arg(format!("{SOURCES}/static_threads.rs")).output().expect("rustc runs");
    assert!(output.status.success(), "{}", errors(&output));
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let service = net.start_env(&[], &WALL, &[text(&program), &SERVICE.to_string()]);
    service.process.wait_for("ready", PATIENCE);
    let request = "GET / HTTP/1.0\r\nHost: x\r\n\r\n";
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let (_, body) = http(&net.client, &SERVICE.to_string(), request);
                    assert_eq!(body, format!("hello, {CLIENT}"));
                }
            });
        }
    });
    // The C library that comes with Rust is compiled for size: it leaves no room for jumps, so
    // calls go on trapping.
    let [trapped, rewritten] = calls_of(&service, |[trapped, others]| trapped + others > 1000);
    assert!(trapped + rewritten > 1000, "{trapped} trapped, {rewritten} did not");
    let said = service.process.said();
    assert!(said.contains(&"ix: listening on 10.88.0.2:7: IX".to_owned()), "{said:#?}");
    assert!(!said.iter().any(|line| line.starts_with("a connection:")), "{said:#?}");
}

/// Programs that cannot have IX are executed as Linux does it, by a program that has IX, and one
/// line names the first of them: set-uid, of 32 bits, for another machine (which Linux refuses).
#[test]
fn programs_that_cannot_have_ix_are_executed_without_it() {
    let test = "programs_that_cannot_have_ix_are_executed_without_it";
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let [other_user, small, foreign] =
        ["set-uid", "32-bits", "other-machine"].map(|name| folder.join(format!("{test}-{name}")));
    let executable = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("rights");
    };
    for (path, machine) in [(&other_user, None), (&foreign, Some(183))] {
        let mut file = std::fs::read("/bin/echo").expect("a program");
        file[18] = machine.unwrap_or(file[18]);
        let _ = std::fs::remove_file(path);
        std::fs::write(path, file).expect("a file");
        executable(path, 0o755);
    }
    if std::os::unix::fs::chown(&other_user, Some(65534), None).is_err() {
        return skip(test, Need::Root, "only root gives files away");
    }
    executable(&other_user, 0o4755);
    // Of 32 bits, by the system calls of 32 bits alone, so that no library is needed.
    let source = folder.join(format!("{test}.s"));
    let code = ".globl _start\n_start: movl $4, %eax\nmovl $1, %ebx\nmovl $text, %ecx\n\
                movl $8, %edx\nint $0x80\nmovl $1, %eax\nxorl %ebx, %ebx\nint $0x80\n\
                .data\ntext: .ascii \"32 bits\\n\"\n";
    std::fs::write(&source, code).expect("a source");
    let mut cc = Command::new("cc");
    cc.args(["-m32", "-nostdlib", "-static", "-o"]).arg(&small).arg(&source);
    let output = cc.output().expect("cc runs");
    assert!(output.status.success(), "{}", errors(&output));
    let runs_small = Command::new(&small).output().is_ok_and(|output| output.status.success());
    if !runs_small {
        skip_part(test, Need::Kernel("ia32_emulation=1"), "no programs of 32 bits");
    }
    let line = format!(
        "{} set-uid; {}; {} never; echo status $?; echo over",
        text(&other_user),
        if runs_small { text(&small) } else { "echo 32 bits" },
        text(&foreign)
    );
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let service = net.start_env(&[], &WALL, &["/bin/sh", "-c", &line]);
    let (_, said) = service.process.wait(PATIENCE);
    // ENOEXEC: the shell takes it for a script then.
    for expected in ["set-uid", "32 bits", "over"] {
        assert!(said.iter().any(|line| line == expected), "no `{expected}`: {said:#?}");
    }
    assert!(!said.iter().any(|line| line == "never" || line == "status 0"), "{said:#?}");
    let leaves = said.iter().filter(|line| line.contains("is executed outside of IX"));
    assert_eq!(leaves.count(), 1, "{said:#?}");
}

/// A shell executes a static program, which has IX as well.
#[test]
fn a_static_program_that_a_shell_executes_is_ixs() {
    let test = "a_static_program_that_a_shell_executes_is_ixs";
    let Some(program) = compile(test, "cc", "gcc libc6-dev") else { return };
    let Some(net) = TestNet::new(test, Nic::Tap, 1) else { return };
    let line = format!("exec {} 10.88.0.2 7", text(&program));
    let service = net.start_env(&[], &WALL, &["/bin/sh", "-c", &line]);
    service.process.wait_for("ready", PATIENCE);
    net.client.run(|| {
        let mut stream = connect();
        stream.write_all(b"once").expect("sent");
        let mut room = [0; 4];
        stream.read_exact(&mut room).expect("an answer");
        assert_eq!(&room, b"once");
    });
    let said = service.process.said();
    assert!(said.contains(&"ix: listening on 10.88.0.2:7: IX".to_owned()), "{said:#?}");
}

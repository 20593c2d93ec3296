//! The dataplane in a process of its own: what its program, and others, can do to it, and what is
//! left when one of the processes is killed.
use crate::support::process::{Process, cpu_time, is_alive, open_files, resident_bytes, signal};
use crate::support::traffic::echo;
use crate::support::{self, Nic, PATIENCE, SERVICE, Service, TestNet, eventually};
use ix_skip::{Need, skip};
use ix_sys::command::{Step, before_exec};
use ix_sys::user_namespace::UserNamespace;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The attacker says so when it has attacked.
const ATTACKED: &str = "requests, calls, holes, rings, messages, forks: ";
const DOMAIN: [&str; 2] = ["--domain", "process"];
/// A user without rights.
const USER: &str = "65534";

fn echoes(net: &TestNet) {
    net.client.run(|| echo(&mut support::connect(), 10, 64));
}

/// What a shell of this user prints, both ways.
fn as_user(user: &str, script: &str) -> String {
    let words = ["--reuid", user, "--clear-groups", "sh", "-c", script];
    let output = Command::new("setpriv").args(words).output().expect("setpriv");
    let both = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Number and status of each thread of a process.
fn statuses_of_threads(process: i32) -> Vec<(String, String)> {
    let folder = format!("/proc/{process}/task");
    let threads: Vec<(String, String)> = std::fs::read_dir(folder)
        .expect("threads")
        .map(|entry| {
            let entry = entry.expect("a thread");
            let status = std::fs::read_to_string(entry.path().join("status")).expect("status");
            (entry.file_name().to_string_lossy().into_owned(), status)
        })
        .collect();
    assert!(threads.len() >= 2, "{threads:?}");
    threads
}

/// The sockets of a process on which whole messages go to the broker.
fn sockets_to_the_broker(process: i32) -> Vec<OwnedFd> {
    let handle = ix_sys::process::Process::open(process as u32).expect("the process");
    let handle = handle.as_fd().as_raw_fd();
    let fds = std::fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors");
    let numbers = fds.filter_map(|fd| fd.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let copies = numbers.filter_map(|number| {
        // SAFETY: takes numbers.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle, number, 0) };
        // SAFETY: a new descriptor, which nothing else owns.
        (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy as i32) })
    });
    let kind = |fd: &OwnedFd| {
        ix_sys::socket::get_option::<i32>(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TYPE).ok()
    };
    copies.filter(|fd| kind(fd) == Some(libc::SOCK_SEQPACKET)).collect()
}

/// A program that shuts down what it has to the broker for writing seems to send nothing without
/// end. The broker does not go round for that, and serves operators and devices as before.
#[test]
fn a_program_that_shuts_down_its_sockets_keeps_no_broker_busy() {
    let name = "a_program_that_shuts_down_its_sockets_keeps_no_broker_busy";
    for user in [None, Some(["--user", USER])] {
        let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
        let flags = [&DOMAIN[..], user.as_ref().map_or(&[], |user| &user[..])].concat();
        let service = net.serve_with(&flags, &["64"]);
        echoes(&net);
        let sockets = sockets_to_the_broker(service.program());
        assert!(!sockets.is_empty(), "it has a channel");
        for socket in &sockets {
            // SAFETY: a number.
            assert_eq!(unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_WR) }, 0);
        }
        drop(sockets);
        let broker = service.process.pid();
        let before = cpu_time(broker);
        std::thread::sleep(Duration::from_secs(1));
        let used = cpu_time(broker) - before;
        assert!(used < Duration::from_millis(300), "{used:?} of a second");
        echoes(&net);
        service.client().ask("{\"do\":\"status\"}").expect("operators are answered");
        service.finish(PATIENCE);
    }
}

/// Neither the program's user nor the dataplane's own can read, trace or open the dataplane; the
/// program's cannot even signal it.
#[test]
fn others_can_neither_read_nor_signal_a_dataplane() {
    let name = "others_can_neither_read_nor_signal_a_dataplane";
    if !Path::new("/usr/bin/setpriv").exists() {
        return skip(name, Need::Program("apt install util-linux"), "no setpriv");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let flags = [&DOMAIN[..], &["--user", USER]].concat();
    let service = net.serve_with(&flags, &["64"]);
    echoes(&net);
    let dataplane = service.dataplane();
    let status = std::fs::read_to_string(format!("/proc/{dataplane}/status")).expect("status");
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a user");
    let own = uid.split_whitespace().next().expect("a number");
    assert!(![USER, "0"].contains(&own), "a user of its own: {own}");
    for (thread, status) in statuses_of_threads(dataplane) {
        for line in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
            assert!(status.lines().any(|other| other == line), "thread {thread}: {status}");
        }
    }
    for user in [USER, own] {
        for file in ["mem", "maps", "environ", "fd/0", "syscall", "auxv"] {
            let said = as_user(user, &format!("exec 3</proc/{dataplane}/{file} && echo opened"));
            assert!(!said.contains("opened"), "user {user} has opened {file}: {said}");
        }
        let pieces = as_user(user, &format!("ls /proc/{dataplane}/fd && echo listed"));
        assert!(!pieces.contains("listed"), "{pieces}");
    }
    let said = as_user(USER, &format!("kill -0 {dataplane} && echo signalled"));
    assert!(!said.contains("signalled"), "{said}");
    echoes(&net);
    service.finish(PATIENCE);
}

/// From its first instruction on a dataplane is root's to read and to trace, and not its own
/// user's: Linux gives the files of a process that can be traced to the user whom it runs as.
#[test]
fn a_dataplane_that_starts_is_never_its_own_users_to_read() {
    const STARTS: usize = 5;
    let name = "a_dataplane_that_starts_is_never_its_own_users_to_read";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "a dataplane has no user of its own");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let is_over = AtomicBool::new(false);
    let (seen, readable) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch_owners(&is_over));
        for _ in 0..STARTS {
            net.serve_with(&DOMAIN, &["64"]).finish(PATIENCE);
        }
        is_over.store(true, Ordering::Relaxed);
        watch.join().expect("no panic")
    });
    assert!(seen >= STARTS, "{seen} looks");
    assert_eq!(readable, Vec::<String>::new());
}

/// Looks at young processes of users that are given to dataplanes, until it is over. Returns how
/// often one was looked at, and each time that its memory was not root's.
fn watch_owners(is_over: &AtomicBool) -> (usize, Vec<String>) {
    const USERS: std::ops::RangeInclusive<u32> = 61_184..=65_519;
    const YOUNG: Duration = Duration::from_secs(1);
    let newest = || -> i32 {
        let text = std::fs::read_to_string("/proc/loadavg").expect("there");
        text.split_whitespace().nth(4).and_then(|word| word.parse().ok()).expect("a number")
    };
    let user_of = |process: i32| -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let (mut young, mut last) = (Vec::new(), newest());
    let (mut seen, mut readable) = (0, Vec::new());
    while !is_over.load(Ordering::Relaxed) {
        let now = newest();
        young.extend((last + 1..=now).map(|process| (process, Instant::now())));
        last = now;
        young.retain(|(_, since)| since.elapsed() < YOUNG);
        for (process, since) in &young {
            let Some(user) = user_of(*process).filter(|user| USERS.contains(user)) else {
                continue;
            };
            let Ok(memory) = std::fs::metadata(format!("/proc/{process}/mem")) else { continue };
            seen += 1;
            if memory.uid() != 0 {
                readable.push(format!("{process} of {user} after {:?}", since.elapsed()));
            }
        }
    }
    (seen, readable)
}

/// What the program shares is what it may use, and no more: it can write calls and transmit memory,
/// and it can read the rest. None of the dataplane's own memory is there.
#[test]
fn a_program_has_only_what_is_shared() {
    let Some(net) = TestNet::new("a_program_has_only_what_is_shared", Nic::Tap, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    echoes(&net);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", service.program())).expect("maps");
    let shared: Vec<(&str, &str)> = maps
        .lines()
        .filter_map(|line| {
            let name = line.split("/memfd:").nth(1)?.split(' ').next()?;
            Some((name, line.split(' ').nth(1)?))
        })
        .filter(|(name, _)| *name != "ix-image")
        .collect();
    let expected = [
        ("ix-receive", "r--s"),
        ("ix-transmit", "rw-s"),
        ("ix-calls", "rw-s"),
        ("ix-events", "r--s"),
    ];
    assert_eq!(shared, expected, "{maps}");
    service.finish(PATIENCE);
}

/// What the caller of `ix run` has left open is for the program, as on Linux, and for nobody else:
/// not for the dataplane, and not for the warden, which outlives the program for a moment.
#[test]
fn only_the_program_has_its_callers_descriptors() {
    let Some(net) = TestNet::new("only_the_program_has_its_callers_descriptors", Nic::Tap, 1)
    else {
        return;
    };
    // Inherited by all that this process starts meanwhile, which harms none of it.
    let file = std::fs::File::open("/etc/passwd").expect("there");
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) }, 0);
    let service = net.serve_with(&DOMAIN, &["64"]);
    drop(file);
    echoes(&net);
    let has = |process: i32| {
        let fds = std::fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors");
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        links.any(|link| link == Path::new("/etc/passwd"))
    };
    assert!(has(service.program()), "as on Linux");
    assert!(!has(service.dataplane()));
    let wardens = service.children("exe");
    assert!(!wardens.is_empty(), "there is one");
    assert!(!wardens.into_iter().any(has));
}

/// A program that uses all that it has of its dataplane to attack it: memory that both map, bells,
/// and the image's end of the channel to the broker. Its broker and its dataplane go on, and
/// another dataplane on the same hardware thread serves its client.
#[test]
fn a_hostile_program_stops_neither_its_dataplane_nor_another_one() {
    /// It ends by itself if the test has failed.
    const AT_MOST_S: &str = "120";
    const SEED: &str = "1";
    const AT_LEAST: Duration = Duration::from_secs(4);
    /// Questions and packets that are answered meanwhile.
    const ANSWERED: u64 = 20;
    let name = "a_hostile_program_stops_neither_its_dataplane_nor_another_one";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let honest = net.serve_second(&["64"]);
    let mut stream = net.client.run(|| support::connect_to(support::SECOND));
    let attacker = support::build_program("ix-attacker");
    let flags = [&DOMAIN[..], &["--user", USER, "--posix", "off"]].concat();
    let enough = std::env::temp_dir().join(format!("ix-enough-{}", std::process::id()));
    let file = enough.to_str().expect("text");
    let program = [attacker.to_str().expect("text"), "shared", AT_MOST_S, SEED, file];
    let service = net.start_env(&[], &flags, &program);
    service.process.wait_for("all at once", PATIENCE);
    let (mut answered, since) = (0, Instant::now());
    while since.elapsed() < AT_LEAST || answered < ANSWERED {
        echo(&mut stream, answered, 64);
        service.stats();
        answered += 1;
    }
    std::fs::write(&enough, "").expect("a file");
    let (status, lines) = service.process.wait(PATIENCE);
    assert!(status.success(), "{lines:#?}");
    let harm = ["succeeded", "ended", "fault", "panicked"];
    let harmed = lines.iter().find(|line| harm.iter().any(|word| line.contains(word)));
    assert_eq!(harmed, None, "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with(ATTACKED)), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("\trefused\t")).count(), 22, "{lines:#?}");
    echo(&mut stream, answered, 64);
    drop(stream);
    honest.finish(PATIENCE);
    std::fs::remove_file(&enough).expect("removed");
}

/// Asks its broker for a dataplane without end, as the descendant of many processes. They have one
/// memory: to copy it from process to process takes Linux longer the more there are, 20 s in all.
const DESCENDS: &str = "
import ctypes, os, socket, stat
channels = []
for n in map(int, os.listdir('/proc/self/fd')):
    try:
        if stat.S_ISSOCK(os.fstat(n).st_mode):
            s = socket.socket(fileno=n)
            if s.family == socket.AF_UNIX and s.type == socket.SOCK_SEQPACKET:
                channels.append(s)
    except OSError:
        pass
vfork = ctypes.PyDLL(None).vfork
for _ in range(600): vfork()
print('asks', len(channels), flush=True)
while True:
    for s in channels: s.send(bytes([0, 1, 1]))
";

/// A broker looks at all ancestors of a process that asks. One that has many, and asks without end,
/// keeps no operator waiting.
#[test]
fn a_process_with_many_ancestors_keeps_no_operator_waiting() {
    /// Of a few messages in turn with others. It was 0.4 s.
    const MOST: Duration = Duration::from_millis(150);
    let name = "a_process_with_many_ancestors_keeps_no_operator_waiting";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let flags = [&DOMAIN[..], &["--posix", "off"]].concat();
    let service = net.start_env(&[], &flags, &["/usr/bin/python3", "-c", DESCENDS]);
    let asks = service.process.wait_for("asks ", PATIENCE);
    assert_ne!(asks, "asks 0", "it has a channel");
    std::thread::sleep(Duration::from_millis(500));
    let ask = |_| {
        let since = Instant::now();
        service.client().ask(r#"{"do":"status"}"#).expect("an answer");
        since.elapsed()
    };
    let mut all: Vec<Duration> = (0..9).map(ask).collect();
    service.process.signal(libc::SIGKILL);
    all.sort_unstable();
    // The machine may be busy with others.
    assert!(all[all.len() / 2] < MOST, "{all:?}");
}

/// A program that searches for free ports where there are none, thousands of times in a batch, does
/// not stop its elastic thread, which others may share and operators command.
#[test]
fn searches_for_ports_in_vain_do_not_stop_an_elastic_thread() {
    /// Far above the time of one search, and far below that of a batch of whole ones.
    const LONGEST_MS: u64 = 300;
    let name = "searches_for_ports_in_vain_do_not_stop_an_elastic_thread";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let attacker = support::build_program("ix-attacker");
    let flags = [&DOMAIN[..], &["--posix", "off"]].concat();
    let program = [attacker.to_str().expect("text"), "searches", "10.88.0.77"];
    let (status, said) = net.start_env(&[], &flags, &program).process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    for what in ["connections in vain: ", "sockets in vain: "] {
        let line = said.iter().find_map(|line| line.strip_prefix(what)).expect(what);
        let ms: u64 = line.split(' ').next().expect("a word").parse().expect("a number");
        assert!(ms < LONGEST_MS, "{what}{line}");
    }
}

/// A program whose sockets listen to many sources of a group, and then to thousands of groups that
/// begin and end without a pause, does not stop its elastic thread. What operators command is done
/// and answered, the client of another dataplane is served, and nothing grows without end.
#[test]
fn groups_without_a_pause_stop_neither_an_elastic_thread_nor_its_commands() {
    /// Far below what it took to put the sources together for each call: minutes.
    const LONGEST_MS: u64 = 2_000;
    const COMMANDS: u64 = 20;
    /// One that is not answered is given up after 1.1 s.
    const ANSWER: Duration = Duration::from_millis(900);
    const GROWN_KB: u64 = 32 << 10;
    let name = "groups_without_a_pause_stop_neither_an_elastic_thread_nor_its_commands";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    let attacker = support::build_program("ix-attacker");
    let flags = [&DOMAIN[..], &["--posix", "off", "--user", USER]].concat();
    let service = net.start_env(&[], &flags, &[attacker.to_str().expect("text"), "groups"]);
    let line = service.process.wait_for("sources of a group: ", PATIENCE);
    let took = line.split(' ').nth(4).expect("a word").parse::<u64>().expect("a number");
    assert!(took < LONGEST_MS, "{line}");
    service.process.wait_for("without a pause", PATIENCE);
    std::thread::sleep(Duration::from_secs(1));
    let dataplane = service.dataplane();
    let before = resident_kb(dataplane);
    for nth in 0..COMMANDS {
        let since = Instant::now();
        let refused = service.client().thread("park", 0).expect_err("the last thread");
        let took = since.elapsed();
        assert!(refused.contains("last") && took < ANSWER, "{nth}: {refused}, after {took:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    let now = resident_kb(dataplane);
    assert!(now < before + GROWN_KB, "{before} KB, {now} KB now");
    let broker = cpu_time(service.process.pid());
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time(service.process.pid()) - broker;
    assert!(used < Duration::from_millis(500), "its broker used {used:?} of a second");
    // It never waits, so it hears no other signal.
    service.process.signal(libc::SIGKILL);
}

/// What a process has in memory.
fn resident_kb(process: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.split_ascii_whitespace().next().expect("a word").parse().expect("a number")
}

/// Starts a program that speaks with its broker itself.
fn start_part(net: &TestNet, what: &str) -> Service {
    let attacker = support::build_program("ix-attacker");
    let flags = [&DOMAIN[..], &["--posix", "off"]].concat();
    net.start_env(&[], &flags, &[attacker.to_str().expect("text"), "part", what])
}

/// A program says that it cannot map its dataplane's memory, and does not end: its run ends at
/// once.
#[test]
fn a_program_that_fails_and_lives_on_does_not_hold_up_its_broker() {
    let name = "a_program_that_fails_and_lives_on_does_not_hold_up_its_broker";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = start_part(&net, "farewell");
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(125), "{said:#?}");
    let why = "farewell, says the attacker";
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
    assert_no_line_is_the_programs(&said);
}

/// What a program says is a part of a line, and moves no cursor.
fn assert_no_line_is_the_programs(said: &[String]) {
    let forged = |line: &String| line.starts_with("ix: all is well") || line.contains('\u{1b}');
    assert!(!said.iter().any(forged), "{said:#?}");
}

/// A process speaks for itself only, and of what it was told last, and ends only a dataplane that
/// it does not share.
#[test]
fn a_dataplane_is_not_ended_by_what_one_process_says() {
    let name = "a_dataplane_is_not_ended_by_what_one_process_says";
    for what in ["childs-farewell", "farewell-beside", "stale-farewell"] {
        let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
        let service = start_part(&net, what);
        service.process.wait_for("farewell", PATIENCE);
        let dataplane = service.dataplane();
        for _ in 0..3 {
            service.client().ask(r#"{"do":"vnic"}"#).expect("an answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(is_alive(dataplane), "{what}");
        let is_it = |line: &String| line.contains("gets no part of the dataplane: farewell");
        let is_said = service.process.said().iter().any(is_it);
        assert_eq!(is_said, what == "farewell-beside", "{:#?}", service.process.said());
        assert_no_line_is_the_programs(&service.process.said());
        service.process.terminate();
    }
}

/// A program that asks for a dataplane and closes all its descriptors has left IX. That is said,
/// and not that memory could not be shared; the run ends as the program does.
#[test]
fn a_program_that_hangs_up_while_its_dataplane_starts_ends_as_it_likes() {
    let name = "a_program_that_hangs_up_while_its_dataplane_starts_ends_as_it_likes";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = start_part(&net, "hang-up");
    service.process.wait_for("hung up", PATIENCE);
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(7), "{said:#?}");
    let has = |text: &str| said.iter().any(|line| line.contains(text));
    assert!(has("outside of IX, or closed all its descriptors"), "{said:#?}");
    assert!(!has("cannot share memory"), "{said:#?}");
}

/// A program that lets go of its dataplane and asks for another one without end gets four a second
/// in the long run, and its broker serves others.
#[test]
fn a_program_that_asks_for_another_dataplane_without_end_gets_four_a_second() {
    const ASKED: usize = 60;
    const A_SECOND: f64 = 4.0;
    /// So much of its time a program may use ahead.
    const AHEAD: Duration = Duration::from_secs(5);
    const STARTED: &str = "ix: packet memory:";
    let name = "a_program_that_asks_for_another_dataplane_without_end_gets_four_a_second";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    // It may ask before its first line is read here.
    let since = Instant::now();
    let service = start_part(&net, "endless");
    service.process.wait_for("begins", PATIENCE);
    let started = || {
        let said = service.process.said();
        said.iter().filter(|line| line.starts_with(STARTED)).count()
    };
    let before = started();
    let mut asked = 0;
    while started() < before + ASKED {
        assert!(since.elapsed() < 3 * PATIENCE, "{:#?}", service.process.said());
        service.client().ask(r#"{"do":"vnic"}"#).expect("an answer");
        asked += 1;
        std::thread::sleep(Duration::from_millis(50));
    }
    let least = Duration::from_secs_f64((ASKED - before) as f64 / A_SECOND) - AHEAD;
    assert!(since.elapsed() >= least, "{:?}, at least {least:?}", since.elapsed());
    assert!(asked > 20, "operators were answered {asked} times");
    service.process.terminate();
}

/// Where a mount hides a procfs Linux would let root of a namespace mount another one, which takes
/// writes. A program that runs as root cannot; outside of IX it can.
#[test]
fn a_root_program_gets_no_procfs_where_one_is_hidden() {
    const MOUNTS: &str = "unshare -Urmpf mount -t proc proc /tmp && echo mounted || echo refused";
    let name = "a_root_program_gets_no_procfs_where_one_is_hidden";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "only root makes mount namespaces");
    }
    let folder = std::env::temp_dir().join(format!("ix-hidden-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("below/proc")).expect("a folder");
    let at = folder.display();
    // A procfs with something on it is none that is shown in full; the hidden one is.
    let hides = format!(
        "mount -t tmpfs x /proc/fs && mount -t proc proc {at}/below/proc && \
         mount -t tmpfs x {at}/below && exec \"$@\""
    );
    let link = format!("memif:{at}/link");
    let ix = [env!("CARGO_BIN_EXE_ix"), "run", "--domain", "process", "--posix", "off"];
    let ix = [&ix[..], &["--addr", "10.79.0.2/24", "--nic", &link, "--"]].concat();
    let program = ["/bin/sh", "-c", MOUNTS];
    let said = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &hides, "sh"]).args(words);
        let output = command.output().expect("unshare");
        let both = [&output.stdout[..], &output.stderr[..]].concat();
        String::from_utf8_lossy(&both).into_owned()
    };
    let outside = said(&program);
    let inside = said(&[&ix[..], &program].concat());
    std::fs::remove_dir_all(folder).expect("removed");
    if !outside.contains("mounted") {
        return skip(name, Need::Kernel("user namespaces"), outside);
    }
    assert!(inside.contains("refused") && !inside.contains("mounted"), "{inside}");
}

/// A program ends while somebody has stopped its dataplane: that goes on, closes the connections as
/// Linux would, and ends with the run. One that has died is named.
#[test]
fn a_run_ends_with_its_program_whatever_its_dataplane_does() {
    let name = "a_run_ends_with_its_program_whatever_its_dataplane_does";
    for (what, is_told) in [(libc::SIGSTOP, true), (libc::SIGKILL, false)] {
        let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
        let service = net.serve_with(&DOMAIN, &["64"]);
        let mut stream = net.connect();
        net.client.run(|| echo(&mut stream, 1, 64));
        let (program, dataplane) = (service.program(), service.dataplane());
        // It hears that its reply has arrived, and gives back what it has received: a connection
        // with received data ends with RST.
        std::thread::sleep(Duration::from_millis(300));
        // The program asks for no other one.
        signal(program, libc::SIGSTOP);
        signal(dataplane, what);
        signal(program, libc::SIGKILL);
        let (status, said) = service.process.wait(PATIENCE);
        assert_eq!(status.code(), Some(128 + libc::SIGKILL), "{said:#?}");
        assert!(!is_alive(dataplane) && !is_alive(program));
        let died = "ix: the dataplane ended (killed by SIGKILL): its connections are lost";
        assert_eq!(said.iter().any(|line| line == died), !is_told, "{said:#?}");
        if is_told {
            assert_eq!(stream.read(&mut [0; 64]).expect("FIN"), 0);
        }
    }
}

/// What processes have left is gone that let go of their dataplane in every order: they live on,
/// end, execute another program, or end before they are told what they share. So is what was
/// prepared for more of them, while another process keeps the elastic thread from sleep.
#[test]
fn processes_that_part_in_any_order_use_up_nothing() {
    const CHILDREN: usize = 1000;
    // The allocator's, once; what each of them shares has more than 100 KB.
    const ROOM_BYTES: u64 = 4 << 20;
    let name = "processes_that_part_in_any_order_use_up_nothing";
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = start_part(&net, &CHILDREN.to_string());
    service.process.wait_for("begins", PATIENCE);
    let both = [service.process.pid(), service.dataplane()];
    let (files, bytes) = (both.map(open_files), both.map(resident_bytes));
    service.process.wait_for("parted", 3 * PATIENCE);
    eventually("only the program's own is there", || sharing(&service) == 1);
    // What is prepared for the next ones is given back after a while.
    let is_gone = || both.map(open_files).iter().zip(files).all(|(now, before)| *now <= before);
    eventually("no descriptor is left", is_gone);
    for (now, before) in both.map(resident_bytes).iter().zip(bytes) {
        assert!(*now < before + ROOM_BYTES, "{now} bytes, {before} before");
    }
    // It never waits, so it hears no other signal.
    service.process.signal(libc::SIGKILL);
}

/// How many processes share the dataplane.
fn sharing(service: &Service) -> usize {
    let status = service.client().ask(r#"{"do":"status"}"#).expect("status");
    status["sharing"]["processes"].as_array().map_or(0, Vec::len)
}

/// What a program that is root asks of Linux, each as a line with what came of it.
const ROOT: &str = "
import os, socket
def tries(name, action):
    try: action(); print(name, 'done', flush=True)
    except Exception as e: print(name, 'refused', flush=True)
def bind(family, at):
    def action(): socket.socket(family).bind(at)
    return action
tries('low', bind(socket.AF_INET, ('127.0.0.1', 80)))
tries('low6', bind(socket.AF_INET6, ('::', 83)))
tries('both', bind(socket.AF_INET, ('0.0.0.0', 443)))
tries('taken', bind(socket.AF_INET, ('10.255.0.1', 81)))
tries('packets', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))
tries('groups', lambda: os.initgroups('nobody', 65534))
tries('dataplane', lambda: os.setresuid(61184, 61184, 61184))
tries('last', lambda: os.setresuid(65520, 65520, 65520))
tries('user', lambda: (os.setgid(65534), os.setuid(65534)))
tries('worker', bind(socket.AF_INET, ('127.0.0.1', 82)))
print('over', flush=True)
";

/// Root without `--user` is root of a namespace that lacks the dataplanes' users. Its broker binds
/// low ports of Linux for it, but not for a process that could not bind them as the machine's root.
#[test]
fn a_root_program_is_root_of_a_namespace_without_the_dataplanes_user() {
    let name = "a_root_program_is_root_of_a_namespace_without_the_dataplanes_user";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let python = ["/usr/bin/python3", "-c", ROOT];
    let service = net.start_env(&[], &DOMAIN, &python);
    service.process.wait_for("over", PATIENCE);
    let (_, lines) = service.process.wait(PATIENCE);
    for line in [
        "low done",
        "low6 done",
        "both done",
        "taken refused",
        "packets refused",
        "groups done",
        "dataplane refused",
        "last refused",
        "user done",
        "worker refused",
        "ix: the program runs as root of a user namespace, without root's rights over the system, \
         its network and its dataplane (--user root gives it those)",
    ] {
        assert!(lines.iter().any(|other| other == line), "{line}: {lines:#?}");
    }
}

/// A process of a run that is killed takes the others along, and the port is served again.
#[test]
fn after_any_process_was_killed_the_port_is_served_again() {
    let name = "after_any_process_was_killed_the_port_is_served_again";
    let Some(net) = TestNet::new(name, Nic::Afxdp, 1) else { return };
    for round in 0..6 {
        let service = net.serve_with(&DOMAIN, &["64"]);
        let mut stream = net.connect();
        net.client.run(|| echo(&mut stream, 1, 64));
        let dataplane = service.dataplane();
        let (broker, program) = (service.process.pid(), service.program());
        match round % 3 {
            0 => signal(program, libc::SIGKILL),
            1 => signal(dataplane, libc::SIGKILL),
            _ => signal(broker, libc::SIGKILL),
        }
        if round % 3 == 1 {
            // This program goes on with another one.
            service.process.wait_for("ix: the dataplane ended (killed by SIGKILL)", PATIENCE);
            eventually("it serves again", || {
                net.client.run(|| TcpStream::connect(SERVICE).is_ok())
            });
            service.process.terminate();
        } else {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let ended = matches!(stream.read(&mut [0; 64]), Ok(0) | Err(_));
            assert!(ended, "round {round}: the peer is told");
            service.process.wait(PATIENCE);
        }
        eventually("no process is left", || {
            [broker, program, dataplane].iter().all(|p| !is_alive(*p))
        });
    }
}

/// A broker may be killed at any time of its start: its program, which may be about to be traced,
/// does not stay.
#[test]
fn a_broker_that_is_killed_while_it_starts_leaves_no_process() {
    const ROUNDS: u32 = 120;
    /// A start takes about as many of these on an idle machine.
    const STEP: Duration = Duration::from_micros(500);
    let mark = format!("300.{}", std::process::id());
    let folder = std::env::temp_dir().join(format!("ix-starts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    for round in 0..ROUNDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
        command.arg("run").args(DOMAIN).args(["--addr", "10.77.0.2/24", "--nic"]);
        command.arg(format!("memif:{}", folder.join("link").display()));
        command.arg("--control").arg(folder.join("control.sock")).args(["--", "sleep", &mark]);
        let mut broker = command.stderr(Stdio::null()).spawn().expect("ix starts");
        std::thread::sleep(STEP * round);
        broker.kill().expect("it lives");
        broker.wait().expect("it has ended");
    }
    eventually("no program is left", || {
        let processes = std::fs::read_dir("/proc").expect("processes").flatten();
        let says = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("cmdline"));
        let mut lines = processes.filter_map(|entry| says(entry).ok());
        !lines.any(|line| line.windows(mark.len()).any(|part| part == mark.as_bytes()))
    });
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Root of a namespace without other users: the dataplane cannot have its own, and a line says so.
#[test]
fn without_other_users_the_dataplane_runs_as_its_program() {
    let echo = support::build_echo();
    let folder = std::env::temp_dir().join(format!("ix-unshared-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", env!("CARGO_BIN_EXE_ix"), "run"]);
    command.args(DOMAIN).args(["--addr", "10.77.0.2/24", "--nic"]);
    command.arg(format!("memif:{}", folder.join("link").display()));
    command.arg("--control").arg(folder.join("control.sock"));
    command.arg("--").arg(echo).arg("64");
    let process = Process::start(command);
    process.wait_for("ix: the dataplane has no user of its own", PATIENCE);
    process.wait_for("ready", PATIENCE);
    process.terminate();
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Root of a namespace that has all users, but in which no other namespace can be made.
#[test]
fn without_a_namespace_for_root_nothing_runs_and_a_line_says_why() {
    let name = "without_a_namespace_for_root_nothing_runs_and_a_line_says_why";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "cannot map users");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "no user is left out")]
    let all = UserNamespace::without(&(1..=0)).expect("a namespace");
    let folder = std::env::temp_dir().join(format!("ix-unnamed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_ix"), "run"]);
    command.args(["--addr", "10.77.0.2/24", "--nic"]);
    command.arg(format!("memif:{}", folder.join("link").display()));
    command.args(["--", "/bin/echo", "it runs"]);
    before_exec(&mut command, vec![Step::BecomeRootOf(Arc::new(all))]);
    let output = command.output().expect("sh");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{text}");
    assert_eq!(
        text.trim_end(),
        "ix: cannot keep a program that runs as root from its dataplane: cannot make a user \
         namespace: No space left on device (os error 28); sysctl user.max_user_namespaces=1000, \
         name another user with --user, or say --user root, which gives up the wall against the \
         program itself"
    );
    std::fs::remove_dir_all(folder).expect("removed");
}

/// A user that cannot be the program's is refused, before anything runs.
#[test]
fn users_that_a_program_cannot_have_are_refused_in_a_line() {
    let name = "users_that_a_program_cannot_have_are_refused_in_a_line";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "cannot become another user");
    }
    let ix = [env!("CARGO_BIN_EXE_ix"), "run", "--addr", "10.77.0.2/24", "--nic", "memif:/x/y"];
    let as_nobody = ["setpriv", "--reuid", USER, "--clear-groups"];
    for (before, user, line) in [
        (
            &[][..],
            "61184",
            "ix: cannot run the program as user 61184: users 61184 to 65520 are given out, each to \
             one run; name another user, or --user own",
        ),
        (
            &as_nobody[..],
            "own",
            "ix: cannot give the program a user of its own: this takes root, in a user namespace \
             that has users 61184 to 65520; start `ix run` as root",
        ),
        (
            &as_nobody[..],
            "33",
            "ix: cannot run the program as user 33: only root can run a program as another user; \
             leave --user out, or start `ix run` as root",
        ),
    ] {
        let words = [before, &ix, &["--user", user, "--", "/bin/true"]].concat();
        let output = Command::new(words[0]).args(&words[1..]).output().expect("it starts");
        assert!(!output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr).trim_end(), line);
    }
}

/// What a tenant's program tries on the processes that it is given.
const TENANT: &str = "
import os, sys
def tries(name, action):
    try: action(); print('succeeded:', name, flush=True)
    except OSError as e: print('refused:', name, flush=True)
for pid in map(int, sys.argv[1:]):
    for name in ['mem', 'maps', 'environ', 'fd/0']:
        tries(name, lambda: open('/proc/%d/%s' % (pid, name)).read(1))
    tries('kill', lambda: os.kill(pid, 9))
    tries('stop', lambda: os.kill(pid, 19))
    tries('renice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
    tries('pin', lambda: os.sched_setaffinity(pid, {0}))
    tries('idle', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
print('over', flush=True)
";

/// Each of two tenants has a user of its own, and so has each one's dataplane.
#[test]
fn a_tenant_reaches_neither_another_ones_program_nor_its_dataplane() {
    let name = "a_tenant_reaches_neither_another_ones_program_nor_its_dataplane";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let own = [&DOMAIN[..], &["--user", "own"]].concat();
    let service = net.serve_with(&own, &["64"]);
    echoes(&net);
    let pids = [service.program(), service.dataplane()].map(|pid| pid.to_string());
    let folder = std::env::temp_dir().join(format!("ix-tenant-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("run").args(&own).args(["--addr", "10.79.0.2/24", "--nic"]);
    command.arg(format!("memif:{}", folder.join("link").display()));
    command.args(["--", "/usr/bin/python3", "-c", TENANT]).args(&pids);
    let output = command.output().expect("ix run");
    let said = String::from_utf8_lossy(&output.stdout);
    let refused = said.lines().filter(|line| line.starts_with("refused: ")).count();
    assert!(said.contains("over") && !said.contains("succeeded"), "{said}");
    assert_eq!(refused, 2 * 9, "{said}");
    echoes(&net);
    service.finish(PATIENCE);
    std::fs::remove_dir_all(folder).expect("removed");
}

/// What a program that is root of a namespace tries on processes of its own and of others: signals,
/// also as the owner of a descriptor, which Linux lets root's number send to everybody.
const NEIGHBOUR: &str = "
import fcntl, os, signal, socket, sys
def tries(name, action):
    try: action(); print(name, 'done', flush=True)
    except OSError as e: print(name, 'refused', flush=True)
def by_owner(pid):
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, pid)
    fcntl.fcntl(ours, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    theirs.send(b'x')
for end in [lambda pid: os.kill(pid, 9), by_owner]:
    child = os.fork()
    if child == 0: signal.pause()
    end(child)
    print('own child', os.waitpid(child, 0)[1], flush=True)
for pid in map(int, sys.argv[1:]):
    tries('kill', lambda: os.kill(pid, 9))
    tries('thread', lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9))
    tries('owner', lambda: by_owner(pid))
print('over', flush=True)
";

/// Two programs of root are the same user to Linux, and each is root of a namespace of its own.
#[test]
fn a_root_program_ends_no_process_of_others() {
    let name = "a_root_program_ends_no_process_of_others";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    if ix_sys::landlock::SignalScope::new().is_err() {
        return skip(name, Need::Kernel("Landlock with signals (Linux 6.12)"), "no Landlock");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let service = net.serve_with(&DOMAIN, &["64"]);
    let others = [service.program(), service.dataplane(), service.process.pid()];
    let others = others.map(|pid| pid.to_string());
    let folder = std::env::temp_dir().join(format!("ix-neighbour-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix"));
    command.arg("run").args(DOMAIN).args(["--addr", "10.79.0.2/24", "--nic"]);
    command.arg(format!("memif:{}", folder.join("link").display()));
    command.args(["--posix", "off", "--", "/usr/bin/python3", "-c", NEIGHBOUR]).args(&others);
    let output = command.output().expect("ix run");
    let said = String::from_utf8_lossy(&output.stdout);
    let one = "kill refused\nthread refused\nowner done\n";
    assert_eq!(said, format!("own child 9\nown child 9\n{}over\n", one.repeat(3)));
    echoes(&net);
    service.finish(PATIENCE);
    std::fs::remove_dir_all(folder).expect("removed");
}

/// Starts children until Linux refuses, and says how many there were.
const FORKS: &str = "
import os, signal
count = 0
try:
    while count < 200:
        if os.fork() == 0: signal.alarm(5); signal.pause()
        count += 1
except OSError: pass
print('children:', count, flush=True)
signal.pause()
";

/// A program is in a control group of its run alone, where one can be made. The run removes it at
/// its end, or the next run does if this one was killed. That another user holds a lock on the
/// group's folder changes nothing.
#[test]
fn a_program_is_bounded_by_a_group_that_goes_with_its_run() {
    let name = "a_program_is_bounded_by_a_group_that_goes_with_its_run";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    let probe = net.serve_with(&DOMAIN, &["64"]);
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", probe.program()));
    let groups = groups.expect("groups");
    let broker = probe.process.pid();
    let has = |line: &&str| line.contains("pids") && line.contains(&format!("/ix-{broker}-"));
    let Some(place) = groups.lines().find(has).map(str::to_owned) else {
        return skip(name, Need::Kernel("control groups that can be written"), "no group was made");
    };
    probe.finish(PATIENCE);
    let path = place.rsplit(':').next().expect("a path").rsplit_once('/').expect("a parent").0;
    let folder = Path::new("/sys/fs/cgroup/pids").join(path.trim_start_matches('/'));
    let left = |pid: i32| {
        let groups = std::fs::read_dir(&folder).expect("a folder").flatten();
        let mut names = groups.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(&format!("ix-{pid}-")))
    };
    assert!(!left(broker), "removed with the run");
    let flags = [&DOMAIN[..], &["--pids-max", "50", "--posix", "off"]].concat();
    let service = net.start_env(&[], &flags, &["/usr/bin/python3", "-c", FORKS]);
    let line = service.process.wait_for("children:", PATIENCE);
    let count: u32 = line.rsplit(' ').next().expect("a word").parse().expect("a number");
    assert!((20..50).contains(&count), "{count} children");
    let killed = service.process.pid();
    // Without its warden another run removes what it leaves.
    service.children("exe").into_iter().for_each(|warden| signal(warden, libc::SIGKILL));
    signal(killed, libc::SIGKILL);
    service.process.wait(PATIENCE);
    assert!(left(killed), "nobody has removed it yet");
    let groups = std::fs::read_dir(&folder).expect("a folder").flatten();
    let is_its = |name: &str| name.starts_with(&format!("ix-{killed}-"));
    let mut names = groups.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let group = folder.join(names.find(|name| is_its(name)).expect("a group"));
    let mut other = Command::new("setpriv");
    other.args(["--reuid", USER, "--clear-groups", "flock"]).arg(&group);
    let other = Process::start({
        other.args(["sh", "-c", "echo locked; sleep 60"]);
        other
    });
    other.wait_for("locked", PATIENCE);
    // Its orphans have its group for a moment.
    eventually("the group is removed by another run", || {
        net.serve_with(&DOMAIN, &["64"]).finish(PATIENCE);
        !left(killed)
    });
}

/// Maps huge pages until Linux refuses, uses them, and says how many there were.
const HUGE: &str = "
import mmap
held = []
try:
    while len(held) < 1000:
        held.append(mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))
        held[-1][0] = 1
except OSError: pass
print('huge pages:', len(held), flush=True)
";

/// Anybody may map the huge pages that an administrator has reserved, for dataplanes mostly. A
/// program leaves half of them to others.
#[test]
fn a_program_leaves_half_of_the_reserved_huge_pages_to_others() {
    const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
    const MORE: u64 = 8;
    let name = "a_program_leaves_half_of_the_reserved_huge_pages_to_others";
    if !Path::new("/usr/bin/python3").exists() {
        return skip(name, Need::Program("apt install python3"), "no python3");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let unified = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let unified = unified.and_then(|line| line.split(' ').nth(4)).unwrap_or("/sys/fs/cgroup");
    let has = |file: &str| {
        let text = std::fs::read_to_string(Path::new(unified).join(file)).unwrap_or_default();
        text.split_whitespace().any(|word| word == "hugetlb")
    };
    let Some(net) = TestNet::new(name, Nic::Tap, 1) else { return };
    if !has("cgroup.controllers") {
        return skip(name, Need::Kernel("the hugetlb controller of cgroup2"), "it is not there");
    }
    let number = || -> u64 {
        let text = std::fs::read_to_string(RESERVED).expect("a number");
        text.trim().parse().expect("a number")
    };
    let before = number();
    std::fs::write(RESERVED, (before + MORE).to_string()).expect("root may");
    let all = number();
    let python = ["/usr/bin/python3", "-c", HUGE];
    let flags = [&DOMAIN[..], &["--posix", "off", "--user", USER]].concat();
    let service = net.start_env(&[], &flags, &python);
    let line = service.process.wait_for("huge pages:", PATIENCE);
    service.process.wait(PATIENCE);
    std::fs::write(RESERVED, before.to_string()).expect("as before");
    if all < before + MORE {
        return skip(name, Need::Kernel("free memory of 16 MB"), format!("{all} huge pages"));
    }
    let count: u64 = line.rsplit(' ').next().expect("a word").parse().expect("a number");
    assert!(count > 0 && count <= all / 2, "{count} of {all}");
}

/// A broker without rights has the user of its program. It has what the program must not have.
#[test]
fn a_program_cannot_read_a_broker_of_its_own_user() {
    let name = "a_program_cannot_read_a_broker_of_its_own_user";
    if !ix_sys::process::is_root() {
        return skip(name, Need::Root, "cannot become another user");
    }
    let echo = support::build_echo();
    let folder = std::env::temp_dir().join(format!("ix-nobody-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&folder, everybody).expect("a mode");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--clear-groups", env!("CARGO_BIN_EXE_ix"), "run"]);
    command.args(DOMAIN).args(["--addr", "10.78.0.2/24", "--nic"]);
    command.arg(format!("memif:{}", folder.join("link").display()));
    command.arg("--control").arg(folder.join("control.sock"));
    command.arg("--").arg(echo).arg("64");
    let process = Process::start(command);
    process.wait_for("ready", PATIENCE);
    for file in ["mem", "maps", "fd/0"] {
        let script = format!("exec 3</proc/{}/{file} && echo opened", process.pid());
        let said = as_user(USER, &script);
        assert!(!said.contains("opened"), "{file}: {said}");
    }
    process.terminate();
    std::fs::remove_dir_all(folder).expect("removed");
}

//! The memif device: both ends of ours against each other in one process.

use crate::ends::{End, connect, frame, path};

/// A server and a client with a link.
fn pair(test: &str, queues: (usize, usize)) -> (End, End) {
    let path = path(test);
    let mut server = End::open(&format!("memif:{path},queues={}", queues.0));
    let mut client = End::open(&format!("memif:{path},queues={}", queues.1));
    assert!(!server.device.shares_memory() && client.device.shares_memory());
    connect(&mut server, &mut client);
    (server, client)
}

/// Sends frames of all lengths from one end's queue 0 to the other's and compares them.
fn pump(from: &mut End, to: &mut End, count: u64) {
    pump_up_to(from, to, 1515, count);
}

/// The same with frames of up to `most` bytes.
fn pump_up_to(from: &mut End, to: &mut End, most: usize, count: u64) {
    let length = |i: u64| 14 + (i as usize * 97) % (most - 14);
    let (mut sent, mut received) = (0, 0);
    let mut idle = 0;
    while received < count {
        while sent < count && sent - received < 700.min((1 << 20) / most as u64) {
            assert!(from.host.send(0, &frame(sent, length(sent))));
            sent += 1;
            if sent % 13 == 0 {
                break;
            }
        }
        from.host.kick(0);
        let frames = to.receive(0);
        idle = if frames.is_empty() { idle + 1 } else { 0 };
        assert!(idle < 1000, "lost after {received} of {sent}");
        for got in frames {
            assert!(got == frame(received, length(received)), "frame {received} is another");
            received += 1;
        }
    }
}

#[test]
fn frames_of_all_lengths_arrive_whole_and_nothing_leaks() {
    let (mut server, mut client) = pair("lengths", (1, 1));
    for _ in 0..3 {
        pump(&mut server, &mut client, 5000);
        pump(&mut client, &mut server, 5000);
    }
    for end in [&mut server, &mut client] {
        assert_eq!(end.host.nics[0].drops(), Default::default());
        end.host.assert_nothing_leaks();
    }
}

#[test]
fn frames_longer_than_a_buffer_arrive_whole_and_nothing_leaks() {
    for queues in [(1, 1), (2, 2)] {
        let (mut server, mut client) = pair("long", queues);
        for _ in 0..3 {
            pump_up_to(&mut server, &mut client, 9014, 3000);
            pump_up_to(&mut client, &mut server, 9014, 3000);
        }
        for end in [&mut server, &mut client] {
            assert_eq!(end.host.nics[0].drops(), Default::default());
            end.host.assert_nothing_leaks();
        }
    }
}

#[test]
fn both_say_who_the_peer_is() {
    let (server, client) = pair("names", (1, 1));
    assert!(server.said_last("peer connected (ix 1 queues=1, 1 queue)"), "{:?}", server.said);
    assert!(client.said_last("peer connected (ix 1 queues=1, 1 queue)"), "{:?}", client.said);
    let modes = [&server, &client].map(|end| end.host.nics[0].info().mode.clone());
    assert_eq!(modes[0], "server, 1 queue, copying, peer ix 1 queues=1");
    assert_eq!(modes[1], "client, 1 queue, zero-copy, peer ix 1 queues=1");
    assert_ne!(server.device.info.mac, client.device.info.mac);
    assert!(client.device.info.shared_frames && !server.device.info.shared_frames);
}

#[test]
fn sleeps_until_the_peer_sends() {
    let (mut server, mut client) = pair("doorbell", (1, 1));
    for round in 0..6u64 {
        let (from, to) = match round % 2 {
            0 => (&mut server, &mut client),
            _ => (&mut client, &mut server),
        };
        assert!(to.receive(0).is_empty());
        assert!(to.host.nics[0].arm(), "nothing waits");
        assert!(!rings(to), "nothing came");
        assert!(from.send(0, &frame(round, 100)));
        assert!(rings(to), "a packet came");
        assert_eq!(to.receive(0).len(), 1);
        // Polling again: no system call for the sender, so the bell stays as it is.
        assert!(from.send(0, &frame(round, 100)));
        assert!(!to.host.nics[0].arm(), "a packet came meanwhile");
        assert_eq!(to.receive(0).len(), 1);
        assert!(to.host.nics[0].arm() && !rings(to), "the bell was silenced");
        to.receive(0);
    }
}

/// Whether the doorbell of queue 0 polls readable.
fn rings(end: &End) -> bool {
    let fd = end.host.nics[0].doorbell().expect("has one");
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, writable for the length of the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

#[test]
fn a_peer_that_never_reads_gets_no_more_than_its_share_of_frames() {
    let (mut server, mut client) = pair("stuck", (1, 1));
    for end in [&mut server, &mut client] {
        for i in 0..4000 {
            assert!(end.host.send(0, &frame(i, 64)), "there is a frame for packet {i}");
            end.host.kick(0);
        }
        assert!(end.host.queued.len() <= 1024, "{} wait", end.host.queued.len());
        assert!(end.host.nics[0].drops().tx_failed > 0);
        assert_eq!(end.host.nics[0].doorbell(), None, "no bell says that there is room again");
    }
    // What was in the rings arrives, in order.
    let numbers = |end: &mut End| {
        let mut numbers = Vec::new();
        loop {
            let frames = end.receive(0);
            if frames.is_empty() {
                return numbers;
            }
            let number = |f: &Vec<u8>| u64::from_be_bytes(f[..8].try_into().unwrap());
            numbers.extend(frames.iter().map(number));
        }
    };
    assert_eq!(numbers(&mut server), (0..1024).collect::<Vec<_>>());
    assert_eq!(numbers(&mut client)[..1024], (0..1024).collect::<Vec<_>>());
}

#[test]
fn either_end_may_go_and_come_back_any_number_of_times() {
    let path = path("again");
    let mut server = End::open(&format!("memif:{path},role=server"));
    for round in 0..10 {
        let mut client = End::open(&format!("memif:{path}"));
        assert!(client.device.shares_memory(), "somebody listens, so we connect");
        connect(&mut server, &mut client);
        pump(&mut server, &mut client, 300);
        pump(&mut client, &mut server, 300);
        // Something is under way when it goes.
        for i in 0..round {
            server.send(0, &frame(i, 64));
            client.send(0, &frame(i, 64));
        }
        if round % 2 == 0 {
            drop(client);
            server.until("the client is gone", |end| end.said_last("peer gone"));
        } else {
            drop(server);
            client.until("the server is gone", |end| end.said_last("no server yet"));
            assert_eq!(client.host.nics[0].frames_held(), (0, 0));
            assert!(client.send(0, &frame(0, 64)), "lost, as on a wire");
            server = End::open(&format!("memif:{path}"));
            assert!(!server.device.shares_memory(), "nobody listens, so we do");
            client.until("it tries again", |end| {
                end.device.watch_fds().count() == 1 // connected
            });
            connect(&mut server, &mut client);
            pump(&mut server, &mut client, 300);
            client.host.assert_nothing_leaks();
            drop(client);
            server.until("the client is gone", |end| end.said_last("peer gone"));
        }
    }
    server.host.assert_nothing_leaks();
}

#[test]
fn a_dead_servers_file_is_replaced_and_a_living_ones_is_not() {
    let path = path("stale");
    let first = End::open(&format!("memif:{path},role=server"));
    let refusal = End::try_open(&format!("memif:{path},role=server")).err().expect("refused");
    assert!(refusal.to_string().contains("in use"), "{refusal}");
    drop(first);
    assert!(!std::path::Path::new(&path).exists(), "an orderly end removes it");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(std::path::Path::new(&path).exists(), "as after a crash");
    drop(End::open(&format!("memif:{path},role=server")));
    std::fs::write(&path, "precious").unwrap();
    let refusal = End::try_open(&format!("memif:{path}")).err().expect("refused").to_string();
    assert!(refusal.contains("cannot listen at"), "{refusal}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn ends_that_do_not_fit_say_why_on_both_sides() {
    for (server, client, why) in [
        ("id=1", "id=2", "id="),
        ("secret=a", "secret=b", "secret="),
        ("secret=a", "id=0", "secret="),
    ] {
        let path = path(&format!("misfit-{}", client.replace('=', "")));
        let mut server = End::open(&format!("memif:{path},role=server,{server}"));
        let mut client = End::open(&format!("memif:{path},role=client,{client}"));
        let end = std::time::Instant::now() + std::time::Duration::from_millis(400);
        while std::time::Instant::now() < end {
            server.service();
            client.service();
        }
        for end in [&server, &client] {
            assert_eq!(end.said.len(), 1, "once, though it is tried again: {:?}", end.said);
            assert!(end.said_last("peer refused") && end.said_last(why), "{:?}", end.said);
        }
    }
}

#[test]
fn a_second_client_is_told_that_there_is_one() {
    let path = path("second");
    let mut server = End::open(&format!("memif:{path},role=server"));
    let mut first = End::open(&format!("memif:{path}"));
    connect(&mut server, &mut first);
    let mut second = End::open(&format!("memif:{path}"));
    for _ in 0..100 {
        server.service();
        second.service();
    }
    assert!(second.said_last("there is a peer already"), "{:?}", second.said);
    pump(&mut server, &mut first, 500);
    drop(first);
    connect(&mut server, &mut second);
    pump(&mut second, &mut server, 500);
}

/// Set in a process that is the other end of [`a_process_that_is_killed_midway_is_replaced`].
const CHILD: &str = "IX_MEMIF_CHILD_SPEC";

/// The other process: sends back what comes in until it is killed.
#[test]
fn the_other_process() {
    let Ok(spec) = std::env::var(CHILD) else { return };
    let mut end = End::open(&spec);
    loop {
        end.service();
        for _ in 0..1000 {
            for frame in end.receive(0) {
                end.host.send(0, &frame);
            }
            end.host.kick(0);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_process_that_is_killed_midway_is_replaced() {
    for (ours, theirs) in [("server", "client"), ("client", "server")] {
        let path = path(&format!("killed-{ours}"));
        let mut end = End::open(&format!("memif:{path},role={ours}"));
        for round in 0..4 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "memif::the_other_process"])
                .env(CHILD, format!("memif:{path},role={theirs}"))
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            end.until("the process connects", End::is_up);
            let (mut sent, mut back) = (0, 0);
            let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while back < 3000 {
                assert!(std::time::Instant::now() < limit, "round {round}: {back} of {sent}");
                for _ in 0..20 {
                    if sent - back < 300 {
                        end.host.send(0, &frame(sent, 60 + sent as usize % 1400));
                        sent += 1;
                    }
                }
                end.host.kick(0);
                for got in end.receive(0) {
                    assert!(got == frame(back, 60 + back as usize % 1400), "frame {back}");
                    back += 1;
                }
            }
            child.kill().unwrap();
            child.wait().unwrap();
            // It is dead and we go on sending, until the broker notices.
            for i in 0..100 {
                assert!(end.send(0, &frame(i, 64)));
            }
            end.until("it is gone", |end| {
                end.said_last("peer gone") || end.said_last("no server yet")
            });
            while !end.receive(0).is_empty() {}
            assert_eq!(end.host.nics[0].frames_held(), (0, 0));
        }
        assert_eq!(end.host.nics[0].drops().rx_invalid, 0);
        end.host.assert_nothing_leaks();
    }
}

/// Acts as another user, on a thread of its own.
fn as_nobody<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::uid_t = 65534;
    // Of this thread alone: the C library's function would change the user of all threads.
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            // SAFETY: no pointers.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            assert_eq!(changed, 0, "root becomes nobody");
            act()
        });
        done.join().expect("no panic")
    })
}

/// Everybody can make an abstract socket, and listen at a path where everybody may make files.
#[test]
fn a_process_of_another_user_is_not_taken_for_the_peer() {
    let name = "a_process_of_another_user_is_not_taken_for_the_peer";
    if !ix_sys::process::is_root() {
        return ix_skip::skip(name, ix_skip::Need::Root, "cannot become another user");
    }
    let path = format!("@ix-memif-squat-{}", std::process::id());
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK;
    let squatter = as_nobody(|| ix_sys::socket::listen_unix(kind, &path).expect("listens"));
    let why = End::try_open(&format!("memif:{path}")).err().expect("refused").to_string();
    assert!(why.contains("user 65534 is not taken for the peer"), "{why}");
    let mut client = End::open(&format!("memif:{path},role=client"));
    client.until("it says why", |end| end.said_last("user 65534 is not taken for the peer"));
    assert!(!client.is_up());
    drop(client);
    End::open(&format!("memif:{path},peer-user=65534"));
    drop(squatter);
    // As a server.
    let mut server = End::open(&format!("memif:{path},role=server"));
    let guest = as_nobody(|| ix_sys::socket::connect_unix(kind, &path).expect("connects"));
    server.until("it says why", |end| end.said_last("user 65534 is not taken for the peer"));
    drop(guest);
    assert!(!server.is_up());
    let mut client = End::open(&format!("memif:{path},role=client"));
    connect(&mut server, &mut client);
}

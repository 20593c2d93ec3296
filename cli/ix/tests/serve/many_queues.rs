//! Interfaces with more queues than there are elastic threads: each thread serves several.
use super::devices::make_pair;
use crate::support::traffic::{Crowd, close, echo};
use crate::support::{Nic, PATIENCE, PREFIX, SERVICE, TestNet, connect_to};
use ix_skip::{Need, skip, skip_part};
use ix_testbed::Namespace;
use std::net::{SocketAddrV4, TcpStream};
use std::time::Duration;

/// A private link with so many queues at each end, for so many elastic threads.
fn net(test: &str, queues: u32, threads: usize) -> Option<TestNet> {
    if ix_testbed::cpu::allowed().len() < threads {
        skip_part(test, Need::Cpus(threads), "too few CPUs");
        return None;
    }
    let net = TestNet::new(test, Nic::Afxdp, threads)?;
    net.server.delete_link("ixs0").expect("removed");
    make_pair(&net, queues);
    net.server.wait_running("ixs0", PATIENCE).expect("carrier");
    Some(net)
}

/// Opens many connections, so that each queue has some, and echoes on all of them.
fn talk_on_many(at: SocketAddrV4, rounds: u64) {
    let mut streams: Vec<TcpStream> = (0..100).map(|_| connect_to(at)).collect();
    for round in 0..rounds {
        for (number, stream) in streams.iter_mut().enumerate() {
            echo(stream, (number as u64) << 32 | round, 64);
        }
    }
    streams.into_iter().for_each(close);
}

#[test]
fn threads_serve_more_queues_than_there_are_threads() {
    let name = "threads_serve_more_queues_than_there_are_threads";
    for (queues, threads, says) in [
        (4, 1, "native, 4 queues, "),
        (8, 1, "native, 8 queues, "),
        (3, 2, "native, 3 queues for 2 elastic threads, "),
        (8, 2, "native, 8 queues for 2 elastic threads, "),
    ] {
        let Some(net) = net(name, queues, threads) else { continue };
        let service = net.serve(&["64"]);
        service.process.wait_for(&format!("ix: device afxdp:ixs0: {says}"), PATIENCE);
        net.client.run(|| {
            talk_on_many(SERVICE, 20);
            // The threads sleep: a packet on any queue wakes its thread.
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(50));
                talk_on_many(SERVICE, 1);
            }
        });
        let stats = service.finish(PATIENCE);
        assert_eq!(stats.total("closed"), 300, "{stats}");
        assert_eq!(stats.drops(), 0, "{stats}");
    }
}

/// Flow groups move between threads while all queues of both carry traffic.
#[test]
fn flow_groups_move_between_threads_with_several_queues() {
    let test = "flow_groups_move_between_threads_with_several_queues";
    let Some(net) = net(test, 8, 2) else { return };
    let service = net.serve(&["512"]);
    let crowd = Crowd { service: SERVICE, size: 512, turnover: true };
    let echoed = crowd.during(&net.client, || {
        let mut client = service.client();
        for round in 0..20 {
            client.migrate("0-127", round % 2).expect("migrates");
            client.thread("park", 1 - round % 2).expect("parks");
            std::thread::sleep(Duration::from_millis(10));
            client.thread("resume", 1 - round % 2).expect("resumes");
        }
    });
    assert!(echoed > 1000, "{echoed}");
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.drops(), 0, "{stats}");
}

/// At the address of Linux, and unmodified: the shortest command, whatever queues there are.
#[test]
fn an_unmodified_program_at_linux_address_serves_all_queues() {
    let test = "an_unmodified_program_at_linux_address_serves_all_queues";
    const PYTHON: &str = "/usr/bin/python3";
    if !std::path::Path::new(PYTHON).exists() {
        return skip(test, Need::Program("apt-get install python3"), "no python3");
    }
    const PROGRAM: &str = "\
import selectors, socket
server = socket.create_server(('10.88.0.2', 7), backlog=200)
chosen = selectors.DefaultSelector()
chosen.register(server, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in chosen.select():
        if key.fileobj is server:
            chosen.register(server.accept()[0], selectors.EVENT_READ)
            continue
        data = key.fileobj.recv(4096)
        if data:
            key.fileobj.sendall(data)
        else:
            chosen.unregister(key.fileobj)
            key.fileobj.close()
";
    let Some(net) = net(test, 8, 1) else { return };
    net.server.add_address("ixs0", *SERVICE.ip(), PREFIX).expect("an address");
    let allowed = ix_testbed::cpu::allowed();
    for threads in 1..=2 {
        let Some(cpus) = allowed.get(..threads) else {
            skip_part(test, Need::Cpus(2), "too few CPUs");
            continue;
        };
        let cpus = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let service = net.start_shared_with(&["--cpus", &cpus], &[PYTHON, "-c", PROGRAM]);
        service.process.wait_for("ready", PATIENCE);
        net.client.run(|| talk_on_many(SERVICE, 10));
        let stats = service.stats();
        assert_eq!(stats.total("accepted"), 100, "{stats}");
        assert_eq!(stats.drops(), 0, "{stats}");
        service.process.terminate();
    }
}

/// An interface that is made again may have another number of queues.
#[test]
fn an_interface_comes_back_with_other_queues() {
    let test = "an_interface_comes_back_with_other_queues";
    let Some(net) = net(test, 1, 1) else { return };
    let service = net.serve(&["64"]);
    let mut stream = net.connect();
    echo(&mut stream, 0, 64);
    for (round, queues) in [4, 8, 1, 2].into_iter().enumerate() {
        net.server.delete_link("ixs0").expect("removed");
        service.process.wait_for_nth("ix: link ixs0 is gone", round + 1, PATIENCE);
        make_pair(&net, queues);
        service.process.wait_for_nth("ix: link ixs0 is up again", round + 1, PATIENCE);
        net.client.run(|| talk_on_many(SERVICE, 3));
        echo(&mut stream, 1 + round as u64, 64);
    }
    close(stream);
    service.finish(PATIENCE);
}

/// `ethtool -L` under load: new queues are served as well, and Linux keeps those that are.
#[test]
fn queues_that_are_added_are_served() {
    let test = "queues_that_are_added_are_served";
    let Some(net) = net(test, 8, 1) else { return };
    let set = |queues: u32| {
        let set = |at: &Namespace, link| at.set_channels(link, queues, queues);
        set(&net.client, "ixc0").and_then(|()| set(&net.server, "ixs0"))
    };
    let of_server = |queues: u32| net.server.set_channels("ixs0", queues, queues);
    net.client.set_channels("ixc0", 1, 1).and_then(|()| of_server(1)).expect("one queue");
    let service = net.serve(&["64"]);
    service.process.wait_for("ix: device afxdp:ixs0: native, copy", PATIENCE);
    let mut stream = net.connect();
    for queues in [4, 8] {
        // This end first: the other one sends on no queue that is not there.
        of_server(queues).expect("more queues");
        let line = format!("ix: afxdp:ixs0: up, with {queues} queues now");
        service.process.wait_for(&line, PATIENCE);
        set(queues).expect("the other end, too");
        net.client.run(|| talk_on_many(SERVICE, 10));
        echo(&mut stream, queues.into(), 64);
    }
    net.client.set_channels("ixc0", 1, 1).expect("it sends on one");
    of_server(4).expect_err("they have sockets");
    close(stream);
    let stats = service.finish(PATIENCE);
    assert_eq!(stats.drops(), 0, "{stats}");
}

/// More elastic threads than queues: one line, at the start and when an interface comes back.
#[test]
fn an_interface_with_too_few_queues_is_refused_in_one_line() {
    let test = "an_interface_with_too_few_queues_is_refused_in_one_line";
    let Some(net) = net(test, 1, 2) else { return };
    let service = net.start(&["true"]);
    let (status, said) = service.process.wait(PATIENCE);
    assert_eq!(status.code(), Some(125), "{said:#?}");
    let why = "`ixs0` has 1 queue for 2 elastic threads; give 1 hardware thread with --cpus";
    assert!(said.iter().any(|line| line.contains(why)), "{said:#?}");
    net.server.delete_link("ixs0").expect("removed");
    make_pair(&net, 2);
    let service = net.serve(&["64"]);
    net.server.delete_link("ixs0").expect("removed");
    service.process.wait_for("ix: link ixs0 is gone", PATIENCE);
    make_pair(&net, 1);
    let line = service.process.wait_for("ix: link ixs0 is back, but cannot be used", PATIENCE);
    assert!(line.contains(why), "{line}");
    service.process.terminate();
}

//! Private links from the outside: real sockets over them.
use ix_skip::{Need, skip};
use ix_testbed::{LinkChange, LinkWatch, Namespace, PacketSocket, VethEnd};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Two namespaces and a link between them; `None`, loudly, without the privilege.
fn pair(test: &str, queues: u32) -> Option<(Namespace, Namespace)> {
    let (a, b) = match Namespace::new().and_then(|a| Ok((a, Namespace::new()?))) {
        Ok(both) => both,
        Err(e) if e.is_permission() => {
            skip(test, Need::Root, e);
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let left = VethEnd::new("left").queues(queues).mac([2, 0, 0, 0, 0, 1]);
    let right = VethEnd::new("right").queues(queues).mtu(1400);
    a.add_veth(&left, &b, &right).expect("veth");
    a.add_address("left", LEFT, 24).expect("address");
    b.add_address("right", RIGHT, 24).expect("address");
    a.set_up("left", true).expect("up");
    b.set_up("right", true).expect("up");
    Some((a, b))
}

#[test]
fn tcp_crosses_a_private_link() {
    let Some((a, b)) = pair("tcp_crosses_a_private_link", 1) else { return };
    let listener = b.run(|| TcpListener::bind((RIGHT, 0))).expect("bind");
    let to = listener.local_addr().expect("address");
    let sender = std::thread::spawn(move || {
        let mut stream = a.run(|| TcpStream::connect(to)).expect("connect");
        stream.write_all(b"over the link").expect("write");
    });
    let (mut stream, from) = listener.accept().expect("accept");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    sender.join().expect("join");
    assert_eq!((text.as_str(), from.ip()), ("over the link", LEFT.into()));
}

#[test]
fn namespaces_do_not_see_each_other() {
    let Some((a, b)) = pair("namespaces_do_not_see_each_other", 1) else { return };
    assert!(a.link("right").expect("ask").is_none());
    assert!(b.link("left").expect("ask").is_none());
    assert!(a.run(|| UdpSocket::bind((RIGHT, 0))).is_err(), "its address is not ours");
    // Loopback is up in each.
    assert!(a.run(|| TcpListener::bind("127.0.0.1:0")).is_ok());
    drop(b);
    // The last descriptor is gone, so the other end goes too: nothing to clean up.
    for _ in 0..500 {
        if a.link("left").expect("ask").is_none() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the link outlived its namespace");
}

#[test]
fn links_are_as_they_were_asked_for() {
    let Some((a, b)) = pair("links_are_as_they_were_asked_for", 3) else { return };
    let left = a.wait_running("left", Duration::from_secs(2)).expect("carrier");
    assert_eq!((left.mac, left.mtu, left.kind.as_str()), ([2, 0, 0, 0, 0, 1], 1500, "veth"));
    assert_eq!((left.rx_queues, left.tx_queues), (3, 3));
    assert_eq!(b.link("right").expect("ask").expect("there").mtu, 1400);
    let channels = a.channels("left").expect("channels");
    assert_eq!((channels.rx, channels.tx, channels.max_rx), (3, 3, 3));
    a.set_channels("left", 2, 2).expect("set channels");
    assert_eq!(a.channels("left").expect("channels").rx, 2);
    assert_eq!(a.driver("left").expect("driver"), "veth");
    assert!(a.tx_checksum_offload("left").expect("ask"), "on from the start");
    a.set_offloads("left", false).expect("off");
    assert!(!a.tx_checksum_offload("left").expect("ask"));
    a.set_offloads("left", true).expect("on");
    assert!(a.tx_checksum_offload("left").expect("ask"));
}

#[test]
fn errors_name_the_thing_and_the_reason() {
    let Some((a, b)) = pair("errors_name_the_thing_and_the_reason", 1) else { return };
    let e = a.set_up("nowhere", true).expect_err("no such link");
    assert!(e.to_string().contains("nowhere"), "{e}");
    let e = a.add_veth(&VethEnd::new("left"), &b, &VethEnd::new("x")).expect_err("taken");
    assert!(e.errno() == libc::EEXIST && e.to_string().contains("left"), "{e}");
    let e = a.add_veth(&VethEnd::new("sixteen-letters-"), &b, &VethEnd::new("x"));
    assert!(e.is_err());
    let e = a.set_mtu("left", 10_000_000).expect_err("too large");
    assert!(e.to_string().contains("mtu"), "the kernel's own words: {e}");
}

#[test]
fn commands_run_inside_and_die_with_their_parent() {
    let Some((a, _b)) = pair("commands_run_inside_and_die_with_their_parent", 1) else { return };
    let cpu = *ix_testbed::cpu::allowed().last().expect("some CPU");
    let mut command = a.command("/bin/cat", Some(cpu));
    let output = command.args(["/proc/net/dev", "/proc/self/status"]).output().expect("cat");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("left:") && !text.contains("eth0"), "{text}");
    assert!(text.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{text}");
    // A thread stands for the parent: its end kills the child.
    let mut child =
        std::thread::spawn(move || a.command("/bin/sleep", None).arg("60").spawn().expect("sleep"))
            .join()
            .expect("join");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().expect("wait").signal(), Some(libc::SIGKILL));
}

#[test]
fn whole_frames_go_out_and_come_in() {
    let Some((a, b)) = pair("whole_frames_go_out_and_come_in", 1) else { return };
    a.wait_running("left", Duration::from_secs(2)).expect("carrier");
    let sender = PacketSocket::open(&a, "left").expect("open");
    let receiver = PacketSocket::open(&b, "right").expect("open");
    let mut frame = vec![0xff; 60];
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame[14..18].copy_from_slice(b"here");
    sender.send(&frame).expect("send");
    while let Some(got) = receiver.receive(Duration::from_secs(2)).expect("receive") {
        if got == frame {
            assert_eq!(sender.receive(Duration::from_millis(1)).expect("receive"), None);
            return;
        }
    }
    panic!("the frame did not arrive");
}

#[test]
fn a_flap_is_heard_once_each_way() {
    let Some((a, b)) = pair("a_flap_is_heard_once_each_way", 1) else { return };
    a.wait_running("left", Duration::from_secs(2)).expect("carrier");
    let links = a.links().expect("links");
    let mut watch = a.run(|| LinkWatch::new(&links)).expect("watch");
    assert_eq!(watch.changes(), []);
    // The peer goes down: our carrier goes. Carrier events come late, by up to a second.
    let mut hear = |change: LinkChange| {
        let mut heard = Vec::new();
        for _ in 0..300 {
            heard.extend(watch.changes());
            if !heard.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(heard, [change]);
    };
    b.set_up("right", false).expect("down");
    hear(LinkChange::Down("left".into()));
    b.set_up("right", true).expect("up");
    hear(LinkChange::Up("left".into()));
    a.delete_link("left").expect("delete");
    std::thread::sleep(Duration::from_millis(50));
    assert!(watch.changes().contains(&LinkChange::Removed("left".into())));
}

#[test]
fn a_link_that_was_moved_is_told_from_one_that_was_removed() {
    let test = "a_link_that_was_moved_is_told_from_one_that_was_removed";
    let Some((a, b)) = pair(test, 1) else { return };
    let links = a.links().expect("links");
    let mut watch = a.run(|| LinkWatch::new(&links)).expect("watch");
    let mut hear = |change: LinkChange| {
        let end = std::time::Instant::now() + Duration::from_secs(20);
        let mut heard = Vec::new();
        while !heard.contains(&change) {
            assert!(std::time::Instant::now() < end, "{change:?} is not in {heard:?}");
            heard.extend(watch.changes());
            std::thread::sleep(Duration::from_millis(5));
        }
        heard
    };
    a.move_link("left", &b).expect("moved");
    let heard = hear(LinkChange::Moved("left".into()));
    assert!(!heard.contains(&LinkChange::Removed("left".into())), "{heard:?}");
    b.move_link("left", &a).expect("moved back");
    a.set_up("left", true).expect("up");
    hear(LinkChange::Up("left".into()));
    a.delete_link("left").expect("deleted");
    hear(LinkChange::Removed("left".into()));
}

#[test]
fn routes_and_fixed_neighbours_are_used() {
    let Some((a, b)) = pair("routes_and_fixed_neighbours_are_used", 1) else { return };
    a.wait_running("left", Duration::from_secs(2)).expect("carrier");
    let gateway = Ipv4Addr::new(10, 77, 0, 9);
    let mac = [2, 0, 0, 0, 0, 9];
    a.add_neighbour("left", gateway, mac).expect("neighbour");
    a.add_route(Ipv4Addr::UNSPECIFIED, 0, gateway).expect("default route");
    let receiver = PacketSocket::open(&b, "right").expect("open");
    let socket = a.run(|| UdpSocket::bind((LEFT, 0))).expect("bind");
    socket.send_to(b"far", ("192.0.2.1", 9)).expect("send");
    while let Some(got) = receiver.receive(Duration::from_secs(2)).expect("receive") {
        if got[12..14] == [8, 0] && got[30..34] == [192, 0, 2, 1] {
            assert_eq!(got[..6], mac);
            return;
        }
    }
    panic!("nothing was sent to the gateway");
}

/// What the kernel says of an interface, with nothing changed: veth runs XDP programs itself, a
/// loopback interface does not.
#[test]
fn interfaces_say_what_they_have() {
    let Some((a, _b)) = pair("interfaces_say_what_they_have", 2) else { return };
    let index = |name: &str| a.link(name).expect("links").expect("a link").index;
    let support = |name: &str| {
        let index = index(name);
        a.run(|| ix_netdev::xdp_support(index))
    };
    let veth = support("left").expect("what veth has");
    assert!(veth.native && !veth.zero_copy && veth.frags, "{veth:?}");
    assert!(!support("lo").expect("what lo has").native);
    assert!(a.run(|| ix_netdev::xdp_support(u32::MAX)).is_err());
    assert_eq!(a.ipv4_addresses(index("left")).expect("addresses"), [(LEFT, 24)]);
    assert_eq!(a.ipv4_addresses(index("lo")).expect("addresses"), [(Ipv4Addr::LOCALHOST, 8)]);
    assert_eq!(a.xdp_program("left").expect("the link's state"), None);
    assert!(a.xdp_program("nothing").is_err());
}

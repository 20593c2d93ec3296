//! The memif device: both ends of ours against each other in one process.
mod common;
#[path = "common/memif.rs"]
mod ends;

use ends::{End, connect, frame, path};

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
    let length = |i: u64| 14 + (i as usize * 97) % 1501;
    let (mut sent, mut received) = (0, 0);
    let mut idle = 0;
    while received < count {
        while sent < count && sent - received < 700 {
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

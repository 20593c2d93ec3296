//! A path in user space between two Linux stacks: what is sent over it arrives, and what the path
//! does to packets is counted.
use ix_skip::{Need, skip};
use ix_testbed::{Bridge, Loss, Namespace, PathSpec, VethEnd};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
const BYTES: usize = 1_000_000;
const DELAY_NS: u64 = 2_000_000;

/// Two namespaces and one between them; `None`, loudly, without the privilege.
fn places(test: &str) -> Option<[Namespace; 3]> {
    let make =
        || Ok::<_, ix_testbed::Error>([Namespace::new()?, Namespace::new()?, Namespace::new()?]);
    match make() {
        Ok(all) => Some(all),
        Err(e) if e.is_permission() => {
            skip(test, Need::Root, e);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn a_stream_crosses_a_bad_path_whole() {
    let Some([left, right, middle]) = places("a_stream_crosses_a_bad_path_whole") else { return };
    for (end, name, other, address) in
        [(&left, "left", "to-left", LEFT), (&right, "right", "to-right", RIGHT)]
    {
        end.add_veth(&VethEnd::new(name), &middle, &VethEnd::new(other)).expect("veth");
        end.set_offloads(name, false).expect("offloads");
        middle.set_offloads(other, false).expect("offloads");
        end.add_address(name, address, 24).expect("address");
        end.set_up(name, true).expect("up");
        middle.set_up(other, true).expect("up");
    }
    let there = PathSpec {
        rate_bit_per_s: 200_000_000,
        queue_bytes: 200_000,
        loss: Loss::Random(0.02),
        reorder: 0.02,
        reorder_ns: DELAY_NS,
        ..PathSpec::delay(DELAY_NS)
    };
    let ways = [there, PathSpec::delay(DELAY_NS)];
    let bridge = Bridge::start(&middle, ["to-left", "to-right"], ways, 1).expect("bridge");
    let listener = right.run(|| TcpListener::bind((RIGHT, 0))).expect("bind");
    let to = listener.local_addr().expect("address");
    let data: Vec<u8> = (0..BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let sent = data.clone();
    let begun = Instant::now();
    let sender = std::thread::spawn(move || {
        let mut stream = left.run(|| TcpStream::connect(to)).expect("connect");
        stream.write_all(&sent).expect("write");
    });
    let (mut stream, _) = listener.accept().expect("accept");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("read");
    sender.join().expect("join");
    assert!(got == data, "{} bytes came", got.len());
    // A handshake and the bytes take their time on the way.
    assert!(begun.elapsed().as_nanos() as u64 > 3 * DELAY_NS + 8 * BYTES as u64 * 5);
    let [forth, back] = bridge.finish();
    assert!(
        forth.passed >= BYTES as u64 / 1448 && forth.lost > 0 && forth.reordered > 0,
        "{forth:?}"
    );
    assert!(back.passed > 0 && back.lost == 0, "{back:?}");
}

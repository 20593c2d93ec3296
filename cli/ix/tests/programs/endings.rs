//! How the connections of unmodified programs end, as one sees it on the wire.
use super::posix::compile;
use crate::support::frames::{FIN, read_tcp};
use crate::support::{Nic, PATIENCE, SERVICE, TestNet, connect_to};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

/// What a program has written and not sent when it closes takes FIN along; the client never sees
/// all of it without the end.
#[test]
fn fin_rides_on_the_last_bytes() {
    let test = "fin_rides_on_the_last_bytes";
    let Some(program) = compile(test, "ends") else { return };
    let program = program.to_str().expect("text");
    for nic in Nic::ALL {
        let Some(net) = TestNet::new(test, nic, 1) else { return };
        let mut service = net.start(&[program, &SERVICE.port().to_string()]);
        service.process.wait_for("ready", PATIENCE);
        for (bytes, how) in [(1, "close"), (600, "shutdown"), (4_000, "close"), (0, "close")] {
            let wire = net.wire();
            let mut stream = net.client.run(|| connect_to(SERVICE));
            let port = stream.local_addr().expect("bound").port();
            stream.write_all(format!("{bytes} {how}\n").as_bytes()).expect("ask");
            let mut back = Vec::new();
            stream.read_to_end(&mut back).expect("all, and the end");
            assert_eq!(back.len(), bytes);
            drop(stream);
            let end = Instant::now() + PATIENCE;
            let fin = loop {
                assert!(Instant::now() < end, "no FIN was seen");
                let frame = wire.receive(Duration::from_secs(1)).expect("hears");
                let seen = frame.as_deref().and_then(read_tcp);
                let ours = |seen: &_| is_from_service(seen, port);
                if let Some(seen) = seen.filter(ours).filter(|seen| seen.flags & FIN != 0) {
                    break seen;
                }
            };
            assert_eq!(fin.len > 0, bytes > 0, "{nic:?}, {bytes} {how}: {fin:?}");
        }
        service.process.check();
        service.finish(PATIENCE);
    }
}

fn is_from_service(seen: &crate::support::frames::Seen, port: u16) -> bool {
    seen.from == SERVICE && seen.to.port() == port
}

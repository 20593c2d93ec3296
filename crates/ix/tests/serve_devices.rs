//! Devices that change under a running dataplane: interfaces that are removed and made again, and
//! one program behind several devices.
mod support;
use ix_testbed::VethEnd;
use std::time::Duration;
use support::process::open_files;
use support::traffic::{close, echo};
use support::{Bed, CLIENT, Nic, PATIENCE, PREFIX, connect};

/// Makes the pair as [`Bed::new`] does.
fn make_pair(bed: &Bed, queues: u32) {
    let end = |name| VethEnd::new(name).queues(queues);
    bed.server.add_veth(&end("ixs0"), &bed.client, &end("ixc0")).expect("a veth pair");
    bed.client.add_address("ixc0", CLIENT, PREFIX).expect("an address");
    bed.server.set_up("ixs0", true).expect("up");
    bed.client.set_up("ixc0", true).expect("up");
}

#[test]
fn an_interface_that_was_removed_and_made_again_serves_again() {
    for queues in [1, 2] {
        let name = "an_interface_that_was_removed_and_made_again_serves_again";
        if ix_testbed::cpu::allowed().len() < queues {
            eprintln!("SKIPPED {name} with {queues} threads: too few CPUs");
            continue;
        }
        let Some(bed) = Bed::new(name, Nic::Afxdp, queues) else { return };
        let service = bed.serve(&["64"]);
        let mut stream = bed.connect();
        echo(&mut stream, 0, 64);
        let mut files = None;
        for round in 1..=4 {
            bed.server.delete_link("ixs0").expect("removed");
            service.process.wait_for("ix: link ixs0 is gone", PATIENCE);
            make_pair(&bed, queues as u32);
            service.process.wait_for_nth("ix: link ixs0 is up again", round, PATIENCE);
            bed.client.run(|| {
                for id in 0..20 {
                    let mut new = connect();
                    echo(&mut new, id, 64);
                    close(new);
                }
            });
            // Both ends have other Ethernet addresses now; TCP does not mind.
            echo(&mut stream, round as u64, 64);
            let open = (open_files(service.process.pid()), open_files(service.program()));
            assert_eq!(*files.get_or_insert(open), open, "descriptors leak in round {round}");
        }
        close(stream);
        service.finish(PATIENCE);
    }
}

/// A namespace is another world: the interface is gone, and back under another number.
#[test]
fn an_interface_that_was_moved_away_and_back_serves_again() {
    let name = "an_interface_that_was_moved_away_and_back_serves_again";
    let Some(bed) = Bed::new(name, Nic::Afxdp, 1) else { return };
    let service = bed.serve(&["64"]);
    let mut stream = bed.connect();
    echo(&mut stream, 0, 64);
    bed.server.move_link("ixs0", &bed.client).expect("moved");
    service.process.wait_for("ix: link ixs0 is gone", PATIENCE);
    std::thread::sleep(Duration::from_millis(100));
    bed.client.move_link("ixs0", &bed.server).expect("moved back");
    bed.server.set_up("ixs0", true).expect("up");
    service.process.wait_for("ix: link ixs0 is up again", PATIENCE);
    echo(&mut stream, 1, 64);
    close(stream);
    service.finish(PATIENCE);
}

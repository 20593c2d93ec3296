//! Two IX with several queues each over memif: the receiver's redirection table rules.

use crate::common::{KEY, ipv4_frame};
use crate::ends::{End, connect, path};
use ix_nic::{RingSizes, Steering, frame_flow_group, initial_queue};
use ix_wire::{FLOW_GROUPS, FlowHash};

/// Frames of flows; each carries its flow's number and its number within the flow.
struct Flows {
    frames: Vec<Vec<u8>>,
    next: Vec<u32>,
    groups: Vec<usize>,
}

const FLOWS: usize = 200;

impl Flows {
    fn new(key: [u64; 2]) -> Flows {
        let frames: Vec<_> =
            (0..FLOWS).map(|i| ipv4_frame(17, (1000 + i as u16, 80), 5, 0)).collect();
        let hash = FlowHash::new(key);
        let groups = frames.iter().map(|f| frame_flow_group(&hash, f)).collect();
        Flows { frames, next: vec![0; FLOWS], groups }
    }

    fn next(&mut self, flow: usize) -> Vec<u8> {
        let mut frame = self.frames[flow].clone();
        let at = frame.len() - 8;
        frame[at..at + 4].copy_from_slice(&(flow as u32).to_be_bytes());
        frame[at + 4..].copy_from_slice(&self.next[flow].to_be_bytes());
        self.next[flow] += 1;
        frame
    }
}

fn read(frame: &[u8]) -> (usize, u32) {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    (word(frame.len() - 8) as usize, word(frame.len() - 4))
}

/// Sends flows from all queues of one end while the other moves flow groups between its queues:
/// first the old queue until it is settled and empty, then the new one.
fn flow(from: &mut End, to: &mut End, key: [u64; 2]) {
    let (m, n) = (from.host.nics.len(), to.host.nics.len());
    let mut flows = Flows::new(key);
    let mut seen = vec![0u32; FLOWS];
    let mut table: Vec<usize> = (0..FLOW_GROUPS).map(|g| initial_queue(g, n)).collect();
    // Broker and dataplane can both write the table.
    let (reta, mapped) = (to.device.reta.take(), to.host.nics[0].reta());
    assert_eq!((reta.is_some(), mapped.is_some()), (n > 1, n > 1));
    let mut take = |to: &mut End, queue: usize, owner: &dyn Fn(usize) -> usize| {
        let frames = to.receive(queue);
        for frame in &frames {
            let (flow, number) = read(frame);
            assert_eq!(number, seen[flow], "flow {flow}: lost or out of order");
            assert_eq!(owner(flow), queue, "flow {flow} came on another queue");
            seen[flow] += 1;
        }
        frames.len()
    };
    for round in 0..300usize {
        for i in 0..60 {
            // A flow has one sender, as a flow has one elastic thread.
            let flow = (round * 37 + i) % FLOWS;
            assert!(from.host.send(flow % m, &flows.next(flow)));
        }
        let moved = round * 13 % FLOW_GROUPS;
        let (old, new) = (table[moved], (table[moved] + 1) % n);
        let reta = if round % 2 == 0 { reta.as_deref() } else { mapped.as_deref() };
        if let Some(reta) = reta {
            reta.set(moved, new).unwrap();
            let all_but = (0..m).filter(|q| *q != round % m);
            all_but.for_each(|queue| from.host.kick(queue));
            assert!(m == 1 || !reta.settled(), "a sender has not looked yet");
        }
        for queue in 0..m {
            from.host.kick(queue);
        }
        if let Some(reta) = reta {
            assert!(reta.settled() && !reta.is_sending(), "all have looked");
        }
        // What was sent before is in the old queue's rings; later packets come on the new one.
        let groups = flows.groups.clone();
        let before = table.clone();
        for queue in 0..n {
            while take(to, queue, &|flow| before[groups[flow]]) > 0 {}
        }
        table[moved] = new;
        assert!(n > 1 || old == new);
        for i in 0..20 {
            let flow = (round * 7 + i) % FLOWS;
            assert!(from.host.send(flow % m, &flows.next(flow)));
        }
        (0..m).for_each(|queue| from.host.kick(queue));
        for queue in 0..n {
            while take(to, queue, &|flow| table[groups[flow]]) > 0 {}
        }
    }
    assert_eq!(seen, flows.next, "nothing was lost");
    assert!(seen.iter().map(|n| *n as usize).sum::<usize>() == 300 * 80);
    to.device.reta = reta;
}

#[test]
fn the_receivers_table_moves_flow_groups_while_traffic_flows() {
    let rings = RingSizes { rx: 512, fill: 3000, tx: 512 };
    for servers in 1..=3usize {
        for clients in 1..=3usize {
            let path = path(&format!("mesh-{servers}-{clients}"));
            let open = |queues, key| {
                End::with(&format!("memif:{path},queues={queues}"), rings, key).expect("opens")
            };
            let (server_key, client_key) = (KEY, [7, 11]);
            let mut server = open(servers, server_key);
            let mut client = open(clients, client_key);
            connect(&mut server, &mut client);
            for end in [&server, &client] {
                let info = end.host.nics[0].info();
                let steered = info.queues > 1;
                let steering = if steered { Steering::Table } else { Steering::Software };
                assert_eq!(info.steering, steering, "{servers} and {clients}");
            }
            // The receiver's key counts.
            flow(&mut server, &mut client, client_key);
            flow(&mut client, &mut server, server_key);
            for end in [&mut server, &mut client] {
                for nic in &mut end.host.nics {
                    assert_eq!(nic.drops(), Default::default());
                }
                end.host.assert_nothing_leaks();
            }
        }
    }
}

//! One endpoint against hand-made segments: what each must cause, by RFC and state. Each file has
//! one subject; none depends on how the core works inside.
mod closing;
mod handshake;
mod icmp;
mod keepalive;
mod loss;
mod sending;
mod sequence;
mod timestamps;
mod windows;

use ix_tcp::{Config, State};
use ix_tcp_rig::Segment;
use ix_tcp_rig::lab::{ACK, Lab, Peer, STATES};
use ix_wire::TcpHeader;

const SECOND_US: u64 = 1_000_000;

/// With exact timeouts.
fn cfg() -> Config {
    Config { rto_jitter_percent: 0, ..Config::default() }
}

fn synchronized() -> impl Iterator<Item = State> {
    STATES.into_iter().filter(|state| state.synchronized())
}

fn lab_in(state: State) -> Lab {
    Lab::in_state(cfg(), Peer::default(), state)
}

/// Exactly one segment: an empty acknowledgement that tells the peer what we expect.
fn assert_one_ack(lab: &mut Lab, what: &str) {
    let sent = lab.take();
    assert_eq!(sent.len(), 1, "{what}: {sent:?}");
    let Segment { hdr, payload } = &sent[0];
    assert!(payload.is_empty(), "{what}: {hdr:?}");
    assert_eq!(hdr.flags, ACK, "{what}: {hdr:?}");
    assert_eq!(hdr.seq, lab.end.out.audit.snd_max(), "{what}: {hdr:?}");
}

fn assert_silent(lab: &mut Lab, what: &str) {
    let sent = lab.take();
    assert!(sent.is_empty(), "{what}: {sent:?}");
}

fn established() -> Lab {
    Lab::established(cfg(), Peer::default())
}

/// A peer whose window has no scale, so that window fields are bytes.
fn with_window(window: u16) -> Lab {
    Lab::established(cfg(), Peer { window, ..Peer::plain() })
}

fn payload_bytes(sent: &[Segment]) -> usize {
    sent.iter().map(|segment| segment.payload.len()).sum()
}

/// The peer acknowledges up to `bytes` of our stream, with `window`.
fn acknowledge(lab: &mut Lab, bytes: u32, window: u16) {
    lab.ack = lab.peer.iss + 1 + bytes;
    let hdr = TcpHeader { window, ..lab.header(ACK) };
    lab.raw(hdr, &[]);
}

//! RFC 9293 section 3.8.4.
use super::{SECOND_US, cfg, established};
use ix_tcp::{Config, DeadReason, State};
use ix_tcp_rig::lab::{ACK, Lab, Peer};

#[test]
fn keepalive_is_off_unless_asked_for() {
    let mut lab = established();
    lab.wait(24 * 3_600 * SECOND_US);
    assert!(lab.take().is_empty());
    assert_eq!(lab.state(), State::Established);
}

#[test]
fn keepalive_probes_answered_or_not() {
    // RFC 9293 section 3.8.4: SEG.SEQ = SND.NXT-1, and one lost probe is no death.
    let config = Config {
        keepalive_idle_s: 60,
        keepalive_interval_us: 10_000_000,
        keepalive_probes: 3,
        ..cfg()
    };
    let mut lab = Lab::established(config, Peer::default());
    for _ in 0..10 {
        lab.wait(59 * SECOND_US);
        assert!(lab.take().is_empty());
        lab.wait(2 * SECOND_US);
        let sent = lab.take();
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0].hdr.seq, lab.end.out.audit.snd_max() - 1u32);
        lab.say(ACK, &[]);
        assert!(lab.take().is_empty());
    }
    lab.wait(60 * SECOND_US);
    lab.wait(25 * SECOND_US);
    assert_eq!(lab.take().len(), 3);
    assert_eq!(lab.state(), State::Established);
    lab.wait(60 * SECOND_US);
    assert_eq!(lab.end.out.dead, Some(DeadReason::TimedOut));
}

#[test]
fn the_peers_keepalive_is_answered() {
    for len in [0, 1] {
        let mut lab = established();
        lab.say_data(100);
        lab.wait(SECOND_US);
        lab.take();
        lab.data_at(lab.seq - 1u32, len);
        let sent = lab.take();
        assert_eq!(sent.len(), 1, "{len} octets");
        assert_eq!(sent[0].hdr.ack, lab.seq);
        assert_eq!(lab.end.out.delivered, 100);
    }
}

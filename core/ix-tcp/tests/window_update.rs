//! A window that the application opens is told to the peer (a known source of stalls: lost window
//! updates), also by a caller that asks `needs_output` before it calls `output`.

use crate::support::{ACK, Offer, Script};
use ix_tcp::Config;

#[test]
fn reading_opens_a_closed_window_and_asks_for_output() {
    let cfg = Config { rcv_buf_bytes: 4096, ..Config::default() };
    let mut script = Script::settled(cfg, Offer::BARE);
    for len in [1460, 1460, 1176] {
        script.give(ACK, &vec![0; len]);
    }
    script.output();
    let closed = script.out.sent.pop_back().expect("an acknowledgement");
    assert_eq!(closed.seg.window, 0);
    script.out.sent.clear();
    assert!(!script.tcb.needs_output());
    script.read_all();
    assert!(script.tcb.needs_output(), "the peer would wait for its persist timer");
    script.output();
    assert_eq!(script.expect(ACK).seg.window, 4096);
    assert!(!script.tcb.needs_output());
}

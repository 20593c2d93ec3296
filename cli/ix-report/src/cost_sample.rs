//! What a thread of a dataplane says of itself, for tests here and in `ix-ctl`.
use serde_json::{Value, json};

/// What a thread says that received 300 packets in 4 cycles; `hardware` stands as it is.
pub fn thread(hardware: Option<Value>) -> Value {
    let mut thread = json!({
        "rx_packets": 300, "tx_packets": 290, "busy_cycles": 5, "events": 310, "calls": 600,
        "stage_ticks": {
            "poll": 3000, "process": 30_000, "app": 20_000, "calls": 12_000, "timers": 1000,
            "transmit": 14_000, "idle": 20_000,
        },
        "batches": [7, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0],
    });
    if let Some(hardware) = hardware {
        thread["hardware"] = hardware;
    }
    thread
}

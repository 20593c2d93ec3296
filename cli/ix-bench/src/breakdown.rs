//! Time of a packet in each part of IX (Arrakis' table 1), from the dataplane's own counters.
use ix_dataplane::metrics::Stage;
use ix_report::cost::Figures;

/// Figures of the dataplane's stages; the application's stage is split into the application and the
/// gate.
const STAGES: [(Stage, &str); 5] = [
    (Stage::Poll, "receive_ns"),
    (Stage::Process, "stack_in_ns"),
    (Stage::Calls, "stack_out_ns"),
    (Stage::Timers, "timers_ns"),
    (Stage::Transmit, "transmit_ns"),
];

/// Cycles without load that suffice to measure the gate.
const IDLE_CYCLES: u64 = 100;

fn cycles(figures: &Figures) -> u64 {
    figures.batches.iter().sum()
}

/// Ticks of crossing the gate and back: the application's stage of a cycle in which the application
/// does nothing. `idle` was counted without load, with a program that never waits inside the
/// dataplane.
pub fn gate_ticks(idle: &Figures) -> Option<f64> {
    let cycles = cycles(idle);
    let quiet = idle.rx_packets == 0 && cycles > IDLE_CYCLES;
    quiet.then(|| idle.ticks(Stage::App) as f64 / cycles as f64)
}

/// ns of a received packet in each part; without `gate_ticks` the application's part includes the
/// gate.
pub fn breakdown(
    used: &Figures,
    ticks_per_us: f64,
    gate_ticks: Option<f64>,
) -> Vec<(&'static str, f64)> {
    if used.rx_packets == 0 || ticks_per_us <= 0.0 {
        return Vec::new();
    }
    let ns = |ticks: f64| ticks.max(0.0) * 1000.0 / ticks_per_us / used.rx_packets as f64;
    let mut figures: Vec<_> =
        STAGES.iter().map(|&(stage, name)| (name, ns(used.ticks(stage) as f64))).collect();
    let gate = gate_ticks.unwrap_or(0.0);
    // Empty cycles crossed the gate, too, but not for a packet.
    let app = used.ticks(Stage::App) as f64 - gate * cycles(used) as f64;
    figures.extend(gate_ticks.map(|gate| ("gate_ns", ns(gate * used.busy_cycles as f64))));
    figures.push(("app_ns", ns(app)));
    figures.push(("total_ns", figures.iter().map(|(_, value)| value).sum()));
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(packets: u64, idle: u64, busy: u64, app: u64, process: u64) -> Figures {
        let mut figures = Figures {
            rx_packets: packets,
            busy_cycles: busy,
            batches: vec![idle, 0, 0, busy],
            ..Figures::default()
        };
        figures.stage_ticks[Stage::App as usize] = app;
        figures.stage_ticks[Stage::Process as usize] = process;
        figures
    }

    #[test]
    fn the_application_and_the_gate_are_told_apart() {
        let idle = figures(0, 1000, 0, 50_000, 0);
        assert_eq!(gate_ticks(&idle), Some(50.0));
        // 400 packets in 100 busy cycles beside 200 empty ones; 10 ticks of the program in each
        // busy one.
        let used = figures(400, 200, 100, 300 * 50 + 1000, 8000);
        let parts = breakdown(&used, 2000.0, gate_ticks(&idle));
        let value = |key| parts.iter().find(|(name, _)| *name == key).expect(key).1;
        assert_eq!(value("stack_in_ns"), 10.0);
        assert_eq!(value("gate_ns"), 50.0 * 100.0 / 400.0 / 2.0);
        assert_eq!(value("app_ns"), 1000.0 / 400.0 / 2.0);
        assert_eq!(value("total_ns"), 10.0 + 6.25 + 1.25);
        assert_eq!(gate_ticks(&used), None, "there was load");
        assert_eq!(gate_ticks(&figures(0, 5, 0, 9, 0)), None, "too few");
        assert!(breakdown(&idle, 2000.0, None).is_empty());
    }
}

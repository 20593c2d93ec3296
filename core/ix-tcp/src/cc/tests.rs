use super::*;
use proptest::prelude::*;

const MSS: u16 = 1460;
const MSS_BYTES: u32 = MSS as u32;

/// An acknowledgement of a sender whose window is full.
fn full(control: &Control, acked_bytes: u32, srtt_us: u32) -> Ack {
    Ack {
        acked_bytes,
        in_flight_bytes: control.cwnd_bytes(),
        most_in_flight_bytes: 0,
        app_limited: false,
        srtt_us,
        marked_bytes: 0,
    }
}

/// Acknowledges segments one by one, a window per `rtt_us`, from `from_us` until `to_us`.
fn run(control: &mut Control, rtt_us: u32, from_us: u64, to_us: u64) {
    let mut now_us = from_us;
    while now_us < to_us {
        let segments = control.cwnd_bytes() / MSS_BYTES;
        let gap_us = (rtt_us / segments).max(1);
        for _ in 0..segments {
            now_us += u64::from(gap_us);
            let ack = full(control, MSS_BYTES, rtt_us);
            control.on_ack(&ack, now_us);
        }
    }
}

/// In congestion avoidance after one reduction from `cwnd_segments`.
fn reduced(kind: Kind, cwnd_segments: u32) -> Control {
    let mut control = Control::new(kind, MSS, cwnd_segments);
    control.on_congestion(control.cwnd_bytes());
    control
}

#[test]
fn state_is_compact() {
    assert!(size_of::<Control>() <= 40, "{}", size_of::<Control>());
}

#[test]
fn initial_window_is_rfc_6928s() {
    for (mss, iw_segments, want_bytes) in [
        (1460, 10, 14_600),
        (536, 10, 5_360),
        (8_960, 10, 17_920),
        (1460, 4, 5_840),
        (1460, 1, 1460),
    ] {
        for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
            let control = Control::new(kind, mss, iw_segments);
            assert_eq!(control.cwnd_bytes(), want_bytes);
            assert!(control.in_slow_start());
        }
    }
}

#[test]
fn slow_start_doubles_with_delayed_acks() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, MSS, 10);
        for _ in 0..5 {
            let before_bytes = control.cwnd_bytes();
            for _ in 0..before_bytes / (2 * MSS_BYTES) {
                let ack = full(&control, 2 * MSS_BYTES, 100);
                control.on_ack(&ack, 1);
            }
            assert_eq!(control.cwnd_bytes(), 2 * before_bytes);
        }
    }
}

#[test]
fn one_ack_opens_slow_start_by_what_it_acknowledges() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, MSS, 100);
        let ack = full(&control, 100 * MSS_BYTES, 100);
        control.on_ack(&ack, 1);
        assert_eq!(control.cwnd_bytes(), 200 * MSS_BYTES);
        // After a timeout too, up to the threshold.
        control.on_rto(true, control.cwnd_bytes());
        let ack = full(&control, 44 * MSS_BYTES, 100);
        control.on_ack(&ack, 2);
        assert_eq!(control.cwnd_bytes(), 45 * MSS_BYTES);
        let ack = full(&control, 400 * MSS_BYTES, 100);
        control.on_ack(&ack, 3);
        assert_eq!(control.cwnd_bytes(), control.ssthresh_bytes());
    }
}

#[test]
fn an_idle_time_halves_the_window_for_each_timeout_and_remembers_it() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = reduced(kind, 400);
        let before_bytes = control.cwnd_bytes();
        control.on_idle_restart(10, 1);
        assert_eq!(control.cwnd_bytes(), before_bytes / 2);
        assert_eq!(control.ssthresh_bytes(), before_bytes);
        control.on_idle_restart(10, 60);
        assert_eq!(control.cwnd_bytes(), 10 * MSS_BYTES);
        let mut small = Control::new(kind, MSS, 10);
        small.on_rto(true, 10 * MSS_BYTES);
        small.on_idle_restart(10, 60);
        assert_eq!(small.cwnd_bytes(), MSS_BYTES);
    }
}

#[test]
fn app_limited_window_does_not_grow() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        for control in [Control::new(kind, MSS, 10), reduced(kind, 100)] {
            let mut limited = control;
            let before_bytes = limited.cwnd_bytes();
            for now_us in 0..1000 {
                let said = Ack { app_limited: true, ..full(&limited, MSS_BYTES, 100) };
                limited.on_ack(&said, now_us * 10_000);
                // Nor if the flag is missing, but hardly anything is in flight.
                let seen = Ack { in_flight_bytes: 0, ..full(&limited, MSS_BYTES, 100) };
                limited.on_ack(&seen, now_us * 10_000);
            }
            assert_eq!(limited.cwnd_bytes(), before_bytes);
        }
    }
}

#[test]
fn a_window_acknowledged_at_once_still_grows() {
    // A peer with receive offload, or a batch of ours: one acknowledgement for the whole flight.
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, MSS, 10);
        let whole_bytes = control.cwnd_bytes();
        let ack = Ack {
            acked_bytes: whole_bytes,
            in_flight_bytes: 0,
            most_in_flight_bytes: 0,
            app_limited: false,
            srtt_us: 9,
            marked_bytes: 0,
        };
        control.on_ack(&ack, 1);
        assert!(control.cwnd_bytes() > whole_bytes);
    }
}

#[test]
fn decrease_is_multiplicative_and_floors_at_two_segments() {
    for (kind, tenths) in [(Kind::Cubic, 7), (Kind::NewReno, 5), (Kind::Dctcp, 5)] {
        let mut control = Control::new(kind, MSS, 100);
        control.on_congestion(control.cwnd_bytes());
        assert_eq!(control.cwnd_bytes(), 10 * tenths * MSS_BYTES);
        assert_eq!(control.ssthresh_bytes(), control.cwnd_bytes());
        assert!(!control.in_slow_start());
        // Limited transmit beyond the window does not count. A smaller flight does, but not for
        // CUBIC.
        let mut over = Control::new(kind, MSS, 100);
        over.on_congestion(102 * MSS_BYTES);
        assert_eq!(over.cwnd_bytes(), 10 * tenths * MSS_BYTES);
        let mut under = Control::new(kind, MSS, 100);
        under.on_congestion(50 * MSS_BYTES);
        let base = if kind == Kind::Cubic { 10 } else { 5 };
        assert_eq!(under.cwnd_bytes(), base * tenths * MSS_BYTES);
        for _ in 0..20 {
            control.on_congestion(control.cwnd_bytes());
        }
        assert_eq!(control.cwnd_bytes(), 2 * MSS_BYTES);
    }
}

#[test]
fn timeout_leaves_one_segment_and_reduces_the_threshold_once() {
    for (kind, tenths) in [(Kind::Cubic, 7), (Kind::NewReno, 5), (Kind::Dctcp, 5)] {
        let mut control = Control::new(kind, MSS, 100);
        let (flight_bytes, before) = (control.cwnd_bytes(), control);
        control.on_rto(true, flight_bytes);
        assert_eq!(control.cwnd_bytes(), MSS_BYTES);
        assert_eq!(control.ssthresh_bytes(), 10 * tenths * MSS_BYTES);
        control.on_rto(false, flight_bytes);
        assert_eq!(control.cwnd_bytes(), MSS_BYTES);
        assert_eq!(control.ssthresh_bytes(), 10 * tenths * MSS_BYTES);
        control.undo(&before);
        assert_eq!(control.cwnd_bytes(), 100 * MSS_BYTES);
        assert_eq!(control.ssthresh_bytes(), CWND_MAX_BYTES);
    }
}

#[test]
fn slow_start_after_a_timeout_ends_at_the_threshold() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, MSS, 20);
        control.on_rto(true, control.cwnd_bytes());
        let threshold_bytes = control.ssthresh_bytes();
        let mut acks = 0;
        while control.in_slow_start() {
            let ack = full(&control, MSS_BYTES, 100);
            control.on_ack(&ack, 1);
            acks += 1;
        }
        assert_eq!(control.cwnd_bytes(), threshold_bytes);
        assert_eq!(acks, threshold_bytes / MSS_BYTES - 1);
    }
}

#[test]
fn idle_restart_never_raises_the_window() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, MSS, 100);
        control.on_idle_restart(10, 20);
        assert_eq!(control.cwnd_bytes(), 10 * MSS_BYTES);
        control.on_rto(true, control.cwnd_bytes());
        control.on_idle_restart(10, 20);
        assert_eq!(control.cwnd_bytes(), MSS_BYTES);
    }
}

#[test]
fn segment_size_change_keeps_the_bytes() {
    for kind in [Kind::Cubic, Kind::NewReno, Kind::Dctcp] {
        let mut control = Control::new(kind, 8960, 10);
        let before_bytes = control.cwnd_bytes();
        control.set_mss(1460);
        assert_eq!(control.cwnd_bytes(), before_bytes);
        control.on_rto(true, before_bytes);
        assert_eq!(control.cwnd_bytes(), 1460);
        control.set_mss(8960);
        assert_eq!(control.cwnd_bytes(), 8960);
    }
}

#[test]
fn new_reno_adds_a_segment_a_round_trip() {
    let mut control = reduced(Kind::NewReno, 100);
    for rounds in 1..40 {
        for _ in 0..(control.cwnd_bytes() / MSS_BYTES) {
            let ack = full(&control, MSS_BYTES, 100);
            control.on_ack(&ack, 1);
        }
        assert_eq!(control.cwnd_bytes() / MSS_BYTES, 50 + rounds);
    }
}

#[test]
fn new_reno_grows_at_any_window() {
    // One segment in a window of a gigabyte must not be lost by rounding.
    let mut control = reduced(Kind::NewReno, 16_384);
    let before_bytes = control.cwnd_bytes();
    let mut acked_bytes = 0;
    while acked_bytes < before_bytes {
        let ack = full(&control, MSS_BYTES, 100);
        control.on_ack(&ack, 1);
        acked_bytes += MSS_BYTES;
    }
    assert_eq!(control.cwnd_bytes(), before_bytes + MSS_BYTES);
}

/// W_cubic of RFC 9438 in floating point, in segments and seconds.
fn w_cubic(w_max: f64, cwnd_epoch: f64, t: f64) -> f64 {
    let k = ((w_max - cwnd_epoch) / 0.4).cbrt();
    0.4 * (t - k).powi(3) + w_max
}

#[test]
fn cubic_follows_the_curve_of_rfc_9438() {
    // Long round trips: far from the Reno-friendly region.
    let rtt_us = 100_000;
    for segments in [200u32, 1_000, 5_000] {
        let mut control = reduced(Kind::Cubic, segments);
        let epoch = f64::from(control.cwnd_bytes()) / f64::from(MSS_BYTES);
        let mut now_us = 5_000_000_000; // beyond 32 bits of microseconds
        let start_us = now_us;
        for _ in 0..40 {
            run(&mut control, rtt_us, now_us, now_us + 500_000);
            now_us += 500_000;
            let t = (now_us - start_us) as f64 / 1e6;
            let window = f64::from(control.cwnd_bytes()) / f64::from(MSS_BYTES);
            // The window approaches W_cubic(t + RTT) over one round trip.
            let low = w_cubic(f64::from(segments), epoch, t - 0.2);
            let high = w_cubic(f64::from(segments), epoch, t + 0.3);
            assert!(
                window >= low * 0.99 && window <= high * 1.01,
                "{segments} segments, {t} s: {window} not in {low}..{high}"
            );
        }
    }
}

#[test]
fn cubic_is_reno_friendly_at_short_round_trips() {
    // At 100 µs the curve stands still. The window grows by alpha = 9/17 segments per round trip
    // until it is back at the window before the reduction, then by one.
    let rtt_us = 100;
    let mut control = reduced(Kind::Cubic, 100);
    let rounds = |control: &mut Control, count: u64| {
        let mut acked = 0u64;
        for _ in 0..count {
            for _ in 0..control.cwnd_bytes() / MSS_BYTES {
                let ack = full(control, MSS_BYTES, rtt_us);
                control.on_ack(&ack, 1_000_000 + acked / 10);
                acked += 1;
            }
        }
    };
    rounds(&mut control, 34);
    let window = f64::from(control.cwnd_bytes()) / f64::from(MSS_BYTES);
    assert!((window - (70.0 + 34.0 * 9.0 / 17.0)).abs() < 1.0, "{window}");
    rounds(&mut control, 23);
    let window = f64::from(control.cwnd_bytes()) / f64::from(MSS_BYTES);
    assert!((window - 100.0).abs() < 1.5, "{window}");
    rounds(&mut control, 20);
    let window = f64::from(control.cwnd_bytes()) / f64::from(MSS_BYTES);
    assert!((window - 120.0).abs() < 2.0, "{window}");
}

#[test]
fn cubic_converges_fast() {
    // Reduced again below W_max: the new plateau is at 0.85 of the window. After the same time this
    // flow has less than one that was reduced at its W_max.
    let mut again = reduced(Kind::Cubic, 1_000);
    again.on_congestion(again.cwnd_bytes());
    let mut first = reduced(Kind::Cubic, 700);
    assert_eq!(again.cwnd_bytes(), first.cwnd_bytes());
    // K is (0.15 * 700 / 0.4)^(1/3) = 6.4 s here, and 8.1 s there.
    run(&mut again, 50_000, 0, 6_400_000);
    run(&mut first, 50_000, 0, 6_400_000);
    let (again, first) = (again.cwnd_bytes() / MSS_BYTES, first.cwnd_bytes() / MSS_BYTES);
    assert!((590..600).contains(&again), "{again}");
    assert!(first > again + 80, "{first} {again}");
}

#[test]
fn cubic_does_not_count_app_limited_time() {
    let mut steady = reduced(Kind::Cubic, 1_000);
    let mut paused = steady;
    run(&mut steady, 10_000, 0, 2_000_000);
    run(&mut paused, 10_000, 0, 2_000_000);
    // Ten seconds of requests and replies.
    for tenths in 0..100 {
        let ack = Ack {
            acked_bytes: 64,
            in_flight_bytes: 0,
            most_in_flight_bytes: 0,
            app_limited: true,
            srtt_us: 10_000,
            marked_bytes: 0,
        };
        paused.on_ack(&ack, 2_000_000 + (tenths + 1) * 100_000);
    }
    run(&mut steady, 10_000, 2_000_000, 4_000_000);
    run(&mut paused, 10_000, 12_000_000, 14_000_000);
    let (steady, paused) = (steady.cwnd_bytes() / MSS_BYTES, paused.cwnd_bytes() / MSS_BYTES);
    assert!(steady.abs_diff(paused) <= 2, "{steady} {paused}");
}

#[test]
fn cubic_undo_continues_on_the_curve() {
    let mut steady = reduced(Kind::Cubic, 1_000);
    run(&mut steady, 20_000, 0, 3_000_000);
    let mut undone = steady;
    undone.on_congestion(undone.cwnd_bytes());
    undone.undo(&steady);
    assert_eq!(undone.cwnd_bytes(), steady.cwnd_bytes());
    run(&mut steady, 20_000, 3_000_000, 12_000_000);
    run(&mut undone, 20_000, 3_000_000, 12_000_000);
    let (steady, undone) = (steady.cwnd_bytes() / MSS_BYTES, undone.cwnd_bytes() / MSS_BYTES);
    assert!(steady.abs_diff(undone) <= steady / 50, "{steady} {undone}");
}

#[test]
fn cubic_survives_the_wrap_of_its_clock() {
    // Milliseconds in 32 bits wrap after 49.7 days.
    let wrap_us = (1u64 << 32) * 1000;
    let mut early = reduced(Kind::Cubic, 500);
    let mut late = early;
    run(&mut early, 50_000, 1_000_000, 11_000_000);
    run(&mut late, 50_000, wrap_us - 5_000_000, wrap_us + 5_000_000);
    assert_eq!(early.cwnd_bytes(), late.cwnd_bytes());
}

#[derive(Clone, Debug)]
enum Step {
    Ack(u32, u32, bool, u32, u64),
    Congestion(u32),
    Mark(u32),
    Rto(bool, u32),
    Undo,
    Idle(u32),
    Mss(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u32>(), any::<u32>(), any::<bool>(), any::<u32>(), 0..1u64 << 44)
            .prop_map(|(a, f, l, r, t)| Step::Ack(a >> (a % 32), f >> (f % 32), l, r, t >> (t % 44))),
        1 => any::<u32>().prop_map(Step::Congestion),
        1 => any::<u32>().prop_map(Step::Mark),
        1 => (any::<bool>(), any::<u32>()).prop_map(|(first, f)| Step::Rto(first, f)),
        1 => Just(Step::Undo),
        1 => any::<u32>().prop_map(Step::Idle),
        1 => any::<u16>().prop_map(Step::Mss),
    ]
}

proptest! {
    /// Any reports in any order: no overflow, never less than a segment, never more than the
    /// maximum, and each report moves the window in its own direction only.
    #[test]
    fn window_keeps_its_bounds(
        kind in prop::sample::select(vec![Kind::Cubic, Kind::NewReno, Kind::Dctcp]),
        mss in any::<u16>(),
        iw_segments in any::<u32>(),
        steps in proptest::collection::vec(step(), 0..200),
    ) {
        let mut control = Control::new(kind, mss, iw_segments);
        let mut before = control;
        let mut mss_bytes = u32::from(mss.max(1));
        let mut now_us = 0u64;
        for step in steps {
            let before_bytes = control.cwnd_bytes();
            match step {
                Step::Ack(acked_bytes, in_flight_bytes, app_limited, srtt_us, dt_us) => {
                    now_us += dt_us;
                    let marked = srtt_us % 5 == 0;
                    let marked_bytes = if marked { acked_bytes } else { 0 };
                    let ack =
                        Ack {
                            acked_bytes,
                            in_flight_bytes,
                            most_in_flight_bytes: 0,
                            app_limited,
                            srtt_us,
                            marked_bytes,
                        };
                    control.on_ack(&ack, now_us);
                    prop_assert!(control.cwnd_bytes() >= before_bytes);
                    if app_limited || marked_bytes > 0 {
                        prop_assert_eq!(control.cwnd_bytes(), before_bytes);
                    }
                }
                Step::Congestion(flight_bytes) => {
                    before = control;
                    control.on_congestion(flight_bytes);
                    prop_assert!(control.cwnd_bytes() <= before_bytes.max(2 * mss_bytes));
                    prop_assert!(control.cwnd_bytes() >= 2 * mss_bytes);
                }
                Step::Mark(flight_bytes) => {
                    control.on_ecn(flight_bytes);
                    prop_assert!(control.cwnd_bytes() <= before_bytes.max(2 * mss_bytes));
                }
                Step::Rto(first, flight_bytes) => {
                    let threshold_bytes = control.ssthresh_bytes();
                    control.on_rto(first, flight_bytes);
                    prop_assert_eq!(control.cwnd_bytes(), mss_bytes);
                    if !first {
                        prop_assert_eq!(control.ssthresh_bytes(), threshold_bytes);
                    }
                }
                Step::Undo => {
                    control.undo(&before);
                    prop_assert!(control.cwnd_bytes() >= before_bytes);
                }
                Step::Idle(segments) => {
                    control.on_idle_restart(segments, 20);
                    prop_assert!(control.cwnd_bytes() <= before_bytes);
                }
                Step::Mss(mss) => {
                    control.set_mss(mss);
                    mss_bytes = u32::from(mss.max(1));
                }
            }
            prop_assert!(control.cwnd_bytes() > 0);
            prop_assert!(control.cwnd_bytes() <= CWND_MAX_BYTES);
            prop_assert!(control.ssthresh_bytes() > 0);
        }
    }
}

/// What a sender of 1000-byte segments sees, one letter per event, from the initial window on. `a`:
/// a whole window acknowledged, segment by segment, in a round trip of 20 ms; `m`: the same, every
/// second segment marked; `l`: loss; `t`: timeout; `u`: the last reduction was a mistake; `e`: a
/// mark is echoed; `i`: idle.
fn log(kind: Kind, events: &str) -> String {
    use std::fmt::Write;
    let mut control = Control::new(kind, 1000, 10);
    let mut before = control;
    let mut log = String::new();
    let mut now_us = 1_000_000;
    for event in events.chars() {
        match event {
            'a' | 'm' => {
                for segment in 0..control.cwnd_bytes() / 1000 {
                    let marked = event == 'm' && segment % 2 == 1;
                    let in_flight_bytes = control.cwnd_bytes();
                    let ack = Ack {
                        acked_bytes: 1000,
                        in_flight_bytes,
                        most_in_flight_bytes: 0,
                        app_limited: false,
                        srtt_us: 20_000,
                        marked_bytes: if marked { 1000 } else { 0 },
                    };
                    control.on_ack(&ack, now_us);
                }
                now_us += 20_000;
            }
            'l' => {
                before = control;
                control.on_congestion(control.cwnd_bytes());
            }
            't' => {
                before = control;
                control.on_rto(true, control.cwnd_bytes());
            }
            'u' => control.undo(&before),
            'e' => control.on_ecn(control.cwnd_bytes()),
            'i' => control.on_idle_restart(10, 20),
            _ => unreachable!("{event}"),
        }
        let threshold = match control.ssthresh_bytes() {
            CWND_MAX_BYTES => "-".to_owned(),
            bytes => bytes.to_string(),
        };
        write!(log, "{event}:{}/{threshold} ", control.cwnd_bytes()).unwrap();
    }
    log
}

#[test]
fn the_log_of_new_reno() {
    // RFC 5681: slow start doubles; a loss halves, then the window grows by a segment per round
    // trip; a timeout leaves one segment, which doubles up to half the flight.
    assert_eq!(
        log(Kind::NewReno, "aalaaltaaaauei"),
        "a:20000/- a:40000/- l:20000/20000 a:21000/20000 a:22000/20000 l:11000/11000 \
         t:1000/5500 a:2000/5500 a:4000/5500 a:5500/5500 a:6500/5500 u:11000/11000 \
         e:5500/5500 i:5500/5500 "
    );
}

#[test]
fn the_log_of_cubic() {
    // RFC 9438: beta is 0.7, and a mistake is undone. 20 ms after a loss at 40 segments the curve
    // is where it began, because K = (12 / 0.4)^(1/3) = 3.1 s. The window is then Reno's, which
    // grows by 9/17 of a segment per round trip.
    assert_eq!(
        log(Kind::Cubic, "aalulti"),
        "a:20000/- a:40000/- l:28000/28000 u:40000/- l:28000/28000 t:1000/19600 i:1000/19600 "
    );
    let mut control = reduced(Kind::Cubic, 40);
    run(&mut control, 20_000, 1_000_000, 1_020_000);
    let grown_bytes = control.cwnd_bytes() - 28 * MSS_BYTES;
    assert!(grown_bytes <= 2 * MSS_BYTES * 9 / 17 + 100, "{grown_bytes}");
}

#[test]
fn the_log_of_dctcp() {
    // RFC 8257: alpha begins at 1, so the first mark halves the window. With every second byte
    // marked alpha moves by 1/16 of its distance to 1/2; without marks it decays by 1/16 per
    // window.
    let mut control = Control::new(Kind::Dctcp, 1000, 10);
    control.on_ecn(10_000);
    assert_eq!(control.cwnd_bytes(), 5_000);
    let alpha = |control: &Control| match control {
        Control::Dctcp(dctcp) => dctcp.alpha_permille(),
        _ => unreachable!(),
    };
    assert_eq!(alpha(&control), 1000);
    let window = |control: &mut Control, marked: bool, windows: u32| {
        for segment in 0..windows * 100 {
            let ack = Ack {
                acked_bytes: 1000,
                in_flight_bytes: 100_000,
                most_in_flight_bytes: 0,
                app_limited: true,
                srtt_us: 100,
                marked_bytes: if marked && segment % 2 == 0 { 1000 } else { 0 },
            };
            control.on_ack(&ack, 1);
        }
    };
    window(&mut control, true, 100);
    assert!((495..=505).contains(&alpha(&control)), "{}", alpha(&control));
    // (15/16)^11 = 0.49; the current window may have begun with marks.
    window(&mut control, false, 11);
    assert!((240..=280).contains(&alpha(&control)), "{}", alpha(&control));
    let before_bytes = control.cwnd_bytes();
    control.on_ecn(before_bytes);
    let cut_permille = (before_bytes - control.cwnd_bytes()) * 1000 / before_bytes;
    assert!((120..=140).contains(&cut_permille), "{cut_permille}");
    // And to nothing, so that a queue that is never marked costs nothing.
    window(&mut control, false, 200);
    assert_eq!(alpha(&control), 0);
}

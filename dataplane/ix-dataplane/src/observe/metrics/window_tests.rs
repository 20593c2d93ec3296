//! The arithmetic against a naive model, and reading while another thread writes.
use super::*;
use proptest::prelude::*;

fn block() -> Box<WindowBlock> {
    Box::new(WindowBlock {
        sequence: AtomicU64::new(0),
        words: std::array::from_fn(|_| Metric::default()),
    })
}

/// The papers' rule, window by window.
fn model(values: &[f64], alpha: f64) -> f64 {
    values.iter().fold(0.0, |old, value| alpha * value + (1.0 - alpha) * old)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs()).max(1.0)
}

#[derive(Clone, Debug)]
struct Step {
    /// Packets taken and left behind by each receiving cycle.
    cycles: Vec<(u64, u64)>,
    /// Share of the window that was idle, percent.
    idle: u64,
    /// Length in windows.
    windows: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let cycles = prop::collection::vec((1u64..=64, 0u64..2_000), 0..20);
    (cycles, 0u64..=100, 1u64..=5).prop_map(|(cycles, idle, windows)| Step {
        cycles,
        idle,
        windows,
    })
}

proptest! {
    #[test]
    fn averages_are_those_of_the_papers(steps in prop::collection::vec(step(), 1..12)) {
        const TICKS_PER_US: u64 = 3;
        let block = block();
        let (mut now, mut counters) = (1 << 40, (0, 0));
        let mut window = Window::new(now, TICKS_PER_US);
        let (mut depths, mut batches, mut times) = (vec![], vec![], vec![]);
        let (mut idles, mut delays, mut rates) = (vec![], vec![], vec![]);
        for Step { cycles, idle, windows } in &steps {
            let length = WINDOW_US * TICKS_PER_US * windows;
            let idle_ticks = length * idle / 100;
            let n = cycles.len() as f64;
            let taken: u64 = cycles.iter().map(|(taken, _)| taken).sum();
            let waiting: u64 = cycles.iter().map(|(taken, left)| taken + left).sum();
            window.sums =
                Sums { receiving: cycles.len() as u64, packets: taken, depth: waiting };
            counters.0 += cycles.len() as u64;
            counters.1 += idle_ticks;
            now += length - 1;
            prop_assert_eq!(window.is_over(now), *windows > 1);
            now += 1;
            prop_assert!(window.is_over(now));
            let (packets, delay_ns) = window.end(now, counters, &block);
            let or_zero = |x: f64| if cycles.is_empty() { 0.0 } else { x };
            let tau_us = or_zero((length - idle_ticks) as f64 / TICKS_PER_US as f64 / n);
            let depth = or_zero(waiting as f64 / n);
            let batch = or_zero(taken as f64 / n);
            let seconds = length as f64 / TICKS_PER_US as f64 / 1e6;
            prop_assert_eq!(packets, taken);
            let delay_us = or_zero(depth / batch * tau_us);
            prop_assert!((delay_ns as f64 - delay_us * 1e3).abs() <= 1.0 + delay_us * 1e-6);
            for _ in 0..*windows {
                depths.push(depth);
                batches.push(batch);
                times.push(tau_us);
                idles.push(idle_ticks as f64 / length as f64);
                delays.push(delay_us);
                rates.push(taken as f64 / seconds);
            }
        }
        let metrics = block.read().expect("nobody writes");
        for (i, alpha) in ALPHAS.into_iter().enumerate() {
            for (got, values) in [
                (metrics.queue_depth, &depths),
                (metrics.batch, &batches),
                (metrics.iteration_us, &times),
                (metrics.idle, &idles),
                (metrics.queueing_delay_us, &delays),
                (metrics.rate_per_s, &rates),
            ] {
                prop_assert!(near(got[i], model(values, alpha)), "{:?} {:?}", got, values);
            }
        }
        let (q, tau) = (metrics.queue_depth[0], metrics.iteration_us[0]);
        prop_assert_eq!(metrics.tail_us(64, 0), (q / 64.0).ceil() * tau);
        // A late reader sees the idle windows that were not written.
        let late = metrics.after_idle_us(3 * WINDOW_US + 1);
        depths.extend([0.0; 3]);
        idles.extend([1.0; 3]);
        for (i, alpha) in ALPHAS.into_iter().enumerate() {
            prop_assert!(near(late.queue_depth[i], model(&depths, alpha)));
            prop_assert!(near(late.idle[i], model(&idles, alpha)));
        }
        prop_assert_eq!(metrics.after_idle_us(WINDOW_US - 1), metrics);
    }
}

#[test]
fn a_reader_never_sees_half_of_an_update() {
    let block = block();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=200_000 {
                let round = f64::from(round);
                let mut metrics = WindowMetrics::default();
                metrics.fields_mut().into_iter().for_each(|field| *field = [round; 3]);
                block.publish(&metrics);
            }
        });
        let mut last = 0.0;
        while !writer.is_finished() {
            // The writer never pauses: a read may fail now and then.
            let Some(mut metrics) = block.read() else { continue };
            let first = metrics.queue_depth[0];
            assert!(metrics.fields_mut().into_iter().flatten().all(|value| *value == first));
            assert!(first >= last, "{first} after {last}");
            last = first;
        }
    });
    // A writer that died while it was writing.
    block.sequence.store(7, Ordering::Relaxed);
    assert_eq!(block.read(), None);
}

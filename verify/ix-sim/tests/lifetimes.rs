//! Whole lives of connections on networks that spoil every fifth frame: none may break a rule, and
//! all states must have been there. `ix sim --lifetimes 1000000 --jobs 2` is the long one.
use ix_sim::lifetimes::{self, Lived};
use ix_sim::observer::Lives;

fn live(first: u64, count: u64) -> Lives {
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) as u64;
    let say = |lives, total| eprintln!("{lives} of {total} lives");
    let lives = lifetimes::run(first, count, jobs, say);
    let Lived { lives, virtual_time } = lives.unwrap_or_else(|(seed, outcome)| {
        panic!("seed {seed}; `ix sim --scenario lives --seed {seed}` repeats it: {outcome:#?}")
    });
    println!("{lives}in {} s of virtual time", virtual_time.as_secs());
    assert!(virtual_time.as_secs() > 0);
    assert!(lives.median_segments() >= 20, "{lives}");
    assert!(lives.median_faults() >= 3, "{lives}");
    let of_v6 = lives.of_v6 as f64 / lives.count as f64;
    assert!((0.3..0.7).contains(&of_v6), "{of_v6} over IPv6: {lives}");
    assert_eq!(lives.missing(), [], "{lives}");
    lives
}

#[test]
fn thousands_live_without_a_violation() {
    live(70_000, 10_000);
}

/// For `.ci/run nightly`: within ten minutes on two cores.
#[test]
#[ignore = "takes minutes"]
fn a_million_live_without_a_violation() {
    assert!(live(1_000_000, 1_000_000).count >= 1_000_000);
}

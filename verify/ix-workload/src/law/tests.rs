use super::*;

const DRAWS: usize = 200_000;

fn draws(law: &Law, seed: u64) -> Vec<f64> {
    let mut rng = Rng::new(seed);
    let mut all: Vec<f64> = (0..DRAWS).map(|_| law.draw(&mut rng)).collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Largest distance between the sample's distribution and the law's.
fn kolmogorov_smirnov(sample: &[f64], cdf: impl Fn(f64) -> f64) -> f64 {
    let n = sample.len() as f64;
    let gap = |(i, x): (usize, &f64)| {
        let expected = cdf(*x);
        (expected - i as f64 / n).abs().max(((i + 1) as f64 / n - expected).abs())
    };
    sample.iter().enumerate().map(gap).fold(0.0, f64::max)
}

/// Critical distance at the level 0.001.
fn critical(n: usize) -> f64 {
    1.95 / (n as f64).sqrt()
}

#[test]
fn continuous_laws_follow_their_closed_forms() {
    let pareto =
        |l: f64, s: f64, k: f64| move |x: f64| 1.0 - (1.0 + k * (x - l) / s).powf(-1.0 / k);
    let gev = |l: f64, s: f64, k: f64| {
        move |x: f64| (-(1.0 + k * (x - l) / s).max(0.0).powf(-1.0 / k)).exp()
    };
    type Cdf = Box<dyn Fn(f64) -> f64>;
    let cases: Vec<(Law, Cdf)> = vec![
        (FB_KEY, Box::new(gev(30.7984, 8.20449, 0.078688))),
        (FB_IA, Box::new(pareto(0.0, 16.0292, 0.154971))),
        (Law::Exponential(0.25), Box::new(|x| 1.0 - (-0.25 * x).exp())),
        (Law::Uniform(3.0, 7.0), Box::new(|x| (x - 3.0) / 4.0)),
        (Law::Gev(1.0, 2.0, 0.0), Box::new(|x| (-(-(x - 1.0) / 2.0).exp()).exp())),
        (Law::Pareto(1.0, 2.0, 0.0), Box::new(|x| 1.0 - (-(x - 1.0) / 2.0).exp())),
    ];
    for (index, (law, cdf)) in cases.into_iter().enumerate() {
        let distance = kolmogorov_smirnov(&draws(&law, 42 + index as u64), cdf);
        assert!(distance < critical(DRAWS), "{law}: {distance}");
    }
}

#[test]
fn a_wrong_parameter_would_be_seen() {
    let off_by_two_percent = |x: f64| 1.0 - (-0.255 * x).exp();
    let distance = kolmogorov_smirnov(&draws(&Law::Exponential(0.25), 1), off_by_two_percent);
    assert!(distance > critical(DRAWS));
}

#[test]
fn normal_laws_have_their_moments() {
    let sample = draws(&Law::Normal(50.0, 4.0), 7);
    let mean = sample.iter().sum::<f64>() / DRAWS as f64;
    let variance = sample.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / DRAWS as f64;
    // Five standard errors.
    assert!((mean - 50.0).abs() < 5.0 * 4.0 / (DRAWS as f64).sqrt(), "{mean}");
    assert!((variance - 16.0).abs() < 5.0 * 16.0 * (2.0 / DRAWS as f64).sqrt(), "{variance}");
    // Quantiles of the normal law at ±1 and ±2 deviations.
    for (z, p) in [(-2.0, 0.02275), (-1.0, 0.15866), (1.0, 0.84134), (2.0, 0.97725)] {
        let below = sample.partition_point(|x| *x < 50.0 + 4.0 * z) as f64 / DRAWS as f64;
        assert!((below - p).abs() < 0.005, "{z}: {below}");
    }
    let logs: Vec<f64> = draws(&Law::LogNormal(2.0, 0.5), 8).iter().map(|x| x.ln()).collect();
    let mean = logs.iter().sum::<f64>() / DRAWS as f64;
    assert!((mean - 2.0).abs() < 0.01, "{mean}");
}

#[test]
fn sizes_of_values_in_etc() {
    let sample = draws(&Law::FbValue, 3);
    // Chi squared over the table's sizes and the rest, 15 degrees of freedom: 37.7 at 0.001.
    let mut expected: Vec<f64> = facebook::SMALL.to_vec();
    expected.push(1.0 - expected.iter().sum::<f64>());
    assert!((expected[15] - 0.55845).abs() < 1e-9, "the table of the workload sums to 0.44155");
    let mut seen = [0.0; 16];
    sample.iter().for_each(|x| seen[(*x as usize).min(15)] += 1.0);
    let chi: f64 = seen
        .iter()
        .zip(&expected)
        .map(|(seen, p)| (seen - p * DRAWS as f64).powi(2) / (p * DRAWS as f64))
        .sum();
    assert!(chi < 37.7, "{chi}");
    let rest = &sample[sample.partition_point(|x| *x < 15.0)..];
    let cdf = |x: f64| 1.0 - (1.0 + 0.348238 * (x - 15.0) / 214.476f64).powf(-1.0 / 0.348238);
    let distance = kolmogorov_smirnov(rest, cdf);
    assert!(distance < critical(rest.len()), "{distance}");
}

#[test]
fn popularity_by_zipf() {
    for (n, s) in [(10u64, 0.0), (100, 0.5), (50, 1.0), (1000, 0.99), (20, 2.5), (1, 1.0)] {
        let zipf = Zipf::new(n, s);
        let mut rng = Rng::new(9);
        let mut seen = vec![0.0; n as usize];
        (0..DRAWS).for_each(|_| seen[zipf.draw(&mut rng) as usize] += 1.0);
        let weights: Vec<f64> = (1..=n).map(|k| (k as f64).powf(-s)).collect();
        let total: f64 = weights.iter().sum();
        let expected = weights.iter().map(|w| w / total * DRAWS as f64);
        let chi: f64 = seen.iter().zip(expected).map(|(seen, e)| (seen - e).powi(2) / e).sum();
        // Mean and deviation of chi squared; 4.5 deviations.
        let free = (n - 1) as f64;
        assert!(chi < free + 4.5 * (2.0 * free).sqrt() + 1.0, "n {n} s {s}: {chi}");
    }
}

#[test]
fn texts() {
    for text in ["30", "uniform:1:100", "pareto:0:16.0292:0.154971", "bimodal:0.9:1:10", "fb_value"]
    {
        let law: Law = text.parse().unwrap();
        assert_eq!(law.to_string(), text);
    }
    assert_eq!("gev:30.7984,8.20449,0.078688".parse(), Ok(FB_KEY));
    assert_eq!("fb_ia".parse(), Ok(FB_IA));
    assert_eq!("fb_key".parse(), Ok(FB_KEY));
    for wrong in ["", "-3", "uniform:5:1", "uniform", "gev:1:2", "normal:a:b", "fb", "nan", "inf"] {
        assert!(wrong.parse::<Law>().is_err(), "{wrong}");
    }
    assert!("file:/no/such/file".parse::<Law>().unwrap_err().contains("/no/such/file"));
    let path = std::env::temp_dir().join(format!("ix-load-law-{}", std::process::id()));
    std::fs::write(&path, "5\n7\n5\n").unwrap();
    let law: Law = format!("file:{}", path.display()).parse().unwrap();
    std::fs::remove_file(&path).unwrap();
    let fives = draws(&law, 1).iter().filter(|x| **x == 5.0).count() as f64 / DRAWS as f64;
    assert!((fives - 2.0 / 3.0).abs() < 0.01, "{fives}");
}

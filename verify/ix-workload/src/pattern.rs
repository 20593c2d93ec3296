//! Rates that change in the course of a run: mutilate's qps functions.
use ix_random::mix;
use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

/// A rate as a function of time.
#[derive(Clone, Debug, PartialEq)]
pub enum Rate {
    /// Always the same, a second.
    Constant(f64),
    /// From `min` up to `max`, `hold_s` there, and down again, once in `period_s`; in steps of
    /// `step` if that is above 0.
    Triangle {
        /// Lowest rate.
        min: f64,
        /// Highest rate.
        max: f64,
        /// Up and down again.
        period_s: f64,
        /// Time at the top.
        hold_s: f64,
        /// Height of a step; 0: a slope.
        step: f64,
    },
    /// A sine from `min` over `max` back to `min` in `period_s`, plus noise that is uniform within
    /// ±`noise` and redrawn each `redraw_s`.
    SinNoise {
        /// Lowest rate of the sine.
        min: f64,
        /// Highest rate of the sine.
        max: f64,
        /// Period of the sine.
        period_s: f64,
        /// Amplitude of the noise.
        noise: f64,
        /// How long a draw of the noise holds.
        redraw_s: f64,
    },
}

impl Rate {
    /// The rate `at_s` seconds into the run. The noise is a function of the seed.
    pub fn at(&self, at_s: f64, seed: u64) -> f64 {
        match *self {
            Rate::Constant(rate) => rate,
            Rate::Triangle { min, max, period_s, hold_s, step } => {
                let phase = at_s.rem_euclid(period_s);
                let slope_s = (period_s - hold_s) / 2.0;
                let height = (phase.min(period_s - phase) / slope_s).min(1.0) * (max - min);
                let height = if step > 0.0 { (height / step).floor() * step } else { height };
                min + height
            }
            Rate::SinNoise { min, max, period_s, noise, redraw_s } => {
                let sine = (1.0 - (TAU * at_s / period_s).cos()) / 2.0;
                let draw = mix(seed ^ mix((at_s / redraw_s).floor() as u64)) >> 11;
                let noise = noise * (2.0 * draw as f64 / (1u64 << 53) as f64 - 1.0);
                (min + sine * (max - min) + noise).max(0.0)
            }
        }
    }

    /// The mean rate between two times, to 1/50 of their distance.
    pub fn mean(&self, from_s: f64, to_s: f64, seed: u64) -> f64 {
        const STEPS: u32 = 50;
        if let Rate::Constant(rate) = self {
            return *rate;
        }
        let step_s = (to_s - from_s) / f64::from(STEPS);
        let at = |step| self.at(from_s + step_s * (f64::from(step) + 0.5), seed);
        (0..STEPS).map(at).sum::<f64>() / f64::from(STEPS)
    }

    /// The highest rate.
    pub fn peak(&self) -> f64 {
        match *self {
            Rate::Constant(rate) => rate,
            Rate::Triangle { max, .. } => max,
            Rate::SinNoise { max, noise, .. } => max + noise,
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let numbers: Vec<f64> = words
            .map(|word| word.parse().map_err(|_| format!("`{word}` in `{text}` is not a number")))
            .collect::<Result<_, _>>()?;
        let rate = match (name, numbers[..].as_ref()) {
            ("constant", &[rate]) => Rate::Constant(rate),
            ("triangle", &[min, max, period_s]) => {
                Rate::Triangle { min, max, period_s, hold_s: 0.0, step: 0.0 }
            }
            ("triangle", &[min, max, period_s, hold_s]) => {
                Rate::Triangle { min, max, period_s, hold_s, step: 0.0 }
            }
            ("qtriangle", &[min, max, period_s, step]) => {
                Rate::Triangle { min, max, period_s, hold_s: 0.0, step }
            }
            ("sin_noise", &[min, max, period_s, noise, redraw_s]) => {
                Rate::SinNoise { min, max, period_s, noise, redraw_s }
            }
            _ => {
                return Err(format!(
                    "`{text}` is not a pattern; use triangle:MIN:MAX:PERIOD:HOLD, \
                     qtriangle:MIN:MAX:PERIOD:STEP or sin_noise:MIN:MAX:PERIOD:NOISE:REDRAW"
                ));
            }
        };
        rate.checked().ok_or_else(|| {
            format!("`{text}` makes no sense: 0 <= MIN <= MAX, 0 < PERIOD, HOLD below PERIOD")
        })
    }
}

impl Rate {
    fn checked(self) -> Option<Rate> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let fine = match self {
            Rate::Constant(rate) => positive(rate),
            Rate::Triangle { min, max, period_s, hold_s, step } => {
                let top = hold_s >= 0.0 && hold_s < period_s && step >= 0.0;
                min >= 0.0 && positive(max) && min <= max && positive(period_s) && top
            }
            Rate::SinNoise { min, max, period_s, noise, redraw_s } => {
                let noisy = noise >= 0.0 && noise.is_finite() && positive(redraw_s);
                min >= 0.0 && positive(max) && min <= max && positive(period_s) && noisy
            }
        };
        fine.then_some(self)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Constant(rate) => write!(f, "{rate}"),
            Rate::Triangle { min, max, period_s, hold_s, step: 0.0 } => {
                write!(f, "triangle:{min}:{max}:{period_s}:{hold_s}")
            }
            Rate::Triangle { min, max, period_s, step, .. } => {
                write!(f, "qtriangle:{min}:{max}:{period_s}:{step}")
            }
            Rate::SinNoise { min, max, period_s, noise, redraw_s } => {
                write!(f, "sin_noise:{min}:{max}:{period_s}:{noise}:{redraw_s}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn the_slope_of_the_papers() {
        let slope = rate("triangle:10000:6300000:240:0");
        for (at_s, expected) in [
            (0.0, 10_000.0),
            (60.0, 3_155_000.0),
            (120.0, 6_300_000.0),
            (180.0, 3_155_000.0),
            (240.0, 10_000.0),
            (300.0, 3_155_000.0),
        ] {
            assert!((slope.at(at_s, 0) - expected).abs() < 1e-6, "{at_s}");
        }
        assert!((slope.mean(0.0, 240.0, 0) - 3_155_000.0).abs() < 2000.0);
        let held = rate("triangle:0:100:100:20");
        assert_eq!(held.at(40.0, 0), 100.0);
        assert_eq!(held.at(59.9, 0), 100.0);
        assert_eq!(held.at(20.0, 0), 50.0);
        assert_eq!(held.at(80.0, 0), 50.0);
    }

    /// The papers' step: + 500 K about each 10 s.
    #[test]
    fn the_steps_of_the_papers() {
        let steps = rate("qtriangle:700000:6300000:240:500000");
        assert_eq!(steps.at(0.0, 0), 700_000.0);
        assert_eq!(steps.at(10.6, 0), 700_000.0);
        assert_eq!(steps.at(10.8, 0), 1_200_000.0);
        assert_eq!(steps.at(120.0, 0), 6_200_000.0);
        assert_eq!(steps.at(229.2, 0), 1_200_000.0);
        assert_eq!(steps.at(229.4, 0), 700_000.0);
        let levels: std::collections::BTreeSet<u64> =
            (0..2400).map(|tenth| steps.at(f64::from(tenth) / 10.0, 0) as u64).collect();
        assert_eq!(levels.len(), 12);
    }

    /// The papers' noise: uniform within ± 250 K, redrawn each 5 s.
    #[test]
    fn the_sine_with_noise_of_the_papers() {
        let noisy = rate("sin_noise:500000:6000000:240:250000:5");
        let sine = rate("sin_noise:500000:6000000:240:0:5");
        assert!((sine.at(0.0, 1) - 500_000.0).abs() < 1e-6);
        assert!((sine.at(60.0, 1) - 3_250_000.0).abs() < 1e-6);
        assert!((sine.at(120.0, 1) - 6_000_000.0).abs() < 1e-6);
        let noise = |at_s| noisy.at(at_s, 1) - sine.at(at_s, 1);
        let draws: Vec<f64> = (0..2000).map(|k| noise(5.0 * f64::from(k) + 2.0)).collect();
        assert!(draws.iter().all(|d| d.abs() <= 250_000.0));
        let mean = draws.iter().sum::<f64>() / 2000.0;
        assert!(mean.abs() < 5.0 * 250_000.0 / (3.0f64 * 2000.0).sqrt(), "{mean}");
        let spread = draws.iter().map(|d| d * d).sum::<f64>() / 2000.0 / (250_000f64.powi(2) / 3.0);
        assert!((0.9..1.1).contains(&spread), "{spread}");
        assert!((noise(1.0) - noise(4.9)).abs() < 1e-3, "it holds for 5 s");
        assert_ne!(noisy.at(2.0, 1), noisy.at(2.0, 2), "the seed draws it");
    }

    #[test]
    fn wrong_texts() {
        for wrong in [
            "",
            "triangle",
            "triangle:5:1:10",
            "triangle:1:5:0",
            "triangle:0:5:10:10",
            "sin_noise:1:2:3",
            "square:1:2:3",
            "qtriangle:a:b:c:d",
            "triangle:-1:5:10:0",
        ] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        assert_eq!(
            rate("qtriangle:700000:6300000:240:500000").to_string(),
            "qtriangle:700000:6300000:240:500000"
        );
    }
}

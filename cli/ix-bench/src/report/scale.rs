//! Turns values into positions along an axis, and chooses the ticks.

/// Larger values than this do not determine the range of an axis: no measured value is larger.
const MOST: f64 = 1e15;

/// How values become positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Evenly, from zero on.
    Linear,
    /// By their logarithm.
    Log,
}

/// An axis over `[low, high]`, drawn from `from` to `to`.
#[derive(Clone, Debug)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    /// An axis that has room for all values. Logarithms leave out what is not positive.
    pub fn over(kind: Kind, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Scale {
        let least = if kind == Kind::Log { 1.0 / MOST } else { -MOST };
        let fits = |v: &f64| (least..=MOST).contains(v);
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        values.filter(fits).for_each(|v| (low, high) = (low.min(v), high.max(v)));
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        match kind {
            Kind::Linear => {
                low = low.min(0.0);
                let step = nice_step(high.max(low + f64::MIN_POSITIVE) - low);
                high = (high / step).ceil().max(1.0) * step;
                low = (low / step).floor() * step;
            }
            // A single value is drawn in the middle.
            Kind::Log if low == high => (low, high) = (low / 2.0, high * 2.0),
            Kind::Log => {}
        }
        Scale { kind, low, high, from, to }
    }

    /// The same with a margin of a part of its length at both ends (logarithms) or the upper one.
    pub fn with_margin(mut self, part: f64) -> Scale {
        match self.kind {
            Kind::Linear => self.high += (self.high - self.low) * part,
            Kind::Log => {
                let factor = (self.high / self.low).powf(part);
                (self.low, self.high) = (self.low / factor, self.high * factor);
            }
        }
        self
    }

    /// Where a value is drawn; `None`: it has no logarithm.
    pub fn place(&self, value: f64) -> Option<f64> {
        let part = match self.kind {
            Kind::Linear => (value - self.low) / (self.high - self.low),
            Kind::Log if value <= 0.0 => return None,
            Kind::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        Some(self.from + part * (self.to - self.from)).filter(|place| place.is_finite())
    }

    /// Values that get a tick. `measured` has the points' own values, which are used when they are
    /// few.
    pub fn ticks(&self, measured: &[f64]) -> Vec<f64> {
        match self.kind {
            Kind::Linear => {
                let step = nice_step(self.high - self.low);
                let first = (self.low / step).ceil() as i64;
                (first..first + 20)
                    .map(|i| i as f64 * step)
                    .take_while(|v| *v <= self.high * (1.0 + 1e-9))
                    .collect()
            }
            Kind::Log if (2..=11).contains(&measured.len()) => measured.to_vec(),
            Kind::Log => self.log_ticks(),
        }
    }

    fn log_ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let within: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        (first..=last)
            .flat_map(|exponent| within.iter().map(move |digit| digit * 10f64.powi(exponent)))
            .filter(|v| (self.low..=self.high).contains(v))
            .collect()
    }
}

/// 1, 2 or 5 times a power of ten, so that four to eight steps make the length.
fn nice_step(length: f64) -> f64 {
    let rough = length / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0].into_iter().find(|d| d * power >= rough * 0.999);
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_begin_at_zero_and_end_at_a_tick() {
        let scale = Scale::over(Kind::Linear, [3.0, 87.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks(&[]), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(scale.place(50.0), Some(50.0));
    }

    #[test]
    fn log_axes_have_decades_or_the_measured_values() {
        let scale = Scale::over(Kind::Log, [25.0, 250_000.0, 0.0].into_iter(), 0.0, 100.0);
        assert_eq!(scale.ticks(&[]), [100.0, 1e3, 1e4, 1e5]);
        assert_eq!(scale.ticks(&[25.0, 250_000.0]), [25.0, 250_000.0]);
        assert_eq!((scale.place(25.0), scale.place(0.0)), (Some(0.0), None));
    }

    #[test]
    fn strange_values_do_no_harm() {
        for values in [&[][..], &[0.0], &[f64::NAN, f64::INFINITY], &[-5.0, 5.0], &[1e-300, 1e300]]
        {
            for kind in [Kind::Linear, Kind::Log] {
                let scale = Scale::over(kind, values.iter().copied(), 0.0, 1.0).with_margin(0.1);
                assert!(scale.ticks(&[]).len() < 700, "{values:?}");
                assert!(scale.place(1.0).is_none_or(f64::is_finite));
            }
        }
    }
}

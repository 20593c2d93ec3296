//! Laws of sizes and gaps: names and parameters as mutilate has them.
mod facebook;
mod zipf;

use ix_random::Rng;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

pub use zipf::Zipf;

/// A distribution of a non-negative quantity.
#[derive(Clone, Debug, PartialEq)]
pub enum Law {
    /// Always the same.
    Fixed(f64),
    /// Uniform between two bounds.
    Uniform(f64, f64),
    /// Mean and standard deviation.
    Normal(f64, f64),
    /// Rate: the mean is its inverse.
    Exponential(f64),
    /// Generalised Pareto: location, scale, shape.
    Pareto(f64, f64, f64),
    /// Generalised extreme value: location, scale, shape.
    Gev(f64, f64, f64),
    /// Mean and standard deviation of the logarithm.
    LogNormal(f64, f64),
    /// Probability of the first value, the first, the second.
    Bimodal(f64, f64, f64),
    /// Sizes of values in ETC (Atikoglu et al. 2012, table of mutilate).
    FbValue,
    /// Equally likely values.
    Empirical(Arc<[f64]>),
}

/// Sizes of keys in ETC.
pub const FB_KEY: Law = Law::Gev(30.7984, 8.20449, 0.078688);
/// Gaps between requests of ETC, µs.
pub const FB_IA: Law = Law::Pareto(0.0, 16.0292, 0.154971);

impl Law {
    /// One value.
    pub fn draw(&self, rng: &mut Rng) -> f64 {
        match *self {
            Law::Fixed(value) => value,
            Law::Uniform(low, high) => low + (high - low) * rng.open_unit(),
            Law::Normal(mean, deviation) => mean + deviation * normal(rng),
            Law::Exponential(rate) => -rng.open_unit().ln() / rate,
            Law::Pareto(location, scale, shape) => {
                location + scale * pareto(rng.open_unit(), shape)
            }
            Law::Gev(location, scale, shape) => {
                let log = -rng.open_unit().ln();
                let z = if shape == 0.0 { -log.ln() } else { (log.powf(-shape) - 1.0) / shape };
                location + scale * z
            }
            Law::LogNormal(mean, deviation) => (mean + deviation * normal(rng)).exp(),
            Law::Bimodal(p, first, second) => {
                if rng.open_unit() < p {
                    first
                } else {
                    second
                }
            }
            Law::FbValue => facebook::value_size(rng),
            Law::Empirical(ref values) => values[rng.below(values.len() as u64) as usize],
        }
    }

    /// One value as a size in bytes within bounds.
    #[inline]
    pub fn draw_size(&self, rng: &mut Rng, least: u32, most: u32) -> u32 {
        // A cast of a float saturates; not-a-number becomes 0.
        (self.draw(rng).round() as u32).clamp(least, most)
    }
}

/// Standard normal by Box and Muller.
fn normal(rng: &mut Rng) -> f64 {
    let radius = (-2.0 * rng.open_unit().ln()).sqrt();
    radius * (core::f64::consts::TAU * rng.open_unit()).cos()
}

/// Generalised Pareto of location 0 and scale 1, where the upper tail has weight `tail`.
fn pareto(tail: f64, shape: f64) -> f64 {
    if shape == 0.0 { -tail.ln() } else { (tail.powf(-shape) - 1.0) / shape }
}

impl FromStr for Law {
    type Err = String;

    /// `30`, `uniform:1:100`, `normal:m:s`, `exponential:rate`, `pareto:loc:scale:shape`,
    /// `gev:loc:scale:shape`, `lognormal:m:s`, `bimodal:p:a:b`, `fb_key`, `fb_value`, `fb_ia`,
    /// `file:PATH` (one number a line). Commas do for colons.
    fn from_str(text: &str) -> Result<Law, String> {
        if let Some(path) = text.strip_prefix("file:") {
            return empirical(path);
        }
        if let Ok(value) = text.parse::<f64>() {
            return if value >= 0.0 && value.is_finite() {
                Ok(Law::Fixed(value))
            } else {
                Err(format!("`{text}` is negative"))
            };
        }
        let mut words = text.split([':', ',']);
        let name = words.next().unwrap_or_default();
        let numbers: Vec<f64> = words
            .map(|word| word.parse().map_err(|_| format!("`{word}` in `{text}` is not a number")))
            .collect::<Result<_, _>>()?;
        let law = match (name, numbers[..].as_ref()) {
            ("fixed", [value]) => Law::Fixed(*value),
            ("uniform", [high]) => Law::Uniform(0.0, *high),
            ("uniform", [low, high]) if low <= high => Law::Uniform(*low, *high),
            ("normal", [mean, deviation]) => Law::Normal(*mean, *deviation),
            ("exponential", [rate]) if *rate > 0.0 => Law::Exponential(*rate),
            ("pareto", [location, scale, shape]) => Law::Pareto(*location, *scale, *shape),
            ("gev", [location, scale, shape]) => Law::Gev(*location, *scale, *shape),
            ("lognormal", [mean, deviation]) => Law::LogNormal(*mean, *deviation),
            ("bimodal", [p, a, b]) if (0.0..=1.0).contains(p) => Law::Bimodal(*p, *a, *b),
            ("fb_key", []) => FB_KEY,
            ("fb_value", []) => Law::FbValue,
            ("fb_ia", []) => FB_IA,
            _ => {
                return Err(format!(
                    "`{text}` is not a distribution; use N, uniform:a:b, normal:m:s, exponential:l, \
                     pareto:loc:scale:shape, gev:loc:scale:shape, lognormal:m:s, bimodal:p:a:b, \
                     fb_key, fb_value, fb_ia or file:PATH"
                ));
            }
        };
        Ok(law)
    }
}

fn empirical(path: &str) -> Result<Law, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {path}: {e}"))?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    match numbers {
        Ok(numbers) if !numbers.is_empty() => Ok(Law::Empirical(numbers.into())),
        Ok(_) => Err(format!("{path} is empty: write one number a line")),
        Err(_) => Err(format!("{path} has words that are not numbers; write one number per line")),
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Law::Fixed(value) => write!(f, "{value}"),
            Law::Uniform(low, high) => write!(f, "uniform:{low}:{high}"),
            Law::Normal(mean, deviation) => write!(f, "normal:{mean}:{deviation}"),
            Law::Exponential(rate) => write!(f, "exponential:{rate}"),
            Law::Pareto(location, scale, shape) => write!(f, "pareto:{location}:{scale}:{shape}"),
            Law::Gev(location, scale, shape) => write!(f, "gev:{location}:{scale}:{shape}"),
            Law::LogNormal(mean, deviation) => write!(f, "lognormal:{mean}:{deviation}"),
            Law::Bimodal(p, first, second) => write!(f, "bimodal:{p}:{first}:{second}"),
            Law::FbValue => f.write_str("fb_value"),
            Law::Empirical(values) => write!(f, "file of {} values", values.len()),
        }
    }
}

#[cfg(test)]
mod tests;

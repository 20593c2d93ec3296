//! Rate specifiers: limits in bits and packets per second, with a burst.
//!
//! As text: `100Mbit`, `20kpps`, or both with a burst, `1Gbit,100kpps,burst=64k`. A packet counts
//! with its Ethernet header, without preamble, check sequence and gap.
use std::fmt;
use std::str::FromStr;

/// Largest rate in bits per second: 1 Tbit/s.
const BITS_MAX: u64 = 1_000_000_000_000;
/// Largest rate in packets per second.
const PACKETS_MAX: u64 = 10_000_000_000;
/// Largest burst, bytes.
const BURST_MAX: u32 = 64 << 20;
/// Burst by default, bytes: two full frames, so that one is sent while the next is made.
const BURST_USUAL: u32 = 3028;

/// A rate specifier. It has at least one of the two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits per second.
    pub bits_per_s: Option<u64>,
    /// Packets per second.
    pub packets_per_s: Option<u64>,
    /// Bytes that may pass at once after an idle time.
    pub burst_bytes: u32,
}

/// The error for an invalid rate, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateError(String);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; for example 100Mbit, 20kpps, or 1Gbit,burst=64k", self.0)
    }
}

impl std::error::Error for RateError {}

impl Rate {
    /// A limit in bits per second, with the default burst.
    pub fn bits(bits_per_s: u64) -> Rate {
        Rate { bits_per_s: Some(bits_per_s), packets_per_s: None, burst_bytes: BURST_USUAL }
    }

    /// A limit in packets per second, with the default burst.
    pub fn packets(packets_per_s: u64) -> Rate {
        Rate { bits_per_s: None, packets_per_s: Some(packets_per_s), burst_bytes: BURST_USUAL }
    }

    /// The rate of one of `queues` queues that share this rate equally.
    pub fn share(self, queues: u64) -> Rate {
        let part = |n: u64| (n / queues.max(1)).max(1);
        let (bits_per_s, packets_per_s) = (self.bits_per_s.map(part), self.packets_per_s.map(part));
        Rate { bits_per_s, packets_per_s, ..self }
    }

    /// The smaller of both limits, each for itself.
    pub fn and(self, other: Rate) -> Rate {
        let less = |one: Option<u64>, two: Option<u64>| one.into_iter().chain(two).min();
        Rate {
            bits_per_s: less(self.bits_per_s, other.bits_per_s),
            packets_per_s: less(self.packets_per_s, other.packets_per_s),
            burst_bytes: self.burst_bytes.min(other.burst_bytes),
        }
    }

    /// Returns the rate, or an error if a link of `link_bits_per_s` cannot carry it.
    pub fn within(self, link_bits_per_s: u64) -> Result<Rate, RateError> {
        match self.bits_per_s {
            Some(bits) if bits > link_bits_per_s => {
                let (asked, has) = (Short(bits), Short(link_bits_per_s));
                Err(RateError(format!("{asked}bit is more than the link's {has}bit")))
            }
            _ => Ok(self),
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let error =
            |why: String| RateError(format!("invalid rate `{}`: {why}", text.escape_debug()));
        let mut rate = Rate { bits_per_s: None, packets_per_s: None, burst_bytes: BURST_USUAL };
        let in_range = |n: Option<u64>, max: u64, part: &str| {
            let n =
                n.ok_or_else(|| error(format!("`{part}` needs a whole number, such as 20k")))?;
            match n {
                0 => Err(error("0 lets nothing pass".to_owned())),
                n if n > max => {
                    Err(error(format!("`{part}` is above the maximum, {}", Short(max))))
                }
                n => Ok(n),
            }
        };
        for part in text.split(',') {
            if let Some(number) = part.strip_suffix("bit") {
                rate.bits_per_s = Some(in_range(quantity(number), BITS_MAX, part)?);
            } else if let Some(number) = part.strip_suffix("pps") {
                rate.packets_per_s = Some(in_range(quantity(number), PACKETS_MAX, part)?);
            } else if let Some(number) = part.strip_prefix("burst=") {
                let bytes = in_range(quantity(number), BURST_MAX.into(), part)?;
                rate.burst_bytes = bytes as u32;
            } else {
                return Err(error(format!("unknown part `{part}`")));
            }
        }
        match (rate.bits_per_s, rate.packets_per_s) {
            (None, None) => Err(error("it needs a limit in bit or pps".to_owned())),
            _ => Ok(rate),
        }
    }
}

/// A whole number with a decimal factor: `100`, `20k`, `1M`, `2G`.
fn quantity(text: &str) -> Option<u64> {
    let factors = [('k', 1_000), ('K', 1_000), ('M', 1_000_000), ('G', 1_000_000_000)];
    let found = factors.iter().find_map(|(c, factor)| Some((text.strip_suffix(*c)?, *factor)));
    let (digits, factor) = found.unwrap_or((text, 1));
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse::<u64>().ok().filter(|_| is_number)?.checked_mul(factor)
}

/// Shows a number with the largest factor that leaves a whole number.
struct Short(u64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let factors = [(1_000_000_000, "G"), (1_000_000, "M"), (1_000, "k")];
        let fits = |(factor, _): &&(u64, &str)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        match factors.iter().find(fits) {
            Some((factor, name)) => write!(f, "{}{name}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(bits) = self.bits_per_s {
            write!(f, "{}bit,", Short(bits))?;
        }
        if let Some(packets) = self.packets_per_s {
            write!(f, "{}pps,", Short(packets))?;
        }
        write!(f, "burst={}", Short(self.burst_bytes.into()))
    }
}

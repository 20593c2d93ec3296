//! Rate specifiers: limits in bits and packets a second, with a burst.
//!
//! As text `100Mbit`, `20kpps`, or both with a burst: `1Gbit,100kpps,burst=64k`. A packet counts
//! with its Ethernet header and without preamble, checksum and gap.
use std::fmt;
use std::str::FromStr;

/// The most that can be asked for: 1 Tbit/s.
const BITS_MAX: u64 = 1_000_000_000_000;
/// The same in packets.
const PACKETS_MAX: u64 = 10_000_000_000;
/// The most that may go at once.
const BURST_MAX: u32 = 64 << 20;
/// Two full frames: one goes while the next is made.
const BURST_USUAL: u32 = 3028;

/// A rate specifier; at least one of the limits is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bits a second.
    pub bits_per_s: Option<u64>,
    /// Packets a second.
    pub packets_per_s: Option<u64>,
    /// Bytes that may go at once after silence.
    pub burst_bytes: u32,
}

/// A rate that makes no sense, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateError(String);

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; for example 100Mbit, 20kpps, or 1Gbit,burst=64k", self.0)
    }
}

impl std::error::Error for RateError {}

impl Rate {
    /// Bits a second, with the usual burst.
    pub fn bits(bits_per_s: u64) -> Rate {
        Rate { bits_per_s: Some(bits_per_s), packets_per_s: None, burst_bytes: BURST_USUAL }
    }

    /// The part of one of `queues` equal queues.
    pub fn share(self, queues: u64) -> Rate {
        let part = |n: u64| (n / queues.max(1)).max(1);
        let (bits_per_s, packets_per_s) = (self.bits_per_s.map(part), self.packets_per_s.map(part));
        Rate { bits_per_s, packets_per_s, ..self }
    }

    /// What both let pass.
    pub fn and(self, other: Rate) -> Rate {
        let less = |one: Option<u64>, two: Option<u64>| one.into_iter().chain(two).min();
        Rate {
            bits_per_s: less(self.bits_per_s, other.bits_per_s),
            packets_per_s: less(self.packets_per_s, other.packets_per_s),
            burst_bytes: self.burst_bytes.min(other.burst_bytes),
        }
    }

    /// Refuses what a link of so many bits a second cannot carry.
    pub fn within(self, link_bits_per_s: u64) -> Result<Rate, RateError> {
        match self.bits_per_s {
            Some(bits) if bits > link_bits_per_s => {
                let (asked, has) = (Short(bits), Short(link_bits_per_s));
                Err(RateError(format!("{asked}bit a second is more than the link's {has}bit")))
            }
            _ => Ok(self),
        }
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let error = |why: String| RateError(format!("`{}` is no rate: {why}", text.escape_debug()));
        let mut rate = Rate { bits_per_s: None, packets_per_s: None, burst_bytes: BURST_USUAL };
        let in_range = |n: Option<u64>, max: u64, part: &str| {
            let n = n.ok_or_else(|| error(format!("`{part}` is no number of them")))?;
            match n {
                0 => Err(error("nothing would ever pass at zero".to_owned())),
                n if n > max => Err(error(format!("`{part}` is more than there can be"))),
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
                return Err(error(format!("what is `{part}`?")));
            }
        }
        match (rate.bits_per_s, rate.packets_per_s) {
            (None, None) => Err(error("it names neither bits nor packets a second".to_owned())),
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

/// A number with the largest factor that leaves it whole.
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

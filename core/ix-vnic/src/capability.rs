//! Capabilities: 128 random bits. A process that has them may use them and pass them on.
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;

/// The right to a vNIC or a filter, until it is revoked. A secret: [`fmt::Debug`] hides it from
/// logs.
#[derive(Clone)]
pub struct Capability([u8; 16]);

/// The error for a text that is not a capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapabilityError;

impl Capability {
    /// Makes a capability of random bits from the caller.
    pub fn new(random: [u8; 16]) -> Capability {
        Capability(random)
    }

    /// True if both are equal. Takes the same time wherever they differ.
    pub fn is(&self, other: &Capability) -> bool {
        let differ = |sum: u8, (a, b): (&u8, &u8)| black_box(sum | (a ^ b));
        self.0.iter().zip(&other.0).fold(0, differ) == 0
    }

    /// The secret as text, to be passed on: 32 hexadecimal digits.
    pub fn reveal(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for Capability {
    type Err = CapabilityError;

    fn from_str(text: &str) -> Result<Capability, CapabilityError> {
        let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| digits);
        number.map(|n| Capability(n.to_be_bytes())).ok_or(CapabilityError)
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Capability(…)")
    }
}

impl fmt::Display for CapabilityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a capability is 32 hexadecimal digits")
    }
}

impl std::error::Error for CapabilityError {}

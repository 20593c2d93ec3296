//! What a vNIC may send. `ix share` writes it into the alias of the vNIC's link. The dataplane that
//! opens the link then lets packets wait that would otherwise be dropped behind the link.
use ix_vnic::Rate;

/// Mark in front of the operator's rate.
const LIMIT: &str = "ix tx ";
/// Mark in front of the vNIC's part.
const PART: &str = "ix part ";
const SEPARATOR: &str = "; ";

/// What may be sent into a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRates {
    /// The operator's rate.
    pub limit: Option<Rate>,
    /// The vNIC's part of the interface; none while the interface is not full.
    pub part: Option<Rate>,
}

impl LinkRates {
    /// The rates as text; empty when there are none.
    pub fn written(&self) -> String {
        let text = |mark: &str, rate: Option<Rate>| rate.map(|rate| format!("{mark}{rate}"));
        let both = text(LIMIT, self.limit).into_iter().chain(text(PART, self.part));
        both.collect::<Vec<_>>().join(SEPARATOR)
    }

    /// Reads the rates from a text. A rate that the text does not contain is none.
    pub fn read(text: &str) -> LinkRates {
        let one = |mark: &str| {
            let rate = |part: &str| part.strip_prefix(mark)?.parse().ok();
            text.split(SEPARATOR).find_map(rate)
        };
        LinkRates { limit: one(LIMIT), part: one(PART) }
    }

    /// The rate that both allow.
    pub fn both(&self) -> Option<Rate> {
        self.limit.into_iter().chain(self.part).reduce(Rate::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let rate = |text: &str| text.parse().ok();
        for (limit, part) in [
            (None, None),
            (rate("5Mbit,10pps"), None),
            (None, rate("70Mbit")),
            (rate("5Mbit"), rate("4Mbit")),
        ] {
            let rates = LinkRates { limit, part };
            assert_eq!(LinkRates::read(&rates.written()), rates);
        }
        assert_eq!(LinkRates::read("my eth0; ix tx"), LinkRates::default());
        let both = LinkRates { limit: rate("5Mbit"), part: rate("4Mbit,1kpps") }.both();
        assert_eq!(both, rate("4Mbit,1kpps"));
    }
}

//! What a vNIC may send, as whoever shares its interface writes it on its link (the link's alias):
//! the dataplane that opens the link lets packets wait for what would be dropped behind it.
use ix_vnic::Rate;

/// Stands in front of the operator's rate.
const LIMIT: &str = "ix tx ";
/// Stands in front of the part.
const PART: &str = "ix part ";
const SEPARATOR: &str = "; ";

/// What may be sent into a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRates {
    /// What the operator has said.
    pub limit: Option<Rate>,
    /// Its part of the interface; none while that is not full.
    pub part: Option<Rate>,
}

impl LinkRates {
    /// As text; empty where there are none.
    pub fn written(&self) -> String {
        let text = |mark: &str, rate: Option<Rate>| rate.map(|rate| format!("{mark}{rate}"));
        let both = text(LIMIT, self.limit).into_iter().chain(text(PART, self.part));
        both.collect::<Vec<_>>().join(SEPARATOR)
    }

    /// Those that are written there; none where there is anything else.
    pub fn read(text: &str) -> LinkRates {
        let one = |mark: &str| {
            let rate = |part: &str| part.strip_prefix(mark)?.parse().ok();
            text.split(SEPARATOR).find_map(rate)
        };
        LinkRates { limit: one(LIMIT), part: one(PART) }
    }

    /// What both let pass.
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

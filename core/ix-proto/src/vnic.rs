//! The codec of a vNIC's filters, rates and rules.
use crate::codec::{Codec, DecodeError, Reader, Sink, codec_enum, codec_struct};
use ix_vnic::{Direction, Field, Filter, Level, Ranges, Rate, Rates, VnicRules};
use ix_wire::IpAddr;

codec_enum!(Direction { 0 = Receive, 1 = Transmit });
codec_enum!(Level {
    0 = Ethernet,
    1 = Ipv4,
    2 = Tcp,
    3 = Udp,
    4 = Ipv6,
    5 = Tcp6,
    6 = Udp6,
});
codec_enum!(Field {
    0 = Vlan,
    1 = EtherType,
    2 = ServiceMac,
    3 = PeerMac,
    4 = Protocol,
    5 = ServiceAddress,
    6 = PeerAddress,
    7 = ServicePort,
    8 = PeerPort,
});
codec_struct!(Rates { rx, tx, flow });

impl Codec for IpAddr {
    fn write(&self, to: &mut impl Sink) {
        to.put(&self.0);
    }

    fn read(from: &mut Reader<'_>) -> Result<IpAddr, DecodeError> {
        Codec::read(from).map(IpAddr)
    }
}

impl Codec for Ranges {
    fn write(&self, to: &mut impl Sink) {
        self.as_slice().to_vec().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Ranges, DecodeError> {
        let pairs = Vec::<(u128, u128)>::read(from)?;
        let ranges = Ranges::new(pairs.iter().copied());
        if ranges.as_slice() == pairs { Ok(ranges) } else { Err(DecodeError::Value) }
    }
}

impl Codec for Filter {
    fn write(&self, to: &mut impl Sink) {
        self.direction().write(to);
        self.level().write(to);
        self.fields().to_vec().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Filter, DecodeError> {
        let (direction, level) = (Codec::read(from)?, Codec::read(from)?);
        Filter::from_parts(direction, level, Codec::read(from)?).ok_or(DecodeError::Value)
    }
}

impl Codec for Rate {
    fn write(&self, to: &mut impl Sink) {
        let Rate { bits_per_s, packets_per_s, burst_bytes } = self;
        bits_per_s.write(to);
        packets_per_s.write(to);
        burst_bytes.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Rate, DecodeError> {
        let (bits_per_s, packets_per_s) = <(Option<u64>, Option<u64>)>::read(from)?;
        if bits_per_s.is_none() && packets_per_s.is_none() {
            return Err(DecodeError::Value);
        }
        Ok(Rate { bits_per_s, packets_per_s, burst_bytes: Codec::read(from)? })
    }
}

impl Codec for VnicRules {
    fn write(&self, to: &mut impl Sink) {
        let VnicRules { filters, rx_rate, tx_rate, flow_rate, closed, assigned, queue_rates } =
            self;
        filters.write(to);
        (Rates { rx: *rx_rate, tx: *tx_rate, flow: *flow_rate }).write(to);
        closed.write(to);
        assigned.write(to);
        queue_rates.write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<VnicRules, DecodeError> {
        let filters = Codec::read(from)?;
        let Rates { rx: rx_rate, tx: tx_rate, flow: flow_rate } = Codec::read(from)?;
        let (closed, assigned) = (Codec::read(from)?, Codec::read(from)?);
        let queue_rates = Codec::read(from)?;
        let rules =
            VnicRules { filters, rx_rate, tx_rate, flow_rate, closed, assigned, queue_rates };
        if rules.check().is_ok() { Ok(rules) } else { Err(DecodeError::Value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::tests::{harmless, survives};
    use proptest::prelude::*;

    /// Parts of the rules' text, which is the longer form of each.
    const PARTS: [&str; 12] = [
        "rx tcp service 10.0.0.5:80",
        "tx tcp service 10.0.0.5:80-90,443 peer 10.1.0.0/16:1-9",
        "tx ip service 10.0.0.5",
        "rx eth type 0x88b5-0x88b9",
        "tx udp service 10.0.0.5:53 vlan 7",
        "rx tcp service [2001:db8::5]:80",
        "tx ip6 peer ::-2001:db8::ffff proto 1-58",
        "rate rx 1kpps",
        "rate tx 100Mbit,burst=64k",
        "rate flow 1Mbit",
        "none rx",
        "none tx",
    ];

    proptest! {
        #[test]
        fn rules_survive(
            parts in prop::collection::vec((0..PARTS.len(), prop::option::of(0..9usize)), 0..20),
        ) {
            let part = |(part, queue): &(usize, Option<usize>)| match queue {
                Some(queue) if *part < 10 => format!("queue {queue} {}", PARTS[*part]),
                _ => PARTS[*part].to_owned(),
            };
            let text = parts.iter().map(part).collect::<Vec<_>>().join("; ");
            let rules: VnicRules = text.parse().expect(&text);
            survives(&rules);
            // The bound on filters counts letters, and a message bytes.
            prop_assert!(rules.encode().len() <= text.len() + 64 + 20 * parts.len());
        }

        #[test]
        fn no_bytes_harm(bytes in prop::collection::vec(0u8..20, 0..60)) {
            harmless::<VnicRules>(&bytes);
            harmless::<Filter>(&bytes);
        }
    }

    #[test]
    fn a_filter_that_no_text_names_is_refused() {
        let filter: Filter = "rx tcp service 10.0.0.5:80".parse().expect("a filter");
        let (direction, level) = (filter.direction(), filter.level());
        let whole = filter.fields().to_vec();
        let encoded = |fields: Vec<(Field, Ranges)>| {
            let mut bytes = [direction.encode(), level.encode()].concat();
            bytes.extend(fields.encode());
            bytes
        };
        assert_eq!(Filter::decode(&encoded(whole.clone())), Ok(filter));
        // Without what makes it TCP; in another order; with reversed ends.
        let without =
            whole.iter().filter(|(field, _)| *field != Field::Protocol).cloned().collect();
        assert_eq!(Filter::decode(&encoded(without)), Err(DecodeError::Value));
        let reversed = whole.into_iter().rev().collect();
        assert_eq!(Filter::decode(&encoded(reversed)), Err(DecodeError::Value));
        assert_eq!(Ranges::decode(&[1, 9, 8]), Err(DecodeError::Value));
        assert_eq!(Rate::decode(&[0, 0, 7]), Err(DecodeError::Value), "no limit at all");
    }
}

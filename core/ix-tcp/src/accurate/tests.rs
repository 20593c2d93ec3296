use super::*;
use proptest::prelude::*;

const MSS: u32 = 1000;

#[test]
fn the_bits_are_a_number() {
    assert_eq!(ace_of(TcpFlags::ACK | TcpFlags::AE | TcpFlags::ECE), 0b101);
    assert_eq!(flags_of(0b110), TcpFlags::AE | TcpFlags::CWR);
    for ace in 0..8 {
        assert_eq!(ace_of(flags_of(ace)), ace);
    }
    for ecn in 0..4 {
        assert_eq!(field_told(telling_field(ecn)), Some(ecn));
    }
    for undefined in [0b000, 0b001, 0b101, 0b111] {
        assert_eq!(field_told(undefined), None);
    }
}

#[test]
fn an_option_of_zeros_is_not_believed() {
    let mut accurate = Accurate { acked_packets: BLEACHED_PACKETS, ..Accurate::default() };
    let zeros = EcnBytes::new(Some(0), Some(0), Some(0));
    assert_eq!(accurate.take_option(zeros, 1000), (None, false));
    let later = EcnBytes::new(Some(1000), Some(3), Some(1));
    assert_eq!(accurate.take_option(later, 1000), (None, false));
}

#[test]
fn an_option_that_never_moves_tells_of_a_path_that_clears_the_field() {
    let first = EcnBytes::new(Some(1), Some(0), Some(1));
    let mut accurate = Accurate::default();
    assert_eq!(accurate.take_option(first, 1000), (Some(0), false));
    accurate.acked_packets = BLEACHED_PACKETS;
    assert_eq!(accurate.take_option(first, 1000), (Some(0), true));
}

#[test]
fn byte_counters_go_round_and_old_ones_are_void() {
    let of = |ce: u32| EcnBytes::new(Some(77), Some(ce), None);
    let mut accurate = Accurate::default();
    accurate.take_option(of(0xff_fff0), 0);
    assert_eq!(accurate.take_option(of(0x10), 100).0, Some(0x20));
    // Overtaken: the counter seems to have moved back.
    assert_eq!(accurate.take_option(of(0x0f), 100).0, None);
    accurate.since_option = OPTION_LIFE_BYTES;
    assert_eq!(accurate.take_option(of(0x20), 100).0, None);
    assert_eq!(accurate.take_option(of(0x21), 100).0, Some(1));
}

/// A receiver that counts in 64 bits: packets acknowledged at once, how many of them were marked,
/// and whether the acknowledgement arrives.
fn acks(packets: std::ops::RangeInclusive<u32>) -> impl Strategy<Value = Vec<(u32, u32, bool)>> {
    let one = (packets, any::<u32>(), prop::bool::weighted(0.7));
    prop::collection::vec(one.prop_map(|(n, m, got)| (n, m % (n + 1), got)), 1..100)
}

proptest! {
    /// Against a naive counter: the field gives each count as long as fewer than eight packets are
    /// acknowledged at once; beyond that never too few, and the exact one with bytes.
    #[test]
    fn ace_is_a_counter_that_goes_round(acks in acks(1..=12), start in any::<u32>()) {
        let mut model = u64::from(start);
        let (mut plain, mut with_bytes) = (start, start);
        let (mut packets, mut marked) = (0, 0);
        for (n, m, arrives) in acks {
            model += u64::from(m);
            packets += n;
            marked += m;
            if !arrives {
                continue;
            }
            let ace = (model % 8) as u8;
            let safe = newly_marked(ace, plain, packets, None, MSS, true);
            let exact = newly_marked(ace, with_bytes, packets, Some(marked * MSS), MSS, true);
            prop_assert!(marked <= safe && safe <= packets, "{safe} of {packets}, not {marked}");
            prop_assert_eq!(exact, marked);
            if packets < 8 {
                prop_assert_eq!(safe, marked);
            }
            plain = plain.wrapping_add(safe);
            with_bytes = with_bytes.wrapping_add(exact);
            prop_assert_eq!(u64::from(plain) % 8, model % 8);
            prop_assert_eq!(with_bytes, model as u32);
            (packets, marked) = (0, 0);
        }
    }

    /// A path without marks is not taken for one with eight of them.
    #[test]
    fn nothing_is_made_up(packets in 1u32..100, counted in any::<u32>()) {
        prop_assert_eq!(newly_marked((counted % 8) as u8, counted, packets, None, MSS, false), 0);
    }

    /// The receiver counts as a naive one does, and never lets the field wrap unreported.
    #[test]
    fn what_arrives_is_counted(
        packets in prop::collection::vec((0u8..4, 0u32..2000, any::<bool>()), 0..300),
    ) {
        let mut accurate = Accurate::default();
        let (mut model, mut ce) = ([1u64, 0, 1], 5u64);
        for (ecn, len, batch_ends) in packets {
            match ecn {
                ECT0 => model[0] += u64::from(len),
                ECT1 => model[2] += u64::from(len),
                CE => {
                    model[1] += u64::from(len);
                    ce += 1;
                }
                _ => {}
            }
            let now = accurate.note(ecn, len, len > 0);
            prop_assert!(now || ecn != CE || accurate.untold < UNTOLD_WITHOUT);
            if accurate.untold >= UNTOLD_MAX || now && batch_ends {
                accurate.untold = 0;
            }
            prop_assert!(accurate.untold < 7);
        }
        prop_assert_eq!(u64::from(accurate.rcv_packets), ce);
        let option = accurate.option(false);
        let said = [option.ect0(), option.ce(), option.ect1()];
        prop_assert_eq!(said.map(|field| field.map(u64::from)), model.map(|n| Some(n % (1 << 24))));
        prop_assert!(accurate.option(false).is_none(), "nothing has moved since");
    }
}

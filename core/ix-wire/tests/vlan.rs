//! Tags: what is removed is what was inserted, and no bytes do harm.
use ix_wire::vlan::{self, TAG_BYTES, VlanId};
use proptest::prelude::*;

#[test]
fn a_vlan_has_a_number_from_1_to_4094() {
    for (text, number) in [("1", 1), ("5", 5), ("4094", 4094), ("007", 7)] {
        assert_eq!(text.parse::<VlanId>().map(VlanId::number), Ok(number), "{text}");
    }
    for text in ["", "0", "4095", "4096", "65536", "65541", "-1", "+5", " 5", "5 ", "0x5", "none"] {
        let says = text.parse::<VlanId>().expect_err(text).to_string();
        assert_eq!(says, "a VLAN has a number from 1 to 4094", "{text}");
    }
}

#[test]
fn the_tag_is_as_on_the_wire() {
    let vlan = VlanId::new(0x123).expect("a number");
    assert_eq!((vlan.tag(), vlan.to_string().as_str()), ([0x81, 0, 0x01, 0x23], "291"));
    let mut frame: Vec<u8> = [&[0; TAG_BYTES][..], &(1..=12).collect::<Vec<u8>>()].concat();
    frame.extend([8, 0, 0x45]);
    vlan::insert(&mut frame, vlan.tag());
    assert_eq!(frame[..12], (1..=12).collect::<Vec<u8>>());
    assert_eq!(frame[12..], [0x81, 0, 0x01, 0x23, 8, 0, 0x45]);
}

#[test]
fn only_a_tag_of_8021q_with_room_behind_it_counts() {
    let tagged = |kind: [u8; 2], number: u16, behind: &[u8]| {
        [&[2; 12][..], &kind, &number.to_be_bytes(), behind].concat()
    };
    for (frame, number, is_priority) in [
        (tagged([0x81, 0], 5, &[8, 0]), Some(5), false),
        (tagged([0x81, 0], 0xf005, &[8, 0]), Some(5), false),
        (tagged([0x81, 0], 0, &[8, 0]), Some(0), true),
        (tagged([0x81, 0], 0xe000, &[0x86, 0xdd]), Some(0), true),
        (tagged([0x81, 0], 0, &[0x81, 0]), Some(0), false),
        (tagged([0x81, 0], 0, &[0x88, 0xa8]), Some(0), false),
        (tagged([0x81, 0], 4095, &[8, 0]), Some(4095), false),
        (tagged([0x88, 0xa8], 5, &[8, 0]), None, false),
        (tagged([8, 0], 5, &[8, 0]), None, false),
        (tagged([0x81, 0], 5, &[8]), None, false),
    ] {
        assert_eq!(vlan::number_of(&frame), number, "{frame:x?}");
        assert_eq!(vlan::has_priority_only(&frame), is_priority, "{frame:x?}");
    }
}

proptest! {
    #[test]
    fn removing_undoes_inserting(
        frame in prop::collection::vec(any::<u8>(), 14..80),
        number in 1..=VlanId::MAX,
    ) {
        let vlan = VlanId::new(number).expect("a number");
        let mut room = [&[0xff; TAG_BYTES][..], &frame].concat();
        vlan::insert(&mut room, vlan.tag());
        prop_assert_eq!(vlan::number_of(&room), Some(number));
        vlan::remove(&mut room);
        prop_assert_eq!(&room[TAG_BYTES..], &frame);
    }

    #[test]
    fn no_bytes_harm(mut bytes in prop::collection::vec(any::<u8>(), 0..20)) {
        let _ = (vlan::number_of(&bytes), vlan::has_priority_only(&bytes));
        vlan::remove(&mut bytes);
        vlan::insert(&mut bytes, [0x81, 0, 0, 1]);
    }
}

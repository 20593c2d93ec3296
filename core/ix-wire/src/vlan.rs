//! IEEE 802.1Q tags: which VLAN a frame belongs to.
//!
//! A tag stands between the Ethernet addresses and the EtherType. Everything else in this crate
//! knows frames without a tag: what takes a frame from a link removes the tag ([`remove`]), and
//! what gives a frame to a link inserts it ([`insert`]).
use crate::{be16, ethernet};
use core::fmt;
use core::num::NonZeroU16;
use core::str::FromStr;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 4;

/// Where a tag stands: behind both addresses.
const TAG_AT: usize = 12;
/// The twelve bits of a tag that are the VLAN's number; the others are for the priority.
const NUMBER_BITS: u16 = 0x0fff;

/// The number of a VLAN, from 1 to 4094. Numbers 0 and 4095 are none (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(NonZeroU16);

impl VlanId {
    /// The largest number.
    pub const MAX: u16 = 4094;

    /// The VLAN of this number, if there may be one.
    pub fn new(number: u16) -> Option<VlanId> {
        NonZeroU16::new(number).filter(|number| number.get() <= VlanId::MAX).map(VlanId)
    }

    /// Its number.
    #[inline]
    pub const fn number(self) -> u16 {
        self.0.get()
    }

    /// The tag of its frames, with the usual priority.
    pub const fn tag(self) -> [u8; TAG_BYTES] {
        let ([a, b], [c, d]) = (ethernet::TYPE_VLAN.to_be_bytes(), self.number().to_be_bytes());
        [a, b, c, d]
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no number of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanIdError;

impl fmt::Display for VlanIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a VLAN has a number from 1 to {}", VlanId::MAX)
    }
}

impl core::error::Error for VlanIdError {}

impl FromStr for VlanId {
    type Err = VlanIdError;

    fn from_str(text: &str) -> Result<VlanId, VlanIdError> {
        // Not `+5`, which the number's own parser takes.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.and_then(VlanId::new).ok_or(VlanIdError)
    }
}

/// The number in the tag of a frame: 0 in a priority tag, which names no VLAN. `None`: the frame
/// has no tag, one of a provider (802.1ad), or is too short for an EtherType behind it.
#[inline]
pub fn number_of(frame: &[u8]) -> Option<u16> {
    let head = frame.first_chunk::<{ ethernet::HEADER_BYTES + TAG_BYTES }>()?;
    let is_tagged = be16(head, TAG_AT) == ethernet::TYPE_VLAN;
    is_tagged.then(|| be16(head, TAG_AT + 2) & NUMBER_BITS)
}

/// Whether a frame has a priority tag, and none behind it. Without that tag it is the same frame.
pub fn has_priority_only(frame: &[u8]) -> bool {
    let behind = |frame: &[u8]| be16(frame, TAG_AT + TAG_BYTES);
    number_of(frame) == Some(0)
        && !matches!(behind(frame), ethernet::TYPE_VLAN | ethernet::TYPE_SERVICE_VLAN)
}

/// Removes the tag of a frame that has one ([`number_of`]): moves the addresses over it. The frame
/// begins [`TAG_BYTES`] later then.
#[inline]
pub fn remove(frame: &mut [u8]) {
    if let Some(head) = frame.first_chunk_mut::<{ TAG_AT + TAG_BYTES }>() {
        head.copy_within(..TAG_AT, TAG_BYTES);
    }
}

/// Inserts a tag. The frame begins [`TAG_BYTES`] behind the front of `room`, and at its front
/// afterwards.
#[inline]
pub fn insert(room: &mut [u8], tag: [u8; TAG_BYTES]) {
    if let Some(head) = room.first_chunk_mut::<{ TAG_AT + TAG_BYTES }>() {
        head.copy_within(TAG_BYTES.., 0);
        head[TAG_AT..].copy_from_slice(&tag);
    }
}

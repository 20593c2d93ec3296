//! TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018, RFC 9768).
use super::ecn_bytes::{EcnBytes, ORDER_0, ORDER_1};
use crate::{Checksum, Seq, be16, be32, put_words};

/// Bytes that options may take in a header.
pub const OPTIONS_BYTES_MAX: usize = 40;
/// A larger window scale is treated as this one (RFC 7323 section 2.3).
pub const WINDOW_SCALE_MAX: u8 = 14;

const END: u8 = 0;
pub(super) const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMP: u8 = 8;

const SACK_BLOCKS_MAX: usize = 4;
pub(crate) const TIMESTAMP_BYTES: usize = 12;
/// The layout that RFC 7323 appendix A recommends. Nearly all stacks use it for data segments.
pub(crate) const TIMESTAMP_ONLY: [u8; 4] = [NO_OPERATION, NO_OPERATION, TIMESTAMP, 10];

/// At most four ranges of sequence numbers: the first number and one past the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SackBlocks {
    blocks: [(Seq, Seq); SACK_BLOCKS_MAX],
    len: u8,
}

impl SackBlocks {
    /// No blocks.
    pub const EMPTY: Self = Self { blocks: [(Seq(0), Seq(0)); SACK_BLOCKS_MAX], len: 0 };

    /// Adds a block at the end; a fifth is ignored.
    #[inline]
    pub fn push(&mut self, left: Seq, right: Seq) {
        if let Some(block) = self.blocks.get_mut(usize::from(self.len)) {
            *block = (left, right);
            self.len += 1;
        }
    }

    /// The blocks in order.
    #[inline]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..usize::from(self.len)]
    }

    /// How many blocks there are.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// True if there are no blocks.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The options of one segment. Options that are valid only with SYN are reported on any segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TcpOptions {
    /// Maximum segment size the sender can receive.
    pub mss: Option<u16>,
    /// Window scale shift, at most [`WINDOW_SCALE_MAX`].
    pub window_scale: Option<u8>,
    /// The sender understands selective acknowledgements.
    pub sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamp: Option<(u32, u32)>,
    /// Selective acknowledgements.
    pub sack: SackBlocks,
    /// Bytes received with each ECN codepoint.
    pub ecn_bytes: EcnBytes,
}

impl TcpOptions {
    /// No options.
    pub const NONE: Self = Self {
        mss: None,
        window_scale: None,
        sack_permitted: false,
        timestamp: None,
        sack: SackBlocks::EMPTY,
        ecn_bytes: EcnBytes::NONE,
    };

    /// Parses the options area of a header.
    ///
    /// Unknown options, and known ones of a wrong length, are skipped (RFC 9293 MUST-6). After an
    /// illegal length the rest is ignored. RFC 9293 MUST-7 requires that TCP survives it and
    /// suggests a reset, but then anybody could reset a connection without knowing its sequence
    /// numbers.
    #[inline]
    pub fn parse(options: &[u8]) -> Self {
        match Self::parse_usual(options) {
            Some(usual) => usual,
            None => Self::parse_any(options),
        }
    }

    /// Parses options that are a timestamp alone, or empty; `None` for any others.
    #[inline(always)]
    pub(crate) fn parse_usual(options: &[u8]) -> Option<Self> {
        if options.is_empty() {
            return Some(Self::NONE);
        }
        let only: &[u8; TIMESTAMP_BYTES] = options.try_into().ok()?;
        let timestamp = Some((be32(only, 4), be32(only, 8)));
        (only[..4] == TIMESTAMP_ONLY).then_some(Self { timestamp, ..Self::NONE })
    }

    pub(crate) fn parse_any(mut options: &[u8]) -> Self {
        let mut parsed = Self::NONE;
        while let [kind, rest @ ..] = options {
            options = match *kind {
                END => break,
                NO_OPERATION => rest,
                kind => {
                    let len = rest.first().map_or(0, |len| usize::from(*len));
                    let Some(body) = options.get(2..len) else { break };
                    parsed.take(kind, body);
                    &options[len..]
                }
            };
        }
        parsed
    }

    fn take(&mut self, kind: u8, body: &[u8]) {
        match (kind, body.len()) {
            (MSS, 2) => self.mss = Some(be16(body, 0)),
            (WINDOW_SCALE, 1) => self.window_scale = Some(body[0].min(WINDOW_SCALE_MAX)),
            (SACK_PERMITTED, 0) => self.sack_permitted = true,
            (TIMESTAMP, 8) => self.timestamp = Some((be32(body, 0), be32(body, 4))),
            (SACK, 8 | 16 | 24 | 32) => {
                self.sack = SackBlocks::EMPTY;
                for block in body.as_chunks::<8>().0 {
                    self.sack.push(Seq(be32(block, 0)), Seq(be32(block, 4)));
                }
            }
            (ORDER_0 | ORDER_1, _) => {
                self.ecn_bytes = EcnBytes::parse(kind, body).unwrap_or(self.ecn_bytes);
            }
            _ => {}
        }
    }

    /// Bytes that [`Self::emit`] writes, a multiple of four.
    #[inline]
    pub fn len(&self) -> usize {
        let sack_blocks = self.sack_blocks_that_fit();
        self.len_without_sack() + if sack_blocks == 0 { 0 } else { 4 + 8 * sack_blocks }
    }

    /// True if there are no options.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn len_without_sack(&self) -> usize {
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        // SACK-permitted takes the place of the timestamp's two no-operations.
        let permitted_and_timestamp = match (self.sack_permitted, self.timestamp) {
            (_, Some(_)) => TIMESTAMP_BYTES,
            (true, None) => 4,
            (false, None) => 0,
        };
        mss + scale + permitted_and_timestamp + self.ecn_bytes.len()
    }

    /// With a timestamp there is room for only three blocks (RFC 2018 section 3).
    #[inline]
    fn sack_blocks_that_fit(&self) -> usize {
        let room = OPTIONS_BYTES_MAX - self.len_without_sack();
        self.sack.len().min(room.saturating_sub(4) / 8)
    }

    /// Writes the options at the front of `out`, aligned to words; returns their length. SACK
    /// blocks that do not fit are omitted, the last first.
    ///
    /// # Panics
    /// When `out` is shorter than that.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        self.emit_summed(out).0
    }

    /// As [`Self::emit`]; also returns the sum of what it wrote.
    #[inline]
    pub(super) fn emit_summed(&self, out: &mut [u8]) -> (usize, Checksum) {
        let mut sum = Checksum::new();
        match self.timestamp {
            _ if self.has_more() => {
                let len = self.emit_any(out);
                sum.add_bytes(&out[..len]);
                (len, sum)
            }
            Some((value, echo)) => {
                let words = [u32::from_be_bytes(TIMESTAMP_ONLY), value, echo];
                words.iter().for_each(|word| sum.add_u32(*word));
                put_words(&mut out[..TIMESTAMP_BYTES], &words);
                (TIMESTAMP_BYTES, sum)
            }
            None => (0, sum),
        }
    }

    /// The timestamp, if it is the only option.
    #[inline]
    pub fn only_timestamp(&self) -> Option<(u32, u32)> {
        if self.has_more() { None } else { self.timestamp }
    }

    /// True if there is an option other than a timestamp.
    #[inline]
    fn has_more(&self) -> bool {
        self.mss.is_some()
            | self.window_scale.is_some()
            | self.sack_permitted
            | !self.sack.is_empty()
            | !self.ecn_bytes.is_none()
    }

    fn emit_any(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            put(&[MSS, 4, high, low]);
        }
        match (self.sack_permitted, self.timestamp) {
            (true, _) if self.timestamp.is_some() => put(&[SACK_PERMITTED, 2, TIMESTAMP, 10]),
            (true, _) => put(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]),
            (false, Some(_)) => put(&TIMESTAMP_ONLY),
            (false, None) => {}
        }
        if let Some((value, echo)) = self.timestamp {
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        let mut ecn_bytes = [0; 12];
        let ecn_len = self.ecn_bytes.emit(&mut ecn_bytes);
        put(&ecn_bytes[..ecn_len]);
        let sack_blocks = self.sack_blocks_that_fit();
        if sack_blocks > 0 {
            put(&[NO_OPERATION, NO_OPERATION, SACK, (2 + 8 * sack_blocks) as u8]);
            for (left, right) in &self.sack.as_slice()[..sack_blocks] {
                put(&left.0.to_be_bytes());
                put(&right.0.to_be_bytes());
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(options: &TcpOptions) -> Vec<u8> {
        let mut out = [0xaa; OPTIONS_BYTES_MAX];
        let len = options.emit(&mut out);
        assert_eq!(len, options.len());
        assert_eq!(len % 4, 0);
        out[..len].to_vec()
    }

    fn blocks(n: u32) -> SackBlocks {
        let mut sack = SackBlocks::EMPTY;
        (0..n).for_each(|i| sack.push(Seq(i * 10), Seq(i * 10 + 5)));
        sack
    }

    #[test]
    fn layouts() {
        let timestamp = TcpOptions { timestamp: Some((1, 2)), ..TcpOptions::NONE };
        assert_eq!(emitted(&timestamp), [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let syn = TcpOptions {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            ..timestamp
        };
        assert_eq!(emitted(&syn), [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]);
        let sack = TcpOptions { sack: blocks(1), ..TcpOptions::NONE };
        assert_eq!(emitted(&sack), [1, 1, 5, 10, 0, 0, 0, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn sack_blocks_that_do_not_fit_are_left_out() {
        let with_timestamp =
            TcpOptions { timestamp: Some((1, 2)), sack: blocks(4), ..TcpOptions::NONE };
        let parsed = TcpOptions::parse(&emitted(&with_timestamp));
        assert_eq!(parsed.sack.as_slice(), &with_timestamp.sack.as_slice()[..3]);
        let alone = TcpOptions { sack: blocks(9), ..TcpOptions::NONE };
        assert_eq!(TcpOptions::parse(&emitted(&alone)).sack.len(), 4);
    }

    #[test]
    fn rfc9293_must6_unknown_options_and_wrong_lengths_are_skipped() {
        let mss = TcpOptions { mss: Some(0x0102), ..TcpOptions::NONE };
        for options in [
            &[254, 4, 9, 9, 2, 4, 1, 2][..],
            &[2, 3, 9, 1, 2, 4, 1, 2],
            &[3, 4, 9, 9, 2, 4, 1, 2],
            &[8, 2, 2, 4, 1, 2, 0, 0],
            &[5, 3, 9, 1, 2, 4, 1, 2],
            &[253, 2, 2, 4, 1, 2],
        ] {
            assert_eq!(TcpOptions::parse(options), mss, "{options:?}");
        }
    }

    #[test]
    fn rfc9293_must7_an_illegal_length_ends_the_options() {
        let mss = TcpOptions { mss: Some(0x0102), ..TcpOptions::NONE };
        for illegal in [&[3, 0, 4, 2][..], &[3, 1, 4, 2], &[3, 9, 4, 2], &[3], &[0, 4, 2]] {
            let options = [&[2, 4, 1, 2][..], illegal].concat();
            assert_eq!(TcpOptions::parse(&options), mss, "{options:?}");
        }
    }

    #[test]
    fn rfc7323_2_3_a_large_window_scale_is_14() {
        assert_eq!(TcpOptions::parse(&[3, 3, 15]).window_scale, Some(14));
        assert_eq!(TcpOptions::parse(&[3, 3, 255]).window_scale, Some(14));
        assert_eq!(TcpOptions::parse(&[3, 3, 13]).window_scale, Some(13));
    }

    #[test]
    fn the_fast_path_agrees_with_the_slow_one() {
        let options = [1, 1, 8, 10, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(TcpOptions::parse(&options), TcpOptions::parse_any(&options));
        assert_eq!(TcpOptions::parse(&options).timestamp, Some((0x0102_0304, 0x0506_0708)));
    }
}

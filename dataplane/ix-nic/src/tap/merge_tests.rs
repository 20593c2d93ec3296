//! Merged frames against a naive segmenter, which shares no code with the merging.
use super::*;
use ix_wire::{FrameHeader, Parsed, RxChecks, Seq, TcpHeader, TcpOptions};
use proptest::prelude::*;

/// A segment as the dataplane builds it.
#[derive(Clone, Debug)]
struct Segment {
    flow: u8,
    seq: u32,
    ident: u16,
    flags: TcpFlags,
    timestamp: Option<(u32, u32)>,
    ack: u32,
    payload: Vec<u8>,
}

fn frame(segment: &Segment) -> Vec<u8> {
    let header = TcpHeader {
        src_port: 7,
        dst_port: 1000 + u16::from(segment.flow),
        seq: Seq(segment.seq),
        ack: Seq(segment.ack),
        flags: segment.flags,
        window: 512,
        urgent: 0,
        options: TcpOptions { timestamp: segment.timestamp, ..TcpOptions::NONE },
    };
    let link = FrameHeader {
        eth_src: [2, 0, 0, 0, 0, 1],
        eth_dst: [2, 0, 0, 0, 0, 2],
        src: IpAddr::v4([10, 0, 0, 1]),
        dst: IpAddr::v4([10, 0, 0, 2]),
        ttl: 64,
        tos: 0,
        ident: segment.ident.into(),
    };
    let mut bytes = vec![0; 200];
    let payload = Checksum::of(&segment.payload);
    let len = link.emit_tcp(&mut bytes, &header, segment.payload.len(), payload);
    bytes.truncate(len);
    bytes.extend_from_slice(&segment.payload);
    bytes
}

/// A frame in one buffer.
fn whole(bytes: &[u8]) -> Frame<'_> {
    Frame::new(bytes, bytes.len(), 1)
}

/// The frame that the device sends for a run.
fn merged(frames: &[Vec<u8>], run: &Run) -> Vec<u8> {
    let mut headers = [0; HEADERS_BYTES_MAX];
    let len = run.headers(&frames[0], &frames[run.segments - 1], &mut headers);
    let mut bytes = headers[..len].to_vec();
    for frame in &frames[..run.segments] {
        bytes.extend_from_slice(&frame[run.front_len..]);
    }
    bytes
}

/// A frame with a tag.
fn tagged(frame: &[u8], tag: [u8; 4]) -> Vec<u8> {
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// What the device sends for a run, without its tag: every length and offset is less then.
fn without_tag(mut bytes: Vec<u8>, tag: [u8; 4]) -> Vec<u8> {
    for at in [2, 6] {
        let word = u16::from_ne_bytes([bytes[at], bytes[at + 1]]) - 4;
        bytes[at..at + 2].copy_from_slice(&word.to_ne_bytes());
    }
    let removed: Vec<u8> = bytes.drain(10 + 12..10 + 16).collect();
    assert_eq!(removed, tag);
    bytes
}

/// The one's complement sum of RFC 1071, word by word.
fn naive_sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Cuts a frame with its `virtio_net_hdr` as virtio 1.2 (5.1.6.2) and RFC 9293 require of a device.
fn segmented(bytes: &[u8]) -> Vec<Vec<u8>> {
    let word = |at| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
    assert_eq!(bytes[..2], [1, 1], "needs a checksum, TCP over IPv4");
    let (header_len, gso_size, start, offset) = (word(2), word(4), word(6), word(8));
    let (headers, payload) = bytes[10..].split_at(header_len);
    assert_eq!(usize::from(u16::from_be_bytes([headers[16], headers[17]])), bytes.len() - 24);
    assert_eq!(naive_sum(&headers[14..34]), 0xffff, "the IP checksum");
    let pseudo = |len: usize| {
        let mut pseudo = headers[26..34].to_vec();
        pseudo.extend_from_slice(&[0, 6, (len >> 8) as u8, len as u8]);
        pseudo
    };
    let field = start + offset;
    let partial = u16::from_be_bytes([headers[field], headers[field + 1]]);
    assert_eq!(partial, naive_sum(&pseudo(bytes.len() - 10 - start)), "the partial checksum");
    let pieces: Vec<&[u8]> = payload.chunks(gso_size).collect();
    let cut = pieces.iter().enumerate().map(|(i, piece)| {
        let mut out = headers.to_vec();
        out[16..18].copy_from_slice(&((header_len - 14 + piece.len()) as u16).to_be_bytes());
        let ident = u16::from_be_bytes([headers[18], headers[19]]).wrapping_add(i as u16);
        out[18..20].copy_from_slice(&ident.to_be_bytes());
        out[24..26].fill(0);
        let sum = !naive_sum(&out[14..34]);
        out[24..26].copy_from_slice(&sum.to_be_bytes());
        let seq = u32::from_be_bytes([headers[38], headers[39], headers[40], headers[41]]);
        let seq = seq.wrapping_add((i * gso_size) as u32);
        out[38..42].copy_from_slice(&seq.to_be_bytes());
        if i + 1 < pieces.len() {
            out[47] &= !0x08;
        }
        out[field..field + 2].fill(0);
        let mut summed = pseudo(header_len - start + piece.len());
        summed.extend_from_slice(&out[start..]);
        summed.extend_from_slice(piece);
        let sum = !naive_sum(&summed);
        out[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(piece);
        out
    });
    cut.collect()
}

/// A stream of one flow: `count` full segments from `seq` on, then what is left.
fn stream(flow: u8, seq: u32, ident: u16, mss: usize, count: usize, rest: usize) -> Vec<Segment> {
    let lens = std::iter::repeat_n(mss, count).chain((rest > 0).then_some(rest));
    let mut at = seq;
    let segments = lens.enumerate().map(|(i, len)| {
        let segment = Segment {
            flow,
            seq: at,
            ident: ident.wrapping_add(i as u16),
            flags: TcpFlags::ACK,
            timestamp: Some((77, 88)),
            ack: 4711,
            payload: (0..len).map(|j| (i * 37 + j * 11 + j / 251) as u8).collect(),
        };
        at = at.wrapping_add(len as u32);
        segment
    });
    segments.collect()
}

fn frames(segments: &[Segment]) -> Vec<Vec<u8>> {
    segments.iter().map(frame).collect()
}

fn run_of(frames: &[Vec<u8>]) -> Option<Run> {
    Run::of(frames.iter().map(|frame| whole(frame)))
}

/// Changes of a stream in the queue.
#[derive(Clone, Debug)]
enum Twist {
    Push,
    Fin,
    Timestamp,
    Ack,
    Skip,
    Flow,
    Short,
    NoOptions,
    Empty,
}

fn twisted(mut segments: Vec<Segment>, twists: &[(usize, Twist)]) -> Vec<Segment> {
    for (at, twist) in twists {
        let at = at % segments.len();
        if let Twist::Skip = twist {
            segments.remove(at);
            if segments.is_empty() {
                return segments;
            }
            continue;
        }
        let segment = &mut segments[at];
        match twist {
            Twist::Push => segment.flags |= TcpFlags::PSH,
            Twist::Fin => segment.flags |= TcpFlags::FIN,
            Twist::Timestamp => segment.timestamp = Some((78, 88)),
            Twist::Ack => segment.ack += 1,
            Twist::Flow => segment.flow += 1,
            Twist::Short => segment.payload.truncate(segment.payload.len() / 2),
            Twist::NoOptions => segment.timestamp = None,
            Twist::Empty => segment.payload.clear(),
            Twist::Skip => {}
        }
    }
    segments
}

fn any_twist() -> impl Strategy<Value = Twist> {
    use Twist::*;
    proptest::sample::select(vec![Push, Fin, Timestamp, Ack, Skip, Flow, Short, NoOptions, Empty])
}

proptest! {
    /// Any queue: merged and cut again it is what it was before, byte for byte.
    #[test]
    fn cutting_gives_back_the_segments(
        (seq, ident) in (any::<u32>(), any::<u16>()),
        mss in prop_oneof![Just(1448usize), 1..200usize],
        (count, rest) in (1..80usize, 0..200usize),
        twists in proptest::collection::vec((any::<usize>(), any_twist()), 0..6),
    ) {
        let segments = stream(1, seq, ident, mss, count, rest.min(mss));
        let frames = frames(&twisted(segments, &twists));
        let (mut at, mut runs) = (0, 0);
        while at < frames.len() {
            let Some(run) = run_of(&frames[at..]) else { at += 1; continue };
            prop_assert!((2..=BUFFERS_MAX).contains(&run.segments));
            let bytes = merged(&frames[at..], &run);
            prop_assert!(bytes.len() <= 10 + 14 + 65_535);
            prop_assert_eq!(segmented(&bytes), frames[at..at + run.segments].to_vec());
            at += run.segments;
            runs += 1;
        }
        // All of an unchanged stream is sent in frames that are as long as possible.
        if twists.is_empty() {
            let most = BUFFERS_MAX.min((65_535 - 52) / mss);
            prop_assert!(runs <= (frames.len()).div_ceil(most));
            prop_assert!(runs > 0 || frames.len() == 1);
        }
    }

    /// With tags the same segments are merged into the same frames, which have the tag.
    #[test]
    fn a_tag_changes_nothing_else(
        (seq, number) in (any::<u32>(), 1..4095u16),
        (count, rest) in (1..80usize, 0..200usize),
        twists in proptest::collection::vec((any::<usize>(), any_twist()), 0..6),
    ) {
        let plain = frames(&twisted(stream(1, seq, 7, 200, count, rest), &twists));
        let [high, low] = number.to_be_bytes();
        let tag = [0x81, 0, high, low];
        let with_tags: Vec<Vec<u8>> = plain.iter().map(|frame| tagged(frame, tag)).collect();
        for at in 0..plain.len() {
            let (run, same) = (run_of(&plain[at..]), run_of(&with_tags[at..]));
            prop_assert_eq!(run.map(|run| run.segments), same.map(|run| run.segments));
            let Some((run, same)) = run.zip(same) else { continue };
            let bytes = merged(&with_tags[at..], &same);
            prop_assert_eq!(without_tag(bytes, tag), merged(&plain[at..], &run));
        }
    }

    /// A segment whose headers differ in any bit is not merged: what a merged frame has once must
    /// hold for each segment. (Checksums are computed again.)
    #[test]
    fn no_differing_header_is_merged_over(bit in 0..66 * 8usize, seq in any::<u32>()) {
        let mut frames = frames(&stream(1, seq, 9, 100, 2, 0));
        prop_assert_eq!(run_of(&frames).map(|run| run.segments), Some(2));
        frames[1][bit / 8] ^= 1 << (bit % 8);
        let checksums = [IP_CHECKSUM_AT, IP_CHECKSUM_AT + 1, TCP_CHECKSUM_AT, TCP_CHECKSUM_AT + 1];
        let push = bit == FLAGS_AT * 8 + 3;
        let merges = checksums.contains(&(bit / 8)) || push;
        prop_assert_eq!(run_of(&frames).is_some(), merges);
    }

    /// Any bytes are accepted.
    #[test]
    fn no_frame_is_too_strange(
        mut first in proptest::collection::vec(any::<u8>(), 0..120),
        second in proptest::collection::vec(any::<u8>(), 0..120),
        like_ours in any::<bool>(),
    ) {
        if like_ours && first.len() > 48 {
            first[12..15].copy_from_slice(&[8, 0, 0x45]);
            let len = (first.len() - 14) as u16;
            first[16..18].copy_from_slice(&len.to_be_bytes());
            first[20..22].fill(0);
            (first[23], first[47]) = (6, 0x10);
        }
        let _ = Run::of([&first, &second].map(|frame| whole(frame)).into_iter());
        let _ = Run::of([&first, &first].map(|frame| whole(frame)).into_iter());
    }
}

#[test]
fn segments_of_two_vlans_are_not_merged() {
    let plain = frames(&stream(1, 1, 7, 200, 2, 0));
    let of =
        |a: u8, b: u8| [tagged(&plain[0], [0x81, 0, 0, a]), tagged(&plain[1], [0x81, 0, 0, b])];
    assert!(run_of(&of(5, 5)).is_some());
    assert!(run_of(&of(5, 6)).is_none());
    assert!(run_of(&[tagged(&plain[0], [0x81, 0, 0, 5]), plain[1].clone()]).is_none());
}

#[test]
fn what_linux_would_see_parses_as_one_segment() {
    let mut segments = stream(1, u32::MAX - 2000, 65_534, 1448, 3, 700);
    segments[3].flags |= TcpFlags::PSH;
    let frames = frames(&segments);
    let run = run_of(&frames).expect("merges");
    assert_eq!(run.segments, 4);
    let bytes = merged(&frames, &run);
    let checks = RxChecks { transport: ix_wire::ChecksumMode::AcceptPartial };
    match ix_wire::parse(&bytes[10..], checks) {
        Ok(Parsed::Tcp(p)) => {
            assert!(p.partial && p.header.flags == TcpFlags::ACK | TcpFlags::PSH);
            assert_eq!(usize::from(p.payload.len), 3 * 1448 + 700);
            assert_eq!(p.header.seq, Seq(u32::MAX - 2000));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_frame_is_never_longer_than_ip_allows() {
    let frames = frames(&stream(1, 0, 0, 1448, 60, 0));
    let run = run_of(&frames).expect("merges");
    assert_eq!(run.segments, 45, "45 × 1448 + 52 ≤ 65535 < 46 × 1448 + 52");
    let small = self::frames(&stream(1, 0, 0, 100, 200, 0));
    assert_eq!(run_of(&small).expect("merges").segments, BUFFERS_MAX);
}

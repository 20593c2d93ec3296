//! Against a naive model, and the attacks of RFC 1858 one by one.
use super::*;
use ix_wire::{Payload, ipv4, ipv6};
use proptest::prelude::*;

const ROOM: usize = 600;

fn fragment(ident: u16, offset: u16, len: u16, more: bool) -> Fragment {
    Fragment {
        ip: IpMeta {
            src: IpAddr::v4([10, 0, 0, 1]),
            dst: IpAddr::v4([10, 0, 0, 2]),
            ttl: 64,
            tos: 0,
            dont_fragment: false,
            header_len: 20,
            eth_src: [2, 0, 0, 0, 0, 1],
            eth_dst: [2, 0, 0, 0, 0, 2],
        },
        protocol: ipv4::PROTOCOL_UDP,
        ident: ident.into(),
        offset,
        more,
        headers_bytes: 8,
        payload: Payload { start: 34, len, more: 0 },
    }
}

/// The same of an IPv6 datagram, whose later fragments do not say what they continue.
fn fragment_v6(ident: u32, offset: u16, len: u16, more: bool) -> Fragment {
    let v4 = fragment(0, offset, len, more);
    let ip = |text: &str| text.parse().expect("an address");
    Fragment {
        ip: IpMeta { src: ip("2001:db8::1"), dst: ip("2001:db8::2"), header_len: 48, ..v4.ip },
        protocol: ipv6::FRAGMENT,
        ident,
        headers_bytes: if offset == 0 { 8 } else { 0 },
        ..v4
    }
}

/// Buffers with a count.
#[derive(Default)]
struct Pool {
    out: isize,
    most: isize,
}

type Buffers = std::cell::RefCell<Pool>;

fn put(fragments: &mut Fragments<Vec<u8>>, pool: &Buffers, it: &Fragment, now_us: u64) -> Put {
    let take = || {
        let mut pool = pool.borrow_mut();
        pool.out += 1;
        pool.most = pool.most.max(pool.out);
        Some(vec![0; ROOM])
    };
    let free = |_| pool.borrow_mut().out -= 1;
    let into = match fragments.place(it, now_us, take, free) {
        Ok(into) => into,
        Err(refused) => return Put::Refused(refused),
    };
    let at = usize::from(it.offset);
    for (place, octet) in into[at..].iter_mut().zip(octets(it)) {
        *place = octet;
    }
    match fragments.take_whole(it, |_| pool.borrow_mut().out -= 1) {
        Ok(None) => Put::Kept,
        Ok(Some(whole)) => {
            pool.borrow_mut().out -= 1;
            Put::Whole(whole.buf[..whole.len].to_vec(), whole.ecn)
        }
        Err(refused) => Put::Refused(refused),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Put {
    Kept,
    Whole(Vec<u8>, u8),
    Refused(Refused),
}

fn octet(at: usize) -> u8 {
    (at * 7 % 251) as u8
}

fn octets(it: &Fragment) -> Vec<u8> {
    let from = usize::from(it.offset);
    (from..from + usize::from(it.payload.len)).map(octet).collect()
}

/// The expected result, computed octet by octet.
#[derive(Default)]
struct Model {
    seen: Vec<(usize, usize)>,
    end: Option<usize>,
    gone: bool,
}

impl Model {
    /// Whether the datagram is complete now; `None`: the fragment is refused.
    fn put(&mut self, it: &Fragment) -> Option<bool> {
        let (from, to) = (usize::from(it.offset), usize::from(it.offset + it.payload.len));
        let tiny = from == 0 && to < 8;
        if tiny || self.gone {
            return None;
        }
        let same_end = it.more || self.end.is_none_or(|end| end == to);
        if self.seen.contains(&(from, to)) && same_end {
            return None;
        }
        let have = |at: usize| self.seen.iter().any(|piece| (piece.0..piece.1).contains(&at));
        let twice = (from..to).any(have);
        let end = if it.more { self.end } else { Some(to) };
        let furthest = self.seen.iter().map(|piece| piece.1).chain([to]).max().unwrap_or(0);
        let beyond = end.is_some_and(|end| furthest > end) || !same_end;
        if twice || beyond || to > ROOM || self.seen.len() == PIECES_MAX {
            self.gone = true;
            return None;
        }
        self.seen.push((from, to));
        self.end = end;
        let have = |at: usize| self.seen.iter().any(|piece| (piece.0..piece.1).contains(&at));
        Some(self.end.is_some_and(|end| (0..end).all(have)))
    }
}

proptest! {
    /// Any fragments of one datagram: stored, refused and complete as the model says, with the
    /// right octets, and no buffer is lost.
    #[test]
    fn agrees_with_octets(
        is_v6: bool,
        soup in prop::collection::vec((0u16..12, 1u16..14, 0u16..8, any::<bool>()), 1..60),
    ) {
        let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
        let mut model = Model::default();
        for (offset, eights, odd, more) in soup {
            let len = if more { eights * 8 } else { eights * 8 + odd };
            let it = match is_v6 {
                true => fragment_v6(7, offset * 8, len, more),
                false => fragment(7, offset * 8, len, more),
            };
            let got = put(&mut fragments, &pool, &it, 0);
            match model.put(&it) {
                None => prop_assert!(matches!(got, Put::Refused(_)), "{:?}: {:?}", it, got),
                Some(false) => prop_assert_eq!(got, Put::Kept),
                Some(true) => {
                    let end = model.end.unwrap_or(0);
                    let whole: Vec<u8> = (0..end).map(octet).collect();
                    prop_assert_eq!(got, Put::Whole(whole, 0));
                    model = Model::default();
                }
            }
        }
        while let Some(expired) = fragments.expire(TIMEOUT_V6_US) {
            pool.borrow_mut().out -= expired.buf.is_some() as isize;
        }
        prop_assert_eq!(pool.borrow().out, 0);
        prop_assert!(fragments.is_empty());
    }

    /// Any cut of a datagram, in any order, is complete with its last fragment.
    #[test]
    fn any_cut_in_any_order_is_whole(
        cuts in prop::collection::btree_set(1u16..70, 0..PIECES_MAX - 1),
        odd in 1u16..8,
        keys in prop::collection::vec(any::<u32>(), PIECES_MAX),
    ) {
        let end = 70 * 8 + odd;
        let edges: Vec<u16> =
            [0].into_iter().chain(cuts.iter().map(|cut| cut * 8)).chain([end]).collect();
        let mut pieces: Vec<_> = edges.windows(2).zip(&keys).collect();
        pieces.sort_by_key(|(_, key)| **key);
        let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
        let last = pieces.len() - 1;
        if pieces.len() > 1 {
            for (n, (edge, _)) in pieces.into_iter().enumerate() {
                let it = fragment(9, edge[0], edge[1] - edge[0], edge[1] != end);
                let got = put(&mut fragments, &pool, &it, 0);
                let whole = Put::Whole((0..usize::from(end)).map(octet).collect(), 0);
                prop_assert_eq!(got, if n == last { whole } else { Put::Kept });
            }
        }
        prop_assert_eq!(pool.borrow().out, 0);
    }

    /// Whatever arrives from however many sources, the memory is bounded.
    #[test]
    fn what_is_held_is_bounded(
        soup in prop::collection::vec((any::<u16>(), 0u8..20, 0u16..20, any::<bool>()), 1..300),
    ) {
        let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
        for (n, (ident, source, offset, more)) in soup.into_iter().enumerate() {
            let mut it = fragment(ident, offset * 8, 8, more);
            it.ip.src = IpAddr::v4([10, 0, 1, source]);
            put(&mut fragments, &pool, &it, n as u64);
            prop_assert!(pool.borrow().out <= DATAGRAMS_MAX as isize);
            prop_assert!(fragments.held.len() <= DATAGRAMS_MAX);
            let of_source = |held: &&Held<_>| held.key.src == it.ip.src;
            prop_assert!(fragments.held.iter().filter(of_source).count() <= OF_ONE_SOURCE_MAX);
        }
    }
}

#[test]
fn rfc1858_tiny_and_overlapping_headers_are_refused() {
    let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
    let tcp = |offset, len, more| Fragment {
        protocol: ipv4::PROTOCOL_TCP,
        headers_bytes: 20,
        ..fragment(1, offset, len, more)
    };
    let tiny = Put::Refused(Refused::Tiny);
    // Ports and sequence number alone; flags alone.
    assert_eq!(put(&mut fragments, &pool, &tcp(0, 8, true), 0), tiny);
    assert_eq!(put(&mut fragments, &pool, &tcp(0, 16, true), 0), tiny);
    assert_eq!(put(&mut fragments, &pool, &tcp(8, 16, true), 0), tiny);
    assert_eq!(put(&mut fragments, &pool, &tcp(16, 8, false), 0), tiny);
    assert!(fragments.is_empty());
    // A second one that overwrites the first one's header: the whole datagram is refused.
    assert_eq!(put(&mut fragments, &pool, &tcp(0, 40, true), 0), Put::Kept);
    let overlap = Put::Refused(Refused::Overlap);
    assert_eq!(put(&mut fragments, &pool, &tcp(24, 24, true), 0), overlap);
    let given_up = Put::Refused(Refused::GivenUp);
    assert_eq!(put(&mut fragments, &pool, &tcp(40, 9, false), 0), given_up);
    assert_eq!(pool.borrow().out, 0);
}

#[test]
fn the_ping_of_death_is_too_long() {
    let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
    let beyond = fragment(1, 65_528, 1000, false);
    assert_eq!(put(&mut fragments, &pool, &beyond, 0), Put::Refused(Refused::TooLong));
    let room = fragment(2, (ROOM as u16) & !7, 1, false);
    assert_eq!(put(&mut fragments, &pool, &room, 0), Put::Refused(Refused::TooLong));
}

#[test]
fn what_does_not_become_whole_expires_and_names_its_first_fragment() {
    let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
    put(&mut fragments, &pool, &fragment(1, 0, 16, true), 100);
    put(&mut fragments, &pool, &fragment(2, 16, 16, true), 200);
    assert_eq!(fragments.deadline_us(), Some(100 + TIMEOUT_US));
    assert_eq!(fragments.expire(99 + TIMEOUT_US), None);
    let first = fragments.expire(100 + TIMEOUT_US).map(|expired| expired.first.is_some());
    assert_eq!(first, Some(true));
    assert_eq!(fragments.expire(100 + TIMEOUT_US), None);
    let second = fragments.expire(200 + TIMEOUT_US).map(|expired| expired.first.is_some());
    assert_eq!(second, Some(false));
    assert!(fragments.is_empty());
}

#[test]
fn one_source_does_not_push_out_the_others() {
    let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
    let ours = fragment(1, 0, 16, true);
    assert_eq!(put(&mut fragments, &pool, &ours, 0), Put::Kept);
    for ident in 0..1000 {
        let mut flood = fragment(ident, 0, 16, true);
        flood.ip.src = IpAddr::v4([10, 0, 9, 9]);
        assert_eq!(put(&mut fragments, &pool, &flood, 1), Put::Kept);
    }
    let last = fragment(1, 16, 4, false);
    assert!(matches!(put(&mut fragments, &pool, &last, 2), Put::Whole(..)));
    assert_eq!(pool.borrow().most as usize, OF_ONE_SOURCE_MAX + 1);
}

#[test]
fn rfc3168_5_3_a_mark_marks_the_whole() {
    let whole = |marks: [u8; 2]| {
        let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
        let [mut a, mut b] = [fragment(1, 0, 16, true), fragment(1, 16, 4, false)];
        (a.ip.tos, b.ip.tos) = (marks[0], marks[1]);
        put(&mut fragments, &pool, &a, 0);
        match put(&mut fragments, &pool, &b, 0) {
            Put::Whole(_, ecn) => Some(ecn),
            Put::Refused(Refused::Mark) => None,
            other => panic!("{other:?}"),
        }
    };
    let cases = [([0, 0], Some(0)), ([2, 2], Some(2)), ([1, 1], Some(1)), ([2, 3], Some(3))];
    for (marks, ecn) in cases.into_iter().chain([([3, 3], Some(3)), ([0, 3], None)]) {
        assert_eq!(whole(marks), ecn, "{marks:?}");
    }
}

/// RFC 8200 section 4.5: a minute, whatever else waits.
#[test]
fn each_family_has_its_time() {
    let (mut fragments, pool) = (Fragments::new(ROOM), Buffers::default());
    put(&mut fragments, &pool, &fragment_v6(1 << 16 | 7, 0, 16, true), 0);
    put(&mut fragments, &pool, &fragment_v6(7, 0, 16, true), 1);
    put(&mut fragments, &pool, &fragment(7, 0, 16, true), 2);
    assert_eq!(fragments.deadline_us(), Some(2 + TIMEOUT_US));
    assert_eq!(fragments.expire(2 + TIMEOUT_US).map(|expired| expired.is_v6), Some(false));
    assert_eq!(fragments.expire(TIMEOUT_V6_US - 1), None);
    assert_eq!(fragments.expire(TIMEOUT_V6_US).map(|expired| expired.is_v6), Some(true));
    assert_eq!(fragments.expire(TIMEOUT_V6_US), None, "another identification");
    assert_eq!(fragments.deadline_us(), Some(1 + TIMEOUT_V6_US));
}

//! Both protocols without a network: conversations, and requests that come in any pieces.
use ix_kv::context::Context;
use ix_kv::expiry::Now;
use ix_kv::reply::Reply;
use ix_kv::session::Session;
use ix_kv::store::{Limits, Store};
use ix_kv::words::Words;
use proptest::prelude::*;

/// A store of few sizes of chunk, with more than a page for each: nothing is thrown out, which
/// would make answers depend on how requests were cut.
fn store() -> &'static Store {
    let limits = Limits { memory_bytes: 16 << 20, factor: 4.0, ..Limits::default() };
    let words = Words::private(limits.region_bytes() as usize).unwrap();
    Store::new(words, limits, 10, 1)
}

fn context(store: &'static Store, elapsed_s: u64) -> Context<'static> {
    Context { store, me: store.counters(0), now: Now::new(elapsed_s, 1_800_000_000) }
}

/// Feeds pieces and answers all that is replied; checks the promises of `feed`.
fn talk<'a>(
    session: &mut Session,
    context: &Context<'_>,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    lends: bool,
) -> Vec<u8> {
    let mut reply = Reply::new(lends);
    let mut said = Vec::new();
    for mut piece in pieces {
        loop {
            let taken = session.feed(piece, context, &mut reply);
            piece = &piece[taken..];
            assert!(piece.is_empty() || reply.is_full() || session.is_closed());
            let more = reply.is_full() && !session.is_closed();
            let mut at = 0;
            for lent in &reply.lent {
                said.extend(&reply.bytes[at..lent.before]);
                lent.data.copy(&mut said);
                at = lent.before;
            }
            said.extend(&reply.bytes[at..]);
            reply.clear();
            if !more {
                break;
            }
        }
    }
    said
}

fn ascii(conversation: &[(&str, &str)]) {
    let store = store();
    let mut session = Session::default();
    for (question, answer) in conversation {
        let said = talk(&mut session, &context(store, 0), [question.as_bytes()], false);
        assert_eq!(String::from_utf8_lossy(&said), *answer, "to {question:?}");
    }
}

#[test]
fn ascii_storage() {
    ascii(&[
        ("set a 5 0 3\r\nabc\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("get b a  c a\r\n", "VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\n"),
        ("gets a\r\n", "VALUE a 5 3 1\r\nabc\r\nEND\r\n"),
        ("add a 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("add b 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("replace c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("append a 9 9 1\r\nd\r\n", "STORED\r\n"),
        ("prepend a 9 9 1\r\n_\r\n", "STORED\r\n"),
        ("get a\r\n", "VALUE a 5 5\r\n_abcd\r\nEND\r\n"),
        ("append c 0 0 1\r\nx\r\n", "NOT_STORED\r\n"),
        ("cas a 0 0 1 4\r\nx\r\n", "STORED\r\n"),
        ("cas a 0 0 1 4\r\ny\r\n", "EXISTS\r\n"),
        ("cas c 0 0 1 4\r\ny\r\n", "NOT_FOUND\r\n"),
        ("cas a 0 0 1 0\r\ny\r\n", "EXISTS\r\n"),
        ("set a 0 0 1 noreply\r\nz\r\nget a\r\n", "VALUE a 0 1\r\nz\r\nEND\r\n"),
        ("delete a\r\ndelete a\r\n", "DELETED\r\nNOT_FOUND\r\n"),
        ("set e 0 0 0\r\n\r\nget e\r\n", "STORED\r\nVALUE e 0 0\r\n\r\nEND\r\n"),
        ("flush_all\r\nget e\r\n", "OK\r\nEND\r\n"),
        ("quit\r\nget e\r\n", ""),
    ]);
}

#[test]
fn ascii_numbers() {
    ascii(&[
        ("incr n 1\r\n", "NOT_FOUND\r\n"),
        ("set n 7 0 2\r\n99\r\nincr n 1\r\n", "STORED\r\n100\r\n"),
        ("decr n 1\r\nget n\r\n", "99\r\nVALUE n 7 3\r\n99 \r\nEND\r\n"),
        ("decr n 100\r\n", "0\r\n"),
        ("incr n 18446744073709551615\r\nincr n 1\r\n", "18446744073709551615\r\n0\r\n"),
        ("incr n -1\r\n", "CLIENT_ERROR invalid numeric delta argument\r\n"),
        ("set n 0 0 1\r\nx\r\n", "STORED\r\n"),
        ("incr n 1\r\n", "CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    ]);
}

#[test]
fn ascii_errors() {
    let long = "k".repeat(251);
    let bad = "CLIENT_ERROR bad command line format\r\n";
    ascii(&[
        ("\r\n", "ERROR\r\n"),
        ("get\r\n", "ERROR\r\n"),
        ("GET a\r\n", "ERROR\r\n"),
        (&format!("get {long}\r\n"), bad),
        (&format!("get a {long}\r\n"), bad),
        (&format!("set {long} 0 0 1\r\n"), bad),
        (&format!("delete {long}\r\n"), bad),
        (&format!("incr {long} 1\r\n"), bad),
        (&format!("touch {long} 1\r\n"), bad),
        ("set a 0 0\r\n", "ERROR\r\n"),
        ("set a x 0 1\r\n", bad),
        ("set a 0 0 -1\r\n", bad),
        ("set a 0 0 1\r\nxyz\r\n", "CLIENT_ERROR bad data chunk\r\nERROR\r\n"),
        (
            "set a 0 0 1\r\nx\r\nset a 0 0 2000000\r\n",
            "STORED\r\nSERVER_ERROR object too large for cache\r\n",
        ),
        (&format!("{}\r\nget a\r\n", "x".repeat(2_000_000)), "END\r\n"),
        ("touch a x\r\n", "CLIENT_ERROR invalid exptime argument\r\n"),
        (
            "delete a 5\r\n",
            "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n",
        ),
        ("verbosity\r\n", "ERROR\r\n"),
        ("verbosity 1\r\n", "OK\r\n"),
        ("stats nonsense\r\n", "ERROR\r\n"),
    ]);
}

#[test]
fn ascii_time() {
    let store = store();
    let mut session = Session::default();
    let mut at = |elapsed_s, question: &str, answer: &str| {
        let said = talk(&mut session, &context(store, elapsed_s), [question.as_bytes()], false);
        assert_eq!(String::from_utf8_lossy(&said), answer, "to {question:?} at {elapsed_s} s");
    };
    at(0, "set a 0 10 1\r\nx\r\nset b 0 -1 1\r\nx\r\n", "STORED\r\nSTORED\r\n");
    at(9, "get a b\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(9, "gat 5 a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(13, "touch a 2\r\n", "TOUCHED\r\n");
    at(14, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(15, "get a\r\n", "END\r\n");
    at(20, "set a 0 1800000030 1\r\nx\r\n", "STORED\r\n");
    at(29, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(30, "get a\r\n", "END\r\n");
    at(40, "set a 0 0 1\r\nx\r\nflush_all 5\r\n", "STORED\r\nOK\r\n");
    at(44, "get a\r\n", "VALUE a 0 1\r\nx\r\nEND\r\n");
    at(
        45,
        "get a\r\nset a 0 0 1\r\ny\r\nget a\r\n",
        "END\r\nSTORED\r\nVALUE a 0 1\r\ny\r\nEND\r\n",
    );
    at(46, "gat -1 a\r\nget a\r\n", "VALUE a 0 1\r\ny\r\nEND\r\nEND\r\n");
}

fn binary(op: u8, key: &[u8], extras: &[u8], value: &[u8], cas: u64) -> Vec<u8> {
    let body = [extras, key, value].concat();
    let mut request = vec![0x80, op];
    request.extend((key.len() as u16).to_be_bytes());
    request.extend([extras.len() as u8, 0, 0, 0]);
    request.extend((body.len() as u32).to_be_bytes());
    request.extend([0xde, 0xad, 0xbe, op]);
    request.extend(cas.to_be_bytes());
    request.extend(body);
    request
}

/// Responses as (code, status, cas, body).
fn responses(mut bytes: &[u8]) -> Vec<(u8, u16, u64, Vec<u8>)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        assert!(bytes.len() >= 24 && bytes[0] == 0x81, "{bytes:?}");
        let long = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
        let len = long(8) as usize >> 32;
        assert_eq!(bytes[12..16], [0xde, 0xad, 0xbe, bytes[1]], "the opaque comes back");
        let status = u16::from_be_bytes([bytes[6], bytes[7]]);
        all.push((bytes[1], status, long(16), bytes[24..24 + len].to_vec()));
        bytes = &bytes[24 + len..];
    }
    all
}

#[test]
fn binary_conversation() {
    let store = store();
    let mut session = Session::default();
    let mut ask = |request: Vec<u8>| {
        let said = talk(&mut session, &context(store, 0), [&request[..]], false);
        responses(&said)
            .into_iter()
            .map(|(op, status, _, body)| (op, status, body))
            .collect::<Vec<_>>()
    };
    let flags = |flags: u32, expires: u32| [flags.to_be_bytes(), expires.to_be_bytes()].concat();
    let counter = |delta: u64, initial: u64, expires: u32| {
        [&delta.to_be_bytes()[..], &initial.to_be_bytes(), &expires.to_be_bytes()].concat()
    };
    let text = |text: &str| text.as_bytes().to_vec();
    assert_eq!(ask(binary(0, b"a", b"", b"", 0)), [(0, 1, text("Not found"))]);
    assert_eq!(ask(binary(9, b"a", b"", b"", 0)), []);
    assert_eq!(ask(binary(1, b"a", &flags(7, 0), b"val", 0)), [(1, 0, vec![])]);
    assert_eq!(ask(binary(0, b"a", b"", b"", 0)), [(0, 0, text("\0\0\0\x07val"))]);
    assert_eq!(ask(binary(0xc, b"a", b"", b"", 0)), [(0xc, 0, text("\0\0\0\x07aval"))]);
    assert_eq!(ask(binary(2, b"a", &flags(0, 0), b"x", 0)), [(2, 2, text("Data exists for key."))]);
    assert_eq!(ask(binary(3, b"z", &flags(0, 0), b"x", 0)), [(3, 1, text("Not found"))]);
    assert_eq!(
        ask(binary(1, b"a", &flags(0, 0), b"x", 99)),
        [(1, 2, text("Data exists for key."))]
    );
    assert_eq!(ask(binary(1, b"z", &flags(0, 0), b"x", 99)), [(1, 1, text("Not found"))]);
    assert_eq!(ask(binary(0x11, b"q", &flags(0, 0), b"x", 0)), []);
    assert_eq!(ask(binary(0xe, b"a", b"", b"++", 0)), [(0xe, 0, vec![])]);
    assert_eq!(ask(binary(0xe, b"z", b"", b"++", 0)), [(0xe, 5, text("Not stored."))]);
    assert_eq!(
        ask(binary(0x1d, b"a", &9u32.to_be_bytes(), b"", 0)),
        [(0x1d, 0, text("\0\0\0\x07val++"))]
    );
    let none = counter(1, 5, 0xffff_ffff);
    assert_eq!(ask(binary(5, b"n", &none, b"", 0)), [(5, 1, text("Not found"))]);
    assert_eq!(
        ask(binary(5, b"n", &counter(1, 5, 0), b"", 0)),
        [(5, 0, 5u64.to_be_bytes().to_vec())]
    );
    assert_eq!(
        ask(binary(6, b"n", &counter(9, 5, 0), b"", 0)),
        [(6, 0, 0u64.to_be_bytes().to_vec())]
    );
    let why = text("Non-numeric server-side value for incr or decr");
    assert_eq!(ask(binary(5, b"a", &counter(1, 5, 0), b"", 0)), [(5, 6, why)]);
    assert_eq!(ask(binary(0x55, b"key", b"", b"body", 0)), [(0x55, 0x81, text("Unknown command"))]);
    assert_eq!(
        ask(binary(1, b"a", &flags(0, 0), &[b'x'; 2 << 20], 0)),
        [(1, 3, text("Too large."))]
    );
    assert_eq!(ask(binary(0, b"a", b"", b"", 0)), [(0, 1, text("Not found"))]);
    assert_eq!(ask(binary(4, b"q", b"", b"", 0)), [(4, 0, vec![])]);
    assert_eq!(ask(binary(8, b"", b"", b"", 0)), [(8, 0, vec![])]);
    assert_eq!(ask(binary(0xa, b"", b"", b"", 0)), [(0xa, 0, vec![])]);
    assert_eq!(ask(binary(1, b"a", b"", b"x", 0)), [(1, 4, text("Invalid arguments"))]);
    assert!(session.is_closed());
}

#[test]
fn a_line_without_end_closes_the_connection_unless_it_asks_for_keys() {
    let store = store();
    let now = context(store, 0);
    let mut session = Session::default();
    talk(&mut session, &now, [&[b'x'; 3000][..]], false);
    assert!(session.is_closed());
    // A thousand keys and more than any buffer, a byte at a time.
    let mut session = Session::default();
    talk(&mut session, &now, [&b"set k7 0 0 1\r\nx\r\n"[..]], false);
    let keys: String = (0..3000).map(|key| format!(" k{}", key % 1000)).collect();
    let question = format!("get{keys}\r\nversion\r\n");
    let said = talk(&mut session, &now, question.as_bytes().chunks(1), false);
    let said = String::from_utf8(said).unwrap();
    assert!(said.starts_with(&"VALUE k7 0 1\r\nx\r\n".repeat(3)), "{said}");
    assert!(said[51..].starts_with("END\r\nVERSION "), "{said}");
}

#[test]
fn large_values_are_lent_or_copied_alike() {
    let store = store();
    let now = context(store, 0);
    let mut session = Session::default();
    let value: Vec<u8> = (0..300_000u32).map(|i| (i * 31) as u8).collect();
    let set = [&b"set big 1 0 300000\r\n"[..], &value, b"\r\n"].concat();
    assert_eq!(talk(&mut session, &now, [&set[..]], false), b"STORED\r\n");
    let ask = b"get big\r\ngets big none big\r\n";
    let copied = talk(&mut session, &now, [&ask[..]], false);
    let mut other = Session::default();
    assert!(copied == talk(&mut other, &now, [&ask[..]], true), "lent is not as copied");
    let part = |head: &[u8]| [head, &value, b"\r\n"].concat();
    let (get, gets) = (part(b"VALUE big 1 300000\r\n"), part(b"VALUE big 1 300000 1\r\n"));
    let expected = [&get[..], b"END\r\n", &gets, &gets, b"END\r\n"].concat();
    assert!(copied == expected, "wrong bytes");
}

/// Requests of all kinds, right and wrong.
fn request() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![
        (0..6u8).prop_map(|key| format!("key{key}").into_bytes()),
        Just(vec![b'k'; 250]),
        Just(vec![b'k'; 251]),
    ];
    let value = prop::collection::vec(any::<u8>(), 0..2000);
    let verb = prop::sample::select(vec!["set", "add", "replace", "append", "prepend"]);
    let noreply = prop::sample::select(vec!["", " noreply"]);
    let line = prop::sample::select(vec![
        "get\r\n",
        "version\r\n",
        "flush_all noreply\r\n",
        "bogus\r\n",
        "\r\n",
        "verbosity 1\r\n",
        "incr key1 5\r\n",
        "decr key1 2 noreply\r\n",
        "gat 100 key0 key1\r\n",
        "touch key2 9\r\n",
        "cas key1 0 0 1 3\r\nx\r\n",
        "set key1 0 0 2\r\n17\r\n",
        "set key1 0 0 1\r\ntoo long\r\n",
        "set a 0 0 1048577\r\n",
        "delete key1\r\n",
        "gets key1\r\n",
        "get key0 key1 key2 key3\n",
    ]);
    prop_oneof![
        (verb, key.clone(), noreply, value).prop_map(|(verb, key, noreply, value)| {
            let key = String::from_utf8(key).unwrap();
            let head = format!("{verb} {key} 3 0 {}{noreply}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        }),
        // A line that is longer than is waited for is answered until its first error.
        prop::collection::vec(key, 1..8)
            .prop_map(|keys| { [b"get ", &keys.join(&b' ')[..], b"\r\n"].concat() }),
        prop::collection::vec(0..6u8, 1..900).prop_map(|keys| {
            let keys: String = keys.iter().map(|key| format!(" key{key}")).collect();
            format!("gets{keys}\r\n").into_bytes()
        }),
        line.prop_map(|line| line.as_bytes().to_vec()),
    ]
}

fn binary_request() -> impl Strategy<Value = Vec<u8>> {
    let key = (0..6u8).prop_map(|key| format!("key{key}").into_bytes());
    let value = prop::collection::vec(any::<u8>(), 0..2000);
    (0..0x25u8, key, value, any::<bool>()).prop_map(|(op, key, value, right)| {
        let (extras, key, value): (Vec<u8>, &[u8], &[u8]) = match op {
            _ if !right && op == 0x1f => (vec![1], &key, &value),
            0x07 | 0x17 => return binary(0xa, b"", b"", b"", 0),
            1..=3 | 0x11..=0x13 => (vec![0; 8], &key, &value),
            5 | 6 | 0x15 | 0x16 => (vec![0; 20], &key, b""),
            0xe | 0xf | 0x19 | 0x1a => (vec![], &key, &value),
            0x1c | 0x1d | 0x1e | 0x23 | 0x24 => (vec![0; 4], &key, b""),
            8 | 0xa | 0xb | 0x18 => (vec![], b"", b""),
            0x10 => return binary(0xa, b"", b"", b"", 0),
            _ => (vec![], &key, b""),
        };
        binary(op, key, &extras, value, 0)
    })
}

fn whole_and_in_pieces(requests: &[Vec<u8>], cuts: &[usize]) -> (Vec<u8>, Vec<u8>) {
    let all = requests.concat();
    let whole = talk(&mut Session::default(), &context(store(), 0), [&all[..]], false);
    let mut pieces = Vec::new();
    let (mut at, mut cut) = (0, cuts.iter().cycle());
    while at < all.len() {
        let end = (at + cut.next().unwrap()).min(all.len());
        pieces.push(&all[at..end]);
        at = end;
    }
    let store = store();
    let parts = talk(&mut Session::default(), &context(store, 0), pieces, true);
    (whole, parts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn ascii_in_pieces(
        requests in prop::collection::vec(request(), 1..40),
        cuts in prop::collection::vec(prop_oneof![1..9usize, 1..3000usize], 1..20),
    ) {
        let (whole, parts) = whole_and_in_pieces(&requests, &cuts);
        prop_assert_eq!(String::from_utf8_lossy(&whole), String::from_utf8_lossy(&parts));
    }

    #[test]
    fn binary_in_pieces(
        requests in prop::collection::vec(binary_request(), 1..40),
        cuts in prop::collection::vec(prop_oneof![1..9usize, 1..3000usize], 1..20),
    ) {
        let (whole, parts) = whole_and_in_pieces(&requests, &cuts);
        prop_assert_eq!(responses(&whole), responses(&parts));
    }

    #[test]
    fn garbage_is_survived(
        first in any::<u8>(),
        garbage in prop::collection::vec(any::<u8>(), 0..6000),
        cut in 1..500usize,
    ) {
        let garbage = [vec![first], garbage].concat();
        for start in [&b""[..], b"\x80", b"get ", b"set a 0 0 100\r\n"] {
            let input = [start, &garbage].concat();
            let store = store();
            let said = talk(&mut Session::default(), &context(store, 0), input.chunks(cut), false);
            prop_assert!(said.len() < 100 * input.len());
        }
    }
}

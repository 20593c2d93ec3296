//! Conversations, and that it does not matter in which pieces they come.
use super::*;
use proptest::prelude::*;

fn site() -> Site {
    let mut site = Site::new(1 << 20);
    site.add_synthetic(10).unwrap();
    site.add_synthetic(20).unwrap();
    site
}

/// All answers to a stream that comes in pieces, each of which is offered until it is used up.
fn answers<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<String>, Session) {
    let (mut session, site, mut answers) = (Session::default(), site(), Vec::new());
    for mut piece in pieces {
        while !piece.is_empty() {
            let (used, answer) = session.read(piece, &site);
            assert!(answer.is_some() || used == piece.len(), "no answer, yet not all was read");
            piece = &piece[used..];
            answers.extend(answer.map(short));
        }
    }
    (answers, session)
}

/// `page 1`, `404 close`, `page 0 head keep`.
fn short(answer: Answer) -> String {
    let what = match answer.what {
        What::Page(page) => format!("page {page}"),
        What::Status(status) => status.text()[..3].to_owned(),
        What::Continue => "100".to_owned(),
    };
    let persistence = match answer.persistence {
        Persistence::Implied => "",
        Persistence::KeepAlive => " keep",
        Persistence::Close => " close",
    };
    format!("{what}{}{persistence}", if answer.head_only { " head" } else { "" })
}

/// Streams and what they are answered.
const CONVERSATIONS: [(&str, &[&str]); 19] = [
    ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", &["page 0"]),
    ("GET /20 HTTP/1.1\nHost: h\n\n", &["page 1"]),
    ("\r\n\r\nHEAD /20 HTTP/1.1\r\nHost: h\r\n\r\n\r\n", &["page 1 head"]),
    ("GET / HTTP/1.0\r\n\r\n", &["page 0 close"]),
    ("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &["page 0 keep"]),
    ("GET /x HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", &["404", "page 0"]),
    (
        "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        &["page 0 close"],
    ),
    (
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        &["405", "page 0"],
    ),
    (
        "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n0\r\nA: b\r\n\r\n\
         GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        &["405", "page 0"],
    ),
    (
        "GET /20 HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nab\
         GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        &["100", "page 1", "page 0"],
    ),
    ("BREW / HTTP/1.1\r\nHost: h\r\n\r\n", &["501"]),
    ("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", &["400 close"]),
    ("GET / HTTP/3.0\r\nHost: h\r\n\r\n", &["505 close"]),
    ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1048577\r\n\r\nx", &["413 close"]),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\nx", &["413 close"]),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", &["400 close"]),
    ("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\nzz\r\n", &["501 close"]),
    ("GET /", &[]),
    ("\r\n\r\n", &[]),
];

#[test]
fn conversations() {
    for (stream, wanted) in CONVERSATIONS {
        let (got, session) = answers([stream.as_bytes()]);
        assert_eq!(got, wanted, "{stream}");
        let closes = wanted.last().is_some_and(|answer| answer.ends_with("close"));
        assert_eq!(session.is_over(), closes, "{stream}");
        assert_eq!(session.in_request(), stream == "GET /", "{stream}");
    }
}

#[test]
fn one_byte_at_a_time() {
    for (stream, wanted) in CONVERSATIONS {
        assert_eq!(answers(stream.as_bytes().chunks(1)).0, wanted, "{stream}");
    }
}

#[test]
fn long_heads_are_refused_in_whatever_pieces_they_come() {
    let line = format!("GET /{} HTTP/1.1\r\nHost: h\r\n\r\n", "x".repeat(10_000));
    let field = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(10_000));
    for (stream, wanted) in [(line, "414 close"), (field, "431 close")] {
        for pieces in [1, 7, 1460, 100_000] {
            let (got, session) = answers(stream.as_bytes().chunks(pieces));
            assert_eq!(got, [wanted], "{pieces}");
            assert!(session.is_over());
        }
    }
}

#[test]
fn a_request_that_does_not_come_is_answered_too() {
    let (_, mut session) = answers([&b"GET / HT"[..]]);
    assert!(session.in_request());
    assert_eq!(session.time_out(), Answer::last(Status::RequestTimeout));
    assert!(session.is_over() && !session.in_request());
}

proptest! {
    #[test]
    fn pieces_do_not_matter(
        which in prop::collection::vec(0..CONVERSATIONS.len(), 1..6),
        cuts in prop::collection::vec(1..60usize, 1..60),
    ) {
        let stream: String = which.iter().map(|&i| CONVERSATIONS[i].0).collect();
        // Ended, so that no half request is left whose error shows only at the line's end.
        let stream = stream + "\r\n\r\n";
        let mut rest = stream.as_bytes();
        let mut pieces = Vec::new();
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(answers(pieces).0, answers([stream.as_bytes()]).0);
    }

    #[test]
    fn nothing_panics_and_garbage_ends(data in prop::collection::vec(any::<u8>(), 0..500)) {
        answers([&data[..]]);
        answers(data.chunks(3));
    }
}

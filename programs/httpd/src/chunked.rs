//! A body in chunked transfer coding (RFC 9112 section 7.1), parsed only to find its end.

/// Most bytes of chunk extensions and trailers: more is abuse.
const OVERHEAD_BYTES: usize = 4096;

/// Progress of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The end has not been reached.
    More,
    /// The body ended.
    End,
    /// It violates the grammar, or has too many bytes of extensions and trailers.
    Bad,
    /// It has more content than allowed.
    TooLong,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// In the digits of a size.
    Size { digits: u8 },
    /// After the digits, up to the line's end.
    Extension,
    /// Content of a chunk.
    Data,
    /// After the content: CR or LF.
    DataEnd,
    /// After that CR.
    DataLf,
    /// In the trailers; an empty line ends the body.
    Trailer { empty: bool },
}

/// Parses a body in pieces of any length.
#[derive(Clone, Copy, Debug)]
pub struct Chunked {
    state: State,
    /// Rest of this chunk's content.
    left: u64,
    /// Content that is still allowed.
    allowed: u64,
    overhead: usize,
}

impl Chunked {
    /// For at most `allowed` bytes of content.
    pub fn new(allowed: u64) -> Chunked {
        Chunked { state: State::Size { digits: 0 }, left: 0, allowed, overhead: 0 }
    }

    /// Parses the front of `data`; returns how many bytes belong to the body, and the progress.
    pub fn read(&mut self, data: &[u8]) -> (usize, Progress) {
        let mut at = 0;
        while at < data.len() {
            if let State::Data = self.state {
                let n = self.left.min((data.len() - at) as u64);
                self.left -= n;
                at += n as usize;
                if self.left == 0 {
                    self.state = State::DataEnd;
                }
                continue;
            }
            at += 1;
            match self.step(data[at - 1]) {
                Progress::More => {}
                end => return (at, end),
            }
        }
        (at, Progress::More)
    }

    fn step(&mut self, byte: u8) -> Progress {
        match (self.state, byte) {
            (State::Size { digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                // Sixteen digits fill 64 bits.
                if digits == 16 {
                    return Progress::TooLong;
                }
                let digit = (byte as char).to_digit(16).map_or(0, u64::from);
                self.left = self.left << 4 | digit;
                self.state = State::Size { digits: digits + 1 };
            }
            (State::Size { digits: 1.. }, b'\n') | (State::Extension, b'\n') => {
                return self.begin_chunk();
            }
            (State::Size { digits: 1.. }, b'\r' | b';' | b' ' | b'\t') => {
                self.state = State::Extension;
            }
            (State::Extension, _) => return self.waste(),
            (State::DataEnd, b'\r') => self.state = State::DataLf,
            (State::DataEnd | State::DataLf, b'\n') => self.state = State::Size { digits: 0 },
            (State::Trailer { empty: true }, b'\n') => return Progress::End,
            (State::Trailer { empty: false }, b'\n') => self.state = State::Trailer { empty: true },
            (State::Trailer { .. }, b'\r') => return self.waste(),
            (State::Trailer { .. }, _) => {
                self.state = State::Trailer { empty: false };
                return self.waste();
            }
            _ => return Progress::Bad,
        }
        Progress::More
    }

    fn begin_chunk(&mut self) -> Progress {
        if self.left == 0 {
            self.state = State::Trailer { empty: true };
            return Progress::More;
        }
        match self.allowed.checked_sub(self.left) {
            Some(allowed) => {
                self.allowed = allowed;
                self.state = State::Data;
                Progress::More
            }
            None => Progress::TooLong,
        }
    }

    fn waste(&mut self) -> Progress {
        self.overhead += 1;
        if self.overhead > OVERHEAD_BYTES { Progress::Bad } else { Progress::More }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bodies_end_where_the_grammar_says() {
        for (body, end) in [
            ("0\r\n\r\n", Progress::End),
            ("0\n\n", Progress::End),
            ("5\r\nhello\r\n0\r\n\r\n", Progress::End),
            ("A;name=\"v\"\r\n0123456789\r\n000\r\nTrailer: x\r\nB: y\r\n\r\n", Progress::End),
            ("5\r\nhello", Progress::More),
            ("5\r\nhello\r\n0\r\n", Progress::More),
            ("\r\n", Progress::Bad),
            ("x", Progress::Bad),
            ("-1", Progress::Bad),
            ("5\r\nhelloX", Progress::Bad),
            ("5\r\nhello\rX", Progress::Bad),
            ("65\r\n", Progress::TooLong),
            ("00000000000000001\r\n", Progress::TooLong),
            ("64\r\n", Progress::More),
        ] {
            let (used, progress) = Chunked::new(100).read(body.as_bytes());
            assert_eq!(progress, end, "{body:?}");
            assert!(progress != Progress::End || used == body.len(), "{body:?}");
        }
    }

    #[test]
    fn the_sum_of_chunks_and_the_overhead_are_limited() {
        let chunk = "40\r\n".to_owned() + &"x".repeat(64) + "\r\n";
        assert_eq!(Chunked::new(100).read(chunk.as_bytes()).1, Progress::More);
        assert_eq!(Chunked::new(100).read(chunk.repeat(2).as_bytes()).1, Progress::TooLong);
        let endless = "1;".to_owned() + &"e".repeat(2 * OVERHEAD_BYTES);
        assert_eq!(Chunked::new(100).read(endless.as_bytes()).1, Progress::Bad);
        let trailers = "0\r\n".to_owned() + &"t: v\r\n".repeat(OVERHEAD_BYTES);
        assert_eq!(Chunked::new(100).read(trailers.as_bytes()).1, Progress::Bad);
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(
            chunks in prop::collection::vec(1..50usize, 0..8),
            cuts in prop::collection::vec(1..20usize, 1..40),
        ) {
            let mut body = Vec::new();
            for len in &chunks {
                body.extend(format!("{len:x}\r\n").bytes());
                body.extend(std::iter::repeat_n(b'\n', *len));
                body.extend(b"\r\n");
            }
            body.extend(b"0\r\n\r\n");
            let len = body.len();
            body.extend(b"GET / HTTP/1.1\r\n");
            let mut reader = Chunked::new(1000);
            let (mut at, mut cuts) = (0, cuts.iter().cycle());
            loop {
                let end = (at + cuts.next().expect("endless")).min(body.len());
                let (used, progress) = reader.read(&body[at..end]);
                at += used;
                if progress != Progress::More {
                    prop_assert_eq!((progress, at), (Progress::End, len));
                    break;
                }
            }
        }
    }
}

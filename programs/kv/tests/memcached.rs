//! Against Debian's memcached: the same long random conversation gets the same answers from both;
//! libmemcached's own tests and its Python client find no difference.
use ix_skip::{Need, skip};
use ix_testbed::server::{Server, free_address};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
const MISSING: Need<'_> =
    Need::Program("apt-get install memcached libmemcached-tools python3-pylibmc");

fn ix_kv(extra: &[&str]) -> Server {
    let at = free_address();
    let port = at.port().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ix-kv"));
    command.args(["--linux", "-l", "127.0.0.1", "-p", &port, "-U", &port]).args(extra);
    Server::start(command, at)
}

/// Debian's memcached, `None` where there is none.
fn memcached(test: &str) -> Option<Server> {
    let at = free_address();
    let port = at.port().to_string();
    let mut command = Command::new("memcached");
    command.args(["-u", "nobody", "-l", "127.0.0.1", "-U", "0", "-m", "64", "-p", &port]);
    let Ok(child) = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
        skip(test, MISSING, "no memcached to compare with");
        return None;
    };
    let server = Server::of(child, at);
    let end = Instant::now() + PATIENCE;
    while TcpStream::connect(at).is_err() {
        assert!(Instant::now() < end, "memcached does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(server)
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The generator of this test alone: its conversations are those that the two servers agree on.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        // xorshift64 (Marsaglia 2003).
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A command; `%` stands for the number that the server last gave with the key.
fn ascii_command(random: &mut Random) -> (String, String) {
    let long = "k".repeat(249 + random.below(3) as usize);
    let keys = ["a", "b", "c", "n", "m", &long];
    let key = random.pick(&keys).to_string();
    let noreply = random.pick(&["", "", "", " noreply"]);
    let flags = random.pick(&["0", "1", "4294967295", "-1", "x"]);
    let time = random.pick(&["0", "0", "0", "100", "-1", "2592001", "4000000000", "y"]);
    // What follows a command that is refused is read as one, and must not be too long for that.
    let refused = key.len() > 250 || ["-1", "x"].contains(&flags) || time == "y";
    let lens = ["0", "1", "7", "100", "1200", "70000"];
    let len = random.pick(&lens[..if refused { 4 } else { 6 }]).parse::<usize>().unwrap();
    let value = match random.below(3) {
        0 => random.below(1_000_000).to_string(),
        1 => String::new(),
        _ => char::from(b'a' + random.below(26) as u8).to_string().repeat(len),
    };
    let size = value.len();
    let delta = random.pick(&["1", "5", "18446744073709551615", "100"]);
    let text = match random.below(24) {
        0..5 => format!("get {key}\r\n"),
        5 => format!("get a b {key} n\r\n"),
        6 => format!("gets {key}\r\n"),
        7..10 => format!("set {key} {flags} {time} {size}{noreply}\r\n{value}\r\n"),
        10 => format!("add {key} 0 0 {size}{noreply}\r\n{value}\r\n"),
        11 => format!("replace {key} 3 0 {size}{noreply}\r\n{value}\r\n"),
        12 => format!("append {key} 3 0 {size}{noreply}\r\n{value}\r\n"),
        13 => format!("prepend {key} 3 0 {size}{noreply}\r\n{value}\r\n"),
        14 => format!("cas {key} 3 0 {size} %{noreply}\r\n{value}\r\n"),
        15 => format!("incr {key} {delta}{noreply}\r\n"),
        16 => format!("decr {key} {delta}{noreply}\r\n"),
        17 => format!("touch {key} {time}{noreply}\r\n"),
        18 => format!("gat {time} {key} a\r\n"),
        19 => format!("delete {key}{noreply}\r\n"),
        20 if random.below(8) == 0 => format!("flush_all{noreply}\r\n"),
        20 => format!("gats 0 {key}\r\n"),
        21 if key.len() <= 250 => {
            format!("set {key} 0 0 2000000{noreply}\r\n{}\r\n", "L".repeat(2_000_000))
        }
        22 if key.len() <= 250 => format!("set {key} 0 0 {size}{noreply}\r\n{value}AB\r\n"),
        _ => random
            .pick(&["get\r\n", "nonsense\r\n", "\r\n", "set a\r\n", "incr a\r\n", "delete a 7\r\n"])
            .to_string(),
    };
    (key, text)
}

/// The end of a conversation's turn: no other command is answered so.
const MARK: &[u8] = b"incr a mark\r\n";
const MARKED: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";

fn ask(stream: &mut TcpStream, text: &str) -> Vec<u8> {
    let mut said = Vec::new();
    stream.write_all(&[text.as_bytes(), MARK].concat()).unwrap();
    while !said.ends_with(MARKED) {
        let mut buf = [0; 65536];
        let n = match stream.read(&mut buf) {
            Ok(n) if n > 0 => n,
            end => panic!("{end:?} after {:?}: {said:?}", &text[..text.len().min(200)]),
        };
        said.extend(&buf[..n]);
    }
    said
}

/// Takes the numbers out of the answers to `gets`, and answers the last.
fn without_numbers(said: &[u8]) -> (String, Option<String>) {
    let (mut text, mut last) = (String::new(), None);
    for line in String::from_utf8_lossy(said).split_inclusive("\r\n") {
        let words: Vec<&str> = line.trim_end().split(' ').collect();
        if words[0] == "VALUE" && words.len() == 5 {
            last = Some(words[4].to_string());
            text += &format!("{} #\r\n", words[..4].join(" "));
        } else {
            text += line;
        }
    }
    (text, last)
}

#[test]
fn ascii_answers_are_memcacheds() {
    let Some(memcached) = memcached("ascii_answers_are_memcacheds") else { return };
    let ours = ix_kv(&["-m", "64"]);
    let mut streams = [connect(memcached.at), connect(ours.at)];
    let mut known = [const { None::<String> }; 2];
    let mut random = Random(20_260_101);
    for turn in 0..6000 {
        let (key, text) = ascii_command(&mut random);
        let wrong = random.below(3) == 0;
        let mut answers = Vec::new();
        for (stream, known) in streams.iter_mut().zip(&mut known) {
            // Numbers differ between servers; wrong ones must not exist at either.
            if known.is_none() || !text.starts_with("cas ") {
                let (_, number) = without_numbers(&ask(stream, &format!("gets {key}\r\n")));
                *known = number;
            }
            let number = match known {
                Some(number) if !wrong => number.clone(),
                _ => "999999999".to_string(),
            };
            answers.push(without_numbers(&ask(stream, &text.replace('%', &number))).0);
        }
        let shown = &text[..text.len().min(300)];
        assert!(answers[0] == answers[1], "turn {turn}, {shown:?}: {answers:#?}");
    }
}

/// What a counter's text becomes that gets shorter, or has zeros and spaces. Each key is read once:
/// memcached's own thread holds an item that is read again for a moment, and then the text gets
/// shorter instead of padded, by chance.
#[test]
fn counters_are_memcacheds() {
    let Some(memcached) = memcached("counters_are_memcacheds") else { return };
    let ours = ix_kv(&["-m", "64"]);
    let mut streams = [connect(memcached.at), connect(ours.at)];
    let texts = [
        "100".to_string(),
        "10  ".to_string(),
        "12345678901234567890".to_string(),
        "0".repeat(63) + "9",
        "0".repeat(64) + "9",
        "1".to_string() + &" ".repeat(999),
        " ".repeat(1199) + "7",
        "0".repeat(5000) + "10",
        "1 x".to_string(),
        " ".to_string(),
        "18446744073709551615".to_string(),
    ];
    for (number, text) in texts.iter().enumerate() {
        for (nth, change) in
            ["decr K 1", "decr K 12345", "incr K 1", "incr K 95"].iter().enumerate()
        {
            let key = format!("n{number}-{nth}");
            let turn = format!(
                "set {key} 7 0 {}\r\n{text}\r\n{}\r\nget {key}\r\n",
                text.len(),
                change.replace('K', &key)
            );
            let [theirs, our] = streams.each_mut().map(|stream| ask(stream, &turn));
            assert_eq!(
                String::from_utf8_lossy(&our),
                String::from_utf8_lossy(&theirs),
                "{text:.40?}, {change}"
            );
        }
    }
}

fn binary_request(random: &mut Random) -> Vec<u8> {
    let op = random.pick(&[
        "0", "1", "2", "3", "4", "5", "6", "9", "12", "13", "14", "15", "17", "18", "19", "20",
        "21", "22", "25", "26", "28", "29", "30", "35", "36", "8", "1", "1", "0", "12",
    ]);
    let op: u8 = op.parse().unwrap();
    let key = random.pick(&["a", "b", "n", "a longer key"]);
    let value = match random.below(2) {
        0 => random.below(1000).to_string(),
        _ => "v".repeat(random.below(3000) as usize),
    };
    let mut extras = [0; 20];
    extras[7] = random.below(10) as u8;
    extras[15] = random.below(10) as u8;
    if random.below(3) == 0 {
        extras[16..].fill(0xff);
    }
    let (extras, key, value) = match op {
        1..=3 | 17..=19 => (&[0, 0, 0, 5, 0, 0, 0, 100][..], key, value.as_str()),
        5 | 6 | 21 | 22 => (&extras[..], key, ""),
        14 | 15 | 25 | 26 => (&[][..], key, value.as_str()),
        28..=30 | 35 | 36 => (&[0, 0, 0, 100][..], key, ""),
        8 if random.below(10) > 0 => return binary_request(random),
        8 => (&[][..], "", ""),
        _ => (&[][..], key, ""),
    };
    let cas = if random.below(5) == 0 { 999_999_999 } else { 0u64 };
    let mut request = vec![0x80, op, 0, key.len() as u8, extras.len() as u8, 0, 0, 0];
    request.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    request.extend((random.below(1 << 32) as u32).to_be_bytes());
    request.extend(cas.to_be_bytes());
    [&request[..], extras, key.as_bytes(), value.as_bytes()].concat()
}

/// Everything up to the answer of a `noop`, with the items' numbers as 1.
fn binary_ask(stream: &mut TcpStream, request: &[u8]) -> Vec<u8> {
    let mut noop = vec![0x80, 0x0a];
    noop.resize(24, 0);
    stream.write_all(&[request, &noop].concat()).unwrap();
    let mut said = Vec::new();
    loop {
        let mut header = [0; 24];
        if let Err(error) = stream.read_exact(&mut header) {
            panic!("{error} after {:?}", &request[..request.len().min(60)]);
        }
        if header[1] == 0x0a {
            return said;
        }
        let number: u64 = u64::from_be_bytes(header[16..].try_into().unwrap());
        header[16..].copy_from_slice(&u64::from(number > 0).to_be_bytes());
        let len = u32::from_be_bytes(header[8..12].try_into().unwrap());
        let mut body = vec![0; len as usize];
        stream.read_exact(&mut body).unwrap();
        said.extend(header);
        said.extend(body);
    }
}

#[test]
fn binary_answers_are_memcacheds() {
    let Some(memcached) = memcached("binary_answers_are_memcacheds") else { return };
    let ours = ix_kv(&["-m", "64"]);
    let mut streams = [connect(memcached.at), connect(ours.at)];
    let mut random = Random(77);
    for turn in 0..8000 {
        let request = binary_request(&mut random);
        let [theirs, ours] = streams.each_mut().map(|stream| binary_ask(stream, &request));
        assert!(
            theirs == ours,
            "turn {turn}, {:?}: theirs {:?}, ours {:?}",
            &request[..request.len().min(80)],
            &theirs[..theirs.len().min(200)],
            &ours[..ours.len().min(200)]
        );
    }
}

#[test]
fn libmemcacheds_own_tests_pass() {
    let ours = ix_kv(&["-t", "2"]);
    let port = ours.at.port().to_string();
    let mut command = Command::new("memccapable");
    let Ok(output) = command.args(["-h", "127.0.0.1", "-p", &port]).output() else {
        skip("libmemcacheds_own_tests_pass", MISSING, "no memccapable");
        return;
    };
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("All tests passed"), "{said}");
}

#[test]
fn libmemcacheds_client_sees_no_difference() {
    let name = "libmemcacheds_client_sees_no_difference";
    let there = Command::new("/usr/bin/python3").args(["-c", "import pylibmc"]).output();
    if !there.is_ok_and(|output| output.status.success()) {
        skip(name, MISSING, "no pylibmc");
        return;
    }
    let Some(memcached) = memcached(name) else { return };
    let ours = ix_kv(&["-t", "2"]);
    let clients = [memcached.at, ours.at].map(|at| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");
        let mut command = Command::new("/usr/bin/python3");
        command.args([script, &at.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("python3 starts")
    });
    let [theirs, ours] = clients.map(|client| {
        let output = client.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    });
    assert!(theirs.lines().count() > 60);
    assert_eq!(theirs, ours);
}

#[test]
fn datagrams() {
    let ours = ix_kv(&[]);
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = |id: u16, total: u16, text: &[u8]| {
        let id = id.to_be_bytes();
        let frame = [&id[..], &[0, 0], &total.to_be_bytes(), &[0, 0], text].concat();
        socket.send_to(&frame, ours.at).unwrap();
        let mut parts = Vec::new();
        loop {
            let mut buf = [0; 2000];
            let n = socket.recv(&mut buf).unwrap();
            let half = |at: usize| u16::from_be_bytes([buf[at], buf[at + 1]]);
            assert!((8..=1400).contains(&n));
            assert_eq!((half(0).to_be_bytes(), half(6)), (id, 0));
            let (number, total) = (half(2), half(4));
            parts.push((number, buf[8..n].to_vec()));
            if parts.len() == total as usize {
                parts.sort();
                return parts.into_iter().flat_map(|part| part.1).collect::<Vec<u8>>();
            }
        }
    };
    assert_eq!(
        ask(7, 1, b"set a 0 0 1\r\nx\r\nget a\r\n"),
        b"STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
    );
    assert!(ask(8, 2, b"get a\r\n").starts_with(b"SERVER_ERROR multi-packet request"));
    let mut stream = connect(ours.at);
    ask_large(&mut stream);
    let said = ask(9, 1, b"get large\r\n");
    let expected = [&b"VALUE large 0 50000\r\n"[..], &[b'l'; 50_000], b"\r\nEND\r\n"].concat();
    assert!(said == expected);
    // Binary, and what is no request at all.
    let mut noop = vec![0x80, 0x0a];
    noop.resize(24, 0);
    assert_eq!(ask(10, 1, &noop)[..2], [0x81, 0x0a]);
    socket.send_to(b"short", ours.at).unwrap();
    assert_eq!(ask(11, 1, b"get none\r\n"), b"END\r\n");
}

fn ask_large(stream: &mut TcpStream) {
    let set = [&b"set large 0 0 50000\r\n"[..], &[b'l'; 50_000], b"\r\n"].concat();
    stream.write_all(&set).unwrap();
    let mut said = [0; 8];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"STORED\r\n");
}

#[test]
fn a_client_that_does_not_read_stops_being_read() {
    let ours = ix_kv(&[]);
    let mut greedy = connect(ours.at);
    ask_large(&mut greedy);
    greedy.set_nonblocking(true).unwrap();
    // 3 GB of answers are asked for.
    let flood = b"get large\r\n".repeat(60_000);
    let mut at = 0;
    let end = Instant::now() + Duration::from_millis(500);
    while at < flood.len() && Instant::now() < end {
        match greedy.write(&flood[at..]) {
            Ok(n) => at += n,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    // Time to do the wrong thing in.
    std::thread::sleep(Duration::from_millis(300));
    let status = std::fs::read_to_string(format!("/proc/{}/status", ours.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    let kb: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    assert!(kb < 100_000, "{line}");
    // Others are served, and the greedy one gets all that it asked for.
    let mut other = connect(ours.at);
    assert_eq!(ask(&mut other, "get none\r\n"), [b"END\r\n", MARKED].concat());
    greedy.set_nonblocking(false).unwrap();
    let mut seen = 0;
    let mut buf = vec![0; 1 << 20];
    let answer = [&b"VALUE large 0 50000\r\n"[..], &[b'l'; 50_000], b"\r\nEND\r\n"].concat();
    while seen < 200 * answer.len() {
        let n = greedy.read(&mut buf).unwrap();
        for byte in &buf[..n] {
            assert_eq!(*byte, answer[seen % answer.len()]);
            seen += 1;
        }
    }
}

#[test]
fn one_connection_too_many_is_told_so() {
    let ours = ix_kv(&["-c", "2"]);
    let mut both = [connect(ours.at), connect(ours.at)];
    for stream in &mut both {
        ask(stream, "get a\r\n");
    }
    let mut said = String::new();
    connect(ours.at).read_to_string(&mut said).unwrap();
    assert_eq!(said, "ERROR Too many open connections\r\n");
    drop(both);
    let end = Instant::now() + PATIENCE;
    loop {
        let mut stream = connect(ours.at);
        stream.write_all(b"version\r\n").unwrap();
        let mut said = [0; 7];
        if stream.read_exact(&mut said).is_ok() && &said == b"VERSION" {
            break;
        }
        assert!(Instant::now() < end, "no place becomes free");
    }
}

//! The same programs built against libevent and against this library, on Linux: they say the same.
//! libevent is the oracle. `cli/ix/tests/libevent.rs` runs them on IX.
use ix_skip::{Need, skip};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Once;

const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// The library that was built for this test and lies beside it, as programs look for it.
fn library() -> PathBuf {
    static ONCE: Once = Once::new();
    let named = std::env::current_exe().expect("a path").with_file_name("libix_event.so.0");
    ONCE.call_once(|| {
        let _ = std::fs::remove_file(&named);
        std::os::unix::fs::symlink("libix_event.so", &named).expect("a link");
    });
    named
}

/// Compiles a program against libevent and against this library; `None`, said loudly, where
/// libevent is not installed.
fn compile(test: &str, name: &str) -> Option<[PathBuf; 2]> {
    let ours = library();
    let folder = ours.parent().expect("a folder").to_owned();
    let compile = |which: &str, libraries: &[&str]| {
        let program = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{which}"));
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Wextra", "-o"]).arg(&program);
        cc.arg(format!("{PROGRAMS}/{name}.c")).args(libraries).arg("-lpthread");
        let output = cc.output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let missing = said.contains("No such file") || said.contains("cannot find -l");
        assert!(output.status.success() || missing, "{name}: {said}");
        output.status.success().then_some(program)
    };
    let path = format!("-Wl,-rpath,{}", folder.display());
    let both = compile("libevent", &["-levent", "-levent_pthreads"])
        .zip(compile("ours", &[ours.to_str().expect("text"), &path]));
    if both.is_none() {
        let need = Need::Program("apt-get install gcc libevent-dev");
        skip(test, need, "no compiler or libevent");
    }
    both.map(|(theirs, ours)| [theirs, ours])
}

fn lines(program: &Path, words: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(words).output().expect("it runs");
    assert!(output.status.success(), "{}: {output:?}", program.display());
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn corners_are_libevents() {
    let Some([theirs, ours]) = compile("corners_are_libevents", "events") else { return };
    let (theirs, ours) = (lines(&theirs, &[]), lines(&ours, &[]));
    assert!(theirs.len() > 120 && theirs.last().is_some_and(|line| line == "done"));
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "line {number}");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// A server that runs, and what it says.
struct Server(Child, BufReader<ChildStdout>);

impl Server {
    fn start(program: &Path, words: &[&str]) -> Server {
        let mut child =
            Command::new(program).args(words).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Server(child, said)
    }

    /// SIGTERM ends it in order; returns what it says then.
    fn stop(mut self) -> String {
        // SAFETY: a signal to our own child, which was not waited for.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        let mut said = String::new();
        self.1.read_to_string(&mut said).expect("text");
        assert!(self.0.wait().expect("an end").success(), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A loopback address that no other process has, so that any port is free.
fn address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{c}", a % 128 + 64)
}

#[test]
fn server_and_client_of_lines_agree_in_all_pairs() {
    let test = "server_and_client_of_lines_agree_in_all_pairs";
    let Some(both) = compile(test, "lines") else { return };
    let mut said = Vec::new();
    for server in &both {
        for client in &both {
            let at = format!("{}:7701", address());
            let running = Server::start(server, &["server", &at]);
            let client = lines(client, &["client", &at, "50"]);
            said.push((client, running.stop()));
        }
    }
    assert_eq!(said[0].0, ["50 of 50 heard all, 0 failed, 0 live"]);
    assert_eq!(said[0].1, "served 950, 0 live\n");
    assert!(said.iter().all(|pair| *pair == said[0]), "{said:#?}");
}

#[test]
fn sockets_of_the_program_are_served_as_memcached_does_it() {
    let test = "sockets_of_the_program_are_served_as_memcached_does_it";
    let Some(both) = compile(test, "workers") else { return };
    for program in &both {
        let address = address();
        let server = Server::start(program, &["7702", "2", &address]);
        let connect = |_| TcpStream::connect((address.as_str(), 7702)).expect("connects");
        let mut streams: Vec<TcpStream> = (0..8).map(connect).collect();
        // More than fits, so that it waits for room to write.
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| ((n * 7) >> 3) as u8).collect();
        for stream in &mut streams {
            let (mut writer, data) = (stream.try_clone().expect("clone"), sent.clone());
            let writes = std::thread::spawn(move || writer.write_all(&data).expect("write"));
            let mut back = vec![0; sent.len()];
            stream.read_exact(&mut back).expect("the echo");
            assert!(back == sent, "what came back differs");
            writes.join().expect("the writer");
        }
        drop(streams);
        assert_eq!(server.stop(), "ticked: 1\n");
    }
}

/// What programs that Debian ships with libevent import: all of it is here.
#[test]
fn everything_that_memcached_imports_is_there() {
    let test = "everything_that_memcached_imports_is_there";
    let symbols = |file: &Path, which: &str| -> Option<Vec<String>> {
        let output = Command::new("nm").args(["-D", which]).arg(file).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = text.lines().filter_map(|line| line.split_whitespace().last());
        output.status.success().then(|| names.map(str::to_owned).collect())
    };
    let memcached = symbols(Path::new("/usr/bin/memcached"), "--undefined-only");
    let Some((wanted, have)) = memcached.zip(symbols(&library(), "--defined-only")) else {
        let need = Need::Program("apt-get install memcached binutils");
        skip(test, need, "no memcached or no nm");
        return;
    };
    let libevents: Vec<_> = wanted
        .iter()
        .filter(|name| ["event_", "evb", "evu", "evt", "evc"].iter().any(|p| name.starts_with(p)))
        .collect();
    assert!(libevents.len() > 5, "{wanted:?}");
    let missing: Vec<_> = libevents.iter().filter(|name| !have.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

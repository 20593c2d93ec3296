//! Every script of `verify/ix-scripts/scripts`, and the table of what they show.
use ix_scripts::{Options, parse, rows, run, table};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

fn scripts() -> Vec<(String, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "pkt") {
                let text = std::fs::read_to_string(&path).unwrap();
                let name = path.strip_prefix(self::folder()).unwrap().display().to_string();
                found.push((name, text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_script_passes_wherever_its_numbers_begin() {
    let scripts = scripts();
    assert!(scripts.len() >= 150, "{} scripts", scripts.len());
    let mut failures = Vec::new();
    for (name, text) in &scripts {
        let script = parse(name, text).unwrap();
        for remote_base in [0xffff_ff00, 0x7fff_fff0, 1] {
            let options = Options { remote_base, ..Options::default() };
            if let Err(failure) = run(&script, options) {
                failures.push(format!("numbers from {remote_base:#x}: {failure}"));
                break;
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// What does not depend on the family holds over both. Segments are as long (the MTU is longer by
/// what IPv6's header is), so the same numbers are expected.
#[test]
fn scripts_of_no_family_pass_over_ipv6_too() {
    let (mut played, mut of_v6, mut wrong) = (0, 0, Vec::new());
    for (name, text) in &scripts() {
        let script = parse(name, text).unwrap();
        let version = script.options.iter().find(|(_, option, _)| option == "ip_version");
        match version.map(|(.., version)| version.as_str()) {
            Some("ipv6") => of_v6 += 1,
            Some(_) if text.contains("// IPv4 only: ") => {}
            Some(_) => wrong.push(format!("{name}: no line `// IPv4 only: why`")),
            None => {
                played += 1;
                let options = Options { ipv6: true, ..Options::default() };
                wrong.extend(run(&script, options).err().map(|failure| failure.to_string()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(played >= 215 && of_v6 >= 20, "{played} over both, {of_v6} of IPv6 alone");
}

#[test]
fn every_script_says_what_it_shows_and_the_table_tells() {
    let rows = rows(&folder()).unwrap();
    for (name, _) in scripts() {
        let claims: Vec<_> = rows.iter().filter(|row| row.script == name).collect();
        assert!(!claims.is_empty(), "{name}: no line `//= rfcN#SECTION what it shows`");
        for row in claims {
            let sane = row.place.starts_with("rfc") && row.place.contains('#');
            assert!(sane && !row.what.is_empty(), "{name}: `//= {} {}`", row.place, row.what);
        }
    }
    let readme = folder().join("README.md");
    let text = std::fs::read_to_string(&readme).unwrap();
    let (head, _) = text.split_once("| requirement |").expect("a table in the README");
    let wanted = format!("{head}{}", table(&rows));
    if std::env::var_os("IX_WRITE").is_some() {
        std::fs::write(&readme, wanted).unwrap();
    } else {
        assert!(
            text == wanted,
            "verify/ix-scripts/scripts/README.md is old: run this test with IX_WRITE=1"
        );
    }
}

/// A script that cannot fail shows nothing: with its expectations bent, each must fail.
#[test]
fn a_bent_script_fails() {
    let (mut bent, mut noticed) = (0, Vec::new());
    for (name, text) in scripts() {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        let last = lines.iter().rposition(|line| {
            line.contains(" > ")
                && line.contains(" ack ")
                && !line.contains("//")
                && !line.contains("S")
        });
        let Some(last) = last else { continue };
        lines[last] = lines[last].replacen(" ack ", " ack 77", 1);
        bent += 1;
        if run(&parse(&name, &lines.join("\n")).unwrap(), Options::default()).is_ok() {
            noticed.push(name);
        }
    }
    assert!(bent > 100 && noticed.is_empty(), "{bent} bent, not noticed: {noticed:?}");
}

fn play(text: &str) -> Result<ix_scripts::run::Played, String> {
    let script = parse("test.pkt", text).map_err(|error| error.to_string())?;
    run(&script, Options::default()).map_err(|failure| failure.to_string())
}

const OPEN: &str = "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0\n+0 < S 0:0(0) win 65535 <mss 1460>\n+0 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 65535\n+0 accept(3, ..., ...) = 4\n";

#[test]
fn errors_name_the_line_and_the_reason() {
    for (text, wanted) in [
        ("0 socket(", "test.pkt:1: expected an argument"),
        ("0 frob(1) = 0", "test.pkt:1: the call `frob` is not understood"),
        ("\n+0 > Q 0:0(0)", "test.pkt:2: expected control bits"),
        ("+0 < S 0:9(8) win 1", "test.pkt:1: 0:9 are 9 octets, not 8"),
        ("0 < S 0:0(0) <mss 99999>", "test.pkt:1: 99999 is out of range for an MSS"),
        ("/* never ends", "test.pkt:1: a comment begins with `/*` and does not end"),
        ("%{ assert 1", "test.pkt:1: code does not end with `}%`"),
        ("`sysctl net.ipv4.tcp_magic=1`", "is no setting that this stack has"),
        ("--ip_version=ipx\n", "test.pkt:1: --ip_version=ipx: ipv4 or ipv6"),
        ("--local_ip=fd00::1\n", "local_ip and remote_ip are of two families"),
        ("0 < icmpv6 source_quench now [udp (1)]", "IPv4 has no `icmpv6 source_quench now`"),
        ("0 < icmp packet_too_big mtu 9 [udp (1)]", "IPv4 has no `icmp packet_too_big`"),
        ("0 < [header 60 0] udp (1)", "test.pkt:1: expected hexadecimal bytes"),
        ("0 < [header 60 00] udp (1)", "test.pkt:1: flow label and headers are IPv6's"),
        ("yesterday", "test.pkt:1: expected a time"),
    ] {
        let error = play(text).unwrap_err();
        assert!(error.contains(wanted), "{text}: {error}");
    }
}

#[test]
fn failures_show_both_packets() {
    let error =
        play(&format!("{OPEN}+0 write(4, ..., 10) = 10\n+0 > P. 1:12(11) ack 1")).unwrap_err();
    assert!(error.starts_with("test.pkt:9: 10 octets of payload not 11"), "{error}");
    assert!(error.contains("expected  P. 1:12(11) ack 1"), "{error}");
    assert!(error.contains("actual    P. 1:11(10) ack 1 win 65535"), "{error}");
    let late =
        play(&format!("{OPEN}+0 write(4, ..., 10) = 10\n+.2 > P. 1:11(10) ack 1")).unwrap_err();
    assert!(late.contains("sent at 0.100000 s, expected at 0.300000 s"), "{late}");
    let none = play(&format!("{OPEN}+0 > P. 1:11(10) ack 1")).unwrap_err();
    assert!(none.contains("nothing was sent until 0.104000 s"), "{none}");
    let more = play(&format!("{OPEN}+0 write(4, ..., 10) = 10\n+.1 %{{ assert 1 }}%")).unwrap_err();
    assert!(more.contains("a packet that the script does not expect"), "{more}");
    let false_claim = play(&format!("{OPEN}+0 %{{ assert tcpi_snd_cwnd == 11 }}%")).unwrap_err();
    assert!(false_claim.contains("does not hold (tcpi_snd_cwnd = 10)"), "{false_claim}");
    let errno = play(&format!("{OPEN}+0 close(9) = 0")).unwrap_err();
    assert!(errno.contains("`close` answered -1 EBADF, not 0"), "{errno}");
}

/// RFC 1122 section 3.2.1.3.
#[test]
fn packets_for_others_are_nothing() {
    use ix_scripts::wire::{Fields, UDP, Way, packet, udp};
    use ix_scripts::{settings::Settings, sockets::Sockets, stack::Addresses};
    use std::net::IpAddr;
    let at = Addresses::V4;
    let mut sockets = Sockets::new(Settings::default(), at, 1_000_000);
    let mut answers = |to: IpAddr| {
        let way = Way { from: at.remote, to, from_port: 9, to_port: 9 };
        let fields = Fields { ttl: 64, ..Fields::default() };
        sockets.deliver(&packet(way, UDP, fields, &udp(way, &[1])));
        std::mem::take(&mut sockets.stack().sent).len()
    };
    for other in [[192, 168, 0, 2], [192, 168, 255, 255], [255; 4], [224, 0, 0, 1], [10, 0, 0, 1]] {
        assert_eq!(answers(other.into()), 0, "{other:?}");
    }
    assert_eq!(answers(at.local), 1);
}

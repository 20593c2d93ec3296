//! `ix bench program`: servers that know nothing of IX, on Linux's sockets and on IX: the same
//! command, the same link, the same load. Several commands are measured in turn in one run, so that
//! two builds of one program (linked statically and dynamically, say) can be compared.
use crate::args::{BenchArgs, Client, Device};
use crate::lab::{self, Host, Lab};
use crate::plan::{length, or};
use crate::runner::Setup;
use crate::serve::{Program, Serve};
use clap::{Args, ValueEnum};
use ix_load::args::ProtocolName;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;
use serde_json::json;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::time::Duration;

/// Help of `ix bench program`.
pub const HELP: &str = "Measures servers that know nothing of IX, on Linux's sockets and on IX behind the wall that \
    ships: the same command, the same link, the same load. Each COMMAND has to serve on a TCP port by the \
    --protocol; several, divided by --, are measured in turn.\n\n\
    In COMMAND's arguments:\n  \
    {address}  the address to serve at\n  \
    {port}     the port to serve at\n\n\
    Where none of the protocols fits, --load is the program's own client: a command of the shell, in which \
    {connections} and {seconds} stand for what is measured.\n\n\
    The last lines compare: each program on IX with the same one on Linux, and each with the first on IX, by the \
    medians, where the load runs on IX and where it runs on Linux.\n\n\
    Examples:\n  \
    ix bench program --protocol http --path / -- ./server-in-go {address}:{port}\n  \
    ix bench program -- ./echo-dynamic {address} {port} -- ./echo-static {address} {port}\n  \
    ix bench program --protocol memcached --connections 16 -- memcached -u root -l {address} -p {port}\n  \
    ix bench program --user $(id -u postgres) --connections 32 --rate 'tps =' --load 'pgbench -h {address} -p {port} \
    -U postgres -S -c {connections} -T {seconds} postgres' -- /usr/lib/postgresql/15/bin/postgres -D DATA \
    -c listen_addresses={address} -c port={port}";

/// Connections at a time.
const CONNECTIONS: [usize; 2] = [1, 64];
/// Bytes of an echo's message.
const MESSAGE_BYTES: u64 = 64;
/// Longest time for connecting and ending, beyond the measurement.
const SLACK: Duration = Duration::from_secs(30);

/// Flags of `ix bench program`.
#[derive(Args, Debug, Clone)]
#[command(mut_arg("domain", |domain| domain.default_value("process")))]
pub struct ProgramArgs {
    /// What the programs speak
    #[arg(long, value_enum, default_value = "echo")]
    pub protocol: ProtocolName,
    /// The page to get
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// Another load in place of --protocol: a command of the shell, at the client's end on Linux
    #[arg(long, value_name = "COMMAND", requires = "rate")]
    pub load: Option<String>,
    /// How the line begins in which that command prints its messages a second
    #[arg(long, value_name = "WORDS", requires = "load")]
    pub rate: Option<String>,
    /// Whom the servers run as, on Linux as well: a user's number
    #[arg(long, value_name = "N")]
    pub user: Option<String>,
    /// Flags that all benchmarks share.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The servers, after `--`
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub commands: Vec<String>,
}

impl ProgramArgs {
    /// The commands, each with its arguments.
    fn servers(&self) -> Result<Vec<Vec<String>>> {
        let commands: Vec<_> = self.commands.split(|word| word == "--").collect();
        if commands.iter().any(|words| words.is_empty()) {
            let why = "a `--` has no command behind it";
            return Err(Problem::new("cannot tell the programs apart", why)
                .mend("write `-- COMMAND ARGUMENTS -- COMMAND ARGUMENTS`"));
        }
        Ok(commands.into_iter().map(<[String]>::to_vec).collect())
    }

    /// Where the load runs; `None`: wherever it can.
    fn client(&self) -> Result<Option<Client>> {
        match (&self.load, self.bench.client) {
            (None, client) => Ok(client),
            (Some(_), None | Some(Client::Linux)) => Ok(Some(Client::Linux)),
            (Some(_), Some(Client::Ix)) => {
                let why = "the command of --load runs on Linux";
                Err(Problem::new("cannot use --client ix", why).mend("leave out --client"))
            }
        }
    }
}

/// A program at a point on one system.
struct Series {
    command: Vec<String>,
    setup: Setup,
    row: Row,
}

/// Measures all points; returns the rows.
pub(crate) fn measure(lab: &Lab, args: &ProgramArgs, notes: &mut Vec<String>) -> Result<Vec<Row>> {
    let servers = args.servers()?;
    let (seconds, runs) = length(&args.bench);
    let usual: &[usize] = if args.bench.quick { &CONNECTIONS[1..] } else { &CONNECTIONS };
    let size = or(&args.bench.size, &[MESSAGE_BYTES])[0];
    let mut all = Vec::new();
    for connections in or(&args.bench.connections, usual) {
        for setup in setups(lab, args.client()?)? {
            for (nth, command) in servers.iter().enumerate() {
                let name = name(&servers, nth);
                let row = row(lab, setup, connections, size, &name);
                all.push(Series { command: command.clone(), setup, row });
            }
        }
    }
    for run in 1..=runs {
        for series in &mut all {
            series.measure(lab, args, seconds, &format!("run {run}/{runs}"))?;
        }
    }
    let rows: Vec<_> = all.into_iter().map(|series| series.row).collect();
    notes.extend(comparisons(&rows));
    Ok(rows)
}

/// What a program is called in the table: its file, and its place where two have one name.
fn name(servers: &[Vec<String>], nth: usize) -> String {
    let file = |words: &[String]| words[0].rsplit('/').next().unwrap_or_default().to_owned();
    let own = file(&servers[nth]);
    match servers.iter().filter(|words| file(words) == own).count() {
        1 => own,
        _ => format!("{own} ({})", nth + 1),
    }
}

/// Linux and IX under the server, with each kind of client that was asked for.
fn setups(lab: &Lab, client: Option<Client>) -> Result<Vec<Setup>> {
    if let Some(client) = client {
        super::check_client(lab, client)?;
    }
    let wanted = |kind: Client| client.is_none_or(|asked| asked == kind);
    let mut setups = Vec::new();
    if lab.device() != Device::Afxdp {
        // Linux has the pair of interfaces beside the device, with a client of its own.
        setups.push(Setup { server: Host::BLOCKING, client: Host::BLOCKING });
    }
    for (host, is_wanted) in [
        (Host::BLOCKING, wanted(Client::Linux) && lab.has_linux_client()),
        (Host::IX, wanted(Client::Ix) && lab.has_ix_client()),
    ] {
        if !is_wanted {
            continue;
        }
        if lab.device() == Device::Afxdp {
            setups.push(Setup { server: Host::BLOCKING, client: host });
        }
        setups.extend(lab.each_on_ix().map(|server| Setup { server, client: host }));
    }
    Ok(setups)
}

fn row(lab: &Lab, setup: Setup, connections: usize, size: u64, program: &str) -> Row {
    let settings = match setup.server.domain() {
        Some(domain) => format!("1 pinned hardware thread, domain {}", domain.name()),
        None => format!("1 pinned hardware thread, {}, offloads on", lab.congestion_control()),
    };
    let also = vec![("server", json!(program))];
    setup.row(lab, connections, size, also, settings)
}

impl Series {
    /// One round with its own server.
    fn measure(&mut self, lab: &Lab, args: &ProgramArgs, seconds: f64, told: &str) -> Result<()> {
        lab.set_offloads(true)?;
        let (program, arguments, user) = (Program::Named, self.command.clone(), args.user.clone());
        let serve = Serve { program, arguments, user, ..Serve::default() };
        let mut server = lab.start(self.setup.server, &serve)?;
        let timeout = Duration::from_secs_f64(seconds * 2.0) + SLACK;
        let figures = match args.load.as_deref().zip(args.rate.as_deref()) {
            Some((load, start)) => {
                let line = self.filled(load, seconds, server.address());
                let said = lab.run_shell(&line, start, &mut server, timeout)?;
                vec![("msgs_per_s", rate(&said, start)?)]
            }
            None => {
                let load = self.load(args, seconds, &server.address().to_string());
                let load = lab.start_load(self.setup.client, &load)?;
                lab::figures(&load.finish_load(&mut server, timeout)?)
            }
        };
        let rate = figures.iter().find(|(key, _)| *key == "msgs_per_s").map_or(0.0, |(_, v)| *v);
        eprintln!(
            "ix: {told}: {} on {}, {} client, {} connections: {rate:.0} messages/s",
            self.row.also[0].1.as_str().unwrap_or_default(),
            self.row.system,
            self.row.client,
            self.row.connections
        );
        self.row.add(figures);
        if let Some(forwarded) = server.stop().filter(|_| rate > 0.0) {
            let messages = rate * (seconds + warm_up(seconds));
            self.row.add([("forwarded_per_msg", forwarded as f64 / messages)]);
        }
        Ok(())
    }

    /// The command of `--load`.
    fn filled(&self, load: &str, seconds: f64, at: SocketAddr) -> String {
        [
            ("{address}", at.ip().to_string()),
            ("{port}", at.port().to_string()),
            ("{connections}", self.row.connections.to_string()),
            // Programs that measure for seconds want a whole number.
            ("{seconds}", seconds.ceil().to_string()),
        ]
        .iter()
        .fold(load.to_owned(), |line, (word, value)| line.replace(word, value))
    }

    /// Arguments of `ix load`.
    fn load(&self, args: &ProgramArgs, seconds: f64, at: &str) -> Vec<OsString> {
        let protocol = args.protocol.to_possible_value();
        let protocol = protocol.map_or_else(String::new, |value| value.get_name().to_owned());
        let (connections, size) = (self.row.connections.to_string(), self.row.size.to_string());
        let mut words = vec!["load", at, "--quiet", "--protocol", &protocol];
        words.extend(["--connections", &connections]);
        match args.protocol {
            ProtocolName::Echo => words.extend(["--size", &size]),
            ProtocolName::Http => words.extend(["--path", &args.path]),
            ProtocolName::Memcached | ProtocolName::MemcachedBinary => {}
        }
        let (warm_up, seconds) = (warm_up(seconds).to_string(), seconds.to_string());
        words.extend(["--warmup", &warm_up, "--json", "-", "--seconds", &seconds]);
        words.into_iter().map(OsString::from).collect()
    }
}

/// The number behind these words of a line.
fn rate(line: &str, words: &str) -> Result<f64> {
    let rest = line.trim_start().strip_prefix(words).unwrap_or_default().trim_start();
    let number = rest.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    number.parse().map_err(|_| {
        let why = format!("no number follows `{words}` in `{}`", line.trim());
        Problem::new("cannot read the rate that the load has printed", why)
            .mend("begin --rate with the first word of its line, and end it before the number")
    })
}

fn warm_up(seconds: f64) -> f64 {
    (seconds / 5.0).min(1.0)
}

/// Each program on IX beside the same one on Linux, and beside the first one on IX, with the same
/// client; with Linux's where Linux was measured with no other.
fn comparisons(rows: &[Row]) -> Vec<String> {
    let program = |row: &Row| row.also[0].1.clone();
    let rate = |row: &Row| row.median("msgs_per_s").filter(|rate| *rate > 0.0);
    let first = rows.first().map(program);
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| row.system == "ix") {
        let same =
            |other: &&Row| (&other.client, other.connections) == (&row.client, row.connections);
        let is_it = |other: &&Row| other.system == "linux" && program(other) == program(row);
        let with_other = |other: &&Row| is_it(other) && other.connections == row.connections;
        let on_linux = rows.iter().filter(same).find(is_it);
        let on_linux = on_linux.or_else(|| rows.iter().find(with_other));
        let beside = rows.iter().filter(same).find(|other| {
            other.system == "ix" && other.domain == row.domain && Some(program(other)) == first
        });
        let against = |other: Option<&Row>| Some(rate(row)? / rate(other?)?);
        let mut words = Vec::new();
        words.extend(against(on_linux).map(|ratio| format!("{ratio:.2} × itself on Linux")));
        if let Some(beside) = beside.filter(|beside| program(beside) != program(row)) {
            let other = program(beside);
            let other = other.as_str().unwrap_or_default();
            words.extend(against(Some(beside)).map(|ratio| format!("{ratio:.2} × {other} on IX")));
        }
        if !words.is_empty() {
            lines.push(format!(
                "{}{}, {} connections, load on {}: {}",
                program(row).as_str().unwrap_or_default(),
                row.wall(),
                row.connections,
                if row.client == "ix" { "IX" } else { "Linux" },
                words.join(", ")
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(commands: &[&str]) -> ProgramArgs {
        ProgramArgs {
            protocol: ProtocolName::Echo,
            path: "/".into(),
            load: None,
            rate: None,
            user: None,
            bench: BenchArgs::default(),
            commands: commands.iter().map(|&word| word.to_owned()).collect(),
        }
    }

    #[test]
    fn commands_are_divided_by_dashes_and_named_by_their_files() {
        let servers = args(&["/a/one", "{port}", "--", "two", "--", "/b/one"]).servers().unwrap();
        assert_eq!(servers, [vec!["/a/one", "{port}"], vec!["two"], vec!["/b/one"]]);
        let names: Vec<_> = (0..3).map(|nth| name(&servers, nth)).collect();
        assert_eq!(names, ["one (1)", "two", "one (3)"]);
        for wrong in [&["one", "--"][..], &["one", "--", "--", "two"]] {
            assert!(args(wrong).servers().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn another_load_runs_on_linux_and_prints_its_rate() {
        let own = |client| {
            let mut own = args(&["a"]);
            (own.load, own.bench.client) = (Some("pgbench".into()), client);
            own.client()
        };
        for client in [None, Some(Client::Linux)] {
            assert_eq!(own(client).expect("it can"), Some(Client::Linux));
        }
        assert!(own(Some(Client::Ix)).is_err());
        let said = " tps = 7423.516 (without initial connection time)";
        assert_eq!(rate(said, "tps =").expect("a number"), 7423.516);
        assert_eq!(rate("Requests/sec:  12", "Requests/sec:").expect("a number"), 12.0);
        let told = rate("tps = none", "tps =").expect_err("there is none").to_string();
        assert!(told.contains("no number follows `tps =` in `tps = none`"), "{told}");
    }

    #[test]
    fn programs_are_compared_with_themselves_on_linux_and_with_the_first_on_ix() {
        let row = |system: &str, program: &str, client: &str, rate: f64| Row {
            system: system.into(),
            client: client.into(),
            connections: 64,
            also: vec![("server", json!(program))],
            samples: vec![("msgs_per_s", vec![rate])],
            ..Row::default()
        };
        let lines = comparisons(&[
            row("linux", "a", "ix", 100.0),
            row("linux", "b", "ix", 50.0),
            row("linux", "b", "linux", 7.0),
            row("ix", "a", "ix", 200.0),
            row("ix", "b", "ix", 150.0),
        ]);
        assert_eq!(
            lines,
            [
                "a, 64 connections, load on IX: 2.00 × itself on Linux",
                "b, 64 connections, load on IX: 3.00 × itself on Linux, 0.75 × a on IX"
            ]
        );
    }
}

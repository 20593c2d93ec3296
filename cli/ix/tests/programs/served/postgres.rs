//! PostgreSQL: a process for each connection, which its postmaster has accepted.
use super::{Program, has, run, start};
use crate::support::process::signal;
use crate::support::{PATIENCE, SERVICE, TestNet, eventually};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

pub const PROGRAM: Program = Program {
    name: "PostgreSQL",
    version: "15.18",
    started: "--user $(id -u postgres) /usr/lib/postgresql/15/bin/postgres -D DATA",
    test: "postgres_serves_thirty_two_clients",
    shown: "`pgbench -c 32`, then with a connection for each transaction; SIGHUP; a backend that is \
            killed, after which the postmaster starts all anew; fast shutdown",
    watch: "at most 64 processes share a dataplane: the postmaster and its backends, not its other \
            children. Keep `max_connections` below 60",
};

const PROGRAMS: &str = "/usr/lib/postgresql/15/bin";
const CLIENTS: &str = "32";

/// A client of the database. What it says.
fn client(net: &TestNet, program: &str, words: &[&str]) -> String {
    let mut command = net.client.command(program, None);
    let (host, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    command.env("PGCONNECT_TIMEOUT", "20").args(["-h", &host, "-p", &port, "-U", "postgres"]);
    command.args(words);
    run(command)
}

fn asks(net: &TestNet, query: &str) -> String {
    client(net, "/usr/bin/psql", &["-At", "-c", query, "postgres"])
}

#[test]
fn postgres_serves_thirty_two_clients() {
    let test = "postgres_serves_thirty_two_clients";
    let files = [&format!("{PROGRAMS}/postgres"), "/usr/bin/pgbench", "/usr/bin/psql"];
    if !has(test, &files, "postgresql postgresql-contrib") {
        return;
    }
    let user = run({
        let mut id = Command::new("id");
        id.args(["-u", "postgres"]);
        id
    });
    let user = user.trim();
    // Whoever may not enter the folder of the build may enter this one.
    let folder = std::env::temp_dir().join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    chown(&folder, user.parse().ok(), None).expect("root");
    let data = folder.join("data");
    let mut init = Command::new("setpriv");
    init.args([
        "--reuid",
        user,
        "--clear-groups",
        &format!("{PROGRAMS}/initdb"),
        "-N",
        "-A",
        "trust",
    ]);
    init.arg("-D").arg(&data).current_dir(&folder);
    run(init);
    let access = data.join("pg_hba.conf");
    let rules = std::fs::read_to_string(&access).expect("rules");
    std::fs::write(&access, format!("{rules}host all all 10.88.0.0/16 trust\n")).expect("a rule");
    let program = format!("{PROGRAMS}/postgres");
    let mut words = vec![program, "-D".into(), data.to_str().expect("text").into()];
    for setting in [
        format!("listen_addresses={}", SERVICE.ip()),
        format!("port={}", SERVICE.port()),
        format!("unix_socket_directories={}", folder.display()),
        "max_connections=50".into(),
        "fsync=off".into(),
    ] {
        words.extend(["-c".into(), setting]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((net, service)) = start(test, &["--user", user], &words) else { return };
    let is_ready = || {
        let said = service.process.said();
        said.iter().filter(|line| line.contains("ready to accept connections")).count()
    };
    eventually("it is ready", || is_ready() == 1);
    client(&net, "/usr/bin/pgbench", &["-q", "-i", "-s", "1", "postgres"]);
    let bench = ["-c", CLIENTS, "-j", "2", "-S", "postgres"];
    let said = client(&net, "/usr/bin/pgbench", &[&["-T", "2"], &bench[..]].concat());
    assert!(said.contains("number of failed transactions: 0"), "{said}");
    let said = client(&net, "/usr/bin/pgbench", &[&["-C", "-t", "2"], &bench[..]].concat());
    assert!(said.contains("actually processed: 64/64"), "{said}");
    // It reads its configuration anew.
    let postmaster = std::fs::read_to_string(data.join("postmaster.pid")).expect("a number");
    let postmaster: i32 =
        postmaster.lines().next().and_then(|line| line.parse().ok()).expect("one");
    let config = data.join("postgresql.auto.conf");
    std::fs::write(config, "work_mem = '7MB'\n").expect("a setting");
    signal(postmaster, libc::SIGHUP);
    eventually("it has read it", || asks(&net, "show work_mem").trim() == "7MB");
    // A backend that is killed may have damaged what all share, so the postmaster ends the others.
    let mut session = net.client.command("/usr/bin/psql", None);
    let (host, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    session.args(["-h", &host, "-p", &port, "-U", "postgres", "-At", "postgres"]);
    session.args(["-c", "select 'it is ' || pg_backend_pid()", "-c", "select pg_sleep(1000)"]);
    let session = crate::support::process::Process::start(session);
    let sleeps = "select pid from pg_stat_activity where query like '%pg_sleep(1000)%' and pid <> pg_backend_pid()";
    let mut pid = String::new();
    eventually("it is known", || {
        pid = asks(&net, sleeps).trim().to_owned();
        !pid.is_empty()
    });
    signal(pid.parse().expect("a number"), libc::SIGKILL);
    let (status, said) = session.wait(PATIENCE);
    assert!(!status.success(), "the client is told: {said:?}");
    eventually("it is ready again", || is_ready() == 2);
    assert_eq!(asks(&net, "select count(*) from pgbench_accounts").trim(), "100000");
    let stats = service.stats();
    assert!(stats.total("accepted") > 96, "it was IX that served: {stats}");
    signal(postmaster, libc::SIGINT);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    assert!(!Path::new(&data.join("postmaster.pid")).exists(), "an orderly end");
    let _ = std::fs::remove_dir_all(&folder);
}

//! redis: it forks a child that saves while it serves, and is followed by a replica on Linux.
use super::{Program, folder, has, run, start};
use crate::support::process::Process;
use crate::support::{CLIENT, PATIENCE, SERVICE, TestNet, eventually};

pub const PROGRAM: Program = Program {
    name: "redis",
    version: "7.0.15",
    started: "redis-server --bind 10.0.0.2 --protected-mode no",
    test: "redis_saves_and_is_replicated_under_load",
    shown: "pipelines of 16 from 32 clients; `bgsave` meanwhile; a replica on Linux with all that \
            was written",
    watch: "nothing",
};

const SERVER: &str = "/usr/bin/redis-server";
const REPLICA_PORT: &str = "6399";

fn ask(net: &TestNet, at: &str, port: &str, words: &[&str]) -> String {
    let mut command = net.client.command("/usr/bin/redis-cli", None);
    command.args(["-h", at, "-p", port]).args(words);
    run(command).trim().to_owned()
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn redis_saves_and_is_replicated_under_load() {
    let test = "redis_saves_and_is_replicated_under_load";
    if !has(test, &[SERVER, "/usr/bin/redis-benchmark"], "redis-server redis-tools") {
        return;
    }
    let folder = folder(test);
    let (at, port) = (SERVICE.ip().to_string(), SERVICE.port().to_string());
    let dir = folder.to_str().expect("text");
    let words = [
        SERVER,
        "--bind",
        &at,
        "--port",
        &port,
        "--protected-mode",
        "no",
        "--dir",
        dir,
        "--save",
        "",
    ];
    let Some((net, service)) = start(test, &[], &words) else { return };
    let to_it = |words: &[&str]| ask(&net, &at, &port, words);
    eventually("it serves", || to_it(&["ping"]) == "PONG");
    let mut replica = net.client.command(SERVER, None);
    replica.args(["--bind", &CLIENT.to_string(), "--port", REPLICA_PORT, "--save", ""]);
    replica.args(["--protected-mode", "no"]);
    replica.args(["--dir", dir, "--dbfilename", "replica.rdb", "--replicaof", &at, &port]);
    let _replica = Process::start(replica);
    for _ in 0..3 {
        let mut bench = net.client.command("/usr/bin/redis-benchmark", None);
        bench.args(["-h", &at, "-p", &port, "-q", "-P", "16", "-c", "32", "-n", "100000"]);
        bench.args(["-r", "20000", "-t", "set,get"]);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| run(bench));
            assert!(to_it(&["bgsave"]).contains("started"));
            load.join().expect("the load");
        });
        eventually("it has saved", || {
            let said = to_it(&["info", "persistence"]);
            said.contains("rdb_bgsave_in_progress:0") && said.contains("rdb_last_bgsave_status:ok")
        });
    }
    let keys = to_it(&["dbsize"]);
    let of_replica = || ask(&net, &CLIENT.to_string(), REPLICA_PORT, &["dbsize"]);
    eventually("the replica has all", || of_replica() == keys);
    let stats = service.stats();
    assert!(stats.total("accepted") >= 96, "it was IX that served: {stats}");
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}

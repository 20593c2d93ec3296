//! Sockets that several processes of a program have: Linux is the oracle. The cases of `processes`
//! (`app/libix-posix/tests/programs`) fork, execute and pass descriptors on Linux's sockets and on
//! IX's behind the process wall, and say the same of every call.
use super::posix::compile;
use crate::serve::shared_address::on_linux_address;
use crate::support::process::Process;
use crate::support::{CLIENT, Nic, PATIENCE, PREFIX, SERVICE, TestNet};
use std::collections::BTreeMap;
use std::time::Duration;

const PEER_PORT: u16 = 9999;
/// All cases, those that wait in vain included.
const ALL: Duration = Duration::from_secs(400);
const CASES_MIN: usize = 100;
/// Cases of connections and datagrams to the own address.
const NEAR_MIN: usize = 18;

/// Cases whose answers are not Linux's, by the reason. One that is Linux's has to be removed here.
const DIFFERS: &[(&str, &[&str])] = &[];

/// Cases whose answers are Linux's unless the machine is busy, with the reason.
const BUSY: &[(&str, &str)] =
    &[("near_datagrams_to_nobody", "a closed port is given back in the next cycle of its process")];

fn depends_on_load(name: &str) -> bool {
    BUSY.iter().any(|(case, _)| *case == name)
}

/// The lines of each case. Two processes of a case may say something at the same time, so the order
/// of lines is not compared.
fn cases(lines: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut cases = BTreeMap::<String, Vec<String>>::new();
    let mut name = String::new();
    for line in lines.iter().filter(|line| !line.starts_with("ix: ")) {
        match line.strip_prefix("== ") {
            Some(next) => {
                name = next.to_owned();
                cases.entry(name.clone()).or_default();
            }
            None => cases.entry(name.clone()).or_default().push(line.clone()),
        }
    }
    cases.values_mut().for_each(|lines| lines.sort());
    cases
}

/// The other end, on Linux.
fn start_peer(net: &TestNet, program: &str) -> Process {
    let mut command = net.client.command(program, None);
    command.args(["peer", &PEER_PORT.to_string()]);
    let process = Process::start(command);
    process.wait_for("peer ready", PATIENCE);
    process
}

/// The words by which the program runs cases.
fn words<'a>(program: &'a str, which: &[&'a str]) -> Vec<String> {
    let ends = [SERVICE.ip().to_string(), CLIENT.to_string(), PEER_PORT.to_string()];
    let first = [program.to_owned(), "run".to_owned()];
    let which = which.iter().map(|word| (*word).to_owned());
    first.into_iter().chain(ends).chain(which).collect()
}

/// What the cases say on Linux.
fn on_linux(test: &str, run: &[String]) -> Option<BTreeMap<String, Vec<String>>> {
    let net = TestNet::new(test, Nic::Afxdp, 1)?;
    let (server, link) = net.service_link();
    server.add_address(link, *SERVICE.ip(), PREFIX).expect("an address");
    let _peer = start_peer(&net, &run[0]);
    let mut command = server.command(&run[0], None);
    command.args(&run[1..]);
    let (status, lines) = Process::start(command).wait(ALL);
    assert!(status.success(), "on Linux: {lines:#?}");
    Some(cases(&lines))
}

#[test]
fn sockets_of_several_processes_are_linuxs() {
    are_linuxs("sockets_of_several_processes_are_linuxs", 1);
}

/// Each process runs both elastic threads, and its connections are on either of them.
#[test]
#[ignore = "long; .ci/run nightly"]
fn sockets_of_several_processes_are_linuxs_on_two_elastic_threads() {
    are_linuxs("sockets_of_several_processes_are_linuxs_on_two_elastic_threads", 2);
}

fn are_linuxs(test: &str, elastic_threads: usize) {
    let Some(program) = compile(test, "processes") else { return };
    let program = program.to_str().expect("text");
    let known: BTreeMap<&str, &str> = DIFFERS
        .iter()
        .flat_map(|(why, names)| names.iter().map(move |name| (*name, *why)))
        .collect();
    // These wait in vain, so they run beside the others.
    let beside: Vec<&str> = ["beside"].into_iter().chain(known.keys().copied()).collect();
    let run = words(program, &beside);
    let Some(linux) = on_linux(test, &run) else { return };
    assert!(linux.len() >= CASES_MIN, "{} cases", linux.len());
    let Some(net) = TestNet::new(test, Nic::Afxdp, elastic_threads) else { return };
    let _peer = start_peer(&net, program);
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let service = net.start_env(&[], &["--domain", "process"], &run);
    let (status, lines) = service.process.wait(ALL);
    assert!(status.success(), "on IX: {lines:#?}");
    let ix = cases(&lines);
    let mut wrong = Vec::new();
    for (name, expected) in &linux {
        let said = ix.get(name);
        match (said == Some(expected), known.get(name.as_str())) {
            (true, None) | (false, Some(_)) => {}
            (false, None) if depends_on_load(name) => println!("{name}: {said:?}"),
            (true, Some(why)) => {
                wrong.push(format!("{name} is Linux's now: remove it from the list of {why:?}"));
            }
            (false, None) => wrong.push(format!("{name}: {said:#?}, on Linux {expected:#?}")),
        }
    }
    let unknown = known.keys().filter(|name| !linux.contains_key(**name));
    wrong.extend(unknown.map(|name| format!("{name} is no case")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Connections between processes where the address is Linux's as well.
#[test]
fn processes_reach_each_other_at_linuxs_own_address() {
    let test = "processes_reach_each_other_at_linuxs_own_address";
    let Some(program) = compile(test, "processes") else { return };
    let program = program.to_str().expect("text");
    let run = words(program, &["near_"]);
    let Some(mut linux) = on_linux(test, &run) else { return };
    assert!(linux.len() >= NEAR_MIN, "{} cases", linux.len());
    let Some(net) = on_linux_address(test) else { return };
    let _peer = start_peer(&net, program);
    let run: Vec<&str> = run.iter().map(String::as_str).collect();
    let (status, lines) = net.start_shared(&run).process.wait(ALL);
    assert!(status.success(), "on IX: {lines:#?}");
    let mut ix = cases(&lines);
    for all in [&mut ix, &mut linux] {
        all.retain(|name, _| !depends_on_load(name));
    }
    assert_eq!(ix, linux);
}

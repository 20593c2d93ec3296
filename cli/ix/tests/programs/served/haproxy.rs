//! haproxy with a master: a reload executes the program anew, and the old worker ends once the new
//! one serves.
use super::{Program, children, folder, has, load, pid_in, start};
use crate::support::process::{Process, signal};
use crate::support::{CLIENT, PATIENCE, SERVICE, eventually};
use std::time::Duration;

pub const PROGRAM: Program = Program {
    name: "haproxy",
    version: "2.6.12",
    started: "haproxy -W -f web.cfg",
    test: "haproxy_reloads_under_load",
    shown: "reloads by SIGUSR2 under load, one of which fails and leaves the old worker at work; \
            a worker that is killed ends the service, as on Linux",
    watch: "`option splice-*` copies",
};

const HAPROXY: &str = "/usr/sbin/haproxy";
const PORT: u16 = 8001;

#[test]
fn haproxy_reloads_under_load() {
    let test = "haproxy_reloads_under_load";
    if !has(test, &[HAPROXY], "haproxy") {
        return;
    }
    let folder = folder(test);
    std::fs::write(folder.join("page.txt"), "hello").expect("a page");
    let config = format!(
        "global\n nbthread 2\ndefaults\n mode http\n timeout connect 20s\n timeout client 20s\n \
         timeout server 20s\nfrontend web\n bind {SERVICE}\n default_backend servers\n\
         backend servers\n server a {CLIENT}:{PORT}\n"
    );
    let (file, pid) = (folder.join("web.cfg"), folder.join("pid"));
    std::fs::write(&file, &config).expect("a configuration");
    let text = |path: &std::path::Path| path.to_str().expect("text").to_owned();
    let words = [HAPROXY, "-W", "-f", &text(&file), "-p", &text(&pid)];
    let Some((net, mut service)) = start(test, &[], &words) else { return };
    let mut server = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    server.args(["httpd", "--linux", "--port", &PORT.to_string()]).arg(&folder);
    let server = Process::start(server);
    server.wait_for("ready", PATIENCE);
    let ask = || net.client.run(|| load::ask("/page.txt").is_ok());
    eventually("it serves", || {
        service.process.check();
        ask()
    });
    let master = pid_in(&pid);
    // A master that executes itself anew has further children for a moment.
    let only_child = || match children(master)[..] {
        [worker] => Some(worker),
        _ => None,
    };
    let worker = || {
        eventually("one worker is left", || only_child().is_some());
        only_child()
    };
    let outcome = load::during(
        &net,
        "/page.txt",
        |body| body == "hello",
        || {
            for round in 0..3 {
                let before = worker();
                let is_broken = round == 1;
                if is_broken {
                    std::fs::write(&file, format!("{config} nonsense here\n")).expect("a mistake");
                }
                signal(master, libc::SIGUSR2);
                std::thread::sleep(Duration::from_millis(1300));
                if is_broken {
                    assert_eq!(worker(), before, "the old worker stays");
                    std::fs::write(&file, &config).expect("as before");
                } else {
                    eventually("another worker serves", || {
                        only_child().is_some_and(|worker| Some(worker) != before)
                    });
                }
            }
        },
    );
    assert!(outcome.failures.is_empty() && outcome.answers > 50, "{outcome:?}");
    let stats = service.stats();
    assert!(stats.total("accepted") >= outcome.answers as u64, "it was IX that served: {stats}");
    // The master's own end is that of its worker, as on Linux.
    signal(master, libc::SIGTERM);
    let (_, said) = service.process.wait(PATIENCE);
    assert!(said.iter().all(|line| !line.contains("leaves")), "{said:#?}");
}

//! gunicorn: a master that listens, and workers that it forks, which accept.
use super::{Program, children, folder, has, load, pid_in, start};
use crate::support::process::signal;
use crate::support::{PATIENCE, SERVICE, eventually};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

pub const PROGRAM: Program = Program {
    name: "gunicorn",
    version: "20.1.0",
    started: "gunicorn -w 4 -b 10.0.0.2:80 app:app",
    test: "gunicorn_reloads_its_workers",
    shown: "four workers, reloads by SIGHUP under load, one more worker, and one that is killed",
    watch: "nothing",
};

const GUNICORN: &str = "/usr/bin/gunicorn";
/// Each answer names its worker. The application takes its time to load.
const APPLICATION: &str = "
import os, time
time.sleep(0.2)
def app(environment, start):
    start('200 OK', [('Content-Type', 'text/plain')])
    return [b'%d' % os.getpid()]
";

#[test]
fn gunicorn_reloads_its_workers() {
    let test = "gunicorn_reloads_its_workers";
    if !has(test, &[GUNICORN], "gunicorn") {
        return;
    }
    let folder = folder(test);
    std::fs::write(folder.join("app.py"), APPLICATION).expect("an application");
    let at = format!("{}:{}", SERVICE.ip(), SERVICE.port());
    let (file, chdir) = (folder.join("pid"), folder.to_str().expect("text"));
    let pid = file.to_str().expect("text");
    let words = [GUNICORN, "-w", "4", "-b", &at, "--chdir", chdir, "--pid", pid, "app:app"];
    let Some((net, mut service)) = start(test, &[], &words) else { return };
    // The first client waits for the workers, although none of them has begun.
    eventually("it serves", || {
        service.process.check();
        net.client.run(|| load::ask("/").is_ok())
    });
    let master = pid_in(&file);
    let seen = Mutex::new(BTreeSet::new());
    let is_worker = |body: &str| {
        seen.lock().expect("no panic").insert(body.to_owned());
        body.parse::<i32>().is_ok()
    };
    let outcome = load::during(&net, "/", is_worker, || {
        for by in [libc::SIGHUP, libc::SIGTTIN, libc::SIGHUP] {
            std::thread::sleep(Duration::from_millis(1200));
            signal(master, by);
        }
        std::thread::sleep(Duration::from_millis(1500));
    });
    // Its workers end at once when they are told to, whatever waits in the queue that is theirs.
    assert!(outcome.failures.is_empty(), "{outcome:?}");
    let seen = seen.into_inner().expect("no panic");
    assert!(outcome.answers > 50 && seen.len() >= 12, "workers of three kinds: {seen:?}");
    // A worker that is killed loses what it serves, and nothing that waits.
    let outcome = load::during(
        &net,
        "/",
        |_| true,
        || {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(500));
                let victim = children(master).pop().expect("a worker");
                signal(victim, libc::SIGKILL);
            }
            std::thread::sleep(Duration::from_millis(1000));
        },
    );
    assert!(outcome.failures.len() <= 2, "{outcome:?}");
    let stats = service.stats();
    assert!(stats.total("accepted") >= outcome.answers as u64, "it was IX that served: {stats}");
    service.process.signal(libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
}

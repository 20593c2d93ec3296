//! nginx: another program takes its place while clients ask.
use super::{Program, children, has, load, pid_in, run, start};
use crate::support::process::signal;
use crate::support::{PATIENCE, SERVICE, eventually};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub const PROGRAM: Program = Program {
    name: "nginx",
    version: "1.22.1",
    started: "/usr/sbin/nginx",
    test: "nginx_is_upgraded_under_load",
    shown: "four workers; binary upgrade (SIGUSR2, SIGWINCH, SIGQUIT) and reload under load; a \
            worker that is killed; TLS, HTTP/2 and `sendfile` of 2 MB, each byte compared",
    watch: "start it by its whole path if it is to be upgraded: it executes what it was called",
};

const NGINX: &str = "/usr/sbin/nginx";
const BIG_BYTES: usize = 2_000_000;

const CONFIG: &str = "
worker_processes 4;
error_log stderr;
pid FOLDER/pid;
events { worker_connections 512; }
http {
    access_log off; sendfile on;
    client_body_temp_path FOLDER; proxy_temp_path FOLDER; fastcgi_temp_path FOLDER;
    uwsgi_temp_path FOLDER; scgi_temp_path FOLDER;
    server { listen 10.88.0.2:7 backlog=512; root FOLDER; }
    server {
        listen 10.88.0.2:443 ssl http2; root FOLDER;
        ssl_certificate FOLDER/certificate; ssl_certificate_key FOLDER/key;
    }
}
";

#[test]
fn nginx_is_upgraded_under_load() {
    let test = "nginx_is_upgraded_under_load";
    if !has(test, &[NGINX, "/usr/bin/openssl", "/usr/bin/curl"], "nginx openssl curl") {
        return;
    }
    // Workers are another user, who may not enter the folder of the build.
    let folder = std::env::temp_dir().join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("a folder");
    let text = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let mut certify = Command::new("/usr/bin/openssl");
    certify
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9", "-subj", "/CN=ix"]);
    certify.args(["-keyout", &text("key"), "-out", &text("certificate")]);
    run(certify);
    std::fs::write(folder.join("small"), "hello").expect("a page");
    let big: Vec<u8> = (0..BIG_BYTES).map(|n| ((n * n) >> 7) as u8).collect();
    std::fs::write(folder.join("big"), &big).expect("a file");
    std::fs::write(folder.join("conf"), CONFIG.replace("FOLDER", folder.to_str().expect("text")))
        .expect("a configuration");
    let words = [NGINX, "-e", "stderr", "-c", &text("conf")];
    let Some((net, service)) = start(test, &[], &words) else { return };
    eventually("nginx serves", || net.client.run(|| load::ask("/small").is_ok()));
    let pid = folder.join("pid");
    let first = pid_in(&pid);
    let outcome = load::during(
        &net,
        "/small",
        |body| body == "hello",
        || {
            let rest = || std::thread::sleep(Duration::from_millis(700));
            rest();
            signal(first, libc::SIGUSR2);
            eventually("another one has begun", || Path::new(&text("pid.oldbin")).exists());
            let mut second = first;
            eventually("it names itself", || {
                second = pid_in(&pid);
                second != first
            });
            rest();
            signal(first, libc::SIGWINCH);
            rest();
            signal(first, libc::SIGQUIT);
            eventually("the first one has ended", || {
                !Path::new(&format!("/proc/{first}")).exists()
            });
            rest();
            signal(second, libc::SIGHUP);
            rest();
        },
    );
    assert!(outcome.failures.is_empty() && outcome.answers > 100, "{outcome:?}");
    let second = pid_in(&pid);
    let outcome = load::during(
        &net,
        "/small",
        |body| body == "hello",
        || {
            std::thread::sleep(Duration::from_millis(500));
            signal(*children(second).first().expect("a worker"), libc::SIGKILL);
            std::thread::sleep(Duration::from_millis(700));
        },
    );
    // It may serve several at a time.
    assert!(outcome.failures.len() <= 8 && outcome.answers > 50, "{outcome:?}");
    for version in ["--http1.1", "--http2"] {
        let mut curl = net.client.command("/usr/bin/curl", None);
        curl.args(["-sk", "-m", "20", version, "-o", &text("got")]);
        curl.arg(format!("https://{}/big", SERVICE.ip()));
        run(curl);
        assert!(std::fs::read(folder.join("got")).expect("a file") == big, "{version}");
    }
    signal(second, libc::SIGTERM);
    let (status, said) = service.process.wait(PATIENCE);
    assert!(status.success(), "{said:#?}");
    let _ = std::fs::remove_dir_all(&folder);
}

//! varnish: a manager, and a child that serves pages of a web server behind it.
use super::web::Site;
use super::{Program, children, folder, has};
use crate::support::process::{Process, signal};
use crate::support::{CLIENT, Nic, PATIENCE, SERVICE, TestNet, eventually};

pub const PROGRAM: Program = Program {
    name: "varnish",
    version: "7.1.1",
    started: "varnishd -F -a 10.0.0.2:80 -b 10.0.0.1:8001",
    test: "varnish_serves_and_is_started_again",
    shown: "pages from its cache, which a web server on Linux has; its child that is killed, which \
            the manager starts again; killed as a whole and started again",
    watch: "nothing",
};

const VARNISH: &str = "/usr/sbin/varnishd";

#[test]
#[ignore = "long; .ci/run nightly"]
fn varnish_serves_and_is_started_again() {
    let test = "varnish_serves_and_is_started_again";
    if !has(test, &[VARNISH], "varnish") {
        return;
    }
    let folder = folder(test);
    std::fs::write(folder.join("page"), "hello").expect("a page");
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let mut server = net.client.command(env!("CARGO_BIN_EXE_ix"), None);
    server.args(["httpd", "--linux", "--port", "8001"]).arg(&folder);
    let server = Process::start(server);
    server.wait_for("ready", PATIENCE);
    // Its child is another user, who may not enter the folder of the build.
    let work = std::env::temp_dir().join(test);
    let _ = std::fs::remove_dir_all(&work);
    let (at, behind) = (SERVICE.to_string(), format!("{CLIENT}:8001"));
    let words = [VARNISH, "-F", "-n", work.to_str().expect("text"), "-a", &at, "-b", &behind];
    let site = Site { words: &words, path: "/page", ..Site::default() };
    site.is_killed_and_started_again(&net, 1000, |manager| {
        let before = children(manager);
        signal(*before.first().expect("a child"), libc::SIGKILL);
        eventually("another one begins", || {
            let now = children(manager);
            !now.is_empty() && now != before
        });
    });
    let _ = std::fs::remove_dir_all(&work);
}

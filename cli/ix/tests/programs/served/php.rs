//! PHP-FPM: a master that listens and children that accept, behind nginx on Linux.
use super::web::Site;
use super::{Program, children, folder, has};
use crate::support::process::{Process, signal};
use crate::support::{CLIENT, Nic, SERVICE, TestNet, eventually};
use std::path::PathBuf;

pub const PROGRAM: Program = Program {
    name: "PHP-FPM",
    version: "8.2",
    started: "php-fpm8.2 -F -y fpm.conf",
    test: "php_serves_behind_nginx",
    shown: "four children behind nginx on Linux; reload by SIGUSR2 and a child that is killed, under \
            load; killed as a whole and started again",
    watch: "nothing",
};

const NGINX: &str = "/usr/sbin/nginx";

/// PHP-FPM's program, whatever version is installed.
fn fpm() -> Option<PathBuf> {
    let programs = std::fs::read_dir("/usr/sbin").ok()?.flatten().map(|entry| entry.path());
    let is_fpm = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm"))
    };
    programs.filter(is_fpm).max()
}

#[test]
#[ignore = "long; .ci/run nightly"]
fn php_serves_behind_nginx() {
    let test = "php_serves_behind_nginx";
    let fpm = fpm().unwrap_or_else(|| "/usr/sbin/php-fpm8.2".into());
    let fpm = fpm.to_str().expect("text");
    if !has(test, &[fpm, NGINX], "php-fpm nginx") {
        return;
    }
    let folder = folder(test);
    // Its children are another user, who may not enter the folder of the build.
    let pages = std::env::temp_dir().join(test);
    let _ = std::fs::remove_dir_all(&pages);
    std::fs::create_dir_all(&pages).expect("a folder");
    std::fs::write(pages.join("page.php"), "<?php echo getmypid();").expect("a page");
    let at = folder.display();
    let config = format!(
        "[global]\nerror_log = {at}/log\ndaemonize = no\n[www]\nlisten = {SERVICE}\n\
         user = nobody\ngroup = nogroup\npm = static\npm.max_children = 4\n"
    );
    std::fs::write(folder.join("fpm.conf"), config).expect("a configuration");
    let front = "daemon off; worker_processes 1; error_log stderr; pid AT/pid;\n\
        events { worker_connections 256; }\n\
        http { access_log off; client_body_temp_path AT; proxy_temp_path AT; uwsgi_temp_path AT;\n\
        fastcgi_temp_path AT; scgi_temp_path AT;\n\
        server { listen CLIENT:8080; location / { fastcgi_pass SERVICE;\n\
        fastcgi_param REQUEST_METHOD $request_method;\n\
        fastcgi_param SCRIPT_FILENAME PAGES$fastcgi_script_name; } } }\n";
    let front = front.replace("AT", &at.to_string()).replace("CLIENT", &CLIENT.to_string());
    let front = front.replace("SERVICE", &SERVICE.to_string());
    let front = front.replace("PAGES", &pages.display().to_string());
    std::fs::write(folder.join("nginx.conf"), front).expect("a configuration");
    let text = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let Some(net) = TestNet::new(test, Nic::Afxdp, 1) else { return };
    let mut nginx = net.client.command(NGINX, None);
    nginx.args(["-e", "stderr", "-c", &text("nginx.conf")]);
    let _nginx = Process::start(nginx);
    let file = text("fpm.conf");
    let words = [fpm, "-F", "-y", &file];
    let is_answer = |body: &str| body.parse::<i32>().is_ok();
    let site = Site {
        words: &words,
        path: "/page.php",
        at: (CLIENT, 8080).into(),
        is_answer,
        ..Site::default()
    };
    // The child that is killed loses one; a reload ends children at what they serve.
    site.is_killed_and_started_again(&net, 8, |master| {
        let before = children(master);
        signal(*before.first().expect("a child"), libc::SIGKILL);
        eventually("another one begins", || {
            let now = children(master);
            now.len() == 4 && now != before
        });
        signal(master, libc::SIGUSR2);
    });
    let _ = std::fs::remove_dir_all(&pages);
}

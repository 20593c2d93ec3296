//! Addresses and default routers from a real `radvd`, over a tap.
use super::linux_peer::serving;
use ix_dataplane::Config;
use ix_proto::config::Addr6;
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use ix_wire::IpAddr;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);
const NEAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 1);
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 2);
const TOLD: &str = "interface ixt0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; \
    AdvDefaultLifetime 60; AdvLinkMTU 1400; AdvCurHopLimit 61; \
    prefix 2001:db8:77::/64 { AdvValidLifetime 7200; AdvPreferredLifetime 3600; }; \
    RDNSS 2001:db8:77::53 { }; };\n";

/// A router that runs in a namespace until it is told to end.
struct Radvd {
    process: Child,
    folder: std::path::PathBuf,
}

impl Radvd {
    fn start(namespace: &Namespace) -> std::io::Result<Radvd> {
        let folder = std::env::temp_dir().join(format!("ix-radvd-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("radvd.conf");
        std::fs::write(&file, TOLD)?;
        let mut command = namespace.command("radvd", None);
        command.args(["--nodaemon", "--logmethod", "stderr", "--config"]).arg(file);
        let process = command.arg("--pidfile").arg(folder.join("radvd.pid")).spawn()?;
        Ok(Radvd { process, folder })
    }

    /// Lets it say that it is no default router any more.
    fn ends(&mut self) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").arg(id).status().expect("kill").success());
        self.process.wait().expect("it ends");
    }
}

impl Drop for Radvd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Whether the service answers a message from a namespace.
fn answers(from: &Namespace, at: Ipv6Addr, limit: Duration) -> bool {
    let at = SocketAddrV6::new(at, 7, 0, 0);
    let ask = || -> std::io::Result<()> {
        let mut stream = TcpStream::connect_timeout(&at.into(), limit)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = [0; 3000];
        stream.write_all(&[7; 3000])?;
        stream.read_exact(&mut answer)?;
        assert_eq!(answer, [7; 3000]);
        Ok(())
    };
    from.run(ask).is_ok()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
    }
}

#[test]
fn addresses_and_routers_come_from_radvd() {
    let test = "addresses_and_routers_come_from_radvd";
    let config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    let config = Config { addr6: Addr6::Auto, cpus: vec![0], ..config };
    let snapshot = serving("tap", config, |router, mac| {
        let [a, b, c, d, e, f] = mac.map(u16::from);
        let [p, q, r, ..] = ROUTER.segments();
        let (high, low) = ((a ^ 2) << 8 | b, c << 8 | 0xff);
        let made = Ipv6Addr::new(p, q, r, 0, high, low, 0xfe00 | d, e << 8 | f);
        router.enable_ipv6("ixt0").expect("IPv6");
        router.add_address("ixt0", ROUTER, 64).expect("an address");
        router.set_sysctl("net/ipv6/conf/all/forwarding", "1").expect("it forwards");
        let mut radvd = match Radvd::start(router) {
            Ok(radvd) => radvd,
            Err(e) => {
                let need = Need::Program("apt-get install radvd");
                return skip(test, need, format_args!("cannot run radvd: {e}"));
            }
        };
        eventually("the address is used", || answers(router, made, Duration::from_millis(500)));
        // Beyond the link the answers go by the router.
        let far = Namespace::new().expect("a host behind the router");
        far.add_veth(&VethEnd::new("far0"), router, &VethEnd::new("mid0")).expect("a link");
        for (namespace, link, at) in [(&far, "far0", FAR), (router, "mid0", NEAR)] {
            namespace.set_up(link, true).expect("up");
            namespace.enable_ipv6(link).expect("IPv6");
            namespace.add_address(link, at, 64).expect("an address");
        }
        far.add_route(made, 128, NEAR).expect("a route");
        eventually("a host beyond the link is answered", || {
            answers(&far, made, Duration::from_millis(500))
        });
        radvd.ends();
        eventually("no router is left", || !answers(&far, made, Duration::from_millis(300)));
        assert!(answers(router, made, Duration::from_secs(5)), "the link is still there");
    });
    let Some(snapshot) = snapshot else { return };
    assert_eq!(snapshot.total("drops.nd_invalid"), Some(0));
    assert_eq!(snapshot.total("misrouted"), Some(0));
}

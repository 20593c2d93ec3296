//! Addresses and default routers from a real `radvd`, over a tap.
use super::linux_peer::serving;
use ix_dataplane::Config;
use ix_proto::config::{Addr6, TempAddr};
use ix_skip::{Need, skip};
use ix_tcp::nd::Identifiers;
use ix_testbed::{Namespace, PacketSocket, VethEnd};
use ix_wire::icmp::IcmpHeader;
use ix_wire::{Checksum, FrameHeader, IpAddr, NdKind, Parsed, RxChecks};
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6, TcpStream};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const ROUTER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 1);
const NEAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 1);
const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x99, 0, 0, 0, 0, 2);
const ALL_HOSTS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
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
        static RUN: AtomicU32 = AtomicU32::new(0);
        // Tests run beside each other, and it locks its file.
        let (process, run) = (std::process::id(), RUN.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("ix-radvd-{process}-{run}"));
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
pub fn answers(from: &Namespace, at: Ipv6Addr, limit: Duration) -> bool {
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

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
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

/// RFC 7217: the address is the secret's, and where Linux has it another one is made.
#[test]
fn another_address_is_made_where_linux_has_it() {
    const SECRET: [u8; 16] = [0x5a; 16];
    let of = |network: u16, conflicts| {
        let prefix = Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 0);
        let made = Identifiers::Stable(SECRET).address(IpAddr(prefix.octets()), conflicts);
        Ipv6Addr::from(made.0)
    };
    let config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    let (addr6, addr6_secret) = (Addr6::Auto, Some(SECRET));
    let config = Config { addr6, addr6_secret, cpus: vec![0], ..config };
    let snapshot = serving("tap", config, |router, mac| {
        router.enable_ipv6("ixt0").expect("IPv6");
        for network in [0x66, 0x77] {
            let own = Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 1);
            router.add_address("ixt0", own, 64).expect("an address");
        }
        // Linux has the first two.
        router.add_address("ixt0", of(0x77, 0), 64).expect("an address");
        router.add_address("ixt0", of(0x77, 1), 64).expect("an address");
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
        let wire = PacketSocket::open(router, "ixt0").expect("a packet socket");
        let own = router.link("ixt0").expect("ask").expect("there").mac;
        for network in [0x66, 0x77] {
            let said = advertisement(from, own, 255, 0, &prefix(network, 64, 600, 600));
            wire.send(&said).expect("sends");
        }
        for made in [of(0x66, 0), of(0x77, 2)] {
            eventually("the address is used", || answers(router, made, Duration::from_millis(500)));
            assert!(!made.octets().ends_with(&mac[3..]), "nothing of the Ethernet address");
        }
    });
    let Some(snapshot) = snapshot else { return };
    assert_eq!(snapshot.total("drops.nd_invalid"), Some(0));
}

/// RFC 8981: beside the address for good there is one that no peer knows before. It is asked for on
/// the link first, as that one is.
#[test]
fn a_temporary_address_is_made_of_the_prefix_of_radvd() {
    let test = "a_temporary_address_is_made_of_the_prefix_of_radvd";
    const SECRET: [u8; 16] = [0x5b; 16];
    let prefix = IpAddr(Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, 0).octets());
    let stable = Identifiers::Stable(SECRET).address(prefix, 0);
    let config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    let (addr6, addr6_secret) = (Addr6::Auto, Some(SECRET));
    let use_tempaddr = TempAddr::Preferred;
    let config =
        Config { addr6, addr6_secret, use_tempaddr, secret: [7; 16], cpus: vec![0], ..config };
    let snapshot = serving("tap", config, |router, _| {
        router.enable_ipv6("ixt0").expect("IPv6");
        router.add_address("ixt0", ROUTER, 64).expect("an address");
        router.set_sysctl("net/ipv6/conf/all/forwarding", "1").expect("it forwards");
        let wire = PacketSocket::open(router, "ixt0").expect("a packet socket");
        let _radvd = match Radvd::start(router) {
            Ok(radvd) => radvd,
            Err(e) => {
                let need = Need::Program("apt-get install radvd");
                return skip(test, need, format_args!("cannot run radvd: {e}"));
            }
        };
        let mut temporary = None;
        eventually("a temporary address is asked for", || {
            let frame = wire.receive(Duration::from_millis(500)).expect("frames");
            let Some(frame) = frame else { return false };
            if let Ok(Parsed::Nd(packet)) = ix_wire::parse(&frame, RxChecks::default())
                && matches!(packet.kind, NdKind::Solicitation)
                && packet.src.is_unspecified()
                && packet.target.same_network(prefix, 64)
                && packet.target != stable
            {
                temporary = Some(Ipv6Addr::from(packet.target.0));
            }
            temporary.is_some()
        });
        let temporary = temporary.expect("it was asked for");
        for at in [temporary, Ipv6Addr::from(stable.0)] {
            eventually("both are used", || answers(router, at, Duration::from_millis(500)));
        }
    });
    let Some(snapshot) = snapshot else { return };
    assert_eq!(snapshot.total("drops.nd_invalid"), Some(0));
}

/// An advertisement from this address, with what is behind its header.
fn advertisement(from: Ipv6Addr, mac: [u8; 6], hops: u8, code: u8, body: &[u8]) -> Vec<u8> {
    let link = FrameHeader {
        eth_src: mac,
        eth_dst: [0x33, 0x33, 0, 0, 0, 1],
        src: IpAddr(from.octets()),
        dst: IpAddr(ALL_HOSTS.octets()),
        ttl: hops,
        tos: 0,
        ident: 0,
    };
    let mut frame = vec![0; 100];
    let header = IcmpHeader { kind: 134, code, rest: [64, 0, 0, 60] };
    let len = link.emit_icmp(&mut frame, &header, body.len(), Checksum::of(body));
    frame.truncate(len);
    frame.extend(body);
    frame
}

/// Times, and an option of this prefix: on the link and for addresses, with its lifetimes.
fn prefix(network: u8, bits: u8, valid_s: u32, preferred_s: u32) -> Vec<u8> {
    let mut body = vec![0; 8];
    body.extend([3, 4, bits, 0xc0]);
    body.extend([valid_s, preferred_s, 0].map(u32::to_be_bytes).concat());
    body.extend(Ipv6Addr::new(0x2001, 0xdb8, network.into(), 0, 0, 0, 0, 0).octets());
    body
}

/// What a router must not say is counted and changes nothing; an address ends with its lifetime,
/// and another prefix makes another one.
#[test]
fn nonsense_of_routers_is_counted_and_lifetimes_end() {
    const ROUTERS_OWN: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x77);
    let config = Config::with_address(IpAddr::v4([10, 77, 0, 2]), 24);
    let config = Config { addr6: Addr6::Auto, cpus: vec![0], ..config };
    let snapshot = serving("tap", config, |router, mac| {
        let [a, b, c, d, e, f] = mac.map(u16::from);
        let made = |network: u16| {
            let (high, low) = ((a ^ 2) << 8 | b, c << 8 | 0xff);
            Ipv6Addr::new(0x2001, 0xdb8, network, 0, high, low, 0xfe00 | d, e << 8 | f)
        };
        router.enable_ipv6("ixt0").expect("IPv6");
        for network in [0x66, 0x77, 0x78] {
            let own = Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, 1);
            router.add_address("ixt0", own, 64).expect("an address");
        }
        let wire = PacketSocket::open(router, "ixt0").expect("a packet socket");
        let own = router.link("ixt0").expect("ask").expect("there").mac;
        let says = |frame: &[u8]| wire.send(frame).expect("sends");
        let fine = |body: &[u8]| advertisement(ROUTERS_OWN, own, 255, 0, body);
        let with = |option: &[u8]| [&[0; 8], option].concat();
        for wrong in [
            advertisement(ROUTERS_OWN, own, 64, 0, &prefix(0x66, 64, 60, 60)),
            advertisement(ROUTER, own, 255, 0, &prefix(0x66, 64, 60, 60)),
            advertisement(ROUTERS_OWN, own, 255, 1, &prefix(0x66, 64, 60, 60)),
            fine(&prefix(0x66, 129, 60, 60)),
            fine(&prefix(0x66, 64, 60, 61)),
            fine(&prefix(0x66, 64, 60, 60)[..32]),
            fine(&with(&[3, 0, 64, 0xc0, 0, 0, 0, 60])),
            fine(&with(&[1, 1, 0x33, 0x33, 0, 0, 0, 1])),
            fine(&with(&[5, 2, 0, 0, 0, 0, 5, 0])),
            fine(&[0; 4]),
        ] {
            says(&wrong);
        }
        says(&fine(&prefix(0x77, 64, 8, 8)));
        eventually("an address is made", || {
            answers(router, made(0x77), Duration::from_millis(300))
        });
        assert!(!answers(router, made(0x66), Duration::from_millis(300)), "of nonsense");
        eventually("its time is over", || !answers(router, made(0x77), Duration::from_millis(300)));
        says(&fine(&prefix(0x78, 64, u32::MAX, u32::MAX)));
        eventually("renumbered", || answers(router, made(0x78), Duration::from_millis(300)));
    });
    let Some(snapshot) = snapshot else { return };
    assert_eq!(snapshot.total("drops.nd_invalid"), Some(10));
    assert_eq!(snapshot.total("misrouted"), Some(0));
}

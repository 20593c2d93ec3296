//! `ix run` with a service behind a private link, and real Linux at the other end.
//!
//! Works from outside only: the command, its output, `ix ctl stats`, and packets. [`lab`] is the
//! benchmarks' own link instead.
#![allow(dead_code)] // Each test file uses a part of it.
pub mod command;
pub mod control;
pub mod frames;
pub mod lab;
pub mod lacking;
pub mod memif;
pub mod process;
pub mod raw;
pub mod stats;
pub mod traffic;
pub mod turn;

use ix_skip::{Need, skip_part};
use ix_testbed::{Bridge, Namespace, PacketSocket, PathSpec, VethEnd, cpu};
use process::Process;
use stats::Stats;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turn::Turn;

/// Longest that one step may take: the machine may be busy with other work.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The service's address.
pub const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 88, 0, 2), 7);
/// The address of a second service on a tap.
pub const SECOND: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 89, 0, 2), 7);
/// The Linux end's address, which is the dataplane's gateway as well.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);
/// The service's IPv6 address, in tests that give it one.
pub const SERVICE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x88, 0, 0, 0, 0, 2);
/// That of the Linux end.
pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x88, 0, 0, 0, 0, 1);
/// Length of their network's prefix.
pub const PREFIX_V6: u8 = 64;
/// Length of both networks' prefix.
pub const PREFIX: u8 = 16;
/// TIME-WAIT of the dataplane; the usual minute is too long to wait for.
const TIME_WAIT_US: u32 = 300_000;

/// What stands between programs and dataplanes of tests that do not choose it: the value of
/// `IX_TEST_DOMAIN`, else the wall that ships.
pub fn domain() -> String {
    std::env::var("IX_TEST_DOMAIN").unwrap_or_else(|_| "process".to_owned())
}

/// Kinds of device under the dataplane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nic {
    /// A TAP device in the client's namespace.
    Tap,
    /// AF_XDP on one end of a virtual Ethernet pair.
    Afxdp,
}

impl Nic {
    /// Every kind.
    pub const ALL: [Nic; 2] = [Nic::Tap, Nic::Afxdp];
}

/// A private link of one kind.
pub struct TestNet {
    /// Where Linux clients live.
    pub client: Namespace,
    /// Where the dataplane lives on `afxdp`; on `tap` it lives with the clients.
    pub server: Namespace,
    nic: Nic,
    queues: usize,
    /// Largest IP packet, if it is not the usual one.
    mtu: Option<u32>,
    folder: Folder,
    turn: Turn,
}

/// A running dataplane with its program.
pub struct Service {
    /// `ix run`.
    pub process: Process,
    control: PathBuf,
}

impl TestNet {
    /// Makes the link; `None`, said loudly, where this process may not. Other tests run beside it.
    pub fn new(test: &str, nic: Nic, queues: usize) -> Option<TestNet> {
        TestNet::in_turn(Turn::part(queues), test, nic, queues)
    }

    /// The link alone, for what runs on Linux's sockets.
    pub fn without_ix(test: &str) -> Option<TestNet> {
        TestNet::in_turn(Turn::none(), test, Nic::Afxdp, 1)
    }

    /// The same beside one other test at most: for what keeps a core busy, but measures nothing.
    pub fn busy(test: &str, nic: Nic, queues: usize) -> Option<TestNet> {
        TestNet::in_turn(Turn::part(2 * queues), test, nic, queues)
    }

    /// The same with the machine for itself: for what is measured, or keeps every core busy.
    pub fn alone(test: &str, nic: Nic, queues: usize) -> Option<TestNet> {
        TestNet::in_turn(Turn::whole(), test, nic, queues)
    }

    /// The same on AF_XDP with a path between the ends, each direction of which is as said: a
    /// bridge in user space joins them.
    pub fn apart(test: &str, ways: [PathSpec; 2]) -> Option<(TestNet, Bridge)> {
        let turn = Turn::whole();
        let client = command::namespace(test)?;
        let [server, middle] = [0, 1].map(|_| Namespace::new().expect("another namespace"));
        for (end, name, other) in [(&server, "ixs0", "ixms0"), (&client, "ixc0", "ixmc0")] {
            end.add_veth(&VethEnd::new(name), &middle, &VethEnd::new(other)).expect("a veth pair");
            end.set_offloads(name, false).expect("offloads");
            middle.set_offloads(other, false).expect("offloads");
            middle.set_up(other, true).expect("up");
            end.set_up(name, true).expect("up");
            end.wait_running(name, PATIENCE).expect("carrier");
        }
        client.add_address("ixc0", CLIENT, PREFIX).expect("an address");
        let bridge = Bridge::start(&middle, ["ixms0", "ixmc0"], ways, 1).expect("a bridge");
        let folder = Folder::new();
        let (nic, queues, mtu) = (Nic::Afxdp, 1, None);
        Some((TestNet { client, server, nic, queues, mtu, folder, turn }, bridge))
    }

    /// What is left of a test that was alone leaves room for another.
    pub fn share(&mut self) {
        self.turn.shrink();
    }

    fn in_turn(turn: Turn, test: &str, nic: Nic, queues: usize) -> Option<TestNet> {
        let client = command::namespace(&format!("{test} on {nic:?}"))?;
        let server = Namespace::new().expect("a second namespace");
        if nic == Nic::Afxdp {
            let end = |name| VethEnd::new(name).queues(queues as u32);
            server.add_veth(&end("ixs0"), &client, &end("ixc0")).expect("a veth pair");
            client.add_address("ixc0", CLIENT, PREFIX).expect("an address");
            server.set_up("ixs0", true).expect("up");
            client.set_up("ixc0", true).expect("up");
            server.wait_running("ixs0", PATIENCE).expect("carrier");
        }
        let (folder, mtu) = (Folder::new(), None);
        Some(TestNet { client, server, nic, queues, mtu, folder, turn })
    }

    /// The same with packets of up to `mtu` bytes, before a dataplane runs.
    pub fn with_mtu(self, mtu: u32) -> TestNet {
        if self.nic == Nic::Afxdp {
            self.server.set_mtu("ixs0", mtu).expect("an MTU");
            self.client.set_mtu("ixc0", mtu).expect("an MTU");
        }
        TestNet { mtu: Some(mtu), ..self }
    }

    /// The interface at the Linux end.
    pub fn client_link(&self) -> &'static str {
        if self.nic == Nic::Tap { "ixt0" } else { "ixc0" }
    }

    /// The interface that the dataplane uses, and its namespace.
    pub fn service_link(&self) -> (&Namespace, &'static str) {
        if self.nic == Nic::Tap { (&self.client, "ixt0") } else { (&self.server, "ixs0") }
    }

    /// Starts `ix-echo` with these arguments and waits until it serves.
    pub fn serve(&self, arguments: &[&str]) -> Service {
        self.serve_with(&[], arguments)
    }

    /// The same with more flags for `ix run`.
    pub fn serve_with(&self, flags: &[&str], arguments: &[&str]) -> Service {
        let echo = build_echo();
        let mut program = vec![echo.to_str().expect("text")];
        program.extend(arguments);
        let service = self.start_flags(flags, &program);
        service.process.wait_for("ready", PATIENCE);
        service
    }

    /// Starts `ix-echo` with these arguments at addresses of both families, and waits until it
    /// serves and Linux can reach it by either.
    pub fn serve_v6(&self, arguments: &[&str]) -> Service {
        let flags = self.flags_v6();
        let service = self.serve_with(&flags.each_ref().map(String::as_str), arguments);
        self.enable_v6();
        service
    }

    /// Flags of `ix run` that give the dataplane addresses and gateways of both families.
    pub fn flags_v6(&self) -> [String; 4] {
        let addresses = format!("{}/{PREFIX},{SERVICE_V6}/{PREFIX_V6}", SERVICE.ip());
        ["--addr".into(), addresses, "--gateway".into(), format!("{CLIENT},{CLIENT_V6}")]
    }

    /// Gives the Linux end its IPv6 address.
    pub fn enable_v6(&self) {
        let link = self.client_link();
        self.client.enable_ipv6(link).expect("IPv6");
        self.client.add_address(link, CLIENT_V6, PREFIX_V6).expect("an address");
    }

    /// Starts a program under `ix run`, and does not wait for more than its device.
    pub fn start(&self, program: &[&str]) -> Service {
        self.start_flags(&[], program)
    }

    fn start_flags(&self, flags: &[&str], program: &[&str]) -> Service {
        self.start_env(&[], flags, program)
    }

    /// The same with flags for `ix run`, and more variables in its environment and the program's.
    pub fn start_env(&self, env: &[(&str, &str)], flags: &[&str], program: &[&str]) -> Service {
        let (namespace, link) = self.service_link();
        let mut service = self.launch(&self.config(link), env, flags, program);
        if self.nic == Nic::Tap {
            service.raise_tap(namespace, link, CLIENT, PREFIX);
        }
        service
    }

    /// Starts a program with more lines at the head of the configuration.
    pub fn start_after(&self, lines: &str, program: &[&str]) -> Service {
        self.start_after_with(lines, &[], program)
    }

    /// The same with flags for `ix run`.
    pub fn start_after_with(&self, lines: &str, flags: &[&str], program: &[&str]) -> Service {
        let (namespace, link) = self.service_link();
        let config = format!("{lines}\n{}", self.config(link));
        let mut service = self.launch(&config, &[], flags, program);
        if self.nic == Nic::Tap {
            service.raise_tap(namespace, link, CLIENT, PREFIX);
        }
        service
    }

    /// The same with parts at the end of the configuration, at an address that is Linux's as well.
    pub fn start_taking_address(&self, parts: &str, program: &[&str]) -> Service {
        let config = format!("{}{parts}", self.config(self.service_link().1));
        self.launch(&config, &[], &["--take-address"], program)
    }

    /// The same with more parts at the end of the configuration.
    pub fn start_before(&self, parts: &str, program: &[&str]) -> Service {
        let (namespace, link) = self.service_link();
        let mut service = self.launch(&format!("{}{parts}", self.config(link)), &[], &[], program);
        if self.nic == Nic::Tap {
            service.raise_tap(namespace, link, CLIENT, PREFIX);
        }
        service
    }

    /// Starts a program under `ix run` with this configuration, where the service's link is.
    pub fn start_with(&self, config: &str, program: &[&str]) -> Service {
        self.launch(config, &[], &[], program)
    }

    /// The same with flags for `ix run`.
    pub fn start_with_flags(&self, config: &str, flags: &[&str], program: &[&str]) -> Service {
        self.launch(config, &[], flags, program)
    }

    fn launch(
        &self,
        config: &str,
        env: &[(&str, &str)],
        flags: &[&str],
        program: &[&str],
    ) -> Service {
        self.launch_as("", config, env, flags, program)
    }

    /// `name` is part of its files' names.
    fn launch_as(
        &self,
        name: &str,
        config: &str,
        env: &[(&str, &str)],
        flags: &[&str],
        program: &[&str],
    ) -> Service {
        let (namespace, _) = self.service_link();
        let control = self.file(&format!("{name}control.sock"));
        let file = self.file(&format!("{name}ix.toml"));
        std::fs::write(&file, config).expect("write the configuration");
        let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
        command.envs(env.iter().copied());
        command.arg("run").arg("-c").arg(file).args(flags);
        if !flags.contains(&"--domain") {
            command.args(["--domain", &domain()]);
        }
        command.arg("--control").arg(&control).arg("--").args(program);
        Service { process: Process::start(command), control }
    }

    /// Starts a program under `ix run` at the address of Linux: no address is named.
    pub fn start_shared(&self, program: &[&str]) -> Service {
        self.start_shared_with(&[], program)
    }

    /// The same with flags for `ix run`.
    pub fn start_shared_with(&self, flags: &[&str], program: &[&str]) -> Service {
        self.start_shared_as("control.sock", flags, program)
    }

    /// The same, one of several: its control socket is the file of this name.
    pub fn start_shared_as(&self, control: &str, flags: &[&str], program: &[&str]) -> Service {
        let (namespace, link) = self.service_link();
        let control = self.file(control);
        let mut command = namespace.command(env!("CARGO_BIN_EXE_ix"), None);
        command.args(["run", "--domain", &domain(), "--nic", link, "--control"]);
        command.arg(&control).args(flags).args(program);
        Service { process: Process::start(command), control }
    }

    /// A second dataplane with `ix-echo`, on the same hardware threads, at [`SECOND`] on a tap.
    pub fn serve_second(&self, arguments: &[&str]) -> Service {
        let link = "ixt1";
        let gateway = Ipv4Addr::new(10, 89, 0, 1);
        let config = self.config_of("tap", link, *SECOND.ip(), gateway);
        let echo = build_echo();
        let mut program = vec![echo.to_str().expect("text")];
        program.extend(arguments);
        let mut service = self.launch_as("second-", &config, &[], &[], &program);
        service.raise_tap(self.service_link().0, link, gateway, PREFIX);
        service.process.wait_for("ready", PATIENCE);
        service
    }

    /// A place for a file of this test.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn config(&self, link: &str) -> String {
        let kind = if self.nic == Nic::Tap { "tap" } else { "afxdp" };
        self.config_of(kind, link, *SERVICE.ip(), CLIENT)
    }

    fn config_of(&self, kind: &str, link: &str, address: Ipv4Addr, gateway: Ipv4Addr) -> String {
        format!(
            "host_addr = \"{address}/{PREFIX}\"\ngateway_addr = \"{gateway}\"\ncpu = {:?}\n\
             devices = [\"{kind}:{link},queues={}{}\"]\n[tcp]\ntime_wait_us = {TIME_WAIT_US}\n",
            self.cpus(),
            self.queues,
            self.mtu.map_or(String::new(), |mtu| format!(",mtu={mtu}")),
        )
    }

    /// The CPUs of its elastic threads; a test beside it has others, where there are others.
    pub fn cpus(&self) -> Vec<usize> {
        let allowed = cpu::allowed();
        assert!(self.queues <= allowed.len(), "an elastic thread needs a CPU of its own");
        let first = if self.queues == 1 { self.turn.place() % allowed.len() } else { 0 };
        allowed[first..first + self.queues].to_vec()
    }

    /// Whole frames at the Linux end.
    pub fn wire(&self) -> PacketSocket {
        PacketSocket::open(&self.client, self.client_link()).expect("a packet socket")
    }

    /// A connection from Linux.
    pub fn connect(&self) -> TcpStream {
        self.client.run(connect)
    }

    /// The dataplane's Ethernet address, from Linux's ARP table.
    pub fn service_mac(&self) -> [u8; 6] {
        drop(self.connect());
        let table = self.client.run(|| std::fs::read_to_string("/proc/thread-self/net/arp"));
        let table = table.expect("the ARP table");
        let line = table.lines().find(|line| line.starts_with("10.88.0.2 ")).expect("resolved");
        let text = line.split_ascii_whitespace().nth(3).expect("a MAC address");
        let bytes: Vec<_> =
            text.split(':').map(|b| u8::from_str_radix(b, 16).expect("hexadecimal")).collect();
        bytes.try_into().expect("six bytes")
    }

    /// The Linux end's Ethernet address.
    pub fn client_mac(&self) -> [u8; 6] {
        self.client.link(self.client_link()).expect("ask").expect("there").mac
    }

    /// Ethernet addresses of frames from Linux to the service.
    pub fn macs(&self) -> frames::Macs {
        frames::Macs { to: self.service_mac(), from: self.client_mac() }
    }

    /// Whether an XDP program is attached under the dataplane; `None`, said loudly, where nothing
    /// can tell.
    pub fn has_xdp(&self) -> Option<bool> {
        let (namespace, link) = self.service_link();
        let output = namespace.command("ip", None).args(["-o", "link", "show", link]).output();
        match output {
            Ok(output) => Some(String::from_utf8_lossy(&output.stdout).contains("xdp")),
            Err(_) => {
                skip_part("XDP programs", Need::Program("apt-get install iproute2"), "no ip");
                None
            }
        }
    }
}

impl Service {
    /// Waits until the tap is there, and sets its Linux side up.
    #[track_caller]
    pub fn raise_tap(&mut self, namespace: &Namespace, link: &str, at: Ipv4Addr, prefix: u8) {
        let end = Instant::now() + PATIENCE;
        while namespace.link(link).expect("ask").is_none() {
            self.process.check();
            assert!(Instant::now() < end, "no tap: {}", self.process);
            std::thread::sleep(Duration::from_millis(2));
        }
        namespace.add_address(link, at, prefix).expect("an address");
        namespace.set_up(link, true).expect("up");
    }

    /// A client of its control socket.
    pub fn client(&self) -> control::Client {
        control::Client::new(&self.control)
    }

    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// The counters now.
    pub fn stats(&self) -> Stats {
        Stats::ask(&self.control)
    }

    /// Waits until the counters say so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, timeout: Duration, holds: impl Fn(&Stats) -> bool) {
        let end = Instant::now() + timeout;
        loop {
            let stats = self.stats();
            if holds(&stats) {
                return;
            }
            assert!(Instant::now() < end, "not in time: {what}\n{stats}\n{}", self.process);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no flow, frame or timer is left, and checks that no packet was misrouted.
    #[track_caller]
    pub fn comes_to_rest(&self, timeout: Duration) -> Stats {
        self.wait_until("nothing is left", timeout, |stats| stats.leftovers().is_empty());
        let stats = self.stats();
        assert_eq!(stats.total("misrouted"), 0, "{stats}");
        stats
    }

    /// The process that has the dataplane: a child of the broker, or the program's.
    pub fn dataplane(&self) -> i32 {
        self.children("ix-dataplane").first().copied().unwrap_or_else(|| self.program())
    }

    /// The broker's children of this name.
    pub fn children(&self, named: &str) -> Vec<i32> {
        let path = format!("/proc/{0}/task/{0}/children", self.process.pid());
        let children = std::fs::read_to_string(path).unwrap_or_default();
        let pids = children.split_ascii_whitespace().filter_map(|word| word.parse().ok());
        let name =
            |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        pids.filter(|pid| name(pid).trim() == named).collect()
    }

    /// Starts a program behind the process wall whose process has this name, and stops it after it
    /// has asked for its dataplane, which has started then, and before it has mapped what the two
    /// share. Returns it with its process.
    pub fn stopped_before_it_maps(net: &TestNet, words: &[&str], called: &str) -> (Service, i32) {
        for _ in 0..4 {
            let service = net.start_env(&[], &["--domain", "process"], words);
            let end = Instant::now() + PATIENCE;
            while service.children("ix-dataplane").is_empty() {
                assert!(Instant::now() < end, "no dataplane: {:#?}", service.process.said());
            }
            let program = service.children(called).pop().expect("the program");
            process::signal(program, libc::SIGSTOP);
            service.process.wait_for("ix: packet memory:", PATIENCE);
            let maps = std::fs::read_to_string(format!("/proc/{program}/maps")).expect("mappings");
            if !maps.contains("memfd:ix-calls") {
                return (service, program);
            }
            process::signal(program, libc::SIGCONT);
            service.process.terminate();
        }
        panic!("it was never stopped in time");
    }

    /// The program's process.
    pub fn program(&self) -> i32 {
        self.stats().pid()
    }

    /// Everything is at rest, and the command ends as its program does.
    #[track_caller]
    pub fn finish(self, timeout: Duration) -> Stats {
        let stats = self.comes_to_rest(timeout);
        self.process.terminate();
        stats
    }
}

/// A connection to the service from the calling thread's namespace.
pub fn connect() -> TcpStream {
    connect_to(SERVICE)
}

/// A connection to a service at another address.
pub fn connect_to(service: impl Into<SocketAddr>) -> TcpStream {
    let stream = TcpStream::connect_timeout(&service.into(), PATIENCE).expect("connects");
    stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("timeout");
    stream.set_nodelay(true).expect("no delay");
    stream
}

/// A connection from a namespace, as soon as the address is the service's: one of IPv6 is a second
/// after the start (RFC 4862).
pub fn connect_once_there(from: &Namespace, to: SocketAddr) -> TcpStream {
    let end = Instant::now() + PATIENCE;
    loop {
        match from.run(|| TcpStream::connect_timeout(&to, PATIENCE)) {
            Ok(stream) => {
                stream.set_nodelay(true).expect("no delay");
                stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
                return stream;
            }
            Err(e) => assert!(Instant::now() < end, "no connection: {e}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until something holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends the clients that look at it, however a test ends.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Builds `ix-echo` next to the command, as `cargo test -p ix` alone would not; returns its file.
pub fn build_echo() -> PathBuf {
    build_program("ix-echo")
}

/// Builds the programs of another package; returns the one that has its name.
pub fn build_program(package: &'static str) -> PathBuf {
    build_others().join(package)
}

/// Builds what tests start or link of other packages, once a process; returns the command's folder.
pub fn build_others() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| ix_testbed::programs::build_beside(Path::new(env!("CARGO_BIN_EXE_ix"))))
        .clone()
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let since = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos();
        let name = format!("ix-serve-{}-{since}", std::process::id());
        let path = std::env::temp_dir().join(name);
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().mode(0o700).create(&path).expect("a folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl fmt::Display for TestNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} with {} queues", self.nic, self.queues)
    }
}

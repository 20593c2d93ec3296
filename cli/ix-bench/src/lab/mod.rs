//! The private link that benchmarks run over: two ends, each a network namespace and a hardware
//! thread, and processes at them on Linux sockets or on IX.
//!
//! On `afxdp` the link is a virtual Ethernet pair, and every server and client uses it, on Linux or
//! on IX. On `tap` IX's server is behind a TAP device of the client's namespace; Linux's server
//! stays behind the pair, because Linux cannot use the program's end of a TAP. On `memif` the two
//! ends of IX share memory, and Linux is measured over the pair.
mod load;
mod peer;
mod server;

use super::serve::list;
use crate::args::Device;
use ix_report::domain::Domain;
use ix_report::machine::split_cpus;
use ix_report::problem::{Problem, Result};
use ix_testbed::{Namespace, VethEnd};
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

pub use load::Load;
pub(crate) use load::figures;
pub use peer::PeerEnd;
pub use server::{Server, Spot};

const LINUX_SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const IX_SERVER: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const LINUX_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 3);
const IX_CLIENT: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 4);
const TAP_LINUX: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 3);
const TAP_IX: Ipv4Addr = Ipv4Addr::new(10, 67, 0, 2);
const PREFIX: u8 = 24;
const PREFIX_V6: u8 = 64;
/// The server's end of the pair.
pub const SERVER_LINK: &str = "ix-server";
/// The client's end of the pair.
pub const CLIENT_LINK: &str = "ix-client";
const TAP: &str = "ix-tap";
/// Names of the interfaces in the middle of [`Lab::apart`].
pub const MIDDLE_SERVER: &str = "ix-left";
/// Its counterpart towards the client.
pub const MIDDLE_CLIENT: &str = "ix-right";
const PORT: u16 = 7;
/// Longest time for a process to start.
const START: Duration = Duration::from_secs(15);

/// System at one end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// IX, with this wall between program and dataplane.
    Ix(Domain),
    /// Linux sockets; waiting in epoll or spinning.
    Linux {
        /// Whether it spins.
        spin: bool,
    },
    /// Somebody else's server: [`Lab::peer`].
    Peer,
}

impl Host {
    /// IX without a wall: every client on IX.
    pub const IX: Host = Host::Ix(Domain::None);
    /// Linux sockets, waiting in epoll.
    pub const BLOCKING: Host = Host::Linux { spin: false };
    /// Linux sockets, spinning.
    pub const SPINNING: Host = Host::Linux { spin: true };

    /// `ix`, `linux` or `peer`.
    pub fn system(self) -> &'static str {
        match self {
            Host::Ix(_) => "ix",
            Host::Linux { .. } => "linux",
            Host::Peer => "peer",
        }
    }

    /// Whether it is Linux's sockets under a program of ours.
    pub fn is_linux(self) -> bool {
        matches!(self, Host::Linux { .. })
    }

    /// Whether it is IX, behind any wall.
    pub fn is_ix(self) -> bool {
        matches!(self, Host::Ix(_))
    }

    /// What keeps a program out of its dataplane there.
    pub fn domain(self) -> Option<Domain> {
        match self {
            Host::Ix(domain) => Some(domain),
            Host::Linux { .. } | Host::Peer => None,
        }
    }
}

/// The link with its two ends.
pub struct Lab {
    server: Namespace,
    client: Namespace,
    device: Device,
    /// First hardware threads of server and client.
    pub cpus: (usize, usize),
    /// All hardware threads of the server's end.
    pub server_cpus: Vec<usize>,
    /// All hardware threads of the client's end.
    pub client_cpus: Vec<usize>,
    /// What stands between server programs and their dataplanes: each is measured, or the first
    /// where a benchmark measures one. Never empty. Clients have no wall.
    pub domains: Vec<Domain>,
    /// What a server of [`Host::Peer`] is.
    pub peer: Option<PeerEnd>,
    ix: PathBuf,
    control: PathBuf,
    /// Last value of [`Lab::set_offloads`]: each server makes a new tap.
    offloads: AtomicBool,
    /// Last value of [`Lab::set_mtu`]; 0: none.
    mtu: AtomicU32,
    v6: bool,
}

impl Lab {
    /// Makes the link. It is removed when the lab is dropped or the process dies.
    pub fn new(device: Device) -> Result<Lab> {
        let ix = std::env::current_exe();
        Lab::of(ix.map_err(|e| Problem::new("cannot find the executable of ix", e))?, device)
    }

    /// The same, with server programs behind each of these walls.
    pub fn in_domains(device: Device, domains: &[Domain]) -> Result<Lab> {
        let mut lab = Lab::new(device)?;
        if !domains.is_empty() {
            lab.domains = domains.to_vec();
        }
        Ok(lab)
    }

    /// The server's end on IX, where a benchmark measures one.
    pub fn on_ix(&self) -> Host {
        Host::Ix(self.domains.first().copied().unwrap_or_default())
    }

    /// The server's end on IX, behind each wall.
    pub fn each_on_ix(&self) -> impl Iterator<Item = Host> {
        self.domains.iter().copied().map(Host::Ix)
    }

    /// Makes a lab whose processes run the command in the file `ix`.
    pub fn of(ix: PathBuf, device: Device) -> Result<Lab> {
        if device == Device::Tap {
            can_open_tap()?;
        }
        Lab::between(ix, device, make_link())
    }

    /// Makes a lab on AF_XDP whose ends are not joined: the returned namespace is between them,
    /// with an interface [`MIDDLE_SERVER`] towards the server and [`MIDDLE_CLIENT`] towards the
    /// client. No end has offloads, so that joining them acts like a wire.
    pub fn apart() -> Result<(Lab, Namespace)> {
        let ix = std::env::current_exe();
        let ix = ix.map_err(|e| Problem::new("cannot find the executable of ix", e))?;
        let cannot = |e| Problem::new("cannot make two private links", e).mend("see `ix doctor`");
        let middle = Namespace::new().map_err(cannot)?;
        let lab = Lab::between(ix, Device::Afxdp, make_two_links(&middle))?;
        Ok((lab, middle))
    }

    fn between(
        ix: PathBuf,
        device: Device,
        ends: std::result::Result<(Namespace, Namespace), ix_testbed::Error>,
    ) -> Result<Lab> {
        let (server, client) = ends.map_err(|e| {
            let what = format!("cannot make a private link for {}", device.name());
            Problem::new(what, e).mend("see `ix doctor`")
        })?;
        static LABS: AtomicUsize = AtomicUsize::new(0);
        let number = LABS.fetch_add(1, Ordering::Relaxed);
        let name = format!("lab-{}-{number}", std::process::id());
        let control = ix_broker::control::folder()?.join(name);
        let (server_cpus, client_cpus) = split_cpus();
        let cpus = (server_cpus[0], client_cpus[0]);
        Ok(Lab {
            server,
            client,
            device,
            cpus,
            server_cpus,
            client_cpus,
            domains: vec![Domain::None],
            peer: None,
            ix,
            control,
            offloads: AtomicBool::new(true),
            mtu: AtomicU32::new(0),
            v6: false,
        })
    }

    /// Servers and clients have IPv6 addresses from now on, on Linux as well.
    pub fn speak_ipv6(&mut self) -> Result<()> {
        self.v6 = true;
        let (server, client) = (self.at(LINUX_SERVER), self.at(LINUX_CLIENT));
        self.server
            .add_address(SERVER_LINK, server, PREFIX_V6)
            .and_then(|()| self.client.add_address(CLIENT_LINK, client, PREFIX_V6))
            .map_err(|e| Problem::new("cannot give the link IPv6 addresses", e))
    }

    /// Whether the link's ends speak IPv6.
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    /// The address of an end of the link in the family that is spoken: 10.66.0.1 or fd42:66::1.
    fn at(&self, address: Ipv4Addr) -> IpAddr {
        let [_, network, _, host] = address.octets();
        match self.v6 {
            true => Ipv6Addr::new(0xfd42, network.into(), 0, 0, 0, 0, 0, host.into()).into(),
            false => address.into(),
        }
    }

    /// Bits of a network of the link.
    fn prefix(&self) -> u8 {
        if self.v6 { PREFIX_V6 } else { PREFIX }
    }

    /// Name of a host in results.
    pub fn system_of(&self, host: Host) -> &str {
        match (host, &self.peer) {
            (Host::Peer, Some(peer)) => &peer.name,
            _ => host.system(),
        }
    }

    /// Kind of the link under a host: Linux always has the pair.
    pub fn device_of(&self, host: Host) -> &'static str {
        match host {
            Host::Peer if self.device == Device::Memif => self.device.name(),
            Host::Ix(_) => self.device.name(),
            Host::Linux { .. } | Host::Peer => "veth",
        }
    }

    /// The executable of all processes.
    pub fn ix_file(&self) -> &std::path::Path {
        &self.ix
    }

    /// The device under IX.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Whether IX can run at the client's end as well.
    pub fn has_ix_client(&self) -> bool {
        self.device != Device::Tap
    }

    /// Whether Linux can be the client of a server on IX.
    pub fn has_linux_client(&self) -> bool {
        self.device != Device::Memif
    }

    /// The device of IX's server or client.
    fn nic(&self, server: bool) -> String {
        let nic = self.nic_of(server);
        match self.mtu.load(Ordering::Relaxed) {
            0 => nic,
            mtu => format!("{nic},mtu={mtu}"),
        }
    }

    fn nic_of(&self, server: bool) -> String {
        match (self.device, server) {
            (Device::Memif, true) => format!("memif:{},role=server", self.memif().display()),
            (Device::Memif, false) => format!("memif:{},role=client", self.memif().display()),
            (Device::Tap, _) if !self.offloads.load(Ordering::Relaxed) => {
                format!("tap:{TAP},offloads=off")
            }
            (Device::Tap, _) => format!("tap:{TAP}"),
            (Device::Afxdp, true) => format!("afxdp:{SERVER_LINK}"),
            (Device::Afxdp, false) => format!("afxdp:{CLIENT_LINK}"),
        }
    }

    /// Path of the memif's socket: a file, because the ends are in different network namespaces,
    /// where an abstract socket would not be shared.
    fn memif(&self) -> PathBuf {
        self.control.with_extension("memif")
    }

    /// The namespace of Linux servers, and their address.
    pub fn linux_server(&self) -> (&Namespace, SocketAddr) {
        (&self.server, SocketAddr::from((LINUX_SERVER, PORT)))
    }

    /// The namespace of servers.
    pub fn server_namespace(&self) -> &Namespace {
        &self.server
    }

    /// A path for a socket of this lab.
    pub fn file(&self, name: &str) -> PathBuf {
        self.control.with_extension(name)
    }

    /// The namespace of Linux clients.
    pub fn client_namespace(&self) -> &Namespace {
        &self.client
    }

    /// The address of Linux at the server's end. A dataplane there shares it by port.
    pub fn linux_address(&self) -> Ipv4Addr {
        LINUX_SERVER
    }

    /// The address of Linux clients.
    pub fn linux_client(&self) -> Ipv4Addr {
        LINUX_CLIENT
    }

    /// The address of Linux clients as a server on this system sees it.
    pub fn client_of(&self, host: Host) -> Ipv4Addr {
        if host.is_ix() && self.device == Device::Tap { TAP_LINUX } else { LINUX_CLIENT }
    }

    /// Sets the link to IX's server up or down: its end of the pair, or the tap.
    pub fn set_server_link(&self, up: bool) -> Result<()> {
        let switched = match self.device {
            Device::Tap => self.client.set_up(TAP, up),
            Device::Afxdp | Device::Memif => self.server.set_up(SERVER_LINK, up),
        };
        switched.map_err(|e| Problem::new("cannot switch the link", e))
    }

    /// Switches checksum and segmentation offloads of both ends on or off, from the next server on.
    pub fn set_offloads(&self, on: bool) -> Result<()> {
        self.offloads.store(on, Ordering::Relaxed);
        self.server
            .set_offloads(SERVER_LINK, on)
            .and_then(|()| self.client.set_offloads(CLIENT_LINK, on))
            .map_err(|e| Problem::new("cannot switch the offloads of the link", e))
    }

    /// From now on packets on the link have at most `mtu` bytes.
    pub fn set_mtu(&self, mtu: u32) -> Result<()> {
        self.mtu.store(mtu, Ordering::Relaxed);
        self.server
            .set_mtu(SERVER_LINK, mtu)
            .and_then(|()| self.client.set_mtu(CLIENT_LINK, mtu))
            .map_err(|e| Problem::new("cannot set the MTU of the link", e))
    }

    /// Gives the pair this many queues in each direction: each thread of a server needs one.
    fn set_queues(&self, queues: usize) -> Result<()> {
        let queues = queues as u32;
        if self.server.channels(SERVER_LINK).is_ok_and(|now| (now.rx, now.tx) == (queues, queues)) {
            return Ok(());
        }
        self.server
            .set_channels(SERVER_LINK, queues, queues)
            .and_then(|()| self.client.set_channels(CLIENT_LINK, queues, queues))
            .map_err(|e| Problem::new("cannot set the queues of the link", e))
    }

    /// Congestion control that Linux uses on the link.
    pub fn congestion_control(&self) -> String {
        self.client.sysctl("net/ipv4/tcp_congestion_control").unwrap_or_default()
    }

    /// Hardware threads for `threads` threads of a server: its own end's first, then the client's,
    /// and around again if the machine has fewer.
    pub fn cpus_for(&self, threads: usize) -> Vec<usize> {
        let all = self.server_cpus.iter().chain(self.client_cpus.iter().rev()).copied();
        all.cycle().take(threads.max(1)).collect()
    }

    /// The command `ix run` with `flags`, and the program and its arguments in `args`.
    fn ix_command(
        &self,
        namespace: &Namespace,
        nic: &str,
        address: IpAddr,
        cpus: &[usize],
        flags: &[OsString],
        args: &[OsString],
    ) -> Command {
        // With several hardware threads, `ix run` must be allowed on all of them.
        let pinned = (cpus.len() == 1).then_some(cpus[0]);
        let mut command = namespace.command(&self.ix, pinned);
        command.arg("run");
        if !flags.iter().any(|flag| flag == "--domain") {
            command.args(["--domain", "none"]);
        }
        command.args(["--nic", nic]);
        if address != self.at(LINUX_SERVER) {
            command.arg("--addr").arg(format!("{address}/{}", self.prefix()));
        }
        command.args(["--cpus", &list(cpus)]);
        command.arg("--control").arg(self.control_of(address)).args(flags);
        command.arg("--").args(args);
        command
    }

    /// Control socket of a client's dataplane.
    pub fn client_control(&self) -> PathBuf {
        self.control_of(self.at(IX_CLIENT))
    }

    fn control_of(&self, address: IpAddr) -> PathBuf {
        let mut path = self.control.clone().into_os_string();
        path.push(format!("-{address}.sock"));
        path.into()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A server that was killed leaves the file behind; most labs have none.
        let _ = std::fs::remove_file(self.memif());
    }
}

/// Two namespaces and the pair between them, up.
fn make_link() -> std::result::Result<(Namespace, Namespace), ix_testbed::Error> {
    let (server, client) = (Namespace::new()?, Namespace::new()?);
    let queues = (split_cpus().0.len() + split_cpus().1.len()) as u32;
    let (here, there) = (VethEnd::new(SERVER_LINK), VethEnd::new(CLIENT_LINK));
    server.add_veth(&here.queues(queues), &client, &there.queues(queues))?;
    raise(&server, &client)?;
    Ok((server, client))
}

/// Two namespaces with a pair each to `middle`, up and without offloads.
fn make_two_links(
    middle: &Namespace,
) -> std::result::Result<(Namespace, Namespace), ix_testbed::Error> {
    let (server, client) = (Namespace::new()?, Namespace::new()?);
    for (end, name, other) in
        [(&server, SERVER_LINK, MIDDLE_SERVER), (&client, CLIENT_LINK, MIDDLE_CLIENT)]
    {
        end.add_veth(&VethEnd::new(name), middle, &VethEnd::new(other))?;
        end.set_offloads(name, false)?;
        middle.set_offloads(other, false)?;
        middle.set_up(other, true)?;
    }
    raise(&server, &client)?;
    Ok((server, client))
}

/// Gives both ends of the link their settings and addresses, and sets them up.
fn raise(server: &Namespace, client: &Namespace) -> std::result::Result<(), ix_testbed::Error> {
    prepare(server, client)?;
    server.add_address(SERVER_LINK, LINUX_SERVER, PREFIX)?;
    client.add_address(CLIENT_LINK, LINUX_CLIENT, PREFIX)?;
    server.set_up(SERVER_LINK, true)?;
    client.set_up(CLIENT_LINK, true)?;
    server.wait_running(SERVER_LINK, START)?;
    client.wait_running(CLIENT_LINK, START)?;
    Ok(())
}

/// Fails, with the remedy, if TAP devices cannot be opened.
pub fn can_open_tap() -> Result<()> {
    let device = "/dev/net/tun";
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|e| {
        let mend = match e.kind() {
            std::io::ErrorKind::NotFound => "modprobe tun",
            _ => "chmod 666 /dev/net/tun, or run it as root",
        };
        Problem::new(format!("cannot open {device}"), e).mend(mend)
    })
}

/// Settings of Linux's own stack for very many connections, at both ends: all ports to choose from,
/// room for their handshakes, and a port in TIME-WAIT for a second only.
fn prepare(server: &Namespace, client: &Namespace) -> std::result::Result<(), ix_testbed::Error> {
    for end in [server, client] {
        for (path, value) in [
            ("net/ipv4/ip_local_port_range", "1024 65535"),
            ("net/core/somaxconn", "65535"),
            ("net/ipv4/tcp_max_syn_backlog", "65535"),
            ("net/ipv4/tcp_tw_reuse", "1"),
            ("net/ipv4/tcp_max_tw_buckets", "16384"),
            // A server of any user may have the benchmarks' port.
            ("net/ipv4/ip_unprivileged_port_start", "0"),
        ] {
            end.set_sysctl(path, value)?;
        }
    }
    Ok(())
}

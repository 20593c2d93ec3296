//! `ix bench peer`: somebody else's server at the server's end of the link, in the table beside IX
//! and Linux.
use crate::args::{BenchArgs, Device};
use crate::lab::{Host, Lab, PeerEnd};
use crate::plan::Plan;
use crate::runner::{Setup, measure};
use crate::{all_setups, chosen};
use clap::Args;
use ix_report::problem::{Problem, Result};
use ix_report::report::Row;

/// Help of `ix bench peer`.
pub const HELP: &str = "Measures somebody else's server beside IX and Linux: the same link, the same clients, one \
    table. COMMAND is started at the server's end of the link, pinned to the server's hardware thread, and has \
    to echo every message of --size bytes (64) on a TCP port.\n\n\
    In COMMAND's arguments, and in its environment as IX_PEER_INTERFACE and so on:\n  \
    {interface}  the end of a virtual Ethernet pair, in COMMAND's network namespace\n  \
    {memif}      the socket of a memif; COMMAND is its server (role=server, id 0)\n  \
    {address}    the address to serve at: of nobody else, so Linux does not answer for it; with\n               \
    --sockets Linux's own of the interface\n  \
    {prefix}     the length of its network\n  \
    {port}       the port to serve at\n  \
    {cpu}        the hardware thread that it is pinned to\n\n\
    Examples:\n  \
    ix bench peer --sockets -- ncat --listen {address} {port} --keep-open --exec /bin/cat\n  \
    ix bench peer --device memif -- ./their-stack --vdev=net_memif,role=server,socket={memif} {address} {port}\n  \
    ix bench peer --connections 1,64 -- ./their-echo --interface {interface} --ip {address}/{prefix}";

/// Flags of `ix bench peer`.
#[derive(Args, Debug, Clone)]
pub struct PeerArgs {
    /// COMMAND serves on Linux's sockets, at Linux's address
    #[arg(long)]
    pub sockets: bool,
    /// Name of the peer in the table (default: COMMAND's file name)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Flags that all benchmarks share.
    #[command(flatten)]
    pub bench: BenchArgs,
    /// The server, after `--`
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub command: Vec<String>,
}

impl PeerArgs {
    /// What the lab needs to start it on this device; refuses what no peer can have.
    pub(crate) fn end(&self, device: Device) -> Result<PeerEnd> {
        let mend = "name --device afxdp (a virtual Ethernet pair) or --device memif";
        let refuse = |why| Err(Problem::new("cannot measure a peer", why).mend(mend));
        if self.name.as_deref().is_some_and(is_taken) {
            let why = "its rows would be taken for those of IX or Linux";
            return Err(Problem::new("cannot name the peer so", why).mend("choose another --name"));
        }
        match device {
            Device::Tap => return refuse("only IX can use a tap's end"),
            Device::Memif if self.sockets => return refuse("Linux's sockets do not reach a memif"),
            _ => {}
        }
        let file = self.command[0].rsplit('/').next().filter(|file| !is_taken(file));
        let name = self.name.as_deref().or(file).unwrap_or("peer").to_owned();
        Ok(PeerEnd { name, command: self.command.clone(), sockets: self.sockets })
    }
}

/// Whether rows of this name are IX's or Linux's.
fn is_taken(name: &str) -> bool {
    [Host::IX, Host::BLOCKING].iter().any(|host| host.system() == name)
}

/// Measures the echo on all systems.
pub(crate) fn measure_all(
    lab: &Lab,
    args: &BenchArgs,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let known = all_setups(lab);
    let of_ix = |client: &Host| known.iter().any(|s| s.server.is_ix() && s.client == *client);
    let clients = [Host::BLOCKING, Host::SPINNING, Host::IX].into_iter().filter(of_ix);
    // First, so that one that does not start is told of at once.
    let mut setups: Vec<Setup> =
        clients.map(|client| Setup { server: Host::Peer, client }).collect();
    setups.extend(known.iter().copied());
    notes.push("a peer's row has the clients of IX's; it is pinned as they are".to_owned());
    measure(lab, &Plan::of("echo", args, 1), &chosen(lab, args, setups)?, notes)
}

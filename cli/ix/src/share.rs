//! `ix share`: shares an interface among several dataplanes and Linux.
use clap::Args;
use ix_broker::share::{Shared, run};
use ix_netdev::PORTS_MAX;
use ix_report::output::MessageArgs;
use ix_report::problem::Result;
use ix_vnic::{Policy, Rate};
use std::path::PathBuf;

/// Help of `ix share`.
pub const HELP: &str = "Shares an interface among several dataplanes, which need not trust each \
    other, and Linux.\n\n\
    Each dataplane gets a vNIC: a link of its own, for `ix run --nic afxdp:LINK`. The kernel moves \
    packets that a vNIC's receive filters take into its link, and lets out packets that its \
    transmit filters take; it drops and counts all others that the vNIC sends. Packets that no \
    filter takes go to Linux. The kernel also enforces the rates of each vNIC, and divides a full \
    interface by weight (`ix ctl rate --vnic`).\n\n\
    The command runs until a signal ends it. A vNIC is removed when it is deleted or when its \
    owner (--owner) ends; Linux then gets its packets at once. vNICs have the interface's own \
    Ethernet address. They reach the network, but neither each other nor Linux on this machine.\n\n\
    Examples:\n  \
    ix share eth1 &\n  \
    ix ctl vnic create web --control /run/ix/eth1.share\n  \
    ix ctl filter create 'rx ip service 10.0.0.5' --both --vnic web --holder web \\\n  \
    \u{20}   --control /run/ix/eth1.share\n  \
    ix run --nic afxdp:ixv-web --addr 10.0.0.5/24 ix-echo 64\n  \
    ix ctl vnic create kv --device tap --control /run/ix/eth1.share   # prints what to give --nic\n  \
    ix ctl rate --vnic kv --tx 1Gbit --weight 3 --control /run/ix/eth1.share";

/// Flags of `ix share`.
#[derive(Args, Debug)]
pub struct ShareArgs {
    /// The interface to share
    #[arg(value_name = "IFNAME")]
    pub interface: String,
    /// Path of the control socket for `ix ctl` (default: IFNAME.share in the folder of the other
    /// control sockets)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Most vNICs
    #[arg(long, value_name = "N", default_value_t = Policy::default().vnics_max, value_parser = vnics)]
    pub vnics: usize,
    /// Speed of the interface, such as 10Gbit (default: the speed that it reports, if it does)
    #[arg(long, value_name = "RATE")]
    pub speed: Option<Rate>,
    /// Most queue pairs of a vNIC
    #[arg(long, value_name = "N", default_value_t = Policy::default().queues_max)]
    pub queues: usize,
    /// Most filters that may be granted; each holder may derive 32 more
    #[arg(long, value_name = "N", default_value_t = Policy::default().filters_max)]
    pub filters: usize,
    /// Let filters overlap with those of other holders and with Linux's addresses; the oldest
    /// filter gets the packet
    #[arg(long)]
    pub overlap: bool,
    /// How to write messages
    #[command(flatten)]
    pub log: MessageArgs,
}

/// Serves until a signal ends it.
pub fn main(args: &ShareArgs) -> Result<()> {
    args.log.apply();
    let policy = Policy {
        vnics_max: args.vnics,
        queues_max: args.queues,
        filters_max: args.filters,
        may_overlap: args.overlap,
        ..Policy::default()
    };
    let (interface, control) = (args.interface.clone(), args.control.clone());
    run(&Shared { interface, control, speed: args.speed, policy })
}

fn vnics(text: &str) -> std::result::Result<usize, String> {
    let number = text.parse().ok().filter(|n| (1..=PORTS_MAX).contains(n));
    number.ok_or_else(|| format!("not a number from 1 to {PORTS_MAX}"))
}

//! `ix share`: several dataplanes and Linux on one interface.
use clap::Args;
use ix_broker::share::{Shared, run};
use ix_netdev::PORTS_MAX;
use ix_report::problem::Result;
use ix_vnic::{Policy, Rate};
use std::path::PathBuf;

/// Overview of `ix share`.
pub const HELP: &str = "Shares an interface among several dataplanes, which need not trust each other, and \
    Linux. Each gets a vNIC: a link of its own, for `ix run --nic afxdp:LINK`. The kernel hands what a \
    vNIC's receive filters take into its link, lets out of it what its transmit filters take, and drops \
    and counts all else that it sends. What nobody holds stays Linux's. Runs until it is ended; a vNIC \
    goes when it is deleted or its owner (--owner) ends, and its traffic is Linux's at once. The kernel \
    also holds each vNIC to its rates, and all to their weights while the interface is full \
    (`ix ctl rate --vnic`).\n\n\
    vNICs have the interface's own Ethernet address. They reach the network, but neither each other nor \
    Linux on this machine.\n\n\
    Examples:\n  \
    ix share eth1 &\n  \
    ix ctl vnic create web --control /run/ix/eth1.share\n  \
    ix ctl filter create 'rx ip service 10.0.0.5' --both --vnic web --holder web \\\n  \
    \u{20}   --control /run/ix/eth1.share\n  \
    ix run --nic afxdp:ixv-web --addr 10.0.0.5/24 -- ix-echo 64\n  \
    ix ctl vnic create kv --device tap --control /run/ix/eth1.share   # prints what to give --nic\n  \
    ix ctl rate --vnic kv --tx 1Gbit --weight 3 --control /run/ix/eth1.share";

/// Flags of `ix share`.
#[derive(Args, Debug)]
pub struct ShareArgs {
    /// The interface
    #[arg(value_name = "IFNAME")]
    pub interface: String,
    /// Where to listen for `ix ctl` (default: IFNAME.share where dataplanes' sockets are)
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// vNICs at most
    #[arg(long, value_name = "N", default_value_t = Policy::default().vnics_max, value_parser = vnics)]
    pub vnics: usize,
    /// What the interface carries, as 10Gbit (default: what it says itself, if it does)
    #[arg(long, value_name = "RATE")]
    pub speed: Option<Rate>,
    /// Queue pairs of a vNIC at most
    #[arg(long, value_name = "N", default_value_t = Policy::default().queues_max)]
    pub queues: usize,
    /// Filters that are granted, at most; of each holder's 32 more may be derived
    #[arg(long, value_name = "N", default_value_t = Policy::default().filters_max)]
    pub filters: usize,
    /// Filters may overlap with others' and with Linux: who holds longer gets the packet
    #[arg(long)]
    pub overlap: bool,
}

/// Runs it, until a signal asks for the end.
pub fn main(args: &ShareArgs) -> Result<()> {
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

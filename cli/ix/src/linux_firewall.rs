//! Linux's firewall and an address that IX shares with Linux.
use ix_netdev::firewall_chains;
use ix_report::problem::{Problem, Result};
use ix_sys::say;

/// Why the address of an interface cannot be shared, or may not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// A firewall of Linux has rules there, which do not hold for what is IX's.
    Rules(String),
    /// Linux tells only root.
    Rights,
    /// Linux does not tell.
    Unknown(String),
}

impl Obstacle {
    /// In one line.
    pub fn why(&self) -> String {
        match self {
            Obstacle::Rules(chains) => format!(
                "Linux's firewall does not see packets of the program's ports, and has rules \
                 there: {chains}"
            ),
            Obstacle::Rights => {
                "this needs root's rights over the network (CAP_NET_ADMIN)".to_owned()
            }
            Obstacle::Unknown(why) => why.clone(),
        }
    }

    fn mend(&self) -> &'static str {
        match self {
            Obstacle::Rules(_) => {
                "--ignore-firewall, if no rule is meant for the program's ports, or an address of \
                 IX's own with --addr"
            }
            Obstacle::Rights => "run it as root",
            Obstacle::Unknown(_) => "--ignore-firewall, if Linux has no firewall",
        }
    }
}

/// What a firewall of Linux has to say about sharing the address of an interface: `ix run` and
/// `ix doctor` ask here.
pub fn obstacle(interface: &str) -> Option<Obstacle> {
    match firewall_chains(interface) {
        Ok(chains) if chains.is_empty() => None,
        Ok(chains) => Some(Obstacle::Rules(chains.join(", "))),
        Err(e) if e.errno() == libc::EPERM => Some(Obstacle::Rights),
        Err(e) => Some(Obstacle::Unknown(e.to_string())),
    }
}

/// Refuses an interface for which a firewall of Linux has rules; with `ignored` a line says so.
pub fn check(interface: &str, ignored: bool) -> Result<()> {
    let Some(found) = obstacle(interface) else { return Ok(()) };
    match (&found, ignored) {
        (Obstacle::Rules(_), true) => say!("{} (--ignore-firewall)", found.why()),
        (_, true) => {}
        (_, false) => {
            let what = format!("cannot share the address of Linux on {interface}");
            return Err(Problem::new(what, found.why()).mend(found.mend()));
        }
    }
    Ok(())
}

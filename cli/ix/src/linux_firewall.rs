//! Linux's firewall and an address that IX shares with Linux.
use ix_netdev::firewall_chains;
use ix_report::problem::{Problem, Result};
use ix_sys::say;

/// Refuses an interface for which a firewall of Linux has rules, because they do not hold for what
/// is IX's; with `ignored` a line says so.
pub fn check(interface: &str, ignored: bool) -> Result<()> {
    let what = format!("cannot share the address of Linux on {interface}");
    let chains = match firewall_chains(interface) {
        Ok(chains) if chains.is_empty() => return Ok(()),
        Ok(chains) => chains.join(", "),
        Err(_) if ignored => return Ok(()),
        Err(e) if e.errno() == libc::EPERM => {
            let why = "this needs root's rights over the network (CAP_NET_ADMIN)";
            return Err(Problem::new(what, why).mend("run it as root"));
        }
        Err(e) => {
            return Err(Problem::new(what, e).mend("--ignore-firewall, if Linux has no firewall"));
        }
    };
    let why = format!(
        "Linux's firewall does not see packets of the program's ports, and has rules there: {chains}"
    );
    if ignored {
        say!("{why} (--ignore-firewall)");
        return Ok(());
    }
    let mend = "--ignore-firewall, if no rule is meant for the program's ports, or an address of \
                IX's own with --addr";
    Err(Problem::new(what, why).mend(mend))
}

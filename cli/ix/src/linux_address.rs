//! Addresses that Linux has on the interface that a dataplane is to use. A dataplane with such an
//! address would answer for it and take each of its packets: whatever Linux serves there, the
//! session of who types the command too, would be cut off without a word.
use crate::settings::Settings;
use ix_netdev::Namespace;
use ix_report::problem::{Problem, Result};
use ix_wire::IpAddr;

/// Refuses an address of the dataplane that Linux has on the interface of its device.
pub fn refuse(settings: &Settings) -> Result<()> {
    let wanted = settings.config.host_addrs.iter().zip(settings.interfaces());
    for ((address, prefix), interface) in wanted {
        if !has(&interface, *address) {
            continue;
        }
        let what = format!("cannot use {}", settings.source.addr(&format!("{address}/{prefix}")));
        let why = format!(
            "it is the address of Linux on {interface}: IX would take every packet to it, and cut \
             off what Linux has there, such as ssh"
        );
        let mend = "give an address that no host has, or say --take-address to take this one away \
                    from Linux as a whole";
        return Err(Problem::new(what, why).mend(mend));
    }
    Ok(())
}

/// Whether Linux has an address on an interface. What cannot be asked is found when the device is
/// opened; memif is no interface.
fn has(interface: &str, address: IpAddr) -> bool {
    let look = || {
        let here = Namespace::current().ok()?;
        let link = here.link(interface).ok()??;
        Some(here.addresses(link.index).ok()?.iter().any(|(own, _)| IpAddr::from(*own) == address))
    };
    !interface.is_empty() && look().unwrap_or(false)
}

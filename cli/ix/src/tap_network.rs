//! Networks of a tap that Linux has on another interface too. Linux then sends what is for the
//! dataplane to the other one, where no host answers.
use crate::settings::Settings;
use ix_netdev::{DeviceSpec, Namespace, Way};
use ix_wire::IpAddr;

/// Addresses of networks for documentation and measurements (RFC 5737, RFC 2544), which no host
/// should have in earnest.
const FREE: [[u8; 4]; 3] = [[192, 0, 2, 2], [198, 18, 0, 2], [203, 0, 113, 2]];

/// A line for each address of a tap whose packets Linux sends elsewhere. What cannot be asked is
/// not said: the program runs all the same.
pub fn elsewhere(settings: &Settings) -> Vec<String> {
    let is_tap = |name: &String| {
        let spec = |device: &String| device.parse();
        let taps = settings.devices.iter().map(spec);
        taps.flatten().any(|spec| matches!(spec, DeviceSpec::Tap { name: tap, .. } if tap == *name))
    };
    let Ok(here) = Namespace::current() else { return Vec::new() };
    let all = settings.config.host_addrs.iter().zip(settings.interfaces());
    let of_taps = all.filter(|(_, name)| is_tap(name));
    of_taps.filter_map(|(own, tap)| line(&here, *own, &tap)).collect()
}

fn line(here: &Namespace, (own, prefix): (IpAddr, u8), tap: &str) -> Option<String> {
    let way = here.way_to(own.into()).ok()??;
    let link = here.link(tap).ok()?;
    let is_its = link.is_some_and(|link| way.index == link.index || way.index == link.master);
    // An address of the tap's network makes a route of that length, which the longer one beats.
    if is_its || !way.is_own && way.prefix < prefix {
        return None;
    }
    let links = here.links().ok()?;
    let name = links.into_iter().find(|link| link.index == way.index)?.name;
    let has = match way.is_own {
        true => format!("Linux itself has {own}"),
        false => format!("Linux has a route to {own}/{} by {name}", way.prefix),
    };
    Some(format!(
        "{has}, so what it sends there does not come to {tap}: choose a network that no interface \
         has, such as --addr {}/24",
        free(here)
    ))
}

/// An address to which Linux has no route, but for its default one.
fn free(here: &Namespace) -> IpAddr {
    let is_free = |own: &IpAddr| {
        let way = here.way_to((*own).into());
        way.is_ok_and(|way| way.is_none_or(|Way { prefix, .. }| prefix == 0))
    };
    let mut all = FREE.into_iter().map(IpAddr::v4);
    all.find(is_free).unwrap_or(IpAddr::v4(FREE[0]))
}

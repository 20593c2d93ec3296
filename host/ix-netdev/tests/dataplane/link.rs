//! A link between a dataplane in the test's process and a real Linux peer.
use super::tagger;
use ix_dataplane::Config;
use ix_netdev::{DeviceSpec, OpenOptions, OpenedDevice};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::net::Ipv4Addr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// The interface of Linux in the VLAN of a device with `vlan=5`.
pub const IN_VLAN: &str = "ixv5";

/// A private link whose Linux side has `address`: the namespaces, the Linux side's first, and the
/// opened device, of this kind, with more of its text behind a comma.
pub fn link(
    test: &str,
    kind: &str,
    address: &str,
    config: &Config,
) -> Option<(Vec<Namespace>, OpenedDevice)> {
    let client = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(e) => {
            skip(test, Need::Root, format_args!("over {kind}: {e}"));
            return None;
        }
    };
    let options = OpenOptions {
        addresses: config.host_addrs.iter().map(|(own, _)| *own).collect(),
        flow_hash_key: config.flow_hash_key,
        ..OpenOptions::default()
    };
    let (address, queues): (Ipv4Addr, _) = (address.parse().unwrap(), config.cpus.len());
    let (kind, more) = kind.find(',').map_or((kind, ""), |at| kind.split_at(at));
    let in_vlan = more.contains("vlan=5");
    if kind == "tap" {
        let spec: DeviceSpec = format!("tap:ixt0,queues={queues}{more}").parse().unwrap();
        let opened = client.run(|| ix_netdev::open(&spec, &options)).unwrap();
        client.set_up("ixt0", true).unwrap();
        let at = if in_vlan { join_vlan(&client, "ixt0") } else { "ixt0" };
        client.add_address(at, address, 24).unwrap();
        return Some((vec![client], opened));
    }
    let server = Namespace::new().unwrap();
    let end = |name| VethEnd::new(name).queues(queues as u32);
    server.add_veth(&end("ixs0"), &client, &end("ixc0")).unwrap();
    server.set_up("ixs0", true).unwrap();
    client.set_up("ixc0", true).unwrap();
    let at = if in_vlan { join_vlan(&client, "ixc0") } else { "ixc0" };
    client.add_address(at, address, 24).unwrap();
    server.wait_running("ixs0", PATIENCE).unwrap();
    let spec: DeviceSpec = format!("afxdp:ixs0,queues={queues}{more}").parse().unwrap();
    let opened = server.run(|| ix_netdev::open(&spec, &options)).unwrap();
    Some((vec![client, server], opened))
}

/// Gives Linux its interface in VLAN 5: a link of its own, or what does the same.
fn join_vlan(client: &Namespace, under: &str) -> &'static str {
    let run = |program: &str, words: &str| {
        client.command(program, None).args(words.split(' ')).output().expect(program)
    };
    let made = run("ip", &format!("link add link {under} name {IN_VLAN} type vlan id 5"));
    if !made.status.success() {
        tagger::start(client, under, IN_VLAN, 5);
        return IN_VLAN;
    }
    if under == "ixc0" {
        // A veth hands tags over beside the frames, where no XDP program sees them.
        let output = run("ethtool", &format!("-K {under} txvlan off"));
        assert!(output.status.success(), "{output:?}");
    }
    client.set_up(IN_VLAN, true).unwrap();
    IN_VLAN
}

//! A link between a dataplane in the test's process and a real Linux peer.
use ix_dataplane::Config;
use ix_netdev::{DeviceSpec, OpenOptions, OpenedDevice};
use ix_skip::{Need, skip};
use ix_testbed::{Namespace, VethEnd};
use std::net::Ipv4Addr;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// A private link whose Linux side has `address`: the namespaces, the Linux side's first, and the
/// opened device.
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
        addresses: vec![config.host_addrs[0].0],
        flow_hash_key: config.flow_hash_key,
        ..OpenOptions::default()
    };
    let (address, queues): (Ipv4Addr, _) = (address.parse().unwrap(), config.cpus.len());
    if kind == "tap" {
        let spec: DeviceSpec = format!("tap:ixt0,queues={queues}").parse().unwrap();
        let opened = client.run(|| ix_netdev::open(&spec, &options)).unwrap();
        client.add_address("ixt0", address, 24).unwrap();
        client.set_up("ixt0", true).unwrap();
        return Some((vec![client], opened));
    }
    let server = Namespace::new().unwrap();
    let end = |name| VethEnd::new(name).queues(queues as u32);
    server.add_veth(&end("ixs0"), &client, &end("ixc0")).unwrap();
    client.add_address("ixc0", address, 24).unwrap();
    server.set_up("ixs0", true).unwrap();
    client.set_up("ixc0", true).unwrap();
    server.wait_running("ixs0", PATIENCE).unwrap();
    let spec: DeviceSpec = format!("afxdp:ixs0,queues={queues}").parse().unwrap();
    let opened = server.run(|| ix_netdev::open(&spec, &options)).unwrap();
    Some((vec![client, server], opened))
}

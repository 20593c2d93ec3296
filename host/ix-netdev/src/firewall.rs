//! What of Linux's firewall looks at the packets of an interface. An XDP program has them before,
//! so none of it holds for what is IX's.
use crate::netlink::{Message, Netlink, attributes};
use ix_sys::{Error, netfilter};
use std::fs;

// linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h.
const GET_CHAIN: u16 = 10 << 8 | 4;
const GOT_CHAIN: u16 = 10 << 8 | 3;
/// `struct nfgenmsg` of a request about all families.
const ALL_FAMILIES: [u8; 4] = [0; 4];
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_RULES: u16 = 6;
const HOOK_NUMBER: u16 = 1;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
/// Forwarded packets are not IX's.
const FORWARD: u32 = 2;
const DROP: u32 = 0;
/// Families whose chains see IP packets of an interface (`NFPROTO_…`).
const FAMILIES: [(u8, &str); 4] = [(1, "inet"), (2, "ip"), (10, "ip6"), (NETDEV, "netdev")];
/// Loaded tables of iptables, by the command that lists their rules, and whether it is for IPv6.
const TABLES: [(&str, &str, bool); 2] = [
    ("/proc/thread-self/net/ip_tables_names", "iptables", false),
    ("/proc/thread-self/net/ip6_tables_names", "ip6tables", true),
];
const NETDEV: u8 = 5;

/// The chains that can drop or translate packets of this interface, in the calling thread's network
/// namespace, as `nft` and `iptables` name them. One that has no rules and accepts is not among
/// them.
pub fn firewall_chains(interface: &str) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    // Without nftables there are none of its chains.
    if let Ok(mut netlink) = Netlink::open_netfilter() {
        let message = Message::new(GET_CHAIN, libc::NLM_F_DUMP).put(&ALL_FAMILIES);
        let what = || "cannot ask nftables for its chains".to_owned();
        match netlink.request(message, what) {
            Ok(answers) => {
                let chains = answers.iter().filter(|answer| answer.kind == GOT_CHAIN);
                found.extend(chains.filter_map(|answer| chain(&answer.body, interface)));
            }
            // The kernel has none (EINVAL), or has been told not to load it (EOPNOTSUPP).
            Err(e) if matches!(e.errno(), libc::EINVAL | libc::EOPNOTSUPP) => {}
            Err(e) => return Err(e),
        }
    }
    for (file, command, is_v6) in TABLES {
        let tables = fs::read_to_string(file).unwrap_or_default();
        let has_rules =
            |table: &&str| netfilter::iptables_rules(table, is_v6).is_ok_and(|rules| rules > 0);
        found.extend(tables.lines().filter(has_rules).map(|table| format!("{command} -t {table}")));
    }
    Ok(found)
}

/// The name of a chain of nftables that may stop packets of this interface.
fn chain(body: &[u8], interface: &str) -> Option<String> {
    let (header, rest) = body.split_at_checked(ALL_FAMILIES.len())?;
    let (family, family_name) = FAMILIES.into_iter().find(|(family, _)| *family == header[0])?;
    let of = |wanted: u16| attributes(rest).find(|(kind, _)| *kind == wanted).map(|(_, v)| v);
    let number = |bytes: &[u8]| bytes.try_into().ok().map(u32::from_be_bytes);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    // One without a hook is a part of others.
    let hook = of(CHAIN_HOOK)?;
    let in_hook = |wanted: u16| attributes(hook).find(|(kind, _)| *kind == wanted).map(|(_, v)| v);
    if family != NETDEV && in_hook(HOOK_NUMBER).and_then(number) == Some(FORWARD) {
        return None;
    }
    let one = in_hook(HOOK_DEVICE).into_iter();
    let several = in_hook(HOOK_DEVICES).into_iter().flat_map(|all| attributes(all).map(|(_, v)| v));
    let devices: Vec<String> = one.chain(several).map(text).collect();
    if !devices.is_empty() && devices.iter().all(|device| device != interface) {
        return None;
    }
    let drops = of(CHAIN_POLICY).and_then(number) == Some(DROP);
    let rules = of(CHAIN_RULES).and_then(number).unwrap_or(0);
    let name =
        || Some(format!("{family_name} {} {}", text(of(CHAIN_TABLE)?), text(of(CHAIN_NAME)?)));
    if drops || rules > 0 { name() } else { None }
}

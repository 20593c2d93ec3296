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
const GET_RULE: u16 = 10 << 8 | 7;
const GOT_RULE: u16 = 10 << 8 | 6;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// Of `meta`: where it loads something to, and what; of `cmp`: what it compares, how, with what.
const META_TO: u16 = 1;
const META_KEY: u16 = 2;
const CMP_FROM: u16 = 1;
const CMP_HOW: u16 = 2;
const CMP_DATA: u16 = 3;
const CMP_EQUAL: u32 = 0;
const DATA_VALUE: u16 = 1;
/// `iifname` and `oifname`.
const NAMES_OF_INTERFACES: [u32; 2] = [6, 7];
/// Space for a name (`IFNAMSIZ`); a shorter one is the start of names.
const NAME_MAX: usize = 16;
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
        let ask = |kind| Message::new(kind, libc::NLM_F_DUMP).put(&ALL_FAMILIES);
        let what = || "cannot ask nftables for its chains".to_owned();
        match netlink.request(ask(GET_CHAIN), what) {
            Ok(answers) => {
                let chains = answers.iter().filter(|answer| answer.kind == GOT_CHAIN);
                let chains: Vec<_> =
                    chains.filter_map(|answer| chain(&answer.body, interface)).collect();
                let rules = match chains.is_empty() {
                    true => Vec::new(),
                    false => netlink.request(ask(GET_RULE), what)?,
                };
                let rules = rules.iter().filter(|answer| answer.kind == GOT_RULE);
                let concern: Vec<_> =
                    rules.filter_map(|answer| rule(&answer.body, interface)).collect();
                let concerns = |chain: &Chain| chain.drops || concern.contains(&chain.name);
                found.extend(chains.into_iter().filter(concerns).map(|chain| chain.name));
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

/// A chain of nftables that sees packets of an interface.
struct Chain {
    /// As `nft` names it.
    name: String,
    /// Packets that no rule is about are dropped.
    drops: bool,
}

/// Reads one; `None`: it sees none of them, or has no rules and accepts.
fn chain(body: &[u8], interface: &str) -> Option<Chain> {
    let (header, rest) = body.split_at_checked(ALL_FAMILIES.len())?;
    let (family, _) = FAMILIES.into_iter().find(|(family, _)| *family == header[0])?;
    // One without a hook is a part of others.
    let hook = of(rest, CHAIN_HOOK)?;
    if family != NETDEV && of(hook, HOOK_NUMBER).and_then(number) == Some(FORWARD) {
        return None;
    }
    let one = of(hook, HOOK_DEVICE).into_iter();
    let several = of(hook, HOOK_DEVICES).into_iter();
    let several = several.flat_map(|all| attributes(all).map(|(_, v)| v));
    let devices: Vec<String> = one.chain(several).map(text).collect();
    if !devices.is_empty() && devices.iter().all(|device| device != interface) {
        return None;
    }
    let drops = of(rest, CHAIN_POLICY).and_then(number) == Some(DROP);
    let rules = of(rest, CHAIN_RULES).and_then(number).unwrap_or(0);
    let name = name(header, rest, CHAIN_TABLE, CHAIN_NAME)?;
    (drops || rules > 0).then_some(Chain { name, drops })
}

/// The name of the chain of a rule that may be about packets of this interface; `None`: the rule
/// names another one.
fn rule(body: &[u8], interface: &str) -> Option<String> {
    let (header, rest) = body.split_at_checked(ALL_FAMILIES.len())?;
    // Where the name of an interface is.
    let mut holds_name = None;
    for (_, expression) in of(rest, RULE_EXPRESSIONS).into_iter().flat_map(attributes) {
        let data = of(expression, EXPRESSION_DATA).unwrap_or_default();
        let of = |wanted| of(data, wanted);
        match of_text(expression, EXPRESSION_NAME).as_deref() {
            Some("meta") => {
                let is_name = of(META_KEY).and_then(number);
                let is_name = is_name.is_some_and(|key| NAMES_OF_INTERFACES.contains(&key));
                let to = of(META_TO).filter(|_| is_name);
                holds_name = to.or(holds_name.filter(|held| Some(*held) != of(META_TO)));
            }
            Some("cmp") if holds_name.is_some() && of(CMP_FROM) == holds_name => {
                let value = of(CMP_DATA).and_then(|data| self::of(data, DATA_VALUE))?;
                let same = match value.len() {
                    0..NAME_MAX => interface.as_bytes().starts_with(value),
                    _ => text(value) == interface,
                };
                let wants_same = of(CMP_HOW).and_then(number) == Some(CMP_EQUAL);
                if same != wants_same {
                    return None;
                }
            }
            // Another value may be there after it.
            _ => holds_name = None,
        }
    }
    name(header, rest, RULE_TABLE, RULE_CHAIN)
}

/// A chain as `nft` names it.
fn name(header: &[u8], rest: &[u8], table: u16, chain: u16) -> Option<String> {
    let (_, family) = FAMILIES.into_iter().find(|(family, _)| *family == header[0])?;
    Some(format!("{family} {} {}", of_text(rest, table)?, of_text(rest, chain)?))
}

/// The first attribute of a kind.
fn of(all: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(all).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

fn of_text(all: &[u8], wanted: u16) -> Option<String> {
    of(all, wanted).map(text)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

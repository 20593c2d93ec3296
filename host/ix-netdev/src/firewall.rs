//! What of Linux's firewall looks at the packets of an interface. An XDP program has them before,
//! so none of it holds for what is IX's.
use crate::netlink::{Message, Netlink, attribute, attributes, number_of_network as number, text};
use ix_sys::{Error, netfilter, socket};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time from the first change of a set of rules until it is read.
const SETTLES_IN: Duration = Duration::from_millis(500);

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
/// What may stand before the name of an interface in a rule that is about this interface alone: it
/// only reads or counts.
const READ_ONLY: [&str; 5] = ["meta", "payload", "bitwise", "ct", "counter"];
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_RULES: u16 = 6;
const HOOK_NUMBER: u16 = 1;
const HOOK_DEVICE: u16 = 3;
const HOOK_DEVICES: u16 = 4;
/// Of several devices: a name, or since Linux 6.17 the start of names.
const DEVICE_PREFIX: u16 = 2;
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
    // Without nftables there are none of its chains.
    let mut found = match Netlink::open_netfilter() {
        Ok(mut netlink) => nftables_chains(&mut netlink, interface)?,
        Err(_) => Vec::new(),
    };
    for (file, command, is_v6) in TABLES {
        let tables = fs::read_to_string(file).unwrap_or_default();
        let has_rules =
            |table: &&str| netfilter::iptables_rules(table, is_v6).is_ok_and(|rules| rules > 0);
        found.extend(tables.lines().filter(has_rules).map(|table| format!("{command} -t {table}")));
    }
    Ok(found)
}

/// Those of nftables.
fn nftables_chains(netlink: &mut Netlink, interface: &str) -> Result<Vec<String>, Error> {
    let ask = |kind| Message::new(kind, libc::NLM_F_DUMP).put(&ALL_FAMILIES);
    let what = || "cannot ask nftables for its chains".to_owned();
    let answers = match netlink.request(ask(GET_CHAIN), what) {
        // The kernel has none (EINVAL), or has been told not to load it (EOPNOTSUPP).
        Err(e) if matches!(e.errno(), libc::EINVAL | libc::EOPNOTSUPP) => return Ok(Vec::new()),
        answers => answers?,
    };
    let chains = answers.iter().filter(|answer| answer.kind == GOT_CHAIN);
    let chains: Vec<_> = chains.filter_map(|answer| chain(&answer.body, interface)).collect();
    if chains.is_empty() {
        return Ok(Vec::new());
    }
    let rules = netlink.request(ask(GET_RULE), what)?;
    let rules = rules.iter().filter(|answer| answer.kind == GOT_RULE);
    let concern: Vec<_> = rules.filter_map(|answer| rule(&answer.body, interface)).collect();
    let concerns = |chain: &Chain| chain.drops || concern.contains(&chain.name);
    Ok(chains.into_iter().filter(concerns).map(|chain| chain.name).collect())
}

/// Reports chains of nftables that get rules while IX shares the address of an interface. Rules of
/// the older iptables come without a word from the kernel.
pub struct FirewallWatch {
    news: OwnedFd,
    asks: Netlink,
    interface: String,
    /// The chains that are there, as they were last read.
    known: Vec<String>,
    /// When they are read again, if something has changed: a set of rules comes in many messages.
    read_at: Option<Instant>,
}

impl FirewallWatch {
    /// Watches the calling thread's network namespace. What is there now is known.
    pub fn new(interface: &str) -> Result<FirewallWatch, Error> {
        let news = netfilter::watch();
        let news = news.map_err(|e| Error::new("cannot watch nftables", e))?;
        let mut asks = Netlink::open_netfilter()?;
        let known = nftables_chains(&mut asks, interface)?;
        let interface = interface.to_owned();
        Ok(FirewallWatch { news, asks, interface, known, read_at: None })
    }

    /// A descriptor that polls readable when [`FirewallWatch::new_chains`] has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// When to call [`FirewallWatch::new_chains`] though nothing is readable.
    pub fn due(&self) -> Option<Duration> {
        self.read_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Chains that can drop or translate packets of the interface, and could not when this was last
    /// asked. Never blocks longer than Linux takes to list them.
    pub fn new_chains(&mut self) -> Vec<String> {
        let mut buffer = vec![0u8; 32 << 10];
        loop {
            match socket::receive(self.fd(), &mut buffer, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                // Some were lost: all is read again anyway.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(_) => break,
            }
            self.read_at.get_or_insert_with(|| Instant::now() + SETTLES_IN);
        }
        if self.read_at.is_none_or(|at| Instant::now() < at) {
            return Vec::new();
        }
        self.read_at = None;
        // Linux may not tell now: the next change asks again.
        let Ok(now) = nftables_chains(&mut self.asks, &self.interface) else { return Vec::new() };
        let new = now.iter().filter(|chain| !self.known.contains(chain)).cloned().collect();
        self.known = now;
        new
    }
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
    let hook = attribute(rest, CHAIN_HOOK)?;
    if family != NETDEV && attribute(hook, HOOK_NUMBER).and_then(number) == Some(FORWARD) {
        return None;
    }
    let one = attribute(hook, HOOK_DEVICE).map(|name| (HOOK_DEVICE, name));
    let several = attribute(hook, HOOK_DEVICES).into_iter().flat_map(attributes);
    let is_it = |(kind, name)| match kind {
        DEVICE_PREFIX => interface.starts_with(&text(name)),
        _ => text(name) == interface,
    };
    let mut devices = one.into_iter().chain(several).peekable();
    if devices.peek().is_some() && !devices.any(is_it) {
        return None;
    }
    let drops = attribute(rest, CHAIN_POLICY).and_then(number) == Some(DROP);
    let rules = attribute(rest, CHAIN_RULES).and_then(number).unwrap_or(0);
    let name = name(header, rest, CHAIN_TABLE, CHAIN_NAME)?;
    (drops || rules > 0).then_some(Chain { name, drops })
}

/// The name of the chain of a rule that may be about packets of this interface; `None`: the rule
/// names another one.
fn rule(body: &[u8], interface: &str) -> Option<String> {
    let (header, rest) = body.split_at_checked(ALL_FAMILIES.len())?;
    // Where the name of an interface is.
    let mut holds_name = None;
    for (_, expression) in attribute(rest, RULE_EXPRESSIONS).into_iter().flat_map(attributes) {
        let data = attribute(expression, EXPRESSION_DATA).unwrap_or_default();
        let of = |wanted| attribute(data, wanted);
        match of_text(expression, EXPRESSION_NAME).as_deref() {
            Some("meta") => {
                let is_name = of(META_KEY).and_then(number);
                let is_name = is_name.is_some_and(|key| NAMES_OF_INTERFACES.contains(&key));
                let to = of(META_TO).filter(|_| is_name);
                holds_name = to.or(holds_name.filter(|held| Some(*held) != of(META_TO)));
            }
            Some("cmp") if holds_name.is_some() && of(CMP_FROM) == holds_name => {
                let value = of(CMP_DATA).and_then(|data| attribute(data, DATA_VALUE));
                let Some(value) = value else { break };
                // A name ends with zeros (`nft` writes sixteen bytes) or one (`iptables`); without
                // one it is the start of names.
                let same = match value.contains(&0) {
                    true => text(value) == interface,
                    false => interface.as_bytes().starts_with(value),
                };
                let wants_same = of(CMP_HOW).and_then(number) == Some(CMP_EQUAL);
                if same != wants_same {
                    return None;
                }
            }
            Some("cmp") => {}
            // Another value may be there after it.
            Some(other) if READ_ONLY.contains(&other) => holds_name = None,
            // It may already say what becomes of the packet.
            _ => break,
        }
    }
    name(header, rest, RULE_TABLE, RULE_CHAIN)
}

/// A chain as `nft` names it.
fn name(header: &[u8], rest: &[u8], table: u16, chain: u16) -> Option<String> {
    let (_, family) = FAMILIES.into_iter().find(|(family, _)| *family == header[0])?;
    Some(format!("{family} {} {}", of_text(rest, table)?, of_text(rest, chain)?))
}

fn of_text(all: &[u8], wanted: u16) -> Option<String> {
    attribute(all, wanted).map(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    /// A rule of `inet guard arrives`, of these expressions.
    fn is_named(expressions: impl FnOnce(Message) -> Message) -> bool {
        let body = Message::new(GOT_RULE, 0).put(&[1, 0, 0, 0]);
        let named = body.text(RULE_TABLE, "guard").text(RULE_CHAIN, "arrives");
        let bytes = named.nest(RULE_EXPRESSIONS, expressions).finish(1);
        let (.., body) = messages(&bytes).next().expect("one message");
        rule(body, "eth0").is_some_and(|chain| chain == "inet guard arrives")
    }

    fn plain(rule: Message, name: &str) -> Message {
        rule.nest(1, |rule| rule.text(EXPRESSION_NAME, name))
    }

    /// `iifname VALUE`, or with `!=`.
    fn comes_by(rule: Message, value: &[u8], how: u32) -> Message {
        let word = |number: u32| number.to_be_bytes();
        let rule = rule.nest(1, |rule| {
            rule.text(EXPRESSION_NAME, "meta").nest(EXPRESSION_DATA, |meta| {
                meta.attr(META_TO, &word(1)).attr(META_KEY, &word(NAMES_OF_INTERFACES[0]))
            })
        });
        rule.nest(1, |rule| {
            rule.text(EXPRESSION_NAME, "cmp").nest(EXPRESSION_DATA, |cmp| {
                let cmp = cmp.attr(CMP_FROM, &word(1)).attr(CMP_HOW, &word(how));
                cmp.nest(CMP_DATA, |data| data.attr(DATA_VALUE, value))
            })
        })
    }

    #[test]
    fn a_rule_is_about_the_interface_unless_it_names_another() {
        const DIFFERENT: u32 = 1;
        let padded = |name: &str| [name.as_bytes(), &vec![0; 16 - name.len()]].concat();
        // As `nft` and as `iptables` write a name, and the start of names.
        let own = [padded("eth0"), b"eth0\0".to_vec(), b"eth".to_vec()];
        let others = [padded("eth01"), b"eth\0".to_vec(), b"docker".to_vec(), padded("eth")];
        for (names, are_own) in [(&own[..], true), (&others, false)] {
            for name in names {
                assert_eq!(is_named(|rule| comes_by(rule, name, CMP_EQUAL)), are_own, "{name:?}");
                assert_eq!(is_named(|rule| comes_by(rule, name, DIFFERENT)), !are_own, "{name:?}");
            }
        }
        assert!(is_named(|rule| plain(rule, "immediate")));
        // What only reads may come first; a verdict holds for all interfaces.
        let after = |first| is_named(|rule| comes_by(plain(rule, first), b"docker", CMP_EQUAL));
        assert!(!after("payload") && after("lookup") && after("immediate"));
    }

    #[test]
    fn a_chain_of_devices_is_theirs_alone() {
        let is_named = |kind, name| {
            let body = Message::new(GOT_CHAIN, 0).put(&[NETDEV, 0, 0, 0]);
            let named = body.text(CHAIN_TABLE, "t").text(CHAIN_NAME, "c");
            let hooked = named.nest(CHAIN_HOOK, |hook| {
                hook.nest(HOOK_DEVICES, |all| all.text(1, "lo").text(kind, name))
            });
            let bytes = hooked.attr(CHAIN_POLICY, &DROP.to_be_bytes()).finish(1);
            let (.., body) = messages(&bytes).next().expect("one message");
            chain(body, "eth0").is_some_and(|chain| chain.name == "netdev t c" && chain.drops)
        };
        assert!(is_named(1, "eth0") && is_named(DEVICE_PREFIX, "eth"));
        assert!(!is_named(1, "eth") && !is_named(DEVICE_PREFIX, "docker"));
    }
}

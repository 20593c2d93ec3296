//! A flame graph of a profile: who calls whom, each as wide as its instructions.
//!
//! Callgrind knows what a function spends in each that it calls, but not for which of its own
//! callers. So each caller has that part of a function that it has of all calls to it.
use crate::callgrind::Profile;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The functions at the bottom: a turn of the client and one of the server (`pair.rs`).
const ROOTS: [&str; 2] = ["client_turn", "server_turn"];
/// Deepest stack.
const DEPTH_MAX: usize = 40;
/// What is narrower than this part of a message is left out.
const PART_MIN: f64 = 0.0005;

/// Writes the graph as SVG.
pub fn write(path: &Path, title: &str, profile: &Profile, messages: u64) -> Result<()> {
    let stacks = stacks(profile, messages);
    let mut options = inferno::flamegraph::Options::default();
    options.title = title.to_owned();
    options.count_name = "instructions a message".to_owned();
    let file =
        std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    inferno::flamegraph::from_lines(&mut options, stacks.iter().map(String::as_str), file)
        .with_context(|| format!("cannot draw {}", path.display()))
}

/// The calls out of each function.
type Calls<'a> = BTreeMap<&'a str, Vec<(&'a str, f64)>>;

struct Walk<'a> {
    calls: Calls<'a>,
    own: &'a BTreeMap<String, u64>,
    /// Instructions of a function and all that it calls.
    inclusive: BTreeMap<&'a str, f64>,
    smallest: f64,
    messages: f64,
    lines: Vec<String>,
}

/// One line for each stack: the functions, from the bottom, and its instructions a message.
fn stacks(profile: &Profile, messages: u64) -> Vec<String> {
    let mut calls = Calls::new();
    let mut inclusive: BTreeMap<&str, f64> =
        profile.own.iter().map(|(name, own)| (name.as_str(), *own as f64)).collect();
    for ((from, to), count) in profile.calls.iter().filter(|((from, to), _)| from != to) {
        calls.entry(from).or_default().push((to, *count as f64));
        *inclusive.entry(from).or_default() += *count as f64;
    }
    let roots = calls.keys().copied().filter(|name| ROOTS.iter().any(|root| name.contains(root)));
    let roots: Vec<&str> = roots.collect();
    let whole: f64 = roots.iter().map(|root| inclusive[root]).sum();
    let mut walk = Walk {
        calls,
        own: &profile.own,
        inclusive,
        smallest: whole * PART_MIN,
        messages: messages as f64,
        lines: Vec::new(),
    };
    for root in roots {
        walk.visit(&mut vec![root], 1.0);
    }
    walk.lines
}

impl<'a> Walk<'a> {
    /// `part`: of all that the last function of the stack does, how much is for this stack.
    fn visit(&mut self, stack: &mut Vec<&'a str>, part: f64) {
        let Some(&function) = stack.last() else { return };
        let own = self.own.get(function).copied().unwrap_or(0) as f64 * part;
        let each = (own / self.messages).round() as u64;
        if each > 0 {
            let names: Vec<String> = stack.iter().map(|name| short(name)).collect();
            self.lines.push(format!("{} {each}", names.join(";")));
        }
        if stack.len() == DEPTH_MAX {
            return;
        }
        for (callee, count) in self.calls.get(function).cloned().unwrap_or_default() {
            let count = count * part;
            let all = self.inclusive.get(callee).copied().unwrap_or(0.0);
            if count >= self.smallest && all > 0.0 && !stack.contains(&callee) {
                stack.push(callee);
                self.visit(stack, (count / all).min(1.0));
                stack.pop();
            }
        }
    }
}

/// The last two parts of a function's name, without what would part a stack.
fn short(name: &str) -> String {
    let name = name.replace(';', ",");
    let plain = name.split('<').next().unwrap_or(&name).trim_end_matches("::");
    if plain.is_empty() {
        return name;
    }
    let cut = plain.rmatch_indices("::").nth(1).map_or(0, |(at, _)| at + 2);
    plain[cut..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_parted_among_its_callers() {
        let own = [("ix_cost::pair::server_turn", 1000), ("a::b::one", 2000), ("a::b::two", 400)];
        let own = own.map(|(name, count)| (name.to_owned(), count)).into();
        let edge = |from: &str, to: &str, count| ((from.to_owned(), to.to_owned()), count);
        let calls = [
            edge("ix_cost::pair::server_turn", "a::b::one", 2100),
            edge("ix_cost::pair::server_turn", "a::b::two", 300),
            edge("a::b::one", "a::b::two", 100),
        ];
        let profile = Profile { own, calls: calls.into(), ..Profile::default() };
        let mut lines = stacks(&profile, 10);
        lines.sort();
        let expected = [
            "pair::server_turn 100",
            "pair::server_turn;b::one 200",
            "pair::server_turn;b::one;b::two 10",
            "pair::server_turn;b::two 30",
        ];
        assert_eq!(lines, expected);
    }
}

//! The map of a message: what it costs by function, and which lines of source reach for data that
//! is not in the caches.
use crate::callgrind::{CACHES, Counts, LINE_BYTES, Place};
use crate::scenario::Scenario;
use crate::{Cost, flame, measure};
use anyhow::Result;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What runs less often than once in so many messages is no part of a message.
const RARE: u64 = 100;

/// Measures these scenarios with simulated caches, prints the map of each, and with a folder writes
/// a flame graph of each into it.
pub fn print(scenarios: &[&'static Scenario], top: usize, folder: Option<&Path>) -> Result<()> {
    println!("simulated caches: {CACHES}");
    for scenario in scenarios {
        let cost = measure(scenario, true)?;
        println!("\n{}: {}, by function, for each message", scenario.name, scenario.what);
        let by_function = cost.profile.counts_by(|place| place.function_name().to_owned());
        let code = cost.profile.code_lines(cost.messages / RARE);
        let lines: BTreeMap<&str, usize> = code.iter().map(|(f, at)| (*f, at.len())).collect();
        table(&cost, by_function, top, |counts| counts.instructions, &lines);
        let all = code.into_values().flatten().collect::<BTreeSet<u64>>().len() as u64;
        println!(
            "code that runs at least once in {RARE} messages: {all} lines of {LINE_BYTES} bytes, \
             {} KB",
            (all * LINE_BYTES) >> 10
        );
        println!("\n{}: lines of source whose data is not in the first cache", scenario.name);
        let by_line = cost.profile.counts_by(Place::line_and_function);
        let misses = |counts: &Counts| counts.data_misses + counts.far_misses;
        table(&cost, by_line, top, misses, &BTreeMap::new());
        if let Some(folder) = folder {
            let path = folder.join(format!("{}.svg", scenario.name));
            let title = format!("{}: {}", scenario.name, scenario.what);
            flame::write(&path, &title, &cost.profile, cost.messages)?;
            println!("\nflame graph: {}", path.display());
        }
    }
    Ok(())
}

fn table(
    cost: &Cost,
    all: BTreeMap<String, Counts>,
    top: usize,
    weight: impl Fn(&Counts) -> u64,
    code_lines: &BTreeMap<&str, usize>,
) {
    let whole = all.values().copied().reduce(Counts::plus).unwrap_or_default();
    let mut rows: Vec<(String, Counts)> = all.into_iter().collect();
    rows.retain(|(_, counts)| weight(counts) > 0);
    rows.sort_by_key(|(_, counts)| Reverse(weight(counts)));
    rows.truncate(top);
    println!(
        "{:>12} {:>9} {:>9} {:>9} {:>9} {:>10}",
        "instructions", "accesses", "I1 miss", "D1 miss", "L2 miss", "code lines"
    );
    for (name, counts) in [("all".to_owned(), whole)].into_iter().chain(rows) {
        let Counts { instructions, accesses, code_misses, data_misses, far_misses } = counts;
        let each = |count: u64| count as f64 / cost.messages as f64;
        let lines = code_lines.get(name.as_str()).map_or(String::new(), usize::to_string);
        println!(
            "{:>12.1} {:>9.1} {:>9.2} {:>9.2} {:>9.2} {lines:>10}  {name}",
            each(instructions),
            each(accesses),
            each(code_misses),
            each(data_misses),
            each(far_misses)
        );
    }
}

//! The map of a message: what it costs by function, and which lines of source reach for data that
//! is not in the caches.
use crate::callgrind::{CACHES, Counts, Place};
use crate::scenario::Scenario;
use crate::{Cost, flame, measure};
use anyhow::Result;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;

/// Measures these scenarios with simulated caches, prints the map of each, and with a folder writes
/// a flame graph of each into it.
pub fn print(scenarios: &[&'static Scenario], top: usize, folder: Option<&Path>) -> Result<()> {
    println!("simulated caches: {CACHES}");
    for scenario in scenarios {
        let cost = measure(scenario, true)?;
        println!("\n{}: {}, by function, for each message", scenario.name, scenario.what);
        let by_function = cost.profile.counts_by(|place| place.function_name().to_owned());
        table(&cost, by_function, top, |counts| counts.instructions);
        println!("\n{}: lines of source whose data is not in the first cache", scenario.name);
        let by_line = cost.profile.counts_by(Place::line_and_function);
        table(&cost, by_line, top, |counts| counts.data_misses + counts.far_misses);
        if let Some(folder) = folder {
            let path = folder.join(format!("{}.svg", scenario.name));
            let title = format!("{}: {}", scenario.name, scenario.what);
            flame::write(&path, &title, &cost.profile, cost.messages)?;
            println!("\nflame graph: {}", path.display());
        }
    }
    Ok(())
}

fn table(cost: &Cost, all: BTreeMap<String, Counts>, top: usize, weight: impl Fn(&Counts) -> u64) {
    let whole = all.values().copied().reduce(Counts::plus).unwrap_or_default();
    let mut rows: Vec<(String, Counts)> = all.into_iter().collect();
    rows.retain(|(_, counts)| weight(counts) > 0);
    rows.sort_by_key(|(_, counts)| Reverse(weight(counts)));
    rows.truncate(top);
    println!(
        "{:>12} {:>9} {:>9} {:>9} {:>9}",
        "instructions", "accesses", "I1 miss", "D1 miss", "L2 miss"
    );
    for (name, counts) in [("all".to_owned(), whole)].into_iter().chain(rows) {
        let Counts { instructions, accesses, code_misses, data_misses, far_misses } = counts;
        let each = |count: u64| count as f64 / cost.messages as f64;
        println!(
            "{:>12.1} {:>9.1} {:>9.2} {:>9.2} {:>9.2}  {name}",
            each(instructions),
            each(accesses),
            each(code_misses),
            each(data_misses),
            each(far_misses)
        );
    }
}

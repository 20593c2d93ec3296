//! Placement: the threads of a dataplane for a configuration, and the flow groups that move.
use crate::policy::Gain;
use crate::{Configuration, Machine, Observation, Step, ThreadState};
use std::collections::{BTreeMap, BTreeSet};

/// Load of a silent group, relative to the mean: so that silent groups are spread evenly, too.
const SILENT_GROUP: f64 = 0.01;

/// The threads for a configuration, with as few changes as possible: cores in use stay in use, and
/// of the others the first come first. Only cores in `may_use` count. The result may have fewer
/// threads than asked for.
pub(crate) fn choose_threads(
    seen: &Observation,
    machine: &Machine,
    configuration: &Configuration,
    may_use: &BTreeSet<usize>,
) -> BTreeSet<u16> {
    // A core's threads in the order in which they are taken: running ones first.
    let mut cores: BTreeMap<usize, Vec<(bool, u16)>> = BTreeMap::new();
    for (number, thread) in seen.threads.iter().enumerate() {
        let Some(core) = machine.core_of(thread.cpu) else { continue };
        if may_use.contains(&core) && thread.is_ours() {
            let idle = thread.state != ThreadState::Elastic;
            cores.entry(core).or_default().push((idle, number as u16));
        }
    }
    let mut cores: Vec<Vec<(bool, u16)>> = cores.into_values().collect();
    cores.iter_mut().for_each(|threads| threads.sort_unstable());
    // The core of the lowest running thread goes last.
    cores.sort_unstable();
    let chosen = cores.iter().take(configuration.cores as usize);
    chosen
        .flat_map(|threads| threads.iter().take(configuration.threads_per_core as usize))
        .map(|&(_, number)| number)
        .collect()
}

/// Threads that run the cycle now.
pub(crate) fn running(seen: &Observation) -> BTreeSet<u16> {
    seen.elastic().map(|thread| thread as u16).collect()
}

/// Capacity of each thread of a set: hardware threads of one core share it.
pub(crate) fn weights(
    seen: &Observation,
    machine: &Machine,
    threads: &BTreeSet<u16>,
    gain: &Gain,
) -> BTreeMap<u16, f64> {
    let core = |thread: u16| machine.core_of(seen.threads[usize::from(thread)].cpu);
    let weight = |&thread: &u16| {
        let together = threads.iter().filter(|&&other| core(other) == core(thread)).count();
        (thread, gain.thread_weight(together))
    };
    threads.iter().map(weight).collect()
}

/// Moves flow groups so that only threads in `weights` own any, each with a load in proportion to
/// its weight. Groups of a thread that stays move only if it has more than its share, heaviest
/// first, so that few move.
pub(crate) fn balance(seen: &Observation, weights: &BTreeMap<u16, f64>) -> Vec<Step> {
    let total: f64 = seen.groups.iter().map(|g| g.load.max(0.0)).sum();
    let count = seen.groups.len().max(1) as f64;
    // Any positive number works if all are silent.
    let least = if total > 0.0 { total / count * SILENT_GROUP } else { 1.0 };
    let load = |group: usize| seen.groups[group].load.max(0.0) + least;
    let all: f64 = (0..seen.groups.len()).map(load).sum();
    let weight: f64 = weights.values().sum();
    let share = |thread: u16| all * weights[&thread] / weight;

    let mut owned: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (group, seen) in seen.groups.iter().enumerate() {
        owned.entry(seen.thread).or_default().push(group);
    }
    let mut room: BTreeMap<u16, f64> = BTreeMap::new();
    let mut moving: Vec<usize> = Vec::new();
    for (&thread, groups) in &mut owned {
        if !weights.contains_key(&thread) {
            moving.append(groups);
            continue;
        }
        let mut surplus = groups.iter().map(|&g| load(g)).sum::<f64>() - share(thread);
        groups.sort_by(|&a, &b| load(b).total_cmp(&load(a)).then(a.cmp(&b)));
        for &group in groups.iter() {
            // A group of twice the surplus or more would leave as large a gap.
            if load(group) < 2.0 * surplus {
                surplus -= load(group);
                moving.push(group);
            }
        }
        room.insert(thread, -surplus);
    }
    for &thread in weights.keys() {
        room.entry(thread).or_insert_with(|| share(thread));
    }
    moving.sort_by(|&a, &b| load(b).total_cmp(&load(a)).then(a.cmp(&b)));
    let mut moves: BTreeMap<(u16, u16), Vec<u16>> = BTreeMap::new();
    for group in moving {
        let most = room.iter().max_by(|a, b| a.1.total_cmp(b.1).then(b.0.cmp(a.0)));
        let Some((&to, _)) = most else { break };
        *room.entry(to).or_default() -= load(group);
        let from = seen.groups[group].thread;
        if from != to {
            moves.entry((from, to)).or_default().push(group as u16);
        }
    }
    let step = |((from, to), mut groups): ((u16, u16), Vec<u16>)| {
        groups.sort_unstable();
        Step::Migrate { from, to, groups }
    };
    moves.into_iter().map(step).collect()
}

/// How uneven the load is: the highest ratio of a thread's load to its share; 1 is even.
pub(crate) fn unevenness(seen: &Observation, weights: &BTreeMap<u16, f64>) -> f64 {
    let total: f64 = seen.groups.iter().map(|g| g.load.max(0.0)).sum();
    let weight: f64 = weights.values().sum();
    if total <= 0.0 || weight <= 0.0 {
        return 1.0;
    }
    let loads = weights.iter().map(|(&thread, w)| {
        let owned = seen.groups.iter().filter(|g| g.thread == thread);
        owned.map(|g| g.load.max(0.0)).sum::<f64>() / (total * w / weight)
    });
    loads.fold(1.0, f64::max)
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;

//! The share of time in which a hardware thread was busy, as Linux counts it: spinning is busy,
//! too.

/// A hardware thread, observed since some moment.
pub struct Busy {
    cpu: usize,
    before: (u64, u64),
}

impl Busy {
    /// Starts the observation.
    pub fn of(cpu: usize) -> Option<Busy> {
        Some(Busy { cpu, before: ticks(cpu)? })
    }

    /// The share of time since then in which it was busy.
    pub fn share(self) -> Option<f64> {
        let after = ticks(self.cpu)?;
        let (busy, idle) = (after.0 - self.before.0, after.1 - self.before.1);
        (busy > 0).then(|| busy as f64 / (busy + idle) as f64)
    }
}

/// Busy and idle ticks of a hardware thread.
fn ticks(cpu: usize) -> Option<(u64, u64)> {
    busy_and_idle(&std::fs::read_to_string("/proc/stat").ok()?, cpu)
}

/// A hardware thread's numbers in `/proc/stat`, ticks: user, nice, system, idle, iowait, irq,
/// softirq, steal.
pub fn numbers_of(stat: &str, cpu: usize) -> Option<[u64; 8]> {
    let name = format!("cpu{cpu} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name))?;
    let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
    let mut eight = [0; 8];
    for number in &mut eight {
        *number = numbers.next()??;
    }
    Some(eight)
}

fn busy_and_idle(stat: &str, cpu: usize) -> Option<(u64, u64)> {
    let [user, nice, system, idle, iowait, irq, softirq, _] = numbers_of(stat, cpu)?;
    Some((user + nice + system + irq + softirq, idle + iowait))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_threads_time_is_read() {
        let stat = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 40 5 6 7 8 0 0\ncpu1 0 0 0 7 0 0 1 0\n";
        assert_eq!(busy_and_idle(stat, 0), Some((19, 45)));
        assert_eq!(busy_and_idle(stat, 1), Some((1, 7)));
        assert_eq!(busy_and_idle(stat, 2), None);
    }
}

//! Clocks through cpufreq, turbo, and energy preference.
//!
//! A core is held at a clock by setting the least and the most that it may choose to the same
//! value, which every driver and governor obeys. `intel_pstate` and later drivers have no governor
//! that takes a frequency (`userspace`).
use super::files::{FileError, Tree};
use crate::Clock;
use std::collections::BTreeMap;

const CPUS: &str = "sys/devices/system/cpu";
/// Distance of clocks if the driver lists none, kHz.
const STEP_KHZ: u32 = 100_000;
/// `acpi-cpufreq` lists turbo as the nominal clock plus this, kHz.
const TURBO_MARK_KHZ: u32 = 1_000;

/// How turbo is switched.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Switch {
    file: &'static str,
    on: &'static str,
    off: &'static str,
}

const SWITCHES: [Switch; 2] = [
    Switch { file: "sys/devices/system/cpu/intel_pstate/no_turbo", on: "0", off: "1" },
    Switch { file: "sys/devices/system/cpu/cpufreq/boost", on: "1", off: "0" },
];

/// The clocks of a machine.
#[derive(Debug)]
pub struct Clocks {
    tree: Tree,
    /// Clocks that all cores can be held at, ascending.
    khz: Vec<u32>,
    /// Why clocks cannot be set, although there are some.
    forbidden: Option<String>,
    switch: Option<&'static Switch>,
    /// Former contents of files that were written.
    before: BTreeMap<String, String>,
}

impl Clocks {
    /// Finds what these hardware threads can do.
    pub fn new(tree: &Tree, cpus: &[u32]) -> Clocks {
        let khz = cpus.iter().map(|&cpu| steps(tree, cpu)).reduce(|all, own| {
            // Cores may be of several kinds: the clocks that all of them have.
            all.into_iter().filter(|khz| own.contains(khz)).collect()
        });
        let mut khz = khz.unwrap_or_default();
        let limits = cpus.iter().map(|&cpu| tree.may_write(file(cpu, "scaling_max_freq")));
        let mut forbidden = None;
        if let Some(Err(e)) = limits.filter(|_| !khz.is_empty()).find(Result::is_err) {
            forbidden = Some(e.to_string());
            khz.clear();
        }
        let switch = SWITCHES.iter().find(|switch| tree.has(switch.file));
        let switch = switch.filter(|s| !khz.is_empty() && tree.may_write(s.file).is_ok());
        Clocks { tree: tree.clone(), khz, forbidden, switch, before: BTreeMap::new() }
    }

    /// Clocks that cores can be held at, ascending; empty if there are none.
    pub fn khz(&self) -> &[u32] {
        &self.khz
    }

    /// Whether turbo can be switched.
    pub fn turbo(&self) -> bool {
        self.switch.is_some()
    }

    /// The clock that a hardware thread is held at; `None`: none, or unknown.
    pub fn held(&self, cpu: u32) -> Option<Clock> {
        let number = |name: &str| self.tree.number(file(cpu, name)).map(|khz| khz as u32);
        let (least, most) = (number("scaling_min_freq")?, number("scaling_max_freq")?);
        let nominal = *self.khz.last()?;
        let is_on =
            |switch: &Switch| self.tree.read(switch.file).is_ok_and(|text| text == switch.on);
        match self.switch {
            Some(switch) if most > nominal && is_on(switch) => Some(Clock::Turbo),
            _ if least == most => Some(Clock::Khz(least)),
            _ => None,
        }
    }

    /// Holds hardware threads at a clock.
    pub fn hold(&mut self, cpus: &[u32], clock: Clock) -> Result<(), FileError> {
        if clock == Clock::Turbo
            && let Some(switch) = self.switch
        {
            self.set(switch.file.to_owned(), switch.on)?;
        }
        for &cpu in cpus {
            let limit = |name: &str| self.tree.number(file(cpu, name)).map(|khz| khz as u32);
            let nominal = self.khz.last().copied().unwrap_or(0);
            let fastest = limit("cpuinfo_max_freq").unwrap_or(nominal);
            let (least, most) = match clock {
                Clock::Khz(khz) => (khz, khz),
                Clock::Turbo => (nominal, fastest),
            };
            // The least must never be above the most, also between the two writes.
            let names = match limit("scaling_max_freq") {
                Some(now) if most < now => {
                    [("scaling_min_freq", least), ("scaling_max_freq", most)]
                }
                _ => [("scaling_max_freq", most), ("scaling_min_freq", least)],
            };
            for (name, khz) in names {
                self.set(file(cpu, name), &khz.to_string())?;
            }
            self.prefer_performance(cpu);
        }
        Ok(())
    }

    /// The energy performance preference is a hint: if it cannot be set, it stays.
    fn prefer_performance(&mut self, cpu: u32) {
        let name = file(cpu, "energy_performance_preference");
        if self.tree.has(&name) {
            let _ = self.set(name, "performance");
        }
    }

    fn set(&mut self, name: String, text: &str) -> Result<(), FileError> {
        let now = self.tree.read(&name)?;
        if now == text {
            return Ok(());
        }
        self.tree.write(&name, text)?;
        self.before.entry(name).or_insert(now);
        Ok(())
    }

    /// Restores the former state.
    pub fn restore(&mut self) {
        for (name, text) in std::mem::take(&mut self.before) {
            // Of a pair of limits the first may have to wait for the second.
            if self.tree.write(&name, &text).is_err() {
                self.before.insert(name, text);
            }
        }
        for (name, text) in std::mem::take(&mut self.before) {
            let _ = self.tree.write(name, &text);
        }
    }

    /// Why clocks or turbo cannot be set.
    pub fn missing(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if self.khz.is_empty() {
            let folder = self.tree.path(format!("{CPUS}/cpu0/cpufreq"));
            let none =
                || format!("no cpufreq at {} (a virtual machine has none)", folder.display());
            lines.push(("clocks", self.forbidden.clone().unwrap_or_else(none)));
        } else if self.switch.is_none() {
            let names: Vec<_> =
                SWITCHES.iter().map(|s| self.tree.path(s.file).display().to_string()).collect();
            lines.push(("turbo", format!("no writable switch at {}", names.join(" or "))));
        }
        lines
    }
}

fn file(cpu: u32, name: &str) -> String {
    format!("{CPUS}/cpu{cpu}/cpufreq/{name}")
}

/// Clocks that a hardware thread can be held at, ascending, without turbo.
fn steps(tree: &Tree, cpu: u32) -> Vec<u32> {
    let number = |name: &str| tree.number(file(cpu, name)).map(|khz| khz as u32);
    if number("scaling_min_freq").is_none() || number("scaling_max_freq").is_none() {
        return Vec::new();
    }
    if let Ok(text) = tree.read(file(cpu, "scaling_available_frequencies")) {
        let mut khz: Vec<u32> = text.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        khz.sort_unstable();
        khz.dedup();
        if let [.., nominal, turbo] = khz[..]
            && turbo == nominal + TURBO_MARK_KHZ
        {
            khz.pop();
        }
        return khz;
    }
    let (Some(least), Some(most)) = (number("cpuinfo_min_freq"), number("cpuinfo_max_freq")) else {
        return Vec::new();
    };
    let cppc = tree.number(format!("{CPUS}/cpu{cpu}/acpi_cppc/nominal_freq"));
    let nominal = number("base_frequency").or(cppc.map(|mhz| mhz as u32 * 1000)).unwrap_or(most);
    let nominal = nominal.clamp(least, most);
    (least..=nominal).step_by(STEP_KHZ as usize).chain([nominal]).fold(
        Vec::new(),
        |mut all, khz| {
            if all.last() != Some(&khz) {
                all.push(khz);
            }
            all
        },
    )
}

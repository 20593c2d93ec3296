//! Energy of the processor packages: RAPL, through powercap.
use super::files::Tree;

const ZONES: &str = "sys/class/powercap";

/// One package's counter.
#[derive(Debug)]
struct Zone {
    file: String,
    /// Value at which it wraps to 0, µJ.
    range_uj: u64,
    last_uj: u64,
}

/// Energy counters of all packages.
#[derive(Debug)]
pub struct Energy {
    tree: Tree,
    zones: Vec<Zone>,
    total_uj: u64,
    power: Option<(u64, u64)>,
    /// Why there are none.
    missing: Option<String>,
}

impl Energy {
    /// Opens them. Only packages: they include their parts, and `psys` counts more.
    pub fn new(tree: &Tree) -> Energy {
        let mut zones = Vec::new();
        let mut missing = None;
        for zone in tree.names(ZONES) {
            let folder = format!("{ZONES}/{zone}");
            // `intel-rapl:0` is a package, `intel-rapl:0:1` a part of it; `intel-rapl-mmio:0` is
            // the same package again.
            let is_zone = zone.strip_prefix("intel-rapl:").is_some_and(|n| !n.contains(':'));
            let name = tree.read(format!("{folder}/name")).unwrap_or_default();
            if !is_zone || !name.starts_with("package") {
                continue;
            }
            let file = format!("{folder}/energy_uj");
            let range_uj = tree.number(format!("{folder}/max_energy_range_uj"));
            match (tree.read(&file), range_uj) {
                (Ok(text), Some(range_uj)) => {
                    let last_uj = text.parse().unwrap_or(0);
                    zones.push(Zone { file, range_uj, last_uj });
                }
                (Err(e), _) => missing = Some(e.to_string()),
                (_, None) => missing = Some(format!("{folder} has no max_energy_range_uj")),
            }
        }
        if zones.is_empty() && missing.is_none() {
            let folder = tree.path(ZONES);
            missing = Some(format!("no RAPL package below {}", folder.display()));
        }
        Energy { tree: tree.clone(), zones, total_uj: 0, power: None, missing }
    }

    /// Why energy is not counted, or not of all packages.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// Energy of all packages since the counters were opened, J. `None` if there are none. Call it
    /// at least every few minutes, before a counter wraps twice.
    pub fn joules(&mut self) -> Option<f64> {
        for zone in &mut self.zones {
            let Some(now_uj) = self.tree.number(&zone.file) else { continue };
            // A counter wraps from its range to 0.
            let since = match now_uj.checked_sub(zone.last_uj) {
                Some(since) => since,
                None => zone.range_uj.saturating_sub(zone.last_uj) + now_uj,
            };
            zone.last_uj = now_uj;
            self.total_uj += since;
        }
        (!self.zones.is_empty()).then_some(self.total_uj as f64 / 1e6)
    }

    /// Mean power of all packages since the last call, W; `None` at the first call.
    pub fn watts(&mut self, now_us: u64) -> Option<f64> {
        self.joules()?;
        let before = self.power.replace((now_us, self.total_uj));
        let (then_us, then_uj) = before?;
        let us = now_us.checked_sub(then_us).filter(|us| *us > 0)?;
        Some((self.total_uj - then_uj) as f64 / us as f64)
    }
}

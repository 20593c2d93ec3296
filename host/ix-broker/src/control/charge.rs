//! Who is in charge of a dataplane: at most one controller, and what operators ask of it.
//!
//! A controller reports once a second at least, through the control socket like everybody else, and
//! hears in the answer what policy it shall have. So a controller that dies is forgotten by itself,
//! and two that know nothing of each other cannot both be in charge.
use super::Refusal;
use ix_controller::Policy;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One that has said nothing for so long is not in charge any more.
const SILENT: Duration = Duration::from_secs(3);

/// What a controller says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Its process.
    pub pid: u32,
    /// Name of the policy that this dataplane has.
    pub policy: String,
    /// The bound on the queueing delay, µs.
    pub slo_us: f64,
    /// The rung, counted from 1; 0 while there is none.
    pub rung: usize,
    /// How many there are.
    pub rungs: usize,
    /// The rung in words.
    pub configuration: String,
    /// What it did last, in words.
    pub last: String,
    /// Power of the machine, W, where it can be had.
    pub power_w: Option<f64>,
}

/// What an operator asks of the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wish {
    /// Another number, another wish; 0: none.
    pub serial: u64,
    /// A policy, as TOML; none: as it is.
    pub policy: Option<String>,
    /// A bound on the queueing delay, µs; none: the policy's.
    pub slo_us: Option<f64>,
}

/// The broker's knowledge of it.
#[derive(Debug, Default)]
pub struct Charge {
    report: Option<(Report, Instant)>,
    wish: Wish,
}

impl Charge {
    /// A controller reports; hears what it shall do.
    pub fn report(&mut self, report: &Report, now: Instant) -> Result<Value, Refusal> {
        if let Some(other) = self.current(now).filter(|other| other.pid != report.pid) {
            return Err(Refusal::Controlled(other.pid));
        }
        // One that has just come gets no wishes of its predecessor's time.
        if self.report.as_ref().is_none_or(|(old, _)| old.pid != report.pid) {
            self.wish = Wish { serial: self.wish.serial, ..Wish::default() };
        }
        self.report = Some((report.clone(), now));
        Ok(json!(self.wish))
    }

    /// Another policy, another bound, or both.
    pub fn wish(
        &mut self,
        policy: Option<&str>,
        slo_us: Option<f64>,
        now: Instant,
    ) -> Result<Value, Refusal> {
        let report = self.current(now).ok_or(Refusal::NoController)?;
        let nonsense = |why: String| Refusal::BadRequest(why);
        let text = policy.map(str::to_owned).or_else(|| self.wish.policy.clone());
        let parsed = text.as_deref().map(Policy::parse).transpose();
        let parsed = parsed.map_err(|e| nonsense(format!("policy: {e}")))?;
        if let Some(slo_us) = slo_us {
            let any = Policy::built_in("minmax").map(|any| any.with_slo_us(slo_us));
            any.transpose().map_err(|e| nonsense(e.to_string()))?;
        }
        let name = parsed.map_or(report.policy.clone(), |policy| policy.name);
        let answer = json!({ "controller": report.pid, "policy": name, "slo_us": slo_us });
        // A policy comes with its own bound, unless another is named.
        let slo_us = slo_us.or(self.wish.slo_us.filter(|_| policy.is_none()));
        self.wish = Wish { serial: self.wish.serial + 1, policy: text, slo_us };
        Ok(answer)
    }

    /// The controller in charge, for `status`.
    pub fn to_json(&self, now: Instant) -> Value {
        json!(self.current(now))
    }

    fn current(&self, now: Instant) -> Option<&Report> {
        let alive = |at: Instant| now.saturating_duration_since(at) < SILENT;
        self.report.as_ref().filter(|(_, at)| alive(*at)).map(|(report, _)| report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(pid: u32) -> Report {
        Report { pid, policy: "energy".to_owned(), slo_us: 300.0, ..Report::default() }
    }

    #[test]
    fn one_is_in_charge_until_it_falls_silent() {
        let (mut charge, start) = (Charge::default(), Instant::now());
        assert!(charge.to_json(start).is_null());
        charge.report(&report(1), start).expect("the first");
        let later = start + SILENT / 2;
        assert_eq!(charge.report(&report(2), later), Err(Refusal::Controlled(1)));
        charge.report(&report(1), later).expect("it still is");
        assert_eq!(charge.report(&report(2), start + SILENT), Err(Refusal::Controlled(1)));
        charge.report(&report(2), later + SILENT).expect("the first is gone");
        assert_eq!(charge.to_json(later + SILENT)["pid"], 2);
        assert!(charge.to_json(later + SILENT * 2).is_null());
    }

    #[test]
    fn wishes_reach_the_controller_and_no_other() {
        let (mut charge, now) = (Charge::default(), Instant::now());
        assert_eq!(charge.wish(None, Some(100.0), now), Err(Refusal::NoController));
        assert_eq!(charge.report(&report(1), now).expect("hears")["serial"], 0);
        charge.wish(None, Some(100.0), now).expect("fine");
        let heard = charge.report(&report(1), now).expect("hears");
        assert_eq!((&heard["serial"], &heard["slo_us"]), (&json!(1), &json!(100.0)));
        let (_, minmax) = ix_controller::policy::BUILT_IN[2];
        let answer = charge.wish(Some(minmax), None, now).expect("fine");
        assert_eq!(answer["policy"], "minmax");
        let heard = charge.report(&report(1), now).expect("hears");
        assert!(heard["slo_us"].is_null(), "a policy comes with its own");
        charge.wish(None, Some(50.0), now).expect("fine");
        let heard = charge.report(&report(1), now).expect("hears");
        assert_eq!((&heard["serial"], heard["policy"].is_string()), (&json!(3), true));
        let heard = charge.report(&report(2), now + SILENT).expect("hears");
        assert_eq!((&heard["serial"], &heard["policy"]), (&json!(3), &Value::Null));
    }

    #[test]
    fn nonsense_is_refused_before_it_gets_there() {
        let (mut charge, now) = (Charge::default(), Instant::now());
        charge.report(&report(1), now).expect("in charge");
        for (policy, slo_us, says) in [
            (None, Some(0.0), "slo_us: 0 is not"),
            (Some("slo_us = 1"), None, "policy: line 1: missing field"),
        ] {
            let refusal = charge.wish(policy, slo_us, now).expect_err(says);
            assert!(refusal.to_string().contains(says), "{refusal}");
        }
        assert_eq!(charge.report(&report(1), now).expect("hears")["serial"], 0);
    }
}

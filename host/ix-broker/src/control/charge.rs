//! Who is in charge of a dataplane: at most one controller, and what operators ask of it.
//!
//! A controller reports once a second at least, through the control socket like everybody else, and
//! hears in the answer what policy it shall have. So a controller that dies is forgotten by itself,
//! and two that know nothing of each other cannot both be in charge.
use ix_controller::Policy;
use ix_proto::control::{PolicySet, Refusal, Report, Wish};
use std::time::{Duration, Instant};

/// One that has said nothing for so long is not in charge any more.
const SILENT: Duration = Duration::from_secs(3);

/// The broker's knowledge of it.
#[derive(Debug, Default)]
pub struct Charge {
    report: Option<(Report, Instant)>,
    wish: Wish,
}

impl Charge {
    /// A controller reports; hears what it shall do.
    pub fn report(&mut self, report: &Report, now: Instant) -> Result<Wish, Refusal> {
        if let Some(other) = self.current(now).filter(|other| other.pid != report.pid) {
            return Err(Refusal::Controlled(other.pid));
        }
        // One that has just come gets no wishes of its predecessor's time.
        if self.report.as_ref().is_none_or(|(old, _)| old.pid != report.pid) {
            self.wish = Wish { serial: self.wish.serial, ..Wish::default() };
        }
        self.report = Some((report.clone(), now));
        Ok(self.wish.clone())
    }

    /// Another policy, another bound, or both.
    pub fn wish(
        &mut self,
        policy: Option<&str>,
        slo_us: Option<f64>,
        now: Instant,
    ) -> Result<PolicySet, Refusal> {
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
        let answer = PolicySet { controller: report.pid, policy: name, slo_us };
        // A policy comes with its own bound, unless another is named.
        let slo_us = slo_us.or(self.wish.slo_us.filter(|_| policy.is_none()));
        self.wish = Wish { serial: self.wish.serial + 1, policy: text, slo_us };
        Ok(answer)
    }

    /// The controller in charge.
    pub fn current(&self, now: Instant) -> Option<&Report> {
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
        assert!(charge.current(start).is_none());
        charge.report(&report(1), start).expect("the first");
        let later = start + SILENT / 2;
        assert_eq!(charge.report(&report(2), later), Err(Refusal::Controlled(1)));
        charge.report(&report(1), later).expect("it still is");
        assert_eq!(charge.report(&report(2), start + SILENT), Err(Refusal::Controlled(1)));
        charge.report(&report(2), later + SILENT).expect("the first is gone");
        assert_eq!(charge.current(later + SILENT).map(|report| report.pid), Some(2));
        assert!(charge.current(later + SILENT * 2).is_none());
    }

    #[test]
    fn wishes_reach_the_controller_and_no_other() {
        let (mut charge, now) = (Charge::default(), Instant::now());
        assert_eq!(charge.wish(None, Some(100.0), now), Err(Refusal::NoController));
        assert_eq!(charge.report(&report(1), now).expect("hears").serial, 0);
        charge.wish(None, Some(100.0), now).expect("fine");
        let heard = charge.report(&report(1), now).expect("hears");
        assert_eq!((heard.serial, heard.slo_us), (1, Some(100.0)));
        let (_, minmax) = ix_controller::policy::BUILT_IN[2];
        let answer = charge.wish(Some(minmax), None, now).expect("fine");
        assert_eq!(answer.policy, "minmax");
        let heard = charge.report(&report(1), now).expect("hears");
        assert!(heard.slo_us.is_none(), "a policy comes with its own");
        charge.wish(None, Some(50.0), now).expect("fine");
        let heard = charge.report(&report(1), now).expect("hears");
        assert_eq!((heard.serial, heard.policy.is_some()), (3, true));
        let heard = charge.report(&report(2), now + SILENT).expect("hears");
        assert_eq!((heard.serial, heard.policy), (3, None));
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
        assert_eq!(charge.report(&report(1), now).expect("hears").serial, 0);
    }
}

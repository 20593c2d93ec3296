//! The controller of a dataplane: there is at most one. And what operators ask of it.
//!
//! A controller reports at least once a second, through the control socket like all clients, and
//! the answer tells it which policy to follow. So a controller that has died is forgotten, and two
//! controllers that do not know of each other cannot both control a dataplane.
use ix_controller::Policy;
use ix_proto::control::{PolicyRequest, PolicySet, Refusal, Report};
use std::time::{Duration, Instant};

/// Time after its last report at which a controller is no longer active.
const SILENT: Duration = Duration::from_secs(3);

/// The controller of a dataplane, if there is one.
#[derive(Debug, Default)]
pub struct ActiveController {
    report: Option<(Report, Instant)>,
    request: PolicyRequest,
}

impl ActiveController {
    /// Accepts a controller's report; returns what operators have asked of it.
    pub fn report(&mut self, report: &Report, now: Instant) -> Result<PolicyRequest, Refusal> {
        if let Some(other) = self.current(now).filter(|other| other.pid != report.pid) {
            return Err(Refusal::Controlled(other.pid));
        }
        // A new controller does not get the requests to the one before it.
        if self.report.as_ref().is_none_or(|(old, _)| old.pid != report.pid) {
            self.request =
                PolicyRequest { serial: self.request.serial, ..PolicyRequest::default() };
        }
        self.report = Some((report.clone(), now));
        Ok(self.request.clone())
    }

    /// Asks the controller for another policy, another bound, or both.
    pub fn request(
        &mut self,
        policy: Option<&str>,
        slo_us: Option<f64>,
        now: Instant,
    ) -> Result<PolicySet, Refusal> {
        let report = self.current(now).ok_or(Refusal::NoController)?;
        let nonsense = |why: String| Refusal::BadRequest(why);
        let text = policy.map(str::to_owned).or_else(|| self.request.policy.clone());
        let parsed = text.as_deref().map(Policy::parse).transpose();
        let parsed = parsed.map_err(|e| nonsense(format!("policy: {e}")))?;
        if let Some(slo_us) = slo_us {
            let any = Policy::built_in("minmax").map(|any| any.with_slo_us(slo_us));
            any.transpose().map_err(|e| nonsense(e.to_string()))?;
        }
        let name = parsed.map_or(report.policy.clone(), |policy| policy.name);
        let answer = PolicySet { controller: report.pid, policy: name, slo_us };
        // A policy has its own bound, unless the request names another.
        let slo_us = slo_us.or(self.request.slo_us.filter(|_| policy.is_none()));
        self.request = PolicyRequest { serial: self.request.serial + 1, policy: text, slo_us };
        Ok(answer)
    }

    /// The active controller's report.
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
    fn one_is_active_until_it_is_silent() {
        let (mut controller, start) = (ActiveController::default(), Instant::now());
        assert!(controller.current(start).is_none());
        controller.report(&report(1), start).expect("the first");
        let later = start + SILENT / 2;
        assert_eq!(controller.report(&report(2), later), Err(Refusal::Controlled(1)));
        controller.report(&report(1), later).expect("it still is");
        assert_eq!(controller.report(&report(2), start + SILENT), Err(Refusal::Controlled(1)));
        controller.report(&report(2), later + SILENT).expect("the first is gone");
        assert_eq!(controller.current(later + SILENT).map(|report| report.pid), Some(2));
        assert!(controller.current(later + SILENT * 2).is_none());
    }

    #[test]
    fn requests_reach_the_controller_and_no_other() {
        let (mut controller, now) = (ActiveController::default(), Instant::now());
        assert_eq!(controller.request(None, Some(100.0), now), Err(Refusal::NoController));
        assert_eq!(controller.report(&report(1), now).expect("accepted").serial, 0);
        controller.request(None, Some(100.0), now).expect("fine");
        let request = controller.report(&report(1), now).expect("accepted");
        assert_eq!((request.serial, request.slo_us), (1, Some(100.0)));
        let (_, minmax) = ix_controller::policy::BUILT_IN[2];
        let answer = controller.request(Some(minmax), None, now).expect("fine");
        assert_eq!(answer.policy, "minmax");
        let request = controller.report(&report(1), now).expect("accepted");
        assert!(request.slo_us.is_none(), "a policy comes with its own");
        controller.request(None, Some(50.0), now).expect("fine");
        let request = controller.report(&report(1), now).expect("accepted");
        assert_eq!((request.serial, request.policy.is_some()), (3, true));
        let request = controller.report(&report(2), now + SILENT).expect("accepted");
        assert_eq!((request.serial, request.policy), (3, None));
    }

    #[test]
    fn nonsense_is_refused_before_it_gets_there() {
        let (mut controller, now) = (ActiveController::default(), Instant::now());
        controller.report(&report(1), now).expect("active");
        for (policy, slo_us, says) in [
            (None, Some(0.0), "slo_us: 0 is not"),
            (Some("slo_us = 1"), None, "policy: line 1: missing field"),
        ] {
            let refusal = controller.request(policy, slo_us, now).expect_err(says);
            assert!(refusal.to_string().contains(says), "{refusal}");
        }
        assert_eq!(controller.report(&report(1), now).expect("accepted").serial, 0);
    }
}

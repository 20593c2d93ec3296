//! The source of a policy: a file, which may change, or one that is built in.
use ix_controller::Policy;
use ix_controller::policy::BUILT_IN;
use ix_proto::control::PolicyRequest;
use ix_report::problem::{Problem, Result};
use std::path::PathBuf;

/// A policy's text, and the bound that replaces the policy's own.
pub(super) struct PolicySource {
    name: String,
    /// `None`: the policy is built in.
    file: Option<PathBuf>,
    slo_us: Option<f64>,
    /// The text that was read last, even if it is invalid.
    text: String,
}

impl PolicySource {
    pub(super) fn open(name: &str, slo_us: Option<f64>) -> Result<PolicySource> {
        let file = match BUILT_IN.iter().any(|(known, _)| *known == name) {
            true => None,
            false => Some(PathBuf::from(name)),
        };
        let mut source = PolicySource { name: name.to_owned(), file, slo_us, text: String::new() };
        source.text = source.load()?;
        Ok(source)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Parses the text that was read last.
    pub(super) fn read(&self) -> Result<Policy> {
        let problem = |e: ix_controller::policy::PolicyError| {
            let key = if e.key.is_empty() { String::new() } else { format!("{}: ", e.key) };
            let what = format!("cannot use the policy {}", self.name);
            Problem::new(what, format!("{key}{}", e.why)).mend(e.mend)
        };
        let policy = Policy::parse(&self.text).map_err(problem)?;
        let Some(slo_us) = self.slo_us else { return Ok(policy) };
        policy
            .with_slo_us(slo_us)
            .map_err(|e| Problem::new("cannot use --slo-us", e.why).mend(e.mend))
    }

    /// The new policy, if the file's text has changed.
    pub(super) fn changed(&mut self) -> Option<Result<Policy>> {
        self.file.as_ref()?;
        let text = match self.load() {
            // An editor may be replacing the file.
            Err(_) if self.text.is_empty() => return None,
            Err(problem) => {
                self.text.clear();
                return Some(Err(problem));
            }
            Ok(text) => text,
        };
        if text == self.text {
            return None;
        }
        self.text = text;
        Some(self.read())
    }

    fn load(&self) -> Result<String> {
        let Some(file) = &self.file else {
            let text = BUILT_IN.iter().find(|(known, _)| *known == self.name);
            return Ok(text.map(|(_, text)| (*text).to_owned()).unwrap_or_default());
        };
        let names = BUILT_IN.map(|(name, _)| name).join(", ");
        std::fs::read_to_string(file).map_err(|e| {
            Problem::new(format!("cannot read the policy {}", file.display()), e)
                .mend(format!("give a file, or one of {names}"))
        })
    }
}

/// The policy of one dataplane after its operator's request.
pub(super) fn requested(policy: &Policy, request: &PolicyRequest) -> Result<Policy> {
    let problem = |e| Problem::new("cannot use the operator's policy", e);
    let policy = match &request.policy {
        Some(text) => Policy::parse(text).map_err(problem)?,
        None => policy.clone(),
    };
    let Some(slo_us) = request.slo_us else { return Ok(policy) };
    // It is for this dataplane alone, so it also replaces the bound of its program.
    let mut policy = policy.with_slo_us(slo_us).map_err(problem)?;
    policy.dataplanes.iter_mut().for_each(|exception| exception.slo_us = None);
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_read_again_and_nonsense_is_told_once() {
        let name = format!("ix-policy-{}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        let (_, energy) = BUILT_IN[0];
        std::fs::write(&path, energy).expect("written");
        let mut source =
            PolicySource::open(&path.display().to_string(), Some(100.0)).expect("there");
        assert_eq!(source.read().expect("right").slo_us, 100.0);
        assert!(source.changed().is_none());
        std::fs::write(&path, energy.replace("cores = 1", "cores = 0")).expect("written");
        let line = source.changed().expect("changed").expect_err("nonsense").to_string();
        assert!(line.contains(&path.display().to_string()), "{line}");
        assert!(line.contains("base.cores: 0 is not valid here; write a number"), "{line}");
        assert!(source.changed().is_none(), "once");
        std::fs::write(&path, energy.replace("300", "200")).expect("written");
        assert_eq!(source.changed().expect("changed").expect("right").slo_us, 100.0);
        std::fs::remove_file(&path).expect("gone");
        assert!(source.changed().expect("changed").is_err());
        assert!(source.changed().is_none(), "once");
        std::fs::write(&path, energy).expect("back");
        assert!(source.changed().expect("changed").is_ok());
        std::fs::remove_file(&path).expect("gone");
        let line = PolicySource::open("nowhere.toml", None).err().expect("missing").to_string();
        assert!(line.ends_with("give a file, or one of energy, consolidation, minmax"), "{line}");
        let wrong = PolicySource::open("energy", Some(-1.0)).expect("known").read();
        let line = wrong.expect_err("nonsense").to_string();
        assert!(line.starts_with("cannot use --slo-us: -1 is not between"), "{line}");
    }

    #[test]
    fn wishes_stand_over_what_the_file_says() {
        let policy = Policy::built_in("energy").expect("known");
        let request = |policy: Option<&str>, slo_us| PolicyRequest {
            serial: 1,
            policy: policy.map(str::to_owned),
            slo_us,
        };
        assert_eq!(requested(&policy, &request(None, Some(50.0))).expect("fine").slo_us, 50.0);
        let minmax = requested(&policy, &request(Some(BUILT_IN[2].1), None)).expect("fine");
        assert_eq!((minmax.name.as_str(), minmax.slo_us), ("minmax", 300.0));
        assert!(requested(&policy, &request(Some("x"), None)).is_err());
    }
}

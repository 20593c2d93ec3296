//! Processes of the program that ask for the dataplane: they wait for their turn, and share it.
use super::Running;
use crate::attached::{ASKERS_MAX, refuse};
use ix_problem::Result;
use ix_proto::crossing::ATTACHMENTS_MAX;
use ix_sys::process::Process;
use ix_sys::say;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most lines about processes that are none of the program's: they may ask without end.
const FOREIGN_TOLD_MAX: u32 = 16;
/// How long a process of the program waits while too many others share the dataplane.
const HANDOVER: Duration = Duration::from_secs(2);

/// A process that has asked for the dataplane.
pub(super) struct Asking {
    pub(super) process: Arc<Process>,
    /// What its hello said.
    asker: u64,
    /// When it is refused.
    until: Instant,
}

impl Running {
    /// Tells the process that has asked for the dataplane what they share, if there was no room in
    /// the channel. One that does not read for too long has no dataplane.
    pub(super) fn tell_again(&mut self) -> Result<()> {
        let Some(apart) = &mut self.apart else { return Ok(()) };
        let told = apart.tell_again(&self.child);
        self.is_told(told)
    }

    /// A process of the program asks for a dataplane.
    pub(super) fn ask(&mut self, process: Process, asker: u64) -> Result<()> {
        self.queue(process.into(), asker);
        self.begin_waiting()
    }

    pub(super) fn queue(&mut self, process: Arc<Process>, asker: u64) {
        if self.apart.is_some() && !crate::kin::descends_from_us(&process) {
            let pid = process.pid();
            let why = format!("process {pid} is not one of the program's");
            if self.foreign_told < FOREIGN_TOLD_MAX {
                self.foreign_told += 1;
                let last = self.foreign_told == FOREIGN_TOLD_MAX;
                let rest =
                    if last { "; further ones are only counted (`ix ctl status`)" } else { "" };
                say!("{why}, and gets no part of its dataplane{rest}");
            }
            self.refuse(asker, why);
        } else if self.waiting.len() >= ASKERS_MAX {
            let why = format!("{ASKERS_MAX} processes of the program wait for its dataplane");
            self.refuse(asker, why);
        } else {
            let until = Instant::now() + HANDOVER;
            self.waiting.push_back(Asking { process, asker, until });
        }
    }

    /// Tells a process why it gets no part of a dataplane.
    pub(super) fn refuse(&mut self, asker: u64, why: String) {
        match &mut self.apart {
            Some(apart) => apart.attached().refuse(&self.child, asker, why),
            None => refuse(&self.child, asker, why),
        }
    }

    /// Serves processes that have asked, in order: one shares the dataplane that runs, or gets
    /// another one if nobody has one. Those whose number is not free yet wait behind all others.
    pub(super) fn begin_waiting(&mut self) -> Result<()> {
        let mut later = Vec::new();
        let served = self.serve_waiting(&mut later);
        self.waiting.extend(later);
        served
    }

    /// The part of [`Self::begin_waiting`] that may fail: adds those that wait behind the others.
    fn serve_waiting(&mut self, later: &mut Vec<Asking>) -> Result<()> {
        while let Some(asking) = self.waiting.pop_front() {
            if asking.process.has_ended() {
                continue;
            }
            let shared = self.apart.as_mut().filter(|apart| apart.is_shared());
            let Some(apart) = shared else {
                self.child.inherited_by(asking.process);
                self.equip(asking.asker)?;
                continue;
            };
            let attached = apart.attached();
            let has_one = attached.has(&asking.process);
            let may_wait = Instant::now() < asking.until || attached.is_joining();
            if has_one && may_wait {
                later.push(asking);
                continue;
            }
            if attached.may_join() && !has_one {
                match attached.join(&self.child, asking.process.clone(), asking.asker) {
                    Ok(()) => {}
                    // It has just ended, or has not read what it was told before.
                    Err(why)
                        if (!attached.may_join() || why.kind() == ErrorKind::WouldBlock)
                            && Instant::now() < asking.until =>
                    {
                        self.waiting.push_front(asking);
                        return Ok(());
                    }
                    Err(why) => {
                        let why = format!("cannot share the dataplane with it: {why}");
                        self.refuse(asking.asker, why);
                    }
                }
            } else if may_wait {
                self.waiting.push_front(asking);
                return Ok(());
            } else {
                let why = match has_one {
                    true => "this process shares the dataplane already".to_owned(),
                    false => format!(
                        "{ATTACHMENTS_MAX} processes of the program share its dataplane already, \
                         and no more can"
                    ),
                };
                self.refuse(asking.asker, why);
            }
        }
        if let Some(apart) = self.apart.as_mut().filter(|apart| apart.is_shared()) {
            apart.attached().prepare();
        }
        Ok(())
    }

    /// To be called when a dataplane has ended: who was to share it and does not yet gets another.
    pub(super) fn ask_again(&mut self) {
        let joining = self.apart.as_mut().and_then(|apart| apart.attached().take_joining());
        let until = Instant::now() + HANDOVER;
        let again = joining.map(|(process, asker)| Asking { process, asker, until });
        again.into_iter().for_each(|asking| self.waiting.push_front(asking));
    }

    /// The dataplane has said something about the processes that share it.
    pub(super) fn hear_joins(&mut self) {
        if let Some(apart) = &mut self.apart {
            apart.attached().hear(&self.child);
        }
    }

    /// If the process that has the dataplane has ended, another one that shares it stands for the
    /// program.
    pub(super) fn renew_heir(&mut self) {
        let Some(apart) = &self.apart else { return };
        if apart.pid().is_some() && self.child.heir().has_ended() {
            let next = apart.shared_by().living().next().cloned();
            next.into_iter().for_each(|process| self.child.inherited_by(process));
        }
    }
}

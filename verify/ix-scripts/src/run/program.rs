//! Calls of a script: begun, waited for, answered.
use super::*;

impl Runner<'_> {
    pub(super) fn call(
        &mut self,
        line: usize,
        call: &Call,
        ends: Option<i64>,
    ) -> Result<(), Failure> {
        if let Some(pending) = &self.pending {
            let why = format!("`{}` of line {} still blocks", pending.call.name, pending.line);
            return Err(self.fail(line, why));
        }
        (self.begun, self.begun_until) = (0, None);
        let attempt = self.attempt(call, None);
        self.collect();
        match attempt.map_err(|why| unsupported(self.script, line, why))? {
            Attempt::Done(answer) => self.answered(line, call, answer),
            Attempt::Blocks => {
                let tolerance = self.tolerance_us as i64;
                let window = |end: i64| {
                    let at = |us: i64| START_US + us.max(0) as u64;
                    (at(end - tolerance), at(end + tolerance))
                };
                if ends.is_none() && self.begun_until.is_none() {
                    return Err(self.fail(line, format!("`{}` blocks", call.name)));
                }
                self.pending = Some(Pending {
                    line,
                    call: call.clone(),
                    ends: ends.map(window),
                    gives_up_us: self.begun_until,
                    written: self.begun,
                });
                Ok(())
            }
        }
    }

    /// Whether the call that blocks returns now.
    pub(super) fn try_pending(&mut self) -> Result<(), Failure> {
        let Some(mut pending) = self.pending.take() else { return Ok(()) };
        let now_us = self.sockets.now_us();
        let call = pending.call.clone();
        let attempt = self.attempt(&call, Some(&mut pending));
        let line = pending.line;
        self.collect();
        let answer = match attempt.map_err(|why| unsupported(self.script, line, why))? {
            Attempt::Done(answer) => answer,
            Attempt::Blocks if pending.gives_up_us.is_some_and(|at| now_us >= at) => Ok(0),
            Attempt::Blocks => {
                if pending.ends.is_some_and(|(_, last)| now_us > last) {
                    return Err(self.fail(line, format!("`{}` still blocks", call.name)));
                }
                self.pending = Some(pending);
                return Ok(());
            }
        };
        if pending.ends.is_some_and(|(first, _)| now_us < first) {
            let at = seconds(self.elapsed_us());
            return Err(self.fail(line, format!("`{}` returned at {at} s already", call.name)));
        }
        self.answered(line, &call, answer)
    }

    pub(super) fn answered(
        &mut self,
        line: usize,
        call: &Call,
        answer: Answer,
    ) -> Result<(), Failure> {
        let told = |answer: Answer| match answer {
            Ok(number) => number.to_string(),
            Err(error) => format!("-1 {}", error_name(error.into())),
        };
        let right = match (call.answer, &call.errno, answer) {
            (None, ..) => true,
            (Some(-1), Some(name), Err(error)) => {
                let wanted = error_of(name).ok_or_else(|| {
                    unsupported(self.script, line, format!("the error `{name}` is not understood"))
                })?;
                wanted == i64::from(error)
            }
            (Some(-1), None, Err(_)) => true,
            (Some(wanted), _, Ok(number)) => wanted == number,
            _ => false,
        };
        if right {
            return Ok(());
        }
        let errno = call.errno.as_deref().unwrap_or("");
        let wanted = format!("{} {errno}", call.answer.unwrap_or(0));
        let why = format!("`{}` answered {}, not {}", call.name, told(answer), wanted.trim());
        Err(self.fail(line, why))
    }
}

//! What the program and its dataplane say, and how they end.
use super::{Running, channel};
use ix_launch::{Exit, Occurrence, ServeError};
use ix_problem::{Problem, Result};
use ix_proto::FromImage;
use ix_sys::process::Process;
use ix_sys::say;

/// Longest time from the first sign of a process's end to its end, ms.
const ENDING_MS: i32 = 100;

impl Running {
    /// A message from the program's process, which is the dataplane's only where it is in there.
    /// With a dataplane of its own process, a program that says what a dataplane says is not
    /// believed.
    pub(super) fn hear_program(
        &mut self,
        message: &FromImage,
        sender: Option<Process>,
    ) -> Result<()> {
        let Some(apart) = &mut self.apart else {
            self.handle(message, sender);
            return Ok(());
        };
        // Nobody is believed who cannot be told: such a process has ended.
        let Some(sender) = sender.map(|process| process.pid()) else { return Ok(()) };
        match message {
            FromImage::Ready => apart.has_mapped(sender),
            FromImage::Failed { asker, why } if apart.is_mapping(sender, *asker) => {
                apart.has_mapped(sender);
                if apart.is_shared_beside(sender) {
                    say!("process {sender} gets no part of the dataplane: {why}");
                    return Ok(());
                }
                apart.give_up();
                // Its process may not end: a program can say this as well.
                let why = ServeError::Refused(why.clone());
                return Err(Problem::new(format!("cannot run {}", self.name), why));
            }
            _ => {}
        }
        Ok(())
    }

    /// What is no message comes from the program, if the dataplane is elsewhere.
    pub(super) fn hear_nonsense(&self) -> Result<()> {
        if self.apart.is_some() {
            return Ok(());
        }
        let problem = Problem::new(format!("cannot wait for {}", self.name), ServeError::Protocol);
        Err(problem)
    }

    /// Where the program has faulted, if that ended it; empty if not known.
    pub fn where_it_faulted(&self, exit: Exit) -> String {
        let Exit::Signal(signal) = exit else { return String::new() };
        let fault = match &self.apart {
            Some(apart) => apart.fault(signal),
            None => self.counters.fault(signal),
        };
        fault.map_or(String::new(), |(address, instruction)| {
            format!(" at address {address:#x}, instruction {instruction:#x}")
        })
    }

    /// The dataplane's process has said something, or has ended.
    pub(super) fn hear_apart(&mut self) -> Result<()> {
        let Some(apart) = &mut self.apart else { return Ok(()) };
        let problem = |e| Problem::new("the channel to the dataplane broke", e);
        match apart.hear().map_err(problem)? {
            Ok(message) => self.handle(&message, None),
            Err(exit) => {
                self.ask_again();
                self.apart_has_ended(exit)?;
            }
        }
        Ok(())
    }

    /// The dataplane's process has ended. If it has died and the program has not, the program's
    /// next call asks for another one.
    pub(super) fn apart_has_ended(&mut self, exit: Option<Exit>) -> Result<()> {
        say_how_it_ended(exit);
        let died = exit.is_some_and(|exit| exit != Exit::Status(0));
        let Some(apart) = self.apart.as_mut().filter(|_| died) else { return Ok(()) };
        apart.has_died();
        match apart.gives_up() {
            Some(why) => Err(Problem::new(format!("cannot go on with {}", self.name), why)),
            None => Ok(()),
        }
    }

    /// The program has ended: waits until its connections are closed.
    pub(super) fn end_apart(&mut self) {
        say_how_it_ended(self.apart.as_mut().and_then(|apart| apart.end().ok().flatten()));
    }

    fn handle(&mut self, message: &FromImage, sender: Option<Process>) {
        if let (FromImage::Survivor { .. }, Some(process)) = (message, sender) {
            return self.survivor.is(process);
        }
        if self.surveys.handle(message) {
            return self.serve_surveys();
        }
        if self.commands.handle(message, channel(&self.child, self.apart.as_ref())) {
            return;
        }
        if let Some(line) = self.devices.handle(message, channel(&self.child, self.apart.as_ref()))
        {
            say!("{line}");
        }
    }

    /// That nobody has the program's end of the channel any more.
    pub(super) fn has_left(&self) -> String {
        let name = &self.name;
        format!("{name} executed another program, outside of IX, or closed all its descriptors")
    }

    /// Prints lines, unless the process ends now: shortly before its end its channel and its taps
    /// disappear, which the user need not know.
    pub(super) fn say_unless_it_ends(&mut self, lines: &[String]) -> Result<Option<Exit>> {
        if lines.is_empty() {
            return Ok(None);
        }
        let ends = self.child.next(&[], ENDING_MS);
        match ends.map_err(|e| Problem::new(format!("cannot wait for {}", self.name), e))? {
            Occurrence::Exited(exit) => return Ok(Some(exit)),
            Occurrence::Left => {
                return self.say_unless_it_ends(&[lines, &[self.has_left()]].concat());
            }
            Occurrence::Said(FromImage::Hello { asker, .. }, Some(process)) => {
                self.queue(process.into(), asker);
            }
            Occurrence::Said(message, sender) => self.hear_program(&message, sender)?,
            Occurrence::Nonsense => self.hear_nonsense()?,
            Occurrence::Readable(_) | Occurrence::Nothing => {}
        }
        lines.iter().for_each(|line| say!("{line}"));
        Ok(None)
    }
}

/// Says what the user must know of the end of the dataplane's process.
fn say_how_it_ended(exit: Option<Exit>) {
    if let Some(exit) = exit.filter(|exit| *exit != Exit::Status(0)) {
        say!("the dataplane ended ({exit}): its connections are lost");
    }
}

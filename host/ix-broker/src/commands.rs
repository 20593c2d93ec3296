//! Commands of the control plane to the running dataplane, as its broker keeps them. The broker
//! sends one after the other. Each has exactly one outcome, even when the client or the dataplane
//! has gone.
use ix_entry::Channel;
use ix_proto::capture::CaptureOrder;
use ix_proto::{BEGIN_US, Codec, Command, FromImage, Order, Outcome, ToImage};
use ix_vnic::VnicRules;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Called with the outcome. It owns all that it needs to reply to the client.
pub type Reply = Box<dyn FnOnce(&Outcome)>;

/// At most this many commands wait behind the one that runs.
const QUEUE_MAX: usize = 64;
/// Time within which the dataplane must begin a command, ms.
const BEGIN_MS: u64 = BEGIN_US / 1000;
/// Time after that within which a command that began ends, or is undone, ms.
const FINISH_MS: u64 = 1_000;
/// A dataplane that has a hardware thread when it wants one begins a command within this time, ms.
const SLOW_MS: u64 = 30;
/// Time between two attempts to send a command while the channel is full, ms.
const RETRY_MS: u64 = 10;

/// Why a command is refused while no dataplane runs.
pub const AWAY: &str = "the dataplane has ended or is still starting; try again in a moment";

/// Commands that have no outcome yet.
#[derive(Default)]
pub struct Commands {
    queue: VecDeque<Waiting>,
    sent: Option<Sent>,
    serial: u64,
}

/// An order that the dataplane has not received yet.
struct Waiting {
    order: Order,
    /// A descriptor that is sent with it.
    fd: Option<OwnedFd>,
    reply: Reply,
}

impl Waiting {
    /// Whether it says what the vNIC may do from now on.
    fn is_state(&self) -> bool {
        matches!(self.order, Order::VnicRules(_))
    }
}

/// The command that the dataplane is carrying out.
struct Sent {
    serial: u64,
    /// It says what the vNIC may do from now on.
    is_state: bool,
    reply: Reply,
    at: Instant,
}

impl Sent {
    /// When the command times out.
    fn until(&self) -> Instant {
        self.at + Duration::from_millis(BEGIN_MS + FINISH_MS)
    }
}

impl Commands {
    /// Sends a command to the dataplane. `reply` is called once, in the next [`Commands::service`]
    /// at the earliest. It must not wait.
    pub fn submit(&mut self, command: Command, reply: Reply) {
        self.queue(Order::Command(command), None, reply);
    }

    /// The same for a capture, whose memory is sent with the command.
    pub fn submit_capture(&mut self, order: CaptureOrder, memory: Option<OwnedFd>, reply: Reply) {
        self.queue(Order::Capture(order), memory, reply);
    }

    fn queue(&mut self, order: Order, fd: Option<OwnedFd>, reply: Reply) {
        if self.queue.len() >= QUEUE_MAX {
            let why = format!("{QUEUE_MAX} commands are waiting; try again when they have ended");
            return reply(&Outcome::Refused(why));
        }
        self.queue.push_back(Waiting { order, fd, reply });
    }

    /// The same for what the vNIC may send and receive from now on. That is a state, so a newer one
    /// replaces one that still waits. None is refused, because nothing else would undo the state
    /// before.
    pub fn submit_rules(&mut self, rules: VnicRules, reply: Reply) {
        let order = Order::VnicRules(rules);
        match self.queue.iter_mut().find(|waiting| waiting.is_state()) {
            Some(waiting) => {
                waiting.order = order;
                let first = std::mem::replace(&mut waiting.reply, Box::new(|_| {}));
                waiting.reply = Box::new(move |outcome| {
                    first(outcome);
                    reply(outcome);
                });
            }
            None => self.queue.push_back(Waiting { order, fd: None, reply }),
        }
    }

    /// Sends the commands that wait, and gives up those that took too long. The caller calls it
    /// after [`Commands::submit`], and when [`Commands::service_in_ms`] have passed. Without a
    /// channel the dataplane has ended: all commands are refused, except for what the vNIC may do,
    /// with which the next dataplane begins.
    pub fn service(&mut self, channel: Option<&Channel>) {
        let Some(channel) = channel else {
            let sent = self.sent.take().map(|sent| (sent.is_state, sent.reply));
            let waiting = self.queue.drain(..).map(|waiting| (waiting.is_state(), waiting.reply));
            for (is_state, reply) in sent.into_iter().chain(waiting) {
                reply(&match is_state {
                    true => Outcome::Done,
                    false => Outcome::Refused(AWAY.to_owned()),
                });
            }
            return;
        };
        if let Some(late) = self.sent.take_if(|sent| sent.until() <= Instant::now()) {
            let why = "the dataplane does not answer: no elastic thread came by in time";
            (late.reply)(&Outcome::TimedOut(why.to_owned()));
        }
        while self.sent.is_none()
            && let Some(Waiting { order, fd, reply }) = self.queue.pop_front()
        {
            let serial = self.serial + 1;
            let until_us = monotonic_us() + BEGIN_US;
            let message = ToImage::Order { serial, until_us, order: order.clone() };
            let fds: Vec<_> = fd.iter().map(AsFd::as_fd).collect();
            let is_state = matches!(order, Order::VnicRules(_));
            match channel.try_send(&message.encode(), &fds) {
                Ok(()) => {
                    self.serial = serial;
                    self.sent = Some(Sent { serial, is_state, reply, at: Instant::now() });
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.queue.push_front(Waiting { order, fd, reply });
                    return;
                }
                Err(e) => reply(&Outcome::Refused(format!("cannot send to the dataplane: {e}"))),
            }
        }
    }

    /// Handles a message of the dataplane; returns false when it is not about a command.
    pub fn handle(&mut self, message: &FromImage, channel: Option<&Channel>) -> bool {
        let FromImage::Outcome { serial, outcome } = message else { return false };
        // An outcome may arrive after its command has timed out.
        if let Some(sent) = self.sent.take_if(|sent| sent.serial == *serial) {
            (sent.reply)(outcome);
        }
        self.service(channel);
        true
    }

    /// When the command that was sent is slow.
    pub fn slow_at(&self) -> Option<Instant> {
        self.sent.as_ref().map(|sent| sent.at + Duration::from_millis(SLOW_MS))
    }

    /// When to call [`Commands::service`] even if no message arrives, ms; `None`: never.
    pub fn service_in_ms(&self) -> Option<u64> {
        let late = self.sent.as_ref().map(|sent| {
            let left = sent.until().saturating_duration_since(Instant::now());
            left.as_millis() as u64 + 1
        });
        late.or((!self.queue.is_empty()).then_some(RETRY_MS))
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.service(None);
    }
}

/// The dataplane's clock.
pub fn monotonic_us() -> u64 {
    ix_sys::clock::monotonic().as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    type Log = Rc<RefCell<Vec<(usize, Outcome)>>>;

    fn submit(commands: &mut Commands, log: &Log, thread: usize) {
        let log = log.clone();
        let reply = move |outcome: &Outcome| log.borrow_mut().push((thread, outcome.clone()));
        commands.submit(Command::Park { thread }, Box::new(reply));
    }

    fn next(image: &Channel) -> Option<(u64, Order)> {
        let (bytes, _) = image.try_receive().ok()??;
        match ToImage::decode(&bytes) {
            Ok(ToImage::Order { serial, until_us, order }) => {
                assert!(until_us > monotonic_us());
                Some((serial, order))
            }
            other => panic!("{other:?}"),
        }
    }

    fn park(thread: usize) -> Order {
        Order::Command(Command::Park { thread })
    }

    fn rules(text: &str) -> VnicRules {
        text.parse().expect(text)
    }

    #[test]
    fn one_after_the_other_and_each_answered_once() {
        let (broker, image) = Channel::pair().expect("channel");
        let (mut commands, log) = (Commands::default(), Log::default());
        (0..3).for_each(|thread| submit(&mut commands, &log, thread));
        commands.service(Some(&broker));
        assert_eq!(next(&image), Some((1, park(0))));
        assert_eq!(next(&image), None, "one at a time");
        let said = |serial, outcome| FromImage::Outcome { serial, outcome };
        let last = Outcome::Refused("it is the last".to_owned());
        assert!(!commands.handle(&FromImage::Ready, Some(&broker)));
        assert!(commands.handle(&said(9, Outcome::Done), Some(&broker)), "nobody waits for it");
        assert!(log.borrow().is_empty());
        commands.handle(&said(1, last.clone()), Some(&broker));
        commands.handle(&said(1, Outcome::Done), Some(&broker));
        assert_eq!(next(&image), Some((2, park(1))));
        commands.handle(&said(2, Outcome::Done), Some(&broker));
        drop(commands);
        let log = log.take();
        assert_eq!(log[0], (0, last));
        assert_eq!(log[1], (1, Outcome::Done));
        assert!(matches!(&log[2], (2, Outcome::Refused(why)) if why.contains("ended")));
        assert_eq!(log.len(), 3);
    }

    #[test]
    fn of_rules_that_wait_the_newest_is_sent_and_all_hear_of_it() {
        let (broker, image) = Channel::pair().expect("channel");
        let (mut commands, log) = (Commands::default(), Log::default());
        (0..QUEUE_MAX + 1).for_each(|thread| submit(&mut commands, &log, thread));
        log.take();
        for number in 0..3 {
            let log = log.clone();
            let reply = move |outcome: &Outcome| log.borrow_mut().push((number, outcome.clone()));
            commands.submit_rules(rules(&format!("rate tx {}Mbit", number + 1)), Box::new(reply));
        }
        assert!(log.borrow().is_empty(), "none is refused");
        let said = |serial| FromImage::Outcome { serial, outcome: Outcome::Done };
        commands.service(Some(&broker));
        for serial in 1..=QUEUE_MAX as u64 {
            assert_eq!(next(&image), Some((serial, park(serial as usize - 1))));
            commands.handle(&said(serial), Some(&broker));
        }
        log.take();
        let newest = Order::VnicRules(rules("rate tx 3Mbit"));
        assert_eq!(next(&image), Some((QUEUE_MAX as u64 + 1, newest)));
        // A state that comes now waits as a command of its own.
        commands.submit_rules(rules("none rx"), Box::new(|_| {}));
        commands.handle(&said(QUEUE_MAX as u64 + 1), Some(&broker));
        assert_eq!(log.take().iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(next(&image).map(|(_, order)| order), Some(Order::VnicRules(rules("none rx"))));
    }

    #[test]
    fn a_state_outlives_its_dataplane_and_a_command_does_not() {
        let (broker, _image) = Channel::pair().expect("channel");
        for waits in [true, false] {
            let (mut commands, log) = (Commands::default(), Log::default());
            let said = log.clone();
            let reply = move |outcome: &Outcome| said.borrow_mut().push((7, outcome.clone()));
            commands.submit_rules(rules("rate tx 1Mbit"), Box::new(reply));
            commands.service((!waits).then_some(&broker));
            submit(&mut commands, &log, 1);
            commands.service(None);
            let log = log.take();
            assert_eq!(log[0], (7, Outcome::Done));
            assert!(matches!(&log[1], (1, Outcome::Refused(why)) if why.contains("ended")));
        }
    }

    #[test]
    fn too_many_are_refused_and_a_silent_dataplane_times_out() {
        let (broker, _image) = Channel::pair().expect("channel");
        let (mut commands, log) = (Commands::default(), Log::default());
        (0..QUEUE_MAX + 1).for_each(|thread| submit(&mut commands, &log, thread));
        assert!(matches!(log.take()[..], [(QUEUE_MAX, Outcome::Refused(_))]));
        commands.service(Some(&broker));
        let in_ms = commands.service_in_ms().expect("it waits");
        assert!(in_ms > FINISH_MS && in_ms <= BEGIN_MS + FINISH_MS + 1, "{in_ms}");
        let long = Duration::from_millis(BEGIN_MS + FINISH_MS);
        commands.sent.as_mut().expect("sent").at -= long;
        commands.service(Some(&broker));
        assert!(matches!(log.take()[..], [(0, Outcome::TimedOut(_))]));
        assert!(commands.sent.is_some(), "the next one is on its way");
    }
}

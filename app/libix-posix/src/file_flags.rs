//! State of a socket that all its processes see, as Linux has one file for all: `O_NONBLOCK`,
//! options that change how a connection behaves, and `SHUT_WR`. A word beside the socket's record
//! ([`crate::holders`]) has it once several processes have the socket; a process that uses the
//! socket looks at it first, and the owner of a connection is nudged.
use crate::holders;
use crate::slab::Id;
use crate::socket::{Kind, Socket};
use crate::state::Core;

/// A process has noted flags in the word. Without this bit no process has.
const IS_SET: u32 = 1 << 0;
const NONBLOCKING: u32 = 1 << 1;
const NO_DELAY: u32 = 1 << 2;
const KEEPALIVE: u32 = 1 << 3;
const CORK: u32 = 1 << 4;
/// The owner sends FIN.
const WRITE_SHUT: u32 = 1 << 5;

fn bit(is: bool, bit: u32) -> u32 {
    if is { bit } else { 0 }
}

impl Socket {
    /// The flags as this process knows them.
    pub fn file_flags(&self) -> u32 {
        let options = &self.options;
        let is_shut = matches!(&self.kind, Kind::Stream(stream) if stream.flow.is_shut());
        IS_SET
            | bit(is_shut, WRITE_SHUT)
            | bit(self.nonblocking, NONBLOCKING)
            | bit(options.no_delay, NO_DELAY)
            | bit(options.keepalive, KEEPALIVE)
            | bit(options.cork, CORK)
    }

    /// Several processes have it from now on, or have it already.
    pub fn begins_file_flags(&self) {
        self.noted_at().into_iter().for_each(|at| holders::begin_flags(at, self.file_flags()));
    }

    /// Takes over what another process has changed. Returns whether its flow is to be told.
    #[inline]
    pub fn sees_file_flags(&mut self) -> bool {
        match self.noted_at() {
            None => false,
            Some(at) => self.takes_file_flags(holders::flags(at)),
        }
    }

    #[cold]
    fn takes_file_flags(&mut self, flags: u32) -> bool {
        let before = self.file_flags();
        if flags & IS_SET == 0 || flags == before {
            return false;
        }
        let has = |bit| flags & bit != 0;
        self.nonblocking = has(NONBLOCKING);
        let options = &mut self.options;
        (options.no_delay, options.keepalive, options.cork) =
            (has(NO_DELAY), has(KEEPALIVE), has(CORK));
        let is_told = (flags ^ before) & !NONBLOCKING != 0;
        if is_told && let Some(stream) = self.stream() {
            stream.options_changed = true;
            if has(WRITE_SHUT) {
                stream.flow.shutdown();
            }
        }
        is_told
    }

    /// Says what this process has changed since its flags were these.
    #[inline]
    pub fn says_file_flags(&self, before: u32) {
        if let Some(at) = self.noted_at()
            && self.file_flags() != before
        {
            holders::change_flags(at, before, self.file_flags());
        }
    }
}

impl Core {
    /// Takes over what another process has changed of a socket that the program uses now.
    #[inline]
    pub fn sees_file_flags(&mut self, id: Id) {
        if self.sockets.get_mut(id).is_some_and(Socket::sees_file_flags) {
            self.mark_dirty(id);
        }
    }

    /// The program changes a socket, whose flags other processes see as well.
    pub fn change_file_flags<T>(&mut self, id: Id, change: impl FnOnce(&mut Core) -> T) -> T {
        self.sees_file_flags(id);
        let before = self.sockets.get(id).map_or(0, Socket::file_flags);
        let result = change(self);
        self.sockets.get(id).into_iter().for_each(|socket| socket.says_file_flags(before));
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pid;

    /// Two processes each change something, and both see both.
    #[test]
    fn what_one_process_changes_the_others_see() {
        let _one = holders::ONE_TEST.lock();
        holders::begin_run();
        pid::note();
        assert!(holders::begin());
        let at = holders::hold(None);
        let idle =
            || Socket::new(Kind::Idle { stream: true, ix: false, both: false }, false, false);
        let (mut one, mut other) = (idle(), idle());
        one.named = at;
        other.named = at;
        one.begins_file_flags();
        let before = one.file_flags();
        one.nonblocking = true;
        one.says_file_flags(before);
        // It has not looked before it changes something else.
        let before = other.file_flags();
        other.options.no_delay = true;
        other.says_file_flags(before);
        other.begins_file_flags();
        assert!(one.sees_file_flags() && !one.sees_file_flags(), "once");
        assert!(!other.sees_file_flags(), "O_NONBLOCK is nothing for a flow");
        for socket in [one, other] {
            assert!(socket.nonblocking && socket.options.no_delay && !socket.options.keepalive);
        }
    }
}

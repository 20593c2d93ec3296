//! The system calls of a script.
use crate::run::Runner;
use crate::script::{Call, Value};
use crate::sockets::{Answer, End, octets};
use crate::values::{TCP_INQ, error_name, error_of, number, number_of};
use libc::c_int;

/// How far a call has come.
pub enum Attempt {
    /// It returns this: a number, or an errno.
    Done(Answer),
    /// It blocks.
    Blocks,
}

/// A call that blocks, with what is done of it.
pub struct Pending {
    pub line: usize,
    pub call: Call,
    /// When it must return, µs: not before, not after.
    pub ends: Option<(u64, u64)>,
    /// When it gives up by itself.
    pub gives_up_us: Option<u64>,
    /// Octets written so far.
    pub written: usize,
}

type Result<T> = std::result::Result<T, String>;

fn argument(call: &Call, index: usize) -> Result<&Value> {
    call.args.get(index).ok_or_else(|| format!("`{}` wants more arguments", call.name))
}

fn integer(call: &Call, index: usize) -> Result<i64> {
    number(argument(call, index)?)
}

/// Whether an argument is a pointer to nothing.
fn is_null(call: &Call, index: usize) -> bool {
    matches!(call.args.get(index), Some(Value::Name(name)) if name == "NULL")
}

/// The port of a `sockaddr`; `None`: the script leaves it open.
fn port(value: Option<&Value>) -> Result<Option<u16>> {
    let Some(Value::Record(fields)) = value else { return Ok(None) };
    let Some((_, port)) = fields.iter().find(|(name, _)| name == "sin_port") else {
        return Ok(None);
    };
    let port = match port {
        Value::Apply(name, args) if name == "htons" && args.len() == 1 => number(&args[0])?,
        other => number(other)?,
    };
    u16::try_from(port).map(Some).map_err(|_| format!("{port} is no port"))
}

/// Bytes of an `iovec` array, or of the one within a `msghdr`.
fn iovec_bytes(value: &Value) -> Result<usize> {
    match value {
        Value::List(pieces) => {
            let mut sum = 0;
            for piece in pieces {
                let Value::Record(fields) = piece else { return Err("no iovec".into()) };
                let len = fields.get(1).map_or(Err("no length".into()), |(_, len)| number(len))?;
                sum += len as usize;
            }
            Ok(sum)
        }
        Value::Record(fields) => {
            let iov = fields.iter().find(|(name, _)| name == "msg_iov");
            iovec_bytes(iov.map(|(_, value)| value).ok_or("a msghdr without msg_iov")?)
        }
        _ => Err("an array of pieces was expected".into()),
    }
}

impl Runner<'_> {
    fn fd(&self, call: &Call, index: usize) -> Result<c_int> {
        let name = integer(call, index)?;
        Ok(self.fds.get(&name).copied().unwrap_or(-1))
    }

    fn blocking(&self, fd: c_int) -> bool {
        self.sockets.get(fd).is_ok_and(|socket| !socket.nonblocking)
    }

    /// Tries a call; `pending` says how far it came before.
    pub fn attempt(&mut self, call: &Call, pending: Option<&mut Pending>) -> Result<Attempt> {
        let done = |answer| Ok(Attempt::Done(answer));
        match call.name.as_str() {
            "socket" => {
                let kind = integer(call, 1)? as c_int;
                let answer = self.sockets.socket(kind);
                self.name(call, answer)
            }
            "bind" => {
                let port = port(call.args.get(1))?.unwrap_or(8080);
                let fd = self.fd(call, 0)?;
                done(self.sockets.bind(fd, port))
            }
            "listen" => {
                let (fd, backlog) = (self.fd(call, 0)?, integer(call, 1)? as i32);
                done(self.sockets.listen(fd, backlog))
            }
            "accept" | "accept4" => {
                let fd = self.fd(call, 0)?;
                match self.sockets.accept(fd) {
                    Err(libc::EAGAIN) if self.blocking(fd) => Ok(Attempt::Blocks),
                    answer => self.name(call, answer),
                }
            }
            "connect" => self.connect(call, pending.is_some()),
            "read" | "recv" | "readv" | "recvfrom" | "recvmsg" => self.read(call),
            "write" | "send" | "writev" | "sendto" | "sendmsg" => self.write(call, pending),
            "shutdown" => {
                let (fd, how) = (self.fd(call, 0)?, integer(call, 1)? as c_int);
                done(self.sockets.shutdown(fd, how))
            }
            "close" => {
                let fd = self.fd(call, 0)?;
                done(self.sockets.close(fd))
            }
            "open" => Ok(self.open(call)),
            "sendfile" => self.sendfile(call, pending),
            "fcntl" => self.fcntl(call),
            "ioctl" => self.ioctl(call),
            "setsockopt" => self.setsockopt(call),
            "getsockopt" => self.getsockopt(call),
            "poll" => self.poll(call, pending.is_some()),
            "epoll_create" | "epoll_create1" => {
                let answer = self.sockets.epoll_create();
                self.name(call, answer)
            }
            "epoll_ctl" => self.epoll_ctl(call),
            "epoll_wait" => self.epoll_wait(call, pending.is_some()),
            other => Err(format!("the call `{other}` is not understood")),
        }
    }

    /// Gives a new descriptor the number that the script has for it.
    fn name(&mut self, call: &Call, answer: Answer) -> Result<Attempt> {
        Ok(Attempt::Done(answer.map(|fd| {
            let name = call.answer.filter(|name| *name >= 0).unwrap_or(fd);
            self.fds.insert(name, fd as c_int);
            if call.name.starts_with("accept") || call.name == "socket" {
                self.under_test = fd as c_int;
            }
            name
        })))
    }

    fn connect(&mut self, call: &Call, begun: bool) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        let answer = if begun {
            self.sockets.connected(fd)
        } else {
            self.conversation(1).fresh = true;
            let port = port(call.args.get(1))?.unwrap_or(8080);
            self.under_test = fd;
            self.sockets.connect(fd, port)
        };
        match answer {
            Err(libc::EINPROGRESS | libc::EALREADY) if self.blocking(fd) => Ok(Attempt::Blocks),
            answer => Ok(Attempt::Done(answer)),
        }
    }

    fn read(&mut self, call: &Call) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        if is_null(call, 1) {
            return Ok(Attempt::Done(Err(libc::EFAULT)));
        }
        let (len, flags) = match call.name.as_str() {
            "readv" => (iovec_bytes(argument(call, 1)?)?, 0),
            "recvmsg" => (iovec_bytes(argument(call, 1)?)?, integer(call, 2)?),
            "read" => (integer(call, 2)? as usize, 0),
            _ => (integer(call, 2)? as usize, integer(call, 3)?),
        };
        let waits = self.blocking(fd) && flags & i64::from(libc::MSG_DONTWAIT) == 0;
        let peek = flags & i64::from(libc::MSG_PEEK) != 0;
        if self.sockets.is_datagrams(fd) {
            return Ok(match self.sockets.receive_datagram(fd, peek) {
                Err(libc::EAGAIN) if waits => Attempt::Blocks,
                Ok((bytes, _)) if bytes != octets(0, bytes.len()) => {
                    return Err("the datagram's bytes are not those that were sent".into());
                }
                answer => Attempt::Done(answer.map(|(bytes, _)| bytes.len().min(len) as i64)),
            });
        }
        let place = self.sockets.get(fd).map_or(0, |socket| socket.read);
        match self.sockets.receive(fd, len, peek) {
            Err(libc::EAGAIN) if waits => Ok(Attempt::Blocks),
            Ok(bytes) if bytes != octets(place, bytes.len()) => {
                Err(format!("the octets read from place {place} of the stream are not those sent"))
            }
            Ok(bytes) => {
                self.compare_control(call, fd)?;
                Ok(Attempt::Done(Ok(bytes.len() as i64)))
            }
            Err(error) => Ok(Attempt::Done(Err(error))),
        }
    }

    /// Compares the control messages of a `recvmsg` that names some with what it has told.
    fn compare_control(&self, call: &Call, fd: c_int) -> Result<()> {
        let Some(Value::Record(message)) = call.args.get(1) else { return Ok(()) };
        let control = message.iter().find(|(name, _)| name == "msg_control");
        let Some((_, Value::List(wanted))) = control else { return Ok(()) };
        let told = self.sockets.unread_told(fd);
        if wanted.len() != usize::from(told.is_some()) {
            return Err(format!("{} control messages were not told", wanted.len()));
        }
        for (one, unread) in wanted.iter().zip(told) {
            let Value::Record(fields) = one else { return Err("no control message".into()) };
            let is_inq =
                |level: i64, kind: i64| (level, kind) == (libc::IPPROTO_TCP.into(), TCP_INQ.into());
            let field = |name: &str| match fields.iter().find(|(known, _)| known == name) {
                Some((_, value)) => number(value),
                None => Err(format!("a control message without {name}")),
            };
            if !is_inq(field("cmsg_level")?, field("cmsg_type")?) {
                return Err("of control messages only TCP_CM_INQ is understood".into());
            }
            if field("cmsg_data")? != unread {
                return Err(format!("{unread} octets were told to be unread"));
            }
        }
        Ok(())
    }

    fn write(&mut self, call: &Call, pending: Option<&mut Pending>) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        if is_null(call, 1) {
            return Ok(Attempt::Done(Err(libc::EFAULT)));
        }
        let (len, flags) = match call.name.as_str() {
            "writev" => (iovec_bytes(argument(call, 1)?)?, 0),
            "sendmsg" => (iovec_bytes(argument(call, 1)?)?, integer(call, 2)?),
            "write" => (integer(call, 2)? as usize, 0),
            _ => (integer(call, 2)? as usize, integer(call, 3)?),
        };
        let has = |flag: c_int| flags & i64::from(flag) != 0;
        if has(libc::MSG_OOB) {
            return Err("MSG_OOB is not built".into());
        }
        let end = End::of(flags as c_int);
        if self.sockets.is_datagrams(fd) {
            let port = match call.name.as_str() {
                "sendto" => Some(port(call.args.get(4))?.unwrap_or(crate::run::remote_port(1))),
                _ => None,
            };
            return Ok(Attempt::Done(self.sockets.send_datagram(fd, &octets(0, len), port)));
        }
        let before = pending.as_ref().map_or(0, |pending| pending.written);
        let waits = self.blocking(fd) && flags & i64::from(libc::MSG_DONTWAIT) == 0;
        let from = self.sockets.get(fd).map_or(0, |socket| socket.written);
        let answer = self.sockets.write_bytes(fd, &octets(from, len - before), end);
        let written = before + answer.map_or(0, |n| n as usize);
        match answer {
            Ok(_) | Err(libc::EAGAIN) if waits && written < len => {
                match pending {
                    Some(pending) => pending.written = written,
                    None => self.begun = written,
                }
                Ok(Attempt::Blocks)
            }
            Err(_) if before > 0 => Ok(Attempt::Done(Ok(before as i64))),
            Ok(_) => Ok(Attempt::Done(Ok(written as i64))),
            Err(error) => Ok(Attempt::Done(Err(error))),
        }
    }

    /// A file: it holds whatever is to be sent from it.
    fn open(&mut self, call: &Call) -> Attempt {
        let name = call.answer.filter(|name| *name >= 0).unwrap_or(0);
        self.files.insert(name);
        Attempt::Done(Ok(name))
    }

    /// Writes what a file holds.
    fn sendfile(&mut self, call: &Call, pending: Option<&mut Pending>) -> Result<Attempt> {
        if !self.files.contains(&integer(call, 1)?) {
            return Ok(Attempt::Done(Err(libc::EBADF)));
        }
        let bytes = argument(call, 3)?.clone();
        let args = vec![argument(call, 0)?.clone(), Value::Dots, bytes];
        self.write(&Call { name: "write".into(), args, ..call.clone() }, pending)
    }

    fn fcntl(&mut self, call: &Call) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        let answer = match integer(call, 1)? as c_int {
            libc::F_GETFL => self.sockets.get(fd).map(|socket| {
                i64::from(libc::O_RDWR | if socket.nonblocking { libc::O_NONBLOCK } else { 0 })
            }),
            libc::F_SETFL => {
                let on = integer(call, 2)? & i64::from(libc::O_NONBLOCK) != 0;
                self.sockets.set_nonblocking(fd, on)
            }
            _ => return Err("of fcntl only F_GETFL and F_SETFL are understood".into()),
        };
        Ok(Attempt::Done(answer))
    }

    fn ioctl(&mut self, call: &Call) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        let queued = match argument(call, 1)? {
            Value::Name(name) if name == "SIOCINQ" || name == "FIONREAD" => {
                self.sockets.queued(fd).map(|(received, _)| received)
            }
            Value::Name(name) if name == "SIOCOUTQ" => self.sockets.queued(fd).map(|(_, out)| out),
            Value::Name(name) if name == "SIOCOUTQNSD" => self.sockets.unsent(fd),
            other => return Err(format!("ioctl {other:?} is not understood")),
        };
        self.compare_one(call, 2, queued)
    }

    /// A call that answers 0 and writes a number into argument `index`.
    fn compare_one(&mut self, call: &Call, index: usize, got: Answer) -> Result<Attempt> {
        if let (Ok(got), Ok(wanted)) = (got, integer(call, index))
            && got != wanted
        {
            return Err(format!("{got} was answered, not {wanted}"));
        }
        Ok(Attempt::Done(got.map(|_| 0)))
    }

    fn setsockopt(&mut self, call: &Call) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        let (level, name) = (integer(call, 1)? as c_int, integer(call, 2)? as c_int);
        let value = match argument(call, 3)? {
            Value::Record(fields) => {
                fields.iter().map(|(_, value)| number(value)).collect::<Result<Vec<i64>>>()?
            }
            Value::List(list) => list.iter().map(number).collect::<Result<Vec<i64>>>()?,
            other => vec![number(other)?],
        };
        let answer = self.sockets.set_option(fd, level, name, &value);
        if answer == Err(libc::ENOPROTOOPT) && call.errno.is_none() {
            let name = argument(call, 2)?;
            return Err(format!("the socket option {name:?} is not understood"));
        }
        if answer == Err(libc::EOPNOTSUPP) && call.errno.is_none() {
            return Err("buffers must be sized before the first listen or connect".into());
        }
        Ok(Attempt::Done(answer))
    }

    fn getsockopt(&mut self, call: &Call) -> Result<Attempt> {
        let fd = self.fd(call, 0)?;
        let (level, name) = (integer(call, 1)? as c_int, integer(call, 2)? as c_int);
        let got = self.sockets.option(fd, level, name);
        if let Ok(Value::List(list)) = argument(call, 3)
            && let (Some(Value::Name(error)), Ok(got)) = (list.first(), got)
            && number_of(error).is_none()
        {
            let wanted = error_of(error).ok_or_else(|| format!("`{error}` is not understood"))?;
            if wanted != got {
                return Err(format!("{} was answered, not {error}", error_name(got)));
            }
            return Ok(Attempt::Done(Ok(0)));
        }
        self.compare_one(call, 3, got)
    }

    fn gives_up(&mut self, timeout_ms: i64) {
        let now_us = self.sockets.now_us();
        self.begun_until =
            (timeout_ms >= 0).then(|| now_us.saturating_add(timeout_ms as u64 * 1000));
    }

    fn poll(&mut self, call: &Call, begun: bool) -> Result<Attempt> {
        let Value::List(list) = argument(call, 0)? else { return Err("poll wants a list".into()) };
        let timeout_ms = integer(call, 2)?;
        let (mut count, mut wrong) = (0, None);
        for entry in list {
            let Value::Record(fields) = entry else { return Err("poll wants records".into()) };
            let field = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, v)| number(v));
            let fd = field("fd").unwrap_or(Ok(-1))?;
            let fd = self.fds.get(&fd).copied().unwrap_or(-1);
            let events = field("events").unwrap_or(Ok(0))? as u32;
            let always = (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) as u32;
            let ready = self.sockets.ready(fd) & (events | always);
            count += i64::from(ready != 0);
            if let Some(wanted) = field("revents")
                && wanted? as u32 != ready
            {
                wrong = Some(format!("events {ready:#x} were answered"));
            }
        }
        self.answer_wait(count, timeout_ms, begun, wrong)
    }

    fn answer_wait(
        &mut self,
        count: i64,
        timeout_ms: i64,
        begun: bool,
        wrong: Option<String>,
    ) -> Result<Attempt> {
        if count == 0 && timeout_ms != 0 {
            if !begun {
                self.gives_up(timeout_ms);
            }
            return Ok(Attempt::Blocks);
        }
        match wrong {
            Some(wrong) => Err(wrong),
            None => Ok(Attempt::Done(Ok(count))),
        }
    }

    fn epoll_ctl(&mut self, call: &Call) -> Result<Attempt> {
        let (ep, fd) = (self.fd(call, 0)?, self.fd(call, 2)?);
        let op = integer(call, 1)? as c_int;
        let (events, data) = match argument(call, 3) {
            Ok(Value::Record(fields)) => epoll_event(fields)?,
            _ => (0, 0),
        };
        Ok(Attempt::Done(self.sockets.epoll_ctl(ep, op, fd, events, data)))
    }

    fn epoll_wait(&mut self, call: &Call, begun: bool) -> Result<Attempt> {
        let ep = self.fd(call, 0)?;
        let (max, timeout_ms) = (integer(call, 2)? as usize, integer(call, 3)?);
        let told = match self.sockets.epoll_wait(ep, max) {
            Ok(told) => told,
            Err(error) => return Ok(Attempt::Done(Err(error))),
        };
        let records: Vec<&Value> = match argument(call, 1)? {
            Value::List(list) => list.iter().collect(),
            Value::Dots => Vec::new(),
            one => vec![one],
        };
        let mut wrong = None;
        for (record, got) in records.iter().zip(&told) {
            let Value::Record(fields) = record else { continue };
            let wanted = epoll_event(fields)?;
            if wanted != *got {
                wrong = Some(format!("events {:#x} of {} were answered", got.0, got.1));
            }
        }
        self.answer_wait(told.len() as i64, timeout_ms, begun, wrong)
    }
}

fn epoll_event(fields: &[(String, Value)]) -> Result<(u32, u64)> {
    let (mut events, mut data) = (0, 0);
    for (name, value) in fields {
        match name.as_str() {
            "events" => events = number(value)? as u32,
            _ => data = number(value)? as u64,
        }
    }
    Ok((events, data))
}

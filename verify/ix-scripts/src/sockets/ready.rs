//! What is ready: `poll` and `epoll`.
use super::{Answer, Role, Sockets, Watch};
use libc::c_int;

impl Sockets {
    /// What `poll` says of a descriptor.
    pub fn ready(&self, fd: c_int) -> u32 {
        let Ok(socket) = self.get(fd) else { return libc::POLLNVAL as u32 };
        let (input, output) = (libc::EPOLLIN as u32, libc::EPOLLOUT as u32);
        let (hang_up, error) = (libc::EPOLLHUP as u32, libc::EPOLLERR as u32);
        let read_end = libc::EPOLLRDHUP as u32;
        let mut ready = 0;
        match socket.role {
            Role::Listener if !socket.knocking.is_empty() => ready |= input,
            Role::Listener => {}
            Role::Datagrams(_) => {
                ready |= output | if socket.datagrams_in.is_empty() { 0 } else { input };
                ready |= if socket.error != 0 { error | input } else { 0 };
            }
            Role::Fresh => {
                ready |= output | hang_up | if socket.error != 0 { error | input } else { 0 }
            }
            Role::Connecting => {}
            Role::Connection => {
                let ended = socket.eof || socket.dead.is_some() || socket.shut_read;
                if ended || !socket.received.is_empty() {
                    ready |= input;
                }
                if ended {
                    ready |= read_end;
                }
                let used = socket.flow.send.len();
                let room = self.send_buffer(fd).map_or(0, |all| (all as u64).saturating_sub(used));
                let low = socket.unsent_limit(self.settings.unsent_low);
                let unsent = self.unsent(fd).map_or(0, |unsent| unsent as u64);
                let is_low = unsent.saturating_mul(2) < low;
                let has_room = room > 0 && room >= used / 2 && is_low;
                if has_room || socket.flow.is_shut() || socket.dead.is_some() {
                    ready |= output;
                }
                if socket.dead.is_some() || socket.eof && socket.flow.is_shut() {
                    ready |= hang_up;
                }
                if socket.error != 0 {
                    ready |= error;
                }
            }
        }
        ready
    }

    /// `epoll_create`
    pub fn epoll_create(&mut self) -> Answer {
        let fd = self.number();
        self.epolls.insert(fd, Vec::new());
        Ok(fd.into())
    }

    /// `epoll_ctl`
    pub fn epoll_ctl(&mut self, ep: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> Answer {
        self.get(fd)?;
        let watches = self.epolls.get_mut(&ep).ok_or(libc::EBADF)?;
        let place = watches.iter().position(|watch| watch.fd == fd);
        let watch = Watch { fd, events, data, seen: None, spent: false };
        match (op, place) {
            (libc::EPOLL_CTL_ADD, None) => watches.push(watch),
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_MOD, Some(place)) => watches[place] = watch,
            (libc::EPOLL_CTL_DEL, Some(place)) => drop(watches.remove(place)),
            (_, None) => return Err(libc::ENOENT),
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    }

    /// `epoll_wait` without waiting: events and data.
    pub fn epoll_wait(&mut self, ep: c_int, max: usize) -> Result<Vec<(u32, u64)>, c_int> {
        let mut watches = self.epolls.remove(&ep).ok_or(libc::EBADF)?;
        let mut told = Vec::new();
        for watch in watches.iter_mut().filter(|watch| !watch.spent) {
            let always = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let ready = self.ready(watch.fd) & (watch.events | always);
            let news = self.get(watch.fd).map_or(0, |socket| socket.news);
            let edge = watch.events & libc::EPOLLET as u32 != 0;
            let seen = edge && watch.seen == Some((ready, news));
            if ready == 0 || seen || told.len() >= max {
                continue;
            }
            watch.seen = Some((ready, news));
            watch.spent = watch.events & libc::EPOLLONESHOT as u32 != 0;
            told.push((ready, watch.data));
        }
        self.epolls.insert(ep, watches);
        Ok(told)
    }
}

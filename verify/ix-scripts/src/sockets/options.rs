//! Options of sockets, and figures about them.
use super::{Answer, Role, Sockets};
use ix_abi::FlowOption;
use libc::c_int;
use libix::raw::call;

impl Sockets {
    /// `O_NONBLOCK`
    pub fn set_nonblocking(&mut self, fd: c_int, on: bool) -> Answer {
        self.get_mut(fd)?.nonblocking = on;
        Ok(0)
    }

    pub(super) fn set_nodelay(&mut self, fd: c_int, on: bool) -> Answer {
        let socket = self.get_mut(fd)?;
        socket.nodelay = on;
        let handle = socket.flow.handle;
        if matches!(socket.role, Role::Connection | Role::Connecting) && socket.dead.is_none() {
            self.stack().call(call::set_opt(handle, FlowOption::Nagle(!on))).ok();
            self.push(fd);
            self.settle();
        }
        Ok(0)
    }

    pub(super) fn set_keepalive(&mut self, fd: c_int, on: bool, idle_s: u16) -> Answer {
        let socket = self.get_mut(fd)?;
        (socket.keepalive, socket.keepalive_idle_s) = (on, idle_s);
        let handle = socket.flow.handle;
        if matches!(socket.role, Role::Connection | Role::Connecting) && socket.dead.is_none() {
            let seconds = if on { idle_s } else { 0 };
            self.stack().call(call::set_opt(handle, FlowOption::KeepaliveS(seconds))).ok();
        }
        Ok(0)
    }

    /// Gives the flow the type of service and hop limit of its socket.
    pub(super) fn mark_packets(&mut self, fd: c_int) -> Answer {
        let socket = self.get_mut(fd)?;
        let (handle, dscp, ttl) = (socket.flow.handle, socket.dscp, socket.ttl);
        if let Role::Datagrams(id) = socket.role {
            self.stack().call(call::udp_set_opt(id, FlowOption::Dscp(dscp))).ok();
            self.stack().call(call::udp_set_opt(id, FlowOption::HopLimit(ttl))).ok();
            return Ok(0);
        }
        if socket.role == Role::Listener {
            let (listener, is_v6) = (socket.listener, self.at.local.is_ipv6());
            for option in [FlowOption::Dscp(dscp), FlowOption::HopLimit(ttl)] {
                self.stack().call(call::listen_opt(listener, option, is_v6)).ok();
            }
            return Ok(0);
        }
        let lives = matches!(socket.role, Role::Connection | Role::Connecting);
        if lives && socket.dead.is_none() {
            self.stack().call(call::set_opt(handle, FlowOption::Dscp(dscp))).ok();
            self.stack().call(call::set_opt(handle, FlowOption::HopLimit(ttl))).ok();
        }
        Ok(0)
    }

    /// `setsockopt` with one number, or two (`SO_LINGER`).
    pub fn set_option(&mut self, fd: c_int, level: c_int, name: c_int, value: &[i64]) -> Answer {
        let first = value.first().copied().unwrap_or(0);
        let started = self.started();
        let socket = self.get_mut(fd)?;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_LINGER) => {
                let seconds = value.get(1).copied().unwrap_or(0).max(0) as u32;
                socket.linger = (first != 0).then_some(seconds);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) => {
                socket.send_buffer = first.clamp(2048, 1 << 30) as usize;
                socket.sized_sending = true;
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => {
                if started {
                    return Err(libc::EOPNOTSUPP);
                }
                self.settings.tcp.rcv_buf_bytes = first.clamp(256, 1 << 28) as u32;
            }
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => {
                let idle_s = socket.keepalive_idle_s;
                return self.set_keepalive(fd, first != 0, idle_s);
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_REUSEPORT | libc::SO_DEBUG) => {}
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => return self.set_nodelay(fd, first != 0),
            (libc::IPPROTO_TCP, libc::TCP_CORK) => {
                (socket.corked, socket.more) = (first != 0, false);
                if matches!(socket.role, Role::Connection) {
                    self.push(fd);
                    self.settle();
                }
            }
            (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => {
                let ms = u32::try_from(first).map_err(|_| libc::EINVAL)?;
                let handle = socket.flow.handle;
                if !matches!(socket.role, Role::Connection | Role::Connecting) {
                    return Err(libc::ENOPROTOOPT);
                }
                self.stack().call(call::set_opt(handle, FlowOption::UserTimeoutMs(ms))).ok();
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => {
                let on = socket.keepalive;
                let idle_s = u16::try_from(first).map_err(|_| libc::EINVAL)?;
                return self.set_keepalive(fd, on, idle_s);
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) if !started => {
                self.settings.tcp.keepalive_interval_us = (first * 1_000_000) as u32;
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) if !started => {
                self.settings.tcp.keepalive_probes = first as u8;
            }
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) if !started => {
                self.settings.tcp.mss = self.settings.tcp.mss.min(first as u16);
            }
            (libc::IPPROTO_TCP, libc::TCP_SYNCNT) if !started => {
                self.settings.tcp.syn_retries = first as u8;
            }
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // The ECN bits are the protocol's.
                socket.dscp = (first as u8) >> 2;
                return self.mark_packets(fd);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => {
                socket.ttl = u8::try_from(first).map_err(|_| libc::EINVAL)?;
                return self.mark_packets(fd);
            }
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => {}
            _ => return Err(libc::ENOPROTOOPT),
        }
        Ok(0)
    }

    /// `getsockopt` of a number.
    pub fn option(&mut self, fd: c_int, level: c_int, name: c_int) -> Answer {
        let handle = self.get(fd)?.flow.handle;
        let mss = self.stack.as_ref().and_then(|stack| stack.inspect(handle));
        let default_mss = self.settings.tcp.mss;
        let receive_buffer = i64::from(self.settings.tcp.rcv_buf_bytes);
        let interval_s = i64::from(self.settings.tcp.keepalive_interval_us / 1_000_000);
        let probes = i64::from(self.settings.tcp.keepalive_probes);
        let socket = self.get_mut(fd)?;
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut socket.error).into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => receive_buffer,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if socket.sized_sending => {
                2 * socket.send_buffer as i64
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => socket.send_buffer as i64,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => socket.corked.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => socket.keepalive_idle_s.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => interval_s,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => probes,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => socket.keepalive.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                mss.map_or(default_mss.into(), |(info, _)| info.mss_bytes.into())
            }
            _ => return Err(libc::ENOPROTOOPT),
        })
    }

    /// Octets received and not read (of UDP the next datagram's), and written and not acknowledged.
    pub fn queued(&self, fd: c_int) -> Result<(i64, i64), c_int> {
        let socket = self.get(fd)?;
        let unacknowledged = socket.flow.send.len();
        let next = socket.datagrams_in.front().map_or(0, |(bytes, _)| bytes.len());
        Ok(((socket.received.len() + next) as i64, unacknowledged as i64))
    }

    /// Octets written and not given to the stack.
    pub fn unsent(&self, fd: c_int) -> Result<i64, c_int> {
        Ok(self.get(fd)?.flow.send.unsent() as i64)
    }
}

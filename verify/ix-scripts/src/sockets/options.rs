//! Options of sockets, and figures about them.
use super::{Answer, Role, Sockets};
use crate::values::{TCP_INQ, TCP_NOTSENT_LOWAT};
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
            self.release_now(fd, on);
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
            let (listener, longest) = (socket.listener, FlowOption::SegmentBytes(socket.mss));
            let is_v6 = self.at.local.is_ipv6();
            for option in [FlowOption::Dscp(dscp), FlowOption::HopLimit(ttl), longest] {
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
                // Twice as much, for what the kernel spends on them (`man 7 socket`).
                socket.send_buffer = Some(2 * first.clamp(2304, 1 << 29) as usize);
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
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => socket.unsent_low = first as u32,
            (libc::IPPROTO_TCP, TCP_INQ) => match first {
                0 | 1 => socket.tells_unread = first == 1,
                _ => return Err(libc::EINVAL),
            },
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
            // Of a connection: too late.
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                socket.mss = match first {
                    0 | 88..=32_767 => first as u16,
                    _ => return Err(libc::EINVAL),
                };
                if socket.role == Role::Listener {
                    return self.mark_packets(fd);
                }
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
        let send_buffer = self.send_buffer(fd)? as i64;
        let socket = self.get_mut(fd)?;
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => std::mem::take(&mut socket.error).into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => receive_buffer,
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => send_buffer,
            (libc::IPPROTO_TCP, libc::TCP_CORK) => socket.corked.into(),
            (libc::IPPROTO_TCP, TCP_NOTSENT_LOWAT) => socket.unsent_low.into(),
            (libc::IPPROTO_TCP, TCP_INQ) => socket.tells_unread.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => socket.keepalive_idle_s.into(),
            (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => interval_s,
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => probes,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => socket.keepalive.into(),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => socket.nodelay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => {
                let before = if socket.mss > 0 { socket.mss } else { default_mss };
                mss.map_or(before.into(), |(info, _)| info.mss_bytes.into())
            }
            _ => return Err(libc::ENOPROTOOPT),
        })
    }

    /// What `recvmsg` tells with `TCP_INQ`: how many octets are still unread. The end of the stream
    /// counts as one, so that its reader reads on.
    pub fn unread_told(&self, fd: c_int) -> Option<i64> {
        let socket = self.get(fd).ok().filter(|socket| socket.tells_unread)?;
        let unread = socket.received.len() as i64;
        Some(if unread == 0 && socket.eof { 1 } else { unread })
    }

    /// Octets received and not read (of UDP the next datagram's), and written and not acknowledged.
    pub fn queued(&self, fd: c_int) -> Result<(i64, i64), c_int> {
        let socket = self.get(fd)?;
        let unacknowledged = socket.flow.send.len();
        let next = socket.datagrams_in.front().map_or(0, |(bytes, _)| bytes.len());
        Ok(((socket.received.len() + next) as i64, unacknowledged as i64))
    }

    /// Octets written and not sent.
    pub fn unsent(&self, fd: c_int) -> Result<i64, c_int> {
        let flow = &self.get(fd)?.flow;
        let info = self.stack.as_ref().and_then(|stack| stack.inspect(flow.handle));
        let of_stack = info.map_or(0, |(info, _)| info.snd_unsent_bytes);
        Ok(flow.send.unsent() as i64 + i64::from(of_stack))
    }

    /// Octets that may be written and not acknowledged: as the program has set it, or else what the
    /// host begins with and twice the window, so that there is always more to send.
    pub(super) fn send_buffer(&self, fd: c_int) -> Result<usize, c_int> {
        let socket = self.get(fd)?;
        if let Some(bytes) = socket.send_buffer {
            return Ok(bytes);
        }
        let info = self.stack.as_ref().and_then(|stack| stack.inspect(socket.flow.handle));
        let flights = info.map_or(0, |(info, _)| 2 * info.cwnd_bytes as usize);
        let most = self.settings.send_buffer_max_bytes;
        Ok(flights.min(most).max(self.settings.send_buffer_bytes))
    }
}

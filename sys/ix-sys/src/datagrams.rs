//! Sends and receives many datagrams on a Linux socket in one system call (recvmmsg, sendmmsg).
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// Buffers for a burst of datagrams.
pub struct Datagrams {
    bytes: Box<[u8]>,
    room: usize,
    names: Box<[libc::sockaddr_storage]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    count: usize,
}

impl Datagrams {
    /// Buffers for `datagrams` datagrams of `room` bytes each.
    pub fn new(datagrams: usize, room: usize) -> Datagrams {
        let mut bytes = vec![0; datagrams * room].into_boxed_slice();
        let vectors = bytes
            .chunks_mut(room)
            .map(|chunk| libc::iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: room })
            .collect();
        // SAFETY: all-zero is a valid address and a valid message header.
        let (name, header) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
        Datagrams {
            bytes,
            room,
            names: vec![name; datagrams].into(),
            vectors,
            headers: vec![header; datagrams].into(),
            count: 0,
        }
    }

    /// Receives the datagrams that are there; returns their number. With `wait`, on a socket that
    /// blocks, waits for the first one, at most as long as the socket's read timeout.
    pub fn receive(&mut self, socket: &UdpSocket, wait: bool) -> io::Result<usize> {
        for index in 0..self.headers.len() {
            self.vectors[index].iov_len = self.room;
            let header = &mut self.headers[index].msg_hdr;
            header.msg_name = (&raw mut self.names[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
        }
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        let (headers, room) = (self.headers.as_mut_ptr(), self.headers.len() as libc::c_uint);
        let null = core::ptr::null_mut();
        // SAFETY: each header names a buffer and an address of ours, both as long as it says.
        let n = unsafe { libc::recvmmsg(socket.as_raw_fd(), headers, room, flags, null) };
        self.count = 0;
        if n < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                // The peer has no socket at that port; that is a result too.
                io::ErrorKind::ConnectionRefused => Ok(0),
                _ => Err(error),
            };
        }
        self.count = n as usize;
        Ok(self.count)
    }

    /// Returns datagram `index` of the burst.
    pub fn get(&self, index: usize) -> &[u8] {
        let length = self.headers[..self.count][index].msg_len as usize;
        &self.bytes[index * self.room..][..length.min(self.room)]
    }

    /// Empties the burst.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Appends a datagram to the burst, for a connected socket; `fill` writes it and returns its
    /// length. False if the burst is full.
    pub fn push(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let index = self.count;
        if index == self.headers.len() {
            return false;
        }
        let length = fill(&mut self.bytes[index * self.room..][..self.room]);
        let header = &mut self.headers[index];
        header.msg_hdr.msg_name = core::ptr::null_mut();
        header.msg_hdr.msg_namelen = 0;
        header.msg_len = length.min(self.room) as libc::c_uint;
        self.count += 1;
        true
    }

    /// Sends the burst; received datagrams go back to their senders. Returns the number of
    /// datagrams that the socket accepted; the others are lost.
    pub fn send(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        for index in 0..self.count {
            self.vectors[index].iov_len = self.headers[index].msg_len as usize;
            let header = &mut self.headers[index].msg_hdr;
            header.msg_iov = &raw mut self.vectors[index];
            header.msg_iovlen = 1;
        }
        let mut sent = 0;
        while sent < self.count {
            let rest = &mut self.headers[sent..self.count];
            let (headers, count) = (rest.as_mut_ptr(), rest.len() as libc::c_uint);
            // SAFETY: each header names bytes and an address of ours, both as long as it says.
            let n = unsafe { libc::sendmmsg(socket.as_raw_fd(), headers, count, 0) };
            if n < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ECONNREFUSED) => break,
                    Some(libc::EINTR) => continue,
                    _ => return Err(error),
                }
            }
            sent += n as usize;
        }
        self.count = 0;
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_comes_back() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let (mut here, mut there) = (Datagrams::new(4, 100), Datagrams::new(3, 100));
        for n in 0..4u8 {
            assert!(here.push(|room| {
                room[..10].fill(n);
                10 + usize::from(n)
            }));
        }
        assert!(!here.push(|_| 0), "full");
        assert_eq!(here.send(&client).unwrap(), 4);
        let mut back = Vec::new();
        while back.len() < 4 {
            there.receive(&server, true).unwrap();
            there.send(&server).unwrap();
            for index in 0..here.receive(&client, true).unwrap() {
                back.push(here.get(index).to_vec());
            }
        }
        for (n, datagram) in back.iter().enumerate() {
            assert_eq!((datagram.len(), datagram[0]), (10 + n, n as u8));
        }
        assert_eq!(here.receive(&client, false).unwrap(), 0);
    }
}

//! smoltcp's end: its interface and one socket, in our virtual time.
use super::stack::{ADDRS, Opening, PORTS, Stack};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};
use std::collections::VecDeque;

pub struct Smoltcp {
    wire: Wire,
    iface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    opened: bool,
    /// It has been seen in a state in which only a reset leads to CLOSED.
    ends_itself: bool,
}

struct Wire {
    mtu: usize,
    arrived: VecDeque<Vec<u8>>,
    to_send: Vec<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Leaving<'a>(&'a mut Vec<Vec<u8>>);

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

impl TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let answer = f(&mut packet);
        self.0.push(packet);
        answer
    }
}

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Leaving<'_>)> {
        let packet = self.arrived.pop_front()?;
        Some((Arrived(packet), Leaving(&mut self.to_send)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving(&mut self.to_send))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = self.mtu;
        caps
    }
}

fn at(now_us: u64) -> Instant {
    Instant::from_micros(now_us as i64)
}

fn address(of: usize) -> IpAddress {
    let [a, b, c, d] = ADDRS[of];
    IpAddress::v4(a, b, c, d)
}

impl Smoltcp {
    pub fn new(now_us: u64, mtu: usize, buffer_bytes: usize, timestamps: bool) -> Smoltcp {
        let mut wire = Wire { mtu, arrived: VecDeque::new(), to_send: Vec::new() };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = 4711;
        let mut iface = Interface::new(config, &mut wire, at(now_us));
        iface.update_ip_addrs(|addrs| {
            addrs.push(IpCidr::new(address(1), 24)).expect("room for an address");
        });
        let buffer = || SocketBuffer::new(vec![0; buffer_bytes]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        if timestamps {
            socket.set_tsval_generator(Some(|| 1_000_000));
        }
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Smoltcp { wire, iface, sockets, handle, opened: false, ends_itself: false }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    fn state(&self) -> State {
        self.sockets.get::<Socket>(self.handle).state()
    }
}

impl Stack for Smoltcp {
    fn open(&mut self, _: u64, how: Opening) {
        let socket = self.sockets.get_mut::<Socket>(self.handle);
        match how {
            Opening::Passive => socket.listen(PORTS[1]).expect("listens"),
            Opening::Active => socket
                .connect(self.iface.context(), (address(0), PORTS[0]), PORTS[1])
                .expect("connects"),
        }
    }

    fn input(&mut self, _: u64, packet: &[u8]) {
        self.wire.arrived.push_back(packet.to_vec());
    }

    fn output(&mut self, now_us: u64) -> Vec<Vec<u8>> {
        self.iface.poll(at(now_us), &mut self.wire, &mut self.sockets);
        let state = self.state();
        self.opened |= !matches!(state, State::Listen | State::SynSent | State::SynReceived)
            && state != State::Closed;
        self.ends_itself |= matches!(state, State::LastAck | State::Closing | State::TimeWait);
        std::mem::take(&mut self.wire.to_send)
    }

    fn deadline(&mut self, now_us: u64) -> u64 {
        let due = self.iface.poll_at(at(now_us), &self.sockets);
        due.map_or(u64::MAX, |due| due.total_micros().max(0) as u64)
    }

    fn is_open(&self) -> bool {
        self.opened
    }

    fn send(&mut self, data: &[u8]) -> usize {
        self.socket().send_slice(data).unwrap_or(0)
    }

    fn read(&mut self) -> Vec<u8> {
        let mut data = Vec::new();
        let socket = self.socket();
        while socket.can_recv() {
            let part = socket.recv(|part| (part.len(), part.to_vec()));
            data.extend(part.unwrap_or_default());
        }
        data
    }

    fn at_end(&self) -> bool {
        let socket = self.sockets.get::<Socket>(self.handle);
        let ended = matches!(
            socket.state(),
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait
        );
        self.opened && socket.recv_queue() == 0 && (ended || self.ends_itself)
    }

    fn shutdown(&mut self, _: u64) {
        self.socket().close();
    }

    fn abort(&mut self, _: u64) {
        self.socket().abort();
        self.ends_itself = true;
    }

    fn is_over(&self) -> bool {
        self.opened && matches!(self.state(), State::Closed | State::TimeWait)
    }

    fn was_reset(&self) -> bool {
        self.opened && self.state() == State::Closed && !self.ends_itself
    }

    fn describe(&self) -> String {
        format!("smoltcp: {}", self.state())
    }
}

//! What the elastic thread does besides: it serves a client, an echo that goes on whatever is
//! attacked. Its calls go into the batches of the attacks, behind theirs.
use ix_abi::{
    CALLS_MAX, Call, CallSlot, Endpoint, Event, EventSlot, Handle, RxData, SgArray, SgEntry,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the client connects to.
const PORT: u16 = 7;
/// Connections at a time; the cookie of each is its place, from here on.
const CLIENTS: usize = 16;
const COOKIE: u64 = 0x4543_484f_0000;
/// What is said where a client is not served any more.
pub const UNSERVED: &str = "the client is not served any more";
/// The cookie of the socket whose datagrams may be kept ([`Echo::keep`]).
pub const KEPT: u64 = COOKIE + 0xffff;
/// The cookie of the listener whose connections' data may be kept; theirs is the next one.
pub const STREAM: u64 = 0x5354_524d_0000;
const STREAMING: u64 = STREAM + 1;
/// Transmit memory of a connection: its scatter-gather entry, then its answer.
const CLIENT_BYTES: u64 = 512;
const ANSWER_AT: u64 = 64;
const ANSWER_MAX: u64 = CLIENT_BYTES - ANSWER_AT;

/// Requests answered, by the elastic thread.
static ANSWERED: AtomicU64 = AtomicU64::new(0);

/// Requests answered until now.
pub fn answered() -> u64 {
    ANSWERED.load(Ordering::Relaxed)
}

/// The echo service of an elastic thread.
pub struct Echo {
    array: *mut CallSlot,
    events: *const EventSlot,
    /// Its part of transmit memory; 0: none yet.
    memory: u64,
    handles: [Handle; CLIENTS],
    waiting: VecDeque<Call>,
    /// Answers in the batch at hand, with their slots.
    sending: Vec<(usize, Call)>,
    /// Datagrams that are not given back, where they are kept.
    pub kept: Vec<u64>,
    /// How many were given back at once.
    pub given: u64,
    /// Connections of [`STREAM`], what came of them, and what of that is held: handle and octets.
    pub streams: Vec<u64>,
    pub streamed: u64,
    pub held: Vec<[u64; 2]>,
    /// Cookies of timers that were heard of.
    pub timers: Vec<u64>,
    keeps: bool,
}

impl Echo {
    /// For an elastic thread with these arrays.
    pub fn new(array: *mut CallSlot, events: *const EventSlot) -> Echo {
        let handles = [0; CLIENTS];
        let at = Endpoint { port: PORT, ..Endpoint::default() };
        let waiting =
            VecDeque::from([Call::Listen { at, backlog: 0, cookie: COOKIE, holds: false }]);
        Echo {
            array,
            events,
            memory: 0,
            handles,
            waiting,
            sending: Vec::new(),
            kept: Vec::new(),
            given: 0,
            streams: Vec::new(),
            streamed: 0,
            held: Vec::new(),
            timers: Vec::new(),
            keeps: false,
        }
    }

    /// Transmit memory for [`Echo`] alone.
    pub fn use_memory(&mut self, at: u64) {
        self.memory = at;
    }

    /// Whether a handle is a client's: no attack should hit it by chance.
    pub fn serves(&self, handle: Handle) -> bool {
        self.handles.contains(&handle)
    }

    /// From now on datagrams of the cookie [`KEPT`] and data of [`STREAM`] are kept, or given back
    /// at once.
    pub fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Appends what waits to a batch of so many calls; returns how many it is then.
    pub fn join(&mut self, calls: usize) -> usize {
        let room = CALLS_MAX.saturating_sub(calls).min(self.waiting.len());
        for (slot, call) in self.waiting.drain(..room).enumerate() {
            // SAFETY: a slot of the array, which is the application's to write.
            unsafe { self.array.add(calls + slot).write_volatile(call.encode()) };
            if matches!(call, Call::SendV { .. }) {
                self.sending.push((calls + slot, call));
            }
        }
        calls + room
    }

    /// Reads what a cycle answered: so many events. An answer for which there was no room goes
    /// again.
    pub fn heard(&mut self, events: i64) {
        for (slot, call) in std::mem::take(&mut self.sending) {
            // SAFETY: a slot of the array.
            if unsafe { (&raw const (*self.array.add(slot)).ret).read_volatile() } == 0 {
                self.waiting.push_back(call);
            }
        }
        for index in 0..usize::try_from(events).unwrap_or(0) {
            // SAFETY: the dataplane says how many there are.
            let event = unsafe { self.events.add(index).read_volatile() };
            // One of no known kind is for the attacks to judge.
            if let Ok(event) = Event::decode(&event) {
                self.one(event);
            }
        }
    }

    fn one(&mut self, event: Event) {
        let place = |cookie: u64| {
            let place = cookie.wrapping_sub(COOKIE + 1) as usize;
            (place < CLIENTS).then_some(place)
        };
        match event {
            Event::Knock { listener: COOKIE, handle, .. } => self.knock(handle),
            Event::Knock { listener: STREAM, handle, .. } => {
                self.streams.push(handle);
                self.waiting.push_back(Call::Accept { handle, cookie: STREAMING });
            }
            Event::Recv { cookie: STREAMING, handle, data, .. } => {
                let bytes = u64::from(data.len);
                self.streamed += bytes;
                match self.keeps {
                    true => self.held.push([handle, bytes]),
                    false => self.waiting.push_back(Call::RecvDone { handle, bytes }),
                }
            }
            Event::Recv { cookie, handle, data, .. } => {
                if let Some(place) = place(cookie) {
                    self.echo(place, handle, data);
                }
            }
            Event::Eof { cookie: STREAMING, handle } => {
                self.waiting.push_back(Call::Close { handle });
                self.streams.retain(|stream| *stream != handle);
            }
            Event::Eof { cookie, handle } => {
                if let Some(place) = place(cookie) {
                    self.handles[place] = 0;
                    self.waiting.push_back(Call::Close { handle });
                }
            }
            Event::Dead { cookie: STREAMING, handle, .. } => {
                self.streams.retain(|stream| *stream != handle);
            }
            Event::Dead { cookie, .. } => {
                if let Some(place) = place(cookie) {
                    self.handles[place] = 0;
                }
            }
            Event::Timer { cookie } => self.timers.push(cookie),
            Event::UdpRecv { cookie: KEPT, data, .. } if self.keeps => self.kept.push(data.addr),
            Event::UdpRecv { data, .. } => {
                self.given += 1;
                self.waiting.push_back(Call::UdpRecvDone { data: data.addr });
            }
            _ => {}
        }
    }

    fn knock(&mut self, handle: Handle) {
        let place = self.handles.iter().position(|handle| *handle == 0);
        let Some(place) = place.filter(|_| self.memory != 0) else {
            return self.waiting.push_back(Call::Reject { handle });
        };
        self.handles[place] = handle;
        self.waiting.push_back(Call::Accept { handle, cookie: COOKIE + 1 + place as u64 });
    }

    /// A client sends its next request when it has the answer: so there is one answer at a time.
    fn echo(&mut self, place: usize, handle: Handle, data: RxData) {
        let at = self.memory + place as u64 * CLIENT_BYTES;
        let bytes = u64::from(data.len);
        let len = bytes.min(ANSWER_MAX);
        let entry = SgEntry { base: at + ANSWER_AT, len };
        // SAFETY: received data that is ours to read, and transmit memory of our own.
        unsafe {
            let to = (at + ANSWER_AT) as *mut u8;
            std::ptr::copy_nonoverlapping(data.addr as *const u8, to, len as usize);
            (at as *mut SgEntry).write_volatile(entry);
        }
        self.waiting.push_back(Call::SendV {
            handle,
            sg: SgArray { addr: at, entries: 1 },
            fin: false,
            eor: false,
            done: 0,
        });
        self.waiting.push_back(Call::RecvDone { handle, bytes });
        ANSWERED.fetch_add(1, Ordering::Relaxed);
    }
}

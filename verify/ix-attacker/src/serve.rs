//! What the elastic thread does besides: it serves a client, an echo that goes on whatever is attacked.
//! Its calls go into the batches of the attacks, behind theirs.
use ix_abi::{CALLS_MAX, CallSlot, EventSlot, SgEntry, call_op, event_kind};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the client connects to.
const PORT: u64 = 7;
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
    handles: [u64; CLIENTS],
    waiting: VecDeque<CallSlot>,
    /// Answers in the batch at hand, with their slots.
    sending: Vec<(usize, CallSlot)>,
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

fn call(op: u32, args: &[u64]) -> CallSlot {
    let mut call = CallSlot { op, ..CallSlot::default() };
    call.args[..args.len()].copy_from_slice(args);
    call
}

impl Echo {
    /// For an elastic thread with these arrays.
    pub fn new(array: *mut CallSlot, events: *const EventSlot) -> Echo {
        let handles = [0; CLIENTS];
        let waiting = VecDeque::from([call(call_op::LISTEN, &[0, 0, PORT, 0, COOKIE])]);
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
    pub fn serves(&self, handle: u64) -> bool {
        self.handles.contains(&handle)
    }

    /// From now on datagrams of the cookie [`KEPT`] and data of [`STREAM`] are kept, or given back at once.
    pub fn keep(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Appends what waits to a batch of so many calls; answers how many it is then.
    pub fn join(&mut self, calls: usize) -> usize {
        let room = CALLS_MAX.saturating_sub(calls).min(self.waiting.len());
        for (slot, call) in self.waiting.drain(..room).enumerate() {
            // SAFETY: a slot of the array, which is the application's to write.
            unsafe { self.array.add(calls + slot).write_volatile(call) };
            if call.op == call_op::SENDV {
                self.sending.push((calls + slot, call));
            }
        }
        calls + room
    }

    /// Reads what a cycle answered: so many events. An answer for which there was no room goes again.
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
            self.one(&event);
        }
    }

    fn one(&mut self, event: &EventSlot) {
        let place = event.cookie.wrapping_sub(COOKIE + 1) as usize;
        match event.kind {
            event_kind::KNOCK if event.cookie == COOKIE => self.knock(event.handle),
            event_kind::RECV if place < CLIENTS => self.echo(place, event),
            event_kind::EOF if place < CLIENTS => {
                self.handles[place] = 0;
                self.waiting.push_back(call(call_op::CLOSE, &[event.handle]));
            }
            event_kind::DEAD if place < CLIENTS => self.handles[place] = 0,
            event_kind::KNOCK if event.cookie == STREAM => {
                self.streams.push(event.handle);
                self.waiting.push_back(call(call_op::ACCEPT, &[event.handle, STREAMING]));
            }
            event_kind::RECV if event.cookie == STREAMING => {
                let lent = [event.handle, event.len.into()];
                self.streamed += lent[1];
                match self.keeps {
                    true => self.held.push(lent),
                    false => self.waiting.push_back(call(call_op::RECV_DONE, &lent)),
                }
            }
            event_kind::EOF if event.cookie == STREAMING => {
                self.waiting.push_back(call(call_op::CLOSE, &[event.handle]));
                self.streams.retain(|handle| *handle != event.handle);
            }
            event_kind::DEAD if event.cookie == STREAMING => {
                self.streams.retain(|handle| *handle != event.handle);
            }
            event_kind::TIMER => self.timers.push(event.cookie),
            event_kind::UDP_RECV if event.cookie == KEPT && self.keeps => {
                self.kept.push(event.data);
            }
            event_kind::UDP_RECV => {
                self.given += 1;
                self.waiting.push_back(call(call_op::UDP_RECV_DONE, &[event.data]));
            }
            _ => {}
        }
    }

    fn knock(&mut self, handle: u64) {
        let place = self.handles.iter().position(|handle| *handle == 0);
        let Some(place) = place.filter(|_| self.memory != 0) else {
            return self.waiting.push_back(call(call_op::REJECT, &[handle]));
        };
        self.handles[place] = handle;
        self.waiting.push_back(call(call_op::ACCEPT, &[handle, COOKIE + 1 + place as u64]));
    }

    /// A client sends its next request when it has the answer: so there is one answer at a time.
    fn echo(&mut self, place: usize, event: &EventSlot) {
        let at = self.memory + place as u64 * CLIENT_BYTES;
        let len = u64::from(event.len).min(ANSWER_MAX);
        let entry = SgEntry { base: at + ANSWER_AT, len };
        // SAFETY: received data that is ours to read, and transmit memory of our own.
        unsafe {
            let to = (at + ANSWER_AT) as *mut u8;
            std::ptr::copy_nonoverlapping(event.data as *const u8, to, len as usize);
            (at as *mut SgEntry).write_volatile(entry);
        }
        self.waiting.push_back(call(call_op::SENDV, &[event.handle, at, 1]));
        self.waiting.push_back(call(call_op::RECV_DONE, &[event.handle, event.len.into()]));
        ANSWERED.fetch_add(1, Ordering::Relaxed);
    }
}

//! What must hold in every execution.
use crate::capture::memory::CaptureMemory;
use crate::capture::ring::{Mark, RingReader, RingWriter};
use crate::direction::Direction;
use crate::door::Door;
use crate::metrics::word_ring::WordRing;
use crate::spsc;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::waker::Waker;
use loom::cell::UnsafeCell;
use loom::thread;

/// Values come out once, in order, whole, through a ring that is full and empty on the way.
#[test]
fn a_ring_hands_values_over() {
    loom::model(|| {
        let (mut producer, mut consumer) = spsc::ring::<Box<usize>>(2);
        let sender = thread::spawn(move || {
            let mut sent = 0;
            for value in 1..=3 {
                // A full ring gives the value back; the model must come to an end.
                match producer.push(Box::new(value)) {
                    Ok(()) => sent = value,
                    Err(back) => {
                        assert_eq!(*back, value);
                        break;
                    }
                }
            }
            sent
        });
        let mut got = 0;
        for _ in 0..3 {
            if let Some(value) = consumer.pop() {
                assert_eq!(*value, got + 1);
                got = *value;
            }
        }
        let sent = sender.join().expect("the sender");
        // One stays inside now and then: it goes with the ring.
        while got < sent && got != 2 {
            assert_eq!(*consumer.pop().expect("what was sent is there"), got + 1);
            got += 1;
        }
    });
}

/// What only one may touch: loom fails where two do.
struct Room {
    door: Door,
    inside: UnsafeCell<u64>,
}

impl Room {
    fn touch(&self) {
        // SAFETY: loom fails the model where somebody else touches it.
        self.inside.with_mut(|value| unsafe { *value += 1 });
    }
}

/// Owner and guard are never inside together, and the owner gets in.
#[test]
fn one_at_a_time_is_behind_a_door() {
    loom::model(|| {
        let room = Arc::new(Room { door: Door::default(), inside: UnsafeCell::new(0) });
        let guards = Arc::clone(&room);
        let guard = thread::spawn(move || {
            let holds = guards.door.hold();
            if holds {
                guards.touch();
                guards.door.release();
            }
            u64::from(holds)
        });
        for _ in 0..2 {
            room.door.enter();
            room.touch();
            room.door.leave();
        }
        let turns = 2 + guard.join().expect("the guard");
        room.inside.with(|value| {
            // SAFETY: as above.
            assert_eq!(unsafe { *value }, turns)
        });
    });
}

/// A thread that goes to sleep has seen the work, or is rung.
#[test]
fn nobody_sleeps_beside_work() {
    loom::model(|| {
        let (waker, work) = (Arc::new(Waker::new(-1)), Arc::new(AtomicBool::new(false)));
        let (theirs, theirs_work) = (Arc::clone(&waker), Arc::clone(&work));
        let worker = thread::spawn(move || {
            theirs_work.store(true, Ordering::Release);
            theirs.must_ring()
        });
        waker.set_sleeping(true);
        let seen = work.load(Ordering::Acquire);
        assert!(worker.join().expect("the worker") || seen);
    });
}

/// The same for somebody who wants the thread back from `run_io`; a wish is answered once.
#[test]
fn nobody_sleeps_though_kicked() {
    loom::model(|| {
        let waker = Arc::new(Waker::new(-1));
        let theirs = Arc::clone(&waker);
        let kicker = thread::spawn(move || theirs.kick().is_some());
        waker.set_sleeping(true);
        let seen = waker.take_kick();
        let rung = kicker.join().expect("the kicker");
        assert!(seen || rung);
        assert!(seen != waker.take_kick());
    });
}

/// One direction of a crossing, its bell, and the words of a message.
#[derive(Default)]
struct Post {
    serial: AtomicU64,
    is_asleep: AtomicU32,
    rings: AtomicU64,
    words: AtomicU64,
}

impl Post {
    fn direction(&self) -> Direction<'_> {
        Direction { serial: &self.serial, is_asleep: &self.is_asleep }
    }

    fn send(&self, serial: u64) {
        self.words.store(serial * 10, Ordering::Relaxed);
        if self.direction().publish(serial) {
            self.rings.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits for the message of this number. The bell is a counter here: a thread that would sleep
    /// in
    /// `poll` for ever never comes out, and loom says so.
    fn receive(&self, serial: u64) {
        let direction = self.direction();
        let mut heard = 0;
        while direction.going_to_sleep() != serial {
            while self.rings.load(Ordering::Acquire) == heard {
                thread::yield_now();
            }
            heard = self.rings.load(Ordering::Acquire);
        }
        direction.awake();
        assert_eq!(self.words.load(Ordering::Relaxed), serial * 10, "the words of its message");
    }
}

/// A thread that goes to sleep for a message has seen it, or is rung: no wake-up is lost.
#[test]
fn no_message_of_a_crossing_is_slept_through() {
    loom::model(|| {
        let post = Arc::new(Post::default());
        let theirs = Arc::clone(&post);
        let sender = thread::spawn(move || theirs.send(1));
        let seen = post.direction().going_to_sleep() == 1;
        sender.join().expect("the sender");
        let rung = post.rings.load(Ordering::Relaxed) > 0;
        assert!(seen || rung, "asleep beside a message");
    });
}

/// A request goes one way and its reply the other; both sides sleep whenever they wait, and both
/// come to an end. Words are those of their message.
#[test]
fn a_crossing_goes_there_and_back() {
    loom::model(|| {
        let both = Arc::new([Post::default(), Post::default()]);
        let theirs = Arc::clone(&both);
        let dataplane = thread::spawn(move || {
            let [requests, replies] = &*theirs;
            requests.receive(1);
            replies.send(1);
        });
        let [requests, replies] = &*both;
        requests.send(1);
        replies.receive(1);
        dataplane.join().expect("the dataplane");
    });
}

/// Records are whole and in order, and the last ones are there, however much is overwritten
/// meanwhile.
#[test]
fn no_record_is_torn() {
    loom::model(|| {
        let ring = Arc::new(WordRing::<2, 2>::new());
        let record = |n: u64| [n, n << 32];
        let theirs = Arc::clone(&ring);
        let writer = thread::spawn(move || (1..=3).for_each(|n| theirs.push(record(n))));
        let mut last = 0;
        for [low, high] in ring.read() {
            assert!(low > last && high == low << 32, "{low:x} {high:x} after {last:x}");
            last = low;
        }
        writer.join().expect("the writer");
        assert_eq!(ring.read(), [record(3)]);
    });
}

/// A captured packet is one that was written; what is missing in front of it is counted.
#[test]
fn no_captured_packet_is_torn() {
    const PACKETS: u64 = 3;
    let mut model = loom::model::Builder::new();
    // Without a bound there are too many orders; two changes of thread where none is needed find
    // nearly all mistakes (Musuvathi and Qadeer 2007).
    model.preemption_bound = Some(2);
    model.check(|| {
        // A record without bytes has five words: the second overwrites the first.
        let memory = Arc::new(CaptureMemory::new(6));
        let mut writer = RingWriter::new(Arc::clone(&memory), 0);
        let writes = thread::spawn(move || {
            for number in 0..PACKETS {
                writer.stage(0, core::iter::empty());
                let (time_us, len) = (number + 1, number as u32 + 7);
                writer.publish(&Mark { time_us, len, ..Mark::default() });
            }
        });
        let mut reader = RingReader::new(memory, 0);
        let mut seen = 0;
        let mut look = |seen: &mut u64| {
            for packet in reader.by_ref().take(2) {
                let number = packet.mark.time_us - 1;
                assert_eq!(u64::from(packet.mark.len), number + 7);
                assert_eq!(number, *seen + packet.lost_before);
                *seen = number + 1;
            }
        };
        look(&mut seen);
        writes.join().expect("the writer");
        look(&mut seen);
        assert!(seen <= PACKETS);
    });
}

/// That the models can fail: without the fence a sleeper does not see the work.
#[test]
#[should_panic(expected = "asleep beside work")]
fn a_missing_fence_is_found() {
    loom::model(|| {
        let (sleeps, work) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (theirs, theirs_work) = (Arc::clone(&sleeps), Arc::clone(&work));
        let worker = thread::spawn(move || {
            theirs_work.store(1, Ordering::Release);
            theirs.load(Ordering::Acquire) == 1
        });
        sleeps.store(1, Ordering::Release);
        let seen = work.load(Ordering::Acquire) == 1;
        assert!(worker.join().expect("the worker") || seen, "asleep beside work");
    });
}

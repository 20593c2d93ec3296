//! `ix-attacker queues`: sends on single queues of its vNIC, for `ix attack --vnic`.
//!
//! It has all elastic threads. Each line of its input is an order: `frame THREAD HEX` sends a whole
//! frame, `datagram THREAD ADDRESS:PORT` makes the dataplane's own stack send a datagram. The reply
//! is a line: `sent`, or the error.
use libix::Error;
use libix::raw::{Process, Thread, TxBuf, Wait, call};
use std::error::Error as Fault;
use std::io::BufRead;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

/// IP protocol of its frames: the number for experiments (RFC 3692).
const PROTOCOL: u64 = 253;
/// Port of its datagrams.
const PORT: u16 = 7;
const MEMORY_BYTES: u64 = 2 << 20;
const DATAGRAM: &[u8] = b"not mine to send";
/// Time between two looks for orders, µs.
const TURN_US: u64 = 1000;

/// What one elastic thread is to send.
enum Order {
    /// This frame.
    Frame(Vec<u8>),
    /// A datagram to this address.
    Datagram(SocketAddr),
}

/// Carries out orders until its input ends.
pub fn run() -> Result<(), Box<dyn Fault>> {
    let process = Process::find()?;
    let (told, answers) = channel();
    let mut threads = Vec::new();
    for index in 0..process.threads() {
        let (orders, taken) = channel();
        let told = told.clone();
        threads.push(orders);
        std::thread::spawn(move || {
            let served = Process::find().map_err(Box::from);
            let served = served.and_then(|process| serve(&process, index, &taken, &told));
            if let Err(why) = served {
                let _ = told.send(format!("thread {index} ends: {why}"));
            }
        });
    }
    for _ in &threads {
        println!("{}", answers.recv()?);
    }
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (index, order) = read(&line).ok_or_else(|| format!("`{line}` is no order"))?;
        threads.get(index).ok_or("no such thread")?.send(order)?;
        println!("{}", answers.recv()?);
    }
    Ok(())
}

fn read(line: &str) -> Option<(usize, Order)> {
    let mut words = line.split(' ');
    let (what, thread) = (words.next()?, words.next()?.parse().ok()?);
    let rest = words.next()?;
    let order = match what {
        "frame" => {
            let byte = |at| u8::from_str_radix(rest.get(at..at + 2)?, 16).ok();
            Order::Frame((0..rest.len()).step_by(2).map(byte).collect::<Option<_>>()?)
        }
        "datagram" => Order::Datagram(rest.parse().ok()?),
        _ => return None,
    };
    Some((thread, order))
}

/// One elastic thread, with a packet queue and a port of its own.
fn serve(
    process: &Process,
    index: u32,
    orders: &Receiver<Order>,
    told: &Sender<String>,
) -> Result<(), Box<dyn Fault>> {
    let mut thread = Thread::enter(process, index)?;
    thread.push(call::tx_alloc(MEMORY_BYTES));
    thread.run_io(Wait::Poll)?;
    thread.adopt_tx(0)?;
    thread.push(call::packet_bind(0, ix_abi::packet_kind::IP_PROTOCOL, PROTOCOL, 0));
    thread.push(call::udp_bind((Ipv4Addr::UNSPECIFIED, PORT).into(), 0));
    thread.run_io(Wait::Poll)?;
    let (queue, socket) = (thread.answer(0)?, thread.answer(1)?);
    told.send("ready".to_owned())?;
    loop {
        match orders.try_recv() {
            Ok(order) => {
                let outcome = obey(&mut thread, queue, socket, &order)?;
                told.send(outcome.map_or_else(|e| e.to_string(), |_| "sent".to_owned()))?;
            }
            Err(TryRecvError::Empty) => drop(thread.run_io(Wait::Us(TURN_US))?),
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// Carries out an order. Returns the dataplane's return code; the memory is not used again.
fn obey(
    thread: &mut Thread,
    queue: u64,
    socket: u64,
    order: &Order,
) -> Result<Result<u64, Error>, Box<dyn Fault>> {
    let bytes = match order {
        Order::Frame(bytes) => bytes,
        Order::Datagram(_) => DATAGRAM,
    };
    let mut buf: TxBuf = thread.tx().alloc(bytes.len()).ok_or("no transmit memory")?;
    buf.extend(bytes);
    let piece = std::iter::once(ix_abi::SgEntry { base: buf.base(), len: bytes.len() as u64 });
    let pushed = match order {
        Order::Frame(_) => thread.push_packet_sendv(queue, piece, 0),
        Order::Datagram(to) => thread.push_udp_sendv(socket, *to, piece, 0),
    };
    let (slot, _) = pushed.ok_or("the call array is full")?;
    thread.run_io(Wait::Poll)?;
    std::mem::forget(buf);
    Ok(thread.answer(slot))
}

//! Batches that search for free ports where there are none: connections to one address, and UDP
//! sockets. Nobody else is served while a batch is carried out.
use crate::calls::Calls;
use ix_abi::{Call, Endpoint, v4};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// Calls of a batch; the array has room for an answer of ours beside them.
const CALLS: usize = 1024;
/// Batches after which all ports must be in use.
const BATCHES: usize = 100;

/// Uses up all ports, and searches for more. `away`: an address from which nothing comes. Prints
/// how long the longest batch in vain took.
pub fn attack(c: &Calls, away: Ipv4Addr) -> Result<(), String> {
    let to = Endpoint { addr: v4(away.octets()), port: 9 };
    let connect = Call::Connect { cookie: 1, to, congestion: None, local_port: 0 };
    search(c, "connections", connect)?;
    let at = Endpoint { addr: v4([0; 4]), port: 0 };
    search(c, "sockets", Call::UdpBind { at, cookie: 1 })
}

fn search(c: &Calls, what: &str, call: Call) -> Result<(), String> {
    const IN_VAIN: usize = 3;
    let mut longest = Duration::ZERO;
    let mut in_vain = 0;
    for _ in 0..BATCHES {
        (0..CALLS).for_each(|slot| c.put(slot, call));
        let since = Instant::now();
        let events = c.run(CALLS);
        let took = since.elapsed();
        if events < 0 {
            return Err(format!("{what}: a batch answers {events}"));
        }
        if (0..CALLS).all(|slot| c.ret(slot) < 0) {
            (longest, in_vain) = (longest.max(took), in_vain + 1);
        }
        if in_vain == IN_VAIN {
            println!("{what} in vain: {} ms at the longest", longest.as_millis());
            return Ok(());
        }
    }
    Err(format!("{what}: ports are still free"))
}

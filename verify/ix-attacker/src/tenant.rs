//! A hostile tenant: a program on a shared interface that attacks its own dataplane, and the
//! processes of another tenant, and takes all the processor time that it can get. Every round it
//! prints what succeeded.
use crate::aim::Aim;
use crate::{Gate, in_a_copy, process, rights, shared};
use ix_abi::ProcessHeader;
use std::net::Ipv4Addr;
use std::time::Duration;

const PAGE: usize = 4096;
/// Copies of it that only compute.
const SPINNERS: usize = 8;
/// How long a round attacks its own dataplane.
const ROUND_S: u64 = 1;

/// Whom it attacks.
pub struct Victim {
    /// The victim's `ix run`.
    pub broker: u64,
    /// The addresses of the victim and of its client. A frame from the one to the other in receive
    /// memory of this program is a frame that it must not have.
    pub own: Ipv4Addr,
    pub client: Ipv4Addr,
}

/// Attacks until the process is ended. `Err`: it cannot begin, or its own dataplane stands still.
pub fn run(
    header: *const ProcessHeader,
    gate: Gate,
    seed: u64,
    victim: &Victim,
) -> Result<(), String> {
    let aims = Aim::at_tenant(victim.broker)?;
    for _ in 0..SPINNERS {
        spin();
    }
    // SAFETY: the dataplane's own description of itself.
    let header_of_ours = unsafe { &*header };
    let received = (header_of_ours.rx_base as usize, header_of_ours.rx_len as usize);
    let [.., a, b, c, d] = header_of_ours.local_addr;
    let own = Ipv4Addr::new(a, b, c, d);
    for round in 0.. {
        let (mut refused, mut succeeded) = (0, 0);
        for aim in &aims {
            for (name, attack) in process::ATTACKS.iter().chain(rights::ATTACKS) {
                match in_a_copy(|| attack(aim).map(|()| "it may".to_owned())) {
                    Err(_) => refused += 1,
                    Ok(detail) => {
                        succeeded += 1;
                        println!("{name}: {}: {detail}", aim.what());
                    }
                }
            }
        }
        let foreign = frames(received, victim.client, victim.own);
        let ours = frames(received, victim.client, own);
        println!(
            "round {round}: {refused} refused, {succeeded} succeeded, {foreign} foreign, {ours} own"
        );
        shared::storm_for(header, gate, ROUND_S, seed + round)?;
    }
    Ok(())
}

/// Frames with a packet from one address to another, of which traces are in the memory.
fn frames((at, bytes): (usize, usize), from: Ipv4Addr, to: Ipv4Addr) -> usize {
    // Neighbours in the header of IPv4 (RFC 791 §3.1).
    let both = [from.octets(), to.octets()].concat();
    let mut page = [0; PAGE];
    let mut found = 0;
    for start in (0..bytes).step_by(PAGE) {
        let n = PAGE.min(bytes - start);
        // SAFETY: receive memory, mapped as long as this process lives; a dataplane that writes
        // meanwhile changes what is found only.
        unsafe { std::ptr::copy_nonoverlapping((at + start) as *const u8, page.as_mut_ptr(), n) };
        found += page[..n].windows(both.len()).filter(|window| *window == both).count();
    }
    found
}

/// Starts a copy that computes until this process ends.
fn spin() {
    // SAFETY: the copy makes one system call, then none.
    unsafe {
        if libc::fork() == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                std::hint::spin_loop();
            }
        }
    }
    std::thread::sleep(Duration::from_millis(1));
}

//! The event loop's functions on a model of a dataplane: misuse, and connections that move.
use core::ffi::{c_int, c_void};
use ix_abi::error;
use ix_c::connection::*;
use ix_c::event_loop::*;
use ix_c::io::*;
use ix_c::types::*;
use libix::loopback::{Config, Loopback};
use std::cell::Cell;
use std::ptr::null_mut;

/// What happened, in order; the context of the loops.
#[derive(Default)]
struct Log {
    accepted: Cell<usize>,
    moved: Cell<usize>,
    echoed: Cell<usize>,
    dead: Cell<usize>,
}

fn add(to: &Cell<usize>, n: usize) {
    to.set(to.get() + n);
}

/// The log of a loop.
///
/// # Safety
/// A loop of this file.
unsafe fn log<'a>(of: *mut ix_loop) -> &'a Log {
    // SAFETY: every loop here has a log as its context, which outlives it.
    unsafe { &*ix_loop_context(of).cast() }
}

unsafe extern "C" fn accepted(
    of: *mut ix_loop,
    _: u64,
    peer: *const ix_endpoint,
    state: *mut *mut c_void,
) -> c_int {
    // SAFETY: what the library promises of its callbacks; so in all that follow.
    unsafe {
        assert_ne!((*peer).port, 0);
        *state = core::ptr::from_ref(log(of)).cast_mut().cast();
        add(&log(of).accepted, 1);
        // A cycle within a callback, and freeing the loop, are refused.
        assert_eq!(ix_loop_turn(of, 0), -error::STATE);
        ix_loop_free(of);
    }
    1
}

unsafe extern "C" fn echo(of: *mut ix_loop, conn: u64, state: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        assert!(!state.is_null());
        let n = ix_received_bytes(of, conn);
        assert_eq!(ix_send_received(of, conn, n as usize), n);
        add(&log(of).echoed, n as usize);
    }
}

unsafe extern "C" fn came(of: *mut ix_loop, conn: u64, state: *mut c_void, _: u32) {
    // SAFETY: as above.
    unsafe {
        assert_eq!(ix_state(of, conn), state);
        add(&log(of).moved, 1);
    }
}

unsafe extern "C" fn died(of: *mut ix_loop, _: u64, _: *mut c_void, _: i64) {
    // SAFETY: as above.
    unsafe { add(&log(of).dead, 1) };
}

#[test]
fn connections_move_and_misuse_is_an_answer() {
    let model = Loopback::new(3, Config::default());
    // SAFETY: loops of this thread, used as the header says, freed once at the end.
    unsafe {
        let team = ix_team_new(2);
        let logs = [Log::default(), Log::default(), Log::default()];
        let both = |count: fn(&Log) -> &Cell<usize>| count(&logs[0]).get() + count(&logs[1]).get();
        let table = ix_callbacks {
            size: size_of::<ix_callbacks>(),
            accepted: Some(accepted),
            readable: Some(echo),
            migrate_in: Some(came),
            dead: Some(died),
            ..ix_callbacks::default()
        };
        let make = |index: u32, table, team, log: &Log| {
            let log = core::ptr::from_ref(log).cast_mut();
            ix_loop::on(model.enter(index).expect("a thread"), table, log.cast(), team, None)
        };
        let [first, second, third] = &logs;
        let servers = [
            make(0, table, Some((*team).inner()), first),
            make(1, table, Some((*team).inner()), second),
        ];
        let client = make(2, ix_callbacks::default(), None, third);
        let at = ix_endpoint { addr: ix_abi::v4([10, 0, 0, 1]), port: 7, ..Default::default() };
        for server in servers {
            assert!(ix_listen(server, &at, 0) >= 0);
        }
        let mut conns = [0; 8];
        for conn in &mut conns {
            assert_eq!(ix_connect(client, &at, null_mut(), conn), 0);
        }
        let mut turns = 0;
        let mut sent = 0;
        while both(|log| &log.echoed) < 80_000 {
            for conn in conns {
                let n = if sent < 80_000 {
                    ix_send(client, conn, [7u8; 500].as_ptr().cast(), 500)
                } else {
                    0
                };
                assert!(n >= 0);
                sent += n;
            }
            for of in [servers[0], servers[1], client] {
                assert_eq!(ix_loop_turn(of, 0), 0);
            }
            // The client's groups stay: they are those of number 2 modulo 3.
            if turns % 16 % 3 != 2 {
                model.migrate(turns % 16, turns / 16 % 2);
            }
            turns += 1;
            assert!(turns < 100_000, "it stalled");
        }
        assert!(both(|log| &log.moved) > 0, "none moved");
        // Names that are nobody's: gone, of another loop, invented; and no loop at all.
        assert_eq!(ix_abort(client, conns[0]), 0);
        for nobody in [conns[0], 0, u64::MAX] {
            assert_eq!(ix_send(client, nobody, [0u8; 1].as_ptr().cast(), 1), -error::BAD_HANDLE);
        }
        assert_eq!(ix_send(servers[0], conns[1], null_mut(), 0), -error::BAD_HANDLE);
        assert_eq!(ix_send(null_mut(), conns[1], null_mut(), 0), -error::INVALID);
        assert_eq!(ix_received(client, conns[1], null_mut(), 1), -error::INVALID);
        assert_eq!(ix_connect(client, &at, null_mut(), null_mut()), -error::INVALID);
        ix_loop_free(client);
        while both(|log| &log.dead) < 8 {
            for server in servers {
                assert_eq!(ix_loop_turn(server, 0), 0);
            }
            turns += 1;
            assert!(turns < 200_000, "resets are lost");
        }
        assert_eq!(both(|log| &log.accepted), 8);
        for server in servers {
            ix_loop_free(server);
        }
        ix_team_free(team);
        assert_eq!((model.flows(), model.held_buffers()), (0, 0));
    }
}

//! Keeping all threads out of the dataplane.
use crate::elastic_thread::{ElasticThread, Role, TICK};
use crate::lock::{Guard, lock};
use crate::{signals, wake};

/// Takes the lock when no thread is inside the dataplane. None enters it while the lock is held.
pub fn everyone_outside() -> Guard {
    let mut core = lock();
    // No thread becomes a driver meanwhile, nor does a helper.
    core.stay_out += 1;
    let is_driven = |thread: &ElasticThread| thread.role != Role::Free;
    while let Some(busy) = core.all_elastic_threads().iter().position(is_driven) {
        let wake_fd = wake::own_fd();
        core.elastic_threads[busy].wants_role.push(wake_fd);
        drop(core);
        signals::sleep(wake_fd, None, Some(TICK));
        core = lock();
        core.elastic_threads[busy].wants_role.retain(|other| *other != wake_fd);
    }
    core.stay_out -= 1;
    core
}

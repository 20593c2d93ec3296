//! Wild cookies: the dataplane must return the application's cookies unchanged, whatever they are.
use crate::calls::{Calls, PATIENCE};
use ix_abi::Call;
use ix_random::Rng;
use std::time::Instant;

/// The dataplane must neither follow nor change the application's cookies.
pub fn wild(c: &Calls) -> Result<String, String> {
    const COOKIES: usize = 64;
    let mut random = Rng::new(77);
    let mut cookie = |nth: usize| match nth % 3 {
        _ if c.control => nth as u64,
        0 => c.data as u64 + 8 * nth as u64,
        1 => u64::MAX - nth as u64,
        _ => random.next_u64(),
    };
    let mut wanted: Vec<u64> = (0..COOKIES).map(&mut cookie).collect();
    let set = |(slot, cookie): (usize, &u64)| {
        c.put(slot, Call::TimerSet { cookie: *cookie, delay_us: 1 });
    };
    c.echo.borrow_mut().timers.clear();
    wanted.iter().enumerate().for_each(set);
    c.run(COOKIES);
    if let Some(slot) = (0..COOKIES).find(|&slot| c.ret(slot) < 0) {
        return Ok(format!("a timer is refused: {}", c.ret(slot)));
    }
    let begin = Instant::now();
    while c.echo.borrow().timers.len() < COOKIES && begin.elapsed() < PATIENCE {
        c.cycle(1000);
    }
    let mut heard = std::mem::take(&mut c.echo.borrow_mut().timers);
    heard.sort_unstable();
    wanted.sort_unstable();
    match (heard == wanted, c.control) {
        (true, true) => Ok("its own come back".to_owned()),
        (true, false) => Err(format!("{COOKIES}, all come back as they were")),
        (false, true) => Err("its own do not come back".to_owned()),
        (false, false) => Ok("they come back as others".to_owned()),
    }
}

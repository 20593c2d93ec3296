//! Pages of metrics that were made lately. To make one costs far more than to send it, and whoever
//! reaches the port may ask for it without end: any user of the machine, where it is on the
//! loopback address.
use super::families::Format;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most pages that are made in a second. Further clients get one that is up to as old.
const PAGES_PER_S: usize = 10;
const SECOND: Duration = Duration::from_secs(1);

/// The last page of each format.
#[derive(Debug, Default)]
pub struct Pages {
    made: VecDeque<Instant>,
    last: Vec<(Format, String)>,
}

impl Pages {
    /// A page of this format: a new one, unless many were made lately. An error is not kept.
    pub fn get(
        &mut self,
        format: Format,
        now: Instant,
        make: impl FnOnce() -> Result<String, String>,
    ) -> Result<&str, String> {
        self.made.retain(|at| now.saturating_duration_since(*at) < SECOND);
        let place = self.last.iter().position(|(of, _)| *of == format);
        if let Some(place) = place.filter(|_| self.made.len() >= PAGES_PER_S) {
            return Ok(&self.last[place].1);
        }
        self.made.push_back(now);
        let page = make()?;
        let place = place.unwrap_or_else(|| {
            self.last.push((format, String::new()));
            self.last.len() - 1
        });
        self.last[place].1 = page;
        Ok(&self.last[place].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_made_however_many_are_asked_for() {
        let (mut pages, began, mut made) = (Pages::default(), Instant::now(), 0);
        for ms in 0..10_000u64 {
            for format in [Format::Text, Format::OpenMetrics] {
                let page = pages.get(format, began + Duration::from_millis(ms), || {
                    made += 1;
                    Ok(format!("{format:?} {ms}"))
                });
                let page = page.expect("a page");
                let (of, at) = page.split_once(' ').expect("two words");
                assert_eq!(of, format!("{format:?}"));
                let at: u64 = at.parse().expect("a number");
                assert!(ms - at <= 1000, "{page} at {ms}");
            }
        }
        assert!((90..=110).contains(&made), "{made}");
    }

    #[test]
    fn who_asks_seldom_gets_a_new_one_and_an_error_is_not_kept() {
        let (mut pages, began) = (Pages::default(), Instant::now());
        for n in 0..50u32 {
            let now = began + SECOND / 5 * n;
            let page = pages.get(Format::Text, now, || Ok(n.to_string()));
            assert_eq!(page, Ok(n.to_string().as_str()));
        }
        let later = began + SECOND * 100;
        assert_eq!(pages.get(Format::Text, later, || Err("no".into())), Err("no".into()));
        assert_eq!(pages.get(Format::Text, later, || Ok("yes".into())), Ok("yes"));
    }
}

//! The state of the live view, and how keys change it.
use super::feed::News;
use ix_broker::control::{Change, Found};
use ix_proto::control::{Connections, Query, Sort, Status};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::collections::VecDeque;
use std::time::Duration;

/// Number of snapshots that the curves show.
const HISTORY_MAX: usize = 512;
/// Intervals between which `+` and `-` change.
const INTERVALS_MS: [u64; 7] = [100, 200, 500, 1000, 2000, 5000, 10_000];

/// The page of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// The dataplane.
    Overview,
    /// Its TCP connections.
    Connections,
    /// The help.
    Help,
}

/// What the caller has to do for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Nothing,
    /// End the command.
    Quit,
    /// Ask for the connections.
    Connections,
    /// Read another dataplane, or at another interval.
    Restart,
}

/// Earlier values for the curves, newest last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Packets per second.
    pub rate: f64,
    /// Queueing delay, µs.
    pub delay_us: f64,
    /// The estimate of its tail, µs.
    pub tail_us: f64,
}

/// The state of the view.
pub struct State {
    found: Vec<Found>,
    selected: usize,
    /// Time between two snapshots.
    pub interval: Duration,
    /// The snapshot before the last one.
    before: Option<Status>,
    /// The last snapshot.
    pub now: Option<Status>,
    /// Values of earlier snapshots.
    pub history: VecDeque<Point>,
    /// Why there are no snapshots.
    pub lost: Option<String>,
    /// The page that is shown.
    pub page: Page,
    /// New snapshots are ignored.
    pub paused: bool,
    /// Its connections, or why they cannot be listed.
    pub connections: Option<Result<Connections, String>>,
    /// Their order.
    pub sort: Sort,
    /// The first connection that is shown.
    pub scroll: usize,
}

impl State {
    /// A view of these dataplanes, without a snapshot.
    pub fn new(found: Vec<Found>, selected: usize, interval: Duration) -> State {
        State {
            found,
            selected,
            interval,
            before: None,
            now: None,
            history: VecDeque::new(),
            lost: None,
            page: Page::Overview,
            paused: false,
            connections: None,
            sort: Sort::Rate,
            scroll: 0,
        }
    }

    /// The dataplane that is shown.
    pub fn selected(&self) -> &Found {
        &self.found[self.selected]
    }

    /// Its number among all dataplanes, and how many there are.
    pub fn place(&self) -> (usize, usize) {
        (self.selected + 1, self.found.len())
    }

    /// The difference of the last two snapshots.
    pub fn change(&self) -> Option<Change<'_>> {
        Change::between(self.before.as_ref()?, self.now.as_ref()?)
    }

    /// Handles a message of the feed.
    pub fn hear(&mut self, news: News) {
        match news {
            News::Look(status) if !self.paused => self.take(*status),
            News::Look(_) => {}
            News::Connections(answer) => self.connections = Some(answer),
            News::Lost(why) => self.lost = Some(why),
        }
    }

    /// Handles a snapshot.
    pub fn take(&mut self, status: Status) {
        self.lost = None;
        self.before = self.now.replace(status);
        let Some(status) = &self.now else { return };
        let rate = match self.change() {
            Some(change) => change.total_rate("rx_packets"),
            None => status.rate_per_s(),
        };
        let point = Point { rate, delay_us: status.queueing_delay_us(), tail_us: status.tail_us() };
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(point);
    }

    /// Handles a key.
    pub fn key(&mut self, key: KeyEvent) -> Action {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Action::Quit } else { Action::Nothing };
        }
        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Esc if self.page == Page::Overview => return Action::Quit,
            KeyCode::Esc => self.page = Page::Overview,
            KeyCode::Char('?' | 'h') => self.turn_to(Page::Help),
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('c') => {
                self.turn_to(Page::Connections);
                return Action::Connections;
            }
            KeyCode::Char('s') if self.page == Page::Connections => {
                let at = Sort::ALL.iter().position(|sort| *sort == self.sort).unwrap_or(0);
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
                return Action::Connections;
            }
            KeyCode::Tab | KeyCode::Right => return self.go(1),
            KeyCode::BackTab | KeyCode::Left => return self.go(self.found.len() - 1),
            KeyCode::Char('+' | '=') => return self.faster(),
            KeyCode::Char('-') => return self.slower(),
            KeyCode::Down => self.scroll += 1,
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll += 10,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
            _ => {}
        }
        Action::Nothing
    }

    /// The query for connections.
    pub fn query(&self) -> Query {
        Query { max: 500, sort: self.sort, interval_ms: 500, ..Query::default() }
    }

    fn turn_to(&mut self, page: Page) {
        self.page = if self.page == page && page == Page::Help { Page::Overview } else { page };
        self.scroll = 0;
    }

    /// To another dataplane; those that have come or gone meanwhile are seen then.
    fn go(&mut self, steps: usize) -> Action {
        if self.found.len() < 2 {
            return Action::Nothing;
        }
        self.selected = (self.selected + steps) % self.found.len();
        (self.before, self.now, self.lost, self.connections) = (None, None, None, None);
        self.history.clear();
        self.page = Page::Overview;
        Action::Restart
    }

    fn faster(&mut self) -> Action {
        let now = self.interval.as_millis() as u64;
        self.every(INTERVALS_MS.iter().rev().find(|ms| **ms < now))
    }

    fn slower(&mut self) -> Action {
        let now = self.interval.as_millis() as u64;
        self.every(INTERVALS_MS.iter().find(|ms| **ms > now))
    }

    fn every(&mut self, ms: Option<&u64>) -> Action {
        let Some(ms) = ms else { return Action::Nothing };
        self.interval = Duration::from_millis(*ms);
        Action::Restart
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use ix_broker::control::sample;

    /// One that has looked twice at the sample, of two dataplanes.
    pub fn state() -> State {
        let found = [7, 9].map(|pid| Found { path: format!("/run/ix/{pid}.sock").into(), pid });
        let mut state = State::new(found.to_vec(), 0, Duration::from_secs(1));
        for now_us in [1_000_000, 2_000_000] {
            state.take(sample(now_us));
        }
        state
    }

    fn press(state: &mut State, code: KeyCode) -> Action {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn looks_are_remembered_and_compared() {
        let mut state = state();
        assert_eq!(state.history.back().expect("a point").rate, 1000.0);
        assert_eq!(state.change().expect("two looks").seconds(), 1.0);
        for i in 0..2 * HISTORY_MAX as u64 {
            state.take(sample(3_000_000 + i * 1000));
        }
        assert_eq!(state.history.len(), HISTORY_MAX);
        state.paused = true;
        let now = state.now.as_ref().expect("a look").now_us;
        state.hear(News::Look(Box::new(sample(900_000_000))));
        assert_eq!(state.now.as_ref().expect("a look").now_us, now);
        state.hear(News::Lost("it has ended".to_owned()));
        assert!(state.lost.is_some() && state.now.is_some(), "the last look stays");
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut state = state();
        assert_eq!(press(&mut state, KeyCode::Char('?')), Action::Nothing);
        assert_eq!(state.page, Page::Help);
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Nothing);
        assert_eq!(press(&mut state, KeyCode::Char('c')), Action::Connections);
        assert_eq!(state.page, Page::Connections);
        assert_eq!(press(&mut state, KeyCode::Tab), Action::Restart);
        assert_eq!((state.selected().pid, state.place()), (9, (2, 2)));
        assert!(state.now.is_none() && state.page == Page::Overview);
        assert_eq!(press(&mut state, KeyCode::BackTab), Action::Restart);
        assert_eq!(state.selected().pid, 7);
        assert_eq!(press(&mut state, KeyCode::Char('+')), Action::Restart);
        assert_eq!(state.interval, Duration::from_millis(500));
        for _ in 0..10 {
            press(&mut state, KeyCode::Char('-'));
        }
        assert_eq!(state.interval, Duration::from_secs(10));
        assert_eq!(press(&mut state, KeyCode::Char('-')), Action::Nothing);
        press(&mut state, KeyCode::Char(' '));
        assert!(state.paused);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.key(control_c), Action::Quit);
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Quit);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Action::Quit);
    }
}

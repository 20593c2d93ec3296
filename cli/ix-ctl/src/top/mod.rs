//! `ix top`: a running dataplane on the terminal, live.
//!
//! * `feed`: reads snapshots on a thread of its own, so that the view never waits.
//! * `state`: the state of the view, and what keys do.
//! * `draw`: draws the state.
//! * `screen`: the terminal, which is always restored.
mod draw;
mod feed;
mod parts;
mod screen;
mod state;

use crate::ctl::args::CtlArgs;
use clap::Args;
use feed::Feed;
use ix_broker::control::{Client, Found, all};
use ix_report::problem::{Problem, Result};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use screen::Screen;
use state::{Action, State};
use std::process::ExitCode;
use std::time::Duration;

/// Help of the command.
pub const HELP: &str = "Shows a running dataplane live: rate, queueing delay, the estimate of its \
    tail ⌈Q/B⌉·τ (Q packets wait, at most B are taken in one cycle, which lasts τ), each elastic thread with its averages of the last windows of 10 ms and its shares \
    of time, the load of each flow group in the colour of its thread, drops by reason, and \
    migrations with their phases.\n\n\
    Keys: q quits, space pauses, tab shows the next dataplane, c lists TCP connections and s sorts \
    them, + and - change the interval, ? explains the view. \
    NO_COLOR in the environment turns colours off.\n\n\
    Examples:\n  \
    ix top\n  \
    ix top --pid 4711 --interval 0.2\n  \
    ix top --once            # one view as text, for scripts";

/// Time between two checks for keys and snapshots.
const TURN: Duration = Duration::from_millis(40);

/// Flags of `ix top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// The dataplane to show first
    #[command(flatten)]
    pub dataplane: CtlArgs,
    /// Seconds between two updates
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = interval)]
    pub interval: f64,
    /// Print one view as text, of one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Size of that view
    #[arg(long, value_name = "WIDTHxHEIGHT", requires = "once", value_parser = size)]
    pub size: Option<(u16, u16)>,
}

fn interval(text: &str) -> std::result::Result<f64, &'static str> {
    match text.parse() {
        Ok(seconds) if (0.05..=60.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number of seconds from 0.05 to 60"),
    }
}

fn size(text: &str) -> std::result::Result<(u16, u16), &'static str> {
    let number = |text: &str| text.parse().ok().filter(|n| (1..=1000).contains(n));
    let size = text.split_once('x').and_then(|(w, h)| Some((number(w)?, number(h)?)));
    size.ok_or("not WIDTHxHEIGHT, such as 80x24")
}

/// `ix top`.
pub fn main(args: &TopArgs) -> Result<ExitCode> {
    let (found, selected) = dataplanes(&args.dataplane)?;
    let state = State::new(found, selected, Duration::from_secs_f64(args.interval));
    if args.once {
        let picture = once(state, args.size.unwrap_or((80, 24)))?;
        ix_sys::out!("{picture}");
        return Ok(ExitCode::SUCCESS);
    }
    live(state)
}

/// All dataplanes, and the one to show first.
fn dataplanes(args: &CtlArgs) -> Result<(Vec<Found>, usize)> {
    if let Some(path) = &args.control {
        return Ok((vec![Found { path: path.clone(), pid: 0 }], 0));
    }
    let found = all();
    let first = match args.pid {
        Some(pid) => found.iter().position(|found| found.pid == pid),
        None => (!found.is_empty()).then_some(0),
    };
    match first {
        Some(first) => Ok((found, first)),
        // The error lists the dataplanes, or the folders that were searched.
        None => args.find().map(|path| (vec![Found { path, pid: 0 }], 0)),
    }
}

/// One view, as text.
fn once(mut state: State, (width, height): (u16, u16)) -> Result<String> {
    let mut client = Client::connect(&state.selected().path)?;
    for look in 0..2 {
        if look > 0 {
            std::thread::sleep(state.interval);
        }
        state.take(client.stats()?);
    }
    let terminal = Terminal::new(TestBackend::new(width, height));
    let mut terminal = terminal.map_err(|e| Problem::new("cannot draw the view", e))?;
    let drawn = terminal.draw(|frame| draw::draw(frame, &state));
    drawn.map_err(|e| Problem::new("cannot draw the view", e))?;
    Ok(draw::as_text(terminal.backend().buffer()))
}

/// Shows the view until the user quits.
fn live(mut state: State) -> Result<ExitCode> {
    let mut screen = Screen::open()?;
    let mut feed = Feed::start(state.selected(), state.interval);
    loop {
        while let Some(news) = feed.next() {
            state.hear(news);
        }
        screen.draw(|frame| draw::draw(frame, &state))?;
        for key in screen.keys(TURN)? {
            match state.key(key) {
                Action::Nothing => {}
                Action::Quit => return Ok(ExitCode::SUCCESS),
                Action::Connections => feed.want_connections(state.query()),
                Action::Restart => feed = Feed::start(state.selected(), state.interval),
            }
        }
        if let Some(signal) = screen.signal() {
            return Ok(ExitCode::from(128 + signal));
        }
    }
}

//! The terminal: taken over for the live view, and given back as it was, whatever ends us.
use ix_report::problem::{Problem, Result};
use ix_sys::signal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Frame};
use std::io::{IsTerminal, stdout};
use std::sync::Once;
use std::time::Duration;

/// Signals that would end us with the terminal left in disorder.
const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// The terminal, while it is ours.
pub struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    /// Takes the terminal over.
    pub fn open() -> Result<Screen> {
        if !stdout().is_terminal() {
            return Err(Problem::new("cannot show a live view", "standard output is no terminal")
                .mend("use `ix top --once`, or `ix ctl status`"));
        }
        catch_signals();
        restore_on_panic();
        let open = || {
            enable_raw_mode()?;
            execute!(stdout(), EnterAlternateScreen)?;
            ratatui::Terminal::new(ratatui::backend::CrosstermBackend::new(stdout()))
        };
        match open() {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(e) => {
                restore();
                Err(Problem::new("cannot use the terminal", e))
            }
        }
    }

    /// Shows a picture.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        let drawn = self.terminal.draw(picture);
        drawn.map(drop).map_err(|e| Problem::new("cannot draw on the terminal", e))
    }

    /// Keys that were pressed, waiting so long for the first.
    pub fn keys(&mut self, wait: Duration) -> Result<Vec<KeyEvent>> {
        let mut keys = Vec::new();
        let mut wait = wait;
        let problem = |e| Problem::new("cannot read from the terminal", e);
        while self.signal().is_none() && event::poll(wait).map_err(problem)? {
            if let Event::Key(key) = event::read().map_err(problem)?
                && key.kind != KeyEventKind::Release
            {
                keys.push(key);
            }
            wait = Duration::ZERO;
        }
        Ok(keys)
    }

    /// The signal that wants us to end.
    pub fn signal(&self) -> Option<u8> {
        let came = SIGNALS.into_iter().find(|number| signal::count(*number) > 0);
        came.and_then(|number| u8::try_from(number).ok())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Errors mean that the terminal is gone, and there is nothing to restore.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// The message of a panic must be read on the terminal as it was.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            before(panic);
        }));
    });
}

fn catch_signals() {
    for signal in SIGNALS {
        // All exist and can be caught; waiting is interrupted.
        let _ = signal::catch(signal);
    }
}

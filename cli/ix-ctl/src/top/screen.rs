//! The terminal of the live view. It is always restored, however the command ends.
use ix_report::problem::{Problem, Result};
use ix_sys::signal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::style::Color;
use ratatui::{DefaultTerminal, Frame};
use std::io::{IsTerminal, stdout};
use std::sync::Once;
use std::time::Duration;

/// Signals that would end the command without restoring the terminal.
const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// The terminal during the live view.
pub struct Screen {
    terminal: DefaultTerminal,
    has_colours: bool,
}

impl Screen {
    /// Takes the terminal over.
    pub fn open() -> Result<Screen> {
        if !stdout().is_terminal() {
            return Err(Problem::new(
                "cannot show a live view",
                "standard output is not a terminal",
            )
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
            Ok(terminal) => Ok(Screen { terminal, has_colours: wants_colours() }),
            Err(e) => {
                restore();
                Err(Problem::new("cannot use the terminal", e))
            }
        }
    }

    /// Shows a view.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        let has_colours = self.has_colours;
        let drawn = self.terminal.draw(|frame| {
            picture(frame);
            if !has_colours {
                without_colours(frame.buffer_mut());
            }
        });
        drawn.map(drop).map_err(|e| Problem::new("cannot draw on the terminal", e))
    }

    /// Pressed keys. Waits for the first one for at most this time.
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

    /// The signal that asks the command to end, if one has arrived.
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

/// Whether the user wants colours (<https://no-color.org>).
fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn without_colours(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        cell.fg = Color::Reset;
        cell.bg = Color::Reset;
    }
}

/// Ignores errors: without a terminal there is nothing to restore.
fn restore() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

/// Restores the terminal before the message of a panic is printed.
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

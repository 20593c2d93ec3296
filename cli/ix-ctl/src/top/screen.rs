//! The terminal: taken over for the live view, and given back as it was, whatever ends us.
use ix_report::problem::{Problem, Result};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{DefaultTerminal, Frame};
use std::io::{IsTerminal, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

/// The signal that wants us to end; 0: none.
static SIGNAL: AtomicI32 = AtomicI32::new(0);
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
        u8::try_from(SIGNAL.load(Relaxed)).ok().filter(|signal| *signal > 0)
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
    extern "C" fn note(signal: i32) {
        SIGNAL.store(signal, Relaxed);
    }
    for signal in SIGNALS {
        // SAFETY: the handler only stores to an atomic; no flags, so that waiting is interrupted.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(i32) as usize;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

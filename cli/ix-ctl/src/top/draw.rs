//! Draws the view. It depends only on the state and on the terminal's size.
use super::parts::{self, ACCENT, DIM, WARN};
use super::state::{Page, State};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// Draws the whole view.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.height == 0 || area.width == 0 {
        return;
    }
    let (body, footer) = (area.height - 1, area.bottom() - 1);
    let lines = body_lines(state, usize::from(area.width), usize::from(body));
    frame.render_widget(Paragraph::new(lines), Rect { height: body, ..area });
    let place = Rect { y: footer, height: 1, ..area };
    frame.render_widget(Paragraph::new(footer_line(state)), place);
}

fn body_lines(state: &State, width: usize, height: usize) -> Vec<Line<'static>> {
    let lost = state.lost.as_ref().map(|why| Line::styled(format!(" {why}"), WARN));
    let mut lines = vec![header(state, width), lost.unwrap_or_default()];
    match state.page {
        Page::Help => lines.extend(parts::help()),
        Page::Connections => {
            let room = height.saturating_sub(lines.len());
            lines.extend(parts::connections(state, width, room));
        }
        Page::Overview => overview(&mut lines, state, width, height),
    }
    lines
}

/// The sections, most important first, so that the least important ones do not fit.
fn overview(lines: &mut Vec<Line<'static>>, state: &State, width: usize, height: usize) {
    let Some(view) = &state.now else {
        lines.push(Line::styled(" waiting for the first snapshot", DIM));
        return;
    };
    lines.extend(parts::load(state, view, width));
    lines.push(Line::default());
    let groups = parts::flow_groups(state, view, width);
    // Lines of the other sections, so that many threads leave room for them.
    let rest = groups.len() + 7;
    let room = height.saturating_sub(lines.len() + rest).max(3);
    lines.extend(parts::threads(state, view, width, room));
    lines.push(Line::default());
    lines.extend(groups);
    lines.push(Line::default());
    lines.extend(parts::incidents(state, view, width));
    lines.push(Line::default());
    let room = height.saturating_sub(lines.len());
    lines.extend(parts::migrations(view, room));
}

/// The program, its process and the states of its links.
fn header(state: &State, width: usize) -> Line<'static> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let mut spans = vec![Span::raw(" ")];
    match &state.now {
        Some(view) => {
            spans.push(Span::styled(view.name().to_owned(), bold.patch(ACCENT)));
            spans.push(Span::styled(format!(" {}", view.pid), DIM));
            if let Some(words) = view.wall.words() {
                let quiet = view.wall.refused.values().all(|count| *count == 0);
                let style = if quiet { DIM } else { WARN };
                spans.push(Span::styled(format!("   wall: {words}"), style));
            }
            for (device, link) in view.devices.iter().zip(&view.device_states) {
                let style = if link.contains("up") { DIM } else { WARN };
                spans.push(Span::styled(format!("   {device} {link}"), style));
            }
        }
        None => {
            let path = state.selected().path.display().to_string();
            spans.push(Span::styled(path, bold));
        }
    }
    let (at, of) = state.place();
    let mut right = Vec::new();
    if state.lost.is_some() {
        right.push(Span::styled("no data", WARN));
    } else if state.paused {
        right.push(Span::styled("paused", WARN));
    } else {
        right.push(Span::styled(format!("every {} s", state.interval.as_secs_f64()), DIM));
    }
    if of > 1 {
        right.push(Span::styled(format!("   {at} of {of}"), DIM));
    }
    right.push(Span::raw(" "));
    parts::spread(spans, right, width)
}

fn footer_line(state: &State) -> Line<'static> {
    let mut keys = vec![("q", "quit"), ("space", "pause")];
    if state.place().1 > 1 {
        keys.push(("tab", "next dataplane"));
    }
    match state.page {
        Page::Overview => keys.extend([("c", "connections"), ("+ -", "interval"), ("?", "help")]),
        Page::Connections => {
            keys.extend([("c", "refresh"), ("s", "sort"), ("↑ ↓", "scroll"), ("esc", "back")])
        }
        Page::Help => keys.push(("esc", "back")),
    }
    let mut spans = Vec::new();
    for (key, does) in keys {
        spans.push(Span::styled(format!(" {key} "), ACCENT));
        spans.push(Span::styled(format!("{does}  "), DIM));
    }
    Line::from(spans)
}

/// The characters of a view, without colours.
pub fn as_text(buffer: &Buffer) -> String {
    let mut out = String::new();
    for y in 0..buffer.area.height {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::state;
    use super::*;
    use ix_proto::GroupSet;
    use ix_proto::control::{Connections, Sort};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn picture(state: &State, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        terminal.draw(|frame| draw(frame, state)).expect("draws");
        as_text(terminal.backend().buffer())
    }

    #[test]
    fn all_that_matters_fits_a_small_terminal() {
        let text = picture(&state(), 80, 24);
        for says in [
            "ix-echo 7",
            "tap:ix0 up",
            "1 of 2",
            "every 1 s",
            "1.00k packets/s",
            "12 µs",
            "active",
            "parked",
            "no_flow 10/s",
            "q quit",
            "c connections",
            "128 flow groups",
            "1 → 0",
            "early",
        ] {
            assert!(text.contains(says), "{says}:\n{text}");
        }
        assert_eq!(text.lines().count(), 24);
        assert!(text.lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn no_size_is_too_small_and_no_page_fails() {
        let mut state = state();
        state.connections = Some(Ok(Connections {
            total: 0,
            matched: 0,
            sort: Sort::Rate,
            took_us: 0,
            missing_flow_groups: GroupSet::EMPTY,
            left_out: 0,
            connections: Vec::new(),
        }));
        for page in [Page::Overview, Page::Connections, Page::Help] {
            state.page = page;
            for (width, height) in [(1, 1), (10, 3), (40, 10), (80, 24), (300, 100)] {
                assert_eq!(picture(&state, width, height).lines().count(), usize::from(height));
            }
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let mut state = state();
        state.lost =
            Some("lost the dataplane at /run/ix/7.sock: it closed the connection".to_owned());
        assert!(picture(&state, 80, 24).contains("lost the dataplane"));
        state.lost = None;
        state.paused = true;
        assert!(picture(&state, 80, 24).contains("paused"));
        state.page = Page::Connections;
        state.connections = Some(Err("this dataplane cannot list them".to_owned()));
        assert!(picture(&state, 80, 24).contains("cannot list them"));
    }
}

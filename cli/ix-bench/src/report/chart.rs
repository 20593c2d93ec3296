//! Lines through measured points, as SVG. Colours come from the page's style.
use super::scale::{Kind, Scale};
use super::text::{escape, short};
use std::fmt::Write;

/// Size of a figure in its own units.
pub const WIDTH: f64 = 720.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 20.0;
const BELOW: f64 = 52.0;
/// Width of a character of a legend, roughly.
const CHARACTER: f64 = 6.9;
/// Ticks nearer to each other than this are left out.
const TICK_ROOM: f64 = 26.0;

/// A line through more points than this has no marks.
const MARKS_MAX: usize = 200;

/// One measured point with its extremes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Position along the horizontal axis.
    pub x: f64,
    /// The median, along the upward axis.
    pub y: f64,
    /// Lowest and highest of the runs.
    pub range: (f64, f64),
}

/// Points of one system.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// Class of its colour.
    pub colour: String,
    /// In the order in which they are joined.
    pub points: Vec<Point>,
}

/// Name and scale of an axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What is measured, with its unit.
    pub label: String,
    /// How values become places.
    pub kind: Kind,
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The upward axis.
    pub y: Axis,
    /// A value of the upward axis at which a line is drawn, and its name.
    pub mark: Option<(f64, &'static str)>,
    /// The systems.
    pub series: Vec<Series>,
}

/// The symbol in front of a name in a legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A line with the series' mark.
    Line,
    /// A bar's colour.
    Bar,
}

/// Begins a figure and draws its legend; returns where the plot begins.
pub fn begin(
    svg: &mut String,
    title: &str,
    legend: &[(String, String)],
    key: Key,
    plot: f64,
) -> f64 {
    let mut rows = String::new();
    let (mut x, mut y) = (LEFT, 14.0);
    for (index, (label, colour)) in legend.iter().enumerate() {
        let width = 30.0 + label.chars().count() as f64 * CHARACTER + 18.0;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + 20.0);
        }
        let (x2, top) = (x + 22.0, y - 6.0);
        let sign = match key {
            Key::Line => {
                let mark = marker(index, x + 11.0, y);
                format!("<path class=\"line\" d=\"M{x:.1} {y:.1}H{x2:.1}\"/><g>{mark}</g>")
            }
            Key::Bar => format!(
                "<rect class=\"bar\" x=\"{:.1}\" y=\"{top:.1}\" width=\"12\" height=\"12\" rx=\"2\"/>",
                x + 10.0
            ),
        };
        let _ = write!(
            rows,
            "<g class=\"{colour}\">{sign}</g>\
             <text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 29.0,
            y + 4.0,
            escape(label),
        );
        x += width;
    }
    let top = y + 22.0;
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" \
         aria-label=\"{}\">{rows}",
        top + plot,
        escape(title),
    );
    top
}

/// A mark of the series with this index.
pub fn marker(index: usize, x: f64, y: f64) -> String {
    match index % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"7\" height=\"7\"/>", x - 3.5, y - 3.5),
        2 => format!("<path d=\"M{x:.1} {:.1}l4.6 8h-9.2z\"/>", y - 5.0),
        _ => format!("<path d=\"M{x:.1} {:.1}l5 5l-5 5l-5 -5z\"/>", y - 5.0),
    }
}

/// A vertical line between the extremes of a point, with feet, where they differ visibly.
pub fn whisker(x: f64, (low, high): (f64, f64), scale: &Scale) -> String {
    match (scale.place(low), scale.place(high)) {
        (Some(low), Some(high)) if (low - high).abs() > 1.5 => format!(
            "<path class=\"whisker\" d=\"M{x:.1} {low:.1}V{high:.1}m-4 0h8M{:.1} {low:.1}h8\"/>",
            x - 4.0
        ),
        _ => String::new(),
    }
}

/// A vertical line of the grid with its value below.
pub fn upright(svg: &mut String, x: f64, top: f64, bottom: f64, value: f64) {
    let _ = write!(
        svg,
        "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\"/>",
    );
    text(svg, "tick", x, bottom + 18.0, &short(value));
}

/// Text at a position.
pub fn text(svg: &mut String, class: &str, x: f64, y: f64, words: &str) {
    let words = escape(words);
    let _ = write!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{words}</text>");
}

/// Horizontal lines with their values, and the name of the upward axis.
pub fn upward(svg: &mut String, axis: &Axis, scale: &Scale, top: f64, bottom: f64, right: f64) {
    for tick in scale.ticks(&[]) {
        let Some(y) = scale.place(tick) else { continue };
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\"/>",
        );
        text(svg, "tick end", LEFT - 8.0, y + 4.0, &short(tick));
    }
    let middle = (top + bottom) / 2.0;
    let _ = write!(
        svg,
        "<text class=\"axis\" transform=\"translate(14 {middle:.1}) rotate(-90)\">{}</text>",
        escape(&axis.label),
    );
}

/// The name of the axis along, and the base line.
pub fn along(svg: &mut String, label: &str, bottom: f64) {
    let _ = write!(
        svg,
        "<line class=\"base\" x1=\"{LEFT}\" y1=\"{bottom:.1}\" x2=\"{:.1}\" y2=\"{bottom:.1}\"/>",
        SIDES.1,
    );
    text(svg, "axis", (SIDES.0 + SIDES.1) / 2.0, bottom + 42.0, label);
}

/// Left and right ends of the plot.
pub const SIDES: (f64, f64) = (LEFT, WIDTH - RIGHT);

impl Chart {
    /// The figure.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let legend: Vec<_> =
            self.series.iter().map(|s| (s.label.clone(), s.colour.clone())).collect();
        // Further lines of the same name have no entry in the legend.
        let legend: Vec<_> =
            legend.into_iter().filter(|(label, _): &(String, _)| !label.is_empty()).collect();
        let top = begin(&mut svg, &self.title, &legend, Key::Line, PLOT_HEIGHT + BELOW);
        let bottom = top + PLOT_HEIGHT;
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Scale::over(self.x.kind, points().map(|p| p.x), SIDES.0, SIDES.1);
        let x = if self.x.kind == Kind::Log { x.with_margin(0.03) } else { x };
        let heights = points().flat_map(|p| [p.y, p.range.0, p.range.1]);
        let y = Scale::over(self.y.kind, heights, bottom, top);
        let y = if self.y.kind == Kind::Log { y.with_margin(0.04) } else { y };
        upward(&mut svg, &self.y, &y, top, bottom, SIDES.1);
        self.draw_x(&mut svg, &x, top, bottom);
        if let Some((value, name)) = self.mark
            && let Some(at) = y.place(value).filter(|at| (top..bottom).contains(at))
        {
            let (left, right) = SIDES;
            let _ = write!(svg, "<path class=\"mark\" d=\"M{left} {at:.1}H{right}\"/>",);
            text(&mut svg, "end", right - 4.0, at - 5.0, name);
        }
        for (index, series) in self.series.iter().enumerate() {
            self.draw_series(&mut svg, index, series, &x, &y);
        }
        svg + "</svg>"
    }

    fn draw_x(&self, svg: &mut String, scale: &Scale, top: f64, bottom: f64) {
        let mut measured: Vec<_> =
            self.series.iter().flat_map(|series| series.points.iter().map(|p| p.x)).collect();
        measured.sort_by(f64::total_cmp);
        measured.dedup();
        let mut last = f64::NEG_INFINITY;
        for tick in scale.ticks(&measured) {
            let Some(x) = scale.place(tick).filter(|x| x - last >= TICK_ROOM) else { continue };
            last = x;
            upright(svg, x, top, bottom, tick);
        }
        along(svg, &self.x.label, bottom);
    }

    fn draw_series(&self, svg: &mut String, index: usize, series: &Series, x: &Scale, y: &Scale) {
        let (mut line, mut marks) = (String::new(), String::new());
        for point in &series.points {
            let (Some(px), Some(py)) = (x.place(point.x), y.place(point.y)) else { continue };
            let _ = write!(line, "{}{px:.1} {py:.1}", if line.is_empty() { "M" } else { "L" });
            marks += &whisker(px, point.range, y);
            if series.points.len() > MARKS_MAX {
                continue;
            }
            let _ = write!(
                marks,
                "<g><title>{}: {} at {}</title>{}</g>",
                escape(&series.label),
                escape(&short(point.y)),
                escape(&short(point.x)),
                marker(index, px, py),
            );
        }
        let _ = write!(
            svg,
            "<g class=\"{}\"><path class=\"line\" d=\"{line}\"/>{marks}</g>",
            series.colour
        );
    }
}

//! Bars as SVG: side by side where points have no order, stacked where parts make a whole.
use super::chart::{self, Axis, Key, SIDES};
use super::scale::{Kind, Scale};
use super::text::{escape, short};
use std::fmt::Write;

const PLOT_HEIGHT: f64 = 260.0;
const BELOW: f64 = 60.0;
/// Height of a stacked bar, with its room.
const BAR: f64 = 34.0;
/// Room for the names of stacked bars.
const NAMES: f64 = 190.0;

/// A median with the lowest and highest run, where there is one.
pub type Measured = Option<(f64, f64, f64)>;

/// Bars of several series over the same categories.
#[derive(Clone, Debug)]
pub struct Grouped {
    /// What it shows.
    pub title: String,
    /// What the categories are.
    pub x_label: String,
    /// Name of the upward axis.
    pub y: Axis,
    /// Name of the axis along.
    pub categories: Vec<String>,
    /// For each series: label, class of the colour, and for each category the median and its
    /// extremes.
    pub series: Vec<(String, String, Vec<Measured>)>,
}

impl Grouped {
    /// The figure.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let legend: Vec<_> =
            self.series.iter().map(|(label, colour, _)| (label.clone(), colour.clone())).collect();
        let top = chart::begin(&mut svg, &self.title, &legend, Key::Bar, PLOT_HEIGHT + BELOW);
        let bottom = top + PLOT_HEIGHT;
        let values = self.series.iter().flat_map(|(_, _, v)| v.iter().flatten());
        let scale = Scale::over(Kind::Linear, values.map(|v| v.0.max(v.2)), bottom, top);
        chart::upward(&mut svg, &self.y, &scale, top, bottom, SIDES.1);
        let group = (SIDES.1 - SIDES.0) / self.categories.len().max(1) as f64;
        let bar = (group * 0.8 / self.series.len().max(1) as f64).min(56.0);
        for (index, category) in self.categories.iter().enumerate() {
            let middle = SIDES.0 + group * (index as f64 + 0.5);
            chart::text(&mut svg, "tick", middle, bottom + 18.0, category);
            let start = middle - bar * self.series.len() as f64 / 2.0;
            for (place, (label, colour, values)) in self.series.iter().enumerate() {
                let Some(&Some((value, low, high))) = values.get(index) else { continue };
                let x = start + bar * place as f64;
                let Some(y) = scale.place(value) else { continue };
                let _ = write!(
                    svg,
                    "<g class=\"{colour}\"><rect class=\"bar\" x=\"{:.1}\" y=\"{y:.1}\" \
                     width=\"{:.1}\" height=\"{:.1}\" rx=\"2\"><title>{}, {}: {}</title></rect>",
                    x + 1.0,
                    bar - 2.0,
                    (bottom - y).max(0.0),
                    escape(label),
                    escape(category),
                    escape(&short(value)),
                );
                svg += &chart::whisker(x + bar / 2.0, (low, high), &scale);
                svg += "</g>";
            }
        }
        chart::along(&mut svg, &self.x_label, bottom);
        svg + "</svg>"
    }
}

/// Stacked horizontal bars: each is a whole made of parts.
#[derive(Clone, Debug)]
pub struct Stacked {
    /// What it shows.
    pub title: String,
    /// Unit of the parts.
    pub x_label: String,
    /// Names of the parts.
    pub parts: Vec<String>,
    /// Name of each bar, and its parts.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Stacked {
    /// The figure.
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        let legend: Vec<_> =
            self.parts.iter().enumerate().map(|(i, name)| (name.clone(), colour(i))).collect();
        let height = BAR * self.bars.len() as f64;
        let top = chart::begin(&mut svg, &self.title, &legend, Key::Bar, height + BELOW);
        let bottom = top + height;
        let totals = self.bars.iter().map(|(_, parts)| parts.iter().sum());
        let scale = Scale::over(Kind::Linear, totals, NAMES, SIDES.1 - 40.0);
        for tick in scale.ticks(&[]) {
            if let Some(x) = scale.place(tick) {
                chart::upright(&mut svg, x, top, bottom, tick);
            }
        }
        for (index, bar) in self.bars.iter().enumerate() {
            self.draw_bar(&mut svg, bar, top + BAR * index as f64 + 5.0, &scale);
        }
        chart::text(&mut svg, "axis", (NAMES + SIDES.1) / 2.0, bottom + 42.0, &self.x_label);
        svg + "</svg>"
    }

    /// One bar at this height: its name in front, its sum behind.
    fn draw_bar(&self, svg: &mut String, bar: &(String, Vec<f64>), y: f64, scale: &Scale) {
        let (name, parts) = bar;
        chart::text(svg, "tick end", NAMES - 10.0, y + 16.0, name);
        let mut sum = 0.0;
        for (part, &value) in parts.iter().enumerate() {
            let places = (scale.place(sum), scale.place(sum + value));
            sum += value;
            let (Some(from), Some(to)) = places else { continue };
            let _ = write!(
                svg,
                "<g class=\"{}\"><rect class=\"bar\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
                 height=\"24\"><title>{}: {}</title></rect></g>",
                colour(part),
                (to - from).max(0.0),
                escape(&self.parts[part]),
                escape(&short(value)),
            );
        }
        let end = scale.place(sum).unwrap_or(NAMES);
        chart::text(svg, "tick start", end + 7.0, y + 16.0, &short(sum));
    }
}

/// Class of a part's colour.
fn colour(part: usize) -> String {
    format!("part{}", part % 8)
}

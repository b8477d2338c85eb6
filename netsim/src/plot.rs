//! Plots in SVG: panels of lines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use plotters::coord::Shift;
use plotters::prelude::*;

/// Width and height of a panel in pixels, with its legend.
const PANEL: (u32, u32) = (680, 300);

/// Width of a legend, which is beside the panel and covers no line.
const LEGEND: u32 = 120;

/// Maximum number of lines with a legend. More would not be told apart by their colours.
const NAMED: usize = 10;

/// Maximum number of points of a line over time.
const POINTS: usize = 250;

/// Error when drawing a plot: the message of the backend.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot draw the plot {path}: {reason}", path = path.display())]
pub struct PlotError {
    path: PathBuf,
    reason: String,
}

/// A line of a panel.
#[derive(Clone, Debug)]
pub struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// Returns a line through points with a name.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points }
    }

    /// Returns a line of values, one for each `step` of time, over milliseconds. `combine` makes one of
    /// several values, if there are more than a panel shows.
    pub fn over_time(name: &str, step: Duration, values: &[f64], combine: fn(&[f64]) -> f64) -> Line {
        let group = values.len().div_ceil(POINTS).max(1);
        let at = |i: usize| (i * group) as f64 * step.as_secs_f64() * 1e3;
        let combined = values.chunks(group).map(combine);
        Line::new(name, combined.enumerate().map(|(i, value)| (at(i), value)).collect())
    }
}

/// Scales of the axes of a panel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scale {
    Linear,
    /// The y axis is logarithmic, from 1 on.
    LogarithmicY,
    Logarithmic,
}

/// Axes with lines.
#[derive(Clone, Debug)]
pub struct Panel {
    title: String,
    x_name: String,
    y_name: String,
    lines: Vec<Line>,
    scale: Scale,
}

impl Panel {
    /// Returns a panel with linear axes from 0.
    pub fn new(title: &str, x_name: &str, y_name: &str, lines: Vec<Line>) -> Panel {
        let scale = Scale::Linear;
        Panel { title: title.into(), x_name: x_name.into(), y_name: y_name.into(), lines, scale }
    }

    /// Makes both axes logarithmic.
    pub fn logarithmic(self) -> Panel {
        Panel { scale: Scale::Logarithmic, ..self }
    }

    /// Makes the y axis logarithmic, from 1 on: a spike does not hide the rest.
    pub fn logarithmic_y(self) -> Panel {
        Panel { scale: Scale::LogarithmicY, ..self }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String> {
        let (area, legend) = area.split_horizontally(PANEL.0 - LEGEND);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let largest =
            points().fold((1e-9f64, 1e-9f64), |most, point| (most.0.max(point.0), most.1.max(point.1)));
        let least =
            points().fold((f64::MAX, f64::MAX), |least, point| (least.0.min(point.0), least.1.min(point.1)));
        let mut builder = ChartBuilder::on(&area);
        builder
            .caption(&self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(50);
        let shown = |value: f64| match self.scale {
            Scale::LogarithmicY => value.max(1.0),
            Scale::Linear | Scale::Logarithmic => value,
        };
        macro_rules! draw {
            ($x:expr, $y:expr) => {{
                let mut chart = builder.build_cartesian_2d($x, $y).map_err(|e| e.to_string())?;
                chart
                    .configure_mesh()
                    .x_desc(&self.x_name)
                    .y_desc(&self.y_name)
                    .light_line_style(RGBColor(240, 240, 240))
                    .label_style(("sans-serif", 11))
                    .x_label_formatter(&|value| value.to_string())
                    .y_label_formatter(&|value| {
                        format!("{:.3}", value).trim_end_matches('0').trim_end_matches('.').into()
                    })
                    .draw()
                    .map_err(|e| e.to_string())?;
                for (i, line) in self.lines.iter().enumerate() {
                    let points = line.points.iter().map(|(x, y)| (*x, shown(*y)));
                    let series = LineSeries::new(points, colour(i).stroke_width(1));
                    chart.draw_series(series).map_err(|e| e.to_string())?;
                }
            }};
        }
        match self.scale {
            Scale::Linear => draw!(0.0..largest.0, 0.0..largest.1 * 1.05),
            Scale::LogarithmicY => draw!(0.0..largest.0, (1.0..largest.1.max(2.0) * 1.2).log_scale()),
            Scale::Logarithmic => {
                draw!((least.0..largest.0).log_scale(), (least.1 / 1.2..largest.1 * 1.2).log_scale());
            }
        }
        self.draw_legend(&legend)
    }

    fn draw_legend(&self, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Result<(), String> {
        for (i, line) in self.lines.iter().enumerate().take(NAMED) {
            let y = 40 + 16 * i as i32;
            let sample = PathElement::new([(0, y + 5), (14, y + 5)], colour(i));
            area.draw(&sample).map_err(|e| e.to_string())?;
            let left = self.lines.len() - i;
            let is_rest = i == NAMED - 1 && left > 1;
            let name = if is_rest { format!("and {left} more") } else { line.name.clone() };
            let text = Text::new(name, (18, y), ("sans-serif", 11));
            area.draw(&text).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

fn colour(line: usize) -> RGBAColor {
    Palette99::pick(line).to_rgba()
}

/// Writes a file with panels in the given number of columns.
///
/// # Errors
/// [`PlotError`] if the file cannot be written.
pub fn write(path: &Path, title: &str, columns: usize, panels: &[Panel]) -> Result<(), PlotError> {
    draw(path, title, columns, panels).map_err(|reason| PlotError { path: path.into(), reason })
}

fn draw(path: &Path, title: &str, columns: usize, panels: &[Panel]) -> Result<(), String> {
    let rows = panels.len().div_ceil(columns);
    let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32 + 30);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE).map_err(|e| e.to_string())?;
    let root = root.titled(title, ("sans-serif", 17)).map_err(|e| e.to_string())?;
    for (panel, area) in panels.iter().zip(root.split_evenly((rows, columns))) {
        panel.draw(&area)?;
    }
    root.present().map_err(|e| e.to_string())
}

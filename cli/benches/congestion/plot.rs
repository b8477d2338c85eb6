//! Plots in SVG: panels of lines.

use std::path::PathBuf;
use std::time::Duration;

use plotters::prelude::*;

use crate::Result;

/// Width and height of a panel in pixels.
const PANEL: (u32, u32) = (560, 300);

/// Maximum number of points of a line over time.
const POINTS: usize = 250;

/// Directory of plots.
pub struct Plots {
    directory: PathBuf,
}

/// A line of a panel.
pub struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// Returns a line through points with a name.
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points }
    }

    /// Returns a line of values, one for each `step` of time, over milliseconds. `combine` makes one of several values,
    /// if there are more than a panel shows.
    pub fn over_time(name: &str, step: Duration, values: &[f64], combine: fn(&[f64]) -> f64) -> Line {
        let group = values.len().div_ceil(POINTS).max(1);
        let at = |i: usize| (i * group) as f64 * step.as_secs_f64() * 1e3;
        let combined = values.chunks(group).map(combine);
        Line::new(name, combined.enumerate().map(|(i, value)| (at(i), value)).collect())
    }
}

/// Axes with lines.
pub struct Panel {
    title: String,
    x_name: String,
    y_name: String,
    lines: Vec<Line>,
    /// Whether both axes are logarithmic.
    logarithmic: bool,
}

impl Panel {
    /// Returns a panel with linear axes from 0.
    pub fn new(title: &str, x_name: &str, y_name: &str, lines: Vec<Line>) -> Panel {
        Panel { title: title.into(), x_name: x_name.into(), y_name: y_name.into(), lines, logarithmic: false }
    }

    /// Makes both axes logarithmic.
    pub fn logarithmic(self) -> Panel {
        Panel { logarithmic: true, ..self }
    }

    fn draw(&self, area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>) -> Result<()> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let largest =
            points().fold((0.0f64, 0.0f64), |most, point| (most.0.max(point.0), most.1.max(point.1)));
        let mut builder = ChartBuilder::on(area);
        builder
            .caption(&self.title, ("sans-serif", 15))
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(50);
        macro_rules! draw {
            ($x:expr, $y:expr) => {{
                let mut chart = builder.build_cartesian_2d($x, $y)?;
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
                    .draw()?;
                for (i, line) in self.lines.iter().enumerate() {
                    let colour = Palette99::pick(i).to_rgba();
                    chart
                        .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(1)))?
                        .label(&line.name)
                        .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], colour));
                }
                // More lines would hide the plot.
                if self.lines.len() <= 8 {
                    chart
                        .configure_series_labels()
                        .position(SeriesLabelPosition::UpperRight)
                        .background_style(WHITE.mix(0.8))
                        .label_font(("sans-serif", 10))
                        .draw()?;
                }
            }};
        }
        if self.logarithmic {
            let least = points()
                .fold((f64::MAX, f64::MAX), |least, point| (least.0.min(point.0), least.1.min(point.1)));
            draw!((least.0..largest.0).log_scale(), (least.1 / 1.2..largest.1 * 1.2).log_scale());
        } else {
            draw!(0.0..largest.0, 0.0..largest.1 * 1.05);
        }
        Ok(())
    }
}

impl Plots {
    /// Writes plots to a directory, which exists.
    pub fn new(directory: PathBuf) -> Plots {
        Plots { directory }
    }

    /// Writes a file with panels in the given number of columns.
    pub fn write(&self, file: &str, title: &str, columns: usize, panels: Vec<Panel>) -> Result<()> {
        let path = self.directory.join(file);
        let rows = panels.len().div_ceil(columns);
        let size = (PANEL.0 * columns as u32, PANEL.1 * rows as u32 + 30);
        let root = SVGBackend::new(&path, size).into_drawing_area();
        root.fill(&WHITE)?;
        let root = root.titled(title, ("sans-serif", 17))?;
        for (panel, area) in panels.iter().zip(root.split_evenly((rows, columns))) {
            panel.draw(&area)?;
        }
        root.present()?;
        println!("plot: {}", path.display());
        Ok(())
    }
}

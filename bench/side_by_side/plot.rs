//! SVG plot of a run's results.

use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use crate::Result;
use crate::carrier::Carrier;
use crate::clients::Client;
use crate::job::Op;
use crate::machine::Machine;
use crate::ping::PERCENTILES;
use crate::plan::{self, LinkKind, stream_series};
use crate::table::{Key, Table, bytes};

const SIZE: (u32, u32) = (1400, 1080);
const LARGEST: f64 = (8 << 20) as f64;

struct Line {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// Colours of urxe's series; the series that urxe is compared with are black to grey.
const COLOURS: [RGBColor; 6] = [
    RGBColor(214, 39, 40),
    RGBColor(31, 119, 180),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
];
const GREYS: [RGBColor; 3] = [BLACK, RGBColor(110, 110, 110), RGBColor(170, 170, 170)];

/// Returns a series as a line over message size. For raw datagrams, the last value is extended to the largest
/// size.
fn by_size(table: &Table, name: &str, colour: RGBColor) -> Line {
    let rows = table.rows().filter(|(key, _)| key.series == name && key.size > 0);
    let mut points: Vec<(f64, f64)> =
        rows.filter_map(|(key, _)| Some((key.size as f64, table.spread(key, "Gb/s")?.median))).collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    if let (true, Some((_, last))) =
        ([plan::RAW_UDP, plan::RAW_PACKET].contains(&name), points.last().copied())
    {
        points.push((LARGEST, last));
    }
    Line { name: name.to_owned(), colour, points }
}

fn loopback(table: &Table) -> Vec<Line> {
    let series =
        [(Op::Write, 4096), (Op::Read, 4096), (Op::Send, 4096), (Op::Datagram, 4096), (Op::Write, 1024)];
    let ucx = Client::UcxPut.key(Carrier::Tcp, 0).series;
    let references = [plan::RAW_UDP.into(), plan::IPERF3.into(), ucx].into_iter().zip(GREYS);
    let series = series.map(|(op, mtu)| stream_series(LinkKind::Udp4, op, mtu)).into_iter().zip(COLOURS);
    references.chain(series).map(|(name, colour)| by_size(table, &name, colour)).collect()
}

fn other_links(table: &Table) -> Vec<Line> {
    let series = [
        (LinkKind::Fabric, Op::Write),
        (LinkKind::Veth, Op::Write),
        (LinkKind::Udp6, Op::Write),
        (LinkKind::Fabric, Op::Read),
        (LinkKind::Veth, Op::Read),
        (LinkKind::Veth, Op::Send),
    ];
    let references = [plan::MEMCPY, plan::RAW_PACKET].into_iter().map(String::from).zip(GREYS);
    let series = series.map(|(kind, op)| stream_series(kind, op, 4096)).into_iter().zip(COLOURS);
    references.chain(series).map(|(name, colour)| by_size(table, &name, colour)).collect()
}

/// Returns the throughput for each loss rate, and the labels of the loss rates, which are equally spaced.
fn losses(table: &Table) -> (Vec<Line>, Vec<String>) {
    let mut all: Vec<f64> = plan::LOSSES.into_iter().chain(plan::MORE_LOSSES).collect();
    all.sort_unstable_by(f64::total_cmp);
    all.retain(|loss| table.spread(&plan::lossy(Op::Write, *loss), "Gb/s").is_some());
    let line = |(op, colour): (Op, RGBColor)| {
        let point = |(i, loss): (usize, &f64)| {
            Some((i as f64, table.spread(&plan::lossy(op, *loss), "Gb/s")?.median))
        };
        let points = all.iter().enumerate().filter_map(point).collect();
        Line { name: format!("urxe udp/IPv4, {} 64 KiB", op.name()), colour, points }
    };
    let lines = [Op::Write, Op::Read, Op::Send].into_iter().zip(COLOURS).map(line).collect();
    (lines, all.iter().map(|loss| format!("{} %", loss * 100.0)).collect())
}

fn latencies(table: &Table) -> Vec<Line> {
    let line = |key: Key, colour| {
        let point = |(i, (name, _)): (usize, &(&str, f64))| {
            Some((i as f64, table.spread(&key, name)?.median / 1000.0))
        };
        let points = PERCENTILES.iter().enumerate().filter_map(point).collect();
        Line { name: key.series, colour, points }
    };
    let series = [
        (LinkKind::Udp4, Op::Write),
        (LinkKind::Udp4, Op::Send),
        (LinkKind::Udp6, Op::Write),
        (LinkKind::Veth, Op::Write),
        (LinkKind::Fabric, Op::Write),
    ];
    let references =
        [Key::new(plan::RAW_UDP_PING, 8), Client::UcxPing.key(Carrier::Tcp, 8)].into_iter().zip(GREYS);
    let series = series.map(|(kind, op)| plan::ping(kind, op)).into_iter().zip(COLOURS);
    references.chain(series).map(|(key, colour)| line(key, colour)).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Title, axes and legend of a panel.
struct Axes<'a, X> {
    title: &'a str,
    x: X,
    x_name: &'a str,
    x_labels: usize,
    x_label: &'a dyn Fn(&f64) -> String,
    y_name: &'a str,
    /// Position of the legend, chosen so that it hides no data.
    legend: SeriesLabelPosition,
}

fn panel<X>(area: &Area<'_>, axes: Axes<'_, X>, mut lines: Vec<Line>) -> Result<()>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64> + Ranged<ValueType = f64>,
{
    lines.retain(|line| !line.points.is_empty());
    let values = || lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y);
    let (min, max) = values().fold((f64::MAX, 0.0f64), |(l, m), v| (l.min(v), m.max(v)));
    if lines.is_empty() {
        return Ok(());
    }
    let mut chart = ChartBuilder::on(area)
        .caption(axes.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(axes.x, (min / 1.5..max * 1.5).log_scale())?;
    chart
        .configure_mesh()
        .x_desc(axes.x_name)
        .y_desc(axes.y_name)
        .x_labels(axes.x_labels)
        .x_label_formatter(axes.x_label)
        .light_line_style(RGBColor(238, 238, 238))
        .label_style(("sans-serif", 13))
        .draw()?;
    for line in lines {
        let colour = line.colour;
        let width = if GREYS.contains(&colour) { 1 } else { 2 };
        chart
            .draw_series(LineSeries::new(line.points, colour.stroke_width(width)).point_size(3))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(axes.legend)
        .background_style(WHITE.mix(0.85))
        .label_font(("sans-serif", 12))
        .draw()?;
    Ok(())
}

/// Draws the four panels and writes the file.
pub fn write(path: &Path, machine: &Machine, table: &Table) -> Result<()> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let Machine { date, cpu, cores, kernel, .. } = machine;
    let kind = if machine.virtual_machine { "virtual machine" } else { "machine" };
    let title = format!("urxe side by side: {cpu}, {kind} of {cores} cores, Linux {kernel}, {date}");
    let root = root.titled(&title, ("sans-serif", 18))?;
    let [a, b, c, d] = &root.split_evenly((2, 2))[..] else {
        return Err("the drawing area has no four panels".into());
    };
    let size_label = |x: &f64| bytes(*x as usize);
    let sizes = |title, legend| Axes {
        title,
        x: (6.0..LARGEST * 1.5).log_scale().base(2.0),
        x_name: "bytes of a message (raw: of a datagram)",
        x_labels: 12,
        x_label: &size_label,
        y_name: "Gb/s",
        legend,
    };
    panel(a, sizes("Loopback, two processes", SeriesLabelPosition::LowerRight), loopback(table))?;
    panel(b, sizes("Other links", SeriesLabelPosition::LowerRight), other_links(table))?;
    let (lines, names) = losses(table);
    // Labels are placed at every half step; those between two points are empty.
    let ordinal = |n: usize| (-0.5..n.max(1) as f64 - 0.5).step(0.5);
    let label = |x: &f64| label_of(*x, &names);
    let axes = Axes {
        title: "Goodput by loss, 64 KiB, packets dropped in both directions",
        x: ordinal(names.len()),
        x_name: "packet loss",
        x_labels: 2 * names.len() + 2,
        x_label: &label,
        y_name: "Gb/s",
        legend: SeriesLabelPosition::LowerLeft,
    };
    panel(c, axes, lines)?;
    let names = PERCENTILES.map(|(name, _)| name.to_owned());
    let label = |x: &f64| label_of(*x, &names);
    let axes = Axes {
        title: "Half round trip of 8 bytes, busy-polled",
        x: ordinal(names.len()),
        x_name: "percentile",
        x_labels: 2 * names.len() + 2,
        x_label: &label,
        y_name: "µs",
        legend: SeriesLabelPosition::UpperLeft,
    };
    panel(d, axes, latencies(table))?;
    Ok(root.present()?)
}

/// Returns the label at an axis position: `names[x]` if `x` is a whole number, otherwise an empty string.
fn label_of(x: f64, names: &[String]) -> String {
    match x >= -0.01 && (x - x.round()).abs() < 0.01 {
        true => names.get(x.round() as usize).cloned().unwrap_or_default(),
        false => String::new(),
    }
}

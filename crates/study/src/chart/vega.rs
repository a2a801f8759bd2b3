//! Figures as Vega-Lite specifications.

use serde_json::{Map, Value, json};

use super::axis::{self, Axis};
use super::look::{Look, PIECE};
use super::map::TIE_SHARE;
use crate::figure::{Best, Figure, Panel, Scale};

/// The version must fit the library in `assets/vega`.
const SCHEMA: &str = "https://vega.github.io/schema/vega-lite/v6.json";

/// Pixels of one panel, if it is the only one and if there are more.
const ALONE: (u32, u32) = (720, 400);
const TOGETHER: (u32, u32) = (380, 250);
/// Pixels of a letter of an axis's labels.
const LETTER_WIDTH: f64 = 7.2;
/// Numbers are written with a comma between thousands, without zeros at the end.
const NUMBER: &str = ",.12~g";

/// `figure` as a Vega-Lite 6 specification with its data inside: panels in a grid, lines with
/// marks, a band for the spread, and the numbers of a point when it is pointed at.
///
/// In a map the cells are coloured by their winners among the curves that are not hidden.
///
/// A choice in the legend singles curves out (parameter `chosen`); the parameter `hidden` is the
/// list of the names that are not drawn at all.
pub fn vega_lite(figure: &Figure) -> Value {
    let figure = figure.tidy();
    let panels: Vec<&str> = figure.panels.iter().map(|panel| panel.title.as_str()).collect();
    let (width, height) = match figure.columns {
        1 if panels.len() < 2 => ALONE,
        1 | 2 => TOGETHER,
        columns => (TOGETHER.0 * 2 / columns as u32, TOGETHER.1),
    };
    let layers = if figure.row_label.is_some() { map_layers(&figure) } else { layers(&figure, width) };
    let y_resolve = if figure.shared_y { "shared" } else { "independent" };
    json!({
        "$schema": SCHEMA,
        "description": figure.title,
        "params": [{ "name": "hidden", "value": [] }],
        "data": { "values": rows(&figure) },
        "facet": {
            "field": "panel", "type": "nominal", "sort": panels,
            "header": { "title": null, "labelFontSize": 13, "labelFontWeight": "bold" },
        },
        "columns": figure.columns,
        "spec": { "width": width, "height": height, "layer": layers },
        "resolve": { "scale": { "y": y_resolve }, "axis": { "x": "independent", "y": "independent" } },
        "config": { "legend": legend(&figure) },
    })
}

/// A legend below the panels in as many columns as the names leave room for.
fn legend(figure: &Figure) -> Value {
    let longest = figure.curve_names().iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let columns = (ALONE.0 as usize / (60 + 8 * longest)).clamp(1, 8);
    let mut legend = json!({
        "orient": "bottom", "columns": columns, "labelFontSize": 13, "labelLimit": ALONE.0, "symbolOpacity": 1,
        "symbolSize": 90,
    });
    if figure.row_label.is_none() {
        // At this size paths are in pixels; they are wider than the room that it leaves them.
        let sizes = [
            ("symbolSize", 4),
            ("labelOffset", PIECE),
            ("rowPadding", 4),
            ("columnPadding", PIECE + 12),
            ("padding", PIECE),
        ];
        for (key, value) in sizes.into_iter().chain([("symbolStrokeWidth", 0)]) {
            legend[key] = value.into();
        }
    }
    legend
}

/// One row for each point.
fn rows(figure: &Figure) -> Vec<Value> {
    let (names, mut rows) = (figure.curve_names(), Vec::new());
    for panel in &figure.panels {
        for curve in &panel.curves {
            let shape = Look::named(&names, &curve.name).shape.vega();
            for point in &curve.points {
                rows.push(json!({
                    "panel": panel.title, "curve": curve.name, "shape": shape, "x": point.x, "row": curve.row,
                    "mean": point.mean, "low": point.low, "high": point.high, "runs": point.runs,
                }));
            }
        }
    }
    rows
}

/// The band, the lines, and the marks on top, which answer to the pointer, in panels of `width`
/// pixels.
fn layers(figure: &Figure, width: u32) -> Value {
    let shown = json!([{ "filter": "indexof(hidden, datum.curve) < 0" }]);
    let x = json!({
        "field": "x", "type": "quantitative", "title": figure.x_label, "scale": x_scale(figure.x_scale),
        "axis": x_axis(figure, width),
    });
    let y = |field: &str| {
        json!({
            "field": field, "type": "quantitative", "title": figure.y_label, "scale": y_scale(figure),
            "axis": y_axis(figure),
        })
    };
    let (y, low) = (y("mean"), y("low"));
    let colour = channel(figure, |look| json!(look.hex()));
    // The scale of shapes is for the legend alone, which shows pieces of curves: the data has the
    // shapes of marks.
    let piece = channel(figure, |look| json!(look.path()));
    let dash =
        channel(figure, |look| look.dash.map_or(json!([]), |(drawn, left_out)| json!([drawn, left_out])));
    let chosen = |opacity: f64, otherwise: f64| json!({ "condition": { "param": "chosen", "value": opacity }, "value": otherwise });
    json!([
        {
            "transform": [{ "filter": "false" }],
            "params": [{
                "name": "chosen", "bind": "legend", "select": { "type": "point", "fields": ["curve"] },
            }],
            "mark": { "type": "point", "filled": true },
            "encoding": { "x": x, "y": y, "color": colour, "shape": piece },
        },
        {
            "transform": shown,
            "mark": { "type": "area", "tooltip": null },
            "encoding": {
                "x": x, "y": low, "y2": { "field": "high" }, "color": colour, "opacity": chosen(0.15, 0.02),
            },
        },
        {
            "transform": shown,
            "mark": { "type": "line", "strokeWidth": 2, "tooltip": null },
            "encoding": { "x": x, "y": y, "color": colour, "strokeDash": dash, "opacity": chosen(1.0, 0.15) },
        },
        {
            "transform": shown,
            "mark": { "type": "point", "filled": true, "size": 45, "shape": { "expr": "datum.shape" } },
            "encoding": {
                "x": x, "y": y, "color": colour,
                "opacity": chosen(1.0, 0.15), "tooltip": tooltip(figure),
            },
        },
    ])
}

/// The cells of a map, each with the name of its winner among the curves that are not hidden.
fn map_layers(figure: &Figure) -> Value {
    let (order, nearest, behind) = match figure.best {
        Best::Lowest => ("ascending", "min", ["mean", "best"]),
        Best::Highest => ("descending", "max", ["best", "mean"]),
    };
    let behind = behind.map(|field| format!("datum.{field}")).join(" / ") + " - 1";
    let cell = json!(["panel", "x", "row"]);
    // The first place names all that tie with it, and is kept once.
    let transform = json!([
        { "filter": "indexof(hidden, datum.curve) < 0" },
        {
            "window": [{ "op": "row_number", "as": "place" }],
            "sort": [{ "field": "mean", "order": order }], "groupby": cell,
        },
        { "joinaggregate": [{ "op": nearest, "field": "mean", "as": "best" }], "groupby": cell },
        { "calculate": behind, "as": "margin" },
        { "calculate": format!("datum.place == 1 || datum.margin < {TIE_SHARE}"), "as": "wins" },
        { "calculate": "datum.wins ? null : datum.margin", "as": "others" },
        { "joinaggregate": [{ "op": "min", "field": "others", "as": "next" }], "groupby": cell },
        { "filter": "datum.wins" },
        { "joinaggregate": [{ "op": "values", "field": "curve", "as": "tied" }], "groupby": cell },
        { "filter": "datum.place == 1" },
        { "calculate": "join(pluck(datum.tied, 'curve'), ' = ')", "as": "winners" },
        { "calculate": "length(datum.tied) > 1 ? 'tie' : datum.curve", "as": "name" },
        {
            "calculate": "!isValid(datum.next) ? '' : datum.next < 0.005 ? '<1%' \
                          : datum.next < 0.995 ? '+' + format(datum.next, '.0%') \
                          : 'x' + format(1 + datum.next, datum.next < 8.995 ? '.1f' : '.0f')",
            "as": "behind",
        },
    ]);
    let axis = json!({ "labelAngle": 0, "labelExpr": "format(datum.value, ',')" });
    let x = json!({ "field": "x", "type": "ordinal", "title": figure.x_label, "axis": axis });
    let y = json!({ "field": "row", "type": "ordinal", "title": figure.row_label, "sort": "descending", "axis": axis });
    let number = |field: &str, title: &str, format: &str| json!({ "field": field, "type": "quantitative", "title": title, "format": format });
    let tooltip = json!([
        { "field": "winners", "type": "nominal", "title": figure.best.name() },
        number("mean", &figure.y_label, ",.6~r"),
        number("next", "the next is behind by", ".1%"),
    ]);
    // A tie has no curve's colour; the legend lists curves only.
    let mut colour = channel(figure, |look| json!(look.hex()));
    colour["condition"] = json!({ "test": "length(datum.tied) > 1", "value": "#dddddd" });
    json!([
        {
            "transform": transform,
            "mark": { "type": "rect", "opacity": 0.45, "stroke": null },
            "encoding": { "x": x, "y": y, "color": colour, "tooltip": tooltip },
        },
        {
            "transform": transform,
            "mark": { "type": "text", "dy": -7, "fontSize": 13, "fontWeight": "bold", "tooltip": null },
            "encoding": { "x": x, "y": y, "text": { "field": "name", "type": "nominal" } },
        },
        {
            "transform": transform,
            "mark": { "type": "text", "dy": 9, "fontSize": 11, "tooltip": null },
            "encoding": { "x": x, "y": y, "text": { "field": "behind", "type": "nominal" } },
        },
    ])
}

/// A channel that distinguishes curves, with the look that each curve has in every chart.
fn channel(figure: &Figure, of: impl Fn(Look) -> Value) -> Value {
    let names = figure.curve_names();
    let looks: Vec<Value> = (0..names.len()).map(|i| of(Look::of(i))).collect();
    json!({ "field": "curve", "type": "nominal", "title": null, "scale": { "domain": names, "range": looks } })
}

fn tooltip(figure: &Figure) -> Value {
    let number = |field: &str, title: &str| json!({ "field": field, "type": "quantitative", "title": title, "format": ",.6~r" });
    json!([
        { "field": "curve", "type": "nominal", "title": "curve" },
        number("x", &figure.x_label),
        number("mean", &figure.y_label),
        number("low", "spread from"),
        number("high", "spread to"),
        { "field": "runs", "type": "quantitative", "title": "runs" },
    ])
}

fn x_scale(scale: Scale) -> Value {
    match scale {
        Scale::Linear => json!({ "zero": false, "nice": false, "padding": 8 }),
        Scale::Log2 => json!({ "type": "log", "base": 2, "nice": false, "padding": 8 }),
    }
}

/// Ticks where the images have them, so that they do not depend on what a browser finds round.
fn x_axis(figure: &Figure, width: u32) -> Value {
    let xs: Vec<f64> = figure.panels.iter().flat_map(Panel::xs).collect();
    let ticks = Axis::side_by_side(&xs, figure.x_scale, f64::from(width) / LETTER_WIDTH);
    let labels: Map<String, Value> =
        ticks.labelled().map(|(value, label)| (value.to_string(), label.into())).collect();
    let values: Vec<f64> = ticks.labelled().map(|(value, _)| value).collect();
    json!({ "values": values, "labelExpr": format!("({})[datum.value] || datum.label", json!(labels)), "labelOverlap": true })
}

/// Few ticks on a logarithmic axis: with more, the browser's library takes other values than
/// powers.
fn y_axis(figure: &Figure) -> Value {
    match figure.y_scale {
        Scale::Linear if figure.points().all(|point| point.mean.fract() == 0.0) => {
            json!({ "format": NUMBER, "tickMinStep": 1 })
        }
        Scale::Linear => json!({ "format": NUMBER }),
        Scale::Log2 => json!({ "format": NUMBER, "tickCount": 5 }),
    }
}

fn y_scale(figure: &Figure) -> Value {
    let means: Vec<f64> = figure.points().map(|point| point.mean).collect();
    match figure.y_scale {
        Scale::Linear => json!({ "zero": true }),
        Scale::Log2 => json!({ "type": "log", "base": if axis::is_decimal(&means) { 10 } else { 2 } }),
    }
}

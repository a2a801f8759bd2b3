//! What every presentation of a figure shows, and what it survives.

use crate::common::{example, hostile, sizes};
use serde_json::Value;
use treecast_study::chart::{self, Ink};
use treecast_study::figure::{Curve, Figure, Panel, Point};
use treecast_study::page;
use treecast_study::table::{Rows, table};

fn width(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or_default()
}

/// A figure without panels, without curves, with one panel and with hostile contents.
fn edges() -> Vec<Figure> {
    let without_panels = Figure { panels: Vec::new(), ..example() };
    let without_curves =
        Figure { panels: vec![Panel { title: String::new(), curves: Vec::new() }], ..example() };
    vec![without_panels, without_curves, sizes(), hostile()]
}

#[test]
fn a_table_of_four_curves_thinned_to_ten_rows() {
    let text = table(&example(), 100, Rows::AtMost(10));
    assert!(width(&text) <= 100);
    insta::assert_snapshot!(text.split("R = 1").next().unwrap_or_default());
}

#[test]
fn a_table_too_wide_for_its_curves_goes_on_below_with_one_winner_a_row() {
    let text = table(&sizes(), 100, Rows::All);
    assert!(width(&text) <= 100);
    insta::assert_snapshot!(text);
}

#[test]
fn a_thinned_table_keeps_the_first_and_the_last_row() {
    let text = table(&example(), 100, Rows::AtMost(3));
    let xs: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.parse::<u32>().is_ok())
        .collect();
    assert_eq!(xs, ["1", "16", "31"].repeat(4));
}

#[test]
fn panels_stand_side_by_side_in_a_wide_terminal() {
    let text = chart::terminal(&example(), 100, 16, Ink::Plain);
    assert!(width(&text) <= 100);
    insta::assert_snapshot!(text);
}

#[test]
fn panels_stand_below_each_other_in_a_narrow_terminal() {
    let text = chart::terminal(&example(), 60, 12, Ink::Plain);
    assert!(width(&text) <= 60);
    insta::assert_snapshot!(text);
}

#[test]
fn a_logarithmic_chart_in_the_terminal() {
    insta::assert_snapshot!(chart::terminal(&sizes(), 90, 20, Ink::Plain));
}

#[test]
fn colours_change_nothing_but_colours() {
    let plain = chart::terminal(&example(), 100, 16, Ink::Plain);
    let mut coloured = chart::terminal(&example(), 100, 16, Ink::Colour);
    assert!(!plain.contains('\u{1b}'));
    assert!(coloured.contains("\u{1b}[34m"));
    while let Some(start) = coloured.find('\u{1b}') {
        let end = start + coloured[start..].find('m').expect("an escape ends in m");
        coloured.replace_range(start..=end, "");
    }
    assert_eq!(coloured, plain);
}

#[test]
fn an_svg_image_names_its_title_axes_panels_and_curves() {
    let text = chart::svg(&example()).unwrap();
    let image = roxmltree::Document::parse(&text).unwrap();
    let texts: Vec<&str> = image.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for expected in [
        "R = 0.5",
        "R = 1",
        "R = 2",
        "R = 5",
        "ni",
        "tree",
        "path",
        "uni",
        "destinations",
        "latency (cycles)",
    ] {
        assert!(texts.contains(&expected), "{expected} is missing");
    }
    assert!(texts.contains(&"Latency of one multicast, by the ratio of host to NIC overhead"));
    let lines = image.descendants().filter(|node| node.attribute("stroke") == Some("#0072B2"));
    assert_eq!(lines.filter(|node| node.has_tag_name("polyline")).count(), 5, "four curves and the legend");
}

#[test]
fn everything_in_an_svg_image_lies_inside_it() {
    for figure in [example(), sizes()] {
        let text = chart::svg(&figure).unwrap();
        let image = roxmltree::Document::parse(&text).unwrap();
        let number = |node: roxmltree::Node, name| node.attribute(name).and_then(|n| n.parse::<f64>().ok());
        let (width, height) = (number(image.root_element(), "width"), number(image.root_element(), "height"));
        for node in image.descendants() {
            for (name, end) in [("x", width), ("cx", width), ("y", height), ("cy", height)] {
                let at = number(node, name).unwrap_or_default();
                assert!(at >= 0.0 && at <= end.unwrap(), "{node:?} {at}");
            }
        }
    }
}

#[test]
fn a_vega_lite_specification_holds_every_point_and_the_looks() {
    let spec = chart::vega_lite(&example());
    let values = spec["data"]["values"].as_array().unwrap();
    assert_eq!(values.len(), 4 * 4 * 31);
    assert_eq!(spec["facet"]["sort"], serde_json::json!(["R = 0.5", "R = 1", "R = 2", "R = 5"]));
    assert_eq!((&spec["columns"], &spec["resolve"]["scale"]["y"]), (&Value::from(2), &Value::from("shared")));
    let marks: Vec<&Value> =
        spec["spec"]["layer"].as_array().unwrap().iter().map(|layer| &layer["mark"]["type"]).collect();
    assert_eq!(marks, ["point", "area", "line", "point"]);
    let colour = &spec["spec"]["layer"][3]["encoding"]["color"]["scale"];
    assert_eq!(colour["domain"], serde_json::json!(["ni", "tree", "path", "uni"]));
    assert_eq!(colour["range"][0], "#0072b2");
}

#[test]
fn a_vega_lite_specification_follows_the_scales() {
    let layer = &chart::vega_lite(&sizes())["spec"]["layer"][1]["encoding"];
    for axis in ["x", "y"] {
        assert_eq!(
            (&layer[axis]["scale"]["type"], &layer[axis]["scale"]["base"]),
            (&"log".into(), &2.into())
        );
    }
}

#[test]
fn browsers_and_images_have_the_same_whole_ticks_and_labels_with_room() {
    let mut figure = Figure { columns: 4, ..example() };
    for curve in figure.panels.iter_mut().flat_map(|panel| &mut panel.curves) {
        curve.points = (0..3).map(|i| Point { x: 30_000.0 + f64::from(i * 2), ..curve.points[0] }).collect();
    }
    let axis = &chart::vega_lite(&figure)["spec"]["layer"][2]["encoding"]["x"]["axis"];
    assert_eq!(axis["values"], serde_json::json!([30_000.0, 30_002.0, 30_004.0]));
    assert!(axis["labelExpr"].as_str().unwrap().contains(r#""30002":"30,002""#));
    let image = chart::svg(&figure).unwrap();
    let image = roxmltree::Document::parse(&image).unwrap();
    let texts = image.descendants().filter(|node| node.has_tag_name("text"));
    let texts: Vec<&str> = texts.filter_map(|node| node.text()).map(str::trim).collect();
    let count = |label: &str| texts.iter().filter(|text| **text == label).count();
    assert_eq!(["30,000", "30,001", "30,002", "30,004"].map(count), [4, 0, 4, 4]);
}

#[test]
fn lines_are_dashed_where_colours_repeat_and_legends_show_it() {
    let figure = sizes();
    let spec = chart::vega_lite(&figure);
    let scale = |layer: usize, channel: &str| {
        spec["spec"]["layer"][layer]["encoding"][channel]["scale"]["range"].clone()
    };
    let (colours, dashes, pieces) = (scale(2, "color"), scale(2, "strokeDash"), scale(0, "shape"));
    assert_eq!((&colours[0], &dashes[0]), (&colours[8], &serde_json::json!([])));
    assert_ne!(dashes[0], dashes[8]);
    assert!(
        pieces[8].as_str().unwrap().matches('M').count() > pieces[3].as_str().unwrap().matches('M').count()
    );
    // In an image every dash is a piece of its own; the tenth curve has the colour of the second.
    let image = chart::svg(&figure).unwrap();
    let image = roxmltree::Document::parse(&image).unwrap();
    let pieces = |colour: &str| {
        let lines = image.descendants().filter(|node| node.has_tag_name("polyline"));
        lines.filter(|node| node.attribute("stroke") == Some(colour)).count()
    };
    assert_eq!(pieces("#CC79A7"), 2, "a line, and the legend");
    assert!(pieces("#D55E00") > 10);
}

#[test]
fn small_values_on_a_logarithmic_axis_have_short_ticks() {
    let mut figure = sizes();
    for point in figure.panels[0].curves.iter_mut().flat_map(|curve| &mut curve.points) {
        (point.mean, point.low, point.high) = (point.mean / 1e5, point.low / 1e5, point.high / 1e5);
    }
    let scale = &chart::vega_lite(&figure)["spec"]["layer"][2]["encoding"]["y"]["scale"];
    assert_eq!(scale["base"], 10);
    let image = chart::svg(&figure).unwrap();
    assert!(image.contains("0.001\n") && !image.contains("0.0009765625"), "{image}");
}

#[test]
fn a_page_needs_nothing_from_elsewhere() {
    let page = page::html(&[example(), sizes()]);
    let own = page.split("<script>").next().unwrap_or_default();
    for reference in [" src=", "<link", "@import", "url("] {
        assert!(!own.contains(reference), "{reference}");
    }
    assert!(!page.contains("sourceMappingURL=vega"));
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("<code>treecast paper run multicast-support single --runs 10</code>"));
    assert!(page.contains("&lt;half&gt; the latency"));
}

#[test]
fn hostile_texts_stay_texts() {
    let tags = |figure: &Figure| {
        let page = page::html(std::slice::from_ref(figure));
        ["<script", "</script", "<!--"].map(|tag| page.matches(tag).count())
    };
    assert_eq!(tags(&hostile()), tags(&example()));
}

#[test]
fn nothing_breaks_a_presentation() {
    for figure in edges() {
        assert!(!table(&figure, 1, Rows::AtMost(0)).is_empty());
        for (width, height) in [(0, 0), (30, 8), (60, 20), (u16::MAX, u16::MAX)] {
            assert!(!chart::terminal(&figure, width, height, Ink::Colour).contains('\0'));
        }
        assert!(roxmltree::Document::parse(&chart::svg(&figure).unwrap()).is_ok());
        assert!(!page::html(&[figure]).is_empty());
    }
    assert!(page::html(&[]).contains("No figures"));
}

#[test]
fn a_figure_is_read_back_as_it_was_written() {
    let text = serde_json::to_string(&sizes()).unwrap();
    assert_eq!(serde_json::from_str::<Figure>(&text).unwrap(), sizes());
}

/// A map of one row: of three curves two tie at x = 1, and the third is more and more behind after
/// that.
fn map() -> Figure {
    let curve = |name: &str, means: [f64; 3]| Curve {
        name: name.to_owned(),
        description: String::new(),
        row: Some(2000.0),
        points: [1.0, 16.0, 1024.0]
            .into_iter()
            .zip(means)
            .map(|(x, mean)| Point { x, mean, low: mean, high: mean, runs: 1 })
            .collect(),
        missing: Vec::new(),
    };
    let curves =
        vec![curve("ni", [4.0, 9.9, 70.0]), curve("path", [4.002, 4.0, 4.0]), curve("uni", [5.0, 9.6, 80.0])];
    let panels = vec![Panel { title: String::new(), curves }];
    Figure { row_label: Some("overhead".to_owned()), columns: 1, panels, ..example() }
}

#[test]
fn a_map_says_what_ties_and_multiples_instead_of_long_percentages() {
    let text = table(&map(), 100, Rows::All);
    for cell in ["ni = path +25 %", "path x2.4", "path x18"] {
        assert!(text.contains(cell), "{cell} is missing in {text}");
    }
    let image = chart::svg(&map()).unwrap();
    let image = roxmltree::Document::parse(&image).unwrap();
    let texts: Vec<&str> = image.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for expected in ["tie", "+25 %", "path", "x2.4", "x18", "2,000", "1,024"] {
        assert!(texts.contains(&expected), "{expected} is missing in {texts:?}");
    }
    assert!(chart::terminal(&map(), 100, 20, Ink::Plain).contains("tie"));
}

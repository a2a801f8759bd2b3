//! The page in a real browser. Skipped where there is no `chromium`; the variable `CHROMIUM` names
//! another one.
#![expect(clippy::disallowed_methods, reason = "the browser is another program, and the page a file")]

#[path = "../../page/tests/support/browser.rs"]
mod browser;

use crate::common::{example, hostile, sizes};
use treecast_study::figure::{Curve, Figure, Panel, Point};
use treecast_study::page;

/// What the browser shows of the page of `figures` after `script`; none without a browser.
fn rendered(figures: &[Figure], script: &str) -> Option<String> {
    browser::rendered(&page::html(figures), script)
}

/// How many lines the charts of the page show.
fn lines(dom: &str) -> usize {
    dom.matches("aria-roledescription=\"line mark\"").count()
}

#[test]
fn every_panel_and_curve_is_drawn() {
    let Some(dom) = rendered(&[example(), sizes()], "") else { return };
    assert_eq!(dom.matches("<svg xmlns=\"http://www.w3.org/2000/svg\"").count(), 2);
    assert_eq!(lines(&dom), 4 * 4 + 10);
    for text in ["R = 0.5", "R = 5", "latency (cycles)", "destinations", "2,048"] {
        assert!(dom.contains(&format!(">{text}</text>")), "{text} is missing");
    }
    assert!(
        !dom.contains("class=\"chart error\"") && !dom.contains("could not be drawn: "),
        "an error is shown"
    );
}

#[test]
fn charts_are_no_wider_than_a_window_of_1000_pixels() {
    let measure =
        "setTimeout(() => document.body.prepend([...document.querySelectorAll('.scroll')].map((box) =>
        box.scrollWidth > box.clientWidth ? 'too wide' : 'fits').join()), 2000);";
    let Some(dom) = rendered(&[example(), sizes(), map()], measure) else { return };
    assert!(dom.contains("fits,fits,fits"), "{}", dom.split("<main").next().unwrap());
}

#[test]
fn an_unchecked_curve_is_hidden() {
    let uncheck = "setTimeout(() => document.querySelector('input[value=tree]').click(), 2000);";
    let Some(dom) = rendered(&[example()], uncheck) else { return };
    assert_eq!(lines(&dom), 4 * 3);
    assert_eq!(dom.matches("role-title-text").count(), 4, "all panels stay");
}

/// Two rows and three columns of cells, all won by the first of two curves but one.
fn map() -> Figure {
    let curve = |name: &str, row: f64, means: [f64; 3]| Curve {
        name: name.to_owned(),
        description: String::new(),
        row: Some(row),
        points: (1..=3)
            .zip(means)
            .map(|(x, mean)| Point { x: f64::from(x), mean, low: mean, high: mean, runs: 1 })
            .collect(),
        missing: Vec::new(),
    };
    let panel = |title: &str| Panel {
        title: title.to_owned(),
        curves: vec![
            curve("first", 5.0, [1.0, 2.0, 3.0]),
            curve("first", 6.0, [1.0, 2.0, 3.0]),
            curve("other", 5.0, [2.0, 2.5, 3.3]),
            curve("other", 6.0, [2.0, 2.5, 1.5]),
        ],
    };
    let panels = ["a", "b", "c"].map(panel).into();
    Figure { row_label: Some("row".to_owned()), columns: 3, panels, ..example() }
}

#[test]
fn a_map_names_the_winner_of_each_cell_and_without_it_the_next() {
    let cells = |dom: &str, name: &str| dom.matches(&format!(">{name}</text>")).count();
    let Some(dom) = rendered(&[map()], "") else { return };
    assert!(!dom.contains("could not be drawn: "));
    // The legend names each once more.
    assert_eq!((cells(&dom, "first"), cells(&dom, "other")), (3 * 5 + 1, 3 + 1));
    assert_eq!(cells(&dom, "x2.0"), 3 * (2 + 1));
    let uncheck = "setTimeout(() => document.querySelector('input[value=first]').click(), 2000);";
    let dom = rendered(&[map()], uncheck).unwrap();
    assert_eq!((cells(&dom, "first"), cells(&dom, "other")), (1, 3 * 6 + 1));
}

#[test]
fn a_map_calls_a_tie_a_tie() {
    let mut figure = map();
    for panel in &mut figure.panels {
        // Both curves of the upper row have the same mean at the first x.
        panel.curves[3].points[0].mean = 1.0;
    }
    let Some(dom) = rendered(&[figure], "") else { return };
    assert!(!dom.contains("could not be drawn: "));
    assert_eq!(dom.matches(">tie</text>").count(), 3);
    assert_eq!(dom.matches(">first</text>").count(), 3 * 4 + 1);
}

#[test]
fn a_curve_chosen_in_the_legend_is_singled_out() {
    let choose =
        "setTimeout(() => [...document.querySelectorAll('text')].find((text) => text.textContent === 'tree')
        .dispatchEvent(new MouseEvent('click', { bubbles: true })), 2000);";
    let Some(dom) = rendered(&[example()], choose) else { return };
    let faint =
        dom.split("<path").filter(|path| path.contains("\"line mark\"") && path.contains("opacity=\"0.15\""));
    assert_eq!((lines(&dom), faint.count()), (4 * 4, 4 * 3));
}

#[test]
fn hostile_texts_do_no_harm() {
    let Some(dom) = rendered(&[hostile(), Figure { panels: Vec::new(), ..example() }], "") else { return };
    assert!(dom.contains("<h2 id=\"title-1\">&lt;/script&gt;&lt;!-- &amp;"));
    assert!(!dom.contains("could not be drawn"), "an error is shown");
}

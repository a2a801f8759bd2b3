//! Figures as one page for the browser.

use std::fmt::Write as _;

use serde_json::Value;
use treecast_page::{Page, escaped};

use crate::chart::look::Look;
use crate::chart::vega_lite;
use crate::figure::Figure;
use crate::table::{Rows, table};

const VEGA: &str = include_str!("../assets/vega/vega.min.js");
const VEGA_LITE: &str = include_str!("../assets/vega/vega-lite.min.js");
const VEGA_EMBED: &str = include_str!("../assets/vega/vega-embed.min.js");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");

/// Columns of the tables under the charts.
const TABLE_WIDTH: u16 = 100;

const HINT: &str = "Uncheck a curve to hide it. A click on a name in the chart's legend singles it out; \
                    with Shift, more than one.";
const MAP_HINT: &str = "Uncheck a curve to see who wins without it.";

/// All `figures` on one HTML page that needs nothing else: for each its title, its chart, its
/// caption, its numbers and the command that makes it.
///
/// The page follows the reader's choice of light or dark, works with the keyboard, and shows the
/// numbers where scripts are off.
pub fn html(figures: &[Figure]) -> String {
    html_with_text(figures, "", "")
}

/// As [`html`], with a last section: a heading and a text of lines, if that is not empty.
pub fn html_with_text(figures: &[Figure], heading: &str, text: &str) -> String {
    let figures: Vec<Figure> = figures.iter().map(Figure::tidy).collect();
    let specs: Value = figures.iter().map(vega_lite).collect();
    let mut body: String = figures.iter().zip(1..).map(|(figure, id)| section(figure, id)).collect();
    if !text.is_empty() {
        let (heading, text) = (escaped(heading), escaped(text));
        let _ = write!(
            body,
            "<section aria-labelledby=\"title-text\">\n<h2 id=\"title-text\">{heading}</h2>\n\
             <pre tabindex=\"0\" aria-labelledby=\"title-text\">{text}</pre>\n</section>\n"
        );
    }
    let page = Page {
        title: &page_title(&figures),
        styles: &[STYLE],
        body: &body,
        data: &[("specs", &specs)],
        scripts: &[VEGA, VEGA_LITE, VEGA_EMBED, SCRIPT],
    };
    page.html()
}

/// The studies of the figures, each once.
fn page_title(figures: &[Figure]) -> String {
    let mut studies: Vec<&str> = Vec::new();
    for figure in figures {
        if !studies.contains(&figure.study.as_str()) {
            studies.push(&figure.study);
        }
    }
    if studies.is_empty() { "No figures".to_owned() } else { studies.join(", ") }
}

/// One figure.
fn section(figure: &Figure, id: usize) -> String {
    let title = escaped(&figure.title);
    let mut text = format!(
        "<section aria-labelledby=\"title-{id}\">\n<h2 id=\"title-{id}\">{title}</h2>\n\
         <p class=\"caption\">{}</p>\n<div class=\"scroll\"><div class=\"chart\" id=\"chart-{id}\"></div></div>\n\
         <noscript><p>The chart needs scripts; the numbers below do not.</p></noscript>\n",
        escaped(&figure.caption)
    );
    text += &curves(figure, id);
    let _ = write!(
        text,
        "<details>\n<summary>Numbers</summary>\n<pre tabindex=\"0\" aria-label=\"Numbers\">{}</pre>\n</details>\n",
        escaped(&table(figure, TABLE_WIDTH, Rows::All)),
    );
    // Older files of benches do not say by which command they were made.
    if !figure.command.is_empty() {
        let _ =
            writeln!(text, "<p class=\"command\">Made with <code>{}</code></p>", escaped(&figure.command));
    }
    text + "</section>\n"
}

/// The curves' names and meanings, each with a box that shows or hides it.
fn curves(figure: &Figure, id: usize) -> String {
    let mut text = format!("<fieldset data-chart=\"chart-{id}\">\n<legend>Curves</legend>\n");
    for (i, name) in figure.curve_names().into_iter().enumerate() {
        let all = figure.panels.iter().flat_map(|panel| &panel.curves);
        let description = all
            .filter(|curve| curve.name == name)
            .map(|curve| curve.description.as_str())
            .find(|d| !d.is_empty());
        let description = description.map(|text| format!(": {}", escaped(text))).unwrap_or_default();
        let _ = writeln!(
            text,
            "<label><input type=\"checkbox\" checked value=\"{name}\">{}<span><b>{name}</b>{description}</span></label>",
            swatch(Look::of(i)),
            name = escaped(name),
        );
    }
    let hint = if figure.row_label.is_some() { MAP_HINT } else { HINT };
    let _ = write!(text, "<p class=\"hint\">{hint}</p>\n</fieldset>\n");
    text
}

/// A piece of a curve: its line and its mark.
fn swatch(look: Look) -> String {
    format!(
        "<svg class=\"swatch\" viewBox=\"-16 -6 32 12\" aria-hidden=\"true\"><path d=\"{}\" fill=\"{}\"/></svg>",
        look.path(),
        look.hex()
    )
}

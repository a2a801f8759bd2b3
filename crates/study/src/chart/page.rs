//! Figures as one page for the browser.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::look::Look;
use super::vega::vega_lite;
use crate::figure::Figure;
use crate::table::{Rows, table};

const VEGA: &str = include_str!("../../assets/vega/vega.min.js");
const VEGA_LITE: &str = include_str!("../../assets/vega/vega-lite.min.js");
const VEGA_EMBED: &str = include_str!("../../assets/vega/vega-embed.min.js");
const STYLE: &str = include_str!("../../assets/page.css");
const SCRIPT: &str = include_str!("../../assets/page.js");

/// Columns of the tables under the charts.
const TABLE_WIDTH: u16 = 100;

/// Nothing is fetched, and nothing is evaluated from text: the browser itself holds the page to it.
const POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

const HINT: &str = "Uncheck a curve to hide it. A click on a name in the chart's legend singles it out; \
                    with Shift, more than one.";
const MAP_HINT: &str = "Uncheck a curve to see who wins without it.";

/// All `figures` on one HTML page that needs nothing else: for each its title, its chart, its caption, its
/// numbers and the command that makes it.
///
/// The page follows the reader's choice of light or dark, works with the keyboard, and shows the numbers
/// where scripts are off.
pub fn html(figures: &[Figure]) -> String {
    let figures: Vec<Figure> = figures.iter().map(Figure::tidy).collect();
    let title = escaped(&page_title(&figures));
    let specs: Vec<Value> = figures.iter().map(vega_lite).collect();
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    for (figure, id) in figures.iter().zip(1..) {
        page += &section(figure, id);
    }
    page.push_str("</main>\n");
    let _ = writeln!(
        page,
        "<script type=\"application/json\" id=\"specs\">{}</script>",
        json_in_script(&json!(specs))
    );
    for script in [VEGA, VEGA_LITE, VEGA_EMBED, SCRIPT] {
        let _ = writeln!(page, "<script>{}</script>", code_in_script(script));
    }
    page + "</body>\n</html>\n"
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
        "<details>\n<summary>Numbers</summary>\n<pre tabindex=\"0\" aria-label=\"Numbers\">{}</pre>\n</details>\n\
         <p class=\"command\">Made with <code>{}</code></p>\n</section>\n",
        escaped(&table(figure, TABLE_WIDTH, Rows::All)),
        escaped(&figure.command)
    );
    text
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

/// `text` as it stands in HTML, in an element or in an attribute.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(c),
        }
        escaped
    })
}

/// JSON that no script element ends in: a `<` can only be inside a string.
fn json_in_script(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c")
}

/// Code that no script element ends in: such text can only be inside a string or a pattern. Without the
/// name of a source map, which a browser would look for.
fn code_in_script(code: &str) -> String {
    let code = code.split("//# sourceMappingURL=").next().unwrap_or_default();
    code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_element_or_attribute() {
        assert_eq!(escaped("<a b=\"c\" d='e'>&"), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;");
    }

    #[test]
    fn scripts_cannot_be_ended_from_inside() {
        assert_eq!(json_in_script(&json!(["</script>"])), "[\"\\u003c/script>\"]");
        assert_eq!(
            code_in_script("a('</script><!--')\n//# sourceMappingURL=a.map"),
            "a('<\\/script><\\!--')\n"
        );
    }
}

//! A page for the browser in one file, which fetches nothing.
//!
//! ```
//! use treecast_page::{Page, escaped};
//!
//! let page = Page { title: "1 < 2", body: &format!("<p>{}</p>", escaped("a & b")), ..Page::default() };
//! let html = page.html();
//! assert!(html.contains("<title>1 &lt; 2</title>") && html.contains("<p>a &amp; b</p>"));
//! ```

use std::fmt::Write as _;

use serde_json::Value;

/// Colours and type, for light and dark.
const STYLE: &str = include_str!("../assets/page.css");

/// The browser holds the page to it: nothing is fetched, and no text is evaluated.
const POLICY: &str =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:";

/// The parts of a page.
#[derive(Debug, Clone, Copy, Default)]
pub struct Page<'a> {
    /// The title and the first heading, as text.
    pub title: &'a str,
    /// Style sheets, after the common one.
    pub styles: &'a [&'a str],
    /// The content below the heading, as HTML. Text in it has to be [`escaped`].
    pub body: &'a str,
    /// JSON for the scripts, each in an element of that id.
    pub data: &'a [(&'a str, &'a Value)],
    /// Scripts, in the order in which they run.
    pub scripts: &'a [&'a str],
}

impl Page<'_> {
    /// The file.
    pub fn html(&self) -> String {
        let title = escaped(self.title);
        let mut html = format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <title>{title}</title>\n<style>\n{STYLE}{}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{}</main>\n",
            self.styles.concat(),
            self.body
        );
        for (id, value) in self.data {
            let json = json_in_script(value);
            let _ = writeln!(html, "<script type=\"application/json\" id=\"{id}\">{json}</script>");
        }
        for script in self.scripts {
            let _ = writeln!(html, "<script>{}</script>", code_in_script(script));
        }
        html + "</body>\n</html>\n"
    }
}

/// `text` as it stands in HTML, in an element or in an attribute.
pub fn escaped(text: &str) -> String {
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

/// Code that no script element ends in: such text can only be inside a string or a pattern. Without
/// the name of a source map, which a browser would look for.
fn code_in_script(code: &str) -> String {
    let code = code.split("//# sourceMappingURL=").next().unwrap_or_default();
    code.replace("</script", "<\\/script").replace("<!--", "<\\!--")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

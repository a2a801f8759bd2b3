//! Published experiments as data: what they measured, and how it is shown.
//!
//! A [`figure::Figure`] holds the measured curves of one figure. The same value is shown as numbers
//! ([`table`]), as a line chart for the terminal ([`chart::terminal`]), as an SVG image ([`chart::svg`]),
//! as a Vega-Lite specification ([`chart::vega_lite`]) and as a page for the browser ([`chart::html`]).

pub mod chart;
pub mod figure;
pub mod table;

//! Published experiments as data: what they measured, and how it is shown.
//!
//! A [`Study`] is read from its files. Each of its figures is a [`FigureSpec`], a cross-product
//! that expands into [`RunSpec`]s; [`run_all`] runs them, and each run gives a [`Row`]. Rows are
//! written as they are ([`rows::csv`], [`rows::parquet`]), or averaged into a [`figure::Figure`]
//! ([`FigureSpec::figure`]).
//!
//! A [`figure::Figure`] holds the measured curves of one figure. The same value is shown as numbers
//! ([`table`]), as a line chart for the terminal ([`chart::terminal`]), as an SVG image
//! ([`chart::svg`]), as a Vega-Lite specification ([`chart::vega_lite`]) and as a page for the
//! browser ([`page::html`]).
//!
//! The crate is pure: texts in, values out.

mod average;
pub mod builtin;
pub mod chart;
mod digest;
mod error;
pub mod figure;
mod format;
pub mod journal;
mod measure;
mod measured;
mod number;
pub mod page;
pub mod rows;
mod run;
mod saturation;
mod sensitivity;
mod setup;
mod spec;
mod sweep;
pub mod table;

pub use error::StudyError;
pub use measure::{Measure, Unit};
pub use measured::{Measured, Modelled, Multicast, Quantities};
pub use run::{Kind, Row, RunSpec};
pub use saturation::saturation_figure;
pub use sensitivity::{Headline, Sensitivity};
pub use setup::{GUESS_SHIFT, Hardware, Selection, Setup, Testbed, Traffic};
pub use spec::{FigureSpec, PanelSpec, SeriesSpec, Settings, Study, Vary};
pub use sweep::{run_all, run_until_stopped};

//! Charts of a [`Figure`](crate::figure::Figure), for the terminal, for documents and for the
//! browser: lines, or the cells of a map of winners.
//!
//! Every chart leaves out values that have no place on its axes (values that are not finite; on a
//! logarithmic axis also zero and below), gives a curve the same look in every panel, and can be
//! read without colour.

mod axis;
mod ink;
pub(crate) mod look;
pub(crate) mod map;
mod svg;
mod terminal;
mod vega;

pub use ink::Ink;
pub use svg::{SvgError, svg};
pub use terminal::terminal;
pub use vega::vega_lite;

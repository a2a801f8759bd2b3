//! Types and text forms that several crates share, each defined once.
//!
//! - [`MemberId`] and [`GroupId`]: the numbers of members and groups.
//! - [`Offload`]: which part of a host forwards.
//! - [`Operation`]: what all members of a group do together.
//! - [`Cycles`], [`Flits`], [`Picoseconds`], [`Nanoseconds`], [`Bytes`]: time and size as integers.
//! - [`parse_size`], [`parse_time`], [`parse_rate`]: quantities with their units, such as `16K`,
//!   `400us`, `200mbit`.
//! - [`format_count`]: a count with its digits in groups, such as `12,345`.
//! - `NameAndOptions`: one-line descriptions such as `torus:k=4,n=2`. `Keyed`: parameters that are
//!   set by key and value. Both need the feature `std`.
//!
//! The crate is pure: no clock, no environment, no file, no entropy.

#![cfg_attr(not(any(feature = "std", test)), no_std)]

extern crate alloc;

mod ids;
#[cfg(feature = "std")]
mod key;
mod offload;
mod operation;
mod quantity;
#[cfg(feature = "std")]
mod spec;
mod units;

pub use ids::{GroupId, MemberId};
#[cfg(feature = "std")]
pub use key::{Key, Keyed, PARAMETER_MAX, Value, parameter, positive_parameter};
pub use offload::{Offload, UnknownOffload};
pub use operation::Operation;
pub use quantity::{InvalidQuantity, format_count, format_size, parse_rate, parse_size, parse_time};
#[cfg(feature = "std")]
pub use spec::{NameAndOptions, SpecError, nearest, nearest_hint, reworded};
pub use units::{Bytes, Cycles, Flits, Nanoseconds, Picoseconds};

//! The tests of the crate in one program, which compiles and links in less time than one for each
//! file.

mod captions;
mod charts;
mod common;
mod docs;
mod load;
mod models;
mod page;
mod paper;
mod papers;
mod studies;
mod testbeds;
mod validation;

//! The tests of the crate in one program, which compiles and links in less time than one for each
//! file.

mod closed_forms;
mod document;
mod load;
mod runs;

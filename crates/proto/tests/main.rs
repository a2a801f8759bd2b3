//! The tests of the crate in one program, which compiles and links in less time than one for each
//! file.

mod allocations;
mod hand_off;
mod properties;
mod sharing;
mod state_size;

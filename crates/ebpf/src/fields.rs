//! Fields of structures in memory that others may change at any time.

/// A field of a structure in shared memory, read once.
macro_rules! get {
    ($pointer:expr, $($field:tt)+) => {
        (&raw const (*$pointer).$($field)+).read_volatile()
    };
}

/// A field of a structure in shared memory, written once.
macro_rules! set {
    ($pointer:expr, $value:expr, $($field:tt)+) => {
        (&raw mut (*$pointer).$($field)+).write_volatile($value)
    };
}

pub(crate) use {get, set};

//! Volatile access to fields of structures in memory that the program or another process may change
//! at any time.

/// Reads a field of a structure in shared memory exactly once.
macro_rules! get {
    ($pointer:expr, $($field:tt)+) => {
        (&raw const (*$pointer).$($field)+).read_volatile()
    };
}

/// Writes a field of a structure in shared memory exactly once.
macro_rules! set {
    ($pointer:expr, $value:expr, $($field:tt)+) => {
        (&raw mut (*$pointer).$($field)+).write_volatile($value)
    };
}

pub(crate) use {get, set};

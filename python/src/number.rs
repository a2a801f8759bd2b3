//! Whole numbers as arguments.

use std::fmt::Display;

use pyo3::conversion::FromPyObject;
use pyo3::exceptions::PyOverflowError;
use pyo3::{Borrowed, PyAny, PyErr, PyResult};

use crate::error::TreecastError;

/// A whole number that fits `T`. Python's are unbounded: one that does not fit is a wrong value, not an overflow.
pub struct Whole<T>(pub T);

/// The bounds of a type of numbers.
pub trait Bounds: Display {
    /// The lowest.
    const LOW: Self;
    /// The highest.
    const HIGH: Self;
}

impl Bounds for u32 {
    const LOW: Self = Self::MIN;
    const HIGH: Self = Self::MAX;
}

impl Bounds for u64 {
    const LOW: Self = Self::MIN;
    const HIGH: Self = Self::MAX;
}

impl<'a, 'py, T> FromPyObject<'a, 'py> for Whole<T>
where
    T: Bounds + FromPyObject<'a, 'py, Error = PyErr>,
{
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        given.extract().map(Self).map_err(|error: PyErr| {
            if !error.is_instance_of::<PyOverflowError>(given.py()) {
                return error;
            }
            let (low, high) = (T::LOW, T::HIGH);
            TreecastError::new_err(format!(
                "{} is out of range: a whole number from {low} to {high}",
                &*given
            ))
        })
    }
}

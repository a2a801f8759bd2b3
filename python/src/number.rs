//! Whole numbers as arguments.

use std::fmt::Display;

use pyo3::conversion::FromPyObject;
use pyo3::exceptions::PyOverflowError;
use pyo3::{Borrowed, PyAny, PyErr, PyResult};

use crate::error::TreecastError;

/// A whole number in the range of `T`. Python integers are unbounded: one out of range raises
/// `TreecastError`, not `OverflowError`.
pub struct Whole<T>(pub T);

/// The bounds of a type of numbers.
pub trait Bounds: Display {
    /// The smallest value.
    const LOW: Self;
    /// The largest value.
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
                "invalid value {}: expected a whole number from {low} to {high}",
                &*given
            ))
        })
    }
}

//! Numbers as text.

/// A number in full.
pub(crate) fn exact(value: f64) -> String {
    if value != 0.0 && !(1e-9..1e12).contains(&value.abs()) {
        return format!("{value:e}");
    }
    value.to_string()
}

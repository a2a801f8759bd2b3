//! The operations of all-reduces.

use treecast_wire::{Element, Operation, Values};

/// The function of two integers.
macro_rules! of_integers {
    ($type:ty, $operation:expr) => {
        match $operation {
            Operation::Sum => <$type>::wrapping_add,
            Operation::Product => <$type>::wrapping_mul,
            Operation::Min => |one: $type, other: $type| one.min(other),
            Operation::Max => |one: $type, other: $type| one.max(other),
            Operation::And => |one: $type, other: $type| one & other,
            Operation::Or => |one: $type, other: $type| one | other,
            Operation::Xor => |one: $type, other: $type| one ^ other,
        }
    };
}
/// The function of two numbers with a fraction. [`Values::are_valid`] excludes operations on their
/// bits.
macro_rules! of_numbers {
    ($type:ty, $operation:expr) => {
        match $operation {
            Operation::Sum => |one: $type, other: $type| one + other,
            Operation::Product => |one: $type, other: $type| one * other,
            Operation::Min => <$type>::min,
            Operation::Max => <$type>::max,
            Operation::And | Operation::Or | Operation::Xor => |one: $type, _: $type| one,
        }
    };
}
/// Combines values one by one; none, if they differ in operation, type or number.
pub fn combine(mut one: Values, other: &Values) -> Option<Values> {
    let is_alike = one.operation == other.operation
        && one.element == other.element
        && one.bytes.len() == other.bytes.len();
    if !is_alike {
        return None;
    }
    let operation = one.operation;
    let (ours, theirs) = (&mut one.bytes[..], &other.bytes[..]);
    match one.element {
        Element::I32 => zip(ours, theirs, i32::from_le_bytes, i32::to_le_bytes, of_integers!(i32, operation)),
        Element::I64 => zip(ours, theirs, i64::from_le_bytes, i64::to_le_bytes, of_integers!(i64, operation)),
        Element::U32 => zip(ours, theirs, u32::from_le_bytes, u32::to_le_bytes, of_integers!(u32, operation)),
        Element::U64 => zip(ours, theirs, u64::from_le_bytes, u64::to_le_bytes, of_integers!(u64, operation)),
        Element::F32 => zip(ours, theirs, f32::from_le_bytes, f32::to_le_bytes, of_numbers!(f32, operation)),
        Element::F64 => zip(ours, theirs, f64::from_le_bytes, f64::to_le_bytes, of_numbers!(f64, operation)),
    }
    Some(one)
}

/// Replaces each element of `ours` by what `combine` makes of it and of that of `theirs`.
fn zip<T, const BYTES: usize>(
    ours: &mut [u8],
    theirs: &[u8],
    read: fn([u8; BYTES]) -> T,
    write: fn(T) -> [u8; BYTES],
    combine: fn(T, T) -> T,
) {
    let (ours, _) = ours.as_chunks_mut::<BYTES>();
    let (theirs, _) = theirs.as_chunks::<BYTES>();
    for (one, other) in ours.iter_mut().zip(theirs) {
        *one = write(combine(read(*one), read(*other)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an operation makes of two values.
    fn of<T, const BYTES: usize>(
        element: Element,
        operation: Operation,
        write: fn(T) -> [u8; BYTES],
        read: fn([u8; BYTES]) -> T,
        one: T,
        other: T,
    ) -> T {
        let values = |value: T| Values { operation, element, bytes: write(value).to_vec() };
        let combined = combine(values(one), &values(other)).unwrap();
        read(combined.bytes.try_into().unwrap())
    }

    #[test]
    fn integers_are_combined_as_rust_does() {
        use Operation::{And, Max, Min, Or, Product, Sum, Xor};
        let i32s = |operation, one, other| {
            of(Element::I32, operation, i32::to_le_bytes, i32::from_le_bytes, one, other)
        };
        let u64s = |operation, one, other| {
            of(Element::U64, operation, u64::to_le_bytes, u64::from_le_bytes, one, other)
        };
        assert_eq!([i32s(Sum, i32::MAX, 1), i32s(Product, -3, 5)], [i32::MIN, -15]);
        assert_eq!([i32s(Min, -3, 2), i32s(Max, -3, 2)], [-3, 2]);
        assert_eq!([u64s(Min, u64::MAX, 2), u64s(Max, u64::MAX, 2)], [2, u64::MAX]);
        assert_eq!([u64s(And, 6, 3), u64s(Or, 6, 3), u64s(Xor, 6, 3)], [2, 7, 5]);
    }

    #[test]
    fn fractions_are_combined_as_rust_does_and_nans_lose() {
        let f64s = |operation, one, other| {
            of(Element::F64, operation, f64::to_le_bytes, f64::from_le_bytes, one, other).to_bits()
        };
        assert_eq!(f64s(Operation::Sum, 0.1, 0.2), (0.1_f64 + 0.2).to_bits());
        assert_eq!(f64s(Operation::Product, 0.1, 3.0), (0.1_f64 * 3.0).to_bits());
        assert_eq!(f64s(Operation::Min, f64::NAN, 2.0), 2.0_f64.to_bits());
        assert_eq!(f64s(Operation::Max, 2.0, f64::NAN), 2.0_f64.to_bits());
        let f32s = of(Element::F32, Operation::Sum, f32::to_le_bytes, f32::from_le_bytes, 1.5, -0.25);
        assert_eq!(f32s.to_bits(), 1.25_f32.to_bits());
    }
}

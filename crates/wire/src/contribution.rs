//! What a member contributes to an all-reduce.

use alloc::vec::Vec;
use core::mem::offset_of;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::Layout;
use crate::{HEADER_BYTES, Sequence, Table};

/// A contribution to an all-reduce, on its way from a member to its parent: the values of the
/// member and of its subtree, combined. The root's message with the result has the same format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contribution {
    /// The packet that the result is to be: the first one that no member has received. It tells one
    /// all-reduce from another.
    pub packet: Sequence,
    /// The number of processes whose values these are; [`u16::MAX`]: as many, or more.
    pub processes: u16,
    /// The values; none, if members have called with different operations, element types or numbers
    /// of values.
    pub values: Option<Values>,
}

/// Values that are combined one by one: the first of all members, the second of all members, and so
/// on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// How two values are combined.
    pub operation: Operation,
    /// The type of each value.
    pub element: Element,
    /// The values, each in little-endian byte order: at most [`Values::BYTES_MAX`] bytes. A barrier
    /// has none.
    pub bytes: Vec<u8>,
}

impl Values {
    /// The longest contribution: it is a control message, which fits into the shortest datagram of
    /// a group.
    pub const BYTES_MAX: usize = Table::PAYLOAD_BYTES_MIN as usize - size_of::<ContributionLayout>();

    /// Whether these can be values of a contribution: whole elements, not too many, and bits of
    /// integers only.
    pub fn are_valid(&self) -> bool {
        self.bytes.len() <= Self::BYTES_MAX
            && self.bytes.len().is_multiple_of(self.element.bytes())
            && (self.element.is_integer() || !self.operation.is_bitwise())
    }
}

/// How an all-reduce combines two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// The sum; that of integers wraps around.
    Sum,
    /// The product; that of integers wraps around.
    Product,
    /// The less of both; of a number and a NaN, the number.
    Min,
    /// The greater of both; of a number and a NaN, the number.
    Max,
    /// The bits that are set in both, of integers.
    And,
    /// The bits that are set in one or both, of integers.
    Or,
    /// The bits that are set in one, of integers.
    Xor,
}

impl Operation {
    /// All operations, with their names in settings and bindings.
    pub const NAMES: [(&'static str, Self); 7] = [
        ("sum", Self::Sum),
        ("product", Self::Product),
        ("min", Self::Min),
        ("max", Self::Max),
        ("and", Self::And),
        ("or", Self::Or),
        ("xor", Self::Xor),
    ];

    /// Whether it combines bits, and so integers only.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }
}

/// The type of the values of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Element {
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `u32`.
    U32,
    /// `u64`.
    U64,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
}

impl Element {
    /// All types, with their names in settings and bindings.
    pub const NAMES: [(&'static str, Self); 6] = [
        ("i32", Self::I32),
        ("i64", Self::I64),
        ("u32", Self::U32),
        ("u64", Self::U64),
        ("f32", Self::F32),
        ("f64", Self::F64),
    ];

    /// The length of a value in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether its values are integers.
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64)
    }
}

/// The fixed fields of a contribution, before its values.
#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ContributionLayout {
    packet: U32,
    /// The operation's place in [`Operation::NAMES`], from 1; 0: the members' calls differ.
    operation: u8,
    /// The type's place in [`Element::NAMES`].
    element: u8,
    processes: U16,
}

impl Contribution {
    /// A flag in the header of a packet for the kernel's packet path of this host, which combines
    /// the contribution with those of the children. Members refuse packets with it.
    pub const FLAG_OWN: u16 = 0x8000;

    /// Sets [`Contribution::FLAG_OWN`] in the header of a contribution, and removes its code:
    /// without the flag it would be the whole subtree's.
    pub fn mark_own(header: &mut [u8; HEADER_BYTES]) {
        let (flags, code) = (offset_of!(Layout, flags), offset_of!(Layout, mac));
        header[flags..flags + size_of::<u16>()].copy_from_slice(&Self::FLAG_OWN.to_be_bytes());
        header[code..].fill(0);
    }

    /// The contribution of a single process.
    pub const fn of_process(packet: Sequence, values: Option<Values>) -> Self {
        Self { packet, processes: 1, values }
    }

    /// Reads a contribution; none, if a field is out of range.
    ///
    /// ```
    /// use treecast_wire::{Contribution, Element, Operation, Sequence, Values};
    ///
    /// let values = Values { operation: Operation::Max, element: Element::U32, bytes: vec![7, 0, 0, 0] };
    /// let contribution = Contribution::of_process(Sequence(3), Some(values));
    /// assert_eq!(Contribution::read(&contribution.write()), Some(contribution));
    /// ```
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = ContributionLayout::ref_from_prefix(bytes).ok()?;
        let packet = Sequence(fixed.packet.get());
        let processes = fixed.processes.get();
        let Some(operation) = fixed.operation.checked_sub(1) else {
            return (fixed.element == 0 && rest.is_empty()).then_some(Self {
                packet,
                processes,
                values: None,
            });
        };
        let values = Values {
            operation: Operation::NAMES.get(usize::from(operation))?.1,
            element: Element::NAMES.get(usize::from(fixed.element))?.1,
            bytes: rest.to_vec(),
        };
        values.are_valid().then_some(Self { packet, processes, values: Some(values) })
    }

    /// The bytes of the contribution.
    pub fn write(&self) -> Vec<u8> {
        let (operation, element) =
            self.values.as_ref().map_or((0, 0), |values| (values.operation as u8 + 1, values.element as u8));
        let (packet, processes) = (self.packet.0.into(), self.processes.into());
        let fixed = ContributionLayout { packet, operation, element, processes };
        let mut bytes = fixed.as_bytes().to_vec();
        bytes.extend_from_slice(self.values.as_ref().map_or(&[], |values| &values.bytes));
        bytes
    }
}

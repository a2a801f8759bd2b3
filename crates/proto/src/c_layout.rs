//! Structures that a fast path shares.

/// Declares a structure of integers in C layout without padding, which is valid for any bytes, and
/// lists its fields.
macro_rules! c_layout {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $name {
            /// The names of its fields and their offsets in bytes, for comparison with the
            /// structure in C.
            pub const FIELDS: &[(&str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    };
}
pub(crate) use c_layout;

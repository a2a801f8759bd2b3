//! Counters. Every datagram that is dropped is counted by one of them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// The names of its fields and their offsets in bytes, for comparison with the
            /// structure in C.
            pub const FIELDS: &[(&str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];

            /// All counters with their names.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            /// Counters from their values in the same order; missing values are 0.
            pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
                let mut values = values.into_iter();
                Self { $($field: values.next().unwrap_or_default(),)* }
            }
        }
    };
}

counters! {
    /// Counters of one group at one node, in packets except `timeouts`.
    GroupCounters {
        /// Data accepted in order.
        accepted,
        /// Data that arrived before its turn and was held.
        held,
        /// Data that was there already.
        duplicates,
        /// Other packets that are not later than one before: replays, or overtaken on the way.
        stale,
        /// Data beyond the receive window.
        no_slot,
        /// Data sent for the first time, each child counted.
        sent,
        /// Data retransmitted.
        retransmitted,
        /// Acknowledgments sent, NAKs among them.
        acks_sent,
        /// NAKs sent.
        naks_sent,
        /// Acknowledgments received, NAKs among them.
        acks_received,
        /// Expired retransmission timers.
        timeouts,
        /// Probes sent.
        probes_sent,
        /// Packets of a sender that is no neighbour.
        unknown_sender,
        /// Packets with an invalid number, length or piece.
        invalid,
    }
}

counters! {
    /// Counters of datagrams that belong to no group of the node.
    StrayCounters {
        /// Not a packet of this protocol, or a corrupt one.
        malformed,
        /// Of a group that is not at this node, or whose session it does not know yet.
        unknown_group,
        /// Not authentic: of another session, of a host without the token, or corrupt.
        unauthentic,
    }
}

//! What is counted. Nothing that is dropped is dropped without a number here.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
        }

        impl $name {
            /// All of them with their names.
            pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($field), self.$field),)*].into_iter()
            }

            /// As many numbers in the same order; what is missing is 0.
            pub fn from_values(values: impl IntoIterator<Item = u64>) -> Self {
                let mut values = values.into_iter();
                Self { $($field: values.next().unwrap_or_default(),)* }
            }
        }
    };
}

counters! {
    /// Packets of one group at one node.
    GroupCounters {
        /// Data accepted in order.
        accepted,
        /// Data that came before its turn, and was kept.
        held,
        /// Data that was there already.
        duplicates,
        /// Data for which there was no slot.
        no_slot,
        /// Data sent for the first time to a child.
        sent,
        /// Data sent again.
        retransmitted,
        /// Acknowledgments sent, both kinds.
        acks_sent,
        /// Of these, negative ones.
        naks_sent,
        /// Acknowledgments taken in, both kinds.
        acks_received,
        /// Times that an answer was missed.
        timeouts,
        /// Questions sent.
        probes_sent,
        /// Packets of somebody who is no neighbour.
        unknown_sender,
        /// Packets with a number, a length or a piece that cannot be.
        invalid,
    }
}

counters! {
    /// Datagrams that belong to no group of the node.
    StrayCounters {
        /// No packet of this protocol, or a spoilt one.
        malformed,
        /// Of a group that is not here.
        unknown_group,
        /// Of a group that has the number of one that is here.
        wrong_cookie,
    }
}

//! What the model leaves open, each a named choice.

macro_rules! policy {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$about])* $variant),+ }

        impl $name {
            /// What it is called.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The one that is called so.
            pub fn named(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

policy!(
    /// What is done and timed.
    Operation {
        /// The root sends to every destination itself: until its process knows that the last one has acknowledged. The
        /// scheme is not asked.
        Multisend = "multisend",
        /// The message goes down the tree, and the process of the last leaf to have it answers: until the answer is with the
        /// process of the root.
        #[default]
        Multicast = "multicast",
        /// Every process calls the broadcast at once: until the last call returns.
        Broadcast = "broadcast",
        /// A broadcast that the processes enter at different times.
        Skew = "skew",
    }
);

policy!(
    /// Above what.
    Layer {
        /// GM: data lies where it was received.
        #[default]
        Gm = "gm",
        /// MPI over GM: eager copies, or a rendezvous between hosts for long messages.
        Mpi = "mpi",
    }
);

policy!(
    /// How a NIC makes the copies of a packet.
    Replicas {
        /// A send token a child: each fetches and sends the packet by itself, and is given back by itself.
        Tokens = "tokens",
        /// When a transmission ends, its callback rewrites the header and queues the packet again. *Published.*
        #[default]
        Callback = "callback",
        /// The header is rewritten as soon as it has left, while the rest of the packet leaves.
        HeaderRewrite = "header-rewrite",
    }
);

policy!(
    /// When a NIC in the middle passes a packet on.
    Forwarding {
        /// Once it is in host memory. *Published.*
        #[default]
        CopyThenForward = "copy-then-forward",
        /// While it is moved there.
        CopyWhileForwarding = "copy-while-forwarding",
    }
);

policy!(
    /// What keeps receivers from being flooded.
    Flow {
        /// Nothing: a packet without a receive token is not accepted, and repeated. *Published.*
        #[default]
        None = "none",
        /// FM/MC: a root asks one central manager, a process, for a credit before each message; every receiver tells the
        /// manager when it has taken the message. *Reconstructed.*
        FmMc = "fm-mc",
        /// LFC: a NIC's packet buffers are partitioned among its peers, and a packet leaves when there is a buffer for it. The
        /// network is taken to be reliable. *Reconstructed.*
        Lfc = "lfc",
    }
);

policy!(
    /// How a NIC in the middle knows its children.
    Membership {
        /// From its group table, posted before.
        #[default]
        Posted = "posted",
        /// From the header, which names everybody below.
        Named = "named",
        /// From its group table, and for the last `named_destinations` members from the header.
        Mixed = "mixed",
    }
);

policy!(
    /// Where the lambda of a postal tree comes from.
    PostalLambda {
        /// From runs of the model among three nodes: the time until a process has the message, over the time that one more
        /// destination takes the multisend.
        #[default]
        Measured = "measured",
        /// From the scheme.
        Scheme = "scheme",
    }
);

policy!(
    /// Whether a broadcast is the first of its group.
    FirstBroadcast {
        /// The group is there.
        #[default]
        No = "no",
        /// The message goes by the hosts, and every process builds the tree and posts it to its NIC before its call returns.
        Yes = "yes",
    }
);

policy!(
    /// Which copies the eager protocol makes.
    EagerCopies {
        /// The receiver's, from the buffer to the final place.
        Receive = "receive",
        /// The sender's into a registered buffer as well, for every message that it posts.
        #[default]
        Both = "both",
    }
);

//! The policies of the model.

/// The operation that is timed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// The root sends to every destination itself: until its process knows that the last one has acknowledged. The
    /// scheme is not asked.
    Multisend,
    /// The message goes down the tree, and the process of the last leaf to have it answers: until the answer is with the
    /// process of the root.
    #[default]
    Multicast,
    /// Every process calls the broadcast at once: until the last call returns.
    Broadcast,
    /// A broadcast that the processes enter at different times.
    Skew,
}

/// The software layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Layer {
    /// GM: data lies where it was received.
    #[default]
    Gm,
    /// MPI over GM: eager copies, or a rendezvous between hosts for long messages.
    Mpi,
}

/// How a NIC makes the copies of a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Replicas {
    /// One send token per child: each fetches and sends the packet, and is returned, on its own.
    Tokens,
    /// When a transmission ends, its callback rewrites the header and queues the packet again. *Published.*
    #[default]
    Callback,
    /// The header is rewritten as soon as it has left, while the rest of the packet leaves.
    HeaderRewrite,
}

/// When an intermediate NIC forwards a packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Forwarding {
    /// Once it is in host memory. *Published.*
    #[default]
    CopyThenForward,
    /// While it is moved there.
    CopyWhileForwarding,
}

/// The flow control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// None: a packet without a receive token is refused, and retransmitted. *Published.*
    #[default]
    None,
    /// FM/MC: a root asks one central manager, a process, for a credit before each message; every receiver tells the
    /// manager when it has taken the message. *Reconstructed.*
    FmMc,
    /// LFC: a NIC's packet buffers are partitioned among its peers, and a packet leaves when there is a buffer for it. The
    /// network is taken to be reliable. *Reconstructed.*
    Lfc,
}

/// How an intermediate NIC knows its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Membership {
    /// From its group table, posted before.
    #[default]
    Posted,
    /// From the header, which names all members below.
    Named,
    /// From its group table, and for the last `named_destinations` members from the header.
    Mixed,
}

/// Whether a broadcast is the first of its group.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FirstBroadcast {
    /// The group is there.
    #[default]
    No,
    /// The message goes by the hosts, and every process builds the tree and posts it to its NIC before its call returns.
    Yes,
}

/// Which copies the eager protocol makes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EagerCopies {
    /// The receiver's, from the buffer to the final place.
    Receive,
    /// The sender's into a registered buffer as well, for every message that it posts.
    #[default]
    Both,
}

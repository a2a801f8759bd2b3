//! The policies of the model.

/// The operation that is timed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Operation {
    /// The root sends to every destination itself. Timed until its process knows that the last one
    /// has acknowledged. The scheme is ignored.
    Multisend,
    /// The message goes down the tree, and the process of the last leaf to receive it answers.
    /// Timed until the process of the root has the answer.
    #[default]
    Multicast,
    /// All processes call the broadcast at the same time. Timed until the last call returns.
    Broadcast,
    /// A broadcast that the processes enter at different times.
    Skew,
}

/// What separates broadcasts in a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Barrier {
    /// Nothing: a process that has returned calls the next broadcast at once.
    #[default]
    None,
    /// Before each broadcast a dissemination barrier of Hensgen, Finkel and Manber (1988), by
    /// messages of GM: in step k each process sends to the one 2^k places behind it.
    /// *Reconstructed.*
    Dissemination,
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
    /// One send token per child. Each token independently fetches and sends the packet, and is
    /// returned.
    Tokens,
    /// When a transmission ends, its callback rewrites the header and queues the packet again.
    /// *Published.*
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
    /// While it is transferred to host memory.
    CopyWhileForwarding,
}

/// The flow control.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Flow {
    /// None: a packet without a receive token is refused, and retransmitted. *Published.*
    #[default]
    None,
    /// FM/MC: a root asks one central manager, a process, for a credit before each message; every
    /// receiver tells the manager when it has taken the message. *Reconstructed.*
    FmMc,
    /// LFC: a NIC's packet buffers are partitioned among its peers, and a packet leaves when a
    /// buffer is free for it. The network is assumed to be reliable. *Reconstructed.*
    Lfc,
}

/// How an intermediate NIC knows its children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Membership {
    /// From its group table, posted in advance.
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
    /// The group exists already.
    #[default]
    No,
    /// The hosts forward the message, and every process builds the tree and posts it to its NIC
    /// before its call returns.
    Yes,
}

/// Between which processes unicasts go beside the multicasts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unicasts {
    /// There are none.
    #[default]
    None,
    /// From the first to the second child of the root: multicasts go through both.
    Members,
    /// From the last but one destination to the last, which multicasts leave out.
    Others,
}

/// Which copies the eager protocol makes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EagerCopies {
    /// The receiver's, from the buffer to the final place.
    Receive,
    /// Also the sender's, into a registered buffer, for every message that it posts.
    #[default]
    Both,
}

//! How the root sends.

#![expect(unsafe_code, reason = "the engine sends from the buffers of calls")]

use std::sync::atomic::Ordering;
use std::time::Duration;

use treecast_engine::EngineHandle;
use treecast_engine::root_socket::{RootSocket, Sending};
use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poller::Polling;
use treecast_proto::{Ending, Input, is_forward_due};
use treecast_wire::MESSAGE_BYTES_MAX;

use super::group::{Group, Role};
use super::sender::Sender;

/// The engine starts to send a long message after this many packets, or bytes if these are fewer:
/// while the application writes the next packets, members receive and forward these.
const PACKETS_PER_SEND: u32 = 32;
const BYTES_PER_SEND: usize = 128 << 10;

/// How long the sender of a long message waits until all members have it, rather than copy what is
/// not acknowledged. That may be as much as all slots hold: to copy a mebibyte takes a tenth of a
/// millisecond to a fifth.
const STABLE_WITHIN: Duration = Duration::from_micros(300);

/// What a call sends: a whole message, or as much as there are free slots for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Whole,
    Part { timeout: Option<Duration> },
}

impl Call {
    const fn timeout(self) -> Option<Duration> {
        match self {
            Self::Whole => None,
            Self::Part { timeout } => timeout,
        }
    }
}

/// The part of a message that a call has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// The number of bytes.
    pub bytes: usize,
    /// Whether they complete the message.
    pub is_last: bool,
}

impl Group {
    /// Sends a message to all other members. Returns when all of it is in the node's memory, or at
    /// all members.
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at other members than the root; [`NodeError::MessageTooLong`];
    /// [`NodeError::Ended`]; [`NodeError::DatagramTooLong`].
    pub fn send(&self, message: &[u8]) -> Result<(), NodeError> {
        let mut role = self.role();
        let Role::Root(sender) = &mut *role else { return Err(self.wrong_side(false)) };
        self.send_by(sender, message, &mut Polling::default())
    }

    /// As [`Group::send`], with the root's side of the ring. A caller that has waited may still
    /// poll.
    pub(super) fn send_by<'a>(
        &'a self,
        sender: &mut Sender,
        message: &[u8],
        polling: &mut Polling<'a>,
    ) -> Result<(), NodeError> {
        sender.socket.iter_mut().for_each(RootSocket::begin_call);
        let mut rest = message;
        let sent = loop {
            match self.send_available(sender, rest, message.len() as u64, Call::Whole, polling) {
                Ok(Sent { bytes, is_last: false }) => {
                    rest = &rest[bytes..];
                    // With the kernel's packet path there may always be free slots. A thread that
                    // never waits does not poll the socket, so the node's own thread has to.
                    if sender.writer.free_slots() > 0 {
                        polling.end();
                    }
                }
                Ok(_) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        sender.socket.iter_mut().for_each(RootSocket::end_call);
        sent
    }

    /// Sends the next bytes of a message of `message_bytes`: waits until there are free slots, and
    /// fills it. For programs that cannot wait as long as [`Group::send`] may, or do not have the
    /// whole message in memory: they call it with what follows until the message is complete, and
    /// before they send another one. `bytes` are at most those that the message lacks; a message of
    /// no bytes is sent by one call. Takes whole packets, so that bytes that fill none
    /// ([`Group::packet_bytes`]) are taken only where they complete the message.
    ///
    /// # Errors
    /// As [`Group::send`], and [`NodeError::TimedOut`]; [`NodeError::Refused`] for a message that
    /// differs from the partly sent one, or for more bytes than it lacks.
    pub fn send_part(
        &self,
        bytes: &[u8],
        message_bytes: u64,
        timeout: Option<Duration>,
    ) -> Result<Sent, NodeError> {
        let mut role = self.role();
        let Role::Root(sender) = &mut *role else { return Err(self.wrong_side(false)) };
        sender.socket.iter_mut().for_each(RootSocket::begin_call);
        let call = Call::Part { timeout };
        let sent = self.send_available(sender, bytes, message_bytes, call, &mut Polling::default());
        sender.socket.iter_mut().for_each(RootSocket::end_call);
        sent
    }

    /// The number of bytes of a message of which calls for parts take whole multiples, as long as
    /// it goes on: as much as a packet holds at most. None, before this member has its place in the
    /// tree.
    pub fn packet_bytes(&self) -> Option<usize> {
        match &*self.role() {
            Role::Root(sender) => Some(sender.lengths().packet_bytes()),
            Role::Member(receiver) => receiver.as_ref().map(|receiver| receiver.lengths().packet_bytes()),
        }
    }

    /// Waits until there are free slots, and fills them with the next bytes of a message.
    fn send_available<'a>(
        &'a self,
        sender: &mut Sender,
        bytes: &[u8],
        message_bytes: u64,
        call: Call,
        polling: &mut Polling<'a>,
    ) -> Result<Sent, NodeError> {
        let bytes_max = sender.lengths().longest(MESSAGE_BYTES_MAX);
        if message_bytes > bytes_max {
            return Err(NodeError::MessageTooLong { message_bytes, bytes_max });
        }
        if self.is_closing.load(Ordering::Acquire) {
            return Err(NodeError::Ended(Ending::Closed));
        }
        let prefers_datagrams = || self.shared_group.prefers_datagrams();
        sender.begin(message_bytes, bytes.len() as u64, prefers_datagrams)?;
        if sender.next_length(bytes.len()).is_none() {
            return Ok(Sent { bytes: 0, is_last: false });
        }
        if sender.writer.free_slots() == 0 {
            self.pass_to_engine(sender, false);
            self.wait_for_free_slots(sender, call.timeout(), polling)?;
        }
        if sender.may_lend(bytes.len())
            && !self.has_one_host()
            && let Some(engine) = self.backend.as_engine()
        {
            return self.send_lent(engine, sender, bytes, call, polling);
        }
        let packets_per_send = PACKETS_PER_SEND.min((BYTES_PER_SEND / sender.packet_bytes()).max(1) as u32);
        let mut rest = bytes;
        for _ in 0..sender.writer.free_slots() {
            let Some(length) = sender.next_length(rest.len()) else { break };
            let is_last = sender.write_packet(&rest[..length]);
            rest = &rest[length..];
            let end = sender.writer.written();
            let offload = sender.offload;
            if is_forward_due(offload, sender.forwarded, end, is_last, sender.writer.slots()) {
                sender.forwarded = end;
                self.forward(offload, end);
            }
            if is_last && message_bytes == length as u64 {
                let follows = sender.follows_short_message();
                self.pass_to_engine(sender, follows);
                sender.end_short_message();
            } else if is_last || end.0.is_multiple_of(packets_per_send) {
                self.pass_to_engine(sender, false);
            }
            if is_last {
                return self.check().map(|()| Sent { bytes: bytes.len(), is_last });
            }
        }
        self.pass_to_engine(sender, false);
        self.check().map(|()| Sent { bytes: bytes.len() - rest.len(), is_last: false })
    }

    /// Sends the next bytes of a message from where they are: as many as there are free slots for,
    /// or all.
    fn send_lent<'a>(
        &'a self,
        engine: &EngineHandle,
        sender: &mut Sender,
        bytes: &[u8],
        call: Call,
        polling: &mut Polling<'a>,
    ) -> Result<Sent, NodeError> {
        // SAFETY: it is dropped when this function returns or panics, which borrows the bytes.
        let mut lent = unsafe { engine.lend_message(&self.shared_group, &sender.writer, bytes) };
        let mut rest = bytes;
        loop {
            let described = sender.describe_packets(rest, sender.writer.free_slots());
            rest = &rest[described.bytes..];
            lent.send(&mut sender.writer, described.end);
            sender.passed = described.end;
            let is_last = described.is_last;
            if is_last && call == Call::Whole {
                self.wait_until_stable(sender, bytes.len(), polling)?;
            }
            if is_last || call != Call::Whole {
                drop(lent);
                return self.check().map(|()| Sent { bytes: bytes.len() - rest.len(), is_last });
            }
            self.wait_for_free_slots(sender, None, polling)?;
        }
    }

    /// Waits a moment until all members have what is sent, if it is so much that acknowledgments
    /// are on their way anyway: then nothing of it needs to be copied into the slots.
    fn wait_until_stable<'a>(
        &'a self,
        sender: &mut Sender,
        bytes: usize,
        polling: &mut Polling<'a>,
    ) -> Result<(), NodeError> {
        let slots_bytes = sender.writer.slots() as usize * sender.writer.stride();
        if 2 * bytes <= slots_bytes || !sender.patience.is_due() {
            return Ok(());
        }
        let is_done = || (sender.writer.freed() == sender.writer.written()).then_some(());
        if is_done().is_none() {
            self.backend.request(Input::Flush { group: self.shared_group.group });
        }
        let waited = self.wait_polling(Some(STABLE_WITHIN), is_done, None, polling);
        sender.patience.learn(waited.is_ok());
        match waited {
            Err(NodeError::TimedOut) => Ok(()),
            waited => waited,
        }
    }

    fn wait_for_free_slots<'a>(
        &'a self,
        sender: &Sender,
        timeout: Option<Duration>,
        polling: &mut Polling<'a>,
    ) -> Result<(), NodeError> {
        let readers = sender.writer.readers();
        readers.inspect(|readers| readers.want_free_slots(true));
        let waited =
            self.wait_polling(timeout, || (sender.writer.free_slots() > 0).then_some(()), None, polling);
        readers.inspect(|readers| readers.want_free_slots(false));
        waited
    }

    /// Passes the written packets to the kernel's packet path, where that forwards, and else to the
    /// engine; and wakes the other processes of this host that read them. Of messages that follow
    /// one another the node's own thread sends many in one system call, while the application goes
    /// on.
    fn pass_to_engine(&self, sender: &mut Sender, follows: bool) {
        let written = sender.writer.written();
        if let Some(readers) = sender.writer.readers() {
            readers.notify();
        }
        // Without members on other hosts the engine only frees slots.
        let is_due = written.distance_from(sender.passed) as u32 >= sender.writer.slots() / 4;
        if self.has_one_host() && !is_due && sender.writer.free_slots() > 0 {
            return;
        }
        sender.passed = written;
        match sender.socket.as_mut().map_or(Sending::Refused, |socket| socket.send(written)) {
            Sending::Sent | Sending::Delegated { is_new: false } => {}
            Sending::Delegated { is_new: true } => self.wake_engine_thread(),
            Sending::Refused if follows => {
                self.shared_group.mark_progress();
                self.wake_engine_thread();
            }
            Sending::Refused => self.wake_engine(),
        }
    }

    /// Waits until each member that is not lost has all sent messages.
    ///
    /// # Errors
    /// As [`Group::send`], and [`NodeError::TimedOut`].
    pub fn flush(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        let mut role = self.role();
        let Role::Root(sender) = &mut *role else { return Err(self.wrong_side(false)) };
        sender.socket.iter_mut().for_each(RootSocket::flushed);
        if self.has_one_host() {
            self.wake_engine();
        }
        let is_done = || (sender.writer.freed() == sender.writer.written()).then_some(());
        // On streams members acknowledge when they are asked.
        if sender.transport.has_streams() && is_done().is_none() {
            self.backend.request(Input::Flush { group: self.shared_group.group });
        }
        self.wait(timeout, is_done)
    }
}

#[cfg(test)]
mod tests {
    use treecast_engine::settings::{GroupSettings, NodeSettings};
    use treecast_proto::{Authentication, Integrity, MemberId, Nanoseconds, Transport};

    use super::super::node::Node;
    use super::*;

    /// Lengths around that of a packet of either carrier, several packets, and more than all slots
    /// hold.
    const LENGTHS: [usize; 12] =
        [0, 1, 1_407, 1_408, 1_409, 2_048, 2_049, 8_192, 8_193, 30_000, 300_000, 3_000_000];

    /// Sends a message by parts of whole packets, each of which is taken as a whole in the end.
    fn send_in_parts(group: &Group, message: &[u8]) {
        let packet_bytes = group.packet_bytes().unwrap();
        let (mut rest, mut is_last) = (message, false);
        while !is_last {
            let part = &rest[..rest.len().min(packet_bytes)];
            let timeout = Some(Duration::from_secs(20));
            let sent = group.send_part(part, message.len() as u64, timeout).unwrap();
            assert!(sent.bytes > 0 || message.is_empty(), "nothing is taken of {} bytes", part.len());
            (rest, is_last) = (&rest[sent.bytes..], sent.is_last);
        }
    }

    #[test]
    fn messages_come_in_their_order_whatever_carries_them() {
        let mut settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() };
        // On a busy machine a node may get no processor for longer than a silent member has.
        settings.protocol.peer_timeout = Nanoseconds::from_ms(20_000);
        let nodes = [(); 4].map(|()| Node::open(&settings).unwrap());
        let members = nodes.iter().map(Node::address).collect();
        let settings = GroupSettings {
            token: "a token".into(),
            transport: Some(Transport::Both),
            message_bytes: 64 << 10,
            scheme: Some("serial".parse().unwrap()),
            ..GroupSettings::new(members)
        };
        let message = |number: usize| -> Vec<u8> {
            (0..LENGTHS[number % LENGTHS.len()]).map(|place| (place * 7 + number) as u8).collect()
        };
        let count = 4 * LENGTHS.len();
        std::thread::scope(|scope| {
            for node in &nodes[1..] {
                scope.spawn(|| {
                    let group = node.group(&settings).unwrap();
                    for number in 0..count {
                        let received = group.receive(Some(Duration::from_secs(20))).unwrap();
                        let received = received.expect("the group is open");
                        let expected = message(number);
                        let differs = received.iter().zip(&expected).position(|(one, other)| one != other);
                        assert_eq!((received.len(), differs), (expected.len(), None), "message {number}");
                    }
                });
            }
            let group = nodes[0].group(&settings).unwrap();
            let mut counts = [0; 2];
            for number in 0..count {
                if number == count / 4 {
                    // Until then everything has gone on streams, and from here on in datagrams.
                    let (group_id, child) = (group.shared_group.group, MemberId(1));
                    group.backend.request(Input::StreamLosses { group: group_id, child });
                    group.flush(Some(Duration::from_secs(20))).unwrap();
                } else if number >= count / 2 {
                    // Each message has its carrier.
                    let far = Nanoseconds(if number % 3 == 0 { u64::MAX } else { 0 });
                    group.shared_group.prefer_datagrams_until(far);
                }
                counts[usize::from(group.shared_group.prefers_datagrams())] += 1;
                if number == 3 * count / 4 {
                    // What is short enough for datagrams goes on streams too from here on.
                    let group_id = group.shared_group.group;
                    group.backend.request(Input::DatagramsTooLong { group: group_id });
                }
                if number % 5 == 0 {
                    send_in_parts(&group, &message(number));
                } else {
                    group.send(&message(number)).unwrap();
                }
            }
            assert!(counts.iter().all(|&messages| messages >= count / 4), "{counts:?}");
            group.flush(Some(Duration::from_secs(20))).unwrap();
            group.close(Some(Duration::from_secs(20))).unwrap();
        });
    }

    /// Whether the root of a group with these settings sends 8 KiB and one byte less from the
    /// buffers of its calls.
    fn lends(change: impl FnOnce(&mut GroupSettings)) -> [bool; 2] {
        let settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() };
        let nodes = [(); 2].map(|()| Node::open(&settings).unwrap());
        let members = nodes.iter().map(Node::address).collect();
        let mut settings = GroupSettings { token: "a token".into(), ..GroupSettings::new(members) };
        change(&mut settings);
        let group = nodes[0].group(&settings).unwrap();
        assert!(group.backend.as_engine().is_some(), "the engine is in this process");
        let role = group.role();
        let Role::Root(sender) = &*role else { panic!("the first member is the root") };
        [8_192, 8_191].map(|bytes| sender.may_lend(bytes))
    }

    #[test]
    fn long_messages_without_checksums_are_sent_from_their_buffers() {
        assert_eq!(lends(|_| ()), [true, false]);
        assert_eq!(lends(|settings| settings.transport = Some(Transport::Packets)), [false; 2]);
        assert_eq!(lends(|settings| settings.integrity = Integrity::Crc32c), [false; 2]);
        assert_eq!(lends(|settings| settings.is_encrypted = true), [false; 2]);
        assert_eq!(lends(|settings| settings.authentication = Some(Authentication::Payload)), [false; 2]);
    }
}

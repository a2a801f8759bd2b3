//! Where the bytes of a message go that an application receives.

#![expect(unsafe_code, reason = "the node stores packets in buffers")]

use treecast_proto::Sequence;
use treecast_shm::message_buffer::{LentBuffer, MessageBuffer};

/// Where the bytes of a message go, from the first to the last.
pub(super) trait Sink {
    /// Takes the next bytes of a message of this length.
    fn take(&mut self, message_bytes: u64, bytes: &[u8]);

    /// Lends the node the buffer that the bytes fill, if there is one, from where packet `next`
    /// belongs, which begins at this offset in its message.
    ///
    /// # Safety
    /// As for [`MessageBuffer::lend`].
    unsafe fn lend(&self, _next: Sequence, _offset: u64, _stride: usize) -> Option<LentBuffer> {
        None
    }

    /// The node has stored the next bytes in the buffer.
    ///
    /// # Safety
    /// It has.
    unsafe fn advance(&mut self, _bytes: usize) {}
}

/// A function that is called with the length of the message and each part of it.
pub(super) struct Parts<F>(pub F);

impl<F: FnMut(u64, &[u8])> Sink for Parts<F> {
    fn take(&mut self, message_bytes: u64, bytes: &[u8]) {
        self.0(message_bytes, bytes);
    }
}

impl Sink for MessageBuffer<'_> {
    fn take(&mut self, _message_bytes: u64, bytes: &[u8]) {
        self.append(bytes);
    }

    unsafe fn lend(&self, next: Sequence, offset: u64, stride: usize) -> Option<LentBuffer> {
        // SAFETY: as the caller says.
        Some(unsafe { self.lend(next, offset, stride) })
    }

    unsafe fn advance(&mut self, bytes: usize) {
        // SAFETY: the node has stored them, as the caller says.
        unsafe { self.advance(bytes) };
    }
}

/// A vector, allocated when the length of the message is known.
#[derive(Default)]
pub(super) struct Whole {
    message: Vec<u8>,
    buffer: Option<MessageBuffer<'static>>,
}

impl Whole {
    /// The message.
    pub fn into_vec(self) -> Vec<u8> {
        let Self { mut message, buffer } = self;
        let filled = buffer.map_or(0, |buffer| buffer.filled());
        // SAFETY: the vector is empty, and so many bytes are written behind its end.
        unsafe { message.set_len(filled) };
        message
    }
}

impl Sink for Whole {
    fn take(&mut self, message_bytes: u64, bytes: &[u8]) {
        let Self { message, buffer } = self;
        let buffer = buffer.get_or_insert_with(|| {
            message.reserve_exact(message_bytes as usize);
            // SAFETY: the vector is used when the buffer is gone, in `into_vec`.
            unsafe { MessageBuffer::behind(message) }
        });
        buffer.append(bytes);
    }

    unsafe fn lend(&self, next: Sequence, offset: u64, stride: usize) -> Option<LentBuffer> {
        // SAFETY: as the caller says.
        self.buffer.as_ref().map(|buffer| unsafe { buffer.lend(next, offset, stride) })
    }

    unsafe fn advance(&mut self, bytes: usize) {
        if let Some(buffer) = &mut self.buffer {
            // SAFETY: the node has stored them, as the caller says.
            unsafe { buffer.advance(bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use treecast_engine::settings::{GroupSettings, NodeSettings};
    use treecast_proto::Transport;

    use super::super::node::Node;
    use super::super::receive::{Capacity, Taking};
    use super::*;

    /// Counts the bytes that the node has stored in the buffer.
    struct Counting<'a> {
        buffer: MessageBuffer<'a>,
        stored_bytes: usize,
    }

    impl Sink for Counting<'_> {
        fn take(&mut self, _message_bytes: u64, bytes: &[u8]) {
            self.buffer.append(bytes);
        }

        unsafe fn lend(&self, next: Sequence, offset: u64, stride: usize) -> Option<LentBuffer> {
            // SAFETY: as the caller says.
            Some(unsafe { self.buffer.lend(next, offset, stride) })
        }

        unsafe fn advance(&mut self, bytes: usize) {
            self.stored_bytes += bytes;
            // SAFETY: as the caller says.
            unsafe { self.buffer.advance(bytes) };
        }
    }

    /// How many bytes of messages, which are sent while their receiver waits, a leaf of a group
    /// stores in the buffers of its calls.
    fn stored_bytes(transport: Transport) -> usize {
        const LENGTH: usize = 65_536;
        let settings = NodeSettings { bind: "127.0.0.1:0".parse().unwrap(), ..NodeSettings::default() };
        let nodes = [(); 2].map(|()| Node::open(&settings).unwrap());
        let members = nodes.iter().map(Node::address).collect();
        let settings = GroupSettings {
            token: "a token".into(),
            message_bytes: LENGTH as u64,
            transport: Some(transport),
            ..GroupSettings::new(members)
        };
        let [root, leaf] = nodes.each_ref().map(|node| node.group(&settings).unwrap());
        let timeout = Some(Duration::from_secs(20));
        root.wait_until_ready(timeout).unwrap();
        let mut stored_bytes = 0;
        for number in 0..20 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    root.send(&vec![number; LENGTH]).unwrap();
                });
                let mut bytes = vec![0; LENGTH];
                let mut sink = Counting { buffer: MessageBuffer::new(&mut bytes), stored_bytes: 0 };
                let capacity = Capacity::of(LENGTH as u64);
                leaf.receive_message(timeout, capacity, Taking::Copies, &mut sink).unwrap();
                stored_bytes += sink.stored_bytes;
                assert!(bytes == vec![number; LENGTH]);
            });
        }
        stored_bytes
    }

    #[test]
    fn a_leaf_on_streams_receives_past_its_slots() {
        assert!(stored_bytes(Transport::Streams) > 0);
        assert_eq!(stored_bytes(Transport::Packets), 0);
    }

    #[test]
    fn a_vector_has_the_bytes_of_the_message_and_no_others() {
        let mut whole = Whole::default();
        // SAFETY: there is no buffer yet.
        let lent = unsafe { whole.lend(Sequence(0), 0, 4) };
        assert!(lent.is_none(), "the length is not known");
        whole.take(9, b"abcd");
        // SAFETY: it is not used when the vector is.
        let lent = unsafe { whole.lend(Sequence(1), 4, 4) }.unwrap();
        let place = lent.place(Sequence(1)).unwrap();
        // SAFETY: the place has four bytes.
        unsafe { place.copy_from_nonoverlapping(b"efgh".as_ptr(), 4) };
        // SAFETY: they are stored.
        unsafe { whole.advance(4) };
        whole.take(9, b"i");
        assert_eq!(whole.into_vec(), b"abcdefghi");
        assert_eq!(Whole::default().into_vec(), b"");
    }
}

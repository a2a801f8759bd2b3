//! The bounded queue between the thread that reads files and the one that sends.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Messages that were read, and wait to be sent.
const QUEUED_MESSAGES: usize = 8;

/// A message of the stream.
#[derive(Debug, Default)]
pub(crate) struct Message {
    pub bytes: Vec<u8>,
    /// How many bytes of files are in it.
    pub file_bytes: u64,
    /// The outline of the message, from which another host can build it.
    pub outline: Option<Vec<u8>>,
}

/// The end of the thread that reads.
pub(crate) struct Filler {
    full: SyncSender<Message>,
    empty: Receiver<Vec<u8>>,
}

/// The end of the thread that sends.
pub(crate) struct Drain {
    full: Receiver<Message>,
    empty: SyncSender<Vec<u8>>,
}

/// The sending side has stopped.
#[derive(Debug)]
pub(crate) struct Stopped;

/// An empty queue. A thread that fills it waits while [`QUEUED_MESSAGES`] are in it; memory of
/// messages that were sent is used again.
pub(crate) fn queue() -> (Filler, Drain) {
    queue_of(QUEUED_MESSAGES)
}

/// As [`queue`], with another number of messages; 0: each is taken before the next one is made.
pub(crate) fn queue_of(messages: usize) -> (Filler, Drain) {
    let (full, filled) = sync_channel(messages);
    // One is being filled, and one sent.
    let (empty, emptied) = sync_channel(messages + 2);
    (Filler { full, empty: emptied }, Drain { full: filled, empty })
}

impl Filler {
    /// Puts a message into the queue. Returns memory for the next one.
    pub fn put(&self, message: Message) -> Result<Vec<u8>, Stopped> {
        self.full.send(message).map_err(|_| Stopped)?;
        Ok(self.empty.try_recv().unwrap_or_default())
    }
}

impl Drain {
    /// The next message; none after the last one.
    pub fn take(&self) -> Option<Message> {
        self.full.recv().ok()
    }

    /// Gives the memory of a message back.
    pub fn give_back(&self, mut bytes: Vec<u8>) {
        bytes.clear();
        // The other end may be gone, or have enough.
        let _ = self.empty.try_send(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(byte: u8) -> Message {
        Message { bytes: vec![byte; 10], ..Message::default() }
    }

    #[test]
    fn messages_come_in_order_and_memory_is_used_again() {
        let (filler, drain) = queue();
        assert_eq!(filler.put(message(1)).unwrap().capacity(), 0);
        let first = drain.take().unwrap();
        assert_eq!(first.bytes, [1; 10]);
        drain.give_back(first.bytes);
        let memory = filler.put(message(2)).unwrap();
        assert!(memory.is_empty() && memory.capacity() >= 10);
        drop(filler);
        assert_eq!(drain.take().map(|message| message.bytes[0]), Some(2));
        assert!(drain.take().is_none());
    }

    #[test]
    fn a_thread_that_fills_a_queue_learns_that_nobody_takes() {
        let (filler, drain) = queue();
        let filling = std::thread::spawn(move || {
            let mut put = 0;
            while filler.put(message(0)).is_ok() {
                put += 1;
            }
            put
        });
        let taken = (0..3).filter_map(|_| drain.take()).count();
        drop(drain);
        let put = filling.join().unwrap();
        assert!((taken..=taken + QUEUED_MESSAGES).contains(&put), "{put} were put, {taken} taken");
    }
}

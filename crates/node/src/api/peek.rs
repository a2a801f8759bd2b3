//! Messages that a member reads where the node has stored them.

use std::fmt;
use std::ops::Deref;
use std::sync::MutexGuard;
use std::time::Duration;

use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poller::Polling;

use super::group::{Group, Role};
use super::loan::Loan;
use super::receive::Part;
use super::receiver::Receiver;
use super::sink::Parts;

/// The next bytes of a message, where the node has stored them ([`Group::peek`]). As long as it
/// exists, other threads that receive from the group wait.
pub struct Peeked<'a> {
    group: &'a Group,
    role: MutexGuard<'a, Role>,
    message_bytes: u64,
    is_last: bool,
}

impl Peeked<'_> {
    /// The length of the whole message, and whether these bytes complete it.
    pub const fn part(&self) -> Part {
        Part { message_bytes: self.message_bytes, is_last: self.is_last }
    }

    /// Receives these bytes: the node may store others there. Without that the next call that
    /// receives begins with the same bytes.
    ///
    /// # Errors
    /// Those of [`Group::consume`].
    pub fn consume(mut self) -> Result<(), NodeError> {
        consume(self.group, &mut self.role)
    }
}

impl Deref for Peeked<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.role {
            Role::Member(Some(receiver)) => receiver.seen_bytes(),
            Role::Member(None) | Role::Root(_) => &[],
        }
    }
}

impl fmt::Debug for Peeked<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Peeked").field("bytes", &self.len()).field("part", &self.part()).finish()
    }
}

impl Group {
    /// Waits for a message, and shows its next bytes where the node has stored them, without a
    /// copy; none, if the root has closed the group and all messages have been received.
    ///
    /// It shows the received bytes of the message that are contiguous: all of a message that waits,
    /// unless it is longer than the slots or goes past the last of them. It shows one packet at a
    /// time in an encrypted group, whose packets are decrypted into another buffer, and where the
    /// kernel's packet path or another process shares the slots. [`Peeked::consume`] receives these
    /// bytes.
    ///
    /// ```
    /// use treecast_node::{GroupSettings, Node, NodeSettings};
    ///
    /// let settings = NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() };
    /// let nodes = [Node::open(&settings)?, Node::open(&settings)?];
    /// let group = GroupSettings::new(nodes.iter().map(Node::address).collect());
    /// let (root, member) = (nodes[0].group(&group)?, nodes[1].group(&group)?);
    /// root.send(b"a message")?;
    /// let peeked = member.peek(None)?.expect("the group is open");
    /// assert_eq!((&peeked[..], peeked.part().is_last), (&b"a message"[..], true));
    /// peeked.consume()?;
    /// root.close(None)?;
    /// assert!(member.peek(None)?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at the root; [`NodeError::TimedOut`]; [`NodeError::Corrupt`];
    /// [`NodeError::Ended`].
    pub fn peek(&self, timeout: Option<Duration>) -> Result<Option<Peeked<'_>>, NodeError> {
        let mut role = self.role();
        let Role::Member(receiver) = &mut *role else { return Err(self.wrong_side(true)) };
        Ok(self.see(receiver, timeout)?.map(|Part { message_bytes, is_last }| Peeked {
            group: self,
            role,
            message_bytes,
            is_last,
        }))
    }

    /// Receives the bytes that [`Group::peek`] has shown last, for programs that cannot keep what
    /// it returns. Without them it does nothing.
    ///
    /// # Errors
    /// [`NodeError::WrongSide`] at the root; [`NodeError::GroupFailed`] if a daemon has taken the
    /// memory back meanwhile: what was read there may be zeros.
    pub fn consume(&self) -> Result<(), NodeError> {
        consume(self, &mut self.role())
    }

    fn see(
        &self,
        receiver: &mut Option<Receiver>,
        timeout: Option<Duration>,
    ) -> Result<Option<Part>, NodeError> {
        let (nowhere, mut loan) = (Parts(|_, _: &[u8]| {}), Loan::new(self));
        let mut polling = Polling::default();
        let available = self.available(receiver, timeout, &nowhere, &mut loan, &mut polling)?;
        let Some((receiver, end)) = available else { return Ok(None) };
        let (message_bytes, _) = self.lengths_at(receiver, receiver.reader.read())?;
        loop {
            let seen = receiver.see(end);
            self.check_memory(&receiver.reader)?;
            match seen {
                Ok(seen) => return Ok(Some(Part { message_bytes, is_last: seen.is_last })),
                Err(damage) => self.mend(&receiver.reader, damage, &mut polling)?,
            }
        }
    }
}

/// Receives what the application sees.
fn consume(group: &Group, role: &mut Role) -> Result<(), NodeError> {
    let Role::Member(receiver) = role else { return Err(group.wrong_side(true)) };
    if let Some(receiver) = receiver
        && let Some(seen) = receiver.seen
    {
        group.check_memory(&receiver.reader)?;
        group.release(receiver, seen.next, seen.is_last);
    }
    Ok(())
}

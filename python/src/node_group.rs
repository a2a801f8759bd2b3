//! Groups of nodes.

use std::mem;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use treecast_node::{Ending, Group, NodeError, Part};

use crate::buffer::{Message, Room};
use crate::error::failed;
use crate::node::Open;
use crate::owned::Owned;
use crate::patience::Patience;

/// A group at one of its members, as a `Node` gives it. The root sends, all others receive.
///
/// Times are in seconds, and None is for ever; what takes longer raises TimeoutError, and has lost nothing: the same call goes on
/// where it was. So does Ctrl-C. All threads may use a group: whole messages follow one another, and one thread may close a group
/// in which another waits.
///
/// At the end of a `with` block the group is closed; left by an exception, it is given up. Iteration receives until the root closes
/// the group:
///
/// >>> with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
/// ...     members = [one.address, other.address]
/// ...     sender, receiver = one.group(members), other.group(members)
/// ...     sender.send(b"one")
/// ...     sender.send(bytearray(b"two"))
/// ...     lost = sender.close()
/// ...     for message in receiver:
/// ...         print(message)
/// b'one'
/// b'two'
///
/// Calls that wait or send raise GroupEnded once the group is over in another way than by being closed: the root has given it up
/// or says nothing any more, or takes this member for dead. Its sentence says which.
#[pyclass(frozen, module = "treecast")]
pub struct NodeGroup(pub Arc<Entered>);

/// A group, and what calls that were interrupted have left.
pub struct Entered {
    group: Owned<Group>,
    number: u32,
    /// The beginning of a message of which the rest has not been received yet.
    begun: Mutex<Vec<u8>>,
    /// A message of which the rest has not been sent yet.
    unsent: Mutex<Option<Message>>,
    is_given_up: AtomicBool,
    /// Open as long as the group is there.
    node: Arc<Open>,
}

#[pymethods]
impl NodeGroup {
    /// At the root: sends a message to all other members. It comes back when the message is on its way: its bytes are in the
    /// node's memory. Until there is room for them it waits.
    ///
    /// `message` is anything with bytes: bytes, bytearray, memoryview, an array of numpy. They are not copied but into the node's
    /// memory. If Ctrl-C interrupts it, the message that has begun is sent by the next call that sends, flushes or closes.
    ///
    /// Raises TreecastError at other members than the root, and if datagrams are longer than the network carries; GroupEnded.
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let message = Message::of(message)?;
        py.detach(|| {
            let mut patience = Patience::endless();
            let mut unsent = self.0.all_sent(&mut patience)?;
            *unsent = Some(message);
            self.0.finish(&mut unsent, &mut patience)
        })
    }

    /// Receives the next message; None, if the root has closed the group and everything has been received.
    ///
    /// Raises TimeoutError, after which the message can still be received; TreecastError at the root; GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let message = py.detach(|| self.0.receive(&mut Patience::new(timeout)?))?;
        Ok(message.map(|message| PyBytes::new(py, &message)))
    }

    /// Receives the next message into a buffer, such as a bytearray or an array of numpy, and says how many bytes it has; None, as
    /// `receive`.
    ///
    /// Raises what `receive` raises, and TreecastError if the message is longer than the buffer. It can then still be received.
    #[pyo3(signature = (buffer, timeout = None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let mut room = Room::of(buffer)?;
        py.detach(|| self.0.receive_into(room.bytes(), &mut Patience::new(timeout)?))
    }

    /// At the root: waits until every member that is not lost has all that has been sent.
    ///
    /// Raises TimeoutError, TreecastError at other members, GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        py.detach(|| {
            let mut patience = Patience::new(timeout)?;
            let group = self.0.group.get()?;
            let _unsent = self.0.all_sent(&mut patience)?;
            patience.wait(|slice| group.flush(Some(slice)).map(Some))?.map_err(failed)
        })
    }

    /// At the root: waits until every member has its place in the tree, or is lost, as one is after ten seconds that never
    /// answers; says who is lost. At another member: waits until this one has its place. Sending and receiving do not need it: what
    /// is sent waits.
    ///
    /// Raises TimeoutError, which names who has not answered; GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn wait_until_ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<Lost>> {
        let group = self.0.group.get()?;
        py.detach(|| {
            let wait = |slice| group.wait_until_ready(Some(slice)).map(Some);
            let lost = Patience::new(timeout)?.wait(wait)?.map_err(failed)?;
            Ok(lost.into_iter().map(Lost).collect())
        })
    }

    /// Closes the group at its root, when every member has everything; says who has been lost or has left. At another member:
    /// leaves the group. A group that is closed can be closed again.
    ///
    /// Raises TimeoutError, after which the group goes on to be closed; GroupEnded, if it ended in another way.
    #[pyo3(signature = (timeout = None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<Lost>> {
        py.detach(|| {
            let mut patience = Patience::new(timeout)?;
            let group = self.0.group.get()?;
            drop(self.0.all_sent(&mut patience)?);
            let lost = patience.wait(|slice| group.close(Some(slice)).map(Some))?.map_err(failed)?;
            Ok(lost.into_iter().map(Lost).collect())
        })
    }

    /// Gives the group up, and waits for nothing: the root tells the members, which may lack messages; another member leaves.
    fn give_up(&self, py: Python<'_>) {
        self.0.is_given_up.store(true, Ordering::Release);
        py.detach(|| self.0.give_up());
    }

    /// Who has been lost or has left until now, as far as the root knows.
    fn losses(&self) -> PyResult<Vec<Lost>> {
        Ok(self.0.group.get()?.losses().into_iter().map(Lost).collect())
    }

    /// This member's number, from 0; None, until it has its place.
    #[getter]
    fn member(&self) -> PyResult<Option<u32>> {
        Ok(self.0.group.get()?.member())
    }

    /// How the tree is made, as docs/plans.md writes it: what has been chosen where the settings say `auto`, and measured for
    /// `postal`. None where the root alone knows it: at other members if it has measured, and at those that have joined later.
    ///
    /// >>> node = Node("127.0.0.1:0")
    /// >>> node.group([node.address], message_bytes=64).scheme
    /// 'postal:lambda=8'
    #[getter]
    fn scheme(&self) -> PyResult<Option<String>> {
        Ok(self.0.group.get()?.scheme().map(|scheme| scheme.to_string()))
    }

    /// What has been counted for this group at this node, by name, such as `sent`, `retransmitted` and `duplicates`: packets, each once
    /// for each child. All are 0 once the group is over.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let group = self.0.group.get()?;
        let counters = py.detach(|| group.counters());
        let counted = PyDict::new(py);
        counters.values().try_for_each(|(name, count)| counted.set_item(name, count))?;
        Ok(counted)
    }

    /// A file descriptor for `select`, `poll` and event loops: it becomes readable when there is something new to see. Whoever
    /// watches it reads its eight bytes, and then receives with a timeout of 0 until TimeoutError. It belongs to the group.
    fn fileno(&self) -> PyResult<RawFd> {
        let watched = self.0.group.get()?.watch();
        Ok(watched.map_err(|error| PyOSError::new_err(error.to_string()))?.as_raw_fd())
    }

    /// For asyncio: takes a message over, which `_finish` then sends; TimeoutError, as long as one before it is not on its way.
    fn _begin(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let message = Message::of(message)?;
        py.detach(|| {
            *self.0.all_sent(&mut Patience::new(Some(0.0))?)? = Some(message);
            Ok(())
        })
    }

    /// For asyncio: sends what there is room for; TimeoutError, if that is not all.
    fn _finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.all_sent(&mut Patience::new(Some(0.0))?).map(drop))
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.receive(py, None)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (kind = None, error = None, traceback = None))]
    #[expect(unused_variables, reason = "that there is an error is enough")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.give_up(py);
        } else if !self.0.is_given_up.load(Ordering::Acquire) {
            self.close(py, None)?;
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<NodeGroup {} at {}>", self.0.number, self.0.node.address())
    }
}

impl Entered {
    /// Of a group that a node has just entered.
    pub fn new(group: Group, node: Arc<Open>) -> Self {
        Self {
            number: group.settings().group.0,
            group: Owned::new(group),
            begun: Mutex::default(),
            unsent: Mutex::default(),
            is_given_up: AtomicBool::new(false),
            node,
        }
    }

    /// Gives the group up, in the process that it belongs to.
    pub fn give_up(&self) {
        if let Ok(group) = self.group.get() {
            group.give_up();
        }
    }

    /// Waits until no other thread sends, and all that was begun is on its way.
    fn all_sent(&self, patience: &mut Patience) -> PyResult<MutexGuard<'_, Option<Message>>> {
        let unsent = patience.wait(|slice| Ok(self.unsent.try_lock_for(slice)))?;
        let mut unsent = unsent.map_err(failed)?;
        self.finish(&mut unsent, patience)?;
        Ok(unsent)
    }

    fn finish(&self, unsent: &mut Option<Message>, patience: &mut Patience) -> PyResult<()> {
        let group = self.group.get()?;
        let Some(message) = unsent else { return Ok(()) };
        let send = |slice| Ok(group.send_part(message.bytes(), Some(slice))?.then_some(()));
        // Interrupted, it stays for the next call.
        let sent = patience.wait(send)?;
        *unsent = None;
        sent.map_err(failed)
    }

    fn receive(&self, patience: &mut Patience) -> PyResult<Option<Vec<u8>>> {
        let mut begun = self.begun(patience)?;
        let is_there = self.receive_parts(patience, u64::MAX, |length, bytes| {
            let left = (length as usize).saturating_sub(begun.len());
            begun.reserve_exact(left);
            begun.extend_from_slice(bytes);
        })?;
        Ok(is_there.map(|_| mem::take(&mut *begun)))
    }

    fn receive_into(&self, room: &mut [u8], patience: &mut Patience) -> PyResult<Option<usize>> {
        let mut begun = self.begun(patience)?;
        let mut filled = 0;
        let received = self.receive_parts(patience, room.len() as u64, |_, bytes| {
            if filled == 0 {
                filled = begun.len();
                room[..filled].copy_from_slice(&begun);
                begun.clear();
            }
            room[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        });
        if received.is_err() && filled > 0 {
            begun.extend_from_slice(&room[..filled]);
        }
        Ok(received?.map(|part| part.message_bytes as usize))
    }

    /// Waits until no other thread receives.
    fn begun(&self, patience: &mut Patience) -> PyResult<MutexGuard<'_, Vec<u8>>> {
        patience.wait(|slice| Ok(self.begun.try_lock_for(slice)))?.map_err(failed)
    }

    /// Receives parts up to the last one of a message, which it answers.
    fn receive_parts(
        &self,
        patience: &mut Patience,
        room_bytes: u64,
        mut take: impl FnMut(u64, &[u8]),
    ) -> PyResult<Option<Part>> {
        let group = self.group.get()?;
        let received = patience.wait(|slice| {
            let part = group.receive_part(Some(slice), room_bytes, &mut take)?;
            Ok(part.map_or(Some(None), |part| part.is_last.then_some(Some(part))))
        })?;
        match received {
            Err(NodeError::Ended(Ending::Closed)) => Ok(None),
            received => received.map_err(failed),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// A member that others go on without, and why. `str` of it is a sentence.
///
/// >>> with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
/// ...     members = [one.address, other.address]
/// ...     sender, receiver = one.group(members), other.group(members)
/// ...     _ = sender.wait_until_ready()
/// ...     left = receiver.close()
/// ...     [lost] = sender.close()
/// >>> lost.member, lost.address == other.address, lost.reason
/// (1, True, 'it has left')
#[pyclass(frozen, eq, module = "treecast")]
#[derive(PartialEq)]
pub struct Lost(treecast_node::Lost);

#[pymethods]
impl Lost {
    /// Its number.
    #[getter]
    fn member(&self) -> u32 {
        self.0.member
    }

    /// Where its node was; None, if it joined later.
    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address.map(|address| address.to_string())
    }

    /// Why, as a part of a sentence: `it has left`.
    #[getter]
    fn reason(&self) -> String {
        self.0.loss.to_string()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Lost: {}>", self.0)
    }
}

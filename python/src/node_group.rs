//! Groups of nodes.

use std::any::Any;
use std::mem;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBytes, PyDict, PyFloat, PyInt};
use treecast_node::{AbortReason, Capacity, Element, Ending, Group, NodeError, Operation, Owned, Part};

use crate::buffer::{Message, Numbers, ReceiveBuffer};
use crate::deadline::{Deadline, WaitError};
use crate::error::{TreecastError, failed};
use crate::peeked::{Peeked, Receptions};

/// A group, at one of its members. A `Node` creates it. The root sends, all other members receive.
///
/// Timeouts are in seconds; None means no timeout. A call that raises TimeoutError, or is
/// interrupted by Ctrl-C, has lost nothing: the same call resumes where it stopped. A group is
/// thread-safe: messages of several threads do not mix, and one thread may close a group in which
/// another waits.
///
/// At the end of a `with` block the group is closed; after an exception it is aborted. Iteration
/// receives until the root closes the group:
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
/// Calls that wait or send raise GroupEnded if the group has ended without being closed: the root
/// has aborted it or is unreachable, or has evicted this member. The message gives the reason.
#[pyclass(frozen, module = "treecast")]
pub struct NodeGroup(pub Arc<Entered>);

/// A message that is not sent completely.
struct Unsent {
    message: Message,
    /// The number of bytes that are sent.
    sent: usize,
}

/// A group, and the state of interrupted calls.
pub struct Entered {
    group: Owned<Group>,
    number: u32,
    /// The beginning of a partially received message.
    begun: Mutex<Vec<u8>>,
    /// A partially sent message.
    unsent: Mutex<Option<Unsent>>,
    /// The calls that receive, and the memoryviews of what one has shown.
    pub receptions: Receptions,
    is_aborted: AtomicBool,
    node_address: String,
    /// Keeps the node open.
    _node: Arc<dyn Any + Send + Sync>,
}

#[pymethods]
impl NodeGroup {
    /// At the root: sends a message to all other members. The call returns when the message is
    /// at all members or in the group's slots; it waits for free slots.
    ///
    /// `message` is any object with the buffer protocol: bytes, bytearray, memoryview, a numpy
    /// array. It is copied once at most, into the slots. If Ctrl-C interrupts the call, the next
    /// call that sends, flushes or closes sends the rest of the message.
    ///
    /// Raises TreecastError at other members than the root, and if datagrams are longer than the
    /// MTU of the network; GroupEnded.
    fn send(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let message = Message::of(message)?;
        py.detach(|| {
            let mut deadline = Deadline::never();
            let mut unsent = self.0.all_sent(&mut deadline)?;
            *unsent = Some(Unsent { message, sent: 0 });
            self.0.finish(&mut unsent, &mut deadline)
        })
    }

    /// Receives the next message; returns None if the root has closed the group and all messages
    /// have been received.
    ///
    /// Raises TimeoutError, after which the message can still be received; TreecastError at the
    /// root; GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn receive<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let message = py.detach(|| self.0.receive(&mut Deadline::new(timeout)?))?;
        Ok(message.map(|message| PyBytes::new(py, &message)))
    }

    /// Receives the next message into a buffer, such as a bytearray or a numpy array, and returns
    /// its length in bytes, or None as `receive` does.
    ///
    /// Raises the same exceptions as `receive`, and TreecastError if the message is longer than the
    /// buffer. The message can then still be received.
    #[pyo3(signature = (buffer, timeout = None))]
    fn receive_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Option<usize>> {
        let mut buffer = ReceiveBuffer::of(buffer)?;
        py.detach(|| self.0.receive_into(buffer.bytes(), &mut Deadline::new(timeout)?))
    }

    /// Waits for a message and shows its next bytes where the node has stored them, without a copy:
    /// an object with the buffer protocol, which a `with` block consumes at its end. None if the
    /// root has closed the group. It has at least one packet of the message, and all of a message
    /// that waits in consecutive slots. The next call receives what is not consumed. While
    /// memoryviews or arrays use it, calls that receive, and `close`, raise BufferError.
    ///
    /// >>> with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
    /// ...     members = [one.address, other.address]
    /// ...     sender, receiver = one.group(members), other.group(members)
    /// ...     sender.send(b"a message")
    /// ...     with receiver.peek() as peeked, memoryview(peeked) as view:
    /// ...         print(peeked.is_last, view[2:].tobytes())
    /// ...     lost = sender.close()
    /// ...     print(receiver.peek())
    /// True b'message'
    /// None
    ///
    /// Raises the same exceptions as `receive`, and TreecastError if a part of the message was
    /// received before.
    #[pyo3(signature = (timeout = None))]
    fn peek(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Peeked>> {
        py.detach(|| self.0.peek(&mut Deadline::new(timeout)?))
    }

    /// At the root: waits until every member that is not lost has all messages sent so far.
    ///
    /// Raises TimeoutError, TreecastError at other members, GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        py.detach(|| {
            let mut deadline = Deadline::new(timeout)?;
            let group = self.0.group.get().map_err(failed)?;
            let _unsent = self.0.all_sent(&mut deadline)?;
            Ok(deadline.wait(|slice| group.flush(Some(slice)).map(Some))?)
        })
    }

    /// Waits until all members are in this call, which each makes after the same message. Returns
    /// the number of processes that were, at most 65,535: without those that were lost before.
    ///
    /// Raises the same exceptions as `all_reduce`.
    #[pyo3(signature = (timeout = None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u32> {
        py.detach(|| self.0.all_reduce(&mut [], Element::U64, Operation::Sum, &mut Deadline::new(timeout)?))
    }

    /// Combines the values of all members, and returns the result, which is the same at all of
    /// them, bit by bit. All members make this call after the same message, with the same operation
    /// and the same type and number of values.
    ///
    /// `values` is an int, a float, or an object with the buffer protocol, such as a numpy array,
    /// of integers or fractions of 4 or 8 bytes: at most 504 bytes in all. A buffer is changed in
    /// place, and returned. `operation` is "sum", "product", "min" or "max", or for integers "and",
    /// "or" or "xor".
    ///
    /// Raises TimeoutError, after which the same call can be made again; TreecastError for invalid
    /// values, and if the members' values differ in kind, or another message comes than the result;
    /// GroupEnded.
    #[pyo3(signature = (values, operation = "sum", timeout = None))]
    fn all_reduce<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        operation: &str,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = values.py();
        let operation = operation_of(operation)?;
        let reduce = |bytes: &mut [u8], element| {
            py.detach(|| self.0.all_reduce(bytes, element, operation, &mut Deadline::new(timeout)?))
        };
        if values.is_instance_of::<PyInt>() {
            let mut bytes = values.extract::<i64>()?.to_le_bytes();
            reduce(&mut bytes, Element::I64)?;
            return Ok(i64::from_le_bytes(bytes).into_pyobject(py)?.into_any());
        }
        if values.is_instance_of::<PyFloat>() {
            let mut bytes = values.extract::<f64>()?.to_le_bytes();
            reduce(&mut bytes, Element::F64)?;
            return Ok(f64::from_le_bytes(bytes).into_pyobject(py)?.into_any());
        }
        let mut numbers = Numbers::of(values)?;
        let element = numbers.element;
        reduce(numbers.bytes(), element)?;
        Ok(values.clone())
    }

    /// At the root: waits until every member has its position in the tree or is lost, and returns
    /// the lost members. A member that does not answer is lost after `join_timeout_ms`. At another
    /// member: waits until it has its position. Sending and receiving do not require this call.
    ///
    /// Raises TimeoutError, which names the missing members; GroupEnded.
    #[pyo3(signature = (timeout = None))]
    fn wait_until_ready(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<Lost>> {
        let group = self.0.group.get().map_err(failed)?;
        py.detach(|| {
            let wait = |slice| group.wait_until_ready(Some(slice)).map(Some);
            let lost = Deadline::new(timeout)?.wait(wait)?;
            Ok(lost.into_iter().map(Lost).collect())
        })
    }

    /// At the root: waits until every member has all messages, closes the group, and returns the
    /// members that have been lost or have left. At another member: leaves the group. Closing a
    /// closed group has no effect.
    ///
    /// Raises TimeoutError, after which the group continues to close in the background; BufferError
    /// if memoryviews of what `peek` returned still use it; GroupEnded if the group has ended
    /// otherwise.
    #[pyo3(signature = (timeout = None))]
    fn close(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Vec<Lost>> {
        py.detach(|| {
            let mut deadline = Deadline::new(timeout)?;
            let group = self.0.group.get().map_err(failed)?;
            self.0.receptions.begin()?;
            drop(self.0.all_sent(&mut deadline)?);
            let lost = deadline.wait(|slice| group.close(Some(slice)).map(Some))?;
            Ok(lost.into_iter().map(Lost).collect())
        })
    }

    /// Aborts the group without waiting: the root informs the members, which may lack messages;
    /// another member leaves.
    fn abort(&self, py: Python<'_>) {
        self.0.is_aborted.store(true, Ordering::Release);
        py.detach(|| self.0.abort());
    }

    /// The members that have been lost or have left so far, as known to the root.
    #[getter]
    fn losses(&self) -> PyResult<Vec<Lost>> {
        Ok(self.0.group.get().map_err(failed)?.losses().into_iter().map(Lost).collect())
    }

    /// This member's number, from 0; None until it has its position in the tree.
    #[getter]
    fn member(&self) -> PyResult<Option<u32>> {
        Ok(self.0.group.get().map_err(failed)?.member())
    }

    /// The scheme of the tree, in the notation of docs/plans.md: the one chosen for `auto`, with
    /// the measured lambda of `postal`. None at members that do not know it: other members than the
    /// root if it was measured, and members that have joined a running group.
    ///
    /// >>> node = Node("127.0.0.1:0")
    /// >>> node.group([node.address], message_bytes=64).scheme
    /// 'postal:lambda=8'
    #[getter]
    fn scheme(&self) -> PyResult<Option<String>> {
        Ok(self.0.group.get().map_err(failed)?.scheme().map(|scheme| scheme.to_string()))
    }

    /// At the root, a sentence: where packets are forwarded, why that was chosen with
    /// `offload=auto`, and how many of the root's children multicast reaches, which is known some
    /// milliseconds after the group is ready. None at other members.
    ///
    /// >>> node = Node("127.0.0.1:0")
    /// >>> node.group([node.address], offload="auto").offload_status
    /// 'offload nic, chosen because no switch is on the way over loopback'
    #[getter]
    fn offload_status(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let group = self.0.group.get().map_err(failed)?;
        Ok(py.detach(|| group.offload_status()).map(|status| status.to_string()))
    }

    /// The counters of this group at this node, by name, such as `sent`, `retransmitted` and
    /// `duplicates`: packets, counted once per child. None once the node does not have the group
    /// any more.
    #[getter]
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let group = self.0.group.get().map_err(failed)?;
        let counters = py.detach(|| group.counters());
        counters.map(|counters| counters.values().into_py_dict(py)).transpose()
    }

    /// A file descriptor for `select`, `poll` and event loops: it becomes readable when the group's
    /// state changes. Then read its eight bytes, and receive with a timeout of 0 until
    /// TimeoutError. The group owns it.
    fn fileno(&self) -> PyResult<RawFd> {
        let watched = self.0.group.get().map_err(failed)?.watch();
        Ok(watched.map_err(|error| PyOSError::new_err(error.to_string()))?.as_raw_fd())
    }

    /// For asyncio: accepts a message, which `_finish` then sends; TimeoutError while an earlier
    /// message is partially sent.
    fn _begin(&self, py: Python<'_>, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let message = Message::of(message)?;
        py.detach(|| {
            *self.0.all_sent(&mut Deadline::new(Some(0.0))?)? = Some(Unsent { message, sent: 0 });
            Ok(())
        })
    }

    /// For asyncio: sends as much as there are free slots for; TimeoutError if a part remains.
    fn _finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.all_sent(&mut Deadline::new(Some(0.0))?).map(drop))
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
    #[expect(unused_variables, reason = "only the presence of an exception matters")]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.abort(py);
        } else if !self.0.is_aborted.load(Ordering::Acquire) {
            self.close(py, None)?;
        }
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("<NodeGroup {} at {}>", self.0.number, self.0.node_address)
    }
}

impl Entered {
    /// A new group of a node, which is kept open as long as the group exists.
    pub fn new(group: Group, node_address: String, node: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            number: group.settings().group.0,
            group: Owned::new(group),
            begun: Mutex::default(),
            unsent: Mutex::default(),
            receptions: Receptions::default(),
            is_aborted: AtomicBool::new(false),
            node_address,
            _node: node,
        }
    }

    /// Aborts the group, unless this process inherited it by a fork.
    pub fn abort(&self) {
        self.abort_because(AbortReason::Application);
    }

    /// As [`Entered::abort`]; the members of a root are told this reason.
    pub fn abort_because(&self, why: AbortReason) {
        if let Ok(group) = self.group.get() {
            group.abort_because(why);
        }
    }

    /// Waits until no other thread sends, and finishes a partially sent message.
    fn all_sent(&self, deadline: &mut Deadline) -> PyResult<MutexGuard<'_, Option<Unsent>>> {
        let mut unsent = deadline.wait(|slice| Ok(self.unsent.try_lock_for(slice)))?;
        self.finish(&mut unsent, deadline)?;
        Ok(unsent)
    }

    /// Combines the values of all members; the number of processes that have a part in the result.
    fn all_reduce(
        &self,
        values: &mut [u8],
        element: Element,
        operation: Operation,
        deadline: &mut Deadline,
    ) -> PyResult<u32> {
        let group = self.group.get().map_err(failed)?;
        let _unsent = self.all_sent(deadline)?;
        self.receptions.begin()?;
        let reduce = |slice| group.all_reduce_bytes(values, element, operation, Some(slice)).map(Some);
        Ok(deadline.wait(reduce)?)
    }

    fn finish(&self, unsent: &mut Option<Unsent>, deadline: &mut Deadline) -> PyResult<()> {
        let group = self.group.get().map_err(failed)?;
        let Some(Unsent { message, sent }) = unsent else { return Ok(()) };
        let bytes = message.bytes();
        let sent = deadline.wait(|slice| {
            let part = group.send_part(&bytes[*sent..], bytes.len() as u64, Some(slice))?;
            *sent += part.bytes;
            Ok(part.is_last.then_some(()))
        });
        // After an interruption the message remains for the next call.
        if !matches!(sent, Err(WaitError::Interrupted(_))) {
            *unsent = None;
        }
        Ok(sent?)
    }

    fn receive(&self, deadline: &mut Deadline) -> PyResult<Option<Vec<u8>>> {
        let mut begun = self.begun(deadline)?;
        let is_there = self.receive_parts(deadline, u64::MAX, |length, bytes| {
            let left = (length as usize).saturating_sub(begun.len());
            begun.reserve_exact(left);
            begun.extend_from_slice(bytes);
        })?;
        Ok(is_there.map(|_| mem::take(&mut *begun)))
    }

    fn receive_into(&self, buffer: &mut [u8], deadline: &mut Deadline) -> PyResult<Option<usize>> {
        let mut begun = self.begun(deadline)?;
        let mut filled = 0;
        let received = self.receive_parts(deadline, buffer.len() as u64, |_, bytes| {
            if filled == 0 {
                filled = begun.len();
                buffer[..filled].copy_from_slice(&begun);
                begun.clear();
            }
            buffer[filled..filled + bytes.len()].copy_from_slice(bytes);
            filled += bytes.len();
        });
        if received.is_err() && filled > 0 {
            begun.extend_from_slice(&buffer[..filled]);
        }
        Ok(received?.map(|part| part.message_bytes as usize))
    }

    /// Waits until no other thread receives.
    fn begun(&self, deadline: &mut Deadline) -> PyResult<MutexGuard<'_, Vec<u8>>> {
        let begun = deadline.wait(|slice| Ok(self.begun.try_lock_for(slice)))?;
        self.receptions.begin()?;
        Ok(begun)
    }

    fn peek(self: &Arc<Self>, deadline: &mut Deadline) -> PyResult<Option<Peeked>> {
        let begun = deadline.wait(|slice| Ok(self.begun.try_lock_for(slice)))?;
        if !begun.is_empty() {
            return Err(TreecastError::new_err("a part of the message is received: receive the rest first"));
        }
        let number = self.receptions.begin()?;
        let group = self.group.get().map_err(failed)?;
        let peeked = deadline.wait(|slice| {
            let peeked = group.peek(Some(slice))?;
            Ok(Some(peeked.map(|peeked| Peeked::new(Arc::clone(self), number, &peeked, peeked.part()))))
        });
        match peeked {
            Err(WaitError::Failed(NodeError::Ended(Ending::Closed))) => Ok(None),
            peeked => Ok(peeked?),
        }
    }

    /// Receives what the call with this number has shown.
    pub fn consume(&self, number: u64) -> PyResult<()> {
        let _begun = self.begun.lock();
        if !self.receptions.is_last(number) {
            return Err(TreecastError::new_err("these bytes have been received, or may be by another call"));
        }
        self.receptions.begin()?;
        self.group.get().map_err(failed)?.consume().map_err(failed)
    }

    /// Receives the parts of a message, and returns the last one.
    fn receive_parts(
        &self,
        deadline: &mut Deadline,
        buffer_bytes: u64,
        mut take: impl FnMut(u64, &[u8]),
    ) -> PyResult<Option<Part>> {
        let group = self.group.get().map_err(failed)?;
        let received = deadline.wait(|slice| {
            let part = group.receive_part(Some(slice), Capacity::of(buffer_bytes), &mut take)?;
            Ok(part.map_or(Some(None), |part| part.is_last.then_some(Some(part))))
        });
        match received {
            Err(WaitError::Failed(NodeError::Ended(Ending::Closed))) => Ok(None),
            received => Ok(received?),
        }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.abort_because(AbortReason::Dropped);
    }
}

/// A lost member, and the reason. Its `str` is a sentence.
///
/// >>> with Node("127.0.0.1:0") as one, Node("127.0.0.1:0") as other:
/// ...     members = [one.address, other.address]
/// ...     sender, receiver = one.group(members), other.group(members)
/// ...     _ = sender.wait_until_ready()
/// ...     left = receiver.close()
/// ...     [lost] = sender.close()
/// >>> lost.member, lost.address == other.address, lost.reason
/// (1, True, 'left the group')
#[pyclass(frozen, eq, module = "treecast")]
#[derive(PartialEq)]
pub struct Lost(treecast_node::Lost);

#[pymethods]
impl Lost {
    /// The number of the member.
    #[getter]
    fn member(&self) -> u32 {
        self.0.member
    }

    /// The address of its node; None if it joined a running group.
    #[getter]
    fn address(&self) -> Option<String> {
        self.0.address.map(|address| address.to_string())
    }

    /// The reason, such as `left the group`.
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

/// # Errors
/// [`TreecastError`] for an unknown name.
fn operation_of(name: &str) -> PyResult<Operation> {
    let found = Operation::NAMES.iter().find(|(known, _)| *known == name);
    found.map(|&(_, operation)| operation).ok_or_else(|| {
        TreecastError::new_err(format!(
            "invalid value {name} for operation: expected sum, product, min, max, and, or or xor"
        ))
    })
}

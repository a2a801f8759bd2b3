//! Barriers and all-reduces.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use treecast_engine::settings::error::NodeError;
use treecast_engine::wait::poller::Polling;
use treecast_proto::{Contribution, Element, Ending, Input, Operation, Process, Sequence, Values};

use super::group::{Group, Role};
use super::receive::{Capacity, Taking};
use super::receiver::Receiver;
use super::sender::Sender;
use super::sink::Parts;

/// A type whose values an all-reduce combines: `i32`, `i64`, `u32`, `u64`, `f32` and `f64`.
pub trait Number: Copy + sealed::Sealed {
    /// The type on the wire.
    const ELEMENT: Element;
    /// Its bytes, little-endian.
    fn write(self, to: &mut Vec<u8>);
    /// The value of these bytes, as many as it has.
    fn read(bytes: &[u8]) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($type:ty => $element:expr),*) => {$(
        impl sealed::Sealed for $type {}

        impl Number for $type {
            const ELEMENT: Element = $element;

            fn write(self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &[u8]) -> Self {
                bytes.as_array().copied().map_or_else(Self::default, Self::from_le_bytes)
            }
        }
    )*};
}

numbers! {
    i32 => Element::I32,
    i64 => Element::I64,
    u32 => Element::U32,
    u64 => Element::U64,
    f32 => Element::F32,
    f64 => Element::F64
}

impl Group {
    /// Waits until all members are in this call, which each makes after the same message. Returns
    /// the number of processes that were, as [`Group::all_reduce`] does.
    ///
    /// # Errors
    /// Those of [`Group::all_reduce`].
    pub fn barrier(&self, timeout: Option<Duration>) -> Result<u32, NodeError> {
        self.all_reduce::<u32>(&mut [], Operation::Sum, timeout)
    }

    /// Replaces the values, at all members, by those that the operation makes of the values of all
    /// members. All of them make this call after the same message, with the same operation and
    /// number of values: at most [`Values::BYTES_MAX`] bytes.
    ///
    /// The result is the same at all members, bit by bit. Each node combines the values of its own
    /// process or processes, in the order of their places, with those of its children in the tree,
    /// in the order of the table. Members that are lost before they have called are not waited for,
    /// and a member that joins meanwhile may have no part in the result: the number of processes
    /// that have a part is returned, which is the same at all members, and 65,535 at most.
    ///
    /// ```
    /// use treecast_node::{GroupSettings, Node, NodeSettings, Operation};
    ///
    /// let node = Node::open(&NodeSettings { bind: "127.0.0.1:0".parse()?, ..NodeSettings::default() })?;
    /// let group = node.group(&GroupSettings::new(vec![node.address()]))?;
    /// let mut values = [1.5, 2.5];
    /// let processes = group.all_reduce(&mut values, Operation::Sum, None)?;
    /// assert_eq!((processes, values), (1, [1.5, 2.5]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`NodeError::InvalidValues`], before anything is sent. [`NodeError::DifferentValues`] at all
    /// members, if they have called with different operations, types or numbers of values.
    /// [`NodeError::OtherMessage`] at a member that gets another message than the result.
    /// [`NodeError::UnencryptedValues`] where what the root sends is encrypted.
    /// [`NodeError::TimedOut`], after which the same call can be made again. [`NodeError::Ended`],
    /// [`NodeError::Refused`].
    pub fn all_reduce<T: Number>(
        &self,
        values: &mut [T],
        operation: Operation,
        timeout: Option<Duration>,
    ) -> Result<u32, NodeError> {
        let mut bytes = Vec::with_capacity(size_of_val(values));
        for value in values.iter() {
            value.write(&mut bytes);
        }
        let processes = self.all_reduce_bytes(&mut bytes, T::ELEMENT, operation, timeout)?;
        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
            *value = T::read(bytes);
        }
        Ok(processes)
    }

    /// As [`Group::all_reduce`], of values in little-endian byte order.
    ///
    /// # Errors
    /// Those of [`Group::all_reduce`].
    pub fn all_reduce_bytes(
        &self,
        values: &mut [u8],
        element: Element,
        operation: Operation,
        timeout: Option<Duration>,
    ) -> Result<u32, NodeError> {
        let own = Values { operation, element, bytes: values.to_vec() };
        if !own.are_valid() {
            return Err(NodeError::InvalidValues { operation, element, bytes: values.len() });
        }
        let until = timeout.map(|timeout| Instant::now() + timeout);
        let Contribution { processes, values: result, .. } = match &mut *self.role() {
            Role::Root(sender) => self.reduce_at_root(sender, own, until),
            Role::Member(receiver) => self.reduce_at_member(receiver, own, until),
        }?;
        let is_alike = |result: &Values| {
            result.operation == operation && result.element == element && result.bytes.len() == values.len()
        };
        let result = result.filter(is_alike).ok_or(NodeError::DifferentValues)?;
        values.copy_from_slice(&result.bytes);
        Ok(processes.into())
    }

    /// At the root: waits for the result, and sends it.
    fn reduce_at_root(
        &self,
        sender: &mut Sender,
        values: Values,
        until: Option<Instant>,
    ) -> Result<Contribution, NodeError> {
        sender.check_no_partial_message()?;
        check_encryption(sender.is_encrypting(), &values)?;
        if self.is_closing.load(Ordering::Acquire) {
            return Err(NodeError::Ended(Ending::Closed));
        }
        // Processes of other hosts that have not come yet would have no part.
        self.wait(left(until), || self.shared_group.state().is_ready.then_some(()))?;
        let packet = sender.writer.written();
        self.contribute(packet, values);
        // The thread goes on to poll until the result is sent: members wait for it, and to stop is
        // a system call.
        let mut polling = Polling::for_events();
        let find = || {
            let state = self.shared_group.state();
            state.reduced.as_ref().filter(|result| result.packet == packet).cloned()
        };
        let result = self.wait_polling(left(until), find, None, &mut polling)?;
        self.send_by(sender, &result.write(), &mut polling)?;
        Ok(result)
    }

    /// At another member: the result, which is the next message.
    fn reduce_at_member(
        &self,
        receiver: &mut Option<Receiver>,
        values: Values,
        until: Option<Instant>,
    ) -> Result<Contribution, NodeError> {
        let receiving = match receiver {
            Some(receiver) => receiver,
            None => receiver.insert(self.take_receiver(until)?),
        };
        check_encryption(receiving.cipher.is_some(), &values)?;
        let packet = receiving.reader.read();
        let capacity =
            Capacity::of(Contribution::of_process(packet, Some(values.clone())).write().len() as u64);
        // After a timeout the result may be there.
        if receiving.reader.written() == packet {
            self.contribute(packet, values);
        }
        let mut message = Vec::new();
        let mut sink = Parts(|_, bytes: &[u8]| message.extend_from_slice(bytes));
        let received = self.receive_by(receiver, left(until), capacity, Taking::Copies, &mut sink);
        match received {
            Ok(Some(_)) => {}
            Ok(None) => return Err(NodeError::Ended(Ending::Closed)),
            Err(NodeError::TooLong { .. }) => return Err(NodeError::OtherMessage),
            Err(error) => return Err(error),
        }
        let result = Contribution::read(&message).filter(|result| result.packet == packet);
        result.ok_or(NodeError::OtherMessage)
    }

    fn contribute(&self, packet: Sequence, values: Values) {
        let place = self.shared_group.place;
        let process =
            place.map_or(Process::ONLY, |place| Process { place: place.number, count: place.count });
        let contribution = Contribution::of_process(packet, Some(values));
        let group = self.shared_group.group;
        self.shared_group.mark_progress();
        self.backend.request(Input::Contribute { group, process, contribution });
    }
}

/// Values go up the tree without encryption; the barrier has none.
fn check_encryption(is_encrypted: bool, values: &Values) -> Result<(), NodeError> {
    if is_encrypted && !values.bytes.is_empty() { Err(NodeError::UnencryptedValues) } else { Ok(()) }
}

fn left(until: Option<Instant>) -> Option<Duration> {
    until.map(|until| until.saturating_duration_since(Instant::now()))
}

//! The C ABI: `include/treecast.h` is generated from this file.
//!
//! Every function checks its pointers for null and its strings for UTF-8, and otherwise returns
//! [`tc_result::TC_INVALID_ARGUMENT`]. No panic unwinds into C.

// It has no unit tests, and need not be compiled again for none.
#![cfg(not(test))]
#![expect(unsafe_code, reason = "C passes raw pointers")]
#![allow(non_camel_case_types, clippy::doc_markdown, reason = "names and comments are for C")]

mod all_reduce;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;
use std::{ptr, slice};

use treecast_fabric::RoutingPolicy;
use treecast_node::{
    Ending, Group, GroupSettings, JoinOptions, Keyed, Listener, Lost, Member, Node, NodeError, NodeSettings,
    Owned, Room, read_fabric, read_plan, resolve,
};

/// The result of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum tc_result {
    /// Success.
    TC_OK = 0,
    /// The root has closed the group, and all messages have been received.
    TC_CLOSED = 1,
    /// The timeout has expired.
    TC_TIMED_OUT = 2,
    /// The message is longer than the buffer. It can still be received.
    TC_BUFFER_TOO_SMALL = 3,
    /// Members have been lost; tc_error_message names them. All other members have all messages.
    TC_MEMBERS_LOST = 4,
    /// An argument is invalid, or does not apply to this member.
    TC_INVALID_ARGUMENT = 5,
    /// The group has ended without being closed: it was aborted, the root is unreachable, or this
    /// member has left or was evicted.
    TC_ENDED = 6,
    /// A system call has failed.
    TC_SYSTEM_ERROR = 7,
}

use tc_result::{
    TC_BUFFER_TOO_SMALL, TC_CLOSED, TC_ENDED, TC_INVALID_ARGUMENT, TC_MEMBERS_LOST, TC_OK, TC_SYSTEM_ERROR,
    TC_TIMED_OUT,
};

/// A running node within this process.
pub struct tc_node(Owned<Node>);

/// A group at one of its members.
pub struct tc_group(Owned<Group>);

impl AsRef<Owned<Node>> for tc_node {
    fn as_ref(&self) -> &Owned<Node> {
        &self.0
    }
}

impl AsRef<Owned<Group>> for tc_group {
    fn as_ref(&self) -> &Owned<Group> {
        &self.0
    }
}

/// An error and its message.
struct Failure(tc_result, String);

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::new(CString::default());
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        let result = match error {
            NodeError::TimedOut
            | NodeError::Incomplete(_)
            | NodeError::JoinFailed { .. }
            | NodeError::Cancelled
            | NodeError::Unanswered(_) => TC_TIMED_OUT,
            NodeError::TooLong { .. } => TC_BUFFER_TOO_SMALL,
            NodeError::Ended(Ending::Closed) => TC_CLOSED,
            NodeError::Ended(_)
            | NodeError::GroupFailed(_)
            | NodeError::Corrupt { .. }
            | NodeError::Altered { .. }
            | NodeError::NodeClosed => TC_ENDED,
            NodeError::Bind { .. }
            | NodeError::NoFreePort { .. }
            | NodeError::System { .. }
            | NodeError::Kernel(_)
            | NodeError::DatagramTooLong { .. } => TC_SYSTEM_ERROR,
            NodeError::Plan(_)
            | NodeError::PlanNotExecutable(_)
            | NodeError::File { .. }
            | NodeError::NotOnFabric { .. }
            | NodeError::NoSuchEngine(_)
            | NodeError::NoPortRange(_)
            | NodeError::Daemon(_)
            | NodeError::Policy(_)
            | NodeError::Members(_)
            | NodeError::NoToken
            | NodeError::NoEncryptionKey
            | NodeError::UnencryptedValues
            | NodeError::CongestionControl { .. }
            | NodeError::Forked { .. }
            | NodeError::MessageTooLong { .. }
            | NodeError::PathMtu { .. }
            | NodeError::Rejected { .. }
            | NodeError::Refused(_)
            | NodeError::InvalidValues { .. }
            | NodeError::DifferentValues
            | NodeError::OtherMessage
            | NodeError::WrongSide { .. } => TC_INVALID_ARGUMENT,
        };
        Self(result, error.to_string())
    }
}

fn wrong(why: impl Into<String>) -> Failure {
    Failure(TC_INVALID_ARGUMENT, why.into())
}

/// Runs a call, keeps its error for [`tc_error_message`], and catches panics.
fn result_of(call: impl FnOnce() -> Result<tc_result, Failure>) -> tc_result {
    let done = catch_unwind(AssertUnwindSafe(call));
    let Failure(result, message) = match done {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure(TC_SYSTEM_ERROR, "the library has panicked, which is a bug".into()),
    };
    MESSAGE.set(CString::new(message.replace('\0', " ")).unwrap_or_default());
    result
}

/// # Safety
/// `pointer` is null or a zero-terminated string.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(wrong(format!("{what} is NULL")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| wrong(format!("{what} is not valid UTF-8")))
}

/// # Safety
/// `pointer` is null, or a handle from `tc_node_new` or a function that creates groups, and not
/// freed.
unsafe fn handle<'a, T: 'a>(
    pointer: *const (impl AsRef<Owned<T>> + 'a),
    what: &str,
) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    let handle = unsafe { pointer.as_ref() }.ok_or_else(|| wrong(format!("the {what} is NULL")))?;
    Ok(handle.as_ref().get()?)
}

/// # Safety
/// `output` is null or valid for writing one `T`.
unsafe fn write<T>(output: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if output.is_null() {
        return Err(wrong(format!("the output for the {what} is NULL")));
    }
    // SAFETY: as the caller promises.
    unsafe { output.write(value) };
    Ok(())
}

/// TC_OK, or the names of the lost members.
fn none_lost(lost: &[Lost]) -> Result<tc_result, Failure> {
    if lost.is_empty() {
        return Ok(TC_OK);
    }
    let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
    Err(Failure(TC_MEMBERS_LOST, names.join("; ")))
}

fn timeout(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// The error message of this thread's last call that did not return TC_OK. It is valid until this
/// thread's next such call.
#[unsafe(no_mangle)]
pub extern "C" fn tc_error_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Opens a node at a UDP address such as "192.0.2.1:7000"; with port 0 the system chooses a port.
/// `settings` are those of a node, separated by spaces, such as "spin_us=20 peer_timeout_ms=400",
/// or NULL.
///
/// # Safety
/// `bind` is a zero-terminated string, and so is `settings` unless it is NULL; `node` is valid for
/// writing a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_new(
    bind: *const c_char,
    settings: *const c_char,
    node: *mut *mut tc_node,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let bind = resolve(unsafe { text(bind, "bind") }?)?;
        let mut node_settings = NodeSettings { bind, ..NodeSettings::default() };
        if !settings.is_null() {
            // SAFETY: as the caller promises.
            let settings = unsafe { text(settings, "settings") }?;
            node_settings.set_all(settings).map_err(|error| wrong(error.to_string()))?;
        }
        let opened = Node::open(&node_settings)?;
        // SAFETY: as the caller promises.
        unsafe { write(node, ptr::null_mut(), "node")? };
        // SAFETY: as the caller promises; the box is freed by `tc_node_free`.
        unsafe { write(node, Box::into_raw(Box::new(tc_node(Owned::new(opened)))), "node")? };
        Ok(TC_OK)
    })
}

/// Closes a node. The call waits, for some seconds at most, until closed groups have sent what
/// other members still need. The node's groups must be freed before. NULL is allowed. In a forked
/// process the call does nothing.
///
/// # Safety
/// `node` is NULL, or comes from `tc_node_new` and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_free(node: *mut tc_node) {
    if !node.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(node) });
    }
}

/// Writes the node's UDP address as a zero-terminated string to `address`, a buffer of `capacity`
/// bytes; 64 are sufficient.
///
/// # Safety
/// `node` comes from `tc_node_new`; `address` is valid for writing `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_address(
    node: *const tc_node,
    address: *mut c_char,
    capacity: usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let text = unsafe { handle(node, "node") }?.address().to_string();
        // SAFETY: as the caller promises.
        unsafe { write_text(&text, address, capacity, "the address") }
    })
}

/// Writes the engine of the node, "user" or "ebpf", as a zero-terminated string to `engine`, a
/// buffer of `capacity` bytes; 8 are sufficient. The engine of the daemon's node, or of a shared
/// one, is named in the same way.
///
/// # Safety
/// `node` comes from `tc_node_new`; `engine` is valid for writing `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_engine(
    node: *const tc_node,
    engine: *mut c_char,
    capacity: usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let text = unsafe { handle(node, "node") }?.engine().kind().to_string();
        // SAFETY: as the caller promises.
        unsafe { write_text(&text, engine, capacity, "the engine") }
    })
}

/// Writes a text and a zero to a buffer of `capacity` bytes.
///
/// # Safety
/// `buffer` is NULL or valid for writing `capacity` bytes.
unsafe fn write_text(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
    what: &str,
) -> Result<tc_result, Failure> {
    if buffer.is_null() || capacity <= text.len() {
        return Err(wrong(format!("{what} needs a buffer of {} bytes", text.len() + 1)));
    }
    // SAFETY: the buffer is large enough for the text and its zero, and is not the text, which Rust
    // borrows.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(TC_OK)
}

/// # Safety
/// `settings` is NULL or a zero-terminated string.
unsafe fn group_settings(settings: *const c_char, members: Vec<Member>) -> Result<GroupSettings, Failure> {
    let mut group_settings = GroupSettings::of(members);
    if !settings.is_null() {
        // SAFETY: as the caller promises.
        let settings = unsafe { text(settings, "settings") }?;
        for setting in settings.split_whitespace() {
            group_settings = match setting.split_once('=') {
                Some(("plan", file)) => group_settings.with_plan(read_plan(Path::new(file))?),
                Some(("fabric", text)) => {
                    group_settings.with_fabric(read_fabric(text, RoutingPolicy::Auto)?.0)
                }
                _ => group_settings,
            };
        }
        let is_key = |setting: &&str| !setting.starts_with("plan=") && !setting.starts_with("fabric=");
        let others: Vec<&str> = settings.split_whitespace().filter(is_key).collect();
        group_settings.set_all(&others.join(" ")).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(group_settings)
}

/// Creates a group from a list of members. `members` are the addresses of all members, as
/// host:port, separated by commas, the same at every member. The root is the first, unless
/// `settings` says otherwise. `settings` is NULL, or key=value separated by spaces, such as "root=2
/// scheme=binomial offload=nic token=secret message_bytes=16384". With "plan=FILE" the root carries
/// out the plan in a JSON file, as `treecast plan --format json` writes it, whose root is that of
/// the group. With "fabric=FILE" the root makes the plan on the racks and switches in a file, such
/// as Slurm's topology.conf or an inventory of hosts and racks, whose hosts have the names in
/// `members`, or those of the hosts that join.
///
/// # Safety
/// `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_new(
    node: *const tc_node,
    members: *const c_char,
    settings: *const c_char,
    group: *mut *mut tc_group,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let (node, members) = unsafe { (handle(node, "node")?, text(members, "members")?) };
        let members =
            members.split(',').map(|member| Member::resolve(member.trim())).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: as the caller promises.
        let settings = unsafe { group_settings(settings, members) }?;
        let entered = node.group(&settings)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(Owned::new(entered)))), "group")? };
        Ok(TC_OK)
    })
}

/// Listens until all members have joined, and takes part in their group as its root. `listen` is
/// the TCP address, such as "0.0.0.0:7000", at which the others call tc_group_join; `members` is
/// their number, this node included. `settings` are as for tc_group_new, and hold for all members.
/// TC_TIMED_OUT, if not all have joined; tc_error_message names them.
///
/// # Safety
/// `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_listen(
    node: *const tc_node,
    listen: *const c_char,
    members: u32,
    settings: *const c_char,
    timeout_ms: i64,
    group: *mut *mut tc_group,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let (node, listen) = unsafe { (handle(node, "node")?, text(listen, "listen")?) };
        // SAFETY: as the caller promises.
        let settings = unsafe { group_settings(settings, Vec::new()) }?;
        let listen = resolve(listen)?;
        settings.check(listen, members)?;
        let mut listener = Listener::bind(listen, members)?;
        listener.timeout = timeout(timeout_ms);
        let entered = node.listen(listener, &settings)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(Owned::new(entered)))), "group")? };
        Ok(TC_OK)
    })
}

/// Joins the group of a root that listens, or will listen before the timeout: `root` is its
/// address, and `token` the token of its settings, or NULL if all members are on one host. `member`
/// is the number that this node requests; below 0, any. TC_TIMED_OUT, if the root or other members
/// are missing; TC_INVALID_ARGUMENT, if the root rejects this node.
///
/// # Safety
/// `node` comes from `tc_node_new`; the strings are zero-terminated; `group` is valid for writing a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_join(
    node: *const tc_node,
    root: *const c_char,
    token: *const c_char,
    member: i64,
    timeout_ms: i64,
    group: *mut *mut tc_group,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let (node, root) = unsafe { (handle(node, "node")?, text(root, "root")?) };
        // SAFETY: as the caller promises.
        let token = if token.is_null() { "" } else { unsafe { text(token, "token") }? };
        let mut options = JoinOptions::new(resolve(root)?, token);
        options.timeout = timeout(timeout_ms);
        options.member = match member {
            ..0 => None,
            _ => Some(
                u32::try_from(member)
                    .map_err(|_| wrong(format!("{member} is not the number of a member")))?,
            ),
        };
        let entered = node.join(&options)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(Owned::new(entered)))), "group")? };
        Ok(TC_OK)
    })
}

/// Writes this member's number, from 0. TC_INVALID_ARGUMENT, if it has no number yet.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `member` is valid for writing
/// a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_member(group: *const tc_group, member: *mut u32) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let number = unsafe { handle(group, "group") }?.member();
        let number = number.ok_or_else(|| wrong("this node has no number yet"))?;
        // SAFETY: as the caller promises.
        unsafe { write(member, number, "number")? };
        Ok(TC_OK)
    })
}

/// Writes a sentence as a zero-terminated string to `text`, a buffer of `capacity` bytes; 256 are
/// sufficient: where packets are forwarded, why that was chosen with "offload=auto", and how many
/// of the root's children multicast reaches, which is known some milliseconds after the group is
/// ready. TC_INVALID_ARGUMENT at other members than the root.
///
/// # Safety
/// `group` comes from tc_group_new or tc_group_listen; `text` is valid for writing `capacity`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_offload_status(
    group: *const tc_group,
    text: *mut c_char,
    capacity: usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let status = unsafe { handle(group, "group") }?.offload_status();
        let status = status.ok_or_else(|| wrong("only the root knows the offload's status"))?;
        // SAFETY: as the caller promises.
        unsafe { write_text(&status.to_string(), text, capacity, "the offload's status") }
    })
}

/// Waits until every member has its position in the tree: TC_MEMBERS_LOST, if some are lost; the
/// others can still use the group. After TC_TIMED_OUT, tc_error_message names the missing members.
/// Sending and receiving do not require this call.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_wait_until_ready(group: *const tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let lost = unsafe { handle(group, "group") }?.wait_until_ready(timeout(timeout_ms))?;
        none_lost(&lost)
    })
}

/// At the root: sends a message to all other members. The call returns when the message has been
/// copied, and its buffer can be reused.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `message` is valid for
/// reading `length` bytes, or NULL if `length` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_send(
    group: *const tc_group,
    message: *const c_void,
    length: usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group")?.send(bytes(message, length)?)? };
        Ok(TC_OK)
    })
}

/// # Safety
/// `message` is null or valid for reading `length` bytes.
unsafe fn bytes<'a>(message: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if message.is_null() {
        return Err(wrong("the message is NULL"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { slice::from_raw_parts(message.cast::<u8>(), length) })
}

/// At the root: sends the next bytes of a message of `message_bytes`, and writes how many of
/// `length` it has taken. For programs that cannot wait as long as tc_group_send may, or do not
/// have the whole message in memory: they call it with what follows until the message is complete,
/// and before they send another one. It takes whole packets (tc_group_packet_bytes), so that bytes
/// that fill none are taken only if they complete the message. A message of no bytes is sent by one
/// call. TC_TIMED_OUT if there is no room; TC_INVALID_ARGUMENT if `length` differs from that of the
/// message that is partly sent, or if it lacks fewer bytes.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `part` is valid for reading
/// `length` bytes, or NULL if `length` is 0; `sent` is valid for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_send_part(
    group: *const tc_group,
    part: *const c_void,
    length: usize,
    message_bytes: u64,
    timeout_ms: i64,
    sent: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let (group, part) = unsafe { (handle(group, "group")?, bytes(part, length)?) };
        if sent.is_null() {
            return Err(wrong("the output for the number of bytes is NULL"));
        }
        let taken = group.send_part(part, message_bytes, timeout(timeout_ms))?;
        // SAFETY: as the caller promises.
        unsafe { write(sent, taken.bytes, "number of bytes")? };
        Ok(TC_OK)
    })
}

/// Writes the number of bytes of a message that each packet but the last one has.
/// TC_INVALID_ARGUMENT at other members than the root before the first call that receives.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `packet_bytes` is valid for
/// writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_packet_bytes(
    group: *const tc_group,
    packet_bytes: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let bytes = unsafe { handle(group, "group") }?.packet_bytes();
        let bytes = bytes.ok_or_else(|| wrong("this member has not received anything yet"))?;
        // SAFETY: as the caller promises.
        unsafe { write(packet_bytes, bytes, "number of bytes")? };
        Ok(TC_OK)
    })
}

/// At the root: TC_MEMBERS_LOST, if members have been lost so far; tc_error_message names them.
/// TC_OK at other members. It does not wait.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_check(group: *const tc_group) -> tc_result {
    // SAFETY: as the caller promises.
    result_of(|| none_lost(&unsafe { handle(group, "group") }?.losses()))
}

/// At the root: waits until every member that is not lost has all messages sent so far.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_flush(group: *const tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group") }?.flush(timeout(timeout_ms))?;
        Ok(TC_OK)
    })
}

/// At other members: receives the next message into `buffer`, which has `capacity` bytes, and
/// writes its length. TC_CLOSED, if the root has closed the group and all messages have been
/// received.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
/// `capacity` bytes; `length` is valid for writing a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_receive(
    group: *const tc_group,
    buffer: *mut c_void,
    capacity: usize,
    timeout_ms: i64,
    length: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if buffer.is_null() || length.is_null() {
            return Err(wrong("the buffer or the output for the length is NULL"));
        }
        // SAFETY: as the caller promises; the bytes may be uninitialized.
        let room = unsafe { slice::from_raw_parts_mut(buffer.cast::<MaybeUninit<u8>>(), capacity) };
        match group.receive_uninit(room, timeout(timeout_ms))? {
            Some(received) => {
                // SAFETY: as the caller promises.
                unsafe { write(length, received, "length")? };
                Ok(TC_OK)
            }
            None => Ok(TC_CLOSED),
        }
    })
}

/// At other members: receives the next bytes of a message into `buffer`, which has `capacity`
/// bytes, and writes the length of the whole message and how many bytes were received. For programs
/// that cannot wait as long as tc_group_receive may, whose timeout is for the beginning of a
/// message, or that do not keep the whole message in memory. It receives whole packets:
/// TC_BUFFER_TOO_SMALL, if the buffer has no room for the next one; 65536 bytes, or those that the
/// message lacks, are sufficient. TC_CLOSED, if the root has closed the group and all messages have
/// been received.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `buffer` is valid for writing
/// `capacity` bytes, or NULL if that is 0; `message_bytes` and `received` are valid for writing a
/// number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_receive_part(
    group: *const tc_group,
    buffer: *mut c_void,
    capacity: usize,
    timeout_ms: i64,
    message_bytes: *mut u64,
    received: *mut usize,
) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if buffer.is_null() && capacity > 0 || message_bytes.is_null() || received.is_null() {
            return Err(wrong("the buffer or an output is NULL"));
        }
        let room = Room { message_bytes: u64::MAX, part_bytes: capacity as u64 };
        let mut filled = 0;
        let part = group.receive_part(timeout(timeout_ms), room, |_, bytes| {
            // SAFETY: all parts together have at most `capacity` bytes, which are valid for
            // writing, as the caller promises, and are not those of the group, which it cannot
            // know.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>().add(filled), bytes.len()) };
            filled += bytes.len();
        })?;
        let Some(part) = part else { return Ok(TC_CLOSED) };
        // SAFETY: as the caller promises.
        unsafe {
            write(message_bytes, part.message_bytes, "length")?;
            write(received, filled, "number of bytes")?;
        }
        Ok(TC_OK)
    })
}

/// A file descriptor that becomes readable when the group's state changes, or -1. Then read its
/// eight bytes, and receive with a timeout of 0 until TC_TIMED_OUT. The group owns it.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_descriptor(group: *const tc_group) -> c_int {
    let mut descriptor = -1;
    result_of(|| {
        // SAFETY: as the caller promises.
        let watched = unsafe { handle(group, "group") }?.watch();
        descriptor = watched.map_err(|error| Failure(TC_SYSTEM_ERROR, error.to_string()))?.as_raw_fd();
        Ok(TC_OK)
    });
    descriptor
}

/// At the root: waits until every member has all messages, and closes the group: TC_MEMBERS_LOST,
/// if some have been lost. At another member: leaves the group. The group is freed, whatever the
/// result is.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join, and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_close(group: *mut tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        if group.is_null() {
            return Err(wrong("the group is NULL"));
        }
        // SAFETY: as the caller promises.
        let group = unsafe { Box::from_raw(group) };
        none_lost(&group.0.get()?.close(timeout(timeout_ms))?)
    })
}

/// Frees a group. If it is not closed, the root aborts it, and another member leaves it. NULL is
/// allowed.
///
/// # Safety
/// `group` is NULL, or comes from tc_group_new, tc_group_listen or tc_group_join, and is not used
/// afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_free(group: *mut tc_group) {
    if !group.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(group) });
    }
}

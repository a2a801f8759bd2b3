//! The C ABI: `include/treecast.h` is generated from this file.
//!
//! Every function checks its pointers for null and its texts for UTF-8, and answers [`tc_result::TC_INVALID_ARGUMENT`]; no panic leaves it.

#![expect(unsafe_code, reason = "what C gives are pointers")]
#![allow(
    non_camel_case_types,
    clippy::doc_markdown,
    reason = "these are names and comments for readers of C"
)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{ptr, slice};

use treecast_node::{
    Ending, Group, GroupSettings, JoinOptions, Keyed, Listener, Lost, Node, NodeError, NodeSettings, resolve,
};

/// What came of a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum tc_result {
    /// It is done.
    TC_OK = 0,
    /// The root has closed the group, and everything has been received.
    TC_CLOSED = 1,
    /// The time is over.
    TC_TIMED_OUT = 2,
    /// The message is longer than the room for it. It can still be received.
    TC_BUFFER_TOO_SMALL = 3,
    /// Members have been lost, which tc_error_message names; all others have everything.
    TC_MEMBERS_LOST = 4,
    /// What was given makes no sense.
    TC_INVALID_ARGUMENT = 5,
    /// The group is over in another way than by being closed.
    TC_ENDED = 6,
    /// The system refuses something.
    TC_SYSTEM_ERROR = 7,
}

use tc_result::{TC_CLOSED, TC_ENDED, TC_MEMBERS_LOST, TC_OK, TC_SYSTEM_ERROR, TC_TIMED_OUT, TC_BUFFER_TOO_SMALL, TC_INVALID_ARGUMENT};

/// A running node within this process.
pub struct tc_node(Node);

/// A group at one of its members.
pub struct tc_group(Group);

/// What went wrong, and how to tell it.
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
            NodeError::Ended(_) | NodeError::NodeClosed => TC_ENDED,
            NodeError::Bind { .. }
            | NodeError::System { .. }
            | NodeError::Kernel(_)
            | NodeError::DatagramTooLong { .. } => TC_SYSTEM_ERROR,
            NodeError::Plan(_)
            | NodeError::NoSuchEngine(_)
            | NodeError::Daemon(_)
            | NodeError::Policy(_)
            | NodeError::Members(_)
            | NodeError::Rejected { .. }
            | NodeError::Refused(_)
            | NodeError::WrongSide { .. } => TC_INVALID_ARGUMENT,
        };
        Self(result, error.to_string())
    }
}

fn wrong(why: impl Into<String>) -> Failure {
    Failure(TC_INVALID_ARGUMENT, why.into())
}

/// Does it, keeps what went wrong for [`tc_error_message`], and lets no panic out.
fn answer(call: impl FnOnce() -> Result<tc_result, Failure>) -> tc_result {
    let done = catch_unwind(AssertUnwindSafe(call));
    let Failure(result, message) = match done {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure(TC_SYSTEM_ERROR, "a bug of the library: it has panicked".into()),
    };
    MESSAGE.set(CString::new(message.replace('\0', " ")).unwrap_or_default());
    result
}

/// # Safety
/// Null, or a text that ends with a zero.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if pointer.is_null() {
        return Err(wrong(format!("{what} is NULL")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| wrong(format!("{what} is no UTF-8")))
}

/// # Safety
/// Null, or what `tc_node_new` or `tc_group_new` has written, and not freed.
unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or_else(|| wrong(format!("the {what} is NULL")))
}

/// # Safety
/// Null, or a place for one `T`.
unsafe fn write<T>(place: *mut T, value: T, what: &str) -> Result<(), Failure> {
    if place.is_null() {
        return Err(wrong(format!("there is no place for the {what}: it is NULL")));
    }
    // SAFETY: as the caller promises.
    unsafe { place.write(value) };
    Ok(())
}

/// TC_OK, or the names of who was lost.
fn all_there(lost: &[Lost]) -> Result<tc_result, Failure> {
    if lost.is_empty() {
        return Ok(TC_OK);
    }
    let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
    Err(Failure(TC_MEMBERS_LOST, names.join("; ")))
}

fn timeout(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// What went wrong in this thread's last call that did not answer TC_OK. It stays until this thread's next such call.
#[unsafe(no_mangle)]
pub extern "C" fn tc_error_message() -> *const c_char {
    MESSAGE.with_borrow(|message| message.as_ptr())
}

/// Opens a node that listens at an address such as "192.0.2.1:7000"; port 0 lets the system choose one. `settings` are those of a
/// node, such as "spin_us=20 peer_timeout_ms=400", or NULL.
///
/// # Safety
/// `bind` ends with a zero, and `settings` unless it is NULL; `node` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_new(
    bind: *const c_char,
    settings: *const c_char,
    node: *mut *mut tc_node,
) -> tc_result {
    answer(|| {
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
        unsafe { write(node, Box::into_raw(Box::new(tc_node(opened))), "node")? };
        Ok(TC_OK)
    })
}

/// Closes a node. It waits, for some seconds at most, until groups that are closed have said what others still need. Its groups
/// have to be freed before. NULL is allowed.
///
/// # Safety
/// `node` is NULL, or comes from `tc_node_new` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_free(node: *mut tc_node) {
    if !node.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(node) });
    }
}

/// Writes where the node listens, as text that ends with a zero, into `room` bytes at `address`; 64 are enough.
///
/// # Safety
/// `node` comes from `tc_node_new`; `address` has room for so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_node_address(
    node: *const tc_node,
    address: *mut c_char,
    room: usize,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let text = unsafe { handle(node, "node") }?.0.address().to_string();
        if address.is_null() || room <= text.len() {
            return Err(wrong(format!("{} bytes are needed for the address", text.len() + 1)));
        }
        // SAFETY: there is room for the text and its zero, and a new text overlaps with nothing.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), address, text.len());
            address.add(text.len()).write(0);
        }
        Ok(TC_OK)
    })
}

/// # Safety
/// NULL, or a text that ends with a zero.
unsafe fn group_settings(
    settings: *const c_char,
    members: Vec<SocketAddr>,
) -> Result<GroupSettings, Failure> {
    let mut group_settings = GroupSettings::new(members);
    if !settings.is_null() {
        // SAFETY: as the caller promises.
        let settings = unsafe { text(settings, "settings") }?;
        group_settings.set_all(settings).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(group_settings)
}

/// Takes part in a group. `members` are the addresses of all members, as host:port, separated by commas, the same at every member.
/// The root is the first, unless `settings` says otherwise. `settings` are NULL, or key=value separated by spaces, as "root=2 scheme=binomial
/// offload=nic token=secret message_bytes=16384".
///
/// # Safety
/// `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_new(
    node: *const tc_node,
    members: *const c_char,
    settings: *const c_char,
    group: *mut *mut tc_group,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let (node, members) = unsafe { (handle(node, "node")?, text(members, "members")?) };
        let members =
            members.split(',').map(|member| resolve(member.trim())).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: as the caller promises.
        let settings = unsafe { group_settings(settings, members) }?;
        let entered = node.0.group(&settings)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(entered))), "group")? };
        Ok(TC_OK)
    })
}

/// Listens until all members have joined, and takes part in their group as its root. `listen` is the TCP address, such as
/// "0.0.0.0:7000", at which the others call tc_group_join; `members` is their number, this node included. `settings` are as for
/// tc_group_new, and hold for all members. TC_TIMED_OUT, if not all have joined; tc_error_message names them.
///
/// # Safety
/// `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_listen(
    node: *const tc_node,
    listen: *const c_char,
    members: u32,
    settings: *const c_char,
    timeout_ms: i64,
    group: *mut *mut tc_group,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let (node, listen) = unsafe { (handle(node, "node")?, text(listen, "listen")?) };
        // SAFETY: as the caller promises.
        let settings = unsafe { group_settings(settings, Vec::new()) }?;
        let mut listener = Listener::bind(resolve(listen)?, members)?;
        listener.timeout = timeout(timeout_ms);
        let entered = node.0.listen(listener, &settings)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(entered))), "group")? };
        Ok(TC_OK)
    })
}

/// Joins the group of a root that listens, or will listen before the timeout: `root` is its address, and `token` the token of
/// its settings, or NULL. `member` is the number that this node requests; below 0, any. TC_TIMED_OUT, if the root or other members are
/// missing; TC_INVALID_ARGUMENT, if the root rejects this node.
///
/// # Safety
/// `node` comes from `tc_node_new`; the texts end with zeroes; `group` is a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_join(
    node: *const tc_node,
    root: *const c_char,
    token: *const c_char,
    member: i64,
    timeout_ms: i64,
    group: *mut *mut tc_group,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let (node, root) = unsafe { (handle(node, "node")?, text(root, "root")?) };
        // SAFETY: as the caller promises.
        let token = if token.is_null() { "" } else { unsafe { text(token, "token") }? };
        let mut options = JoinOptions::new(resolve(root)?, token);
        options.timeout = timeout(timeout_ms);
        options.member = match member {
            ..0 => None,
            _ => Some(u32::try_from(member).map_err(|_| wrong(format!("{member} is no member's number")))?),
        };
        let entered = node.0.join(&options)?;
        // SAFETY: as the caller promises; the box is freed by `tc_group_free`.
        unsafe { write(group, Box::into_raw(Box::new(tc_group(entered))), "group")? };
        Ok(TC_OK)
    })
}

/// Writes this member's number.
///
/// # Safety
/// `group` comes from `tc_group_new` or the like; `member` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_member(group: *const tc_group, member: *mut u32) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let number = unsafe { handle(group, "group") }?.0.member();
        let number = number.ok_or_else(|| wrong("this node has no number yet"))?;
        // SAFETY: as the caller promises.
        unsafe { write(member, number, "number")? };
        Ok(TC_OK)
    })
}

/// Waits until every member has its place in the tree: TC_MEMBERS_LOST, if some are lost, which does not keep the others. TC_TIMED_OUT
/// names who has not answered yet. Sending and receiving do not need it.
///
/// # Safety
/// `group` comes from `tc_group_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_wait_until_ready(group: *const tc_group, timeout_ms: i64) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let lost = unsafe { handle(group, "group") }?.0.wait_until_ready(timeout(timeout_ms))?;
        all_there(&lost)
    })
}

/// At the root: sends a message to all other members. It answers when the message is on its way, and its bytes may be used for
/// something else.
///
/// # Safety
/// `group` comes from `tc_group_new`; `message` has so many bytes, or is NULL where there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_send(
    group: *const tc_group,
    message: *const c_void,
    length: usize,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        let bytes = if length == 0 {
            &[]
        } else if message.is_null() {
            return Err(wrong("the message is NULL"));
        } else {
            // SAFETY: as the caller promises.
            unsafe { slice::from_raw_parts(message.cast::<u8>(), length) }
        };
        group.0.send(bytes)?;
        Ok(TC_OK)
    })
}

/// At the root: waits until every member that is not lost has all that has been sent.
///
/// # Safety
/// `group` comes from `tc_group_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_flush(group: *const tc_group, timeout_ms: i64) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group") }?.0.flush(timeout(timeout_ms))?;
        Ok(TC_OK)
    })
}

/// At other members: receives the next message into `room` bytes at `buffer`, and writes how long it is. TC_CLOSED, if the root
/// has closed the group and everything has been received.
///
/// # Safety
/// `group` comes from `tc_group_new`; `buffer` has room for so many bytes; `length` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_receive(
    group: *const tc_group,
    buffer: *mut c_void,
    room: usize,
    timeout_ms: i64,
    length: *mut usize,
) -> tc_result {
    answer(|| {
        // SAFETY: as the caller promises.
        let group = unsafe { handle(group, "group") }?;
        if buffer.is_null() || length.is_null() {
            return Err(wrong("there is no place for the message or its length: it is NULL"));
        }
        // SAFETY: as the caller promises; bytes that nobody has written yet are set before they are lent as such.
        let bytes = unsafe {
            ptr::write_bytes(buffer.cast::<u8>(), 0, room);
            slice::from_raw_parts_mut(buffer.cast::<u8>(), room)
        };
        match group.0.receive_into(bytes, timeout(timeout_ms))? {
            Some(received) => {
                // SAFETY: as the caller promises.
                unsafe { write(length, received, "length")? };
                Ok(TC_OK)
            }
            None => Ok(TC_CLOSED),
        }
    })
}

/// A file descriptor that becomes readable when there is something new to see, or -1. Whoever watches it reads its eight bytes,
/// and then receives with a timeout of 0 until nothing is there. It belongs to the group.
///
/// # Safety
/// `group` comes from `tc_group_new`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_descriptor(group: *const tc_group) -> c_int {
    let mut descriptor = -1;
    answer(|| {
        // SAFETY: as the caller promises.
        let watched = unsafe { handle(group, "group") }?.0.watch();
        descriptor = watched.map_err(|error| Failure(TC_SYSTEM_ERROR, error.to_string()))?.as_raw_fd();
        Ok(TC_OK)
    });
    descriptor
}

/// Closes a group at its root, when every member has everything: TC_MEMBERS_LOST, if some have been lost. At another member: leaves it.
/// The group is freed, whatever the answer is.
///
/// # Safety
/// `group` comes from `tc_group_new`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_close(group: *mut tc_group, timeout_ms: i64) -> tc_result {
    answer(|| {
        if group.is_null() {
            return Err(wrong("the group is NULL"));
        }
        // SAFETY: as the caller promises.
        let group = unsafe { Box::from_raw(group) };
        all_there(&group.0.close(timeout(timeout_ms))?)
    })
}

/// Frees a group. A root that has not closed it gives it up, and another member leaves it if it is not closed. NULL is allowed.
///
/// # Safety
/// `group` is NULL, or comes from `tc_group_new` and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_free(group: *mut tc_group) {
    if !group.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(group) });
    }
}

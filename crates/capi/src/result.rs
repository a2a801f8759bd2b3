//! Results of calls, and the message of a thread's last error.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use treecast_node::{Ending, Lost, NodeError};

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
    /// The root refuses this member, or the daemon this user: because of another token, a policy or
    /// a limit.
    TC_REFUSED = 8,
}

use tc_result::{
    TC_BUFFER_TOO_SMALL, TC_CLOSED, TC_ENDED, TC_INVALID_ARGUMENT, TC_MEMBERS_LOST, TC_OK, TC_REFUSED,
    TC_SYSTEM_ERROR, TC_TIMED_OUT,
};

/// An error and its message.
pub(crate) struct Failure(pub tc_result, pub String);

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
            NodeError::Daemon(_) | NodeError::Rejected { .. } => TC_REFUSED,
            NodeError::Plan(_)
            | NodeError::PlanNotExecutable(_)
            | NodeError::Setting { .. }
            | NodeError::File { .. }
            | NodeError::NotOnFabric { .. }
            | NodeError::NoSuchEngine(_)
            | NodeError::NoPortRange(_)
            | NodeError::Policy(_)
            | NodeError::Members(_)
            | NodeError::NoToken
            | NodeError::NoEncryptionKey
            | NodeError::NotBoth
            | NodeError::UnencryptedValues
            | NodeError::CongestionControl { .. }
            | NodeError::Forked { .. }
            | NodeError::MessageTooLong { .. }
            | NodeError::PathMtu { .. }
            | NodeError::Refused(_)
            | NodeError::InvalidValues { .. }
            | NodeError::DifferentValues
            | NodeError::OtherMessage
            | NodeError::WrongSide { .. } => TC_INVALID_ARGUMENT,
        };
        Self(result, error.to_string())
    }
}

pub(crate) fn wrong(why: impl Into<String>) -> Failure {
    Failure(TC_INVALID_ARGUMENT, why.into())
}

/// Runs a call, keeps its error for [`tc_error_message`], and catches panics.
pub(crate) fn result_of(call: impl FnOnce() -> Result<tc_result, Failure>) -> tc_result {
    let done = catch_unwind(AssertUnwindSafe(call));
    let Failure(result, message) = match done {
        Ok(Ok(result)) => return result,
        Ok(Err(failure)) => failure,
        Err(_) => Failure(TC_SYSTEM_ERROR, "the library has panicked, which is a bug".into()),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // Handlers of atexit(3) run after the destructors of the thread's variables: no message then.
    let _ = MESSAGE.try_with(|kept| kept.replace(message));
    result
}

/// TC_OK, or the names of the lost members.
pub(crate) fn none_lost(lost: &[Lost]) -> Result<tc_result, Failure> {
    if lost.is_empty() {
        return Ok(TC_OK);
    }
    let names: Vec<String> = lost.iter().map(ToString::to_string).collect();
    Err(Failure(TC_MEMBERS_LOST, names.join("; ")))
}

/// The error message of this thread's last call that did not return TC_OK. It is valid until this
/// thread's next such call. In handlers of atexit(3) it is empty.
#[unsafe(no_mangle)]
pub extern "C" fn tc_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

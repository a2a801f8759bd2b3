//! Barriers and all-reduces.

use std::ffi::{c_int, c_void};
use std::slice;

use treecast_node::{Group, Number, Operation};

use crate::arguments::{handle, timeout};
use crate::result::tc_result::{self, TC_OK};
use crate::result::{Failure, result_of, wrong};
use crate::tc_group;

/// The type of the values of an all-reduce.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum tc_element {
    /// int32_t
    TC_I32 = 0,
    /// int64_t
    TC_I64 = 1,
    /// uint32_t
    TC_U32 = 2,
    /// uint64_t
    TC_U64 = 3,
    /// float
    TC_F32 = 4,
    /// double
    TC_F64 = 5,
}

/// How an all-reduce combines two values.
#[repr(C)]
#[derive(Clone, Copy)]
pub enum tc_operation {
    /// The sum; that of integers wraps around.
    TC_SUM = 0,
    /// The product; that of integers wraps around.
    TC_PRODUCT = 1,
    /// The less of both; of a number and a NaN, the number.
    TC_MIN = 2,
    /// The greater of both; of a number and a NaN, the number.
    TC_MAX = 3,
    /// The bits that are set in both, of integers.
    TC_AND = 4,
    /// The bits that are set in one or both, of integers.
    TC_OR = 5,
    /// The bits that are set in one, of integers.
    TC_XOR = 6,
}

use tc_element::{TC_F32, TC_F64, TC_I32, TC_I64, TC_U32, TC_U64};
use tc_operation::{TC_AND, TC_MAX, TC_MIN, TC_OR, TC_PRODUCT, TC_SUM, TC_XOR};

const ELEMENTS: [tc_element; 6] = [TC_I32, TC_I64, TC_U32, TC_U64, TC_F32, TC_F64];

const OPERATIONS: [(tc_operation, Operation); 7] = [
    (TC_SUM, Operation::Sum),
    (TC_PRODUCT, Operation::Product),
    (TC_MIN, Operation::Min),
    (TC_MAX, Operation::Max),
    (TC_AND, Operation::And),
    (TC_OR, Operation::Or),
    (TC_XOR, Operation::Xor),
];

/// Waits until all members are in this call, which each makes after the same message. After
/// TC_TIMED_OUT it can be made again.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_barrier(group: *const tc_group, timeout_ms: i64) -> tc_result {
    result_of(|| {
        // SAFETY: as the caller promises.
        unsafe { handle(group, "group") }?.barrier(timeout(timeout_ms))?;
        Ok(TC_OK)
    })
}

/// Replaces `count` values, at all members, by those that the operation makes of the values of all
/// members. All members make this call after the same message, with the same operation, type and
/// number of values; at most 504 bytes. The result is the same at all members, bit by bit.
/// `element` is a tc_element, and `operation` a tc_operation. `*processes` is the number of
/// processes that have a part in the result, at most 65,535: without those that were lost before.
/// After TC_TIMED_OUT the same call can be made again.
///
/// # Safety
/// `group` comes from tc_group_new, tc_group_listen or tc_group_join; `values` is valid for reading
/// and writing `count` values of the type; `processes` is valid for writing, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tc_group_all_reduce(
    group: *const tc_group,
    values: *mut c_void,
    count: usize,
    element: c_int,
    operation: c_int,
    timeout_ms: i64,
    processes: *mut u32,
) -> tc_result {
    // SAFETY: as the caller promises.
    let reduce = || unsafe {
        let group = handle(group, "group")?;
        let all = match ELEMENTS.into_iter().find(|&known| known as c_int == element) {
            Some(TC_I32) => all_reduce::<i32>(group, values, count, operation, timeout_ms),
            Some(TC_I64) => all_reduce::<i64>(group, values, count, operation, timeout_ms),
            Some(TC_U32) => all_reduce::<u32>(group, values, count, operation, timeout_ms),
            Some(TC_U64) => all_reduce::<u64>(group, values, count, operation, timeout_ms),
            Some(TC_F32) => all_reduce::<f32>(group, values, count, operation, timeout_ms),
            Some(TC_F64) => all_reduce::<f64>(group, values, count, operation, timeout_ms),
            None => Err(wrong(format!("invalid element {element}: expected a tc_element"))),
        }?;
        if let Some(processes) = processes.as_mut() {
            *processes = all;
        }
        Ok(TC_OK)
    };
    result_of(reduce)
}

/// # Safety
/// `values` is valid for reading and writing `count` values, or null.
unsafe fn all_reduce<T: Number>(
    group: &Group,
    values: *mut c_void,
    count: usize,
    operation: c_int,
    timeout_ms: i64,
) -> Result<u32, Failure> {
    let known = OPERATIONS.into_iter().find(|&(known, _)| known as c_int == operation);
    let invalid = || wrong(format!("invalid operation {operation}: expected a tc_operation"));
    let (_, operation) = known.ok_or_else(invalid)?;
    let values: &mut [T] = match (values.is_null(), count) {
        (_, 0) => &mut [],
        (true, _) => return Err(wrong("values is NULL")),
        // SAFETY: as the caller promises.
        (false, _) => unsafe { slice::from_raw_parts_mut(values.cast(), count) },
    };
    Ok(group.all_reduce(values, operation, timeout(timeout_ms))?)
}

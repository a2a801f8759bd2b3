//! Nodes.

use std::ffi::c_char;
use std::ptr;

use treecast_node::{Keyed, Node, NodeSettings, Owned, resolve};

use crate::arguments::{handle, text, write, write_text};
use crate::result::tc_result::{self, TC_OK};
use crate::result::{result_of, wrong};
use crate::tc_node;

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

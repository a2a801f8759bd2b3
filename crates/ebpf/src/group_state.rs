//! The state of a hand-off, copied into the program's maps and out of them.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use treecast_proto::{HandOff, MulticastSource, Nanoseconds};
use treecast_wire::{Authentication, Integrity, Timestamp};

use crate::fields::{get, set};
use crate::layout::{CHECK_CODE, CHECK_CRC, CHECK_NETWORK, Group, Path};

/// Writes the state of a hand-off into the group.
///
/// # Safety
/// User space owns the group, which has at most [`CHILDREN_MAX`] children.
pub(crate) unsafe fn write(pointer: *mut Group, group: &HandOff) {
    // SAFETY: as the caller says.
    unsafe {
        set!(pointer, group.keys.header, header_key);
        set!(pointer, group.keys.control, control_key);
        set!(pointer, group.keys.data, payload_key);
        let payload_check = match (group.keys.authentication, group.integrity) {
            (Authentication::Payload, _) => CHECK_CODE,
            (Authentication::Header, Integrity::Crc32c) => CHECK_CRC,
            (Authentication::Header, Integrity::Network) => CHECK_NETWORK,
        };
        set!(pointer, payload_check, payload_check);
        set!(pointer, group.epoch, epoch);
        set!(pointer, group.member.0, member);
        set!(pointer, group.parent.map_or(u32::MAX, |(parent, _)| parent.0), parent);
        set!(pointer, group.slots, slots);
        set!(pointer, u32::from(group.payload_bytes_max), payload_bytes_max);
        set!(pointer, u32::from(group.parent.is_none()), is_root);
        set!(pointer, group.children.len() as u32, child_count);
        set!(pointer, group.min_rto.0, min_rto);
        set!(pointer, group.keepalive.0, keepalive);
        set!(pointer, 0, window_wanted);
        set!(pointer, group.contributions_from.0, contributions_from);
        set!(pointer, group.contribution_sent_at.0, contribution_sent_at);
        set!(pointer, group.contribution_timestamp.0, contribution_timestamp);
        // User space has the timers of the group.
        set!(pointer, 0, timer_set_for);
        set!(pointer, group.parent_heard_at.0, parent_heard_at);
        set!(pointer, group.flow, flow);
        for (index, child) in group.children.iter().enumerate() {
            set!(pointer, child.state, children[index].state);
        }
    }
}

/// Writes the multicast state of a hand-off into the group.
///
/// # Safety
/// User space owns the group.
pub(crate) unsafe fn write_multicast(
    pointer: *mut Group,
    group: &HandOff,
    source: Option<(MulticastSource, Path)>,
) {
    // SAFETY: as the caller says.
    unsafe {
        set!(pointer, u32::from(group.multicast.is_some()), is_by_multicast);
        if let Some(multicast) = group.multicast {
            set!(pointer, multicast.state, multicast);
        }
        if let Some((MulticastSource { root, from, .. }, path)) = source {
            set!(pointer, root.0, root);
            set!(pointer, u32::from(group.parent == Some((root, from))), is_root_parent);
            set!(pointer, path, multicast_path);
        }
    }
}

/// Reads the state that the program has updated.
///
/// # Safety
/// User space owns the group.
pub(crate) unsafe fn read(pointer: *const Group, group: &mut HandOff) {
    // SAFETY: as the caller says; the structures are integers, and valid for any bytes.
    unsafe {
        group.parent_heard_at = Nanoseconds(get!(pointer, parent_heard_at));
        group.flow = get!(pointer, flow);
        let own = get!(pointer, contribution);
        let is_about_next = own.length > 0 && own.is_about(group.flow.next);
        let sent_at = Nanoseconds(get!(pointer, contribution_sent_at));
        group.contribution_sent_at = if is_about_next { sent_at } else { Nanoseconds::ZERO };
        group.contribution_timestamp = Timestamp(get!(pointer, contribution_timestamp));
        if let Some(multicast) = &mut group.multicast {
            multicast.state = get!(pointer, multicast);
        }
        for (index, child) in group.children.iter_mut().enumerate() {
            child.state = get!(pointer, children[index].state);
        }
    }
}

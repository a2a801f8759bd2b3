//! Creating groups, and joining them.

use std::ffi::c_char;

use treecast_node::{GroupSettings, JoinOptions, Keyed, Listener, Member, Owned, resolve};

use crate::arguments::{handle, text, timeout, write, write_text};
use crate::result::tc_result::{self, TC_OK};
use crate::result::{Failure, none_lost, result_of, wrong};
use crate::{tc_group, tc_node};

/// # Safety
/// `settings` is NULL or a zero-terminated string.
pub(crate) unsafe fn group_settings(
    settings: *const c_char,
    members: Vec<Member>,
) -> Result<GroupSettings, Failure> {
    let mut group_settings = GroupSettings::of(members);
    if !settings.is_null() {
        // SAFETY: as the caller promises.
        let settings = unsafe { text(settings, "settings") }?;
        let mut others = Vec::new();
        for setting in settings.split_whitespace() {
            let is_file = match setting.split_once('=') {
                Some((key, value)) => group_settings.set_file(key, value)?,
                None => false,
            };
            if !is_file {
                others.push(setting);
            }
        }
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
/// `members`, or those of the hosts that join. With "network=FILE" and without a scheme or a plan
/// the root takes the tree that is best by the measured costs in a file that `treecast tune` has
/// written.
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

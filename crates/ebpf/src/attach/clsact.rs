//! Filters of the clsact queueing discipline, which all supported kernels have: programs in order
//! of priority, held by the interface.
//!
//! A filter survives its process, and its program would go on answering for a dead node. So every
//! node that attaches first removes the stale filters of dead nodes. The name of a filter says that
//! it is one of ours. An abstract Unix socket says that its node still runs: a node binds the
//! socket before it adds its first filter, and the kernel closes the socket with the process. The
//! name of the socket contains the handle of the filter, which is the ID of the node's ingress
//! program; no other program gets that ID while the filter holds the program. Filters and abstract
//! sockets both belong to the network namespace, so the test also works between processes that see
//! neither each other's files nor each other's process IDs, such as containers on the host's
//! network. It needs no privileges, whereas reading the maps of another program needs those of
//! root.
//!
//! The queueing discipline itself stays: removing it would remove the filters of other programs,
//! even one that is just being added.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

use super::netlink::{Filter, FilterPosition, Netlink};
use super::{Direction, Interface};

/// The priority that the kernel assigns to the first filter without one; the next such filter is
/// put before it.
const PRIORITY: u16 = 0xc000;

/// How often to try to bind a name that is in use, and the pause between attempts. A forked child
/// calls exec well within that time.
const ATTEMPTS_MAX: u32 = 500;
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A socket by which other nodes see that this one runs, until it is dropped.
#[derive(Debug)]
pub struct Alive {
    handle: u32,
    _socket: OwnedFd,
}

impl Alive {
    /// Binds the socket of the node with this ingress program. The name may still be in use by the
    /// socket before: if another thread of the process has just forked, the child keeps that socket
    /// open until it calls exec.
    pub fn new(program: u32) -> io::Result<Self> {
        let (socket, address) = (socket()?, address(program)?);
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            match bind(&socket, &address) {
                Err(Errno::ADDRINUSE) if attempts_left > 0 => {
                    attempts_left -= 1;
                    std::thread::sleep(RETRY_INTERVAL);
                }
                bound => {
                    bound?;
                    return Ok(Self { handle: program, _socket: socket });
                }
            }
        }
    }
}

/// Whether a node runs. If the connection fails for any reason but a refusal, the node is assumed
/// to run.
fn is_alive(handle: u32) -> bool {
    let connected = || connect(socket()?, &address(handle)?);
    connected() != Err(Errno::CONNREFUSED)
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn address(handle: u32) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("treecast-node-{handle}").as_bytes())
}

/// Attaches a program before all others, if a priority before theirs is free.
pub fn attach(
    netlink: &Netlink,
    alive: &Alive,
    interface: &Interface,
    direction: Direction,
    program: BorrowedFd<'_>,
) -> io::Result<FilterPosition> {
    match netlink.add_clsact(interface.index) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        added => added?,
    }
    // The older qdisc `ingress` has the same handle, and treats egress filters as ingress filters.
    if !netlink.has_clsact(interface.index)? {
        return Err(io::Error::other(format!(
            "its qdisc 'ingress' conflicts with clsact; remove it as root: tc qdisc del dev {} ingress",
            interface.name
        )));
    }
    let priority = priority(&netlink.filters(interface.index, direction)?);
    let position = FilterPosition { interface: interface.index, direction, priority, handle: alive.handle };
    netlink.add_filter(position, direction.program(), program)?;
    Ok(position)
}

/// The priority just before all existing filters. Before priority 1 the kernel itself would choose
/// 0, but a filter of priority 0 cannot be removed alone; in that case ours is the first free
/// priority after 1.
fn priority(filters: &[Filter]) -> u16 {
    let is_free = |priority: &u16| filters.iter().all(|filter| filter.position.priority != *priority);
    match filters.iter().map(|filter| filter.position.priority).min() {
        None => PRIORITY,
        Some(least) if least > 1 => least - 1,
        Some(_) => (2..u16::MAX).find(is_free).unwrap_or(PRIORITY),
    }
}

/// Removes a program, if it is still attached.
pub fn detach(netlink: &Netlink, position: FilterPosition, program: u32) -> io::Result<()> {
    if is_attached(netlink, position, program)? { netlink.remove_filter(position) } else { Ok(()) }
}

/// Whether a program is still attached by its filter.
pub fn is_attached(netlink: &Netlink, position: FilterPosition, program: u32) -> io::Result<bool> {
    Ok(netlink.filter(position)?.is_some_and(|filter| filter.program == Some(program)))
}

/// The names of the filters on an interface; none if the query fails.
pub fn programs(netlink: &Netlink, interface: u32, direction: Direction) -> Vec<String> {
    let filters = netlink.filters(interface, direction).unwrap_or_default();
    filters.into_iter().filter(|filter| filter.position.handle != 0).map(|filter| filter.name).collect()
}

/// Removes the stale filters of dead nodes, on all interfaces: they would answer packets even on an
/// interface that no node uses.
pub fn clean(netlink: &Netlink) -> io::Result<()> {
    for link in netlink.links()? {
        for direction in Direction::BOTH {
            // Most interfaces have no filters at all, and some cannot have any.
            for filter in netlink.filters(link.index, direction).unwrap_or_default() {
                let is_ours = filter.name == direction.program() && filter.position.handle != 0;
                if is_ours && !is_alive(filter.position.handle) {
                    tracing::info!(interface = link.name, %direction, "removing the stale filter of a dead node");
                    // Another node may have removed it in the meantime.
                    match netlink.remove_filter(filter.position) {
                        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                        removed => removed?,
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_a_name_that_is_briefly_in_use_is_retried() {
        // An ID that no program of this machine has.
        let program = u32::MAX - std::process::id();
        let before = Alive::new(program).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(20 * RETRY_INTERVAL);
                drop(before);
            });
            assert_eq!(Alive::new(program).unwrap().handle, program);
        });
    }
}

//! Filters of the clsact queueing discipline, which all kernels have: programs by priority, held by the interface itself.
//!
//! A filter stays when its process is killed, and its program goes on answering for a node that is dead. So whoever attaches
//! removes what the dead have left. That one of these filters is ours is told by its name; that its node still runs, by an
//! abstract Unix socket, which a node binds before its first filter and which ends with its process. The socket's name has the
//! filter's handle, and that is the number of the node's ingress program, which no other program has as long as the filter
//! holds it. Filters and abstract sockets both belong to the network namespace, so this is right for processes that see
//! neither each other's files nor each other's numbers, as in containers on the host's network; and it needs no rights, where
//! to look into the maps of another's program takes those of root.
//!
//! The queueing discipline stays: to remove it removes the filters of all, and somebody may just be adding one.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

use super::netlink::{Filter, Netlink, Place};
use super::{Direction, Interface};

/// The priority that the kernel gives to the first who asks for none: who comes next is put before it.
const PRIORITY: u16 = 0xc000;

/// How often, and how long, a name that is taken is waited for: a child that was forked runs something else within that.
const ATTEMPTS_MAX: u32 = 500;
const PAUSE: Duration = Duration::from_millis(1);

/// A sign that a node runs, as long as it is kept.
#[derive(Debug)]
pub struct Alive {
    handle: u32,
    _socket: OwnedFd,
}

impl Alive {
    /// That of the node with this ingress program. Its name may still be taken by the one before: another thread of the process may
    /// have just forked, and its child has the socket until it runs something else.
    pub fn new(program: u32) -> io::Result<Self> {
        let (socket, address) = (socket()?, address(program)?);
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            match bind(&socket, &address) {
                Err(Errno::ADDRINUSE) if attempts_left > 0 => {
                    attempts_left -= 1;
                    std::thread::sleep(PAUSE);
                }
                bound => {
                    bound?;
                    return Ok(Self { handle: program, _socket: socket });
                }
            }
        }
    }
}

/// Whether a node runs. Who cannot be asked is taken to.
fn is_alive(handle: u32) -> bool {
    let asked = || connect(socket()?, &address(handle)?);
    asked() != Err(Errno::CONNREFUSED)
}

fn socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn address(handle: u32) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("treecast-node-{handle}").as_bytes())
}

/// Puts a program before all others, if there is a priority for it.
pub fn attach(
    netlink: &Netlink,
    alive: &Alive,
    interface: &Interface,
    direction: Direction,
    program: BorrowedFd<'_>,
) -> io::Result<Place> {
    match netlink.add_clsact(interface.index) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        added => added?,
    }
    // The older discipline has the same place, and takes filters for the way out as if they were for the way in.
    if !netlink.has_clsact(interface.index)? {
        return Err(io::Error::other(format!(
            "its qdisc 'ingress' is in the place of clsact: as root, tc qdisc del dev {} ingress",
            interface.name
        )));
    }
    let priority = priority(&netlink.filters(interface.index, direction)?);
    let place = Place { interface: interface.index, direction, priority, handle: alive.handle };
    netlink.add_filter(place, direction.program(), program)?;
    Ok(place)
}

/// The priority just before all that are there. Were it left to the kernel, it would choose 0 before 1, and a filter of priority
/// 0 cannot be removed alone; so then ours is the first that comes behind.
fn priority(filters: &[Filter]) -> u16 {
    let is_free = |priority: &u16| filters.iter().all(|filter| filter.place.priority != *priority);
    match filters.iter().map(|filter| filter.place.priority).min() {
        None => PRIORITY,
        Some(least) if least > 1 => least - 1,
        Some(_) => (2..u16::MAX).find(is_free).unwrap_or(PRIORITY),
    }
}

/// Removes a program, if it is still there.
pub fn detach(netlink: &Netlink, place: Place, program: u32) -> io::Result<()> {
    if is_there(netlink, place, program)? { netlink.remove_filter(place) } else { Ok(()) }
}

/// Whether a program is where it was put.
pub fn is_there(netlink: &Netlink, place: Place, program: u32) -> io::Result<bool> {
    Ok(netlink.filter(place)?.is_some_and(|filter| filter.program == Some(program)))
}

/// The names of the filters on an interface, if the kernel tells.
pub fn programs(netlink: &Netlink, interface: u32, direction: Direction) -> Vec<String> {
    let filters = netlink.filters(interface, direction).unwrap_or_default();
    filters.into_iter().filter(|filter| filter.place.handle != 0).map(|filter| filter.name).collect()
}

/// Removes what dead nodes have left, on all interfaces: a packet that comes on one which no node uses any more is answered too.
pub fn clean(netlink: &Netlink) -> io::Result<()> {
    for link in netlink.links()? {
        for direction in Direction::BOTH {
            // Most interfaces have no filters at all, and some cannot have any.
            for filter in netlink.filters(link.index, direction).unwrap_or_default() {
                let is_ours = filter.name == direction.program() && filter.place.handle != 0;
                if is_ours && !is_alive(filter.place.handle) {
                    tracing::info!(interface = link.name, %direction, "removing what a dead node has left");
                    // Somebody else may have been quicker.
                    match netlink.remove_filter(filter.place) {
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
    fn a_name_that_a_child_has_for_a_moment_is_waited_for() {
        // A number that no program of this machine has.
        let program = u32::MAX - std::process::id();
        let before = Alive::new(program).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(20 * PAUSE);
                drop(before);
            });
            assert_eq!(Alive::new(program).unwrap().handle, program);
        });
    }
}

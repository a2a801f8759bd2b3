//! Sockets on which the leader and the node's own thread sleep, each in an epoll instance of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

/// Two epoll instances with the same sockets: the leader sleeps on the first one, and the node's own
/// thread on one that contains the second one.
///
/// An event of a socket wakes the leader if that sleeps, and otherwise the node's own thread, without a
/// system call of either. The sockets are watched exclusively (`EPOLLEXCLUSIVE`, `epoll_ctl(2)`): the
/// kernel asks one instance after the other, in the order in which they have begun to watch the socket,
/// until a thread sleeps on one. So the leader's is first, also after a change. Who is woken handles all
/// of the event, or leaves it to the other (`LeaderFollowers::leave_events`): only new data wakes
/// somebody again. The end of a connection wakes both.
#[derive(Debug)]
pub struct Watch {
    leader: OwnedFd,
    own: OwnedFd,
}

impl Watch {
    /// No sockets.
    ///
    /// # Errors
    /// Those of `epoll_create(2)`.
    pub fn new() -> io::Result<Self> {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC);
        Ok(Self { leader: create()?, own: create()? })
    }

    /// Watches a socket until it is closed. No flags: only its end wakes.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`: a socket is watched once.
    pub fn add(&self, socket: &impl AsFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        for instance in [&self.leader, &self.own] {
            let data = epoll::EventData::new_u64(token);
            epoll::add(instance, socket, data, flags | epoll::EventFlags::EXCLUSIVE)?;
        }
        Ok(())
    }

    /// Watches a socket for other events than before.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub fn change(&self, socket: &impl AsFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        // What is watched exclusively cannot be modified.
        for instance in [&self.leader, &self.own] {
            epoll::delete(instance, socket)?;
        }
        self.add(socket, token, flags)
    }

    /// The instance on which the leader sleeps.
    pub fn leader(&self) -> BorrowedFd<'_> {
        self.leader.as_fd()
    }

    /// The instance on which the node's own thread sleeps.
    pub fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }
}

/// Where sockets of one kind are watched: with the token that tells them from other kinds.
#[derive(Debug, Clone)]
pub struct WatchedKind {
    pub watch: Arc<Watch>,
    pub token: u64,
}

impl WatchedKind {
    /// As [`Watch::add`].
    ///
    /// # Errors
    /// Those of [`Watch::add`].
    pub fn add(&self, socket: &impl AsFd, flags: epoll::EventFlags) -> io::Result<()> {
        self.watch.add(socket, self.token, flags)
    }

    /// As [`Watch::change`].
    ///
    /// # Errors
    /// Those of [`Watch::change`].
    pub fn change(&self, socket: &impl AsFd, flags: epoll::EventFlags) -> io::Result<()> {
        self.watch.change(socket, self.token, flags)
    }
}

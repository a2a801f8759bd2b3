//! Attaches the program to interfaces, checks that it is still attached, and detaches it.
//!
//! It is attached before other programs. They see the packets that are not for it, and the copies
//! that it sends, which pass egress once more. A program that accepts a packet ends the chain:
//! after such a program, ours would not be reached.

mod clsact;
mod interface;
mod netlink;
mod tcx;

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use aya::Ebpf;
use aya::programs::SchedClassifier;
use aya::programs::tc::SchedClassifierLink;
use thiserror::Error;

pub use self::interface::{Interface, interfaces_for};

use self::clsact::Alive;
use self::netlink::{FilterPosition, Netlink};
use crate::error::{EbpfError, chain};

/// How a program is attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// By TCX links, from Linux 6.6 on. The kernel removes them when their process ends, however it
    /// ends.
    Tcx,
    /// By filters of the clsact queueing discipline. Those of a killed process stay until the next
    /// node attaches.
    Clsact,
}

/// The direction of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Ingress,
    /// Sent.
    Egress,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// The name of its program.
    const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "treecast_ingress",
            Self::Egress => "treecast_egress",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        })
    }
}

/// A change since the program was attached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HookTrouble {
    /// The interface was removed, or moved to another network namespace.
    #[error("interface {interface} is gone")]
    InterfaceRemoved {
        /// The name of the interface.
        interface: String,
    },
    /// The interface was removed, and another one has its name.
    #[error("interface {interface} was replaced by another one of the same name")]
    InterfaceReplaced {
        /// The name of the interface.
        interface: String,
    },
    /// The program was detached or replaced.
    #[error("the BPF program was removed from the {direction} of interface {interface}{}", attached_now(.instead))]
    ProgramRemoved {
        /// The name of the interface.
        interface: String,
        /// The direction from which it was removed.
        direction: Direction,
        /// The names of the programs that are attached instead; empty if the kernel does not list
        /// them.
        instead: Vec<String>,
    },
    /// The MTU was changed.
    #[error("the MTU of interface {interface} has changed from {from_bytes} to {to_bytes} bytes")]
    MtuChanged {
        /// The name of the interface.
        interface: String,
        /// The MTU when the program was attached, in bytes.
        from_bytes: u32,
        /// The present MTU, in bytes.
        to_bytes: u32,
    },
    /// The query failed, so the state is unknown.
    #[error("cannot query interface {interface}: {why}")]
    QueryFailed {
        /// The name of the interface.
        interface: String,
        /// The kernel's error.
        why: String,
    },
}

fn attached_now(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; attached instead: {}", names.join(", ")) }
}

/// The program with this name in the object.
pub(crate) fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    let program =
        ebpf.program_mut(name).expect("the program is in the object that was compiled with this crate");
    program.try_into().expect("it is a classifier")
}

/// The kernel's ID of a program.
fn program_id(program: &SchedClassifier) -> Result<u32, EbpfError> {
    let refused = |error| EbpfError::System {
        what: "cannot query a BPF program",
        source: io::Error::other(chain(&error)),
    };
    Ok(program.info().map_err(refused)?.id())
}

/// The interfaces that a program is attached to; dropping it detaches the program.
#[derive(Debug)]
pub(crate) struct Attachment {
    netlink: Netlink,
    /// The IDs of the ingress and the egress program.
    programs: [u32; 2],
    /// `None`: TCX if the kernel has it, else clsact.
    hook: Option<Hook>,
    alive: Option<Alive>,
    all: Vec<Attached>,
}

/// An interface, and the links or filters that hold the programs on it: ingress first, then egress,
/// as far as they are attached.
#[derive(Debug)]
struct Attached {
    interface: Interface,
    holds: Vec<Hold>,
}

#[derive(Debug)]
enum Hold {
    Tcx(SchedClassifierLink),
    Clsact(FilterPosition),
}

impl Attachment {
    /// Attaches both programs to these interfaces, after it has removed the stale filters of killed
    /// nodes.
    pub(crate) fn new(
        ebpf: &mut Ebpf,
        hook: Option<Hook>,
        interfaces: &[Interface],
    ) -> Result<Self, EbpfError> {
        let system = |what| move |source| EbpfError::System { what, source };
        let netlink = Netlink::open().map_err(system("cannot list network interfaces"))?;
        clsact::clean(&netlink).map_err(system("cannot remove the stale filters of a dead node"))?;
        let [ingress, egress] =
            Direction::BOTH.map(|direction| program_id(classifier(ebpf, direction.program())));
        let programs = [ingress?, egress?];
        let mut attachment = Self { netlink, programs, hook, alive: None, all: Vec::new() };
        for interface in interfaces {
            attachment.all.push(Attached { interface: interface.clone(), holds: Vec::new() });
            for direction in Direction::BOTH {
                attachment.add(classifier(ebpf, direction.program()), interface, direction)?;
            }
        }
        Ok(attachment)
    }

    /// The changes since the program was attached.
    pub(crate) fn check(&self) -> Vec<HookTrouble> {
        self.all.iter().flat_map(|attached| self.check_interface(attached)).collect()
    }

    /// Attaches a program to the interface that was pushed last.
    fn add(
        &mut self,
        program: &mut SchedClassifier,
        interface: &Interface,
        direction: Direction,
    ) -> Result<(), EbpfError> {
        let refused = |why| EbpfError::Attach { interface: interface.name.clone(), why };
        let hold = self.hold(program, interface, direction).map_err(refused)?;
        self.all.last_mut().expect("an interface was begun").holds.push(hold);
        Ok(())
    }

    fn hold(
        &mut self,
        program: &mut SchedClassifier,
        interface: &Interface,
        direction: Direction,
    ) -> Result<Hold, String> {
        if self.hook != Some(Hook::Clsact) {
            match tcx::attach(program, interface, direction) {
                Ok(link) => return Ok(Hold::Tcx(link)),
                Err(error) if self.hook.is_none() && tcx::is_unknown(&error) => {
                    self.hook = Some(Hook::Clsact);
                }
                Err(error) => return Err(chain(&error)),
            }
        }
        let alive = match self.alive.take() {
            Some(alive) => alive,
            None => {
                Alive::new(self.programs[0]).map_err(|error| format!("cannot bind a Unix socket: {error}"))?
            }
        };
        let alive = self.alive.insert(alive);
        let program = program.fd().map_err(|error| chain(&error))?;
        let position = clsact::attach(&self.netlink, alive, interface, direction, program.as_fd());
        position.map(Hold::Clsact).map_err(|error| error.to_string())
    }

    fn check_interface(&self, attached: &Attached) -> Vec<HookTrouble> {
        match self.try_check(attached) {
            Ok(troubles) => troubles,
            Err(error) => {
                let interface = attached.interface.name.clone();
                vec![HookTrouble::QueryFailed { interface, why: error.to_string() }]
            }
        }
    }

    fn try_check(&self, attached: &Attached) -> io::Result<Vec<HookTrouble>> {
        let Interface { name, index, mtu_bytes } = &attached.interface;
        let interface = name.clone();
        let Some(link) = self.netlink.link(*index)? else {
            let is_replaced = self.netlink.links()?.iter().any(|link| link.name == interface);
            let trouble = if is_replaced {
                HookTrouble::InterfaceReplaced { interface }
            } else {
                HookTrouble::InterfaceRemoved { interface }
            };
            return Ok(vec![trouble]);
        };
        let mut troubles = Vec::new();
        if link.mtu_bytes != *mtu_bytes {
            let (from_bytes, to_bytes) = (*mtu_bytes, link.mtu_bytes);
            troubles.push(HookTrouble::MtuChanged { interface: interface.clone(), from_bytes, to_bytes });
        }
        for ((direction, hold), program) in
            Direction::BOTH.into_iter().zip(&attached.holds).zip(self.programs)
        {
            let is_attached = match hold {
                Hold::Tcx(link) => tcx::interface_of(link)? == *index,
                Hold::Clsact(position) => clsact::is_attached(&self.netlink, *position, program)?,
            };
            if !is_attached {
                let instead = match hold {
                    Hold::Tcx(_) => tcx::programs(&link.name, direction),
                    Hold::Clsact(_) => clsact::programs(&self.netlink, *index, direction),
                };
                troubles.push(HookTrouble::ProgramRemoved {
                    interface: interface.clone(),
                    direction,
                    instead,
                });
            }
        }
        Ok(troubles)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for attached in &self.all {
            for (hold, program) in attached.holds.iter().zip(self.programs) {
                let detached = match hold {
                    Hold::Tcx(link) => tcx::detach(link),
                    Hold::Clsact(position) => clsact::detach(&self.netlink, *position, program),
                };
                if let Err(error) = detached {
                    // Most likely the interface is gone. Otherwise the kernel removes a link when
                    // its last descriptor is closed, and the next node a filter.
                    tracing::warn!(interface = attached.interface.name, %error, "the BPF program was not detached");
                }
            }
        }
    }
}

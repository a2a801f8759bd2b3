//! The program on interfaces: attached, checked, and detached.
//!
//! It is attached before the programs of others. They see packets that are not for it, and the copies that it sends, which pass egress
//! once more. A program that accepts packets ends the chain, so that ours would not be reached behind it.

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
use self::netlink::{Netlink, Place};
use crate::error::{EbpfError, chain};

/// How a program is attached to an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// By TCX links, from Linux 6.6 on. They end with their process, however that ends.
    Tcx,
    /// By filters of the clsact queueing discipline. Those of a killed process are removed by the next one that attaches.
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

/// What has changed since the program was attached.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HookTrouble {
    /// The interface is not there, or in another network namespace.
    #[error("interface {interface} is gone")]
    Gone {
        /// Which.
        interface: String,
    },
    /// The interface is not there, but one of the same name is.
    #[error("interface {interface} is gone, and another one has its name")]
    Another {
        /// Which.
        interface: String,
    },
    /// The program was detached or replaced.
    #[error("the BPF program is not on the {direction} of interface {interface} any more{}", there_is(.instead))]
    Removed {
        /// On which interface.
        interface: String,
        /// Which of its two.
        direction: Direction,
        /// What is there now, by name, as far as the kernel tells.
        instead: Vec<String>,
    },
    /// The longest packet is another.
    #[error(
        "packets of interface {interface} were up to {from_bytes} bytes long (MTU), and are up to {to_bytes}"
    )]
    Mtu {
        /// On which interface.
        interface: String,
        /// When the program was attached.
        from_bytes: u32,
        /// Now.
        to_bytes: u32,
    },
    /// The kernel does not answer.
    #[error("cannot query interface {interface}: {why}")]
    Unknown {
        /// Which.
        interface: String,
        /// What it says.
        why: String,
    },
}

fn there_is(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; there is {}", names.join(", ")) }
}

/// The program of that name in the object.
pub(crate) fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> &'a mut SchedClassifier {
    let program =
        ebpf.program_mut(name).expect("the program is in the object that was compiled with this crate");
    program.try_into().expect("it is a classifier")
}

/// The kernel's number of a program.
fn number(program: &SchedClassifier) -> Result<u32, EbpfError> {
    let refused = |error| EbpfError::System {
        what: "cannot ask for a BPF program",
        source: io::Error::other(chain(&error)),
    };
    Ok(program.info().map_err(refused)?.id())
}

/// What a program is attached to; dropping it takes the program off.
#[derive(Debug)]
pub(crate) struct Attachment {
    netlink: Netlink,
    /// The numbers of both programs.
    programs: [u32; 2],
    /// None: whichever the kernel has.
    hook: Option<Hook>,
    alive: Option<Alive>,
    all: Vec<Attached>,
}

/// An interface, and what holds the programs on it, as far as it has come: in, and out.
#[derive(Debug)]
struct Attached {
    interface: Interface,
    holds: Vec<Hold>,
}

#[derive(Debug)]
enum Hold {
    Tcx(SchedClassifierLink),
    Clsact(Place),
}

impl Attachment {
    /// Attaches both programs to these interfaces, and removes what killed nodes have left.
    pub(crate) fn new(
        ebpf: &mut Ebpf,
        hook: Option<Hook>,
        interfaces: &[Interface],
    ) -> Result<Self, EbpfError> {
        let system = |what| move |source| EbpfError::System { what, source };
        let netlink = Netlink::open().map_err(system("cannot ask the kernel for its interfaces"))?;
        clsact::clean(&netlink).map_err(system("cannot remove the filters of a dead node"))?;
        let [ingress, egress] =
            Direction::BOTH.map(|direction| number(classifier(ebpf, direction.program())));
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

    /// What has changed since.
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
            None => Alive::new(self.programs[0]).map_err(|error| format!("no socket: {error}"))?,
        };
        let alive = self.alive.insert(alive);
        let program = program.fd().map_err(|error| chain(&error))?;
        let place = clsact::attach(&self.netlink, alive, interface, direction, program.as_fd());
        place.map(Hold::Clsact).map_err(|error| error.to_string())
    }

    fn check_interface(&self, attached: &Attached) -> Vec<HookTrouble> {
        match self.try_check(attached) {
            Ok(troubles) => troubles,
            Err(error) => {
                let interface = attached.interface.name.clone();
                vec![HookTrouble::Unknown { interface, why: error.to_string() }]
            }
        }
    }

    fn try_check(&self, attached: &Attached) -> io::Result<Vec<HookTrouble>> {
        let Interface { name, index, mtu_bytes } = &attached.interface;
        let interface = name.clone();
        let Some(link) = self.netlink.link(*index)? else {
            let is_another = self.netlink.links()?.iter().any(|link| link.name == interface);
            let trouble =
                if is_another { HookTrouble::Another { interface } } else { HookTrouble::Gone { interface } };
            return Ok(vec![trouble]);
        };
        let mut troubles = Vec::new();
        if link.mtu_bytes != *mtu_bytes {
            let (from_bytes, to_bytes) = (*mtu_bytes, link.mtu_bytes);
            troubles.push(HookTrouble::Mtu { interface: interface.clone(), from_bytes, to_bytes });
        }
        for ((direction, hold), program) in
            Direction::BOTH.into_iter().zip(&attached.holds).zip(self.programs)
        {
            let is_there = match hold {
                Hold::Tcx(link) => tcx::interface_of(link)? == *index,
                Hold::Clsact(place) => clsact::is_there(&self.netlink, *place, program)?,
            };
            if !is_there {
                let instead = match hold {
                    Hold::Tcx(_) => tcx::programs(&link.name, direction),
                    Hold::Clsact(_) => clsact::programs(&self.netlink, *index, direction),
                };
                troubles.push(HookTrouble::Removed { interface: interface.clone(), direction, instead });
            }
        }
        Ok(troubles)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        for attached in &self.all {
            for (hold, program) in attached.holds.iter().zip(self.programs) {
                if let Hold::Clsact(place) = hold
                    && let Err(error) = clsact::detach(&self.netlink, *place, program)
                {
                    // Most likely the interface is gone; what stays is removed by the next node.
                    tracing::warn!(interface = attached.interface.name, %error, "the BPF program was not taken off");
                }
            }
        }
    }
}

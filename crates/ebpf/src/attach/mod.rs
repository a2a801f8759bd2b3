//! The program on the way of packets: attached to interfaces, looked after, and taken off again.
//!
//! Ours is put before the programs of others. What is not for it goes on to them, and so do the copies that it sends, which pass
//! the way out once more; a program of others that lets packets pass ends the row, and behind it ours would never be reached.

mod clsact;
mod interface;
mod netlink;
mod tcx;

use std::fmt;
use std::io;
use std::os::fd::AsFd;

use aya::programs::SchedClassifier;
use aya::programs::tc::SchedClassifierLink;
use thiserror::Error;

pub use self::interface::{Interface, interfaces_for};

use self::clsact::Alive;
use self::netlink::{Netlink, Place};
use crate::program::chain;
use crate::{EbpfError, Program};

/// How the kernel holds a program on the way of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// By links, from Linux 6.6 on. They end with their process, however that ends.
    Tcx,
    /// By filters of the clsact queueing discipline. What a killed process leaves is removed by the next that attaches.
    Clsact,
}

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// In.
    Ingress,
    /// Out.
    Egress,
}

impl Direction {
    const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];

    /// What the program for it is called.
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

/// What is not as it was when the program was attached.
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
    /// The program has been taken off, or replaced.
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
    #[error("how interface {interface} is cannot be asked: {why}")]
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

impl Program {
    /// Puts the program on both ways of these interfaces, before the programs of others, and takes it off all that it was on
    /// before. It is taken off when it is dropped. What nodes that were killed have left is removed.
    ///
    /// # Errors
    /// [`EbpfError::Attach`], [`EbpfError::System`]: it is attached to nothing then.
    pub fn attach(&mut self, interfaces: &[Interface]) -> Result<(), EbpfError> {
        // First: where it were twice, it would take a packet twice.
        self.attachment = None;
        let system = |what| move |source| EbpfError::System { what, source };
        let netlink = Netlink::open().map_err(system("cannot ask the kernel for its interfaces"))?;
        clsact::clean(&netlink).map_err(system("cannot remove what a dead node has left"))?;
        let numbers = Direction::BOTH.map(|direction| number(self.classifier(direction.program())));
        let [ingress, egress] = numbers;
        let programs = [ingress?, egress?];
        let mut attachment =
            Attachment { netlink, programs, hook: self.hook(), alive: None, all: Vec::new() };
        for interface in interfaces {
            attachment.all.push(Attached { interface: interface.clone(), holds: Vec::new() });
            for direction in Direction::BOTH {
                attachment.add(self.classifier(direction.program()), interface, direction)?;
            }
        }
        self.attachment = Some(attachment);
        Ok(())
    }

    /// What is not any more as it was when the program was attached: nothing, as a rule. It takes some ten microseconds an interface.
    pub fn check(&self) -> Vec<HookTrouble> {
        let Some(attachment) = &self.attachment else { return Vec::new() };
        attachment.all.iter().flat_map(|attached| attachment.check(attached)).collect()
    }
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
    /// Puts a program on the interface that was begun last.
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

    fn check(&self, attached: &Attached) -> Vec<HookTrouble> {
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

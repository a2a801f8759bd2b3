//! Golden scripts: commands to a few nodes, and all packets and events that follow.

mod names;
mod tabletop;
mod words;

use std::error::Error;
use std::path::Path;
use std::str::FromStr;

use goldenscript::{Context, Runner};
use treecast_proto::{
    AbortReason, Authentication, CreateGroup, GroupId, Input, Integrity, MemberId, Nanoseconds, Offload,
    ReaderSet, Readers, Sequence, Trace, Transport,
};
use treecast_wire::{
    Acknowledgment, Body, Control, ControlHeader, Data, Distribution, Eviction, Neighbour, Nonce, Role,
    RootLoss, Table, Timestamp,
};

use names::address;
use tabletop::{PAYLOAD_BYTES, Setting, Tabletop};

/// Runs a script, compares its output with the expected one, and returns the trace of each node.
///
/// A script is a file of commands, `---`, and the expected output, again and again. The output of a
/// command in parentheses is suppressed. With `UPDATE_GOLDENFILES=1` in the environment the file
/// gets the output that there is.
///
/// # Errors
/// If the output is another one, or the file cannot be read.
pub fn run_script(path: &Path) -> std::io::Result<Vec<Trace>> {
    let mut script = Script::default();
    goldenscript::run(&mut script, path)?;
    Ok(script.table.into_traces().collect())
}

#[derive(Default)]
struct Script {
    table: Tabletop,
}

/// The commands of scripts. Nodes are capital letters; the default group is 1.
#[derive(goldenscript::Command)]
enum Command {
    /// `group A=BC B=D slots=64`: creates a group. Each parent with its children, the root first.
    Group {
        #[arg(key)]
        slots: Option<u32>,
        /// The number of the first packet.
        #[arg(key)]
        start: Option<u32>,
        #[arg(key)]
        offload: Option<String>,
        /// Whether the group admits late joiners.
        #[arg(key)]
        admits: Option<bool>,
        /// The most members at a time.
        #[arg(key)]
        members: Option<usize>,
        /// The processes of shared nodes: `readers=B3C2`.
        #[arg(key)]
        readers: Option<String>,
        /// Whether the members join; otherwise only the root creates the group.
        #[arg(key)]
        joins: Option<bool>,
        /// The greatest rate in bytes/s.
        #[arg(key)]
        rate: Option<u64>,
        #[arg(key)]
        group: Option<u32>,
        families: Vec<(char, String)>,
    },
    /// `send A 1200`: the root queues a message of 1200 bytes; a packet carries up to 512.
    Send {
        root: char,
        bytes: u64,
        #[arg(key)]
        group: Option<u32>,
    },
    /// `begin A 1200`: the root queues only the first packet of a message of 1200 bytes.
    Begin { root: char, bytes: u64 },
    /// `close A`: the root closes the group.
    Close {
        root: char,
        #[arg(key)]
        group: Option<u32>,
    },
    /// `readers B awaited=2 lost=1`: of the processes of a node these, by their digits, have not
    /// come, and these are lost.
    Readers {
        node: char,
        #[arg(key)]
        awaited: Option<String>,
        #[arg(key)]
        lost: Option<String>,
    },
    /// `abort A`: a node aborts the group.
    Abort { node: char },
    /// `evict A C`: the root evicts a member.
    Evict { node: char, member: char },
    /// `relieve A B`: the root makes a member a leaf.
    Relieve { node: char, member: char },
    /// `leave C`: a member leaves.
    Leave {
        node: char,
        #[arg(key)]
        group: Option<u32>,
    },
    /// `forward B 3`: the application at B forwards packets before 3, to all children or to one:
    /// `forward B 3 child=C`.
    Forward {
        node: char,
        upto: u32,
        #[arg(key)]
        child: Option<char>,
    },
    /// `repair B 3`: the reader at B finds the payload of packet 3 corrupt.
    Repair { node: char, packet: u32 },
    /// `run 1ms`: time passes. `run 1ms quietly`: prints no packets, only events.
    Run { span: Span, how: Option<String> },
    /// `lose A B "data 3"`: the next datagram from A to B whose text begins with this is lost;
    /// `times=9`: the next nine are.
    Lose {
        from: char,
        to: char,
        words: String,
        #[arg(key)]
        times: Option<u32>,
    },
    /// `replay A B "data 3"`: the last datagram from A to B whose text begins with this is sent
    /// again.
    Replay { from: char, to: char, words: String },
    /// `partition B`: all datagrams from and to a node are lost.
    Partition { node: char },
    /// `heal B`: ends the partition.
    Heal { node: char },
    /// `shrink C 300`: datagrams of more than 300 bytes do not arrive at a node.
    Shrink { node: char, bytes: usize },
    /// `deafen C`: multicast reaches a node no more.
    Deafen { node: char },
    /// `undeafen C`: it does again.
    Undeafen { node: char },
    /// `stop C`: the reader of a node stops.
    Stop { node: char },
    /// `read C`: the reader continues.
    Read { node: char },
    /// `suspend B 2s`: a node is not scheduled for a time; datagrams to it wait.
    Suspend { node: char, span: Span },
    /// `crash B`: a node ends and loses its state.
    Crash { node: char },
    /// `join D A`: a node joins the group of the root A.
    Join {
        node: char,
        root: char,
        #[arg(key)]
        group: Option<u32>,
    },
    /// `forge B C data=7`: a forged datagram with the source address of B.
    Forge {
        from: char,
        to: char,
        /// Data with this sequence number.
        #[arg(key)]
        data: Option<u32>,
        /// The length of the data in bytes.
        #[arg(key)]
        length: Option<u32>,
        /// Whether the data, or a heartbeat if there is none, is marked as sent to the multicast
        /// address.
        #[arg(key)]
        multicast: Option<bool>,
        /// A probe with this next sequence number.
        #[arg(key)]
        probe: Option<u32>,
        /// An acknowledgment with this next sequence number.
        #[arg(key)]
        ack: Option<u32>,
        #[arg(key)]
        stable: Option<u32>,
        #[arg(key)]
        window: Option<u32>,
        /// A control message: `table`, `table_ack`, `join`, `leave`, `evicted`, `root_lost`, or the
        /// number of a suspected member.
        #[arg(key)]
        control: Option<String>,
        /// The parent in a table.
        #[arg(key)]
        parent: Option<char>,
        /// The children in a table.
        #[arg(key)]
        children: Option<String>,
        /// The nonce of a control message.
        #[arg(key)]
        nonce: Option<u64>,
        /// The member whose nonce a control message has.
        #[arg(key)]
        nonce_of: Option<char>,
        /// The sender's member number.
        #[arg(key)]
        sender: Option<u32>,
        #[arg(key)]
        epoch: Option<u32>,
        /// Its timestamp in microseconds; the default is now.
        #[arg(key)]
        at: Option<u64>,
        /// The number of the session, from 1; the default is the last one.
        #[arg(key)]
        session: Option<u8>,
        /// `code`, `checksum` or `length`.
        #[arg(key)]
        wrong: Option<String>,
    },
    /// `state B`: prints sequence numbers and counters of a node.
    State {
        node: char,
        #[arg(key)]
        group: Option<u32>,
    },
}

/// The number of processes of nodes: a letter and a digit for each.
fn shared_nodes(text: &str) -> Vec<(char, u32)> {
    let pairs = text.chars().zip(text.chars().skip(1)).step_by(2);
    pairs.map(|(node, count)| (node, count.to_digit(10).expect("a digit follows each letter"))).collect()
}

/// The places of these digits.
fn places(digits: Option<&str>) -> ReaderSet {
    let mut set = ReaderSet::default();
    for digit in digits.unwrap_or_default().chars() {
        set.insert(digit.to_digit(10).expect("a place is a digit"));
    }
    set
}

/// The member of a node: scripts with `evict` and `forward` use all letters from A on as members.
fn number(node: char) -> MemberId {
    MemberId(u32::from(node) - u32::from('A'))
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let state = self.table.act(command)?;
        Ok(self.table.take_output() + &state)
    }
}

impl Tabletop {
    /// Executes a command, and returns the state that it requests.
    fn act(&mut self, command: &Command) -> Result<String, Box<dyn Error>> {
        const GROUP: GroupId = GroupId(1);
        match command {
            Command::Group {
                families,
                slots,
                start,
                offload,
                admits,
                members,
                readers,
                joins,
                rate,
                group,
            } => {
                let offload = offload.as_deref().unwrap_or("nic");
                let named = Offload::NAMES.into_iter().find(|(name, _)| *name == offload);
                self.create_group(&Setting {
                    group: group.unwrap_or(1),
                    tree: families.iter().map(|(parent, names)| (*parent, names.chars().collect())).collect(),
                    readers: shared_nodes(readers.as_deref().unwrap_or_default()),
                    slots: slots.unwrap_or(64),
                    start: start.unwrap_or(0),
                    offload: named.ok_or("no such offload")?.1,
                    admits: admits.unwrap_or(false),
                    members_max: members.unwrap_or(CreateGroup::MEMBERS_MAX),
                    joins: joins.unwrap_or(true),
                    bytes_per_s_max: *rate,
                })?;
            }
            Command::Send { root, bytes, group } => self.send(*root, group.unwrap_or(1), *bytes, true)?,
            Command::Begin { root, bytes } => self.send(*root, 1, *bytes, false)?,
            Command::Close { root, group } => {
                self.request(*root, Input::Close { group: group.map_or(GROUP, GroupId) })?;
            }
            Command::Readers { node, awaited, lost } => {
                let readers = Readers { awaited: places(awaited.as_deref()), lost: places(lost.as_deref()) };
                self.request(*node, Input::Readers { group: GROUP, readers })?;
            }
            Command::Abort { node } => {
                self.request(*node, Input::Abort { group: GROUP, why: AbortReason::Application })?;
            }
            Command::Evict { node, member } => {
                self.request(*node, Input::Evict { group: GROUP, member: number(*member) })?;
            }
            Command::Relieve { node, member } => {
                self.request(*node, Input::Relieve { group: GROUP, member: number(*member) })?;
            }
            Command::Leave { node, group } => {
                self.request(*node, Input::Leave { group: group.map_or(GROUP, GroupId) })?;
            }
            Command::Forward { node, upto, child } => {
                let child = child.map(number);
                self.request(*node, Input::Forward { group: GROUP, upto: Sequence(*upto), child })?;
            }
            Command::Repair { node, packet } => {
                self.request(*node, Input::Repair { group: GROUP, packet: Sequence(*packet) })?;
            }
            Command::Run { span, how } => {
                self.print_packets(how.as_deref() != Some("quietly"));
                self.run(span.0)?;
                self.print_packets(true);
            }
            Command::Lose { from, to, words, times } => self.lose(*from, *to, words, times.unwrap_or(1)),
            Command::Replay { from, to, words } => self.replay(*from, *to, words)?,
            Command::Partition { node } => self.partition(*node, true)?,
            Command::Heal { node } => self.partition(*node, false)?,
            Command::Shrink { node, bytes } => self.shrink(*node, *bytes)?,
            Command::Deafen { node } => self.deafen(*node, true)?,
            Command::Undeafen { node } => self.deafen(*node, false)?,
            Command::Stop { node } => self.read(*node, false)?,
            Command::Read { node } => self.read(*node, true)?,
            Command::Suspend { node, span } => self.suspend(*node, span.0)?,
            Command::Crash { node } => self.crash(*node),
            Command::Join { node, root, group } => self.join(*node, group.unwrap_or(1), *root)?,
            Command::Forge { .. } => self.act_forge(command)?,
            Command::State { node, group } => return self.state(*node, group.unwrap_or(1)),
        }
        Ok(String::new())
    }

    fn act_forge(&mut self, command: &Command) -> Result<(), Box<dyn Error>> {
        let Command::Forge { from, to, data, length, probe, ack, stable, window, control, .. } = command
        else {
            return Ok(());
        };
        let Command::Forge {
            sender,
            epoch,
            at,
            wrong,
            nonce,
            nonce_of,
            session,
            multicast,
            parent,
            children,
            ..
        } = command
        else {
            return Ok(());
        };
        let length = length.unwrap_or(4);
        let mut keys = self.keys(*session);
        let wrong = wrong.as_deref();
        if wrong == Some("code") {
            keys.header.0[0] ^= 1;
        }
        let mut payload = Vec::new();
        let (sequence, body) = match (data, probe, ack, control) {
            (Some(packet), ..) => {
                payload = vec![7; length as usize];
                let (offset, message_length) = (0, u64::from(length));
                let (ack_requested, retransmitted, close) = (true, false, false);
                (
                    *packet,
                    Body::Data(Data {
                        message: 0,
                        offset,
                        length,
                        message_length,
                        checksum: keys.data_checksum(Sequence(*packet), &payload),
                        ack_requested,
                        retransmitted,
                        close,
                        distribution: if multicast.is_some() {
                            Distribution::Multicast
                        } else {
                            Distribution::Tree
                        },
                    }),
                )
            }
            (_, Some(next), ..) => (*next, Body::Probe),
            (_, _, Some(next), _) => {
                let stable = Sequence(stable.unwrap_or(*next));
                let (receive_window, echo) = (window.unwrap_or(0), Timestamp(0));
                let (is_reached, is_congested) = (false, false);
                let acknowledgment =
                    Acknowledgment { stable, receive_window, echo, is_reached, is_congested };
                (*next, Body::Acknowledgment(acknowledgment))
            }
            (.., Some(control)) => {
                let control = match control.as_str() {
                    "table" => {
                        let parent = parent.ok_or("a table has a parent")?;
                        Control::Table(table(*to, parent, children.as_deref().unwrap_or_default()))
                    }
                    "table_ack" => Control::TableAck(None),
                    "join" => Control::Join(address(*from)),
                    "leave" => Control::Leave,
                    "evicted" => Control::Evicted(Eviction::Left),
                    "root_lost" => Control::RootLost(RootLoss::Silent),
                    member => Control::Suspect(MemberId(member.parse()?)),
                };
                payload = control.write();
                let header = ControlHeader {
                    operation: control.operation(),
                    nonce: match nonce_of {
                        Some(member) => self.nonce_of(*member).ok_or("it has sent no control message")?,
                        None => Nonce(nonce.unwrap_or(0)),
                    },
                    length: payload.len() as u32,
                    checksum: keys.control_checksum(&payload),
                };
                (0, Body::Control(header))
            }
            _ if multicast.is_some() => (0, Body::Heartbeat),
            _ => return Err("a forged packet is data, probe, ack or control".into()),
        };
        let mut header = self.header(sender.unwrap_or(0), sequence, body);
        header.epoch = epoch.unwrap_or(header.epoch);
        header.timestamp.0 = at.map_or(header.timestamp.0, |us| us * 1_000);
        match wrong {
            Some("length") => payload.push(0),
            Some("checksum") => payload[0] ^= 1,
            _ => {}
        }
        self.forge(*from, *to, &keys, &header, &payload);
        Ok(())
    }
}

/// The table of a member of group 1 with these neighbours, of which the settings are those by
/// default.
fn table(member: char, parent: char, children: &str) -> Table {
    let number = |name: char| MemberId(u32::from(name) - u32::from('A'));
    let neighbour = |role, name| Neighbour { member: number(name), role, address: address(name) };
    let neighbours = std::iter::once(neighbour(Role::Parent, parent));
    Table {
        member: number(member),
        start: Sequence(0),
        slots: 64,
        message: 0,
        bytes: 0,
        payload_bytes_max: PAYLOAD_BYTES as u16,
        offload: Offload::Nic,
        authentication: Authentication::Header,
        integrity: Integrity::default(),
        transport: Transport::Packets,
        is_encrypted: false,
        part: 0,
        parts: 1,
        neighbours: neighbours.chain(children.chars().map(|name| neighbour(Role::Child, name))).collect(),
    }
}

/// A span of time: `20us`, `1ms`, `2s`.
struct Span(Nanoseconds);

impl FromStr for Span {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
        let span = units.into_iter().find_map(|(unit, us)| {
            let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
            Some(Self(Nanoseconds::from_us(number * us)))
        });
        span.ok_or_else(|| format!("invalid span {text}: expected 20us, 1ms or 2s"))
    }
}

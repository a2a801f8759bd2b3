//! A daemon with two clients that follow an arbitrary script, while it serves a third one, the
//! witness.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use arbitrary::{Arbitrary, Unstructured};
use rustix::io::{Errno, pwrite};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use rustix::net::{Shutdown, SocketAddrUnix, SocketType};
use serde_json::{Value, json};
use treecast_node::{Daemon, DaemonCounters, Group, GroupId, GroupSettings, Node, Policy, Stopper};

use crate::node::{ANY_SETTINGS_MAX, AnySetting, TIMEOUT, check_text, node_settings};

/// All users may have groups, within bounds that a script reaches.
const POLICY: &str = "[[rule]]\nname = \"all\"\nall_users = true\ngroups_max = 8\nmemory_max = \"1M\"";

/// The longest message of a daemon, in bytes.
const MESSAGE_BYTES_MAX: usize = 256 << 10;

/// The groups: those of scripts, one whose root is another node, and that of the witness.
const GROUPS: u32 = 4;
const OTHERS: u32 = 2;
const WITNESSED: u32 = 3;

/// The most members of a group.
const MEMBERS_MAX: usize = 64;

/// A step of the script, by one of the two clients.
#[derive(Debug, Arbitrary)]
struct Step {
    client: bool,
    action: Action,
}

#[derive(Debug, Arbitrary)]
enum Action {
    /// It disconnects, and connects again.
    Connect {
        says_hello: bool,
    },
    Say(Message),
    /// A message with a byte that is changed.
    Garble {
        message: Message,
        place: u16,
        change: u8,
    },
    SayAny(Vec<u8>),
    /// It reads all answers.
    Hear,
    /// A word of the last memory that it got: of the slots, or of the page.
    Write {
        page: bool,
        place: u16,
        word: u32,
    },
}

#[derive(Debug, Arbitrary)]
enum Message {
    Hello {
        version: u32,
    },
    /// Without children: member 0 has all others as its children.
    CreateGroup {
        settings: Settings,
        children: Option<Vec<Vec<u8>>>,
        session: [u8; 16],
        place: Option<Place>,
    },
    JoinGroup {
        settings: Settings,
        place: Option<Place>,
    },
    PollUpdate,
    Wake,
    Request {
        name: u8,
        group: u8,
    },
    Forward {
        group: u8,
        upto: u32,
        child: Option<u8>,
    },
    Query {
        name: u8,
        group: u8,
    },
}

/// The client's place among the processes of its host.
#[derive(Debug, Arbitrary)]
struct Place {
    number: u8,
    count: u16,
}

impl Place {
    fn write(place: Option<&Self>) -> Value {
        place.map_or(Value::Null, |place| json!({"number": place.number, "count": place.count}))
    }
}

#[derive(Debug, Arbitrary)]
struct Settings {
    group: u8,
    members: Vec<Member>,
    others: Vec<AnySetting>,
}

#[derive(Debug, Arbitrary)]
enum Member {
    Daemon,
    Other,
    /// Nobody listens there.
    Port(u16),
}

/// Runs a script; an incomplete final step is ignored.
///
/// # Panics
/// If the daemon ends or does not answer, answers what no client can read, harms the witness's
/// group, or keeps the memory of clients that have disconnected.
pub fn daemon(bytes: &[u8]) {
    let mut bytes = Unstructured::new(bytes);
    let served = Served::new();
    let mut witness = Client::connect(&served.socket);
    let (members, session) = ([served.address], [0_u8; 16]);
    witness.greet();
    witness.hear();
    witness.ask(&json!({"create_group": {
        "settings": {"members": members, "settings": [["group", WITNESSED.to_string()], ["slots", "4"]]},
        "children": star(1),
        "session": session,
    }}));
    let mappings = count_mappings();
    let mut trial = Trial::new(&served);
    while !bytes.is_empty() {
        let Ok(step) = Step::arbitrary(&mut bytes) else { break };
        trial.step(&step);
    }
    trial.clients.iter_mut().for_each(Client::finish);
    let answer = witness.ask(&json!({"query": {"counters": {"group": WITNESSED}}}));
    assert!(answer["answer"]["numbers"].is_array(), "the witness has lost its group: {answer}");
    drop(trial);
    let until = Instant::now() + TIMEOUT;
    while count_mappings() > mappings {
        assert!(Instant::now() < until, "the daemon keeps the memory of clients that have disconnected");
        thread::sleep(Duration::from_millis(1));
    }
    drop(witness);
    served.end();
}

/// The children of each of some members: member 0 has all others.
fn star(members: usize) -> Vec<Vec<u8>> {
    let mut children = vec![Vec::new(); members];
    if let Some(first) = children.first_mut() {
        first.extend(1..members as u8);
    }
    children
}

/// How often memory that a daemon shares with its clients is mapped.
fn count_mappings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("the system lists the mappings");
    maps.matches("/memfd:treecast").count()
}

/// A daemon in a thread of this process.
struct Served {
    _directory: tempfile::TempDir,
    socket: PathBuf,
    address: SocketAddr,
    stopper: Stopper,
    thread: thread::JoinHandle<DaemonCounters>,
}

impl Served {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory can be created");
        let socket = directory.path().join("node.sock");
        let policy = Policy::parse(POLICY, "the policy").expect("the policy is valid");
        let daemon = Daemon::open(&node_settings(), &socket, policy).expect("a daemon can be opened");
        let (address, stopper) = (daemon.address(), daemon.stopper());
        let thread = thread::spawn(move || daemon.serve().expect("the daemon serves until it is stopped"));
        Self { _directory: directory, socket, address, stopper, thread }
    }

    fn end(self) {
        self.stopper.stop();
        self.thread.join().expect("the daemon does not panic");
    }
}

struct Trial<'a> {
    served: &'a Served,
    clients: [Client; 2],
    /// Another node and its group, once a script names it.
    other: Option<(Node, Group)>,
}

impl<'a> Trial<'a> {
    fn new(served: &'a Served) -> Self {
        let clients = [(); 2].map(|()| Client::connect(&served.socket));
        clients.iter().for_each(Client::greet);
        Self { served, clients, other: None }
    }

    fn step(&mut self, step: &Step) {
        let client = usize::from(step.client);
        match &step.action {
            Action::Connect { says_hello } => {
                self.clients[client] = Client::connect(&self.served.socket);
                if *says_hello {
                    self.clients[client].greet();
                }
            }
            Action::Say(message) => {
                let text = self.write(message).to_string();
                self.clients[client].say(text.as_bytes());
            }
            Action::Garble { message, place, change } => {
                let mut bytes = self.write(message).to_string().into_bytes();
                let place = usize::from(*place) % bytes.len();
                bytes[place] ^= change;
                self.clients[client].say(&bytes);
            }
            Action::SayAny(bytes) => self.clients[client].say(bytes),
            Action::Hear => {
                // A member has something to read.
                if let Some((_, group)) = &self.other {
                    let _ = group.send_part(b"a message", 9, Some(Duration::ZERO));
                }
                self.clients[client].hear_all();
            }
            Action::Write { page, place, word } => self.clients[client].write(*page, *place, *word),
        }
    }

    fn write(&mut self, message: &Message) -> Value {
        let group = |group: u8| u32::from(group) % GROUPS;
        let named = |names: &[&'static str], name: u8| names[usize::from(name) % names.len()];
        match message {
            Message::Hello { version } => json!({"hello": {"version": version}}),
            Message::CreateGroup { settings, children, session, place } => {
                let settings = self.settings(settings);
                let members = settings["members"].as_array().map_or(0, Vec::len);
                let children = children.clone().unwrap_or_else(|| star(members));
                let place = Place::write(place.as_ref());
                json!({"create_group": {"settings": settings, "children": children, "session": session, "place": place}})
            }
            Message::JoinGroup { settings, place } => {
                let place = Place::write(place.as_ref());
                json!({"join_group": {"settings": self.settings(settings), "place": place}})
            }
            Message::PollUpdate => json!("poll_update"),
            Message::Wake => json!("wake"),
            Message::Request { name: name @ 240..248, group: number } => {
                json!({"evict": {"group": group(*number), "member": name % 4}})
            }
            Message::Request { name: 248.., group: lease } => json!({"unmapped": {"lease": lease % 8}}),
            Message::Request { name, group: number } => {
                json!({named(&["close", "leave", "abort", "end"], *name): {"group": group(*number)}})
            }
            Message::Forward { group: number, upto, child } => {
                json!({"forward": {"group": group(*number), "upto": upto, "child": child}})
            }
            Message::Query { name, group: number } => {
                match named(
                    &["children", "unplaced", "counters", "kernel_counters", "strays", "awaited_readers"],
                    *name,
                ) {
                    "strays" => json!({"query": "strays"}),
                    name => json!({"query": {name: {"group": group(*number)}}}),
                }
            }
        }
    }

    fn settings(&mut self, settings: &Settings) -> Value {
        let members: Vec<SocketAddr> =
            settings.members.iter().take(MEMBERS_MAX).map(|member| self.address(member)).collect();
        let group = u32::from(settings.group) % GROUPS;
        let mut values = vec![("group", group.to_string()), ("slots", "4".into())];
        values.extend(settings.others.iter().take(ANY_SETTINGS_MAX).map(AnySetting::read));
        json!({"members": members, "settings": values})
    }

    fn address(&mut self, member: &Member) -> SocketAddr {
        match member {
            Member::Daemon => self.served.address,
            Member::Other => self.other.get_or_insert_with(|| open_other(self.served.address)).0.address(),
            Member::Port(port) => (Ipv4Addr::LOCALHOST, *port).into(),
        }
    }
}

/// Another node, at which the daemon can join a group.
fn open_other(daemon: SocketAddr) -> (Node, Group) {
    let node = Node::open(&node_settings()).expect("a node can be opened");
    // A client that joins late becomes a member too.
    let settings = GroupSettings {
        group: GroupId(OTHERS),
        slots: Some(4),
        admits: true,
        ..GroupSettings::new(vec![node.address(), daemon])
    };
    let group = node.group(&settings).expect("the settings are valid");
    (node, group)
}

/// A client of the daemon.
struct Client {
    socket: OwnedFd,
    /// The descriptors of slots and page, of its last group.
    memory: Option<[OwnedFd; 2]>,
}

impl Client {
    fn connect(path: &Path) -> Self {
        let connect = || {
            let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
            set_socket_timeout(&socket, Timeout::Send, Some(TIMEOUT))?;
            set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
            net::connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok::<_, Errno>(socket)
        };
        Self { socket: connect().expect("the daemon accepts clients"), memory: None }
    }

    fn greet(&self) {
        self.say(json!({"hello": {"version": Daemon::PROTOCOL_VERSION}}).to_string().as_bytes());
    }

    /// Sends a message, unless the daemon has disconnected the client.
    fn say(&self, bytes: &[u8]) {
        match net::send(&self.socket, bytes, SendFlags::NOSIGNAL) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(error) => panic!("the daemon takes no message: {error}"),
        }
    }

    /// The next answer; none at the end of the connection.
    fn hear(&mut self) -> Option<Value> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX + 1];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
        let length = loop {
            match net::recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(received) => break received.bytes,
                // Said once of a connection that was closed with unread messages; what was sent
                // before can still be read. The timer of the fuzzer interrupts.
                Err(Errno::CONNRESET | Errno::INTR) => {}
                Err(error) => panic!("the daemon does not answer: {error}"),
            }
        };
        if length == 0 {
            return None;
        }
        let answer: Value = serde_json::from_slice(&bytes[..length]).expect("an answer is JSON");
        let keys = answer.as_object().expect("an answer has a name");
        let name = keys.keys().next().filter(|_| keys.len() == 1).expect("an answer has one name");
        assert!(
            ["welcome", "refused", "entered", "update", "answer"].contains(&name.as_str()),
            "no client knows {answer}"
        );
        if let Some(reason) = answer["refused"]["reason"].as_str() {
            check_text(reason);
        }
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(sent) = message {
                descriptors.extend(sent);
            }
        }
        if name != "welcome"
            && let Ok(memory) = descriptors.try_into()
        {
            self.memory = Some(memory);
        }
        Some(answer)
    }

    /// Asks, and returns the answer.
    fn ask(&mut self, request: &Value) -> Value {
        self.say(request.to_string().as_bytes());
        self.hear().expect("the daemon does not disconnect the witness")
    }

    /// Reads all answers, up to that to a last query.
    fn hear_all(&mut self) {
        self.say(br#"{"query":{"children":{"group":4294967295}}}"#);
        while self.hear().is_some_and(|answer| !answer["answer"]["members"].is_array()) {}
    }

    /// Says no more, and reads what the daemon still answers.
    fn finish(&mut self) {
        let _ = net::shutdown(&self.socket, Shutdown::Write);
        while self.hear().is_some() {}
    }

    /// Writes into the memory of its last group, where it may.
    fn write(&self, page: bool, place: u16, word: u32) {
        if let Some(memory) = &self.memory {
            let _ = pwrite(&memory[usize::from(page)], &word.to_ne_bytes(), u64::from(place) * 4);
        }
    }
}

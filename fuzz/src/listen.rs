//! Gathering with arbitrary peers: of a root that listens, or of a member that joins. Either asks
//! its caller between two polls whether to go on; the script takes its next step there, so that one
//! thread plays both ends of the connections.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use arbitrary::{Arbitrary, Unstructured};
use serde_json::{Value, json};
use treecast_node::{GroupSettings, JoinOptions, Listener, Node, NodeError};

use crate::node::{ANY_SETTINGS_MAX, AnySetting, TIMEOUT, check_text, node_settings};

const TOKEN: &str = "a token";

/// The version of the join protocol.
const VERSION: u32 = 5;

/// The members that the root waits for, itself included.
const MEMBERS: u32 = 4;

/// The most connections of a script.
const PEERS_MAX: usize = 100;

/// A step of a script for a root. Numbers of connections are counted from the last one.
#[derive(Debug, Arbitrary)]
enum RootStep {
    Connect,
    Claim { peer: u8, claim: AnyClaim },
    Say { peer: u8, bytes: Vec<u8> },
    Leave { peer: u8 },
}

#[derive(Debug, Default, Arbitrary)]
struct AnyClaim {
    /// One of another version, or with another proof.
    version: Option<u32>,
    proof: Option<u8>,
    challenge: u8,
    ip: Option<Ip>,
    port: u16,
    member: Option<u8>,
    mtu_bytes: Option<u32>,
    name: String,
    is_shared: bool,
}

#[derive(Debug, Arbitrary)]
enum Ip {
    Loopback(u8),
    V4([u8; 4]),
    V6([u8; 16]),
}

/// A step of a script for a member.
#[derive(Debug, Arbitrary)]
enum MemberStep {
    Greet { version: Option<u32>, challenge: u8 },
    Accept { proof: Option<u8> },
    Tell { name: u8, text: String },
    Start(AnyStart),
    Say { bytes: Vec<u8> },
}

#[derive(Debug, Arbitrary)]
struct AnyStart {
    proof: Option<u8>,
    member: u8,
    members: Vec<Place>,
    settings: Vec<AnySetting>,
}

#[derive(Debug, Arbitrary)]
enum Place {
    Own,
    Port(u16),
    Any([u8; 4], u16),
}

/// Runs a script for a root or for a member; an incomplete final step is ignored.
///
/// # Panics
/// If a peer without the token joins or starts a group, an honest one gets no answer, or a user is
/// told what cannot be printed.
pub fn listen(bytes: &[u8]) {
    let mut script = Unstructured::new(bytes);
    match bool::arbitrary(&mut script) {
        Ok(true) => root(script),
        Ok(false) => member(script),
        Err(_) => {}
    }
}

fn root(script: Unstructured<'_>) {
    let node = Node::open(&node_settings()).expect("a node can be opened");
    let mut listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into(), MEMBERS).expect("a port is free");
    listener.timeout = Some(TIMEOUT);
    let honest = AnyClaim { name: "an honest member".into(), port: 1, ..AnyClaim::default() };
    let last_steps = [RootStep::Connect, RootStep::Claim { peer: 0, claim: honest }].into_iter();
    let root = listener.address();
    let mut peers = Peers { root, script, last_steps, all: Vec::new(), proven: Vec::new() };
    let settings = GroupSettings { token: TOKEN.into(), slots: Some(4), ..GroupSettings::new(Vec::new()) };
    let outcome = node.listen_while(listener, &settings, &mut |status| {
        if let Some(status) = status {
            check_text(&status.to_string());
            assert!(status.joined.len() <= MEMBERS as usize);
        }
        peers.step()
    });
    match outcome {
        Ok(group) => {
            let (members, known) = (&group.settings().members, &peers.proven);
            let is_known = |member| known.contains(member) || *member == node.address();
            assert!(members.iter().all(is_known), "{members:?} are a group, but {known:?} know the token");
        }
        Err(NodeError::Cancelled) => {}
        Err(error) => panic!("the root stops listening: {error}"),
    }
}

/// The peers of a root.
struct Peers<'a> {
    root: SocketAddr,
    script: Unstructured<'a>,
    /// After the script an honest member joins.
    last_steps: std::array::IntoIter<RootStep, 2>,
    all: Vec<Peer>,
    /// The nodes for which a peer has proven that it knows the token.
    proven: Vec<SocketAddr>,
}

impl Peers<'_> {
    /// Takes the next step that the root notices; says whether the root goes on.
    fn step(&mut self) -> bool {
        self.all.iter_mut().for_each(Peer::hear);
        while let Some(step) = self.next_step() {
            if self.act(step) {
                return true;
            }
        }
        let answer =
            self.all.last().and_then(|last| last.heard.get(1)).expect("an honest member is answered");
        let is_answer = answer["accepted"].is_object() || answer["rejected"].is_object();
        assert!(is_answer, "the root answers {answer} to an honest member");
        false
    }

    fn next_step(&mut self) -> Option<RootStep> {
        let is_over = self.script.is_empty() || self.all.len() >= PEERS_MAX;
        let step = if is_over { None } else { RootStep::arbitrary(&mut self.script).ok() };
        step.or_else(|| {
            self.script = Unstructured::new(&[]);
            self.last_steps.next()
        })
    }

    /// Whether the root notices the step.
    fn act(&mut self, step: RootStep) -> bool {
        let count = self.all.len();
        let index = |peer: u8| (count > 0).then(|| count - 1 - usize::from(peer) % count);
        match step {
            RootStep::Connect => {
                self.all.push(Peer::new(TcpStream::connect(self.root).expect("the root listens")));
                true
            }
            RootStep::Claim { peer, claim } => index(peer).is_some_and(|index| self.claim(index, &claim)),
            RootStep::Say { peer, bytes } => index(peer).is_some_and(|index| self.all[index].say(&bytes)),
            RootStep::Leave { peer } => index(peer).map(|index| self.all.remove(index)).is_some(),
        }
    }

    fn claim(&mut self, index: usize, claim: &AnyClaim) -> bool {
        let peer = &mut self.all[index];
        let Some(challenge) = peer.heard.first().and_then(|greeting| greeting["challenge"].as_str()) else {
            return false;
        };
        let AnyClaim { version, proof, port, member, mtu_bytes, name, is_shared, .. } = claim;
        let (own, ip) = (hash_of(claim.challenge), claim.ip.as_ref().map(Ip::read));
        let ip_text = ip.map_or("all".into(), |ip| ip.to_string());
        let member_text = member.map_or("any".into(), |member| member.to_string());
        let mtu_text = mtu_bytes.map_or("unknown".into(), |bytes| bytes.to_string());
        let shared = if *is_shared { "shared" } else { "own" };
        let proven = prove(&format!(
            "member {challenge} {own} {ip_text} {port} {shared} {member_text} {mtu_text} {name}"
        ));
        if version.is_none() && proof.is_none() {
            let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
            self.proven.push((ip.to_canonical(), *port).into());
        }
        peer.say_line(&json!({
            "treecast": version.unwrap_or(VERSION),
            "challenge": own,
            "proof": proof.map_or(proven, hash_of),
            "ip": ip,
            "port": port,
            "is_shared": is_shared,
            "member": member,
            "mtu_bytes": mtu_bytes,
            "name": name,
        }))
    }
}

impl Ip {
    fn read(&self) -> IpAddr {
        match *self {
            Self::Loopback(last) => Ipv4Addr::new(127, 0, 0, last).into(),
            Self::V4(ip) => ip.into(),
            Self::V6(ip) => ip.into(),
        }
    }
}

fn member(mut script: Unstructured<'_>) {
    let node = Node::open(&node_settings()).expect("a node can be opened");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.set_nonblocking(true).expect("a listener may be non-blocking");
    let at = listener.local_addr().expect("the listener has an address");
    let options = JoinOptions { timeout: Some(TIMEOUT), ..JoinOptions::new(at, TOKEN) };
    let mut root = FalseRoot { node: node.address(), peer: None, challenge: hash_of(0), proven: [false; 2] };
    let joined = node.join_while(&options, &mut |text| {
        text.into_iter().for_each(check_text);
        if root.peer.is_none()
            && let Ok((stream, _)) = listener.accept()
        {
            root.peer = Some(Peer::new(stream));
        }
        root.step(&mut script)
    });
    match joined {
        Ok(group) => {
            assert_eq!(root.proven, [true; 2], "{:?} without proofs", group.settings());
            assert!(!group.is_root(), "a member has become the root");
        }
        Err(error) => check_text(&error.to_string()),
    }
}

/// The root of a member's script.
struct FalseRoot {
    /// The member's node.
    node: SocketAddr,
    peer: Option<Peer>,
    challenge: String,
    /// Whether it has proven that it knows the token, when it has accepted the member and when it
    /// has started the group.
    proven: [bool; 2],
}

impl FalseRoot {
    /// Takes the next step that the member notices; says whether the member goes on.
    fn step(&mut self, script: &mut Unstructured<'_>) -> bool {
        let Some(peer) = &mut self.peer else { return true };
        peer.hear();
        while !script.is_empty() {
            let Ok(step) = MemberStep::arbitrary(script) else { return false };
            if self.act(step) {
                return true;
            }
        }
        false
    }

    fn act(&mut self, step: MemberStep) -> bool {
        let Some(peer) = &mut self.peer else { return false };
        let claim = peer.heard.first().and_then(|claim| claim["challenge"].as_str());
        let challenges = format!("{} {}", self.challenge, claim.unwrap_or_default());
        match step {
            MemberStep::Greet { version, challenge } => {
                self.challenge = hash_of(challenge);
                peer.say_line(&json!({"treecast": version.unwrap_or(VERSION), "challenge": self.challenge}))
            }
            MemberStep::Accept { proof } => {
                self.proven[0] |= proof.is_none();
                let proof = proof.map_or_else(|| prove(&format!("root {challenges}")), hash_of);
                peer.say_line(&json!({"accepted": {"proof": proof}}))
            }
            MemberStep::Tell { name, text } => {
                let (name, key) = [("rejected", "reason"), ("cancelled", "reason"), ("progress", "text")]
                    [usize::from(name) % 3];
                peer.say_line(&json!({name: {key: text}}))
            }
            MemberStep::Start(AnyStart { proof, member, members, settings }) => {
                self.proven[1] |= proof.is_none();
                let members: Vec<String> =
                    members.iter().map(|place| place.read(self.node).to_string()).collect();
                let settings = settings.iter().take(ANY_SETTINGS_MAX).map(AnySetting::read);
                let settings: Vec<String> = settings.map(|(key, value)| format!("{key}={value}")).collect();
                let settings = settings.join(" ");
                let covered = format!("start {challenges} {member} {} {settings}", members.join(","));
                let proof = proof.map_or_else(|| prove(&covered), hash_of);
                peer.say_line(&json!({"start": {
                    "proof": proof, "member": member, "members": members, "settings": settings,
                }}))
            }
            MemberStep::Say { bytes } => peer.say(&bytes),
        }
    }
}

impl Place {
    fn read(&self, own: SocketAddr) -> SocketAddr {
        match *self {
            Self::Own => own,
            Self::Port(port) => (Ipv4Addr::LOCALHOST, port).into(),
            Self::Any(ip, port) => (ip, port).into(),
        }
    }
}

/// An end of a connection.
struct Peer {
    stream: TcpStream,
    bytes: Vec<u8>,
    /// The lines that it has heard.
    heard: Vec<Value>,
    is_over: bool,
}

impl Peer {
    fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).expect("a connection may be non-blocking");
        Self { stream, bytes: Vec::new(), heard: Vec::new(), is_over: false }
    }

    /// Reads the lines that have arrived.
    fn hear(&mut self) {
        let mut bytes = [0; 4_096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break self.is_over = true,
                Ok(length) => self.bytes.extend(&bytes[..length]),
                Err(error) => break self.is_over |= error.kind() != ErrorKind::WouldBlock,
            }
        }
        while let Some(end) = self.bytes.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            self.heard.push(serde_json::from_slice(&line).expect("a line is JSON"));
        }
    }

    /// Whether a peer is there to notice it.
    fn say(&mut self, bytes: &[u8]) -> bool {
        !self.is_over && !bytes.is_empty() && self.stream.write(bytes).is_ok()
    }

    fn say_line(&mut self, line: &Value) -> bool {
        self.say(format!("{line}\n").as_bytes())
    }
}

/// The proof of one who knows the token.
fn prove(text: &str) -> String {
    let key = blake3::derive_key("Treecast: rendezvous, version 5", TOKEN.as_bytes());
    blake3::keyed_hash(&key, text.as_bytes()).to_hex().to_string()
}

/// A challenge, or a false proof.
fn hash_of(number: u8) -> String {
    blake3::Hash::from_bytes([number; 32]).to_hex().to_string()
}

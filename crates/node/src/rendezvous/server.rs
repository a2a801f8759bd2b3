//! The root's side of a gathering: who knocks, who is let in, who is turned away.
//!
//! Nobody is waited for: all connections are watched by one thread, and each has a bound in time and in bytes.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::{fmt, io};

use rustix::event::{PollFd, PollFlags};
use treecast_fabric::Keyed;

use super::connection::{Lines, Look};
use super::messages::{CLAIM_BYTES_MAX, Claim, Greeting, Hash, Key, VERSION, Version, Word};
use super::{ASKED, Arrival, Deadline, Gathering, NAME_BYTES_MAX, Roll, is_name, unreachable};
use crate::bell::sleep;
use crate::{GroupSettings, NodeError};

/// Whoever connects has so long to make its claim.
const CLAIM_TIME: Duration = Duration::from_secs(3);

/// As many may be about to make theirs; of more, the eldest are turned away.
const CALLERS_MAX: usize = 64;

/// Those who wait hear of who has come as often at most.
const NEWS_INTERVAL: Duration = Duration::from_millis(200);

/// When the system gives us no more connections, we ask again after so long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// So long the last words may take to go, to somebody who does not read them.
const FAREWELL_TIME: Duration = Duration::from_secs(2);

/// Where members come in.
#[derive(Debug)]
pub(super) struct Door {
    gathering: Gathering,
    settings: GroupSettings,
    key: Key,
    /// Where the root's node listens.
    node: SocketAddr,
    callers: VecDeque<Caller>,
    guests: Vec<Guest>,
    /// At which address the others reach the root.
    reached_at: Option<IpAddr>,
    turned_away: u64,
    last_turned_away: Option<String>,
    accept_at: Instant,
    has_news: bool,
    news_at: Instant,
}

/// Somebody who has connected, and has not made its claim.
#[derive(Debug)]
struct Caller {
    lines: Lines,
    from: SocketAddr,
    /// The address at which it has reached us.
    reached_at: IpAddr,
    challenge: Hash,
    until: Instant,
}

/// Somebody who has come.
#[derive(Debug)]
struct Guest {
    lines: Lines,
    arrival: Arrival,
}

/// What became of a caller.
enum Outcome {
    Waits,
    /// It is foreign, and there is nothing to say to it.
    Foreign(String),
    /// It knows the token, or claims to, and is told why it cannot be a member.
    TurnedAway(String),
    LetIn(Arrival, Hash),
}

impl Door {
    pub fn open(node: SocketAddr, gathering: Gathering, settings: &GroupSettings) -> Result<Self, NodeError> {
        if !is_name(&gathering.name) {
            return Err(NodeError::Members(wrong_name()));
        }
        let now = Instant::now();
        Ok(Self {
            gathering,
            settings: settings.clone(),
            key: Key::new(&settings.token),
            node,
            callers: VecDeque::new(),
            guests: Vec::new(),
            reached_at: None,
            turned_away: 0,
            last_turned_away: None,
            accept_at: now,
            has_news: true,
            news_at: now,
        })
    }

    /// Lets members in until all are there, the time is over, or it does not go on.
    pub fn wait_until_complete(
        &mut self,
        goes_on: &mut dyn FnMut(Option<&Roll>) -> bool,
    ) -> Result<(), NodeError> {
        let deadline = Deadline::after(self.gathering.timeout);
        loop {
            self.look();
            let is_time = self.has_news && (self.is_complete() || Instant::now() >= self.news_at);
            let news = is_time.then(|| self.spread_news());
            if !goes_on(news.as_ref()) {
                self.call_off("the root has broken the gathering off");
                return Err(NodeError::BrokenOff);
            }
            if self.is_complete() {
                return Ok(());
            }
            if deadline.is_over() {
                let roll = self.roll();
                self.call_off(&format!("not all members came in time: {roll}"));
                return Err(NodeError::Incomplete(Box::new(roll)));
            }
            self.sleep(deadline);
        }
    }

    /// The group of all who have come, and the root's place in it.
    pub fn group(&self) -> (GroupSettings, usize) {
        let root = self.settings.root;
        let mut places: Vec<Option<SocketAddr>> = vec![None; self.gathering.members as usize];
        places[root] = Some(self.root_address());
        for Arrival { address, member, .. } in self.arrivals() {
            if let Some(member) = member {
                places[*member as usize] = Some(*address);
            }
        }
        let mut others = self.arrivals().filter(|arrival| arrival.member.is_none());
        let members = places
            .into_iter()
            .map(|place| place.or_else(|| others.next().map(|arrival| arrival.address)))
            .map(|address| address.expect("there is one for each place"))
            .collect();
        (GroupSettings { members, ..self.settings.clone() }, root)
    }

    /// Tells everybody of the group.
    pub fn begin(mut self, settings: &GroupSettings) {
        let text: Vec<String> = settings
            .values()
            .filter(|(key, _)| *key != "token")
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        for Guest { lines, arrival } in &mut self.guests {
            let place = settings.members.iter().position(|member| *member == arrival.address);
            let member = place.expect("it is one of them") as u32;
            let (members, settings) = (settings.members.clone(), text.join(" "));
            lines.say(&Word::Begin { member, members, settings });
        }
        self.see_off(&format!("all {} members have come", self.gathering.members));
    }

    /// Tells everybody that there will be no group.
    pub fn call_off(&mut self, why: &str) {
        for guest in &mut self.guests {
            guest.lines.say(&Word::Over { why: why.into() });
        }
        self.see_off(why);
    }

    /// Waits until all has gone that was said to those who have come, and turns everybody else away.
    fn see_off(&mut self, why: &str) {
        self.accept();
        for caller in &mut self.callers {
            caller.lines.say(&Word::TurnedAway { why: why.into() });
        }
        let deadline = Deadline::after(Some(FAREWELL_TIME));
        while !deadline.is_over() {
            let unsaid = || self.guests.iter().filter(|guest| !guest.lines.has_gone());
            let mut descriptors: Vec<PollFd<'_>> =
                unsaid().map(|guest| PollFd::from_borrowed_fd(guest.lines.as_fd(), PollFlags::OUT)).collect();
            if descriptors.is_empty() {
                return;
            }
            sleep(&mut descriptors, Some(deadline.left(FAREWELL_TIME)));
            for guest in &mut self.guests {
                guest.lines.push();
            }
        }
    }

    fn is_complete(&self) -> bool {
        self.guests.len() + 1 == self.gathering.members as usize
    }

    fn arrivals(&self) -> impl Iterator<Item = &Arrival> {
        self.guests.iter().map(|guest| &guest.arrival)
    }

    fn roll(&self) -> Roll {
        let root = Arrival {
            name: format!("{} (the root)", self.gathering.name),
            address: self.root_address(),
            member: Some(self.settings.root as u32),
        };
        Roll {
            members: self.gathering.members,
            come: std::iter::once(root).chain(self.arrivals().cloned()).collect(),
            turned_away: self.turned_away,
            last_turned_away: self.last_turned_away.clone(),
        }
    }

    /// Where the root's node is for others: a node that listens at all addresses is where members have reached its host.
    fn root_address(&self) -> SocketAddr {
        let alone = || match self.node.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        match self.node.ip() {
            ip if !ip.is_unspecified() => self.node,
            _ if self.gathering.members == 1 => SocketAddr::new(alone(), self.node.port()),
            ip => SocketAddr::new(self.reached_at.unwrap_or(ip), self.node.port()),
        }
    }

    /// Tells those who wait who has come.
    fn spread_news(&mut self) -> Roll {
        (self.has_news, self.news_at) = (false, Instant::now() + NEWS_INTERVAL);
        let roll = self.roll();
        tracing::info!(%roll, "members gather");
        let text = roll.to_string();
        // Whoever has not read what was said last has its news later.
        for guest in self.guests.iter_mut().filter(|guest| guest.lines.has_gone()) {
            guest.lines.say(&Word::News { text: text.clone() });
        }
        roll
    }

    fn sleep(&self, deadline: Deadline) {
        let now = Instant::now();
        let mut until = self.callers.front().map(|caller| caller.until);
        let mut wake_at = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
        if self.has_news {
            wake_at(self.news_at);
        }
        let mut descriptors = Vec::with_capacity(1 + self.callers.len() + self.guests.len());
        if self.accept_at <= now {
            descriptors.push(PollFd::from_borrowed_fd(self.gathering.listener.as_fd(), PollFlags::IN));
        } else {
            wake_at(self.accept_at);
        }
        descriptors.extend(self.callers.iter().map(|caller| caller.lines.poll_fd()));
        descriptors.extend(self.guests.iter().map(|guest| guest.lines.poll_fd()));
        let at_most = until.map_or(ASKED, |until| until.saturating_duration_since(now).min(ASKED));
        sleep(&mut descriptors, Some(deadline.left(at_most)));
    }

    fn look(&mut self) {
        // Who has gone makes room for who comes.
        self.look_at_guests();
        self.accept();
        for _ in 0..self.callers.len() {
            let Some(caller) = self.callers.pop_front() else { return };
            self.look_at_caller(caller);
        }
    }

    fn look_at_guests(&mut self) {
        let mut stay = Vec::with_capacity(self.guests.len());
        for mut guest in std::mem::take(&mut self.guests) {
            guest.lines.push();
            match guest.lines.look() {
                Look::Nothing => stay.push(guest),
                Look::Gone => {
                    tracing::info!(who = %guest.arrival, "has gone while others gathered");
                    self.has_news = true;
                }
                // It has said all it has to say before.
                Look::Line(_) | Look::TooLong => {
                    self.count(guest.arrival.address, "it went on talking");
                }
            }
        }
        self.guests = stay;
        if self.guests.is_empty() {
            self.reached_at = None;
        }
    }

    fn accept(&mut self) {
        if self.accept_at > Instant::now() {
            return;
        }
        // A few at a time, so that a flood does not keep those waiting who are there.
        for _ in 0..CALLERS_MAX {
            match self.gathering.listener.accept().and_then(|(stream, from)| Caller::greet(stream, from)) {
                Ok(caller) => self.callers.push_back(caller),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // As when all descriptors are taken. One that was broken off before is none, but to wait does no harm.
                Err(error) => {
                    self.count("somebody", &error.to_string());
                    self.accept_at = Instant::now() + ACCEPT_PAUSE;
                    break;
                }
            }
        }
        while self.callers.len() > CALLERS_MAX {
            if let Some(caller) = self.callers.pop_front() {
                self.count(caller.from, "too many others came while it said nothing");
            }
        }
    }

    fn look_at_caller(&mut self, mut caller: Caller) {
        caller.lines.push();
        let outcome = match caller.lines.look() {
            Look::Line(line) => self.examine(&caller, &line),
            Look::Nothing if Instant::now() < caller.until => Outcome::Waits,
            Look::Nothing => Outcome::Foreign(format!("it said nothing for {} s", CLAIM_TIME.as_secs())),
            Look::Gone => Outcome::Foreign("it has gone without a word".into()),
            Look::TooLong => Outcome::Foreign("it is no node of Treecast".into()),
        };
        match outcome {
            Outcome::Waits => self.callers.push_back(caller),
            Outcome::Foreign(why) => self.count(caller.from, &why),
            Outcome::TurnedAway(why) => {
                self.count(caller.from, &why);
                caller.lines.say(&Word::TurnedAway { why });
            }
            Outcome::LetIn(arrival, proof) => {
                caller.lines.say(&Word::Welcome { proof });
                self.reached_at = Some(caller.reached_at);
                self.has_news = true;
                self.guests.push(Guest { lines: caller.lines, arrival });
            }
        }
    }

    fn count(&mut self, who: impl fmt::Display, why: &str) {
        tracing::warn!(%who, why, "turned away");
        self.turned_away += 1;
        self.last_turned_away = Some(format!("{who}: {why}"));
        self.has_news = true;
    }

    fn examine(&mut self, caller: &Caller, line: &[u8]) -> Outcome {
        let claim: Claim = match serde_json::from_slice::<Version>(line) {
            Err(_) => return Outcome::Foreign("it is no node of Treecast".into()),
            Ok(Version { treecast }) if treecast != VERSION => {
                let why = format!("it gathers by version {treecast}, and the root by version {VERSION}");
                return Outcome::TurnedAway(why);
            }
            Ok(_) => match serde_json::from_slice(line) {
                Ok(claim) => claim,
                Err(_) => return Outcome::Foreign("what it said is no claim".into()),
            },
        };
        if self.key.proof_of_member(caller.challenge, &claim) != claim.proof {
            return Outcome::TurnedAway("its token is another than the root's".into());
        }
        match self.admit(caller, &claim) {
            Err(why) => Outcome::TurnedAway(why),
            Ok(arrival) => Outcome::LetIn(arrival, self.key.proof_of_root(caller.challenge, claim.challenge)),
        }
    }

    /// Whether somebody who knows the token can be a member as it wants to.
    fn admit(&mut self, caller: &Caller, claim: &Claim) -> Result<Arrival, String> {
        if self.is_complete() {
            return Err(format!("all {} members have come", self.gathering.members));
        }
        let ip = claim.ip.unwrap_or(caller.from.ip()).to_canonical();
        if claim.port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(format!("{ip}:{} is no address of a node", claim.port));
        }
        if !is_name(&claim.name) {
            return Err(wrong_name());
        }
        if let Some(why) = unreachable(ip, caller.reached_at) {
            return Err(why);
        }
        if self.node.is_ipv4() && ip.is_ipv6() {
            return Err(format!("the root's node has IPv4 alone, and does not reach {ip}"));
        }
        if let Some(before) = self.reached_at.filter(|before| *before != caller.reached_at) {
            return Err(format!(
                "it has reached the root at {}, and others at {before}: give all the same address of the root",
                caller.reached_at
            ));
        }
        let address = SocketAddr::new(ip, claim.port);
        if address == SocketAddr::new(caller.reached_at, self.node.port()) || address == self.node {
            return Err(format!("{address} is the root's own node"));
        }
        let arrival = Arrival { name: claim.name.clone(), address, member: claim.member };
        self.check_number(&arrival)?;
        // A node that has died and comes again: its old connection need not have ended.
        if let Some(place) = self.guests.iter().position(|guest| guest.arrival.address == address) {
            let mut before = self.guests.remove(place);
            before.lines.say(&Word::TurnedAway { why: format!("another node has come from {address}") });
        }
        Ok(arrival)
    }

    fn check_number(&self, arrival: &Arrival) -> Result<(), String> {
        let Some(number) = arrival.member else { return Ok(()) };
        if number >= self.gathering.members {
            let last = self.gathering.members - 1;
            return Err(format!("there is no member {number}: the group has members 0 to {last}"));
        }
        if number as usize == self.settings.root {
            return Err(format!("member {number} is the root"));
        }
        let other = |other: &&Arrival| other.member == Some(number) && other.address != arrival.address;
        match self.arrivals().find(other) {
            Some(Arrival { name, address, .. }) => {
                Err(format!("member {number} has come already: {name} at {address}"))
            }
            None => Ok(()),
        }
    }
}

impl Caller {
    fn greet(stream: TcpStream, from: SocketAddr) -> io::Result<Self> {
        let reached_at = stream.local_addr()?.ip().to_canonical();
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        let challenge = Hash::random()?;
        let mut lines = Lines::new(stream, CLAIM_BYTES_MAX)?;
        lines.say(&Greeting { treecast: VERSION, challenge });
        Ok(Self { lines, from, reached_at, challenge, until: Instant::now() + CLAIM_TIME })
    }
}

/// What is said of a name that cannot stand in messages.
pub(super) fn wrong_name() -> String {
    format!("a member's name has from 1 to {NAME_BYTES_MAX} bytes, and no control characters")
}

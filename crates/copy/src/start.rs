//! Starting the receivers of all hosts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use treecast_remote::{Killer, RemoteShell};

use crate::control::Request;
use crate::program::Program;
use crate::stopper::Stopper;
use crate::worker::{Starting, Worker};

/// Receivers that are started at a time.
const STARTS_MAX: usize = 64;

/// How often the hosts that are awaited are told.
const TELL_INTERVAL: Duration = Duration::from_millis(100);

/// How receivers are started.
#[derive(Clone)]
pub(crate) struct Starts<'a> {
    pub shell: &'a RemoteShell,
    pub program: Arc<Program>,
    pub open: Request,
    /// How long a host may do nothing before its receiver has opened its node.
    pub timeout: Duration,
}

/// A thread's report on the host that it starts, by the host's number.
enum Event {
    /// It goes on.
    Advanced(usize),
    /// It has started, or has failed.
    Ended(usize, Result<Worker, String>),
}

/// A host that is awaited.
struct Awaited {
    killer: Killer,
    until: Instant,
}

/// Starts a receiver on each host, and returns them, or why they have not started, in the order of
/// the hosts. A host that does nothing for the timeout is given up, and the others do not wait for
/// it longer than that. `tell` is called ten times a second with the numbers of the hosts that are
/// awaited, and how many have failed. When the copy is stopped, the hosts that are awaited have
/// failed.
pub(crate) fn start_all(
    hosts: &[String],
    starts: &Starts<'_>,
    stopper: &Stopper,
    tell: &mut dyn FnMut(&[usize], usize),
) -> Vec<Result<Worker, String>> {
    let (events_sender, events) = channel();
    let mut all: Vec<Option<Result<Worker, String>>> = hosts.iter().map(|_| None).collect();
    let mut queue: VecDeque<usize> = (0..hosts.len()).collect();
    let mut awaited: BTreeMap<usize, Awaited> = BTreeMap::new();
    while !(queue.is_empty() && awaited.is_empty() || stopper.is_stopped()) {
        while awaited.len() < STARTS_MAX
            && let Some(number) = queue.pop_front()
        {
            match begin(number, &hosts[number], starts, &events_sender) {
                Ok(killer) => {
                    awaited.insert(number, Awaited { killer, until: Instant::now() + starts.timeout });
                }
                Err(why) => all[number] = Some(Err(why)),
            }
        }
        take_events(&events, starts.timeout, &mut awaited, &mut all);
        let now = Instant::now();
        for (number, late) in awaited.extract_if(.., |_, host| host.until <= now) {
            late.killer.kill();
            all[number] = Some(Err(late_text(&hosts[number], starts)));
        }
        let numbers: Vec<usize> = awaited.keys().chain(&queue).copied().collect();
        tell(&numbers, all.iter().filter(|host| matches!(host, Some(Err(_)))).count());
    }
    for host in awaited.values() {
        host.killer.kill();
    }
    let stopped = || Err("the copy was stopped before it had started".into());
    all.into_iter().map(|host| host.unwrap_or_else(stopped)).collect()
}

/// Why a host was given up, and what helps.
fn late_text(host: &str, starts: &Starts<'_>) -> String {
    let (shell, seconds) = (starts.shell, starts.timeout.as_secs());
    format!(
        "it has not started within {seconds} s: it is down, or its shell hangs or asks for something; does '{shell} {host} true' work? --connect-timeout waits longer"
    )
}

/// Starts one receiver. A thread, which may outlive the copy where something keeps the pipes of a
/// shell open that was killed, waits for it.
fn begin(number: usize, host: &str, starts: &Starts<'_>, events: &Sender<Event>) -> Result<Killer, String> {
    let starting = Starting::new(host, starts.shell, &starts.program)?;
    let killer = starting.killer();
    let (program, open, events) = (Arc::clone(&starts.program), starts.open.clone(), events.clone());
    thread::spawn(move || {
        // A copy that has ended is not interested any more.
        let advance = || drop(events.send(Event::Advanced(number)));
        let ended = starting.finish(&program, &open, advance);
        let _ = events.send(Event::Ended(number, ended));
    });
    Ok(killer)
}

/// Waits a moment for the first event, and takes all that there are.
fn take_events(
    events: &Receiver<Event>,
    timeout: Duration,
    awaited: &mut BTreeMap<usize, Awaited>,
    all: &mut [Option<Result<Worker, String>>],
) {
    let mut next = events.recv_timeout(TELL_INTERVAL).ok();
    while let Some(event) = next {
        match event {
            Event::Advanced(number) => {
                if let Some(host) = awaited.get_mut(&number) {
                    host.until = Instant::now() + timeout;
                }
            }
            // One that was given up has failed already.
            Event::Ended(number, ended) => {
                if awaited.remove(&number).is_some() {
                    all[number] = Some(ended);
                }
            }
        }
        next = events.try_recv().ok();
    }
}

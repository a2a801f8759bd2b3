//! A receiver on another host, seen from the host that copies.

use std::fmt::Display;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use treecast_remote::{Killer, Process, RemoteShell, Requests, Responses, excerpt};

use crate::control::{HELLO, Request, Response};
use crate::program::Program;
use crate::sources::described;

/// How many of the last bytes that a remote shell writes to standard error are kept.
const SAID_BYTES_MAX: usize = 64 << 10;

/// The bytes of standard error that are read at a time.
const SAID_PART_BYTES: usize = 4 << 10;

/// How long the end of that is waited for, once the shell has ended.
const SAID_TIMEOUT: Duration = Duration::from_millis(500);

/// Bytes of the command that are sent at a time to a host that does not have it.
const PROGRAM_PART_BYTES: usize = 64 << 10;

/// How often a host that waits until the command is compressed says so.
const PACKING_INTERVAL: Duration = Duration::from_millis(20);

/// A remote shell that starts a receiver.
pub(crate) struct Starting {
    process: Process,
    said: Said,
    /// The shell and the host in errors.
    shell: String,
    host: String,
}

impl Starting {
    /// Starts a receiver on a host ([`Program::script`]).
    pub fn new(host: &str, shell: &RemoteShell, program: &Program) -> Result<Self, String> {
        let mut command = shell.command(host);
        command.arg(program.script()).stderr(Stdio::piped());
        let mut process = Process::start(&mut command)
            .map_err(|why| format!("{}; --shell gives another one", of_shell(shell, &why)))?;
        let said = Said::of(process.take_errors());
        Ok(Self { process, said, shell: shell.to_string(), host: host.into() })
    }

    /// Kills the shell from another thread.
    pub fn killer(&self) -> Killer {
        self.process.killer()
    }

    /// Waits until the receiver has opened its node. `advance` is called whenever the host has done
    /// something.
    pub fn finish(
        mut self,
        program: &Program,
        open: &Request,
        advance: impl FnMut(),
    ) -> Result<Worker, String> {
        match self.open(program, open, advance) {
            Ok((address, is_directory)) => {
                let mut process = self.process;
                let requests = process.take_requests().map(write_requests);
                Ok(Worker { requests, process, address, is_directory, said: self.said })
            }
            Err(OpenError::Told(why)) => Err(why),
            Err(OpenError::Broken(why)) => {
                let (shell, host) = (&self.shell, &self.host);
                let why = of_shell(shell, &self.said.explain(why));
                Err(format!("{why}; does '{shell} {host} true' work, and print nothing?"))
            }
        }
    }

    fn open(
        &mut self,
        program: &Program,
        open: &Request,
        mut advance: impl FnMut(),
    ) -> Result<(SocketAddr, Option<bool>), OpenError> {
        let process = &mut self.process;
        let mut hello = process.receive()?;
        if let Response::Missing { has_gzip } = hello {
            let _turn = program.turn(&mut advance);
            // To compress it takes a while, in which the host is not to be given up.
            let (bytes, packing) = thread::scope(|scope| {
                let packing = scope.spawn(|| program.bytes(has_gzip));
                while !packing.is_finished() {
                    advance();
                    thread::sleep(PACKING_INTERVAL);
                }
                packing.join().unwrap_or_else(|_| Err(io::Error::other("compressing it has panicked")))
            })?;
            process.send_bytes(packing.line(bytes.len()).as_bytes())?;
            for part in bytes.chunks(PROGRAM_PART_BYTES) {
                advance();
                process.send_bytes(part)?;
                program.note_sent(part.len());
            }
            hello = process.receive()?;
        }
        advance();
        match hello {
            Response::Hello(hello) if hello == HELLO => {}
            Response::Hello(hello) => {
                let hello = excerpt(hello.as_bytes(), 1);
                return Err(OpenError::Told(format!(
                    "it has another version, {hello}: install {HELLO} there"
                )));
            }
            _ => return Err(OpenError::Told("it does not say which version it is".into())),
        }
        process.send(open)?;
        match process.receive()? {
            Response::Opened { address, is_directory } => Ok((address, is_directory)),
            Response::Failed { why } => Err(OpenError::Told(why)),
            _ => Err(OpenError::Told("it answers another request".into())),
        }
    }
}

fn of_shell(shell: impl Display, why: &io::Error) -> String {
    format!("the remote shell '{shell}': {}", described(why))
}

/// Requests that wait until a receiver reads them, beside those in its pipe. One that works reads
/// digests before their messages, and the slots of the group bound how many these are.
const QUEUED_REQUESTS: usize = 256;

/// A receiver that has opened its node.
pub(crate) struct Worker {
    /// Its requests, which a thread writes, so that a receiver that does not read them delays
    /// nobody. This field stands before `process`, so that the queue is dropped first: the receiver
    /// ends at the end of its input.
    requests: Option<SyncSender<Arc<[u8]>>>,
    process: Process,
    pub address: SocketAddr,
    /// The kind of the destination there; none if it does not exist.
    pub is_directory: Option<bool>,
    said: Said,
}

impl Worker {
    /// A request as it is posted to receivers.
    pub fn line(request: &Request) -> Arc<[u8]> {
        let mut line = serde_json::to_vec(request).expect("requests have no maps, and paths are of text");
        line.push(b'\n');
        line.into()
    }

    /// Posts a line of a request.
    ///
    /// # Errors
    /// The receiver does not read its requests. One that has ended is reported by the end of its
    /// responses.
    pub fn post(&self, line: &Arc<[u8]>) -> Result<(), &'static str> {
        match self.requests.as_ref().map(|requests| requests.try_send(Arc::clone(line))) {
            Some(Err(TrySendError::Full(_))) => Err(
                "its receiver does not read its input: it is stopped, or its remote shell hangs; --retry copies to it again",
            ),
            _ => Ok(()),
        }
    }

    /// Its responses, for another thread.
    pub fn take_responses(&mut self) -> Option<Responses> {
        self.process.take_responses()
    }

    /// Closes its input, so that it ends.
    pub fn close(&mut self) {
        self.requests = None;
        self.process.close();
    }

    /// Whether its remote shell has ended.
    pub fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Kills its remote shell.
    pub fn kill(&self) {
        self.process.killer().kill();
    }

    /// An error of its pipes with what the remote shell has said last.
    pub fn explain(&self, why: io::Error) -> io::Error {
        self.said.explain(why)
    }
}

/// Writes requests in a thread, until their sender is dropped or the process has ended.
fn write_requests(mut pipe: Requests) -> SyncSender<Arc<[u8]>> {
    let (requests, queue) = sync_channel::<Arc<[u8]>>(QUEUED_REQUESTS);
    thread::spawn(move || queue.iter().try_for_each(|line| pipe.send_bytes(&line)));
    requests
}

/// The end of what a remote shell wrote to standard error.
struct Said {
    end: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Said {
    fn of(errors: Option<impl Read + Send + 'static>) -> Self {
        let end = Arc::new(Mutex::new(Vec::new()));
        let reader = errors.map(|errors| {
            let end = Arc::clone(&end);
            thread::spawn(move || keep_end(errors, &end))
        });
        Self { end, reader }
    }

    /// Waits a moment for the end of what a shell says that has ended, and adds its last line.
    fn explain(&self, why: io::Error) -> io::Error {
        let until = Instant::now() + SAID_TIMEOUT;
        while self.reader.as_ref().is_some_and(|reader| !reader.is_finished()) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let said = excerpt(&self.end.lock().unwrap_or_else(PoisonError::into_inner), 1);
        if said.is_empty() { why } else { io::Error::other(format!("{}: {said}", described(&why))) }
    }
}

enum OpenError {
    /// The receiver's message.
    Told(String),
    /// Its pipes are broken.
    Broken(io::Error),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Reads everything, because a full pipe would stop the shell.
fn keep_end(mut errors: impl Read, end: &Mutex<Vec<u8>>) {
    let mut part = [0; SAID_PART_BYTES];
    loop {
        let length = match errors.read(&mut part) {
            Ok(0) => return,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
        end.extend_from_slice(&part[..length]);
        let excess = end.len().saturating_sub(SAID_BYTES_MAX);
        end.drain(..excess);
    }
}

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long a process has to end once its standard input is closed; then it is killed when it is
/// dropped.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the status of a process is awaited whose pipes have ended.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The longest response, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A process that reads requests and writes responses, a line of JSON each. It has to end when its
/// standard input is closed: when this value is dropped, one that does not is killed.
///
/// ```
/// use std::process::Command;
/// use treecast_remote::Process;
///
/// let mut echo = Process::start(&mut Command::new("cat"))?;
/// echo.send(&[1, 2, 3])?;
/// assert_eq!(echo.receive::<Vec<u32>>()?, [1, 2, 3]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Process {
    child: Arc<Mutex<Child>>,
    /// None once it is closed, or another thread has it.
    requests: Option<Requests>,
    /// None once another thread has it.
    responses: Option<Responses>,
    closed_at: Option<Instant>,
}

/// Kills a process, also while another thread waits for its response.
#[derive(Debug, Clone)]
pub struct Killer(Weak<Mutex<Child>>);

impl Killer {
    /// Kills the process, if it runs. What it has started itself may keep its pipes open.
    pub fn kill(&self) {
        if let Some(child) = self.0.upgrade() {
            // The only error is that it has ended.
            let _ = lock(&child).kill();
        }
    }
}

/// Where requests go: the standard input of the process.
#[derive(Debug)]
pub struct Requests(ChildStdin);

/// Where responses come from: the standard output of the process.
#[derive(Debug)]
pub struct Responses(BufReader<ChildStdout>);

impl Process {
    /// Starts a command with pipes.
    ///
    /// # Errors
    /// Those of the system: there is no such program.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let requests = child.stdin.take().map(Requests);
        let responses = child.stdout.take().map(|output| Responses(BufReader::new(output)));
        Ok(Self { child: Arc::new(Mutex::new(child)), requests, responses, closed_at: None })
    }

    /// Sends a request.
    ///
    /// # Errors
    /// How the process has ended, if it has; or those of the system.
    pub fn send(&mut self, request: &impl Serialize) -> io::Result<()> {
        let sent = self
            .requests
            .as_mut()
            .map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |requests| requests.send(request));
        sent.map_err(|error| self.ending().unwrap_or(error))
    }

    /// Sends bytes that are no request.
    ///
    /// # Errors
    /// Those of [`Self::send`].
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = self
            .requests
            .as_mut()
            .map_or_else(|| Err(io::ErrorKind::BrokenPipe.into()), |requests| requests.send_bytes(bytes));
        sent.map_err(|error| self.ending().unwrap_or(error))
    }

    /// Waits for a response.
    ///
    /// # Errors
    /// How the process has ended, if it has; or that the line is no such response.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let received = match &mut self.responses {
            Some(responses) => responses.receive(),
            None => return Err(io::Error::other("another thread receives its responses")),
        };
        match received {
            Ok(Some(response)) => Ok(response),
            Ok(None) => Err(self.ending().unwrap_or_else(|| io::Error::other("it has closed its output"))),
            Err(error) => Err(self.ending().unwrap_or(error)),
        }
    }

    /// Where requests go, for another thread. The process ends once that drops it.
    pub fn take_requests(&mut self) -> Option<Requests> {
        self.requests.take()
    }

    /// The responses, for another thread.
    pub fn take_responses(&mut self) -> Option<Responses> {
        self.responses.take()
    }

    /// Closes its standard input, so that it ends. Of several processes all are closed first, and
    /// then have the same two seconds.
    pub fn close(&mut self) {
        self.requests = None;
        self.closed_at.get_or_insert_with(Instant::now);
    }

    /// What kills it from another thread.
    pub fn killer(&self) -> Killer {
        Killer(Arc::downgrade(&self.child))
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        !matches!(lock(&self.child).try_wait(), Ok(None))
    }

    /// How it has ended, if it has: its pipes close a moment before.
    pub fn ending(&mut self) -> Option<io::Error> {
        let status = wait_for(&self.child, Instant::now() + STATUS_TIMEOUT)?;
        Some(io::Error::other(match status.code() {
            Some(code) => format!("it has ended with exit status {code}"),
            None => format!("it has ended: {status}"),
        }))
    }

    /// Its standard error, if the command has a pipe for it.
    pub fn take_errors(&mut self) -> Option<impl Read + Send + use<>> {
        lock(&self.child).stderr.take()
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait_for(child: &Mutex<Child>, until: Instant) -> Option<ExitStatus> {
    loop {
        // The lock is not held while this thread sleeps.
        let status = lock(child).try_wait();
        match status {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(CHECK_INTERVAL),
            Ok(None) | Err(_) => return None,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.close();
        let until = self.closed_at.unwrap_or_else(Instant::now) + END_TIMEOUT;
        if wait_for(&self.child, until).is_none() {
            let mut child = lock(&self.child);
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Requests {
    fn send(&mut self, request: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.send_bytes(&line)
    }

    /// Sends bytes: lines of requests, or what is no request.
    ///
    /// # Errors
    /// Those of the system: the process has ended.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }
}

impl Responses {
    /// Waits for the next response; none at the end.
    ///
    /// # Errors
    /// The line is no such response, or longer than 64 MiB; or those of the system.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        (&mut self.0).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&line).map(Some).map_err(|error| {
            let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
            io::Error::other(format!("'{}' is no response: {error}", line.trim_end()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_says_how() {
        let mut process = Process::start(Command::new("sh").args(["-c", "exit 7"])).unwrap();
        let error = process.receive::<u32>().unwrap_err();
        assert_eq!(error.to_string(), "it has ended with exit status 7");
    }

    #[test]
    fn a_process_is_killed_while_its_response_is_awaited() {
        let mut process = Process::start(Command::new("sleep").arg("60")).unwrap();
        let killer = process.killer();
        let waiting = thread::spawn(move || process.receive::<u32>().unwrap_err().to_string());
        killer.kill();
        assert!(waiting.join().unwrap().contains("SIGKILL"));
        killer.kill();
    }

    #[test]
    fn a_line_that_is_no_response_is_in_the_error() {
        let mut process = Process::start(Command::new("sh").args(["-c", "echo Welcome; cat"])).unwrap();
        let error = process.receive::<u32>().unwrap_err();
        assert!(error.to_string().starts_with("'Welcome' is no response: "), "{error}");
    }
}

//! A connection that is read and written by lines, and keeps nobody waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

/// A connection, and what has come and is to go of lines in part.
#[derive(Debug)]
pub(super) struct Lines {
    stream: TcpStream,
    line_bytes_max: usize,
    come: Vec<u8>,
    to_go: Vec<u8>,
}

/// What a look at a connection gives.
#[derive(Debug)]
pub(super) enum Look {
    /// A line, without its end.
    Line(Vec<u8>),
    /// Nothing that is whole.
    Nothing,
    /// The other side has closed it, or it is broken.
    Gone,
    /// More bytes without the end of a line than may be.
    TooLong,
}

impl Lines {
    pub fn new(stream: TcpStream, line_bytes_max: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, line_bytes_max, come: Vec::new(), to_go: Vec::new() })
    }

    /// The next line, if it is there.
    pub fn look(&mut self) -> Look {
        let mut bytes = [0; 4_096];
        loop {
            if let Some(end) = self.come.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.come.drain(..=end).collect();
                line.pop();
                return Look::Line(line);
            }
            if self.come.len() > self.line_bytes_max {
                return Look::TooLong;
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Look::Gone,
                Ok(length) => self.come.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Look::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Look::Gone,
            }
        }
    }

    /// What has come of a line that is not whole.
    pub fn part(&self) -> &[u8] {
        &self.come
    }

    /// Says a line; what does not go at once goes with [`Lines::push`].
    pub fn say(&mut self, word: &impl Serialize) {
        // Values of ours can be written; a line that could not is no line.
        if let Ok(line) = serde_json::to_vec(word) {
            self.to_go.extend_from_slice(&line);
            self.to_go.push(b'\n');
            self.push();
        }
    }

    /// Sends what has not gone yet, as much as goes now.
    pub fn push(&mut self) {
        while !self.to_go.is_empty() {
            match self.stream.write(&self.to_go) {
                Ok(length) => drop(self.to_go.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // That it is broken is seen when it is read.
                Err(_) => self.to_go.clear(),
            }
        }
    }

    /// Whether all that was said has gone.
    pub fn has_gone(&self) -> bool {
        self.to_go.is_empty()
    }

    /// What to wait for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let out = if self.to_go.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN | out)
    }
}

impl AsFd for Lines {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

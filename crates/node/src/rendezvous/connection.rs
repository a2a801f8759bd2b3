//! A non-blocking connection that carries one JSON message per line.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

/// A connection with its receive and send buffers.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    line_bytes_max: usize,
    receive_buffer: Vec<u8>,
    send_buffer: Vec<u8>,
}

/// The result of reading a line without blocking.
#[derive(Debug)]
pub(super) enum ReadLine {
    /// A line, without its newline.
    Line(Vec<u8>),
    /// No complete line yet.
    Pending,
    /// The peer has closed the connection, or the connection is broken.
    Closed,
    /// The line exceeds the maximum length.
    TooLong,
}

impl Connection {
    pub fn new(stream: TcpStream, line_bytes_max: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, line_bytes_max, receive_buffer: Vec::new(), send_buffer: Vec::new() })
    }

    /// Reads the next line, if it has arrived.
    pub fn read_line(&mut self) -> ReadLine {
        let mut bytes = [0; 4_096];
        loop {
            if let Some(end) = self.receive_buffer.iter().position(|&byte| byte == b'\n') {
                let mut line: Vec<u8> = self.receive_buffer.drain(..=end).collect();
                line.pop();
                return ReadLine::Line(line);
            }
            if self.receive_buffer.len() > self.line_bytes_max {
                return ReadLine::TooLong;
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return ReadLine::Closed,
                Ok(length) => self.receive_buffer.extend_from_slice(&bytes[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return ReadLine::Pending,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return ReadLine::Closed,
            }
        }
    }

    /// The received bytes of an incomplete line.
    pub fn partial_line(&self) -> &[u8] {
        &self.receive_buffer
    }

    /// Sends a message. [`Connection::flush`] sends the rest of what does not fit the socket's
    /// buffer.
    pub fn send(&mut self, message: &impl Serialize) {
        // Serializing our own messages does not fail; a message that did would not be sent.
        if let Ok(line) = serde_json::to_vec(message) {
            self.send_buffer.extend_from_slice(&line);
            self.send_buffer.push(b'\n');
            self.flush();
        }
    }

    /// Sends as much of the send buffer as the socket takes without blocking.
    pub fn flush(&mut self) {
        while !self.send_buffer.is_empty() {
            match self.stream.write(&self.send_buffer) {
                Ok(length) => drop(self.send_buffer.drain(..length)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The next read reports that the connection is broken.
                Err(_) => self.send_buffer.clear(),
            }
        }
    }

    /// Whether the send buffer is empty.
    pub fn is_flushed(&self) -> bool {
        self.send_buffer.is_empty()
    }

    /// The events to poll for.
    pub fn poll_fd(&self) -> PollFd<'_> {
        let out = if self.is_flushed() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN | out)
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

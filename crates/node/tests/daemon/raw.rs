//! A client that sends any bytes.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketType,
};
use treecast_node::Daemon;

/// The first message of a client.
pub fn hello() -> String {
    format!(r#"{{"hello":{{"version":{}}}}}"#, Daemon::PROTOCOL_VERSION)
}

pub fn raw(path: &Path) -> OwnedFd {
    let socket = net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

pub fn say(socket: &OwnedFd, bytes: &[u8]) {
    let _ = net::send(socket, bytes, SendFlags::NOSIGNAL);
}

/// The next message; empty at the end.
pub fn hear(socket: &OwnedFd) -> String {
    hear_all(socket).0
}

/// The next message, with its descriptors.
pub fn hear_all(socket: &OwnedFd) -> (String, Vec<OwnedFd>) {
    let mut bytes = vec![0; 1 << 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        match net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::empty()) {
            Ok(received) => break received.bytes,
            // Reported once for a connection that was closed with unread data; earlier messages can
            // still be read.
            Err(rustix::io::Errno::CONNRESET) => {}
            Err(error) => panic!("{error}"),
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    (String::from_utf8(bytes[..length].to_vec()).unwrap(), descriptors)
}

pub fn ask(socket: &OwnedFd, ask: &str) -> (String, Vec<OwnedFd>) {
    say(socket, ask.as_bytes());
    hear_all(socket)
}

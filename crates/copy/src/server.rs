//! A host that has everything from an earlier attempt, and serves it to hosts that lack it.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, channel};
use std::thread;

use treecast_node::{Group, GroupSettings, Keyed, Node};

use crate::compression::Compressor;
use crate::control::{Request, Response, request};
use crate::sources::described;
use crate::stopper::Stopper;
use crate::stream::Hash;
use crate::writer::StoredFiles;

/// The longest outline: that of an entry with all its extended attributes.
const OUTLINE_BYTES_MAX: usize = 64 << 20;

/// The group of a host that serves, of which it is the root.
pub(crate) struct Service {
    pub members: Vec<SocketAddr>,
    /// The group's settings as text.
    pub settings: String,
    pub destination: PathBuf,
    pub into: bool,
    /// The level at which messages are compressed, if they are.
    pub compression: Option<i32>,
}

/// A request to a host that serves.
enum Order {
    /// Build this message from its outline, and send it.
    Send {
        digest: Hash,
        outline: Vec<u8>,
    },
    Close,
}

impl Service {
    /// Serves messages until the host that copies has closed the group.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn run(
        self,
        node: &Node,
        input: impl BufRead + Send + 'static,
        respond: &impl Fn(&Response) -> io::Result<()>,
        stopper: &Stopper,
    ) -> Result<Response, String> {
        let mut settings = GroupSettings::new(self.members);
        settings.set_all(&self.settings).map_err(text)?;
        let mut compressor = self.compression.map(Compressor::new).transpose().map_err(text)?;
        let mut stored = StoredFiles::new(self.destination, self.into).map_err(|why| described(&why))?;
        let group = Arc::new(node.group(&settings).map_err(text)?);
        stopper.watch(&group);
        for order in read_orders(input, Arc::clone(&group)) {
            let Order::Send { digest, outline } = order else {
                group.close(None).map_err(text)?;
                return Ok(Response::Closed);
            };
            let built = build(&mut stored, compressor.as_mut(), &outline, &digest);
            if let Ok(message) = &built {
                group.send(message).map_err(text)?;
            }
            let refusal = built.err();
            respond(&Response::Served { refusal }).map_err(|why| described(&why))?;
        }
        Err("the host that copies is gone".into())
    }
}

/// Builds the message with a hash.
///
/// # Errors
/// The files here differ from those that were sent, or cannot be read.
fn build(
    stored: &mut StoredFiles,
    compressor: Option<&mut Compressor>,
    outline: &[u8],
    digest: &Hash,
) -> Result<Vec<u8>, String> {
    let mut message = stored.fill(outline)?;
    if let Some(compressor) = compressor {
        compressor.compress(&mut message);
    }
    if blake3::hash(&message) == *digest {
        return Ok(message);
    }
    Err(stored.difference())
}

/// Reads requests in a thread. Ends the group when the host that copies is gone.
fn read_orders(mut input: impl BufRead + Send + 'static, group: Arc<Group>) -> mpsc::Receiver<Order> {
    // The host that copies has few messages without an answer.
    let (orders, queue) = channel();
    thread::spawn(move || {
        loop {
            let order = match request(&mut input) {
                Ok(Request::Outline { digest, bytes }) if bytes <= OUTLINE_BYTES_MAX => {
                    let mut outline = vec![0; bytes];
                    if input.read_exact(&mut outline).is_err() {
                        break;
                    }
                    Order::Send { digest, outline }
                }
                Ok(Request::Evict(member)) => {
                    // The only error is that of a member that there is not.
                    let _ = group.evict(member);
                    continue;
                }
                Ok(Request::Close) => Order::Close,
                _ => break,
            };
            // The thread that sends may have failed; the input has to be read to its end.
            let _ = orders.send(order);
        }
        group.abort();
    });
    queue
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

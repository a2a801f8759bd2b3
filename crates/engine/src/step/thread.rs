//! A node's own thread, and what answers about the node while it runs.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use treecast_shm::sync::lock;

use super::EngineHandle;
use super::backend::Backend;
use super::status_server::StatusServer;
use crate::settings::error::NodeError;
use crate::settings::{EngineChoice, NodeSettings};
use crate::wait::slice::request_short_slice;

/// The thread of a node, which ends when this is dropped.
#[derive(Debug)]
pub struct NodeThread {
    backend: Arc<dyn Backend>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected when the thread has ended.
    is_running: Mutex<Receiver<Infallible>>,
    /// Answers `treecast status`.
    _status: Option<StatusServer>,
}

impl NodeThread {
    /// Opens a node whose engine is in this process, with this number of lanes for its users, and
    /// returns the engine too.
    ///
    /// # Errors
    /// Those of `EngineHandle::open`; [`NodeError::System`].
    pub fn open(settings: &NodeSettings, lanes: usize) -> Result<(Self, Arc<EngineHandle>), NodeError> {
        let handle = open_here(settings, lanes)?;
        Ok((Self::start(Arc::clone(&handle) as Arc<dyn Backend>, settings.status, lanes)?, handle))
    }

    /// Starts it. `lanes`: those of the engine's socket; several if it serves several users.
    ///
    /// # Errors
    /// [`NodeError::System`].
    pub fn start(backend: Arc<dyn Backend>, has_status: bool, lanes: usize) -> Result<Self, NodeError> {
        let serves_users = lanes > 1;
        let status = Arc::clone(&backend).engine_here().filter(|_| has_status).and_then(|engine| {
            let opened = StatusServer::open(engine, serves_users);
            opened.inspect_err(|error| tracing::debug!(%error, "treecast status does not find the node")).ok()
        });
        let engine = Arc::clone(&backend);
        let (runs, is_running): (Sender<Infallible>, _) = channel();
        let run = move || {
            // The node works without it, with a higher latency.
            // The engine's thread of a daemon preempts the threads of its users.
            if serves_users && let Err(error) = request_short_slice() {
                tracing::debug!(%error, "the node's thread has the usual time slice");
            }
            engine.run();
            drop(runs);
        };
        let thread = std::thread::Builder::new()
            .name("treecast".into())
            .spawn(run)
            .map_err(|source| NodeError::System { what: "cannot start a thread", source })?;
        Ok(Self {
            backend,
            thread: Mutex::new(Some(thread)),
            is_running: Mutex::new(is_running),
            _status: status,
        })
    }

    /// Where the node listens.
    pub fn address(&self) -> SocketAddr {
        self.backend.address()
    }

    /// Ends all groups, and then the thread.
    ///
    /// # Errors
    /// [`NodeError::TimedOut`]; it goes on to end.
    pub fn close(&self, timeout: Option<Duration>) -> Result<(), NodeError> {
        self.backend.stop();
        let is_running = lock(&self.is_running);
        let still_runs = match timeout {
            Some(timeout) => is_running.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout),
            // No message is ever sent: this returns when the thread has ended.
            None => is_running.recv().is_ok(),
        };
        if still_runs {
            return Err(NodeError::TimedOut);
        }
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
        Ok(())
    }
}

impl Drop for NodeThread {
    fn drop(&mut self) {
        let _ = self.close(None);
    }
}

/// Opens an engine of this process: the kernel's packet path for `auto`, if it is usable, and else
/// a thread.
fn open_here(settings: &NodeSettings, lanes: usize) -> Result<Arc<EngineHandle>, NodeError> {
    match settings.engine {
        EngineChoice::Auto => open_with(settings, EngineChoice::Ebpf, lanes).or_else(|error| {
            tracing::info!(reason = %error, "the engine is user");
            open_with(settings, EngineChoice::User, lanes)
        }),
        engine => open_with(settings, engine, lanes),
    }
}

/// Opens this engine in this process.
///
/// # Errors
/// Those of binding the sockets, and of loading the kernel's packet path.
pub fn open_with(
    settings: &NodeSettings,
    engine: EngineChoice,
    lanes: usize,
) -> Result<Arc<EngineHandle>, NodeError> {
    Ok(Arc::new(EngineHandle::open(&NodeSettings { engine, ..settings.clone() }, lanes)?))
}

//! Answers about the node of this process.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown, sockopt::socket_peercred};
use rustix::process::geteuid;

use super::EngineHandle;
use super::backend::Backend as _;
use crate::random;
use crate::status::document::named;
use crate::status::{FORMAT, NodeDocument, PREFIX};

/// How long an answer may take to be read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two answers: readers may not keep the engine from its work.
const PAUSE: Duration = Duration::from_millis(20);

/// A thread that answers questions about an engine, until it is dropped.
#[derive(Debug)]
pub(crate) struct StatusServer {
    listener: Arc<UnixListener>,
    /// None once it has ended.
    thread: Option<JoinHandle<()>>,
}

impl StatusServer {
    /// Starts it. `serves_users`: whether groups may belong to other users, as at a daemon.
    ///
    /// # Errors
    /// Those of the system.
    pub fn open(engine: Arc<EngineHandle>, serves_users: bool) -> io::Result<Self> {
        let name = format!("{PREFIX}{}.{:016x}", geteuid().as_raw(), random::word()?);
        let listener = Arc::new(UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?);
        let opened = Instant::now();
        let accepting = Arc::clone(&listener);
        let serve = move || {
            while let Ok((stream, _)) = accepting.accept() {
                let reader = socket_peercred(&stream).map(|reader| reader.uid);
                let Ok(reader) = reader else { continue };
                let sees_all = reader.is_root() || reader == geteuid();
                if sees_all || serves_users {
                    // An error means that the reader has gone.
                    let _ = answer(&stream, &engine, (!sees_all).then_some(reader.as_raw()), opened);
                    std::thread::sleep(PAUSE);
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("treecast-status".into()).stack_size(256 << 10).spawn(serve)?;
        Ok(Self { listener, thread: Some(thread) })
    }
}

impl Drop for StatusServer {
    fn drop(&mut self) {
        // `accept` fails then.
        if shutdown(&self.listener, Shutdown::Both).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

/// Answers, with everything or with the groups of one user.
fn answer(
    mut stream: &UnixStream,
    engine: &EngineHandle,
    only_of: Option<u32>,
    opened: Instant,
) -> io::Result<()> {
    let (groups, strays) = engine.with(|engine| (engine.status(only_of), engine.strays()));
    if only_of.is_some() && groups.is_empty() {
        return Ok(());
    }
    let strays = if only_of.is_none() { named(strays.values()) } else { BTreeMap::new() };
    let document = NodeDocument {
        format: FORMAT.into(),
        process: std::process::id(),
        program: program(),
        user: geteuid().as_raw(),
        address: engine.address(),
        engine: engine.engine().kind().to_string(),
        seconds: opened.elapsed().as_secs_f64(),
        groups,
        strays,
    };
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.write_all(&serde_json::to_vec(&document)?)
}

/// The name of this process's program.
fn program() -> String {
    let path = std::env::current_exe().ok();
    path.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())).unwrap_or_default()
}

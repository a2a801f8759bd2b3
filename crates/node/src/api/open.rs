//! Chooses the engine of a node: in this process, the daemon's, or that of another process of the
//! same user.

use std::sync::Arc;

use treecast_daemon::{SharedNode, find_daemon, find_unused_daemon, open_shared};
use treecast_engine::backend::Backend;
use treecast_engine::settings::error::NodeError;
use treecast_engine::settings::{EngineChoice, NodeSettings};
use treecast_engine::thread::open_with;

/// Opens the engine that the settings ask for; where other processes share it, with what serves
/// them, if that is in this process.
pub(super) fn open(settings: &NodeSettings) -> Result<(Arc<dyn Backend>, Option<SharedNode>), NodeError> {
    let (backend, shared): (Arc<dyn Backend>, _) = match &settings.share {
        Some(share) => open_to_share(settings, share)?,
        None => (open_alone(settings)?, None),
    };
    tracing::info!(address = %backend.address(), engine = %backend.engine(), "a node listens");
    Ok((backend, shared))
}

/// The daemon's engine, which all processes of the host share, or one that processes of this user
/// share.
fn open_to_share(
    settings: &NodeSettings,
    share: &str,
) -> Result<(Arc<dyn Backend>, Option<SharedNode>), NodeError> {
    if settings.engine == EngineChoice::Auto {
        match find_daemon(settings) {
            Ok(client) => return Ok((client, None)),
            Err(reason) => tracing::debug!(%reason, "no daemon is used"),
        }
    }
    let (client, shared) = open_shared(settings, share)?;
    Ok((client, shared))
}

fn open_alone(settings: &NodeSettings) -> Result<Arc<dyn Backend>, NodeError> {
    let backend: Arc<dyn Backend> = match settings.engine {
        EngineChoice::User => open_with(settings, EngineChoice::User, 1)?,
        EngineChoice::Auto => match find_unused_daemon(settings) {
            Ok(client) => client,
            Err(reason) => {
                tracing::debug!(%reason, "no daemon is used");
                open_with(settings, EngineChoice::User, 1)?
            }
        },
        EngineChoice::Ebpf => match open_with(settings, EngineChoice::Ebpf, 1) {
            Ok(handle) => handle,
            Err(NodeError::Kernel(error)) if error.is_permission_denied() => match find_daemon(settings) {
                Ok(client) if client.has_kernel() => client,
                Ok(client) => {
                    tracing::info!("the daemon at {} has another engine", client.name());
                    return Err(error.into());
                }
                Err(reason) => {
                    tracing::info!(%reason, "no daemon is used");
                    return Err(error.into());
                }
            },
            Err(error) => return Err(error),
        },
    };
    Ok(backend)
}

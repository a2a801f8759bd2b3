//! Files with fabrics, plans and networks.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, Mutex};

use treecast_fabric::read::Read;
use treecast_fabric::{Fabric, FabricError, FabricSpec, RoutingPolicy, read};
use treecast_model::{Network, NetworkError};
use treecast_plan::Plan;
use treecast_plan::render::PlanDocument;
use treecast_shm::sync::lock;

use super::GroupSettings;
use super::error::NodeError;

/// The extensions of files that describe a fabric.
const FABRIC_EXTENSIONS: [&str; 9] =
    ["toml", "graphml", "xml", "topo", "txt", "ibnetdiscover", "conf", "inventory", "csv"];

/// The fabric that a text names: a line such as `star:16`, or a file in one of the formats of
/// [`treecast_fabric::read::read`]. A text with a slash or the extension of such a format is a
/// file, and so is the name of a file that exists. The notes are a reader's.
///
/// # Errors
/// [`NodeError::File`], [`NodeError::Plan`].
///
/// ```
/// let (fabric, notes) = treecast_node::read_fabric("star:16", Default::default())?;
/// assert_eq!((fabric.topology().host_count(), notes.len()), (16, 0));
/// # Ok::<(), treecast_node::NodeError>(())
/// ```
pub fn read_fabric(text: &str, routing: RoutingPolicy) -> Result<(Fabric, Vec<String>), NodeError> {
    let fabric = |error: FabricError| NodeError::Plan(error.into());
    let Read { topology, notes } = if is_file(text) {
        read::read(text, &read_text(Path::new(text))?).map_err(fabric)?
    } else {
        // A directory may have the name of a fabric: runs of the study icpp98 are in one.
        let invalid = |error| match Path::new(text) {
            path if path.is_dir() => NodeError::in_file(path, &"could not be read: it is a directory"),
            _ => fabric(error),
        };
        let spec: FabricSpec = text.parse().map_err(FabricError::from).map_err(invalid)?;
        Read { topology: spec.topology().map_err(fabric)?, notes: Vec::new() }
    };
    Ok((Fabric::new(topology, routing).map_err(fabric)?, notes))
}

fn is_file(text: &str) -> bool {
    let path = Path::new(text);
    let is_known = |extension: &std::ffi::OsStr| {
        FABRIC_EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
    };
    text.contains('/') || path.is_file() || path.extension().is_some_and(is_known)
}

/// The plan in a JSON file, as `treecast plan --format json` writes it, on the fabric that the file
/// names.
///
/// # Errors
/// [`NodeError::File`], with the reason: it cannot be read, is not a plan, or names a fabric that
/// does not exist or that the plan does not fit.
pub fn read_plan(path: &Path) -> Result<Plan, NodeError> {
    let text = read_text(path)?;
    let in_file = |reason: &dyn std::fmt::Display| NodeError::in_file(path, reason);
    let document = PlanDocument::parse(&text).map_err(|error| in_file(&error))?;
    let routing = document.routing.parse().map_err(|error| in_file(&error))?;
    let (fabric, _) = read_fabric(&document.fabric, routing).map_err(|error| in_file(&error))?;
    document.plan(&fabric).map_err(|error| in_file(&error))
}

/// The measured costs of a network, in a file that `treecast tune` has written.
///
/// # Errors
/// [`NodeError::File`], with the reason.
pub fn read_network(path: &Path) -> Result<Network, NodeError> {
    let text = read_text(path)?;
    Network::parse(&path.display().to_string(), &text).map_err(|NetworkError { line, reason, .. }| {
        NodeError::in_file(path, &format!("line {line}: {reason}"))
    })
}

/// The variable that names the file of the network, for groups whose settings have none.
pub const NETWORK_VARIABLE: &str = "TREECAST_NETWORK";

/// The network of [`NETWORK_VARIABLE`], which is read once; none if it is not set.
///
/// # Errors
/// [`NodeError::Setting`].
pub fn network_of_environment() -> Result<Option<Arc<Network>>, NodeError> {
    static NETWORK: Mutex<Option<Arc<Network>>> = Mutex::new(None);
    let Some(path) = std::env::var_os(NETWORK_VARIABLE).filter(|path| !path.is_empty()) else {
        return Ok(None);
    };
    let mut network = lock(&NETWORK);
    if network.is_none() {
        let read = read_network(Path::new(&path)).map_err(|error| error.of_setting(NETWORK_VARIABLE))?;
        *network = Some(Arc::new(read));
    }
    Ok(network.clone())
}

fn read_text(path: &Path) -> Result<String, NodeError> {
    read_file(path, FILE_BYTES_MAX)
        .map_err(|error| NodeError::in_file(path, &format!("could not be read: {error}")))
}

/// The most bytes of a file with a fabric or a plan.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// The text of a file of at most this many bytes.
///
/// # Errors
/// Those of the system, and an error for a longer file, and for one that is not valid UTF-8.
pub fn read_file(path: &Path, bytes_max: u64) -> io::Result<String> {
    let too_long = || io::Error::other(format!("it has more than {bytes_max} bytes"));
    let file = File::open(path)?;
    // A long file is refused before it is read. A device has no length.
    if file.metadata()?.len() > bytes_max {
        return Err(too_long());
    }
    let mut text = String::new();
    let length = file.take(bytes_max + 1).read_to_string(&mut text)? as u64;
    if length > bytes_max { Err(too_long()) } else { Ok(text) }
}

impl NodeError {
    fn in_file(path: &Path, reason: &dyn std::fmt::Display) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.to_string() }
    }

    fn of_setting(self, key: &'static str) -> Self {
        Self::Setting { key, error: Box::new(self) }
    }
}

impl GroupSettings {
    /// Sets one of the keys whose values are files, for callers with settings as text: `plan`, as
    /// [`read_plan`] reads it, `fabric`, as [`read_fabric`] does, or `network`, as
    /// [`read_network`] does. Returns false for any other key, which
    /// [`set_key`](treecast_terms::Keyed::set_key) sets.
    ///
    /// # Errors
    /// [`NodeError::Setting`], with the key and the error of the reader.
    ///
    /// ```
    /// use treecast_node::GroupSettings;
    ///
    /// let mut settings = GroupSettings::new(Vec::new());
    /// assert!(settings.set_file("fabric", "star:16")?);
    /// assert!(!settings.set_file("slots", "64")?);
    /// let error = settings.set_file("fabric", "tours").unwrap_err().to_string();
    /// assert_eq!(error, "fabric: unknown fabric 'tours': did you mean torus?");
    /// # Ok::<(), treecast_node::NodeError>(())
    /// ```
    pub fn set_file(&mut self, key: &str, file: &str) -> Result<bool, NodeError> {
        let path = Path::new(file);
        match key {
            "plan" => {
                let plan = read_plan(path).map_err(|error| error.of_setting("plan"))?;
                *self = self.clone().with_plan(plan);
            }
            "fabric" => {
                let read = read_fabric(file, RoutingPolicy::Auto);
                let (fabric, _) = read.map_err(|error| error.of_setting("fabric"))?;
                self.fabric = Some(fabric.into());
            }
            "network" => {
                let network = read_network(path).map_err(|error| error.of_setting("network"))?;
                self.network = Some(network.into());
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The same settings with a plan to carry out, whose root becomes that of the group.
    ///
    /// ```
    /// use treecast_node::{GroupSettings, read_fabric};
    /// use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan};
    ///
    /// let (fabric, _) = read_fabric("star:3", Default::default())?;
    /// let group = Group::new(Placement::one_per_host(3), MemberId(1), vec![MemberId(0), MemberId(2)])?;
    /// let made = plan(&fabric, &group, &"serial".parse()?, &PlanOptions::default())?;
    /// let members = ["192.0.2.1:7700", "192.0.2.2:7700", "192.0.2.3:7700"].map(|member| member.parse().unwrap());
    /// assert_eq!(GroupSettings::new(members.to_vec()).with_plan(made).root, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_plan(self, plan: Plan) -> Self {
        Self { root: plan.root().index(), plan: Some(plan.into()), ..self }
    }

    /// The same settings with the measured costs of the network, by which the scheme is chosen.
    ///
    /// ```
    /// use treecast_node::{GroupSettings, read_network};
    ///
    /// # let directory = tempfile::tempdir()?;
    /// # let path = directory.path().join("network.toml");
    /// # std::fs::write(&path, "format = 'treecast-network-1'\n[[way]]\nengine = 'user'\noffload = 'nic'\ntransport = 'stream'\n")?;
    /// let network = read_network(&path)?;
    /// let members = ["192.0.2.1:7700", "192.0.2.2:7700"].map(|member| member.parse().unwrap());
    /// let settings = GroupSettings::new(members.to_vec()).with_network(network);
    /// assert!(settings.scheme.is_none() && settings.network.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_network(self, network: Network) -> Self {
        Self { network: Some(network.into()), ..self }
    }

    /// The same settings with the fabric that joins the members, on which the root makes the plan.
    ///
    /// Members are matched to the hosts of the fabric by name
    /// ([`HostNames`](treecast_fabric::HostNames)): the name in a list of members, or that which a
    /// member has when it joins. Several members may be on one host. Without a scheme the tree is
    /// `hierarchical` where that pays: see docs/library.md.
    ///
    /// ```
    /// use treecast_fabric::{Fabric, read};
    /// use treecast_node::{GroupSettings, parse_members};
    ///
    /// let topology = read::inventory("lab.inventory", "127.0.0.[1-2] rack1\n127.0.0.[3-4] rack2")?.topology;
    /// let fabric = Fabric::new(topology, Default::default())?;
    /// let members = parse_members("127.0.0.[1-4]:7700", "members")?;
    /// let settings = GroupSettings::of(members).with_fabric(fabric);
    /// assert_eq!(settings.hosts, ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_fabric(self, fabric: impl Into<Arc<Fabric>>) -> Self {
        Self { fabric: Some(fabric.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan.json");
        File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        let error = |path: &Path| read_text(path).unwrap_err().to_string();
        assert_eq!(
            error(&path),
            format!("{}: could not be read: it has more than 1073741824 bytes", path.display())
        );
        // A device has no length.
        let of_device = read_file(Path::new("/dev/zero"), 1_000).unwrap_err();
        assert_eq!(of_device.to_string(), "it has more than 1000 bytes");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), "12345");
        assert!(read_file(&path, 4).is_err());
    }
}

//! The shims of MPI programs, and the MPIs of this machine.

use crate::doctor::machine::{output, tool};
use crate::doctor::report::Area::Mpi;
use crate::doctor::report::Finding;
use crate::mpi::{Interface, directories, find_shim};

pub fn examine() -> Vec<Finding> {
    vec![shims(), launcher()]
}

fn shims() -> Finding {
    let directories = directories();
    let found: Vec<String> = Interface::NAMES
        .into_iter()
        .filter_map(|(name, interface)| Some((name, find_shim(interface, &directories)?)))
        .map(|(name, path)| format!("{name} ({})", path.display()))
        .collect();
    if found.is_empty() {
        return Finding::missing(Mpi, "shims", "there are none", "treecast mpi does not work")
            .with_fix("make mpi, where the compilers of the MPIs are, and make install");
    }
    Finding::ok(Mpi, "shims", found.join(", "))
}

/// The MPI whose launcher is found first. Programs may use another one: `treecast mpi --show` tells
/// for a command.
fn launcher() -> Finding {
    const NAME: &str = "launcher";
    const EFFECT: &str = "treecast mpi works only with a launcher that is named with its path, or with srun";
    let Some(path) = tool("mpirun").or_else(|| tool("mpiexec")) else {
        return Finding::limited(Mpi, NAME, "no mpirun is found", EFFECT);
    };
    let interface = output(&path, &["--version"]).and_then(|text| Interface::of_version(&text));
    let Some(interface) = interface else {
        let found = format!("{} is that of no known MPI", path.display());
        return Finding::limited(Mpi, NAME, found, "treecast mpi may need --mpi");
    };
    let found = format!("{} is that of {interface}", path.display());
    if find_shim(interface, &directories()).is_none() {
        return Finding::missing(
            Mpi,
            NAME,
            found,
            format!("there is no {} for its programs", interface.shim()),
        )
        .with_fix("make mpi, where the compiler of this MPI is, and make install");
    }
    Finding::ok(Mpi, NAME, found)
}

//! The locations of the shims.

use std::path::{Path, PathBuf};

use super::Interface;

/// The directories in which shims are looked for: where this command is, as in a build, and the
/// library directories beside it.
pub fn directories() -> Vec<PathBuf> {
    let command = std::env::current_exe().unwrap_or_default();
    let here = command.parent().unwrap_or(Path::new("."));
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let mut found = vec![here.to_path_buf()];
    for prefix in here.parent().into_iter().chain([Path::new("/usr/local"), Path::new("/usr")]) {
        let library = prefix.join("lib");
        found.extend([library.join(&machine), library, prefix.join("lib64")]);
    }
    let mut known = Vec::new();
    found.retain(|directory| {
        let is_new = !known.contains(directory);
        known.push(directory.clone());
        is_new
    });
    found
}

/// The shim of an interface, in the first of these directories that has it.
pub fn find_shim(interface: Interface, directories: &[PathBuf]) -> Option<PathBuf> {
    directories.iter().map(|directory| directory.join(interface.shim())).find(|path| path.is_file())
}

//! `treecast manual`: writes the manual pages, one for each command.

use std::path::PathBuf;

use anyhow::Context;

use crate::output::NotWritten;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The existing directory for treecast.1, treecast-plan.1 and so on.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub fn run(arguments: &Arguments, command: clap::Command) -> anyhow::Result<u8> {
    clap_mangen::generate_to(command, &arguments.directory)
        .with_context(|| NotWritten(arguments.directory.clone()))?;
    Ok(0)
}

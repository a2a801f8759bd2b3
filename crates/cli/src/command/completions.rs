//! `treecast completions`: completions for shells.

use clap_complete::Shell;

use crate::output::emit;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  source <(treecast completions bash)
  treecast completions zsh > ~/.zfunc/_treecast
  treecast completions fish > ~/.config/fish/completions/treecast.fish

The packages install them for all users.")]
pub struct Arguments {
    /// The shell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(arguments: &Arguments, mut command: clap::Command) -> anyhow::Result<u8> {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "treecast", &mut text);
    emit(None, &String::from_utf8_lossy(&text))?;
    Ok(0)
}

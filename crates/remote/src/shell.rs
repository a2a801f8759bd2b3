use std::process::Command;

/// A remote shell and its options, such as `ssh -o BatchMode=yes`: a program that takes the name of
/// a host and a command.
///
/// ```
/// use treecast_remote::RemoteShell;
///
/// let shell = RemoteShell::new("ssh -o BatchMode=yes");
/// let command = shell.command("node01");
/// assert_eq!(command.get_program(), "ssh");
/// assert!(command.get_args().eq(["-o", "BatchMode=yes", "node01"]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteShell {
    words: Vec<String>,
}

impl RemoteShell {
    /// The program and its options, separated by blanks; a text without words is `ssh`.
    pub fn new(text: &str) -> Self {
        Self { words: text.split_whitespace().map(Into::into).collect() }
    }

    /// The command that runs another one on a host: the words of that one are to be appended.
    /// Shells such as ssh join them by blanks and leave them to the user's shell on the host, so
    /// that words with special characters have to be quoted for it.
    pub fn command(&self, host: &str) -> Command {
        let (program, options) =
            self.words.split_first().map_or(("ssh", &[][..]), |(program, options)| (program, options));
        let mut command = Command::new(program);
        command.args(options).arg(host);
        command
    }
}

impl std::fmt::Display for RemoteShell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(if self.words.is_empty() { "ssh" } else { "" })?;
        formatter.write_str(&self.words.join(" "))
    }
}

use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::unistd::User;

use crate::CopyError;

/// Where files go: the hosts, as a text that their owner expands, and the path on each of them.
///
/// ```
/// use treecast_copy::Destination;
///
/// let to: Destination = "node[01-16]:/scratch/".parse()?;
/// assert_eq!((to.hosts.as_str(), to.is_directory), ("node[01-16]", true));
/// assert_eq!(to.path.to_str(), Some("/scratch/"));
/// # Ok::<(), treecast_copy::CopyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Such as `node[01-16]` or `admin@n1,n2`; empty if they are given in another way.
    pub hosts: String,
    /// Relative to the directory in which the remote shell starts, the home directory with ssh.
    /// Empty: that directory. A leading `~` or `~user` is a home directory on the host.
    pub path: PathBuf,
    /// Whether the text says that the path is a directory, by a slash at its end or by being empty.
    pub is_directory: bool,
}

/// `HOSTS:PATH`; brackets may have colons, as in `[fd00::1]:/scratch`.
impl FromStr for Destination {
    type Err = CopyError;

    fn from_str(text: &str) -> Result<Self, CopyError> {
        let mut depth = 0_u32;
        let colon = text.bytes().position(|byte| {
            match byte {
                b'[' => depth += 1,
                b']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            byte == b':' && depth == 0
        });
        let colon = colon.ok_or_else(|| CopyError::NoDestination(text.into()))?;
        let path = &text[colon + 1..];
        let is_home = path.starts_with('~') && !path.contains('/');
        let is_directory =
            path.is_empty() || path.ends_with('/') || path == "." || path.ends_with("/.") || is_home;
        Ok(Self { hosts: text[..colon].into(), path: path.into(), is_directory })
    }
}

/// Returns a destination's path on this host: a leading `~` or `~user` is replaced by the home
/// directory, and an empty path by `.`.
///
/// # Errors
/// The user is unknown on this host, or the home directory of `~` is.
pub(crate) fn path_here(path: &Path) -> Result<PathBuf, String> {
    let mut components = path.components();
    let first = components.next().map(|first| first.as_os_str().to_string_lossy());
    let home = match first.as_deref() {
        None => return Ok(".".into()),
        Some("~") => std::env::home_dir().ok_or("~: the home directory is unknown here")?,
        Some(first) => match first.strip_prefix('~') {
            None => return Ok(path.into()),
            Some(name) => {
                let user = User::from_name(name).map_err(|error| format!("~{name}: {error}"))?;
                let user = user.ok_or_else(|| format!("~{name}: unknown user {name}"))?;
                user.dir
            }
        },
    };
    Ok(home.join(components.as_path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String, bool) {
        let Destination { hosts, path, is_directory } = text.parse().unwrap();
        (hosts, path.to_str().unwrap().into(), is_directory)
    }

    #[test]
    fn the_first_colon_outside_brackets_separates_hosts_and_path() {
        assert_eq!(parsed("n[1-3]:a:b"), ("n[1-3]".into(), "a:b".into(), false));
        assert_eq!(parsed("[fd00::1]:/x/"), ("[fd00::1]".into(), "/x/".into(), true));
        assert_eq!(parsed(":"), (String::new(), String::new(), true));
        assert_eq!(parsed("n1:dir/."), ("n1".into(), "dir/.".into(), true));
        assert_eq!(parsed("n1:~"), ("n1".into(), "~".into(), true));
        assert_eq!(parsed("n1:~/new"), ("n1".into(), "~/new".into(), false));
        assert!(matches!("file".parse::<Destination>(), Err(CopyError::NoDestination(_))));
        assert!("[a:b".parse::<Destination>().is_err());
    }

    #[test]
    fn a_tilde_is_a_home_directory_on_the_host() {
        let here = |path: &str| path_here(Path::new(path));
        let home = std::env::home_dir().unwrap();
        assert_eq!(here(""), Ok(".".into()));
        assert_eq!(here("~/a/b"), Ok(home.join("a/b")));
        assert_eq!(here("~"), Ok(home));
        assert_eq!(here("~root/x"), Ok("/root/x".into()));
        assert_eq!(here("a/~"), Ok("a/~".into()));
        assert_eq!(here("./~"), Ok("./~".into()));
        assert_eq!(here("~nobody-has-this/x"), Err("~nobody-has-this: unknown user nobody-has-this".into()));
    }
}

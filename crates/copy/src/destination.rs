use std::path::PathBuf;
use std::str::FromStr;

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
    /// Relative to the directory in which the remote shell starts, the home directory with ssh. Empty: that directory.
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
        let is_directory = path.is_empty() || path.ends_with('/') || path == "." || path.ends_with("/.");
        Ok(Self { hosts: text[..colon].into(), path: path.into(), is_directory })
    }
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
        assert!(matches!("file".parse::<Destination>(), Err(CopyError::NoDestination(_))));
        assert!("[a:b".parse::<Destination>().is_err());
    }
}

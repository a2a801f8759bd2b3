//! What can be wrong with a lab.

use std::io;
use std::path::Path;

/// Why there is no lab, or no command on a host of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A setting outside its bounds.
    #[error("invalid value {given} for {key}: expected {expected}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What was given.
        given: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A tool that is not on this machine.
    #[error("a lab needs the tool '{tool}', which is not here: install {package}")]
    ToolMissing {
        /// The tool.
        tool: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The machine does not allow namespaces.
    #[error("this machine does not allow a lab: {0}")]
    NotAllowed(String),
    /// The kernel lacks what a setting takes.
    #[error("this machine does not allow such a lab: {0}")]
    KernelLacks(String),
    /// A tool failed.
    #[error("the lab could not be made: {0}")]
    NotMade(String),
    /// A host that the lab does not have.
    #[error("there is no host {host}: the lab has hosts 0 to {last}")]
    NoSuchHost {
        /// The host asked for.
        host: u32,
        /// The last host that there is.
        last: u32,
    },
    /// The operating system refused something else.
    #[error("the lab could not be reached")]
    System(#[from] io::Error),
}

impl LabError {
    /// Whether no lab can run on this machine as it is, whatever the settings.
    pub fn is_about_the_machine(&self) -> bool {
        matches!(self, Self::ToolMissing { .. } | Self::NotAllowed(_) | Self::KernelLacks(_))
    }

    /// What is behind the complaints of the tools that make a lab.
    pub(crate) fn from_complaints(said: &str, as_root: bool) -> Self {
        // As switch.sh says it.
        if let Some(lacks) = said.lines().find_map(|line| line.strip_prefix("lacks: ")) {
            return Self::KernelLacks(lacks.to_owned());
        }
        let refused =
            ["not permitted", "ermission denied", "No space left"].iter().any(|text| said.contains(text));
        let said = said.trim().lines().next().unwrap_or("the tools that make it were ended").to_owned();
        match (refused, as_root) {
            (false, _) => Self::NotMade(said),
            (true, true) => Self::NotAllowed(format!(
                "{said}; in a container, let it be privileged (root lacks CAP_SYS_ADMIN)"
            )),
            (true, false) => Self::NotAllowed(user_namespaces_refused(&said, |path| {
                std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()
            })),
        }
    }
}

/// Which switch of the kernel keeps users from making namespaces.
fn user_namespaces_refused(said: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let switches = [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    let closed =
        switches.iter().find(|(path, value, _)| read(path).is_some_and(|text| text.trim() == *value));
    match closed {
        Some((_, _, open)) => {
            format!("user namespaces are switched off: as root, sysctl {open}; or run as root")
        }
        None => format!("{said}; run as root, or in a container let it be privileged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_told_apart_from_what_is_forbidden() {
        let said = "lacks: packets are overtaken by the kernel's TAP devices (/dev/net/tun): open: Permission denied\n";
        let error = LabError::from_complaints(said, false);
        assert!(error.is_about_the_machine());
        assert_eq!(
            error.to_string(),
            "this machine does not allow such a lab: packets are overtaken by the kernel's TAP devices \
             (/dev/net/tun): open: Permission denied"
        );
    }

    #[test]
    fn the_switch_that_is_off_is_named() {
        let set = |name: &'static str, value: &'static str| {
            user_namespaces_refused("unshare: no", move |path| (path == name).then(|| format!("{value}\n")))
        };
        assert_eq!(
            set("kernel/unprivileged_userns_clone", "0"),
            "user namespaces are switched off: as root, sysctl kernel.unprivileged_userns_clone=1; or run as root"
        );
        assert!(set("kernel/apparmor_restrict_unprivileged_userns", "1").contains("userns=0"));
        assert!(set("user/max_user_namespaces", "0").contains("sysctl user.max_user_namespaces=10000"));
        assert!(set("user/max_user_namespaces", "65000").starts_with("unshare: no; run as root"));
    }
}

//! Errors of labs.

use std::io;
use std::path::Path;

/// Why a lab, or a command on a host, could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A setting outside its bounds.
    #[error("invalid value {given} for {key}: expected {expected}")]
    Setting {
        /// The setting.
        key: &'static str,
        /// The invalid value.
        given: String,
        /// The valid values.
        expected: &'static str,
    },
    /// A missing tool.
    #[error("a lab needs the tool '{tool}', which is not installed: install {package}")]
    ToolMissing {
        /// The tool.
        tool: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The machine does not allow namespaces.
    #[error("this machine does not allow a lab: {0}")]
    NotAllowed(String),
    /// The kernel lacks a feature that a setting needs.
    #[error("this machine does not allow such a lab: {0}")]
    KernelLacks(String),
    /// A tool failed.
    #[error("the lab could not be created: {0}")]
    NotCreated(String),
    /// A host that the lab does not have.
    #[error("there is no host {host}: the lab has hosts 0 to {last}")]
    NoSuchHost {
        /// The requested host.
        host: u32,
        /// The last host.
        last: u32,
    },
    /// A process that the hosts do not have.
    #[error("there is no process {process}: each host has processes 0 to {last}")]
    NoSuchProcess {
        /// The requested process.
        process: u32,
        /// The last process.
        last: u32,
    },
    /// Another system call failed.
    #[error("the lab could not be reached")]
    System(#[from] io::Error),
}

impl LabError {
    /// A setting outside its bounds.
    pub(crate) fn setting(key: &'static str, given: &impl ToString, expected: &'static str) -> Self {
        Self::Setting { key, given: given.to_string(), expected }
    }

    /// Whether this machine does not support the lab: a tool, a right or a kernel feature is
    /// missing.
    pub fn is_about_the_machine(&self) -> bool {
        matches!(self, Self::ToolMissing { .. } | Self::NotAllowed(_) | Self::KernelLacks(_))
    }

    /// Interprets the error messages of the tools that create a lab.
    pub(crate) fn from_messages(messages: &str, as_root: bool) -> Self {
        // switch.sh prints this prefix.
        if let Some(lacks) = messages.lines().find_map(|line| line.strip_prefix("lacks: ")) {
            return Self::KernelLacks(lacks.to_owned());
        }
        let refused =
            ["not permitted", "ermission denied", "No space left"].iter().any(|text| messages.contains(text));
        let first =
            messages.trim().lines().next().unwrap_or("the tools that create it were killed").to_owned();
        match (refused, as_root) {
            (false, _) => Self::NotCreated(first),
            (true, true) => Self::NotAllowed(format!(
                "{first}; in a container, make it privileged (root lacks CAP_SYS_ADMIN)"
            )),
            (true, false) => Self::NotAllowed(user_namespaces_refused(&first, |path| {
                std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()
            })),
        }
    }
}

/// The kernel setting that keeps users from creating namespaces.
fn user_namespaces_refused(message: &str, read: impl Fn(&str) -> Option<String>) -> String {
    let settings = [
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ];
    let closed =
        settings.iter().find(|(path, value, _)| read(path).is_some_and(|text| text.trim() == *value));
    match closed {
        Some((_, _, open)) => {
            format!("user namespaces are switched off: as root, sysctl {open}; or run as root")
        }
        None => format!("{message}; run as root; in a container, make it privileged"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_kernel_features_and_missing_rights_differ() {
        let message = "lacks: delays and reordering need the kernel's TAP devices (/dev/net/tun): open: Permission denied\n";
        let error = LabError::from_messages(message, false);
        assert!(error.is_about_the_machine());
        assert_eq!(
            error.to_string(),
            "this machine does not allow such a lab: delays and reordering need the kernel's TAP devices \
             (/dev/net/tun): open: Permission denied"
        );
    }

    #[test]
    fn the_kernel_setting_is_named() {
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

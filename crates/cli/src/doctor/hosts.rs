//! Whether this machine can run labs.

use std::process::Stdio;

use treecast_lab::{Lab, LabError, LabSettings};

use crate::doctor::machine::{is_root, tool};
use crate::doctor::report::Area::Lab as OfLab;
use crate::doctor::report::Finding;

/// Whether the kernel supports clsact, which is tried on a host of a lab; `None` without a lab.
pub type Classifier = Option<bool>;

pub fn examine() -> (Vec<Finding>, Classifier) {
    let how = if is_root() { "as root" } else { "without rights, in a user namespace" };
    match Lab::start(&LabSettings::new(1)) {
        Ok(lab) => {
            let found = format!("a host was created {how}, and removed");
            (vec![tools(None), Finding::ok(OfLab, "namespaces", found)], can_classify(&lab))
        }
        Err(LabError::ToolMissing { tool: name, package }) => (vec![tools(Some((name, package)))], None),
        Err(error) => {
            let (text, fix) = split(&error.to_string());
            let mut finding = Finding::missing(OfLab, "namespaces", text, "treecast lab does not work here");
            finding.fix = fix;
            (vec![tools(None), finding], None)
        }
    }
}

fn tools(missing: Option<(&str, &str)>) -> Finding {
    match missing {
        None => Finding::ok(OfLab, "tools", "ip, tc, unshare and all others are installed"),
        Some((tool, package)) => Finding::missing(
            OfLab,
            "tools",
            format!("'{tool}' is not installed"),
            "treecast lab does not work without it",
        )
        .with_fix(format!("install {package}")),
    }
}

/// The finding and the fix in an error message of the lab.
fn split(message: &str) -> (String, Option<String>) {
    match message.split_once(": as root, ") {
        Some((found, fix)) => (found.into(), Some(format!("as root: {fix}"))),
        None => (message.into(), None),
    }
}

fn can_classify(lab: &Lab) -> Classifier {
    let mut command = lab.command(0, tool("tc")?).ok()?;
    command.args(["qdisc", "add", "dev", "lo", "clsact"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Some(command.status().ok()?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fix_is_taken_from_the_error_message() {
        let (found, fix) =
            split("no lab: user namespaces are switched off: as root, sysctl x=1; or run as root");
        assert_eq!(found, "no lab: user namespaces are switched off");
        assert_eq!(fix.unwrap(), "as root: sysctl x=1; or run as root");
        assert_eq!(split("no lab"), ("no lab".into(), None));
    }
}

//! Whether labs can be made here.

use std::process::Stdio;

use treecast_lab::{Lab, LabError, LabSettings};

use crate::doctor::report::Area::Lab as OfLab;
use crate::doctor::report::Finding;
use crate::doctor::machine::{is_root, tool};

/// Whether the kernel lets programs classify packets (clsact), which is tried on a host of a lab; none: there was no lab.
pub type Classifier = Option<bool>;

pub fn examine() -> (Vec<Finding>, Classifier) {
    let way = if is_root() { "as root" } else { "without rights, by a user namespace" };
    match Lab::start(&LabSettings::new(1)) {
        Ok(lab) => {
            let found = format!("a host was made {way}, and is gone again");
            (vec![tools(None), Finding::ok(OfLab, "namespaces", found)], can_classify(&lab))
        }
        Err(LabError::ToolMissing { tool: name, package }) => (vec![tools(Some((name, package)))], None),
        Err(error) => {
            let (text, remedy) = split(&error.to_string());
            let mut finding = Finding::missing(OfLab, "namespaces", text, "treecast lab does not work here");
            finding.remedy = remedy;
            (vec![tools(None), finding], None)
        }
    }
}

fn tools(missing: Option<(&str, &str)>) -> Finding {
    match missing {
        None => Finding::ok(OfLab, "tools", "ip, tc, unshare and all others are here"),
        Some((tool, package)) => Finding::missing(
            OfLab,
            "tools",
            format!("'{tool}' is not here"),
            "treecast lab does not work without it",
        )
        .with_remedy(format!("install {package}")),
    }
}

/// What a lab's complaint finds, and what it says to do.
fn split(complaint: &str) -> (String, Option<String>) {
    match complaint.split_once(": as root, ") {
        Some((found, remedy)) => (found.into(), Some(format!("as root: {remedy}"))),
        None => (complaint.into(), None),
    }
}

/// Nothing, if it cannot be tried.
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
    fn what_to_do_is_taken_from_the_complaint() {
        let (found, remedy) =
            split("no lab: user namespaces are switched off: as root, sysctl x=1; or run as root");
        assert_eq!(found, "no lab: user namespaces are switched off");
        assert_eq!(remedy.unwrap(), "as root: sysctl x=1; or run as root");
        assert_eq!(split("no lab"), ("no lab".into(), None));
    }
}

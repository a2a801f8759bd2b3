//! What a machine can do for Treecast, and what is missing.
//!
//! Everything is tried rather than looked up, where trying changes nothing: nodes on loopback, a lab of one host, a BPF
//! program that nothing is attached to. Nobody needs rights for it; without them less is found to work.

mod engine;
mod groups;
mod hosts;
mod machine;
mod report;

pub use report::{Area, Finding, Report, State};

use report::FORMAT;

/// Looks at this machine. It takes about a second.
pub fn examine() -> Report {
    let mut findings = groups::examine();
    let (lab, classifier) = hosts::examine();
    findings.extend(lab);
    findings.extend(engine::examine(classifier));
    let mut of_engine = findings.iter().filter(|finding| finding.area == Area::KernelEngine);
    let kernel_engine = of_engine.all(|finding| finding.state != State::Missing);
    Report { format: FORMAT, findings, kernel_engine }
}

//! The features of Treecast that a machine supports, and what is missing.
//!
//! Features are tried, not looked up, wherever trying has no side effects: nodes on loopback, a lab
//! of one host, a BPF program that is loaded but not attached. This needs no rights; with fewer
//! rights, fewer features work.

mod engine;
mod groups;
mod hosts;
pub mod machine;
mod mpi;
mod report;

pub use report::{Area, Finding, Report, State};

use report::FORMAT;

/// Examines this machine. It takes about a second.
pub fn examine() -> Report {
    let mut findings = groups::examine();
    let (lab, classifier) = hosts::examine();
    findings.extend(lab);
    findings.extend(engine::examine(classifier));
    findings.extend(mpi::examine());
    let mut of_engine = findings.iter().filter(|finding| finding.area == Area::KernelEngine);
    let kernel_engine = of_engine.all(|finding| finding.state != State::Missing);
    Report { format: FORMAT, findings, kernel_engine }
}

//! `treecast doctor`: checks what Treecast can do on this machine.

use crate::doctor::{Area, Finding, Report, State, examine};
use clap::{Args, ValueEnum};

use crate::output::{OutArguments, emit};

#[derive(Debug, Args)]
#[command(
    after_help = "Each line is ok, limited (works with limits) or missing. No check needs rights, and none
changes the machine: a node sends another a message, a lab of one host is created and
removed, and a BPF program is loaded but not attached. As root more may work.

docs/node.md says more."
)]
pub struct Arguments {
    /// The output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Text for people
    Text,
    /// JSON for programs
    Json,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let report = examine();
    let text = match arguments.format {
        Format::Text => text(&report),
        Format::Json => serde_json::to_string_pretty(&report)? + "\n",
    };
    emit(arguments.out.file(), &text)?;
    Ok(0)
}

fn text(report: &Report) -> String {
    let headings = [
        (Area::Groups, "Groups of processes on any hosts: treecast node, the library"),
        (Area::Lab, "Hosts on this machine: treecast lab, treecast bench --lab"),
        (Area::KernelEngine, "The kernel engine: engine=ebpf, treecast node --engine ebpf"),
        (Area::Mpi, "MPI programs: treecast mpi"),
    ];
    let mut text = String::new();
    for (area, heading) in headings {
        text += &format!("{heading}\n");
        for finding in report.findings.iter().filter(|finding| finding.area == area) {
            add(&mut text, finding);
        }
        text.push('\n');
    }
    let missing: Vec<&str> = report.missing_for_kernel_engine().map(|finding| finding.name).collect();
    text += &if report.kernel_engine {
        "The kernel engine runs on this machine.\n".to_owned()
    } else {
        format!("The kernel engine does not run on this machine; see: {}.\n", missing.join(", "))
    };
    text
}

fn add(text: &mut String, finding: &Finding) {
    let state = match finding.state {
        State::Ok => "ok",
        State::Limited => "limited",
        State::Missing => "missing",
    };
    *text += &format!("  {state:<8} {:<15} {}\n", finding.name, finding.found);
    for (label, line) in [("effect", &finding.effect), ("fix", &finding.fix)] {
        if let Some(line) = line {
            *text += &format!("{:27}{label}: {line}\n", "");
        }
    }
}

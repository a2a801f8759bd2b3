//! `treecast report`: runs as a page for the browser.

use std::path::PathBuf;

use clap::Args;
use treecast_report::Report;
use treecast_sim::{Offload, Operation, Run};

use crate::arguments::{FabricArguments, PlanArguments, RunArguments, command_line};
use crate::interrupt::clean_up_on_signals;
use crate::output::{print_note, write_file};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast report --fabric SPEC --scheme NAME[:key=value,...] [OPTIONS] FILE
       treecast report --plan FILE [OPTIONS] FILE",
    after_help = "Examples:
  treecast report --fabric icpp98 --scheme binomial --offload host,nic page.html
  treecast report --fabric torus:k=8,n=2,uni --scheme u-torus --message 1024 page.html
  treecast report --fabric fat-tree:k=16 --scheme k-binomial --offload nic page.html

The page plays one multicast on the fabric: who has the message, which links are busy,
where packets wait; several offloads side by side. It is one file that fetches nothing,
and works in any browser. 'treecast sim --help' lists the keys of --set, docs/report.md
describes the page.
Exit status: that of the worst run: 0 complete, 4 deadlocked, 5 incomplete."
)]
pub struct Arguments {
    /// The page
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    /// What forwards at an intermediate host: host, assisted or nic; several, separated by commas,
    /// are shown side by side
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "host")]
    offload: Vec<Offload>,

    #[command(flatten)]
    run: RunArguments,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    clean_up_on_signals()?;
    let parameters = arguments.run.parameters()?;
    let packets = arguments.run.packets(&parameters)?;
    let planned = arguments.plan.planned(&arguments.fabric, packets)?;
    let command = command_line();
    let mut report = Report::new(&planned.fabric, &planned.fabric_text, parameters.cycle, &command);
    let mut status = 0;
    for &offload in &arguments.offload {
        let run = Run {
            fabric: &planned.fabric,
            plan: &planned.plan,
            operation: Operation::Broadcast,
            offload,
            message: arguments.run.message(&planned, &parameters),
            parameters: &parameters,
            seed: arguments.plan.seed,
            simulator: arguments.run.simulator(&parameters),
        };
        status = status.max(report.add(&run)?.status.exit_status());
    }
    write_file(&arguments.file, report.html().as_bytes())?;
    print_note(&format!("{} is written: open it in a browser", arguments.file.display()));
    Ok(status)
}

//! `treecast plan`: makes a plan and shows it.

use anyhow::bail;
use clap::{Args, ValueEnum};
use treecast_plan::PACKETS_MAX;
use treecast_plan::render::{self, PlanDocument, ReductionDocument, WORMS_SHOWN};
use treecast_report::plan_page;
use treecast_terms::Operation;

use crate::arguments::{FabricArguments, OperationArgument, PlanArguments, command_line, whole_number};
use crate::output::{OutArguments, emit};

#[derive(Debug, Args)]
#[command(
    override_usage = "treecast plan --fabric SPEC --scheme NAME[:key=value,...] [OPTIONS]
       treecast plan --plan FILE [OPTIONS]",
    after_help = "Examples:
  treecast plan --fabric star:16 --scheme binomial
  treecast plan --fabric icpp98 --scheme path:policy=mdp-lg --dests random:15 --format table
  treecast plan --fabric torus:k=4,n=2,uni --scheme u-torus --dests 3,5,9 --format json
  treecast plan --fabric icpp98 --scheme k-binomial --packets 8 --format svg --out plan.svg
  treecast plan --fabric icpp98 --scheme k-binomial --format html --out plan.html
  treecast plan --fabric star:4 --processes 4 --scheme leader:over=binomial
  treecast plan --fabric star:16 --scheme binomial --operation barrier
  treecast plan --fabric /etc/slurm/topology.conf --scheme hierarchical --root login --dests 'n[1-16]'

docs/plans.md describes all schemes, orders and figures of the analysis.
docs/schema/plan.schema.json is the schema of the JSON."
)]
pub struct Arguments {
    #[command(flatten)]
    fabric: FabricArguments,

    #[command(flatten)]
    plan: PlanArguments,

    #[command(flatten)]
    operation: OperationArgument,

    /// Packets per message, which the number of steps and k-binomial trees depend on [default: 1,
    /// or the number in the plan file]
    #[arg(long, value_name = "M", value_parser = whole_number::<u32>(1, PACKETS_MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    packets: Option<u32>,

    /// The output format
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Format::Tree)]
    format: Format,

    /// The maximum number of worms in a tree or table [default: 200]
    #[arg(long, value_name = "N", value_parser = whole_number::<usize>(0, u32::MAX.into()))]
    #[arg(allow_negative_numbers = true)]
    limit: Option<usize>,

    #[command(flatten)]
    out: OutArguments,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A tree for the terminal, with the figures of the analysis
    Tree,
    /// One line per worm
    Table,
    /// JSON, as docs/schema/plan.schema.json describes it
    Json,
    /// Graphviz
    Dot,
    /// A picture
    Svg,
    /// A page for the browser that plays the steps, as docs/report.md describes it
    Html,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let takes_limit = matches!(arguments.format, Format::Tree | Format::Table);
    if arguments.limit.is_some() && !takes_limit {
        bail!("--limit is for --format tree and table: the other formats write every worm");
    }
    let limit = arguments.limit.unwrap_or(WORMS_SHOWN);
    let planned = arguments.plan.planned(&arguments.fabric, arguments.packets)?;
    let plan = &planned.plan;
    let fabric = &planned.fabric;
    let analysis = || plan.analyse(fabric, planned.packets);
    let operation = arguments.operation.operation;
    if operation != Operation::Broadcast && planned.packets > 1 {
        bail!(
            "operation {operation} sends one packet to each member, and not {}: give --packets 1",
            planned.packets
        );
    }
    let reduction = match operation {
        Operation::Broadcast => None,
        Operation::AllReduce | Operation::Barrier => Some(plan.reduction(fabric)?),
    };
    let text = match arguments.format {
        Format::Tree | Format::Table => {
            let analysis = analysis()?;
            let is_tree = arguments.format == Format::Tree;
            let render = if is_tree { render::tree } else { render::table };
            let down = render(plan, fabric, limit)?;
            let down = format!("{down}\n{}", render::figures(&analysis));
            match &reduction {
                None => down,
                Some(reduction) => {
                    let render = if is_tree { render::reduction_tree } else { render::reduction_table };
                    let up = render(plan, reduction, fabric, limit);
                    let figures = render::reduction_figures(reduction, &analysis);
                    format!("{operation}, the way up:\n{up}\n{figures}\nthe way down:\n{down}")
                }
            }
        }
        Format::Json => {
            let reduction = reduction.map(|reduction| ReductionDocument::new(operation, &reduction, fabric));
            let document = PlanDocument::new(plan, fabric, &planned.context())?;
            PlanDocument { reduction, ..document }.to_json()
        }
        Format::Dot => render::dot(plan, fabric, reduction.as_ref())?,
        Format::Svg if reduction.is_some() => {
            bail!("a picture shows only the way down: use --format dot, or leave out --operation")
        }
        Format::Html if reduction.is_some() => {
            bail!("a page shows only the way down: use --format dot, or leave out --operation")
        }
        Format::Html => plan_page(plan, fabric, &planned.context(), &command_line())?,
        Format::Svg => render::svg(plan, fabric, &analysis()?)?,
    };
    emit(arguments.out.file(), &text)?;
    Ok(0)
}

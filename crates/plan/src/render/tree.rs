//! A plan as a tree for a terminal.

use treecast_fabric::Fabric;

use super::{counted, cut_note, member_name, short_list};
use crate::error::PlanError;
use crate::plan::{Plan, WormKind};
use treecast_terms::MemberId;

/// Levels of guide lines; deeper branches begin with their depth.
const GUIDES_MAX: usize = 16;
/// Receivers named on a worm's line.
const RECEIVERS_SHOWN: usize = 12;

/// A plan as a tree: one branch per worm, with its step, its kind unless it is unicast, and its
/// receivers; beneath it the worms of its receivers. A worm with several receivers names them on
/// its line, and those that send again beneath it.
///
/// At most `worms_max` worms are shown, and the last line gives the number of others. Branches
/// deeper than 16 levels are not indented further: they begin with their depth.
///
/// ```
/// # use treecast_fabric::{Fabric, FabricSpec};
/// # use treecast_plan::{Group, MemberId, Placement, PlanOptions, plan, render};
/// let fabric = Fabric::from_spec(&"star:4".parse::<FabricSpec>()?)?;
/// let group = Group::new(Placement::one_per_host(4), MemberId(0), (1..4).map(MemberId).collect())?;
/// let plan = plan(&fabric, &group, &"binomial".parse()?, &PlanOptions::default())?;
/// assert_eq!(render::tree(&plan, &fabric, render::WORMS_SHOWN)?, "\
/// binomial (published): h0 to 3 destinations, 3 worms
/// h0
/// ├─ step 1: h2
/// │  └─ step 2: h3
/// └─ step 2: h1
/// ");
/// # Ok::<(), treecast_plan::PlanError>(())
/// ```
///
/// # Errors
/// [`PlanError::PlacementMismatch`] if the plan belongs to another fabric.
pub fn tree(plan: &Plan, fabric: &Fabric, worms_max: usize) -> Result<String, PlanError> {
    plan.placement().check_fabric(fabric)?;
    let name = |member| member_name(plan, fabric, member);
    let (sends, steps) = (plan.sends(), plan.steps());
    let mut lines = vec![
        format!(
            "{} ({}): {} to {}, {}",
            plan.scheme(),
            plan.label(),
            name(plan.root()),
            counted(plan.destination_count(), "destination"),
            counted(plan.worms().len(), "worm"),
        ),
        name(plan.root()),
    ];
    let mut shown = 0;
    // For each level above the current branch, whether it was the last of its level.
    let mut ended: Vec<bool> = Vec::new();
    let mut open: Vec<Branch<Entry>> = Vec::new();
    push(&mut open, 0, sends.of(plan.root()).iter().map(|&position| Entry::Worm(position)));
    while let Some(Branch { depth, last, entry }) = open.pop() {
        ended.truncate(depth);
        match entry {
            Entry::Worm(_) if shown == worms_max => break,
            Entry::Worm(position) => {
                shown += 1;
                let worm = &plan.worms()[position as usize];
                let kind = if worm.kind == WormKind::Unicast {
                    String::new()
                } else {
                    format!(", {}", worm.kind.name())
                };
                let receivers = short_list(worm.to.iter().map(|&to| name(to)), RECEIVERS_SHOWN);
                let step = steps[position as usize];
                lines.push(format!("{}step {step}{kind}: {receivers}", indent(&ended, last)));
                if let [only] = worm.to[..] {
                    push(&mut open, depth + 1, sends.of(only).iter().map(|&position| Entry::Worm(position)));
                } else {
                    let senders = worm.to.iter().filter(|&&to| !sends.of(to).is_empty());
                    push(&mut open, depth + 1, senders.map(|&to| Entry::Sender(to)));
                }
            }
            Entry::Sender(member) => {
                lines.push(indent(&ended, last) + &name(member));
                push(&mut open, depth + 1, sends.of(member).iter().map(|&position| Entry::Worm(position)));
            }
        }
        ended.push(last);
    }
    if shown < plan.worms().len() {
        lines.push(cut_note(plan.worms().len() - shown, "worm"));
    }
    Ok(lines.join("\n") + "\n")
}

/// A line that is still to be written, with its indentation.
pub(super) struct Branch<Entry> {
    pub depth: usize,
    pub last: bool,
    pub entry: Entry,
}

#[derive(Clone, Copy)]
enum Entry {
    /// The worm at this position.
    Worm(u32),
    /// One of several receivers of a worm, which sends itself.
    Sender(MemberId),
}

/// Pushes branches so that the first is popped first.
pub(super) fn push<Entry>(
    open: &mut Vec<Branch<Entry>>,
    depth: usize,
    branches: impl Iterator<Item = Entry>,
) {
    let first = open.len();
    open.extend(branches.map(|entry| Branch { depth, last: false, entry }));
    if let Some(last) = open[first..].last_mut() {
        last.last = true;
    }
    open[first..].reverse();
}

/// The guide lines before a branch; `ended` tells for each level above whether its last branch was
/// printed.
pub(super) fn indent(ended: &[bool], last: bool) -> String {
    let guides = ended.iter().take(GUIDES_MAX).map(|&ended| if ended { "   " } else { "│  " });
    let text: String = guides.chain([if last { "└─ " } else { "├─ " }]).collect();
    if ended.len() > GUIDES_MAX {
        let depth = ended.len() + 1;
        return format!("{text}[depth {depth}] ");
    }
    text
}

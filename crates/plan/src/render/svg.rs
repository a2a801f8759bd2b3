//! A plan as a picture.
//!
//! Time runs downwards, one row per step. Each member has a column: its box is in the step in which
//! it receives, and the line below the box ends when it begins its last worm. An arrow spans the
//! one step in which a worm travels. A member is to the right of its sender, and members that are
//! reached later are nearer to it: so arrows cross neither boxes nor lines.

use std::collections::BTreeSet;
use std::fmt::Write;

use treecast_fabric::Fabric;

use super::counted;
use crate::analysis::Analysis;
use crate::error::PlanError;
use crate::plan::{Plan, Worm, WormKind};
use treecast_terms::MemberId;

/// The maximum number of members in a picture, the root included.
pub const MEMBERS_DRAWN_MAX: usize = 2000;

const KINDS: [WormKind; 4] = [WormKind::Unicast, WormKind::Path, WormKind::Tree, WormKind::Local];
const MARGIN: u32 = 16;
/// The width of the column with the names of the steps.
const AXIS_WIDTH: u32 = 64;
/// The height of title, metrics and legend.
const HEAD_HEIGHT: u32 = 124;
/// The least width, so that title and metrics fit.
const WIDTH_MIN: u32 = 720;
const ROW_HEIGHT: u32 = 56;
const GLYPH_WIDTH: u32 = 8;
const NAME_GLYPHS_MAX: usize = 14;

/// The colours are distinguishable for colour-blind readers (Okabe and Ito; Tol for local), on
/// light and dark backgrounds.
const STYLE: &str = "
  text { font: 12px system-ui, sans-serif; fill: #1a1a1a }
  .title { font-size: 17px; font-weight: 600 }
  .small { font-size: 10px }
  .quiet { fill: #595959 }
  .step { font-size: 10px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px }
  .ground { fill: #ffffff }
  .row { stroke: #e4e4e4 }
  .holds { stroke: #9a9a9a; stroke-width: 2 }
  .box { fill: #f4f4f4; stroke: #595959 }
  .root { stroke-width: 2.5 }
  .worm { fill: none; stroke-width: 1.6 }
  .unicast { stroke: #0072b2 } .unicast-fill { fill: #0072b2 }
  .path { stroke: #d55e00; stroke-dasharray: 8 3 } .path-fill { fill: #d55e00 }
  .tree { stroke: #00805c; stroke-width: 2.4 } .tree-fill { fill: #00805c }
  .local { stroke: #aa4499; stroke-dasharray: 2 3 } .local-fill { fill: #aa4499 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ececec }
    .quiet { fill: #b0b0b0 }
    .step { stroke: #161616 }
    .ground { fill: #161616 }
    .row { stroke: #333333 }
    .holds { stroke: #777777 }
    .box { fill: #2a2a2a; stroke: #b0b0b0 }
    .unicast { stroke: #56b4e9 } .unicast-fill { fill: #56b4e9 }
    .path { stroke: #f0883a } .path-fill { fill: #f0883a }
    .tree { stroke: #2fc295 } .tree-fill { fill: #2fc295 }
    .local { stroke: #dd88cc } .local-fill { fill: #dd88cc }
  }
";

/// A plan as an SVG picture with title, metrics and legend; time runs downwards, one row per step,
/// and each member has a column. It is readable on light and dark backgrounds, and follows the
/// viewer's colour scheme.
///
/// # Errors
/// [`PlanError::TooManyToDraw`] beyond [`MEMBERS_DRAWN_MAX`]; [`PlanError::PlacementMismatch`].
pub fn svg(plan: &Plan, fabric: &Fabric, analysis: &Analysis) -> Result<String, PlanError> {
    plan.placement().check_fabric(fabric)?;
    let members = plan.destination_count() + 1;
    if members > MEMBERS_DRAWN_MAX {
        return Err(PlanError::TooManyToDraw { members, max: MEMBERS_DRAWN_MAX });
    }
    let picture = Picture::new(plan, fabric);
    let mut text = String::new();
    picture.draw(&mut text, analysis).expect("writing to a string does not fail");
    Ok(text)
}

/// The layout.
struct Picture<'a> {
    plan: &'a Plan,
    steps: Vec<u32>,
    /// The members of the plan, column by column.
    members: Vec<MemberId>,
    names: Vec<Vec<String>>,
    column: Vec<u32>,
    /// The step in which each member receives, and in which it sends last.
    received: Vec<u32>,
    last_sent: Vec<u32>,
    pitch: u32,
    box_height: u32,
}

impl<'a> Picture<'a> {
    fn new(plan: &'a Plan, fabric: &Fabric) -> Self {
        let count = plan.placement().member_count() as usize;
        let steps = plan.steps();
        let (mut received, mut last_sent) = (vec![0; count], vec![0; count]);
        for (worm, &step) in plan.worms().iter().zip(&steps) {
            last_sent[worm.from.index()] = step;
            for to in &worm.to {
                received[to.index()] = step;
            }
        }
        let members = columns(plan);
        let mut column = vec![0; count];
        for (place, member) in (0..).zip(&members) {
            column[member.index()] = place;
        }
        let one_a_host = plan.placement().processes() == 1;
        let lines = |&member: &MemberId| {
            let host = shortened(&fabric.topology().host_name(plan.placement().host_of(member)));
            if one_a_host { vec![host] } else { vec![format!("m{member}"), host] }
        };
        let names: Vec<Vec<String>> = members.iter().map(lines).collect();
        let widest = names.iter().flatten().map(|name| name.chars().count() as u32).max().unwrap_or(0);
        Self {
            plan,
            steps,
            members,
            names,
            column,
            received,
            last_sent,
            pitch: (widest * GLYPH_WIDTH + 18).max(36),
            box_height: if one_a_host { 20 } else { 30 },
        }
    }

    fn x(&self, member: MemberId) -> u32 {
        MARGIN + AXIS_WIDTH + self.column[member.index()] * self.pitch + self.pitch / 2
    }

    fn y(step: u32) -> u32 {
        HEAD_HEIGHT + ROW_HEIGHT / 2 + step * ROW_HEIGHT
    }

    fn draw(&self, out: &mut String, analysis: &Analysis) -> std::fmt::Result {
        let last_step = self.steps.iter().copied().max().unwrap_or(0);
        let columns_width = 2 * MARGIN + AXIS_WIDTH + self.members.len() as u32 * self.pitch;
        let (width, height) = (columns_width.max(WIDTH_MIN), Self::y(last_step) + ROW_HEIGHT / 2 + MARGIN);
        let title = escaped(&format!("{} ({})", self.plan.scheme(), self.plan.label()));
        writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" style=\"color-scheme: light dark\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>"
        )?;
        self.draw_head(out, &title, analysis)?;
        for step in 0..=last_step {
            let y = Self::y(step);
            let name = if step == 0 { "start".into() } else { format!("step {step}") };
            writeln!(
                out,
                "<line class=\"row\" x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\"/>\
                 <text class=\"quiet\" x=\"{MARGIN}\" y=\"{}\">{name}</text>",
                MARGIN + AXIS_WIDTH - 8,
                columns_width - MARGIN,
                y + 4
            )?;
        }
        for &member in &self.members {
            let (received, sent) = (self.received[member.index()], self.last_sent[member.index()]);
            if sent > received + 1 {
                let x = self.x(member);
                let from = Self::y(received);
                let to = Self::y(sent - 1);
                writeln!(out, "<line class=\"holds\" x1=\"{x}\" y1=\"{from}\" x2=\"{x}\" y2=\"{to}\"/>")?;
            }
        }
        for (worm, &step) in self.plan.worms().iter().zip(&self.steps) {
            self.draw_worm(out, worm, step)?;
        }
        for (&member, lines) in self.members.iter().zip(&self.names) {
            self.draw_member(out, member, lines)?;
        }
        writeln!(out, "</svg>")
    }

    fn draw_head(&self, out: &mut String, title: &str, analysis: &Analysis) -> std::fmt::Result {
        writeln!(out, "<text class=\"title\" x=\"{MARGIN}\" y=\"32\">{title}</text>")?;
        let figures = [
            format!(
                "{} to {}, {}, {}, depth {}, fan-out at most {}",
                escaped(&self.names[0].join(" on ")),
                counted(self.members.len() - 1, "destination"),
                counted(analysis.worms as usize, "worm"),
                counted(analysis.steps as usize, "step"),
                analysis.depth,
                analysis.max_fan_out
            ),
            format!(
                "{} on {} (concentration {:.2}), at most {} at once, {}, id rule {}",
                counted(analysis.link_visits as usize, "link visit"),
                counted(analysis.links_used as usize, "link"),
                analysis.link_concentration,
                counted(analysis.link_concurrency as usize, "worm"),
                counted(analysis.contending_pairs as usize, "contending pair"),
                if analysis.id_rule { "kept" } else { "broken" }
            ),
        ];
        for (line, y) in figures.iter().zip([52, 70]) {
            writeln!(out, "<text x=\"{MARGIN}\" y=\"{y}\">{line}</text>")?;
        }
        let used: BTreeSet<WormKind> = self.plan.worms().iter().map(|worm| worm.kind).collect();
        writeln!(out, "<defs>")?;
        for name in KINDS.map(WormKind::name) {
            writeln!(
                out,
                "<marker id=\"{name}-head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"8\" \
                 markerHeight=\"8\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
                 <path class=\"{name}-fill\" d=\"M0 0L8 4L0 8z\"/></marker>"
            )?;
        }
        writeln!(out, "</defs>")?;
        let mut x = MARGIN;
        for name in KINDS.into_iter().filter(|kind| used.contains(kind)).map(WormKind::name) {
            writeln!(
                out,
                "<path class=\"worm {name}\" marker-end=\"url(#{name}-head)\" d=\"M{x} 92h44\"/>\
                 <text x=\"{}\" y=\"96\">{name}</text>",
                x + 52
            )?;
            x += 120;
        }
        writeln!(
            out,
            "<line class=\"holds\" x1=\"{}\" y1=\"83\" x2=\"{}\" y2=\"101\"/>\
             <text x=\"{}\" y=\"96\">goes on sending</text>",
            x + 4,
            x + 4,
            x + 14
        )
    }

    fn draw_member(&self, out: &mut String, member: MemberId, lines: &[String]) -> std::fmt::Result {
        let (x, y) = (self.x(member), Self::y(self.received[member.index()]));
        let width = self.pitch - 6;
        let class = if member == self.plan.root() { "box root" } else { "box" };
        write!(
            out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"{}\" rx=\"8\"/>",
            x - width / 2,
            y - self.box_height / 2,
            self.box_height
        )?;
        let offsets: &[(i32, &str)] = if lines.len() == 1 { &[(4, "")] } else { &[(-2, ""), (10, "small")] };
        for (line, (offset, class)) in lines.iter().zip(offsets) {
            write!(
                out,
                "<text class=\"{class}\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                y.saturating_add_signed(*offset),
                escaped(line)
            )?;
        }
        writeln!(out)
    }

    fn draw_worm(&self, out: &mut String, worm: &Worm, step: u32) -> std::fmt::Result {
        let kind = worm.kind.name();
        let (from_x, from_y) = (self.x(worm.from), Self::y(step - 1));
        let to_y = Self::y(step) - self.box_height / 2 - 1;
        let line = format!("<path class=\"worm {kind}\" marker-end=\"url(#{kind}-head)\" d=\"");
        let label = if let ([to], WormKind::Unicast | WormKind::Local) = (&worm.to[..], worm.kind) {
            let to_x = self.x(*to);
            writeln!(out, "{line}M{from_x} {from_y}L{to_x} {to_y}\"/>")?;
            (from_x.midpoint(to_x), from_y.midpoint(to_y))
        } else {
            // One line to a small point, and from there a bar with a drop for each receiver.
            let (x, y) = (from_x + self.pitch / 2, to_y - 14);
            let last = worm.to.iter().map(|&to| self.x(to)).max().unwrap_or(x);
            writeln!(
                out,
                "<path class=\"worm {kind}\" d=\"M{from_x} {from_y}L{x} {y}H{last}\"/>\
                 <circle class=\"{kind}-fill\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\"/>"
            )?;
            for to_x in worm.to.iter().map(|&to| self.x(to)) {
                writeln!(out, "{line}M{to_x} {y}L{to_x} {to_y}\"/>")?;
            }
            (x, y - 8)
        };
        let (x, y) = (label.0 + 6, label.1);
        writeln!(out, "<text class=\"step quiet\" x=\"{x}\" y=\"{y}\">{step}</text>")
    }
}

/// The members from left to right: a member, then the subtree of its last worm, and so on to its
/// first.
fn columns(plan: &Plan) -> Vec<MemberId> {
    let sends = plan.sends();
    let mut members = Vec::new();
    let mut open = vec![plan.root()];
    while let Some(member) = open.pop() {
        members.push(member);
        for &position in sends.of(member) {
            open.extend(plan.worms()[position as usize].to.iter().rev());
        }
    }
    members
}

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_GLYPHS_MAX {
        return name.into();
    }
    name.chars().take(NAME_GLYPHS_MAX - 1).chain(['…']).collect()
}

/// Text for XML: special characters escaped, characters that XML does not allow replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for glyph in text.chars() {
        match glyph {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            control if control.is_control() => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

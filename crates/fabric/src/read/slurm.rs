//! Slurm's `topology.conf` (topology.conf(5)), as Slurm's topology plugin `tree` reads it.

use std::collections::BTreeMap;

use treecast_terms::nearest_hint;
use winnow::combinator::{alt, delimited, preceded};
use winnow::token::{take_till, take_while};
use winnow::{ModalResult, Parser};

use super::parts::{Parts, check_distinct, no_switch};
use super::{Read, Source, start_of, without_mark};
use crate::error::FabricError;
use crate::hostlist::expand_hostlist;
use crate::limits;

/// Reads Slurm's `topology.conf` of the topology plugin `tree`.
///
/// A line `SwitchName=leaf1 Nodes=n[1-16]` names a switch and its hosts, a line `SwitchName=spine1
/// Switches=leaf[1-2]` a switch and the switches below it; both lists are
/// [hostlists](crate::expand_hostlist). One link leads to each host and to each switch below, and a
/// switch has as many ports as links. Keywords, quotes, comments and continued lines are those of
/// Slurm's parser (`src/common/parse_config.c`). Switches and hosts are numbered in the order of
/// the file; links between switches, after those of the hosts, too. The rank of a switch is the
/// greatest number of links down to it from a switch that is below no other. `LinkSpeed` is
/// ignored, as Slurm ignores it; a note gives the first one that is not a number.
///
/// # Errors
/// [`FabricError::Malformed`]: what Slurm refuses too (an unknown keyword, `Nodes` and `Switches`
/// in one line, a switch that is unknown, defined twice, or its own descendant); what does not form
/// a topology (a host on two switches, switches that are not connected); lines of Slurm's other
/// plugins (`BlockName=`, `RingName=`), and `Include`.
///
/// ```
/// let text = "SwitchName=s0 Nodes=dev[0-5]\nSwitchName=s1 Nodes=dev[6-11]\nSwitchName=s2 Switches=s[0-1]\n";
/// let topology = treecast_fabric::read::slurm("topology.conf", text)?.topology;
/// assert_eq!(topology.host_count(), 12);
/// assert_eq!(topology.ranks(), Some(&[1, 1, 0][..]));
/// # Ok::<(), treecast_fabric::FabricError>(())
/// ```
pub fn slurm(file: &str, text: &str) -> Result<Read, FabricError> {
    let text = without_mark(text);
    let source = Source::new(file, text);
    let lines = joined_lines(text);
    let mut switches = Vec::new();
    for line in &lines {
        switches.extend(parse_switch(line, &source)?);
    }
    check_distinct("switch", switches.iter().map(|switch| (&switch.name, switch.line)), &source)?;
    let tree = Tree::new(&switches, &source)?;
    let ranks = tree.ranks(&switches, &source)?;
    tree.check_connected(&switches, &source)?;

    let mut parts = Parts::default();
    for (switch, rank) in switches.iter().zip(ranks) {
        parts.add_switch(&switch.name, rank, switch.line);
    }
    for (number, switch) in switches.iter().enumerate() {
        if let Some(nodes) = switch.nodes {
            parts.add_hosts(nodes, number, switch.line, &source)?;
        }
    }
    for (number, children) in tree.children.iter().enumerate() {
        for &child in children {
            parts.add_link(number, child, switches[number].line);
        }
    }
    Ok(Read { topology: parts.topology(&source)?, notes: link_speed_note(&switches).into_iter().collect() })
}

/// Whether a line begins like the line of a switch, or of a block, which is refused.
pub(super) fn is_switch(line: &str) -> bool {
    let is_known =
        |keyword: &str| ["switchname", "blockname"].contains(&keyword.to_ascii_lowercase().as_str());
    pair.parse_peek(line).is_ok_and(|(_, (keyword, _))| is_known(keyword))
}

/// A line with its continuation lines, without comments and escapes.
struct Line {
    text: String,
    /// The number of the first line.
    number: usize,
}

fn joined_lines(text: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut is_continued = false;
    for (index, text) in text.lines().enumerate() {
        let (content, continues) = content(text);
        match lines.last_mut() {
            Some(line) if is_continued => line.text += &content,
            _ => lines.push(Line { text: content, number: index + 1 }),
        }
        is_continued = continues;
    }
    lines
}

/// The content of a line, and whether the next line continues it: if a backslash is last, before
/// blanks and a comment. Any other backslash stands for the character behind it.
fn content(line: &str) -> (String, bool) {
    let mut content = String::new();
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            '#' => break,
            '\\' if is_end(rest.as_str()) => return (content, true),
            '\\' => content.extend(rest.next()),
            other => content.push(other),
        }
    }
    (content, false)
}

/// Whether nothing but blanks, and a comment after them, follows a backslash. A `#` directly behind
/// it begins no comment.
fn is_end(rest: &str) -> bool {
    let text = rest.trim_start();
    text.is_empty() || (text.starts_with('#') && text.len() < rest.len())
}

/// A line of a switch.
struct Switch<'a> {
    name: String,
    nodes: Option<&'a str>,
    switches: Option<&'a str>,
    link_speed: Option<&'a str>,
    line: usize,
}

/// The switch of a line; `None` if the line is empty.
fn parse_switch<'a>(line: &'a Line, source: &Source) -> Result<Option<Switch<'a>>, FabricError> {
    let error = |reason: String| source.error(line.number, reason);
    let pairs = pairs(&line.text).map_err(error)?;
    let Some((&(keyword, name), rest)) = pairs.split_first() else { return Ok(None) };
    if !keyword.eq_ignore_ascii_case("SwitchName") {
        return Err(error(not_a_switch(keyword)));
    }
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')) {
        return Err(error(format!("SwitchName '{name}' is not the name of one switch")));
    }
    let mut switch =
        Switch { name: name.into(), nodes: None, switches: None, link_speed: None, line: line.number };
    for &(keyword, value) in rest {
        let (keyword, field) = match keyword.to_ascii_lowercase().as_str() {
            "nodes" => ("Nodes", &mut switch.nodes),
            "switches" => ("Switches", &mut switch.switches),
            "linkspeed" => ("LinkSpeed", &mut switch.link_speed),
            "switchname" => {
                return Err(error(format!("a line has one SwitchName: '{value}' is a second one")));
            }
            _ => return Err(error(unknown_keyword(keyword))),
        };
        if field.replace(value).is_some() {
            return Err(error(format!("switch '{name}' has {keyword} twice")));
        }
    }
    if switch.nodes.is_some() && switch.switches.is_some() {
        return Err(error(format!("switch '{name}' has both Nodes and Switches: Slurm allows one of them")));
    }
    Ok(Some(switch))
}

/// Why a line that begins with this keyword does not describe a switch.
fn not_a_switch(keyword: &str) -> String {
    let plugin = match keyword.to_ascii_lowercase().as_str() {
        "blockname" | "blocksizes" => "block",
        "ringname" => "ring",
        "nodes" | "switches" | "linkspeed" => {
            return format!("a line begins with SwitchName, not with {keyword}");
        }
        _ => return unknown_keyword(keyword),
    };
    format!("{keyword} belongs to Slurm's topology plugin {plugin}: only files of the plugin tree are read")
}

fn unknown_keyword(keyword: &str) -> String {
    let hint = nearest_hint(keyword, &["SwitchName", "Nodes", "Switches", "LinkSpeed"]);
    format!("unknown keyword '{keyword}'{hint}")
}

/// The keywords and values of a line.
fn pairs(text: &str) -> Result<Vec<(&str, &str)>, String> {
    let mut pairs = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let Ok((behind, pair)) = pair.parse_peek(rest) else {
            let word = rest.split_whitespace().next().unwrap_or_default();
            return Err(if word.eq_ignore_ascii_case("Include") {
                "files that are included are not read: put their lines here".into()
            } else {
                format!("'{}' is not KEYWORD=VALUE", start_of(rest))
            });
        };
        pairs.push(pair);
        rest = behind;
    }
    Ok(pairs)
}

/// `Nodes=n[1-16]` or `Nodes = "n1, n2"`, and the blanks after it.
fn pair<'a>(input: &mut &'a str) -> ModalResult<(&'a str, &'a str)> {
    let keyword = take_while(1.., |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
    let quoted = delimited('"', take_till(0.., '"'), '"');
    let unquoted = take_till(1.., |c: char| c.is_whitespace() || c == '"');
    let equals = delimited(blanks, '=', blanks);
    (preceded(blanks, keyword), preceded(equals, alt((quoted, unquoted))), blanks)
        .map(|(keyword, value, _)| (keyword, value))
        .parse_next(input)
}

fn blanks<'a>(input: &mut &'a str) -> ModalResult<&'a str> {
    take_while(0.., char::is_whitespace).parse_next(input)
}

/// A note on the first value of `LinkSpeed` that is not a number, as Slurm requires.
fn link_speed_note(switches: &[Switch]) -> Option<String> {
    let speeds = switches.iter().filter_map(|switch| Some((switch.link_speed?, switch.line)));
    let (speed, line) = speeds.clone().find(|(speed, _)| speed.parse::<u32>().is_err())?;
    Some(format!("LinkSpeed is ignored; it should be a number, not '{speed}' as on line {line}"))
}

/// The hierarchy of switches.
struct Tree {
    children: Vec<Vec<usize>>,
    parents: Vec<Vec<usize>>,
}

impl Tree {
    fn new(switches: &[Switch], source: &Source) -> Result<Self, FabricError> {
        let numbered = switches.iter().enumerate();
        let numbers: BTreeMap<String, usize> =
            numbered.map(|(number, switch)| (switch.name.clone(), number)).collect();
        let mut tree =
            Self { children: vec![Vec::new(); switches.len()], parents: vec![Vec::new(); switches.len()] };
        let mut link_count: usize = 0;
        for (number, switch) in switches.iter().enumerate() {
            let Some(names) = switch.switches else { continue };
            let error = |reason: String| source.error(switch.line, reason);
            let names = expand_hostlist(names).map_err(|reason| error(format!("Switches: {reason}")))?;
            link_count += names.len();
            if link_count > limits::LINKS_MAX as usize / 2 {
                return Err(source.error(switch.line, FabricError::TooManyLinks));
            }
            for name in names {
                let Some(&child) = numbers.get(&name) else { return Err(error(no_switch(&name, &numbers))) };
                if child == number {
                    return Err(error(format!("switch '{name}' is below itself")));
                }
                if tree.parents[child].last() == Some(&number) {
                    return Err(error(format!(
                        "switch '{name}' is named twice below switch '{}'",
                        switch.name
                    )));
                }
                tree.parents[child].push(number);
                tree.children[number].push(child);
            }
        }
        Ok(tree)
    }

    /// The switches that are below no other.
    fn tops(&self) -> impl Iterator<Item = usize> {
        (0..self.parents.len()).filter(|&switch| self.parents[switch].is_empty())
    }

    /// The rank of each switch: the greatest number of links down to it from a top. Refuses cycles.
    fn ranks(&self, switches: &[Switch], source: &Source) -> Result<Vec<u32>, FabricError> {
        let mut ranks = vec![0; switches.len()];
        let mut parents_left: Vec<usize> = self.parents.iter().map(Vec::len).collect();
        let mut open: Vec<usize> = self.tops().collect();
        while let Some(switch) = open.pop() {
            for &child in &self.children[switch] {
                ranks[child] = ranks[child].max(ranks[switch] + 1);
                parents_left[child] -= 1;
                if parents_left[child] == 0 {
                    open.push(child);
                }
            }
        }
        match parents_left.iter().position(|&left| left > 0) {
            None => Ok(ranks),
            Some(start) => {
                let is_open = |switch: usize| parents_left[switch] > 0;
                let (below, above) = self.cycle(start, is_open);
                let reason = format!(
                    "switch '{}' is its own descendant: switch '{}', which is above it on line {}, is also below it",
                    switches[below].name, switches[above].name, switches[above].line
                );
                Err(source.error(switches[below].line, reason))
            }
        }
    }

    /// The first switch of a cycle, and the one above it there. Each switch that is open, as
    /// `start` is, has an open parent: so the way up leads into a cycle.
    fn cycle(&self, start: usize, is_open: impl Fn(usize) -> bool) -> (usize, usize) {
        let above: Vec<usize> = (self.parents.iter().enumerate())
            .map(|(switch, parents)| {
                parents.iter().copied().find(|&parent| is_open(parent)).unwrap_or(switch)
            })
            .collect();
        let within = above.iter().fold(start, |switch, _| above[switch]);
        let mut first = within;
        let mut switch = above[within];
        while switch != within {
            first = first.min(switch);
            switch = above[switch];
        }
        (first, above[first])
    }

    /// Checks that the switches are connected; if not, the error names a top of each part.
    fn check_connected(&self, switches: &[Switch], source: &Source) -> Result<(), FabricError> {
        let mut is_seen = vec![false; switches.len()];
        let mut tops = Vec::new();
        for top in self.tops() {
            if is_seen[top] {
                continue;
            }
            tops.push(top);
            is_seen[top] = true;
            let mut open = vec![top];
            while let Some(switch) = open.pop() {
                for &next in self.children[switch].iter().chain(&self.parents[switch]) {
                    if !std::mem::replace(&mut is_seen[next], true) {
                        open.push(next);
                    }
                }
            }
        }
        let [_, second, ..] = tops[..] else { return Ok(()) };
        let named = tops.iter().take(TOPS_NAMED).map(|&top| {
            let Switch { name, line, .. } = &switches[top];
            format!("'{name}' (line {line})")
        });
        let named: Vec<String> = named.collect();
        let further = match tops.len().saturating_sub(TOPS_NAMED) {
            0 => String::new(),
            further => format!(" and {further} more"),
        };
        let reason = format!(
            "the fabric is not connected: nothing joins the top switches {}{further}",
            named.join(", ")
        );
        Err(source.error(switches[second].line, reason))
    }
}

/// The maximum number of unconnected switches that an error names.
const TOPS_NAMED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{HostId, SwitchId};
    use crate::topology::Topology;

    fn topology(text: &str) -> Topology {
        let Read { topology, notes } = slurm("topology.conf", text).unwrap();
        assert_eq!(notes, Vec::<String>::new());
        topology
    }

    fn error(text: &str) -> String {
        slurm("t.conf", text).unwrap_err().to_string()
    }

    /// Each switch with its hosts and the switches that it is linked to.
    fn shape(topology: &Topology) -> Vec<String> {
        let line = |switch: SwitchId| {
            let hosts: Vec<String> =
                topology.hosts_of(switch).iter().map(|&h| topology.host_name(h)).collect();
            let linked: Vec<String> =
                topology.neighbours(switch).map(|(_, other)| topology.switch_name(other)).collect();
            format!("{}: {} - {}", topology.switch_name(switch), hosts.join(" "), linked.join(" "))
        };
        topology.switches().map(line).collect()
    }

    /// The example of topology.conf(5).
    const MANUAL: &str = "\
##################################################################
# Slurm's network topology configuration file for use with the
# topology/tree plugin
##################################################################
SwitchName=s0 Nodes=dev[0-5]
SwitchName=s1 Nodes=dev[6-11]
SwitchName=s2 Nodes=dev[12-17]
SwitchName=s3 Switches=s[0-2]
";

    #[test]
    fn the_example_of_the_manual_is_a_tree() {
        for text in [MANUAL.to_string(), MANUAL.replace('\n', "\r\n"), format!("\u{feff}{MANUAL}")] {
            let topology = topology(&text);
            assert_eq!(
                shape(&topology),
                [
                    "s0: dev0 dev1 dev2 dev3 dev4 dev5 - s3",
                    "s1: dev6 dev7 dev8 dev9 dev10 dev11 - s3",
                    "s2: dev12 dev13 dev14 dev15 dev16 dev17 - s3",
                    "s3:  - s0 s1 s2"
                ]
            );
            assert_eq!(topology.ranks(), Some(&[1, 1, 1, 0][..]));
            assert_eq!(topology.port_count(SwitchId(0)), 7);
            assert_eq!(topology.port_count(SwitchId(3)), 3);
            assert!(topology.is_tree());
        }
    }

    #[test]
    fn lines_are_those_of_slurms_parser() {
        let text = "\tswitchname = leaf\\1 NODES=\"n1, n[2-3]\" linkspeed=100 # comment\n\
                    \n\
                    SwitchName=top \\ # a comment before the end of a continued line\n   Switches=leaf1,\\\nle\\\naf2\n\
                    SwitchName=leaf2 Nodes=a\\#b\\\\\n";
        let topology = topology(text);
        assert_eq!(shape(&topology), ["leaf1: n1 n2 n3 - top", "top:  - leaf1 leaf2", "leaf2: a#b\\ - top"]);
        assert_eq!(topology.host_name(HostId(3)), "a#b\\");
    }

    #[test]
    fn a_switch_below_several_switches_is_linked_to_each() {
        let text = "SwitchName=a Nodes=n1\nSwitchName=b Nodes=n2\nSwitchName=empty\n\
                    SwitchName=x Switches=a,b\nSwitchName=y Switches=[a\n";
        assert!(error(text).starts_with("t.conf:5: Switches: '[a' is not a hostlist"), "{}", error(text));
        let topology = topology(&text.replace("[a", "x,a,b,empty"));
        assert_eq!(
            shape(&topology),
            ["a: n1 - x y", "b: n2 - x y", "empty:  - y", "x:  - a b y", "y:  - x a b empty"]
        );
        assert_eq!(topology.ranks(), Some(&[2, 2, 1, 1, 0][..]));
    }

    #[test]
    fn a_link_speed_that_is_no_number_is_noted_once() {
        let notes = |text: &str| slurm("t.conf", text).unwrap().notes;
        let text = "SwitchName=a Nodes=n1 LinkSpeed=7\nSwitchName=b Nodes=n2 LinkSpeed=4xQDR\n\
                    SwitchName=c Switches=a,b LinkSpeed=HDR\n";
        let note = "LinkSpeed is ignored; it should be a number, not '4xQDR' as on line 2";
        assert_eq!(notes(text), [note]);
        assert!(notes(&text.replace("4xQDR", "1").replace("HDR", "1")).is_empty());
    }

    #[test]
    fn what_is_no_tree_of_switches_is_refused() {
        let with = |rest: &str| error(&format!("{MANUAL}{rest}"));
        assert_eq!(
            with("SwitchName=s4 Switches=s[5-6]\nSwitchName=s5 Switches=s4\nSwitchName=s6 Switches=s0"),
            "t.conf:9: switch 's4' is its own descendant: switch 's5', which is above it on line 10, is also below it"
        );
        assert_eq!(with("SwitchName=s4 Switches=s4"), "t.conf:9: switch 's4' is below itself");
        assert_eq!(
            with("SwitchName=s4 Switches=s0,s[0-1]"),
            "t.conf:9: switch 's0' is named twice below switch 's4'"
        );
        assert_eq!(with("SwitchName=s4 Switches=s9"), "t.conf:9: there is no switch 's9'");
        assert_eq!(with("SwitchName=s4 Switches=dev0"), "t.conf:9: there is no switch 'dev0'");
        assert_eq!(with("SwitchName=s1 Nodes=x"), "t.conf:9: switch 's1' is already defined on line 6");
        assert_eq!(
            with("SwitchName=s4 Nodes=x,dev3\nSwitchName=s5 Switches=s[3-4]"),
            "t.conf:9: host 'dev3' is already defined on line 5"
        );
        let parts = "t.conf:9: the fabric is not connected: nothing joins the top switches 's3' (line 8)";
        assert_eq!(with("SwitchName=s4 Nodes=x"), format!("{parts}, 's4' (line 9)"));
        let many = [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]
            .map(|number| format!("SwitchName=s{number} Nodes=x{number}\n"));
        let many = many.concat();
        assert!(with(&many).ends_with("'s10' (line 15) and 3 more"), "{}", with(&many));
        assert_eq!(error(""), "t.conf:1: the fabric has no hosts");
        assert_eq!(error("SwitchName=a"), "t.conf:1: the fabric has no hosts");
    }

    #[test]
    fn the_switch_that_an_error_names_is_on_the_cycle() {
        let text = "SwitchName=leaf Nodes=n1\nSwitchName=below Switches=leaf\nSwitchName=a Switches=b,below\n\
                    SwitchName=b Switches=c\nSwitchName=c Switches=a\nSwitchName=top Switches=a\n";
        assert_eq!(
            error(text),
            "t.conf:3: switch 'a' is its own descendant: switch 'c', which is above it on line 5, is also below it"
        );
    }

    #[test]
    fn lines_that_are_no_switches_are_refused() {
        let refused = "belongs to Slurm's topology plugin";
        let only = "only files of the plugin tree are read";
        for (text, reason) in [
            ("BlockName=b1 Nodes=n[1-32]", format!("BlockName {refused} block: {only}")),
            ("BlockSizes=30,120", format!("BlockSizes {refused} block: {only}")),
            ("RingName=r Nodes=n[1-4]", format!("RingName {refused} ring: {only}")),
            ("Nodes=n1 SwitchName=s0", "a line begins with SwitchName, not with Nodes".into()),
            ("SwitchName=a Node=n1", "unknown keyword 'Node': did you mean Nodes?".into()),
            ("SwitchName=a SwitchName=b", "a line has one SwitchName: 'b' is a second one".into()),
            ("Foo=a", "unknown keyword 'Foo': known are SwitchName, Nodes, Switches, LinkSpeed".into()),
            ("include other.conf", "files that are included are not read: put their lines here".into()),
            ("SwitchName=a Nodes=n1, n2", "'n2' is not KEYWORD=VALUE".into()),
            ("SwitchName=a Nodes=", "'Nodes=' is not KEYWORD=VALUE".into()),
            ("SwitchName=a Nodes=\"n1", "'Nodes=\"n1' is not KEYWORD=VALUE".into()),
            ("SwitchName=s[0-1] Nodes=n1", "SwitchName 's[0-1]' is not the name of one switch".into()),
            ("SwitchName=\"\" Nodes=n1", "SwitchName '' is not the name of one switch".into()),
            ("SwitchName=a Nodes=n1 nodes=n2", "switch 'a' has Nodes twice".into()),
            (
                "SwitchName=a Nodes=n1 Switches=b",
                "switch 'a' has both Nodes and Switches: Slurm allows one of them".into(),
            ),
            ("SwitchName=a Nodes=n[0-999999999]", "'n[0-999999999]' names more than 1048576 hosts".into()),
            (
                "SwitchName=a Switches=n[0-999999999]",
                "Switches: 'n[0-999999999]' names more than 1048576 hosts".into(),
            ),
        ] {
            assert_eq!(error(&format!("# first\n{text}")), format!("t.conf:2: {reason}"), "{text}");
        }
    }

    #[test]
    fn all_lines_together_have_a_bound_of_hosts() {
        let text = "SwitchName=a Nodes=a[1-1048576]\nSwitchName=b Nodes=b[1-1048576]\nSwitchName=c Nodes=c[1-1048576]\n\
                    SwitchName=t Switches=a,b,c";
        assert_eq!(error(text), "t.conf:2: a fabric holds at most 1048576 hosts");
    }
}

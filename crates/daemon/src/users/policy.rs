//! Which users may have groups at a daemon, and how many.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use treecast_engine::settings::error::NodeError;
use treecast_proto::CreateGroup;
use treecast_terms::parse_size;

use super::credentials::PeerCredentials;

/// Which users may have groups, how many, and how large. The first rule that matches a user
/// applies.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
pub(crate) struct Rule {
    name: String,
    subject: Subject,
    groups_max: Option<usize>,
    members_max: Option<usize>,
    memory_max: Option<u64>,
    numbers: Option<Vec<RangeInclusive<u32>>>,
}

#[derive(Debug, Clone)]
enum Subject {
    Everyone,
    These { users: Vec<u32>, groups: Vec<u32> },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleOfFile>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleOfFile {
    name: Spanned<String>,
    #[serde(default)]
    all_users: bool,
    #[serde(default)]
    users: Vec<Spanned<NameOrNumber>>,
    #[serde(default)]
    user_groups: Vec<Spanned<NameOrNumber>>,
    groups_max: Option<Count>,
    members_max: Option<Count>,
    memory_max: Option<Spanned<BytesOrText>>,
    numbers: Option<Vec<Spanned<NumberOrRange>>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number")]
enum Count {
    Number(usize),
}

impl From<Count> for usize {
    fn from(Count::Number(number): Count) -> Self {
        number
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a name, or a number")]
enum NameOrNumber {
    Number(u32),
    Name(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number of bytes, or a text such as \"64M\"")]
enum BytesOrText {
    Bytes(u64),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number, or a range such as \"1000-1999\"")]
enum NumberOrRange {
    Number(u32),
    Range(String),
}

/// The longest file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Default for Policy {
    /// The user of this process and root, without limits.
    fn default() -> Self {
        let users = vec![0, rustix::process::getuid().as_raw()];
        let rule = Rule {
            name: "the rule without a policy file".into(),
            subject: Subject::These { users, groups: Vec::new() },
            groups_max: None,
            members_max: None,
            memory_max: None,
            numbers: None,
        };
        Self { rules: vec![rule] }
    }
}

impl Policy {
    /// A policy that allows one user everything.
    pub(crate) fn of_user(user: u32) -> Self {
        let subject = Subject::These { users: vec![user], groups: Vec::new() };
        let name = format!("processes of user {user}");
        let rule =
            Rule { name, subject, groups_max: None, members_max: None, memory_max: None, numbers: None };
        Self { rules: vec![rule] }
    }

    /// Reads a policy from a file.
    ///
    /// # Errors
    /// [`NodeError::Policy`] with the file, the line and the problem.
    pub fn read(path: &Path) -> Result<Self, NodeError> {
        let unread = |why: &dyn fmt::Display| {
            NodeError::Policy(format!("{} could not be read: {why}", path.display()))
        };
        let length = std::fs::metadata(path).map_err(|error| unread(&error))?.len();
        if length > FILE_BYTES_MAX {
            return Err(unread(&"the file is too long for a policy"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| unread(&error))?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses a policy; `source` names it in messages.
    ///
    /// # Errors
    /// As [`Policy::read`].
    pub fn parse(text: &str, source: &str) -> Result<Self, NodeError> {
        let wrong = |at: Option<usize>, why: &str| {
            let line = at.map(|at| text[..at.min(text.len())].matches('\n').count() + 1);
            let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
            NodeError::Policy(format!("{source}{line}: {}", why.trim_end()))
        };
        let file: File = toml::from_str(text)
            .map_err(|error| wrong(error.span().map(|span| span.start), error.message()))?;
        let mut rules = Vec::new();
        for rule in file.rule {
            rules.push(Rule::read(rule).map_err(|(at, why)| wrong(Some(at), &why))?);
        }
        if rules.is_empty() {
            return Err(wrong(None, "no [[rule]], so no user could have a group"));
        }
        Ok(Self { rules })
    }

    /// The rule for a client, and its index; none: it may have no groups.
    pub(crate) fn rule_for(&self, peer: &PeerCredentials) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.matches(peer))
    }
}

impl Rule {
    fn read(file: RuleOfFile) -> Result<Self, (usize, String)> {
        let at = file.name.span().start;
        let mut users = Vec::new();
        for user in file.users {
            let (at, user) = (user.span().start, user.into_inner());
            users.push(match user {
                NameOrNumber::Number(number) => number,
                NameOrNumber::Name(name) => nix::unistd::User::from_name(&name)
                    .ok()
                    .flatten()
                    .map(|user| user.uid.as_raw())
                    .ok_or_else(|| (at, format!("there is no user {name} on this machine")))?,
            });
        }
        let mut groups = Vec::new();
        for group in file.user_groups {
            let (at, group) = (group.span().start, group.into_inner());
            groups.push(match group {
                NameOrNumber::Number(number) => number,
                NameOrNumber::Name(name) => nix::unistd::Group::from_name(&name)
                    .ok()
                    .flatten()
                    .map(|group| group.gid.as_raw())
                    .ok_or_else(|| (at, format!("there is no user group {name} on this machine")))?,
            });
        }
        let names_users = !users.is_empty() || !groups.is_empty();
        let subject = match (file.all_users, names_users) {
            (true, false) => Subject::Everyone,
            (false, true) => Subject::These { users, groups },
            (true, true) => return Err((at, "a rule for all users cannot name users too".into())),
            (false, false) => {
                return Err((at, "expected users, user_groups, or all_users = true".into()));
            }
        };
        let memory_max = file.memory_max.map(|memory| {
            let (at, memory) = (memory.span().start, memory.into_inner());
            match memory {
                BytesOrText::Bytes(bytes) => Ok(bytes),
                BytesOrText::Text(text) => parse_size(&text).map_err(|error| (at, error.to_string())),
            }
        });
        let numbers = file.numbers.map(|numbers| {
            let read = numbers.into_iter().map(|number| {
                let (at, number) = (number.span().start, number.into_inner());
                match number {
                    NumberOrRange::Number(number) => Ok(number..=number),
                    NumberOrRange::Range(text) => range_of_text(&text).ok_or_else(|| {
                        (at, format!("invalid range {text}: expected a range such as 1000-1999"))
                    }),
                }
            });
            read.collect::<Result<Vec<_>, _>>()
        });
        Ok(Self {
            name: format!("rule {:?}", file.name.into_inner()),
            subject,
            groups_max: file.groups_max.map(usize::from),
            members_max: file.members_max.map(usize::from),
            memory_max: memory_max.transpose()?,
            numbers: numbers.transpose()?,
        })
    }

    fn matches(&self, peer: &PeerCredentials) -> bool {
        match &self.subject {
            Subject::Everyone => true,
            Subject::These { users, groups } => {
                users.contains(&peer.user) || peer.groups.iter().any(|group| groups.contains(group))
            }
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub const fn memory_max(&self) -> Option<u64> {
        self.memory_max
    }

    /// The most members of a group of a root.
    pub fn members_max(&self) -> usize {
        self.members_max
            .map_or(CreateGroup::MEMBERS_MAX, |members_max| members_max.min(CreateGroup::MEMBERS_MAX))
    }

    /// Whether a root may have a group of this number of members.
    ///
    /// # Errors
    /// The reason for the client.
    pub fn allows_members(&self, members: usize) -> Result<(), String> {
        match self.members_max {
            Some(members_max) if members > members_max => {
                Err(format!("{} allows groups of {members_max} members, and not {members}", self.name))
            }
            _ => Ok(()),
        }
    }

    /// Whether a user with `groups` groups may have another one, with this number.
    ///
    /// # Errors
    /// The reason for the client.
    pub fn allows(&self, number: u32, groups: usize) -> Result<(), String> {
        if self.groups_max.is_some_and(|groups_max| groups >= groups_max) {
            let groups_max = self.groups_max.unwrap_or_default();
            return Err(format!(
                "{} allows {groups_max} groups at once, and the user has {groups}",
                self.name
            ));
        }
        match &self.numbers {
            Some(numbers) if !numbers.iter().any(|range| range.contains(&number)) => {
                let numbers: Vec<String> = numbers.iter().map(range_as_text).collect();
                Err(format!("{} allows groups {}, and not {number}", self.name, numbers.join(", ")))
            }
            _ => Ok(()),
        }
    }
}

fn range_as_text(range: &RangeInclusive<u32>) -> String {
    let (first, last) = (range.start(), range.end());
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn range_of_text(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(user: u32, groups: &[u32]) -> PeerCredentials {
        PeerCredentials { user, groups: groups.to_vec(), process: 1 }
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let text = r#"
            [[rule]]
            name = "one"
            users = [1000, "root"]
            groups_max = 2
            members_max = 64
            memory_max = "64M"
            numbers = ["1000-1999", 7]

            [[rule]]
            name = "staff"
            user_groups = [50]

            [[rule]]
            name = "all"
            all_users = true
            groups_max = 0
        "#;
        let policy = Policy::parse(text, "policy").unwrap();
        let rule = |who: &PeerCredentials| policy.rule_for(who).unwrap().1.clone();
        let one = rule(&peer(1000, &[50]));
        assert_eq!((one.name(), one.memory_max()), ("rule \"one\"", Some(64 << 20)));
        assert_eq!(rule(&peer(0, &[])).name(), "rule \"one\"");
        assert_eq!(rule(&peer(2000, &[1, 50])).name(), "rule \"staff\"");
        assert_eq!(rule(&peer(2000, &[])).name(), "rule \"all\"");
        assert!(one.allows(1000, 1).is_ok() && one.allows(7, 0).is_ok() && one.allows_members(64).is_ok());
        let too_many = one.allows_members(4_001).unwrap_err();
        assert_eq!(too_many, "rule \"one\" allows groups of 64 members, and not 4001");
        assert_eq!((one.members_max(), rule(&peer(2000, &[])).members_max()), (64, CreateGroup::MEMBERS_MAX));
        let refusals = [(2000, 0), (1000, 2)].map(|(number, groups)| one.allows(number, groups).unwrap_err());
        assert_eq!(
            refusals,
            [
                "rule \"one\" allows groups 1000-1999, 7, and not 2000",
                "rule \"one\" allows 2 groups at once, and the user has 2"
            ]
        );
    }

    #[test]
    fn the_policy_that_is_installed_admits_all_users() {
        let policy = Policy::parse(include_str!("../../../../dist/policy.toml"), "dist/policy.toml").unwrap();
        let (_, rule) = policy.rule_for(&peer(12_345, &[])).unwrap();
        let has_limits = rule.groups_max.is_some() && rule.members_max.is_some() && rule.memory_max.is_some();
        assert!(has_limits, "users have limits");
    }

    #[test]
    fn without_a_file_other_users_have_no_groups() {
        let policy = Policy::default();
        assert!(policy.rule_for(&peer(0, &[])).is_some());
        assert!(policy.rule_for(&peer(12_345, &[0])).is_none());
    }

    #[test]
    fn errors_name_the_line() {
        for (text, line, what) in [
            ("[[rule]]\nname = \"a\"\nall_users = true\ncolour = 1\n", 4, "unknown field `colour`"),
            ("[[rule]]\nname = \"a\"\nusers = [\"nobody-has-this\"]\n", 3, "there is no user"),
            ("[[rule]]\nname = \"a\"\nusers = [-1]\n", 3, "a name, or a number"),
            (
                "[[rule]]\nname = \"a\"\nall_users = true\nmemory_max = \"64 apples\"\n",
                4,
                "invalid size '64 apples'",
            ),
            ("[[rule]]\nname = \"a\"\nall_users = true\nnumbers = [\"9-1\"]\n", 4, "invalid range 9-1"),
            ("[[rule]]\nname = \"a\"\nall_users = true\nmembers_max = \"many\"\n", 4, "expected a number"),
            ("[[rule]]\nname = \"a\"\n", 2, "expected users"),
            ("[[rule]]\nusers = [1]\n", 1, "missing field `name`"),
            ("rules = 1\n", 1, "unknown field"),
            ("[[rule]\n", 1, ""),
        ] {
            let error = Policy::parse(text, "p.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("p.toml, line {line}: ")) && error.contains(what), "{error}");
        }
        assert!(Policy::parse("", "p.toml").unwrap_err().to_string().contains("no [[rule]]"));
    }
}

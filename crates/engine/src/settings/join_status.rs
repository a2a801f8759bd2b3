//! Which members have joined, and which are missing.

use std::fmt;
use std::net::SocketAddr;

/// Which members have joined a root that listens. Its text names members up to a bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinStatus {
    /// The number of members that the root waits for, itself included.
    pub members: u32,
    /// The members that have joined, the root first.
    pub joined: Vec<JoinedMember>,
    /// The number of rejected connections: foreign, silent, with another token, or of nodes that
    /// cannot be members.
    pub rejected: u64,
    /// The last rejected connection, and the reason.
    pub last_rejected: Option<String>,
}

/// A member that has joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its name in messages.
    pub name: String,
    /// Where its node listens. Of the root this may be the unspecified address until another member
    /// has connected.
    pub address: SocketAddr,
    /// The number that it requested. The others are numbered when all have joined, in the order in
    /// which they joined.
    pub member: Option<u32>,
}

/// The number of members that a text names.
const NAMED_MAX: usize = 8;

impl JoinStatus {
    /// The missing member numbers; `None` unless all members that have joined requested a number.
    pub fn missing(&self) -> Option<Vec<u32>> {
        let taken: Option<Vec<u32>> = self.joined.iter().map(|joined| joined.member).collect();
        taken.map(|taken| (0..self.members).filter(|member| !taken.contains(member)).collect())
    }
}

impl fmt::Display for JoinedMember {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        if !self.address.ip().is_unspecified() {
            write!(formatter, " at {}", self.address)?;
        }
        self.member.map_or(Ok(()), |member| write!(formatter, " as member {member}"))
    }
}

impl fmt::Display for JoinStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { members, joined, rejected, last_rejected } = self;
        write!(formatter, "{} of {members} members have joined: {}", joined.len(), list(joined))?;
        let missing = (*members as usize).saturating_sub(joined.len());
        match self.missing().filter(|missing| !missing.is_empty()) {
            Some(numbers) if missing == 1 => write!(formatter, "; member {} is missing", numbers[0])?,
            Some(numbers) => write!(formatter, "; members {} are missing", list(&numbers))?,
            None if missing == 1 => formatter.write_str("; one is missing")?,
            None if missing > 1 => write!(formatter, "; {missing} are missing")?,
            None => {}
        }
        match last_rejected {
            Some(last) if *rejected == 1 => write!(formatter, "; 1 connection rejected: {last}"),
            Some(last) => write!(formatter, "; {rejected} connections rejected, the last: {last}"),
            None => Ok(()),
        }
    }
}

fn list<T: ToString>(all: &[T]) -> String {
    let named: Vec<String> = all.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match all.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        others => format!("{} and {others} others", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(number: u16, member: Option<u32>) -> JoinedMember {
        let address = SocketAddr::new([10, 0, 0, 1].into(), 7_000 + number);
        JoinedMember { name: format!("n{number}"), address, member }
    }

    #[test]
    fn missing_members_are_named_by_number_if_all_numbers_are_known() {
        let status = |members, joined: Vec<JoinedMember>| JoinStatus {
            members,
            joined,
            rejected: 0,
            last_rejected: None,
        };
        assert_eq!(
            status(4, vec![joined(0, Some(0)), joined(2, Some(2))]).to_string(),
            "2 of 4 members have joined: n0 at 10.0.0.1:7000 as member 0, n2 at 10.0.0.1:7002 as member 2; members 1, 3 are missing"
        );
        let mut some = status(3, vec![joined(0, Some(0)), joined(1, None)]);
        some.joined[0].address.set_ip([0, 0, 0, 0].into());
        assert!(some.to_string().contains("have joined: n0 as member 0, n1"));
        assert!(some.to_string().ends_with("n1 at 10.0.0.1:7001; one is missing"));
        some.rejected = 2;
        some.last_rejected = Some("10.0.0.9:1: why".into());
        assert!(some.to_string().ends_with("; 2 connections rejected, the last: 10.0.0.9:1: why"));
        let many = status(4_096, (0..100).map(|number| joined(number, None)).collect()).to_string();
        assert!(many.contains(" and 92 others; 3996 are missing") && many.len() < 400, "{many}");
    }
}

//! Who has come to a gathering, and who has not.

use std::fmt;
use std::net::SocketAddr;

/// Who has come to a gathering, and who has not. Its text names them all, or as many as fit a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roll {
    /// How many members there will be, the root among them.
    pub members: u32,
    /// Who has come, the root first.
    pub come: Vec<Arrival>,
    /// How many connections have been turned away: foreign, silent, without the token, or of nodes that cannot be members.
    pub turned_away: u64,
    /// The last of them, and why.
    pub last_turned_away: Option<String>,
}

/// Somebody who has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// What it calls itself.
    pub name: String,
    /// Where its node listens; at the root, which is still to learn its own address, that may be all addresses.
    pub address: SocketAddr,
    /// The number that it has asked for. All others are numbered when everybody is there, in the order in which they came.
    pub member: Option<u32>,
}

/// As many are named in a text.
const SHOWN: usize = 8;

impl Roll {
    /// The numbers that nobody has, if all who have come have asked for one.
    pub fn missing(&self) -> Option<Vec<u32>> {
        let taken: Option<Vec<u32>> = self.come.iter().map(|arrival| arrival.member).collect();
        taken.map(|taken| (0..self.members).filter(|member| !taken.contains(member)).collect())
    }
}

impl fmt::Display for Arrival {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        if !self.address.ip().is_unspecified() {
            write!(formatter, " at {}", self.address)?;
        }
        self.member.map_or(Ok(()), |member| write!(formatter, " as member {member}"))
    }
}

impl fmt::Display for Roll {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { members, come, turned_away, last_turned_away } = self;
        write!(formatter, "{} of {members} members have come: {}", come.len(), listed(come))?;
        let missing = (*members as usize).saturating_sub(come.len());
        match self.missing().filter(|missing| !missing.is_empty()) {
            Some(numbers) if missing == 1 => write!(formatter, "; member {} is missing", numbers[0])?,
            Some(numbers) => write!(formatter, "; members {} are missing", listed(&numbers))?,
            None if missing == 1 => formatter.write_str("; one is missing")?,
            None if missing > 1 => write!(formatter, "; {missing} are missing")?,
            None => {}
        }
        match last_turned_away {
            Some(last) if *turned_away == 1 => write!(formatter, "; turned away was {last}"),
            Some(last) => write!(formatter, "; {turned_away} were turned away, the last of them {last}"),
            None => Ok(()),
        }
    }
}

fn listed<T: ToString>(all: &[T]) -> String {
    let shown: Vec<String> = all.iter().take(SHOWN).map(ToString::to_string).collect();
    match all.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        others => format!("{} and {others} others", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(number: u16, member: Option<u32>) -> Arrival {
        let address = SocketAddr::new([10, 0, 0, 1].into(), 7_000 + number);
        Arrival { name: format!("n{number}"), address, member }
    }

    #[test]
    fn who_is_missing_is_named_by_number_if_numbers_are_known() {
        let roll =
            |members, come: Vec<Arrival>| Roll { members, come, turned_away: 0, last_turned_away: None };
        assert_eq!(
            roll(4, vec![arrival(0, Some(0)), arrival(2, Some(2))]).to_string(),
            "2 of 4 members have come: n0 at 10.0.0.1:7000 as member 0, n2 at 10.0.0.1:7002 as member 2; members 1, 3 are missing"
        );
        let mut some = roll(3, vec![arrival(0, Some(0)), arrival(1, None)]);
        some.come[0].address.set_ip([0, 0, 0, 0].into());
        assert!(some.to_string().contains("have come: n0 as member 0, n1"));
        assert!(some.to_string().ends_with("n1 at 10.0.0.1:7001; one is missing"));
        (some.turned_away, some.last_turned_away) = (2, Some("10.0.0.9:1: why".into()));
        assert!(some.to_string().ends_with("; 2 were turned away, the last of them 10.0.0.9:1: why"));
        let many = roll(4_096, (0..100).map(|number| arrival(number, None)).collect()).to_string();
        assert!(many.contains(" and 92 others; 3996 are missing") && many.len() < 400, "{many}");
    }
}

//! Parses the addresses of members: host names, ports, and files of them.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use treecast_fabric::expand_hostlist;
use treecast_proto::CreateGroup;
use treecast_shm::readers::READERS_MAX;

use super::GroupSettings;
use super::error::NodeError;
use super::files::read_file;

/// The default UDP port.
pub const PORT: u16 = 7_700;

/// The longest file of members, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A member in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its host, as the list names it.
    pub host: String,
    /// The address of its node.
    pub address: SocketAddr,
}

impl Member {
    /// A member from its address, as [`resolve`] parses it.
    ///
    /// # Errors
    /// Those of [`resolve`].
    ///
    /// ```
    /// let member = treecast_node::Member::resolve("localhost:7000")?;
    /// assert_eq!((member.host.as_str(), member.to_string()), ("localhost", "localhost:7000".into()));
    /// # Ok::<(), treecast_node::NodeError>(())
    /// ```
    pub fn resolve(text: &str) -> Result<Self, NodeError> {
        let address = resolve(text)?;
        let is_name = text.parse::<SocketAddr>().is_err() && bare(text).parse::<IpAddr>().is_err();
        let name = text.split(':').next().filter(|_| is_name);
        let host = name.map_or_else(|| address.ip().to_string(), String::from);
        Ok(Self { host, address })
    }
}

impl fmt::Display for Member {
    /// The host, as the list names it, with the port.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host == self.address.ip().to_string() {
            return self.address.fmt(formatter);
        }
        write!(formatter, "{}:{}", self.host, self.address.port())
    }
}

impl GroupSettings {
    /// A group of the members in a list; the first is the root.
    pub fn of(members: Vec<Member>) -> Self {
        let addresses = members.iter().map(|member| member.address).collect();
        Self { hosts: members.into_iter().map(|member| member.host).collect(), ..Self::new(addresses) }
    }
}

/// The text without the brackets of an IPv6 address.
fn bare(text: &str) -> &str {
    text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text)
}

/// The address of a host: `host:port`, `192.0.2.1:7000`, `[2001:db8::1]:7000`, or one of them
/// without a port, which is then [`PORT`]. Host names are resolved; IPv4 addresses are preferred.
///
/// # Errors
/// [`NodeError::Members`]: an invalid address, or a name that cannot be resolved.
///
/// ```
/// # use treecast_node::resolve;
/// assert_eq!(resolve("192.0.2.1:7000")?.to_string(), "192.0.2.1:7000");
/// assert_eq!(resolve("::1")?.to_string(), "[::1]:7700");
/// # Ok::<(), treecast_node::NodeError>(())
/// ```
pub fn resolve(text: &str) -> Result<SocketAddr, NodeError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = bare(text).parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, PORT));
    }
    let is_name = |name: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty() && name.bytes().all(fits)
    };
    let (name, port) = match text.split_once(':') {
        Some((name, port)) => (name, port.parse().ok().filter(|_| port.bytes().all(|b| b.is_ascii_digit()))),
        None => (text, Some(PORT)),
    };
    let Some(port) = port.filter(|_| is_name(name)) else {
        return Err(NodeError::Members(format!("{text} is no address such as 192.0.2.1:7000 or name:7000")));
    };
    let unresolved =
        |why: &dyn std::fmt::Display| NodeError::Members(format!("cannot resolve host {name}: {why}"));
    let found: Vec<SocketAddr> =
        (name, port).to_socket_addrs().map_err(|error| unresolved(&error))?.collect();
    let v4 = found.iter().find(|address| address.is_ipv4());
    v4.or(found.first()).copied().ok_or_else(|| unresolved(&"it has no address"))
}

/// The hosts that a line of a file names, each as [`resolve`] parses it: one, or those of a
/// hostlist, with one port for all.
fn hosts_of(text: &str) -> Result<Vec<String>, NodeError> {
    // What begins with a bracket is an IPv6 address.
    let is_hostlist = text.contains(',') || text.find('[').is_some_and(|place| place > 0);
    if !is_hostlist {
        return Ok(vec![text.into()]);
    }
    let (hosts, port) = text.rsplit_once(':').map_or((text, None), |(hosts, port)| (hosts, Some(port)));
    let names = expand_hostlist(hosts).map_err(|error| NodeError::Members(error.to_string()))?;
    Ok(match port {
        Some(port) => names.into_iter().map(|name| format!("{name}:{port}")).collect(),
        None => names,
    })
}

/// The hosts of a line, and how many members each has: `slots=N`, as in the host files of Open MPI,
/// or one.
fn split_slots(text: &str) -> Result<(&str, usize), NodeError> {
    let Some((hosts, slots)) = text.split_once(char::is_whitespace) else { return Ok((text, 1)) };
    let number = slots.trim().strip_prefix("slots=").and_then(|number| number.parse().ok());
    match number.filter(|number| (1..=READERS_MAX as usize).contains(number)) {
        Some(number) => Ok((hosts, number)),
        None => Err(NodeError::Members(format!(
            "after the host '{}' is not slots=N, with a number from 1 to {READERS_MAX}",
            slots.trim()
        ))),
    }
}

/// The members in a file, from member 0 on: in each line one, as [`resolve`] parses it, or several
/// by a [hostlist](treecast_fabric::expand_hostlist), such as `n[1-16]` or `n[1-16]:7000`. With
/// `slots=4` behind it, each of its hosts has four members, which share a node. A `#` begins a
/// comment.
///
/// # Errors
/// [`NodeError::Members`] with the file and the line: an invalid address, a name that cannot be
/// resolved, an address given twice, more than 4,096 members; a file without members, or that
/// cannot be read.
pub fn read_members(path: &Path) -> Result<Vec<Member>, NodeError> {
    let unread = |error| NodeError::Members(format!("{} could not be read: {error}", path.display()));
    let text = read_file(path, FILE_BYTES_MAX).map_err(unread)?;
    parse_members(&text, &path.display().to_string())
}

/// The members in a text with the format of [`read_members`]; `source` names it in messages.
///
/// # Errors
/// Those of [`read_members`], except for reading.
pub fn parse_members(text: &str, source: &str) -> Result<Vec<Member>, NodeError> {
    let wrong = |what: String| NodeError::Members(format!("{source}{what}"));
    let mut members: Vec<Member> = Vec::new();
    let mut lines: BTreeMap<SocketAddr, usize> = BTreeMap::new();
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        let in_line = |error: NodeError| wrong(format!(", line {line}: {error}"));
        let (hosts, slots) = split_slots(text).map_err(in_line)?;
        let hosts = hosts_of(hosts).map_err(in_line)?;
        // Before any name is resolved.
        let (count, most) = (members.len() + hosts.len() * slots, CreateGroup::MEMBERS_MAX);
        if count > most {
            return Err(wrong(format!(
                ", line {line}: with this line there are {count} members, and a group has at most {most}"
            )));
        }
        for host in hosts {
            let member = Member::resolve(&host).map_err(in_line)?;
            if let Some(before) = lines.insert(member.address, line) {
                return Err(wrong(format!(
                    ", line {line}: {} is given twice, before in line {before}",
                    member.address
                )));
            }
            members.extend(iter::repeat_n(member, slots));
        }
    }
    if members.is_empty() {
        return Err(wrong(": no members".into()));
    }
    Ok(members)
}

/// The number of the member that listens at `own`: the member with that address, or, for a node
/// that listens at the unspecified address, the member with its port and an address of this
/// machine.
///
/// # Errors
/// [`NodeError::Members`], if no member or more than one has it.
pub fn find_own(own: SocketAddr, members: &[SocketAddr]) -> Result<usize, NodeError> {
    let is_own = |member: &SocketAddr| {
        *member == own
            || own.ip().is_unspecified()
                && own.port() == member.port()
                && (own.is_ipv6() || member.is_ipv4())
                && is_here(member.ip())
    };
    let mut found = members.iter().enumerate().filter(|(_, member)| is_own(member)).map(|(place, _)| place);
    match (found.next(), found.next()) {
        (Some(place), None) => Ok(place),
        (Some(one), Some(other)) => Err(NodeError::Members(format!(
            "this node, at {own}, is member {one} and member {other}: bind it to one of their addresses"
        ))),
        (None, _) => Err(NodeError::Members(format!(
            "this node listens at {own}, which is not the address of a member: {}",
            list(members)
        ))),
    }
}

/// Of some members the one that has an address of this machine: the address at which this machine's
/// node listens.
///
/// # Errors
/// [`NodeError::Members`], if no member or several members have one.
pub fn find_here(members: &[SocketAddr]) -> Result<SocketAddr, NodeError> {
    let mut here: Vec<SocketAddr> = members.iter().copied().filter(|member| is_here(member.ip())).collect();
    // Members at the same address share a node.
    here.sort_unstable();
    here.dedup();
    match here[..] {
        [one] => Ok(one),
        [] => Err(NodeError::Members(format!("no member has an address of this machine: {}", list(members)))),
        _ => Err(NodeError::Members(format!(
            "several members have addresses of this machine: bind the node to one of them: {}",
            list(&here)
        ))),
    }
}

/// Whether an address belongs to this machine: a socket can be bound to it.
fn is_here(ip: IpAddr) -> bool {
    !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
}

/// A list of addresses for a message, up to a bound.
fn list(members: &[SocketAddr]) -> String {
    const NAMED_MAX: usize = 8;
    let named: Vec<String> = members.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    let others = members.len().saturating_sub(NAMED_MAX);
    if others == 0 { named.join(", ") } else { format!("{} and {others} others", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed() {
        for (text, expected) in [
            ("192.0.2.1:7000", "192.0.2.1:7000"),
            ("192.0.2.1", "192.0.2.1:7700"),
            ("[2001:db8::1]:7000", "[2001:db8::1]:7000"),
            ("[2001:db8::1]", "[2001:db8::1]:7700"),
            ("2001:db8::1", "[2001:db8::1]:7700"),
            ("localhost:7000", "127.0.0.1:7000"),
        ] {
            assert_eq!(resolve(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", ":7000", "host:port", "host:+1", "host:70000", "a b", "http://host:1", "host:1:2"] {
            let error = resolve(text).unwrap_err().to_string();
            assert!(error.ends_with("is no address such as 192.0.2.1:7000 or name:7000"), "{error}");
        }
        let error = resolve("nobody.invalid").unwrap_err().to_string();
        assert!(error.starts_with("cannot resolve host nobody.invalid: "), "{error}");
    }

    fn read_text(text: &str) -> Result<Vec<Member>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        std::fs::write(&path, text).unwrap();
        let error = |error: NodeError| error.to_string().replace(&path.display().to_string(), "FILE");
        read_members(&path).map_err(error)
    }

    #[test]
    fn members_are_read_from_a_file() {
        let members = read_text("# ours\n10.0.0.1:7000 # the root\n\n  10.0.0.2\r\n[::1]:9\n").unwrap();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        assert_eq!(members, ["10.0.0.1:7000", "10.0.0.2:7700", "[::1]:9"]);
        let hosts = |text| read_text(text).unwrap().into_iter().map(|member| member.host).collect::<Vec<_>>();
        assert_eq!(
            hosts("localhost\n[::1]:9\n::1\n10.0.0.[1-2]:5"),
            ["localhost", "::1", "::1", "10.0.0.1", "10.0.0.2"]
        );
    }

    #[test]
    fn a_line_of_a_file_may_be_a_hostlist() {
        let members = read_text("10.0.0.1\n10.0.0.[2-3],10.0.1.1 # two racks\n10.0.0.[08,9]:7000\n");
        // Leading zeros are for names, and not for addresses.
        assert!(members.unwrap_err().starts_with("FILE, line 3: "));
        let members = read_text("10.0.0.1\n10.0.0.[2-3],10.0.1.1 # two racks\n10.0.0.[8-9]:7000\n").unwrap();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        let expected = [
            "10.0.0.1:7700",
            "10.0.0.2:7700",
            "10.0.0.3:7700",
            "10.0.1.1:7700",
            "10.0.0.8:7000",
            "10.0.0.9:7000",
        ];
        assert_eq!(members, expected);
    }

    #[test]
    fn hosts_of_a_file_may_have_several_members() {
        let members = read_text("10.0.0.[1-2]:7000 slots=2 # two processes each\n10.0.0.3\n").unwrap();
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        let expected = ["10.0.0.1:7000", "10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.2:7000", "10.0.0.3:7700"];
        assert_eq!(members, expected);
        for slots in ["slots=0", "slots=257", "slots=x", "4", "slots=2 more"] {
            let error = read_text(&format!("10.0.0.1 {slots}")).unwrap_err();
            let expected = format!("after the host '{slots}' is not slots=N, with a number from 1 to 256");
            assert!(error.ends_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_file_with_too_many_members_is_refused_at_the_line_that_has_them() {
        let a_million = "10.0.[0-15].[0-255] slots=256\n";
        assert_eq!(
            read_text(a_million).unwrap_err(),
            "FILE, line 1: with this line there are 1048576 members, and a group has at most 4096"
        );
        let lines: Vec<String> =
            (0..16_384).map(|number| format!("10.1.{}.{}", number >> 8, number & 255)).collect();
        assert_eq!(
            read_text(&lines.join("\n")).unwrap_err(),
            "FILE, line 4097: with this line there are 4097 members, and a group has at most 4096"
        );
        // The names of the line that is too long are not resolved.
        assert!(
            read_text("10.0.0.1 slots=2\nnobody[1-16].invalid slots=256\n")
                .unwrap_err()
                .contains("4098 members")
        );
        assert_eq!(read_text("10.0.0.[1-16] slots=256").unwrap().len(), 4096);
    }

    #[test]
    fn errors_in_a_file_name_the_line() {
        let wrong = |text: &str| read_text(text).unwrap_err();
        assert_eq!(
            wrong("10.0.0.1\n10.0.0.2\n\n10.0.0.1:7700\n"),
            "FILE, line 4: 10.0.0.1:7700 is given twice, before in line 1"
        );
        assert_eq!(wrong("\n# none\n"), "FILE: no members");
        assert!(wrong("10.0.0.1\nn 2\n").starts_with("FILE, line 2: after the host '2' is not slots=N"));
        assert_eq!(
            wrong("10.0.0.1\nn[1-"),
            "FILE, line 2: 'n[1-' is not a hostlist such as node7 or n[1-16]: a bracket is not closed"
        );
        assert_eq!(
            wrong("n[1-5000]:7"),
            "FILE, line 1: with this line there are 5000 members, and a group has at most 4096"
        );
        assert_eq!(wrong("10.0.0.[1-2,1]"), "FILE, line 1: 10.0.0.1:7700 is given twice, before in line 1");
        assert!(wrong("nobody.invalid:1").starts_with("FILE, line 1: cannot resolve host nobody.invalid"));
        let error = read_members(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero could not be read: it has more than 1048576 bytes");
        let error = read_members(Path::new("/no/such")).unwrap_err().to_string();
        assert!(error.starts_with("/no/such could not be read: "), "{error}");
    }

    #[test]
    fn the_member_on_this_machine_is_found() {
        let find = |members: &[&str]| {
            let members: Vec<SocketAddr> = members.iter().map(|member| member.parse().unwrap()).collect();
            find_here(&members).map(|found| found.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(find(&["192.0.2.1:7", "127.0.0.1:7"]).unwrap(), "127.0.0.1:7");
        assert!(find(&["192.0.2.1:7"]).unwrap_err().ends_with("of this machine: 192.0.2.1:7"));
        assert!(find(&["127.0.0.1:7", "127.0.0.1:8"]).unwrap_err().ends_with(": 127.0.0.1:7, 127.0.0.1:8"));
    }

    #[test]
    fn a_node_at_the_unspecified_address_finds_itself_by_its_port() {
        let find = |own: &str, members: &[&str]| {
            let members: Vec<SocketAddr> = members.iter().map(|member| member.parse().unwrap()).collect();
            find_own(own.parse().unwrap(), &members).map_err(|error| error.to_string())
        };
        assert_eq!(find("0.0.0.0:7", &["192.0.2.1:7", "127.0.0.1:8", "127.0.0.1:7"]), Ok(2));
        assert_eq!(find("192.0.2.1:7", &["127.0.0.1:7", "192.0.2.1:7"]), Ok(1));
        assert!(
            find("127.0.0.1:7", &["127.0.0.2:7"])
                .unwrap_err()
                .ends_with("not the address of a member: 127.0.0.2:7")
        );
        let both = find("0.0.0.0:7", &["127.0.0.1:7", "127.0.0.2:7"]).unwrap_err();
        assert!(both.contains("is member 0 and member 1"), "{both}");
    }
}

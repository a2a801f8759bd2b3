//! Queries and changes of interfaces and the filters on them: the part of rtnetlink(7) that
//! attaching needs.
//!
//! The files of /sys may be those of another network namespace; a netlink socket stays in the
//! namespace in which it was created.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use aya_obj::generated::{
    TC_H_CLSACT, TC_H_MAJ_MASK, TC_H_MIN_EGRESS, TC_H_MIN_INGRESS, TCA_BPF_FD, TCA_BPF_FLAG_ACT_DIRECT,
    TCA_BPF_FLAGS, TCA_BPF_ID, TCA_BPF_NAME,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

use super::Direction;

/// The longest message block that the kernel sends at once.
const RESPONSE_BYTES: usize = 32_768;

const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const ADDRESS_BYTES: usize = 8;
const FILTER_BYTES: usize = 20;

/// The attribute for the kind of master that an interface is a port of (`linux/if_link.h`).
const IFLA_INFO_SLAVE_KIND: u16 = 4;

/// A socket for requests to the kernel.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: Cell<u32>,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub mtu_bytes: u32,
    /// The hardware type: `ARPHRD_ETHER`, for example.
    pub hardware: u16,
    pub is_up: bool,
    /// Whether received packets go to another interface, which has the addresses: whether it is a
    /// port of a bridge or a bond.
    pub is_port: bool,
}

/// The position of a filter of a clsact queueing discipline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterPosition {
    pub interface: u32,
    pub direction: Direction,
    /// The filter with the lowest priority number sees packets first; 0: none.
    pub priority: u16,
    /// Distinguishes the filters with the same priority.
    pub handle: u32,
}

/// A filter of a clsact queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub position: FilterPosition,
    /// The name of a BPF filter; the kind of any other.
    pub name: String,
    /// The ID of its program.
    pub program: Option<u32>,
}

impl Netlink {
    pub fn open() -> io::Result<Self> {
        // The default protocol, 0, is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        Ok(Self { socket, sequence: Cell::new(0) })
    }

    /// All interfaces.
    pub fn links(&self) -> io::Result<Vec<Link>> {
        let request = Request::new(libc::RTM_GETLINK, libc::NLM_F_DUMP, &[0; LINK_BYTES]);
        self.list(request, libc::RTM_NEWLINK, Link::read)
    }

    /// One interface; `None` if it does not exist.
    pub fn link(&self, index: u32) -> io::Result<Option<Link>> {
        let mut body = [0; LINK_BYTES];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        let request = Request::new(libc::RTM_GETLINK, libc::NLM_F_ACK, &body);
        first_unless(self.list(request, libc::RTM_NEWLINK, Link::read), &[libc::ENODEV])
    }

    /// All addresses, each with the index of its interface.
    pub fn addresses(&self) -> io::Result<Vec<(u32, IpAddr)>> {
        let request = Request::new(libc::RTM_GETADDR, libc::NLM_F_DUMP, &[0; ADDRESS_BYTES]);
        self.list(request, libc::RTM_NEWADDR, read_address)
    }

    /// Adds the queueing discipline to which ingress and egress filters are attached.
    pub fn add_clsact(&self, interface: u32) -> io::Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let body = tcmsg(interface, TC_H_CLSACT & TC_H_MAJ_MASK, TC_H_CLSACT, 0);
        let mut request = Request::new(libc::RTM_NEWQDISC, flags, &body);
        request.attribute(libc::TCA_KIND, b"clsact\0");
        self.request(request, |_, _| ())
    }

    /// Whether the ingress queueing discipline is clsact, and not the older one without egress.
    pub fn has_clsact(&self, interface: u32) -> io::Result<bool> {
        let body = tcmsg(interface, 0, TC_H_CLSACT, 0);
        // Some kernels answer only with NLM_F_ECHO.
        let request = Request::new(libc::RTM_GETQDISC, libc::NLM_F_ACK | libc::NLM_F_ECHO, &body);
        let kinds = self.list(request, libc::RTM_NEWQDISC, |body| {
            let kind = attributes(body.get(FILTER_BYTES..)?).find(|(kind, _)| *kind == libc::TCA_KIND)?;
            Some(text(kind.1))
        })?;
        Ok(kinds.iter().any(|kind| kind == "clsact"))
    }

    /// The filters of one direction, in the order in which they see packets.
    pub fn filters(&self, interface: u32, direction: Direction) -> io::Result<Vec<Filter>> {
        let body = tcmsg(interface, 0, parent(direction), 0);
        let request = Request::new(libc::RTM_GETTFILTER, libc::NLM_F_DUMP, &body);
        self.list(request, libc::RTM_NEWTFILTER, Filter::read)
    }

    /// The BPF filter at a position, if there is one.
    pub fn filter(&self, position: FilterPosition) -> io::Result<Option<Filter>> {
        let request = bpf_filter(libc::RTM_GETTFILTER, 0, position);
        // Without the queueing discipline the kernel rejects the request as invalid.
        first_unless(self.list(request, libc::RTM_NEWTFILTER, Filter::read), &[libc::ENOENT, libc::EINVAL])
    }

    /// Adds a BPF filter.
    ///
    /// # Errors
    /// `EEXIST` if its position is in use, and those of the kernel.
    pub fn add_filter(
        &self,
        position: FilterPosition,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut request = bpf_filter(libc::RTM_NEWTFILTER, flags, position);
        let mut options = Vec::new();
        put(&mut options, TCA_BPF_FD as u16, &program.as_raw_fd().to_ne_bytes());
        put(&mut options, TCA_BPF_NAME as u16, &[name.as_bytes(), &[0]].concat());
        put(&mut options, TCA_BPF_FLAGS as u16, &TCA_BPF_FLAG_ACT_DIRECT.to_ne_bytes());
        request.attribute(libc::TCA_OPTIONS | libc::NLA_F_NESTED as u16, &options);
        self.request(request, |_, _| ())
    }

    /// Removes a BPF filter.
    pub fn remove_filter(&self, position: FilterPosition) -> io::Result<()> {
        let request = bpf_filter(libc::RTM_DELTFILTER, 0, position);
        self.request(request, |_, _| ())
    }

    /// The contents of all responses of one kind; malformed ones are skipped.
    fn list<T>(
        &self,
        request: Request,
        wanted: u16,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut found = Vec::new();
        self.request(request, |kind, body| {
            if kind == wanted {
                found.extend(read(body));
            }
        })?;
        Ok(found)
    }

    /// Sends a request, and calls `handle` with the kind and the body of every response.
    fn request(&self, mut request: Request, mut handle: impl FnMut(u16, &[u8])) -> io::Result<()> {
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        send(&self.socket, request.finish(sequence), SendFlags::empty())?;
        let mut response = vec![0; RESPONSE_BYTES];
        loop {
            let (bytes, _) = recv(&self.socket, &mut response[..], RecvFlags::empty())?;
            let mut rest = &response[..bytes];
            while let Some((header, body, next)) = message(rest) {
                rest = next;
                // A late response to a request that failed before.
                if header.sequence != sequence {
                    continue;
                }
                match i32::from(header.kind) {
                    // Both begin with an error, or 0.
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        return match number(body, 0).unwrap_or(0) as i32 {
                            0 => Ok(()),
                            error => Err(io::Error::from_raw_os_error(-error)),
                        };
                    }
                    _ => handle(header.kind, body),
                }
            }
        }
    }
}

impl Link {
    fn read(body: &[u8]) -> Option<Self> {
        let flags = number(body, 8)?;
        let mut link = Self {
            index: number(body, 4)?,
            name: String::new(),
            mtu_bytes: 0,
            hardware: u16::from_ne_bytes(*body[2..].first_chunk()?),
            is_up: flags & libc::IFF_UP as u32 != 0,
            is_port: false,
        };
        for (kind, value) in attributes(body.get(LINK_BYTES..)?) {
            match kind {
                libc::IFLA_IFNAME => link.name = text(value),
                libc::IFLA_MTU => link.mtu_bytes = number(value, 0)?,
                libc::IFLA_LINKINFO => {
                    let master = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_SLAVE_KIND);
                    // A port of a VRF keeps its own addresses.
                    link.is_port = master.is_some_and(|(_, kind)| text(kind) != "vrf");
                }
                _ => {}
            }
        }
        Some(link)
    }
}

impl Filter {
    fn read(body: &[u8]) -> Option<Self> {
        let position = FilterPosition {
            interface: number(body, 4)?,
            direction: if number(body, 12)? == parent(Direction::Ingress) {
                Direction::Ingress
            } else {
                Direction::Egress
            },
            priority: (number(body, 16)? >> 16) as u16,
            handle: number(body, 8)?,
        };
        let mut filter = Self { position, name: String::new(), program: None };
        for (kind, value) in attributes(body.get(FILTER_BYTES..)?) {
            match kind {
                libc::TCA_KIND => filter.name = text(value),
                libc::TCA_OPTIONS if filter.name == "bpf" => {
                    for (kind, value) in attributes(value) {
                        match u32::from(kind) {
                            TCA_BPF_NAME => filter.name = text(value),
                            TCA_BPF_ID => filter.program = number(value, 0),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        Some(filter)
    }
}

fn read_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let of = |wanted| attributes(body.get(ADDRESS_BYTES..)?).find(|(kind, _)| *kind == wanted);
    // On a point-to-point link IFA_ADDRESS is the address of the peer.
    let (_, value) = of(libc::IFA_LOCAL).or_else(|| of(libc::IFA_ADDRESS))?;
    let address = match value.len() {
        4 => IpAddr::from(*value.first_chunk::<4>()?),
        _ => IpAddr::from(*value.first_chunk::<16>()?),
    };
    Some((number(body, 4)?, address))
}

/// The first response; `None` if there is none, or if the error is one of `errors`.
fn first_unless<T>(found: io::Result<Vec<T>>, errors: &[i32]) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if error.raw_os_error().is_some_and(|code| errors.contains(&code)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A message to the kernel.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: libc::c_int, body: &[u8]) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&((flags | libc::NLM_F_REQUEST) as u16).to_ne_bytes());
        bytes.extend_from_slice(body);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        put(&mut self.0, kind, value);
    }

    fn finish(&mut self, sequence: u32) -> &[u8] {
        let bytes = self.0.len() as u32;
        self.0[..4].copy_from_slice(&bytes.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.0
    }
}

/// The parent of filters of the clsact discipline.
fn parent(direction: Direction) -> u32 {
    let minor = match direction {
        Direction::Ingress => TC_H_MIN_INGRESS,
        Direction::Egress => TC_H_MIN_EGRESS,
    };
    TC_H_CLSACT & TC_H_MAJ_MASK | minor
}

/// The body of messages about disciplines and filters: `tcmsg` of `linux/rtnetlink.h`.
fn tcmsg(interface: u32, handle: u32, parent: u32, info: u32) -> [u8; FILTER_BYTES] {
    let mut body = [0; FILTER_BYTES];
    for (index, number) in [interface, handle, parent, info].into_iter().enumerate() {
        body[4 * index + 4..4 * index + 8].copy_from_slice(&number.to_ne_bytes());
    }
    body
}

/// A request about one BPF filter, which sees packets of all protocols.
fn bpf_filter(kind: u16, flags: libc::c_int, position: FilterPosition) -> Request {
    let FilterPosition { interface, direction, priority, handle } = position;
    let protocol = u32::from((libc::ETH_P_ALL as u16).to_be());
    let body = tcmsg(interface, handle, parent(direction), u32::from(priority) << 16 | protocol);
    let mut request = Request::new(kind, flags | libc::NLM_F_ACK, &body);
    request.attribute(libc::TCA_KIND, b"bpf\0");
    request
}

/// Appends an attribute: its length including these four bytes, its kind, its value, and padding to
/// a multiple of 4.
fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    bytes.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Attributes: the kind and the value of each.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let bytes = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & libc::NLA_TYPE_MASK as u16;
        let value = rest.get(4..bytes)?;
        rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

struct Header {
    kind: u16,
    sequence: u32,
}

/// The header and the body of the first message, and the bytes after it.
fn message(bytes: &[u8]) -> Option<(Header, &[u8], &[u8])> {
    let length = number(bytes, 0)? as usize;
    let body = bytes.get(HEADER_BYTES..length)?;
    let kind = u16::from_ne_bytes(*bytes[4..].first_chunk()?);
    let next = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some((Header { kind, sequence: number(bytes, 8)? }, body, next))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A string, which may end with a zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

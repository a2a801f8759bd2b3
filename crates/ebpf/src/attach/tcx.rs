//! Links of TCX (traffic control express), which Linux has from 6.6 on: programs in order, each
//! held by a file descriptor.

#![expect(unsafe_code, reason = "aya does not query the interface of a link: bpf(2) does")]

use std::io;
use std::os::fd::AsRawFd;

use aya::programs::tc::{SchedClassifierLink, TcAttachOptions};
use aya::programs::{LinkOrder, MultiProgLink, ProgramError, SchedClassifier, TcAttachType};

use super::{Direction, Interface};

/// Attaches a program before all others.
pub fn attach(
    program: &mut SchedClassifier,
    interface: &Interface,
    direction: Direction,
) -> Result<SchedClassifierLink, ProgramError> {
    let options = TcAttachOptions::TcxOrder(LinkOrder::first());
    let link = program.attach_with_options(&interface.name, attach_type(direction), options)?;
    program.take_link(link)
}

/// Whether an error says that the kernel has no TCX links.
pub fn is_unknown(error: &ProgramError) -> bool {
    let ProgramError::SyscallError(error) = error else { return false };
    error.io_error.raw_os_error() == Some(libc::EINVAL)
}

/// The index of the interface that a link is on; 0 if it was detached, or the interface is gone.
pub fn interface_of(link: &SchedClassifierLink) -> io::Result<u32> {
    let mut found = LinkInfo::default();
    let attributes = InfoAttributes {
        descriptor: link.fd().map_err(io::Error::other)?.as_raw_fd() as u32,
        bytes: size_of::<LinkInfo>() as u32,
        info: std::ptr::from_mut(&mut found) as u64,
    };
    // SAFETY: these are the attributes of that command, and the kernel writes at most `bytes` bytes
    // to `info`.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attributes) }?;
    Ok(found.interface)
}

/// Detaches a program now. Closing the descriptor of its link would do so only once all descriptors
/// of it are closed, and a thread of this process that is just starting another program has copies
/// of them.
pub fn detach(link: &SchedClassifierLink) -> io::Result<()> {
    let attributes = DetachAttributes { descriptor: link.fd().map_err(io::Error::other)?.as_raw_fd() as u32 };
    // SAFETY: these are the attributes of that command, which writes nothing.
    unsafe { bpf(BPF_LINK_DETACH, &attributes) }
}

/// The system call.
///
/// # Safety
/// `Attributes` is the type that the command takes, and the memory to which it writes is valid for
/// writing.
unsafe fn bpf<Attributes>(command: libc::c_long, attributes: &Attributes) -> io::Result<()> {
    let bytes = size_of::<Attributes>() as libc::c_ulong;
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The names of the programs on an interface; none if the query fails: it needs the privileges of
/// root.
pub fn programs(interface: &str, direction: Direction) -> Vec<String> {
    let found =
        SchedClassifier::query_tcx(interface, attach_type(direction)).map_or(Vec::new(), |(_, found)| found);
    found.iter().filter_map(|program| program.name_as_str().map(str::to_owned)).collect()
}

fn attach_type(direction: Direction) -> TcAttachType {
    match direction {
        Direction::Ingress => TcAttachType::Ingress,
        Direction::Egress => TcAttachType::Egress,
    }
}

/// From linux/bpf.h, as the structures below.
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_DETACH: libc::c_long = 34;

#[repr(C)]
struct DetachAttributes {
    descriptor: u32,
}

#[repr(C)]
struct InfoAttributes {
    descriptor: u32,
    bytes: u32,
    info: u64,
}

/// The beginning of `bpf_link_info` for a link of this kind.
#[derive(Default)]
#[repr(C, align(8))]
struct LinkInfo {
    kind: u32,
    link: u32,
    program: u32,
    reserved: u32,
    interface: u32,
    direction: u32,
}

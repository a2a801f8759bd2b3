//! Entering the namespaces of a host.
//!
//! A process with several threads cannot move itself: user namespaces are for single threads only, and a PID namespace is
//! entered by children alone. So the child that a `Command` forks moves, before it becomes another program, and forks once
//! more: the grandchild is in the PID namespace too and becomes the program. The child stays as what the caller knows as
//! the `Child`: it ends as the grandchild ends, and takes it along. Thus no program has to be called again in a special
//! way, whoever uses the library needs to prepare nothing, and `Command` keeps all it can do.
#![expect(unsafe_code, reason = "fork, and code between fork and exec")]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, getpid};

/// The namespaces of a host, in the order in which they are entered.
pub(crate) struct Namespaces(Vec<File>);

impl Namespaces {
    /// Those of a process of a lab. `outer` is the process, seen from here, that started the lab's first; `inner` is the
    /// process as it is seen in the lab.
    pub(crate) fn open(outer: u32, inner: u32, own_user: bool) -> io::Result<Self> {
        let outer = Path::new("/proc").join(outer.to_string());
        let inner = outer.join("root/proc").join(inner.to_string());
        // The user namespace comes first: it gives the right to enter the others.
        let user = own_user.then(|| outer.join("ns/user"));
        let others = ["ns/ipc", "ns/uts", "ns/net", "ns/mnt"].map(|name| inner.join(name));
        let pid = outer.join("ns/pid_for_children");
        user.into_iter().chain(others).chain([pid]).map(File::open).collect::<io::Result<_>>().map(Self)
    }

    /// Lets a command run in them, in the same folder.
    pub(crate) fn enter_by(self, command: &mut Command) {
        let before_exec = move || {
            let mut folder = [0u8; libc::PATH_MAX as usize];
            // SAFETY: the buffer is as long as is said.
            if unsafe { libc::getcwd(folder.as_mut_ptr().cast(), folder.len()) }.is_null() {
                return Err(io::Error::last_os_error());
            }
            for namespace in &self.0 {
                setns(namespace, CloneFlags::empty())?;
            }
            // Who enters a mount namespace stands at its root.
            let folder = std::ffi::CStr::from_bytes_until_nul(&folder).expect("getcwd ends with a zero");
            chdir(folder)?;
            // SAFETY: this process has one thread; on both sides only system calls follow.
            match unsafe { fork() }? {
                ForkResult::Parent { child } => follow(child),
                ForkResult::Child => Ok(prctl::set_pdeathsig(Signal::SIGKILL)?),
            }
        };
        // SAFETY: between fork and exec nothing is allocated and no lock is taken: system calls alone.
        unsafe { command.pre_exec(before_exec) };
    }
}

/// Ends as the child ends.
fn follow(child: Pid) -> ! {
    // SAFETY: nothing here uses a file again: the ends of pipes are the child's alone. No handler is installed.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
            libc::_exit(126);
        }
        // From the terminal they come to the child too, and what they mean is for it to say: as in system(3).
        for ignored in [Signal::SIGINT, Signal::SIGQUIT] {
            let _ = signal(ignored, SigHandler::SigIgn);
        }
    }
    let status = loop {
        match waitpid(child, None) {
            Err(Errno::EINTR) => {}
            status => break status,
        }
    };
    let code = match status {
        Ok(WaitStatus::Exited(_, code)) => code,
        Ok(WaitStatus::Signaled(_, by, _)) => {
            // The memory is that of who started us: no core of it.
            let _ = prctl::set_dumpable(false);
            // SAFETY: the default is no handler.
            let _ = unsafe { signal(by, SigHandler::SigDfl) };
            let _ = kill(getpid(), by);
            128 + by as i32
        }
        _ => 126,
    };
    // SAFETY: ends the process without running what its parent has registered for its own end.
    unsafe { libc::_exit(code) }
}

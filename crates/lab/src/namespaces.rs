//! Entering the namespaces of a host.
//!
//! A process with several threads cannot move itself: user namespaces are for single threads only, and a PID namespace is
//! entered by children alone. So it is the child that a `Command` forks which moves, before it becomes another program.
//! Nobody needs to prepare anything in `main` for it, tests included, and `Command` keeps all it can do.
//!
//! Three processes come of it. The child is what the caller knows as the `Child`: it ends as the program ends. The guard
//! is its child, and the program is the child of the guard, and in the PID namespace of the lab. The child can be killed
//! by anybody; then the guard kills the program and buries it. Without a guard, that would be left to the first process
//! of the machine, and the lab could not end before: in containers, where that process may be anything, never.
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
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, getpid, getppid};

/// The namespaces of a host.
pub(crate) struct Namespaces {
    /// Those that a process enters itself, in this order.
    own: Vec<File>,
    /// The one that its children enter.
    of_children: File,
}

impl Namespaces {
    /// Those of a process of a lab. `outer` is the process, seen from here, that started the lab's first; `inner` is the
    /// process as it is seen in the lab.
    pub(crate) fn open(outer: u32, inner: u32, own_user: bool) -> io::Result<Self> {
        let outer = Path::new("/proc").join(outer.to_string());
        let inner = outer.join("root/proc").join(inner.to_string());
        // The user namespace comes first: it gives the right to enter the others.
        let user = own_user.then(|| outer.join("ns/user"));
        let others = ["ns/ipc", "ns/uts", "ns/net", "ns/mnt"].map(|name| inner.join(name));
        Ok(Self {
            own: user.into_iter().chain(others).map(File::open).collect::<io::Result<_>>()?,
            of_children: File::open(outer.join("ns/pid_for_children"))?,
        })
    }

    /// Lets a command run in them, in the same folder.
    pub(crate) fn enter_by(self, command: &mut Command) {
        let before_exec = move || {
            let mut folder = [0u8; libc::PATH_MAX as usize];
            // SAFETY: the buffer is as long as is said.
            if unsafe { libc::getcwd(folder.as_mut_ptr().cast(), folder.len()) }.is_null() {
                return Err(io::Error::last_os_error());
            }
            for namespace in &self.own {
                setns(namespace, CloneFlags::empty())?;
            }
            // Who enters a mount namespace stands at its root.
            let folder = std::ffi::CStr::from_bytes_until_nul(&folder).expect("getcwd ends with a zero");
            chdir(folder)?;
            let caller = getpid();
            // SAFETY: this process has one thread, and so have its children; all do system calls alone.
            if let ForkResult::Parent { child } = unsafe { fork() }? {
                follow(child);
            }
            setns(&self.of_children, CloneFlags::empty())?;
            // SAFETY: as above.
            if let ForkResult::Parent { child } = unsafe { fork() }? {
                guard(child, caller);
            }
            Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
        };
        // SAFETY: between fork and exec nothing is allocated and no lock is taken: system calls alone.
        unsafe { command.pre_exec(before_exec) };
    }
}

/// The child: ends as the guard ends.
fn follow(guard: Pid) -> ! {
    stand_aside();
    loop {
        match waitpid(guard, None) {
            Err(Errno::EINTR) => {}
            status => end_as(status),
        }
    }
}

/// The guard: ends as the program ends, and kills it if the child is no more.
fn guard(program: Pid, caller: Pid) -> ! {
    stand_aside();
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGCHLD);
    signals.add(Signal::SIGTERM);
    let _ = signals.thread_block();
    let _ = prctl::set_pdeathsig(Signal::SIGTERM);
    if getppid() != caller {
        let _ = kill(program, Signal::SIGKILL);
    }
    loop {
        match waitpid(program, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => {}
            status => end_as(status),
        }
        if signals.wait() == Ok(Signal::SIGTERM) {
            let _ = kill(program, Signal::SIGKILL);
        }
    }
}

/// Leaves the files and the terminal to the program.
fn stand_aside() {
    // SAFETY: no file is used again here.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } != 0 {
        end(126);
    }
    // What the terminal sends comes to the program too, and what it means is for it to say: as in system(3).
    for (number, handler) in [
        (Signal::SIGINT, SigHandler::SigIgn),
        (Signal::SIGQUIT, SigHandler::SigIgn),
        (Signal::SIGCHLD, SigHandler::SigDfl),
    ] {
        // SAFETY: no handler of ours is installed.
        let _ = unsafe { signal(number, handler) };
    }
}

/// Ends as another process has ended.
fn end_as(status: nix::Result<WaitStatus>) -> ! {
    match status {
        Ok(WaitStatus::Exited(_, code)) => end(code),
        Ok(WaitStatus::Signaled(_, by, _)) => {
            // The memory is that of who started us: no core of it.
            let _ = prctl::set_dumpable(false);
            // SAFETY: the default is no handler.
            let _ = unsafe { signal(by, SigHandler::SigDfl) };
            let _ = SigSet::all().thread_unblock();
            let _ = kill(getpid(), by);
            end(128 + by as i32)
        }
        _ => end(126),
    }
}

fn end(code: i32) -> ! {
    // SAFETY: nothing that the caller has registered for its own end is run.
    unsafe { libc::_exit(code) }
}

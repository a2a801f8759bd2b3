//! Entering the namespaces of a host.
//!
//! A process with several threads cannot enter them: only single-threaded processes can enter a
//! user namespace, and only new children are placed in a PID namespace. So the child that a
//! `Command` forks enters them, before it calls `exec`. Neither `main` nor tests need preparation,
//! and all features of `Command` work.
//!
//! There are three processes. The child is the caller's `Child`: it exits with the status of the
//! program. The guard is a child of the child, and the program is a child of the guard, in the PID
//! namespace of the lab. If the child is killed, the guard kills the program and reaps it. Without
//! the guard, the program would be reparented to the init process of the machine, and the lab could
//! not end before that has reaped it: in a container whose init does not reap, never.
#![expect(unsafe_code, reason = "fork, and code between fork and exec")]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, chdir, fork, getpid, getppid};

/// The namespaces of a host.
pub(crate) struct Namespaces {
    /// The namespaces that a process enters itself, in this order.
    own: Vec<File>,
    /// The PID namespace, which its children enter.
    of_children: File,
}

impl Namespaces {
    /// The namespaces of a process of a lab. `outer` is the PID, outside the lab, of the parent of
    /// the lab's first process; `inner` is the PID of the process within the lab.
    pub(crate) fn open(outer: u32, inner: u32, own_user: bool) -> io::Result<Self> {
        let outer = Path::new("/proc").join(outer.to_string());
        let inner = outer.join("root/proc").join(inner.to_string());
        // The user namespace comes first: it grants the right to enter the others.
        let user = own_user.then(|| outer.join("ns/user"));
        let others = ["ns/ipc", "ns/uts", "ns/net", "ns/mnt"].map(|name| inner.join(name));
        Ok(Self {
            own: user.into_iter().chain(others).map(File::open).collect::<io::Result<_>>()?,
            of_children: File::open(outer.join("ns/pid_for_children"))?,
        })
    }

    /// Lets a command run in the namespaces, in the same working directory, and on these processors
    /// only.
    pub(crate) fn enter_by(self, command: &mut Command, processors: Option<CpuSet>) {
        let before_exec = move || {
            let mut directory = [0u8; libc::PATH_MAX as usize];
            // SAFETY: the length is that of the buffer.
            if unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) }.is_null() {
                return Err(io::Error::last_os_error());
            }
            for namespace in &self.own {
                setns(namespace, CloneFlags::empty())?;
            }
            // Entering a mount namespace changes the working directory to its root.
            let directory =
                std::ffi::CStr::from_bytes_until_nul(&directory).expect("getcwd ends with a zero");
            chdir(directory)?;
            let caller = getpid();
            // SAFETY: this process and its children have one thread each, and only make system
            // calls.
            if let ForkResult::Parent { child } = unsafe { fork() }? {
                follow(child);
            }
            setns(&self.of_children, CloneFlags::empty())?;
            // SAFETY: as above.
            if let ForkResult::Parent { child } = unsafe { fork() }? {
                guard(child, caller);
            }
            if let Some(processors) = &processors {
                sched_setaffinity(Pid::from_raw(0), processors)?;
            }
            Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
        };
        // SAFETY: between fork and exec there are only system calls: no allocation, no lock.
        unsafe { command.pre_exec(before_exec) };
    }
}

/// The child: exits with the status of the guard.
fn follow(guard: Pid) -> ! {
    detach();
    loop {
        match waitpid(guard, None) {
            Err(Errno::EINTR) => {}
            status => end_as(status),
        }
    }
}

/// The guard: exits with the status of the program, and kills it if the child has died.
fn guard(program: Pid, caller: Pid) -> ! {
    detach();
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

/// Closes all files, and ignores signals from the terminal.
fn detach() {
    // SAFETY: this process uses no file afterwards.
    if unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) } != 0 {
        end(126);
    }
    // The program gets the terminal's signals too, and decides what they mean: as in system(3).
    for (number, handler) in [
        (Signal::SIGINT, SigHandler::SigIgn),
        (Signal::SIGQUIT, SigHandler::SigIgn),
        (Signal::SIGCHLD, SigHandler::SigDfl),
    ] {
        // SAFETY: no handler function is installed.
        let _ = unsafe { signal(number, handler) };
    }
}

/// Exits with the status of another process, or by the same signal.
fn end_as(status: nix::Result<WaitStatus>) -> ! {
    match status {
        Ok(WaitStatus::Exited(_, code)) => end(code),
        Ok(WaitStatus::Signaled(_, by, _)) => {
            // No core dump: the memory is a copy of the caller's.
            let _ = prctl::set_dumpable(false);
            // SAFETY: the default action is no handler function.
            let _ = unsafe { signal(by, SigHandler::SigDfl) };
            let _ = SigSet::all().thread_unblock();
            let _ = kill(getpid(), by);
            end(128 + by as i32)
        }
        _ => end(126),
    }
}

fn end(code: i32) -> ! {
    // SAFETY: `_exit` runs no exit handlers of the caller.
    unsafe { libc::_exit(code) }
}

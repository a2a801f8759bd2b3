//! Memory of BPF maps, mapped into this process.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Memory of a map, shared with the program and with every process that has mapped it.
///
/// The program or another process may change its bytes at any time. Code that creates a reference
/// into it argues why none does so during the life of the reference.
#[derive(Debug)]
pub struct Mapping {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length. The memory is shared with the kernel anyway; code that
// accesses it argues its own safety.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first bytes of a map, for reading only or for reading and writing.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(map: impl AsFd, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = bytes.next_multiple_of(page);
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other.
        let first = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, 0) }?;
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, bytes })
    }

    /// Its address. It begins at a page, so any type is aligned there.
    pub const fn address<T>(&self) -> *mut T {
        assert!(size_of::<T>() <= self.bytes, "the whole value is mapped");
        self.first.as_ptr().cast()
    }

    /// Frees the pages of a file in memory, for every process that maps it: all bytes are 0 then.
    ///
    /// # Errors
    /// Those of madvise(2) with `MADV_REMOVE`, also for memory of a BPF map.
    pub fn free_pages(&self) -> io::Result<()> {
        // SAFETY: the mapping is ours. Its bytes may change at any time anyway.
        Ok(unsafe { madvise(self.first.as_ptr().cast(), self.bytes, Advice::LinuxRemove) }?)
    }

    /// Its length in bytes, a multiple of the page size.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and code that holds an address in it keeps it alive.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

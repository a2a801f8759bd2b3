//! Memory of maps, as part of this process.

#![expect(unsafe_code, reason = "memory is shared with the kernel")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Memory of a map, shared with the program and with whoever else has mapped it.
///
/// It is bytes that others may change at any time: whoever gives out references into it says why nobody does.
#[derive(Debug)]
pub struct Mapping {
    first: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is an address and a length; what lies there is shared with the kernel anyway, and touched as its users argue.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first bytes of a map, to be read or also to be written.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(map: impl AsFd, bytes: usize, is_writable: bool) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let bytes = bytes.next_multiple_of(page);
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches nothing that is there.
        let first = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, map, 0) }?;
        let first = NonNull::new(first.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { first, bytes })
    }

    /// Where it begins: a page, so that everything is aligned there.
    pub const fn address<T>(&self) -> *mut T {
        assert!(size_of::<T>() <= self.bytes, "what lies there is mapped whole");
        self.first.as_ptr().cast()
    }

    /// How long it is, in bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever has an address in it has kept it alive.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

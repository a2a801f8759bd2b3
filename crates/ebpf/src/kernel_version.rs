//! The version of the running kernel.

/// The oldest version of Linux that loads the program, major and minor: the first with `bpf_loop`.
/// docs/kernel.md says with which it is tested.
pub const KERNEL_MIN: (u32, u32) = (5, 17);

/// The first version that attaches programs as TCX links.
pub const TCX_KERNEL_MIN: (u32, u32) = (6, 6);

/// The first version on which applications send GSO batches to the program: older ones may crash
/// when a batch that a program has changed is segmented.
pub const GSO_KERNEL_MIN: (u32, u32) = (6, 16);

/// The version of the running kernel, major and minor; zeros for a release that is not understood.
///
/// ```
/// assert!(treecast_ebpf::kernel_version() > (2, 6));
/// ```
pub fn kernel_version() -> (u32, u32) {
    version(&kernel_release())
}

/// The release of the running kernel, as `uname -r` says it.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|character: char| !character.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse().ok()).unwrap_or(0);
    (next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        assert_eq!(version("6.12.41-amd64"), (6, 12));
        assert_eq!(version("5.9-rc1"), (5, 9));
        assert_eq!(version("strange"), (0, 0));
    }
}

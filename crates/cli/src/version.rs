//! The output of `treecast --version`: the build, and whether the kernel engine can run here.

use std::sync::LazyLock;

use treecast_ebpf::{KERNEL_MIN, kernel_release, kernel_version};

use crate::doctor::machine::is_root;

/// The commit of the build, which `make release` and the packages set.
const COMMIT: Option<&str> = option_env!("TREECAST_COMMIT");

/// The version, the commit, and the state of the kernel engine.
pub fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let engine = engine(kernel_version(), &kernel_release(), is_root());
        let commit = COMMIT.map_or(String::new(), |commit| format!(" (commit {commit})"));
        format!("{}{commit}\nkernel engine: {engine}", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}

fn engine(numbers: (u32, u32), release: &str, is_root: bool) -> String {
    let (major, minor) = KERNEL_MIN;
    if numbers < KERNEL_MIN {
        format!("built in, but needs Linux {major}.{minor}; this is {release}")
    } else if is_root {
        format!("built in, Linux {release}; 'treecast doctor' tries it")
    } else {
        format!("built in, Linux {release}; needs root, or a daemon ('treecast node --engine ebpf')")
    }
}

#[cfg(test)]
mod tests {
    use super::engine;

    #[test]
    fn says_why_the_kernel_engine_cannot_run() {
        assert_eq!(engine((5, 10), "5.10.0-8", true), "built in, but needs Linux 5.17; this is 5.10.0-8");
        assert!(engine((6, 1), "6.1.0", false).contains("needs root"));
        assert!(!engine((6, 1), "6.1.0", true).contains("needs"));
    }
}

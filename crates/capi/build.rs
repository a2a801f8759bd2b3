//! Gives the shared library its name: programs ask for the version that they were linked with, up
//! to the number that changes when the C ABI does.

fn main() {
    let version = |part| std::env::var(format!("CARGO_PKG_VERSION_{part}")).unwrap_or_default();
    println!(
        "cargo:rustc-cdylib-link-arg=-Wl,-soname,libtreecast.so.{}.{}",
        version("MAJOR"),
        version("MINOR")
    );
    println!("cargo:rerun-if-changed=build.rs");
}

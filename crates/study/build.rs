//! The studies are taken in when the crate is built: a file that is new among them is reason to
//! build it again.

fn main() {
    println!("cargo::rerun-if-changed=../../papers");
}

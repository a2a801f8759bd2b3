//! Compresses the objects of the BPF program, for the sake of the size of libraries and commands.

use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = env::var_os("OUT_DIR").ok_or("Cargo sets OUT_DIR")?;
    for name in ["standard.o", "jumbo.o"] {
        let path = Path::new("objects").join(name);
        println!("cargo::rerun-if-changed={}", path.display());
        let compressed = miniz_oxide::deflate::compress_to_vec(&fs::read(path)?, 6);
        fs::write(Path::new(&directory).join(name), compressed)?;
    }
    Ok(())
}

//! The compiled program. The objects in `objects/` are part of the repository, so that no build
//! needs clang: they are machine-independent, except for the order of bytes, and refer to no type
//! of the kernel that differs between versions. `objects/record.txt` says from which sources and by
//! which compiler they were made; `make bpf` makes them anew.

use crate::error::EbpfError;

/// A variant of the program.
pub(crate) struct Variant {
    /// The length of a slot's payload in bytes, a multiple of 8: an IP packet of 1,500 or 9,000
    /// bytes without the headers of IPv4, UDP and ours.
    pub payload_bytes: u32,
    /// The object, compressed by `build.rs`: it shrinks to an eighth.
    compressed: &'static [u8],
}

impl Variant {
    /// The object, an ELF file.
    pub fn object(&self) -> Vec<u8> {
        miniz_oxide::inflate::decompress_to_vec(self.compressed).expect("the build has compressed it")
    }
}

/// The variants, shortest payload first: for networks with the standard MTU, and for those with
/// jumbo frames.
pub(crate) static VARIANTS: [Variant; 2] = [
    Variant { payload_bytes: 1_408, compressed: include_bytes!(concat!(env!("OUT_DIR"), "/standard.o")) },
    Variant { payload_bytes: 8_912, compressed: include_bytes!(concat!(env!("OUT_DIR"), "/jumbo.o")) },
];

/// The variant for payloads of this length.
///
/// # Errors
/// [`EbpfError::TooLong`]; [`EbpfError::Load`] on a big-endian processor.
pub(crate) fn variant(payload_bytes: u32) -> Result<&'static Variant, EbpfError> {
    if cfg!(target_endian = "big") {
        return Err(EbpfError::Load { why: "it supports only little-endian processors".into() });
    }
    let slot_bytes = VARIANTS[VARIANTS.len() - 1].payload_bytes;
    let found = VARIANTS.iter().find(|variant| payload_bytes <= variant.payload_bytes);
    found.ok_or(EbpfError::TooLong { payload_bytes, slot_bytes })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use object::{Object, ObjectSection, ObjectSymbol};

    use super::*;
    use crate::compiler::{self, Compiler};

    /// The files of `objects/`, in the order of [`VARIANTS`].
    const FILES: [&str; 2] = ["standard.o", "jumbo.o"];

    fn directory() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("objects")
    }

    /// The inputs from which the objects were made.
    #[derive(Debug, PartialEq)]
    struct Record {
        /// The hash of the files in `bpf/`.
        sources: String,
        /// The version of clang.
        clang: String,
        /// The hash of the program with all headers, also those of libbpf and of the kernel.
        preprocessed: String,
    }

    impl Record {
        fn of(compiler: &Compiler) -> Self {
            let preprocessed = compiler.preprocess(VARIANTS[0].payload_bytes);
            let preprocessed = blake3::hash(&preprocessed).to_string();
            Self { sources: hash_of_sources(), clang: compiler.version(), preprocessed }
        }

        fn read() -> Self {
            let text = fs::read_to_string(directory().join("record.txt")).unwrap();
            let value = |key: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
                line.unwrap_or_else(|| panic!("objects/record.txt has a line for {key}")).to_string()
            };
            Self { sources: value("sources"), clang: value("clang"), preprocessed: value("preprocessed") }
        }

        fn write(&self) {
            let Self { sources, clang, preprocessed } = self;
            let text = format!("sources: {sources}\nclang: {clang}\npreprocessed: {preprocessed}\n");
            fs::write(directory().join("record.txt"), text).unwrap();
        }
    }

    fn hash_of_sources() -> String {
        let files = fs::read_dir(compiler::sources()).unwrap();
        let mut paths: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
        paths.sort();
        let mut hasher = blake3::Hasher::new();
        for path in paths {
            let name = path.file_name().unwrap().as_encoded_bytes();
            let content = fs::read(&path).unwrap();
            for part in [name, &content] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part);
            }
        }
        hasher.finalize().to_string()
    }

    /// A section that is loaded, or read by the loader.
    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Section {
        name: String,
        bytes: Vec<u8>,
        /// The offset and the symbol of each relocation.
        relocations: Vec<(u64, String)>,
    }

    /// The sections of an object, sorted, without debug information and tables of symbols.
    fn sections(object: &[u8]) -> Vec<Section> {
        let file = object::File::parse(object).unwrap();
        let symbol = |relocation: &object::Relocation| {
            let object::RelocationTarget::Symbol(index) = relocation.target() else { panic!("no symbol") };
            file.symbol_by_index(index).unwrap().name().unwrap().to_string()
        };
        let mut sections = Vec::new();
        for section in file.sections() {
            let name = section.name().unwrap().to_string();
            let is_symbols = name.ends_with("tab") || name == ".llvm_addrsig";
            if is_symbols || name.contains(".debug") || name.starts_with(".rel") {
                continue;
            }
            let relocations = section.relocations().map(|(at, relocation)| (at, symbol(&relocation)));
            let relocations = relocations.collect();
            sections.push(Section { name, bytes: section.data().unwrap().to_vec(), relocations });
        }
        sections.sort();
        sections
    }

    /// Whoever changes `bpf/` must rebuild the objects. This test fails if that was forgotten, also
    /// without a compiler.
    #[test]
    fn the_objects_are_made_from_the_sources_in_the_repository() {
        if std::env::var_os("UPDATE_BPF").is_some() {
            let compiler = Compiler::find().unwrap();
            for (variant, file) in VARIANTS.iter().zip(FILES) {
                compiler.compile_and_strip(variant.payload_bytes, &directory().join(file));
            }
            Record::of(&compiler).write();
        }
        assert_eq!(Record::read().sources, hash_of_sources(), "bpf/ has changed: run make bpf");
    }

    /// Another compiler chooses other instructions, and other headers have other types.
    #[test]
    fn the_recorded_compiler_makes_the_same_objects() {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(why) => return compiler::skip(&why),
        };
        let (recorded, here) = (Record::read(), Record::of(&compiler));
        assert_eq!(recorded.sources, here.sources, "bpf/ has changed: run make bpf");
        if recorded != here {
            return compiler::skip(&format_args!(
                "the BPF program was compiled by {}; {} or its headers here make another object",
                recorded.clang, here.clang
            ));
        }
        let directory = tempfile::tempdir().unwrap();
        for (variant, file) in VARIANTS.iter().zip(FILES) {
            let path = directory.path().join(file);
            compiler.compile(variant.payload_bytes, &path);
            // Read from the repository, and not from this binary, which is older than an update in
            // the same run.
            let kept = fs::read(self::directory().join(file)).unwrap();
            let (kept, made) = (sections(&kept), sections(&fs::read(path).unwrap()));
            assert!(kept.iter().map(|kept| &kept.name).eq(made.iter().map(|made| &made.name)), "{file}");
            for (kept, made) in kept.into_iter().zip(made) {
                assert!(kept == made, "{file}: section {} differs: run make bpf", kept.name);
            }
        }
    }
}

//! Dependencies point one way: between crates in the order of ARCHITECTURE.md, and between the
//! modules of a folder in no circle. Licences of what is linked are those that the project can use.
//! No file of tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--offline",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap()
}

/// The crates in the order of the table of ARCHITECTURE.md.
fn crates() -> Vec<String> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `crates/"));
    rows.map(|row| row.split('`').next().unwrap().to_string()).collect()
}

#[test]
fn a_crate_uses_only_crates_above_it() {
    let crates = crates();
    let place = |name: &str| crates.iter().position(|known| name == format!("treecast-{known}"));
    let metadata = metadata(&["--no-deps"]);
    let mut seen = 0;
    for package in list(&metadata, "packages") {
        let name = package["name"].as_str().unwrap();
        if name == "treecast-python" {
            continue;
        }
        let own = place(name).unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        for dependency in list(package, "dependencies") {
            let other = dependency["name"].as_str().unwrap();
            // Tests may use any crate.
            if dependency["kind"].as_str() == Some("dev") || !other.starts_with("treecast-") {
                continue;
            }
            seen += 1;
            assert!(
                place(other).is_some_and(|place| place < own),
                "{name} uses {other}, which is not above it"
            );
        }
    }
    assert!(seen > 40, "{seen} dependencies between our crates");
}

#[test]
fn modules_of_a_folder_do_not_use_each_other_in_circles() {
    let mut found = BTreeSet::new();
    let crates = crates();
    for folder in crates.iter().flat_map(|name| folders(&root().join("crates").join(name).join("src"))) {
        let folder_name = folder.strip_prefix(root()).unwrap().display().to_string();
        found.extend(circles(&uses(&folder)).into_iter().map(|circle| (folder_name.clone(), circle)));
    }
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn files_of_the_shim_do_not_use_each_other_in_circles() {
    let mut uses = BTreeMap::new();
    let files: Vec<(String, String)> = std::fs::read_dir(root().join("mpi"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_string();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    let definitions: BTreeMap<&str, &str> = files
        .iter()
        .flat_map(|(file, text)| functions(text, false).into_iter().map(move |name| (name, file.as_str())))
        .collect();
    for (file, text) in &files {
        let own = functions(text, true);
        let called = calls(text).into_iter().filter(|name| !own.contains(name));
        let used = called.filter_map(|name| definitions.get(name)).filter(|other| *other != file);
        uses.insert(file.clone(), used.map(ToString::to_string).collect());
    }
    assert!(uses.values().map(BTreeSet::len).sum::<usize>() > 40, "{uses:?}");
    assert_eq!(circles(&uses), BTreeSet::new());
}

/// The functions that a text in C defines: those of this file alone, or those of all files.
fn functions(text: &str, is_static: bool) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut before: Vec<&str> = text.split("\n{\n").collect();
    before.pop();
    let heads = before.into_iter().filter_map(|before| {
        let head = before.rsplit("\n\n").next()?.rsplit("*/\n").next()?;
        (head.starts_with("static ") == is_static).then(|| head.split('(').next()).flatten()
    });
    heads.filter_map(|head| head.rsplit(|c| !is_name(c)).next()).filter(|name| !name.is_empty()).collect()
}

/// The names before an opening parenthesis.
fn calls(text: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split('(').filter_map(|before| before.rsplit(|c| !is_name(c)).next()).collect()
}

/// The modules that use each other, each circle once.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<String>> {
    let reachable: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|module| (module.as_str(), reached(uses, module))).collect();
    let circle = |(module, others): (&&str, &BTreeSet<&str>)| -> Vec<String> {
        let circle = others.iter().filter(|other| reachable[**other].contains(module));
        circle.map(ToString::to_string).collect()
    };
    reachable.iter().map(circle).filter(|circle| !circle.is_empty()).collect()
}

/// A folder of sources, and those in it.
fn folders(folder: &Path) -> Vec<PathBuf> {
    let inner = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let inner = inner.filter(|path| path.is_dir()).flat_map(|path| folders(&path));
    std::iter::once(folder.to_path_buf()).chain(inner).collect()
}

/// The modules of a folder that each of its modules uses. A module is a file or a folder directly
/// in it.
fn uses(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let below_source: Vec<_> = source.iter().skip_while(|part| *part != "src").skip(1).collect();
    let own = std::iter::once("crate".into()).chain(below_source.iter().map(|part| part.to_string_lossy()));
    let own = own.collect::<Vec<_>>().join("::") + "::";
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut texts: Vec<(String, String)> = Vec::new();
    for entry in walk(source) {
        let path = entry.strip_prefix(source).unwrap().with_extension("");
        let mut parts: Vec<&str> = path.iter().map(|part| part.to_str().unwrap()).collect();
        // The root of a crate, and that of a folder, knows all of its modules.
        if matches!(parts[..], ["lib" | "main" | "mod"]) {
            continue;
        }
        parts.pop_if(|part| *part == "mod");
        let code = production_code(&std::fs::read_to_string(&entry).unwrap());
        uses.entry(parts[0].to_string()).or_default();
        // Fewer `super::` stay within the same module, more leave the folder.
        let outside = "super::".repeat(parts.len() + 1);
        let code = code.replace(&outside, "outside::").replace(&"super::".repeat(parts.len()), OWN);
        texts.push((parts[0].to_string(), code.replace(&own, OWN)));
    }
    let modules: BTreeSet<String> = uses.keys().cloned().collect();
    for (module, text) in texts {
        let used = text.split(OWN).skip(1).flat_map(first_names);
        let used = used.filter(|name| *name != module && modules.contains(*name));
        uses.get_mut(&module).unwrap().extend(used.map(str::to_string));
    }
    uses
}

/// Stands for the path of the folder whose modules are looked at.
const OWN: &str = "folder::";

/// The first name of the rest of a path; or of each path, if the rest is a list in braces.
fn first_names(rest: &str) -> Vec<&str> {
    let Some(list) = rest.strip_prefix('{') else { return vec![first_name(rest)] };
    let mut names = Vec::new();
    let mut depth = 1;
    for part in list.split_inclusive([',', '{', '}']) {
        if depth == 1 {
            names.push(first_name(part.trim_start()));
        }
        if part.ends_with('{') {
            depth += 1;
        } else if part.ends_with('}') {
            depth -= 1;
        }
        if depth == 0 {
            break;
        }
    }
    names
}

fn first_name(path: &str) -> &str {
    path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap()
}

/// The text without comments, and without what only tests compile.
fn production_code(text: &str) -> String {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
    let mut lines = Vec::new();
    // The line with which an item of tests ends, once one has begun.
    let mut end: Option<String> = None;
    for line in code.lines() {
        let (indentation, rest) = line.split_at(line.len() - line.trim_start().len());
        if rest.starts_with("#[cfg(test)]") {
            end = Some(format!("{indentation}}}"));
        } else if let Some(last) = &end {
            let is_one_line = rest.ends_with(';') && format!("{indentation}}}") == *last;
            if line == last || is_one_line {
                end = None;
            }
        } else if !rest.starts_with("//") {
            lines.push(line);
        }
    }
    lines.join("\n")
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// All modules that a module uses, and those use, and so on.
fn reached<'a>(uses: &'a BTreeMap<String, BTreeSet<String>>, module: &str) -> BTreeSet<&'a str> {
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut left: Vec<&str> = uses[module].iter().map(String::as_str).collect();
    while let Some(next) = left.pop() {
        if reached.insert(next) {
            left.extend(uses[next].iter().map(String::as_str));
        }
    }
    reached
}

/// Licences without conditions on the programs of our users.
const LICENCES: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// What runs while ours is built, and is not linked.
const TOOLS: [&str; 1] = ["cbindgen"];

/// Cargo looks for no test programs in crates that have one for all of their tests, and would not
/// miss a file.
#[test]
fn no_file_of_tests_is_left_out_of_the_program_of_its_crate() {
    let mut seen = 0;
    for name in crates() {
        let directory = root().join("crates").join(&name).join("tests");
        let Ok(main) = std::fs::read_to_string(directory.join("main.rs")) else { continue };
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let is_module =
                path.extension().is_some_and(|extension| extension == "rs") || path.join("mod.rs").exists();
            let module = path.file_stem().unwrap().to_str().unwrap();
            if is_module && module != "main" {
                assert!(
                    main.lines().any(|line| line == format!("mod {module};")),
                    "crates/{name}/tests/main.rs has no mod {module}"
                );
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn every_dependency_has_a_licence_that_we_can_use() {
    let metadata = metadata(&[]);
    let packages = list(&metadata, "packages");
    assert!(packages.len() > 200, "{} packages", packages.len());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let licence = package["license"].as_str().unwrap_or_else(|| panic!("{name} states no licence"));
        let is_usable = |licence: &str| LICENCES.contains(&licence.trim().split(" WITH ").next().unwrap());
        // All parts of an AND, with one choice of each OR.
        let usable = licence
            .replace(['(', ')'], "")
            .split(" AND ")
            .all(|part| part.split(" OR ").flat_map(|choice| choice.split('/')).any(is_usable));
        assert!(usable || TOOLS.contains(&name), "{name} has the licence {licence}");
    }
}

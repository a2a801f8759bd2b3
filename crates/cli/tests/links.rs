//! Every link between pages has a target, and every path in the map of the code exists.

use std::path::{Path, PathBuf};

fn pages(root: &Path) -> Vec<PathBuf> {
    let in_folder = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect::<Vec<_>>()
    };
    [in_folder(root), in_folder(&root.join("docs"))].concat()
}

#[test]
fn every_link_to_a_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut links = 0;
    for page in pages(&root) {
        let text = std::fs::read_to_string(&page).unwrap();
        // Code blocks have examples, not links.
        let text: String = text.split("```").step_by(2).collect();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.starts_with("http") || target.starts_with('#') {
                continue;
            }
            links += 1;
            let file = page.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(file.exists(), "{} links to {target}, which does not exist", page.display());
        }
    }
    assert!(links > 10, "the pages have {links} links");
}

#[test]
fn every_path_in_the_map_of_the_code_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["bpf/", "crates/", "dist/", "docs/", "fuzz/", "include/", "papers/", "python/"];
    let mut paths = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        for path in quoted.filter(|text| folders.iter().any(|folder| text.starts_with(folder))) {
            if !path.contains(['*', ' ']) {
                paths += 1;
                assert!(root.join(path).exists(), "{page} names {path}, which does not exist");
            }
        }
    }
    assert!(paths > 50, "the pages name {paths} paths");
}

//! Every link between pages has a target, every path in the map of the code and in a comment
//! exists, sentences are plain, and lines of comments are short.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The directories of the repository to which a path in a page or in a comment may lead.
const DIRECTORIES: [&str; 9] =
    ["bpf/", "crates/", "dist/", "docs/", "fuzz/", "include/", "mpi/", "papers/", "python/"];

fn pages(root: &Path) -> Vec<PathBuf> {
    let in_directory = |directory: &Path| {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect::<Vec<_>>()
    };
    [in_directory(root), in_directory(&root.join("docs")), in_directory(&root.join("docs/guide"))].concat()
}

/// The text of a page without its code blocks, which have examples, not links.
fn prose(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap().split("```").step_by(2).collect()
}

/// The targets of the links in a page.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The anchors of the headings of a page, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    let is_kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    let slug = |heading: &str| heading.trim().to_lowercase().chars().filter(is_kept).collect::<String>();
    headings.map(|heading| slug(heading).replace(' ', "-")).collect()
}

#[test]
fn every_link_to_a_file_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut links = 0;
    for page in pages(&root) {
        let text = prose(&page);
        for target in targets(&text).filter(|target| !target.starts_with("http")) {
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(file.exists(), "{} links to {target}, which does not exist", page.display());
            if !anchor.is_empty() {
                let is_there = anchors(&prose(&file)).iter().any(|heading| heading == anchor);
                assert!(is_there, "{} links to {target}, which has no such heading", page.display());
            }
        }
    }
    assert!(links > 100, "the pages have {links} links");
}

#[test]
fn the_book_has_every_page() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = root.join("docs");
    let summary = docs.join("SUMMARY.md");
    let text = prose(&summary);
    for page in pages(&root).into_iter().filter(|page| page.starts_with(&docs) && *page != summary) {
        let name = page.strip_prefix(&docs).unwrap().to_str().unwrap();
        assert_eq!(targets(&text).filter(|target| *target == name).count(), 1, "{name} in docs/SUMMARY.md");
    }
}

#[test]
fn every_chapter_of_the_book_has_a_page() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = prose(&docs.join("SUMMARY.md"));
    let title = |page: &str| page.lines().find_map(|line| line.strip_prefix("# ")).map(str::to_owned);
    let mut chapters = 0;
    for line in text.lines().filter(|line| line.trim_start().starts_with("- ")) {
        let target = targets(line).next().unwrap_or_else(|| panic!("a chapter without a page: {line}"));
        let page =
            std::fs::read_to_string(docs.join(target)).unwrap_or_else(|error| panic!("{target}: {error}"));
        assert!(title(&page).is_some(), "{target} has no title");
        chapters += 1;
    }
    assert!(chapters > 30, "the book has {chapters} chapters");
}

/// mdBook, if it is installed or `make docs` has been run.
fn mdbook(root: &Path) -> Option<PathBuf> {
    let candidates = [root.join("target/mdbook/bin/mdbook"), PathBuf::from("mdbook")];
    let runs = |path: &PathBuf| Command::new(path).arg("--version").output().is_ok();
    candidates.into_iter().find(runs)
}

#[test]
fn mdbook_makes_the_book_without_a_warning() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let Some(mdbook) = mdbook(&root) else {
        // Written directly, because the test harness captures output.
        let message = b"skipped: no mdbook, so the book is not made, but its chapters and links are tested\n";
        let _ = std::io::stderr().write_all(message);
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let output =
        Command::new(mdbook).arg("build").arg(root.join("docs")).arg("--dest-dir").arg(out.path()).output();
    let output = output.unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    assert!(!messages.contains("WARN") && !messages.contains("ERROR"), "{messages}");
    assert!(out.path().join("start.html").exists());
}

#[test]
fn every_path_in_the_map_of_the_code_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(page)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        for path in quoted.filter(|text| DIRECTORIES.iter().any(|directory| text.starts_with(directory))) {
            if !path.contains(['*', ' ']) {
                paths += 1;
                assert!(root.join(path).exists(), "{page} names {path}, which does not exist");
            }
        }
    }
    assert!(paths > 50, "the pages name {paths} paths");
}

#[test]
fn every_row_of_who_can_do_what_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let (_, section) = text.split_once("## Who can do what").unwrap();
    let rows =
        section.lines().skip_while(|line| !line.starts_with("| a ")).take_while(|line| line.starts_with('|'));
    let mut count = 0;
    for row in rows {
        let cell = row.trim_end_matches(" |").rsplit("| ").next().unwrap();
        for test in cell.split('`').skip(1).step_by(2) {
            let (file, name) = test.split_once(": ").unwrap_or_else(|| panic!("no test in {row}"));
            let source =
                std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}()")), "{file} has no test {name}");
            count += 1;
        }
    }
    assert!(count >= 8, "the rows name {count} tests");
}

/// The source files below a directory, those of the build excluded.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            if !path.ends_with("target") {
                sources(&path, found);
            }
        } else if path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "h" || extension == "c")
        {
            found.push(path);
        }
    }
}

/// The paths that a line of a comment names: words that begin with a directory of the repository.
fn paths_in_comment(line: &str) -> impl Iterator<Item = &str> {
    let line = line.trim_start();
    let is_comment = line.starts_with("//") || line.starts_with('*') || line.starts_with("/*");
    let in_path = |character: char| character.is_ascii_alphanumeric() || "./_-".contains(character);
    let words = line.split(move |character| !in_path(character)).map(|word| word.trim_end_matches('.'));
    words.filter(move |word| is_comment && DIRECTORIES.iter().any(|directory| word.starts_with(directory)))
}

#[test]
fn every_path_in_a_comment_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for directory in ["bpf", "crates", "include", "python/src"] {
        sources(&root.join(directory), &mut files);
    }
    let mut paths = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for path in text.lines().flat_map(paths_in_comment) {
            paths += 1;
            assert!(root.join(path).exists(), "{} names {path}, which does not exist", file.display());
        }
    }
    assert!(paths > 10, "the comments name {paths} paths");
}

/// Words of sentences that are hard to read: measures that refer back, inversions, and archaic
/// words.
const HARD_TO_READ: [&str; 10] = [
    " lest ",
    " becomes of ",
    " became of ",
    " has become of ",
    " of so many ",
    ", so many, ",
    " is no name of ",
    " more is wanted",
    ", but for ",
    " another number of bytes than ",
];

#[test]
fn sentences_are_plain() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = pages(&root);
    for directory in ["crates", "include", "mpi", "python/src"] {
        sources(&root.join(directory), &mut files);
    }
    files.retain(|file| !file.ends_with(file!()));
    assert!(files.len() > 200, "there are {} files", files.len());
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            for words in HARD_TO_READ {
                assert!(!line.contains(words), "{}:{number}: '{words}': {line}", file.display());
            }
        }
    }
}

/// The longest line of a comment, apart from tables and examples. Not of block comments in `bpf`,
/// where moved lines change the compiled objects, and in the generated header.
const COMMENT_COLUMNS_MAX: usize = 100;

#[test]
fn lines_of_comments_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for directory in ["bpf", "crates", "fuzz", "include", "mpi"] {
        sources(&root.join(directory), &mut files);
    }
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let has_blocks = !file.starts_with(root.join("bpf")) && !file.starts_with(root.join("include"));
        let has_blocks = has_blocks && file.extension().is_some_and(|extension| extension != "rs");
        let mut is_example = false;
        for (number, line) in (1..).zip(text.lines()) {
            let line_or_block = |text: &'static str| line.trim_start().strip_prefix(text);
            let block =
                || line_or_block("/*").or_else(|| line_or_block("*").filter(|rest| rest.starts_with(' ')));
            let Some(comment) = line_or_block("//").or_else(|| has_blocks.then(block).flatten()) else {
                is_example = false;
                continue;
            };
            let comment = comment.trim_start_matches(['/', '!']);
            is_example ^= comment.trim_start().starts_with("```");
            let is_excepted = is_example || comment.starts_with("     ") || comment.starts_with(" |");
            assert!(
                is_excepted || line.chars().count() <= COMMENT_COLUMNS_MAX,
                "{}:{number} has more than {COMMENT_COLUMNS_MAX} columns: {line}",
                file.display()
            );
        }
    }
}

//! Testbeds of the studies that come with the project: each value says where it comes from.

use include_dir::{Dir, include_dir};
use toml::Table;

static PAPERS: Dir = include_dir!("$CARGO_MANIFEST_DIR/../../papers");

/// Where a number comes from: what its comment begins with, and whether it counts as guessed.
const SOURCES: [(&str, bool); 5] = [
    ("published", false),
    ("measured elsewhere", true),
    ("source", true),
    ("calibrated", true),
    ("guess", true),
];

/// The comment behind the value of a key, else the one above it.
fn comment<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, set) = text.split_once("\n[set]\n")?;
    let lines: Vec<&str> = set.lines().collect();
    let place =
        lines.iter().position(|line| line.split('=').next().is_some_and(|name| name.trim() == key))?;
    let above = place.checked_sub(1).and_then(|place| lines[place].strip_prefix('#'));
    lines[place].split_once('#').map(|(_, comment)| comment).or(above).map(str::trim)
}

#[test]
fn every_value_has_its_source_and_every_number_that_is_not_published_is_guessed() {
    let mut wrong = Vec::new();
    let directories = PAPERS.dirs().flat_map(Dir::files);
    let testbeds =
        directories.filter(|file| file.path().file_name().unwrap().to_string_lossy().starts_with("testbed-"));
    let mut count = 0;
    for file in testbeds {
        let (path, text) = (file.path().display(), file.contents_utf8().unwrap());
        let table: Table = text.parse().unwrap();
        let guessed: Vec<&str> =
            table["guessed"].as_array().unwrap().iter().map(|key| key.as_str().unwrap()).collect();
        for (key, value) in table["set"].as_table().unwrap() {
            count += 1;
            let Some(comment) = comment(text, key) else {
                wrong.push(format!("{path}: {key} has no comment"));
                continue;
            };
            if value.is_str() {
                continue;
            }
            match SOURCES.iter().find(|(source, _)| comment.starts_with(source)) {
                Some(&(_, is_guessed)) if is_guessed == guessed.contains(&key.as_str()) => {}
                Some((source, _)) => {
                    wrong.push(format!("{path}: {key} is {source}, and 'guessed' says otherwise"));
                }
                None => wrong.push(format!("{path}: {key} does not say its source: {comment}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "{count}");
}

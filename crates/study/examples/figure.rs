//! Runs one figure of a study: `figure DIRECTORY NAME OUT [--quick]` prints its table and its
//! chart, and writes `OUT.html`, `OUT.svg`, `OUT.csv` and `OUT.parquet`.
#![allow(clippy::disallowed_methods, reason = "an example may read files and arguments")]

use std::error::Error;
use std::fs;

use treecast_study::chart::{self, Ink};
use treecast_study::page;
use treecast_study::table::{Rows, table};
use treecast_study::{Study, rows, run_all};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, name, out, rest @ ..] = &arguments[..] else {
        return Err("usage: figure DIRECTORY NAME OUT [--quick]".into());
    };
    let study = read(directory)?;
    let spec = study.figure(name)?;
    let rows = run_all(&spec.runs(rest == ["--quick"]), &|_| ())?;
    let figure = spec.figure(&rows);
    println!("{}", spec.describe());
    println!("{}", table(&figure, 100, Rows::AtMost(12)));
    println!("{}", chart::terminal(&figure, 100, 16, Ink::Plain));
    println!("{}", figure.caption);
    fs::write(format!("{out}.html"), page::html(std::slice::from_ref(&figure)))?;
    fs::write(format!("{out}.svg"), chart::svg(&figure)?)?;
    fs::write(format!("{out}.csv"), rows::csv(&rows)?)?;
    fs::write(format!("{out}.parquet"), rows::parquet(&rows)?)?;
    Ok(())
}

fn read(directory: &str) -> Result<Study, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files.push((entry.file_name().to_string_lossy().into_owned(), fs::read_to_string(entry.path())?));
    }
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    Ok(Study::parse(&files)?)
}

//! The values of options, as the command line gives them.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use treecast_node::{Authentication, CongestionControl, Integrity, Transport};
use treecast_terms::{parse_size, parse_time};

/// How long a waiting thread spins before it sleeps; none: as recent waits suggest.
#[derive(Debug, Clone, Copy)]
pub struct Spin(pub Option<Duration>);

/// Parses a size in bytes.
pub fn size(text: &str) -> Result<usize, &'static str> {
    parse_size(text).map(|bytes| bytes as usize).map_err(|error| error.expected)
}

/// Parses a rate in bytes per second.
pub fn pace(text: &str) -> Result<u64, &'static str> {
    parse_size(text).ok().filter(|&bytes| bytes > 0).ok_or("a number of bytes from 1, such as 65536 or 16M")
}

pub fn switch(name: &str) -> Result<bool, &'static str> {
    match name {
        "off" => Ok(false),
        "on" => Ok(true),
        _ => Err("on or off"),
    }
}

pub fn authentication(name: &str) -> Result<Authentication, &'static str> {
    name.parse().map_err(|_| "header or payload")
}

pub fn integrity(name: &str) -> Result<Integrity, &'static str> {
    name.parse().map_err(|_| "network or crc32c")
}

pub fn transport(name: &str) -> Result<Transport, &'static str> {
    name.parse().map_err(|_| "packets, stream or both")
}

pub fn congestion(name: &str) -> Result<CongestionControl, &'static str> {
    CongestionControl::new(name).ok_or("an algorithm of the kernel, such as bbr, cubic or reno")
}

/// Parses a time of at most a minute.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    let time = parse_time(text).ok().filter(|time| *time <= Duration::from_mins(1));
    time.ok_or("a time up to 60s, such as 400us or 2ms")
}

pub fn picture_file(name: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(name);
    let is_known = matches!(path.extension().and_then(OsStr::to_str), Some("svg" | "html"));
    is_known.then_some(path).ok_or_else(|| "a file name that ends with .svg or .html".into())
}

pub fn spin(text: &str) -> Result<Spin, &'static str> {
    if text == "auto" {
        return Ok(Spin(None));
    }
    time(text).map(|time| Spin(Some(time))).map_err(|_| "auto, or a time up to 60s, such as 400us or 2ms")
}

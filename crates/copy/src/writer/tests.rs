use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::Chunk;
use crate::entry::Attribute;

fn entry(path: &str) -> Entry {
    Entry {
        path: path.into(),
        kind: Kind::File { length: 3, is_sparse: false },
        mode: 0o640,
        owner: (0, 0),
        modified: (1_000_000_000, 7),
        attributes: Vec::new(),
    }
}

fn written(records: &[Record<'_>]) -> (tempfile::TempDir, Writer, Result<(), WriteError>) {
    let directory = tempfile::tempdir().unwrap();
    let mut writer = Writer::new(directory.path().into(), true, Writing::default()).unwrap();
    let mut message = Vec::new();
    for record in records {
        stream::append(&mut message, record);
    }
    let taken = writer.take(&message);
    (directory, writer, taken)
}

fn names(directory: &tempfile::TempDir) -> Vec<OsString> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

fn is_part(name: &OsStr) -> bool {
    name.to_string_lossy().ends_with(".treecast-part")
}

fn end(entry: u32) -> Record<'static> {
    Record::End { entry, length: 3, hash: None }
}

const DATA: Record<'static> = Record::Data { entry: 0, offset: 0, bytes: b"abc" };

#[test]
fn a_file_has_its_name_when_it_is_complete() {
    let (directory, mut writer, taken) = written(&[Record::Entry(entry("file")), DATA]);
    taken.unwrap();
    assert!(is_part(&names(&directory)[0]));
    let mut rest = Vec::new();
    stream::append(&mut rest, &end(0));
    stream::append(&mut rest, &Record::Complete { entries: 1 });
    writer.take(&rest).unwrap();
    assert!(writer.finish() && writer.files == 1);
    assert_eq!(names(&directory), ["file"]);
}

#[test]
fn a_file_of_which_a_part_is_missing_does_not_get_its_name() {
    let data = |offset| Record::Data { entry: 0, offset, bytes: b"c" };
    let end = |length| Record::End { entry: 0, length, hash: None };
    let cases: [(&str, Vec<Record<'_>>); 4] = [
        ("a part of it is missing in what was received", vec![data(2)]),
        ("a part of it is missing in what was received", vec![data(0), data(2)]),
        ("a part of it is missing in what was received", vec![data(0), end(3)]),
        ("more of it was received than its length", vec![data(0), data(1), data(2), end(2)]),
    ];
    for (why, records) in cases {
        let records: Vec<_> = std::iter::once(Record::Entry(entry("file"))).chain(records).collect();
        let (directory, writer, taken) = written(&records);
        taken.unwrap();
        assert!(writer.failures[0].ends_with(why), "{:?}", writer.failures);
        assert!(names(&directory).is_empty());
    }
}

/// The file that is there has the first of two chunks.
#[test]
fn a_file_with_a_chunk_of_another_one_is_compared_with_the_hash() {
    let whole = [[7; 5_000], [8; 5_000]].concat();
    let chunk = |bytes: &[u8]| Chunk { length: bytes.len() as u32, hash: blake3::hash(bytes).into() };
    let of = Entry { kind: Kind::File { length: 10_000, is_sparse: false }, ..entry("file") };
    for hash in [Some(blake3::hash(&whole).into()), Some([0; 32]), None] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), &whole[..5_000]).unwrap();
        let mut writer = Writer::new(directory.path().into(), true, Writing::default()).unwrap();
        let mut take = |records: Vec<Record<'_>>| {
            let mut message = Vec::new();
            for record in &records {
                stream::append(&mut message, record);
            }
            writer.take(&message).unwrap();
        };
        let chunks = whole.chunks(5_000).map(chunk).collect();
        take(vec![
            Record::Chunks { entry: 0, of: of.clone(), chunks },
            Record::Asked { question: Question::Chunks, count: 2 },
        ]);
        take(vec![
            Record::Entry(of.clone()),
            Record::Data { entry: 0, offset: 5_000, bytes: &whole[5_000..] },
            Record::End { entry: 0, length: 10_000, hash },
        ]);
        assert_eq!(writer.lacking, Some(vec![(1, 2)]));
        let there = fs::read(directory.path().join("file")).unwrap();
        if hash == Some(blake3::hash(&whole).into()) {
            assert!(there == whole && writer.failure_count == 0, "{:?}", writer.failures);
        } else {
            assert!(writer.failures[0].ends_with("the hashes differ"), "{:?}", writer.failures);
            assert_eq!(there.len(), 5_000);
        }
    }
}

#[test]
fn nothing_is_written_beside_the_destination() {
    for path in ["../file", "/tmp/file", "a/../../file"] {
        let (_directory, _writer, taken) = written(&[Record::Entry(entry(path)), DATA, end(0)]);
        assert!(matches!(taken, Err(WriteError::Stream(_))), "{path}");
    }
}

fn directory_entry(path: &str) -> Entry {
    Entry { kind: Kind::Directory, mode: 0o755, ..entry(path) }
}

/// The longest time in which a thread that is ready to run must have run.
const PATIENCE: Duration = Duration::from_mins(1);

/// A directory and a link to another one change places all the time: all files are in the
/// first one, or are reported.
#[test]
fn nothing_is_written_through_a_link_that_comes_and_goes() {
    let directory = tempfile::tempdir().unwrap();
    let [there, victim] = ["there", "victim"].map(|name| directory.path().join(name));
    fs::create_dir_all(there.join("sub")).unwrap();
    fs::create_dir(&victim).unwrap();
    symlink(&victim, there.join("link")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions();
    let before = mode(&victim);
    let (sub, link) = (there.join("sub"), there.join("link"));
    let is_done = AtomicBool::new(false);
    let (files, failures) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                renameat_with(CWD, &sub, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        let (mut counts, mut rounds, began) = ((0, 0), 0, Instant::now());
        // All of the rounds may be within one time slice, in which nothing changes places.
        while rounds < 300 || (counts.0 == 0 || counts.1 == 0) && began.elapsed() < PATIENCE {
            rounds += 1;
            let preserves = Writing { preserves: true, ..Writing::default() };
            let mut writer = Writer::new(there.clone(), true, preserves).unwrap();
            let deep = Entry { mode: 0o777, ..directory_entry("sub") };
            let mut message = Vec::new();
            for record in [
                Record::Entry(deep),
                Record::Entry(entry("sub/file")),
                Record::Data { entry: 1, offset: 0, bytes: b"abc" },
                end(1),
                Record::Complete { entries: 2 },
            ] {
                stream::append(&mut message, &record);
            }
            writer.take(&message).unwrap();
            writer.finish();
            counts = (counts.0 + writer.files, counts.1 + writer.failure_count);
        }
        is_done.store(true, Ordering::Relaxed);
        counts
    });
    assert!(files > 0 && failures > 0, "{files} files, {failures} failures");
    assert_eq!((fs::read_dir(&victim).unwrap().count(), mode(&victim)), (0, before));
}

#[test]
fn a_directory_that_was_replaced_gets_no_attributes() {
    let (directory, mut writer, taken) = written(&[Record::Entry(directory_entry("made"))]);
    taken.unwrap();
    let made = directory.path().join("made");
    fs::rename(&made, directory.path().join("moved")).unwrap();
    DirBuilder::new().mode(0o700).create(&made).unwrap();
    writer.finish();
    assert!(writer.failures[0].ends_with("another directory has been put in its place"));
    assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn the_attributes_of_links_are_their_own() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("to"), "").unwrap();
    let preserves = Writing { preserves: true, ..Writing::default() };
    let mut writer = Writer::new(directory.path().into(), true, preserves).unwrap();
    let link = Entry { kind: Kind::Link("to".into()), ..entry("link") };
    let mut message = Vec::new();
    stream::append(&mut message, &Record::Entry(link));
    writer.take(&message).unwrap();
    assert_eq!((writer.files, &writer.failures), (1, &Vec::new()));
    let modified = |name| fs::symlink_metadata(directory.path().join(name)).unwrap().mtime();
    assert_eq!(modified("link"), 1_000_000_000);
    assert_ne!(modified("to"), 1_000_000_000);
}

/// The device is made for this test: no device of this machine is touched.
#[test]
fn a_device_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let node = directory.path().join("null");
    let made = std::process::Command::new("mknod").arg(&node).args(["c", "1", "3"]).output();
    if !made.is_ok_and(|made| made.status.success()) {
        return;
    }
    let mut writer = Writer::new(node.clone(), false, Writing::default()).unwrap();
    let mut message = Vec::new();
    for record in [Record::Entry(entry("file")), DATA, end(0), Record::Complete { entries: 1 }] {
        stream::append(&mut message, &record);
    }
    writer.take(&message).unwrap();
    assert!(writer.finish() && writer.failures[0].ends_with("which is not replaced"));
    assert!(fs::symlink_metadata(&node).unwrap().file_type().is_char_device());
}

#[test]
fn records_out_of_place_are_errors_and_leave_nothing() {
    let first = || Record::Entry(entry("file"));
    let chunks = Record::Chunks { entry: 0, of: entry("file"), chunks: Vec::new() };
    let cases: [Vec<Record<'_>>; 7] = [
        vec![DATA],
        vec![first(), first()],
        vec![first(), Record::Data { entry: 1, offset: 0, bytes: b"" }],
        vec![first(), DATA, DATA],
        vec![first(), Record::Complete { entries: 1 }],
        vec![first(), DATA, end(0), Record::Complete { entries: 2 }],
        vec![first(), DATA, end(0), chunks],
    ];
    for (number, records) in cases.iter().enumerate() {
        let (directory, writer, taken) = written(records);
        assert!(matches!(taken, Err(WriteError::Stream(_))), "case {number}");
        drop(writer);
        assert!(!names(&directory).iter().any(|name| is_part(name)), "case {number}");
    }
}

#[test]
fn extended_attributes_are_set_as_far_as_they_can_be() {
    let mut entry = entry("file");
    let attribute = |name: &[u8]| Attribute { name: name.into(), value: b"value".into() };
    entry.attributes = vec![attribute(b"unknown.name"), attribute(b"user.comment")];
    let (directory, writer, taken) = written(&[Record::Entry(entry), DATA, end(0)]);
    taken.unwrap();
    assert!(writer.failures[0].contains("extended attribute unknown.name: "), "{:?}", writer.failures);
    assert_eq!(names(&directory), ["file"]);
    let mut value = [0; 16];
    // Not all file systems have attributes of users.
    if let Ok(length) = rustix::fs::getxattr(directory.path().join("file"), "user.comment", &mut value) {
        assert_eq!(&value[..length], b"value");
    }
}

#[test]
fn a_compressed_message_is_taken_for_what_it_says_and_once() {
    let compressed = |message: &[u8]| {
        let frame = zstd::bulk::compress(message, 1).unwrap();
        let mut compressed = Vec::new();
        stream::append(&mut compressed, &Record::Compressed { length: message.len() as u32, bytes: &frame });
        compressed
    };
    let mut message = Vec::new();
    for record in [Record::Entry(entry("file")), DATA, end(0), Record::Complete { entries: 1 }] {
        stream::append(&mut message, &record);
    }
    let writer = |directory: &tempfile::TempDir| {
        Writer::new(directory.path().into(), true, Writing::default()).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let mut taken = writer(&directory);
    taken.take(&compressed(&message)).unwrap();
    assert!(taken.finish() && names(&directory) == ["file"]);
    let directory = tempfile::tempdir().unwrap();
    let (twice, followed) = (compressed(&compressed(&message)), [compressed(&message), message].concat());
    for wrong in [twice, followed] {
        assert!(matches!(writer(&directory).take(&wrong), Err(WriteError::Stream(_))));
    }
    assert!(names(&directory).is_empty());
}

#[test]
fn a_long_name_has_a_part() {
    let name = "n".repeat(255);
    let (directory, writer, taken) = written(&[Record::Entry(entry(&name)), DATA, end(0)]);
    taken.unwrap();
    assert_eq!((writer.files, names(&directory)), (1, vec![name.into()]));
}

/// A sender may claim any length: that costs a receiver no more than what is sent.
#[test]
fn holes_of_any_length_take_no_time() {
    let since = clock_gettime(ClockId::ThreadCPUTime);
    let sparse = |length| Entry { kind: Kind::File { length, is_sparse: true }, ..entry("file") };
    let data = |offset| Record::Data { entry: 0, offset, bytes: b"abc" };
    let end = |length| Record::End { entry: 0, length, hash: None };
    for (claimed, offset, length) in [
        (1 << 60, 0, 1 << 60),
        (3, 0, 1 << 60),
        (1 << 60, 1 << 60, (1 << 60) + 3),
        (3, (1 << 62) - 3, 1 << 62),
        (u64::MAX, 0, u64::MAX),
        (3, u64::MAX, u64::MAX),
    ] {
        let (directory, writer, taken) =
            written(&[Record::Entry(sparse(claimed)), data(offset), end(length)]);
        taken.unwrap();
        // File systems differ in how long files can be.
        assert_eq!(writer.files + writer.failure_count, 1, "{claimed}, {offset}, {length}");
        drop(writer);
        match fs::metadata(directory.path().join("file")) {
            Ok(there) => assert!(there.len() == length && there.blocks() < 100),
            Err(_) => assert!(names(&directory).is_empty()),
        }
    }
    let spent = clock_gettime(ClockId::ThreadCPUTime).tv_sec - since.tv_sec;
    assert!(spent < 5, "it took {spent} s of a processor");
}

//! Reading files, and the messages with what is in them.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{Advice, SeekFrom, fadvise, seek};

use crate::chunks::{COMPARED_BYTES_MIN, Chunks, Compared, Lacking, Placed, hash_of};
use crate::compression::Compressor;
use crate::file_hash::ContentHash;
use crate::queue::{Filler, Message, Stopped};
use crate::sources::{Source, changed, described};
use crate::stopper::Stopper;
use crate::stream::{DATA_BYTES_MAX, Hash, MESSAGE_BYTES_MAX, Question, Record, append, outline};
use crate::{CopiedFile, Kind};

/// Data shorter than this does not fill up a message: the next one begins instead.
const DATA_BYTES_MIN: usize = 4 << 10;

/// Bytes of records that are not data, with paths of any length and all extended attributes.
const RECORD_BYTES_MIN: usize = 64;

/// Chunks in one record.
const CHUNKS_MAX: usize = 2_000;

/// The stream of all sources, in messages.
pub(crate) struct Sender {
    queue: Filler,
    message: Message,
    compressor: Option<Compressor>,
    /// Whether messages come with their outlines.
    pub outlines: bool,
    /// Where data is read to.
    read: Vec<u8>,
    pub files: Vec<CopiedFile>,
    /// Files that could not be read, and why.
    pub left_out: Vec<(std::path::PathBuf, String)>,
}

/// Why a file is not sent to its end.
#[derive(Debug)]
enum FileError {
    Stopped,
    /// It cannot be read as it was found.
    Unreadable(io::Error),
}

impl From<Stopped> for FileError {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<io::Error> for FileError {
    fn from(why: io::Error) -> Self {
        Self::Unreadable(why)
    }
}

impl Sender {
    pub fn new(queue: Filler, compressor: Option<Compressor>) -> Self {
        let message = Message { bytes: Vec::with_capacity(MESSAGE_BYTES_MAX), ..Message::default() };
        let read = vec![0; DATA_BYTES_MAX];
        let (files, left_out) = (Vec::new(), Vec::new());
        Self { queue, message, compressor, outlines: false, read, files, left_out }
    }

    /// Lists all sources, with the hashes of files if these are compared, and asks which of them
    /// hosts lack.
    pub fn list(
        &mut self,
        sources: &[Source],
        compares_hashes: bool,
        stopper: &Stopper,
    ) -> Result<(), Stopped> {
        for source in sources {
            let is_hashed = compares_hashes && source.entry.length() > 0 && !source.is_input;
            // A file that cannot be read is reported when it is to be sent.
            let hash = || source.open().and_then(|file| hash_of(&file, stopper)).ok();
            let hash = is_hashed.then(hash).flatten();
            if stopper.is_stopped() {
                return Err(Stopped);
            }
            self.add(&Record::Listed { of: source.entry.clone(), hash })?;
        }
        self.add(&Record::Asked { question: Question::Entries, count: sources.len() as u32 })?;
        self.flush()
    }

    /// Reads the files that hosts lack and that are long enough to be compared, and asks which of
    /// their chunks hosts lack.
    pub fn ask(
        &mut self,
        sources: &[Source],
        lacking: &Lacking,
        stopper: &Stopper,
    ) -> Result<Compared, Stopped> {
        let mut compared = Compared::default();
        for (number, source) in sources.iter().enumerate().filter(|(number, _)| lacking.has(*number)) {
            // Chunks would fill holes.
            let is_compared = matches!(source.entry.kind, Kind::File { length, is_sparse: false } if length >= COMPARED_BYTES_MIN);
            if !is_compared {
                continue;
            }
            // A file that cannot be read is reported when it is to be sent.
            let read = source.open().and_then(|file| Chunks::of(&file, stopper));
            if stopper.is_stopped() {
                return Err(Stopped);
            }
            let Ok(chunks) = read else { continue };
            for some in chunks.all.chunks(CHUNKS_MAX) {
                let (of, chunks) = (source.entry.clone(), some.to_vec());
                self.add(&Record::Chunks { entry: number as u32, of, chunks })?;
                if self.message.bytes.len() > MESSAGE_BYTES_MAX / 2 {
                    self.flush()?;
                }
            }
            compared.files.push((number as u32, chunks));
        }
        self.add(&Record::Asked { question: Question::Chunks, count: compared.chunk_count() as u32 })?;
        self.flush()?;
        Ok(compared)
    }

    /// Reads and sends all sources that hosts lack, without the chunks that no host lacks.
    pub fn send(
        &mut self,
        sources: &[Source],
        lacking: &Lacking,
        compared: &Compared,
    ) -> Result<(), Stopped> {
        let mut files = compared.files.iter().peekable();
        let (mut first_chunk, mut passed) = (0, 0);
        for (number, source) in sources.iter().enumerate() {
            if !lacking.has(number) {
                passed += 1;
                continue;
            }
            self.pass(&mut passed)?;
            let number = number as u32;
            if let Some((_, chunks)) = files.next_if(|(of, _)| *of == number) {
                self.send_chunks(number, source, chunks, compared.lacking_of(chunks, first_chunk))?;
                first_chunk += chunks.all.len();
            } else if let Kind::File { is_sparse, .. } = source.entry.kind {
                self.send_file(number, source, is_sparse)?;
            } else {
                self.add(&Record::Entry(source.entry.clone()))?;
            }
        }
        self.pass(&mut passed)?;
        self.complete(sources.len() as u32)
    }

    /// Says that no host lacks the entries that were passed over.
    fn pass(&mut self, passed: &mut u32) -> Result<(), Stopped> {
        match std::mem::take(passed) {
            0 => Ok(()),
            entries => self.add(&Record::Passed { entries }),
        }
    }

    /// Ends the stream, after this number of entries.
    pub fn complete(&mut self, entries: u32) -> Result<(), Stopped> {
        self.add(&Record::Complete { entries })?;
        self.flush()
    }

    /// Sends a file until its end, which is not where its length says for files of /proc and /sys.
    fn send_file(&mut self, number: u32, source: &Source, is_sparse: bool) -> Result<(), Stopped> {
        self.add(&Record::Entry(source.entry.clone()))?;
        let sent = self.send_contents(number, source, is_sparse);
        self.end_file(number, source, sent, false)
    }

    /// Sends what is in a file. Returns its length, with the hash of its contents.
    fn send_contents(
        &mut self,
        number: u32,
        source: &Source,
        is_sparse: bool,
    ) -> Result<(u64, Hash), FileError> {
        let file = source.open()?;
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        let mut hash = ContentHash::default();
        let mut position = 0;
        'file: while let Some(data) = next_data(&file, position, is_sparse)? {
            position = data.start;
            while position < data.end {
                let read = self.read_data(number, source, &file, position, data.end)?;
                if read == 0 {
                    break 'file;
                }
                hash.add(position, &self.read[..read]);
                position += read as u64;
            }
        }
        source.check_unchanged(&file)?;
        let length = if is_sparse { source.entry.length() } else { position };
        Ok((length, hash.finish(length)))
    }

    /// Sends the chunks of a file that hosts lack. What is read has to be what was hashed before.
    fn send_chunks(
        &mut self,
        number: u32,
        source: &Source,
        chunks: &Chunks,
        lacking: impl Iterator<Item = Placed>,
    ) -> Result<(), Stopped> {
        self.add(&Record::Entry(source.entry.clone()))?;
        let sent = self.send_lacking(number, source, lacking);
        self.end_file(number, source, sent.map(|()| (chunks.length, chunks.hash)), true)
    }

    fn send_lacking(
        &mut self,
        number: u32,
        source: &Source,
        lacking: impl Iterator<Item = Placed>,
    ) -> Result<(), FileError> {
        let file = source.open()?;
        for Placed { range, hash } in lacking {
            let mut hasher = blake3::Hasher::new();
            let mut position = range.start;
            while position < range.end {
                let read = self.read_data(number, source, &file, position, range.end)?;
                if read == 0 {
                    return Err(changed().into());
                }
                hasher.update(&self.read[..read]);
                position += read as u64;
            }
            if *hasher.finalize().as_bytes() != hash {
                return Err(changed().into());
            }
        }
        source.check_unchanged(&file)?;
        Ok(())
    }

    /// Adds the record that ends a file: its length, with the hash of its contents if that is to be
    /// compared, or that it could not be read as it was found.
    fn end_file(
        &mut self,
        number: u32,
        source: &Source,
        sent: Result<(u64, Hash), FileError>,
        is_compared: bool,
    ) -> Result<(), Stopped> {
        let record = match sent {
            Ok((length, hash)) => {
                self.files.push(CopiedFile { source: source.path.clone(), length, hash });
                Record::End { entry: number, length, hash: is_compared.then_some(hash) }
            }
            Err(FileError::Stopped) => return Err(Stopped),
            Err(FileError::Unreadable(error)) => {
                let why = format!("could not be copied: {}", described(&error));
                self.left_out.push((source.path.clone(), why));
                Record::Unreadable { entry: number }
            }
        };
        self.add(&record)
    }

    /// Reads as much as a message has room for, up to `end`, into `self.read`, and adds it to the
    /// message. Returns its length; 0 at the end of the file.
    fn read_data(
        &mut self,
        entry: u32,
        source: &Source,
        file: &File,
        offset: u64,
        end: u64,
    ) -> Result<usize, FileError> {
        let mut room = DATA_BYTES_MAX.saturating_sub(self.message.bytes.len());
        if room < DATA_BYTES_MIN {
            self.flush()?;
            room = DATA_BYTES_MAX;
        }
        let room = room.min(usize::try_from(end - offset).unwrap_or(room));
        let length = source.read_at(file, &mut self.read[..room], offset)?;
        if length > 0 {
            append(&mut self.message.bytes, &Record::Data { entry, offset, bytes: &self.read[..length] });
            self.message.file_bytes += length as u64;
        }
        Ok(length)
    }

    fn add(&mut self, record: &Record<'_>) -> Result<(), Stopped> {
        if self.message.bytes.len() + RECORD_BYTES_MIN > MESSAGE_BYTES_MAX {
            self.flush()?;
        }
        append(&mut self.message.bytes, record);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        let mut message = std::mem::take(&mut self.message);
        if self.outlines {
            message.outline = outline(&message.bytes).ok();
        }
        if let Some(compressor) = &mut self.compressor {
            compressor.compress(&mut message.bytes);
        }
        self.message.bytes = self.queue.put(message)?;
        Ok(())
    }
}

/// The next part of a file that has data; all of the rest where holes are of no interest, or not
/// known to the file system.
fn next_data(file: &File, position: u64, is_sparse: bool) -> io::Result<Option<Range<u64>>> {
    let rest = Some(position..u64::MAX);
    if !is_sparse {
        return Ok(rest.filter(|_| position == 0));
    }
    match seek(file, SeekFrom::Data(position)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(rest.filter(|_| position == 0)),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    use super::*;
    use crate::queue::queue_of;
    use crate::{SourceSettings, Sources};

    const LENGTH: u64 = 3_000_000;

    fn noise() -> Vec<u8> {
        let mut bytes = vec![0; LENGTH as usize];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    /// Lets a sender act, and calls `before` before each message is taken, with its number. The
    /// sender is ahead by one message at most.
    fn with_sender<T: Send>(before: impl Fn(usize), act: impl FnOnce(Sender) -> T + Send) -> T {
        let (filler, drain) = queue_of(0);
        std::thread::scope(|scope| {
            let acting = scope.spawn(move || act(Sender::new(filler, None)));
            (0..).inspect(|&number| before(number)).take_while(|_| drain.take().is_some()).for_each(drop);
            acting.join().unwrap()
        })
    }

    /// Sends one file to a host that lacks all of it, or what chunks of it a host lacks.
    /// `meanwhile` runs before the third message is read. Returns why the file was left out, if it
    /// was.
    fn left_out(has_chunks: bool, meanwhile: impl Fn(&Path)) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, noise()).unwrap();
        let sources = Sources::find(std::slice::from_ref(&path), &SourceSettings::default()).unwrap();
        let mut compared = Compared::default();
        if has_chunks {
            compared = with_sender(
                |_| {},
                |mut sender| sender.ask(&sources.all, &Lacking::default(), &Stopper::default()).unwrap(),
            );
            compared.lacking.grow(compared.chunk_count());
            compared.lacking.insert_range(..);
        }
        let before = |number| {
            if number == 1 {
                meanwhile(&path);
            }
        };
        let (files, left_out) = with_sender(before, |mut sender| {
            sender.send(&sources.all, &Lacking::default(), &compared).unwrap();
            (sender.files, sender.left_out)
        });
        assert_eq!(files.len() + left_out.len(), 1);
        left_out.into_iter().next().map(|(_, why)| why)
    }

    #[test]
    fn a_file_that_changes_while_it_is_copied_is_named() {
        let shrink =
            |path: &Path| File::options().write(true).open(path).unwrap().set_len(1_000_000).unwrap();
        let change = |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(b"changed", 2_000_000).unwrap();
        };
        for has_chunks in [false, true] {
            assert_eq!(left_out(has_chunks, |_| {}), None);
            let changed = Some("could not be copied: it has changed while it was copied".to_owned());
            assert_eq!(left_out(has_chunks, shrink), changed, "shorter, with chunks: {has_chunks}");
            assert_eq!(left_out(has_chunks, change), changed, "other, with chunks: {has_chunks}");
        }
    }

    #[test]
    fn a_file_without_a_length_is_read_to_its_end() {
        let sources = Sources::find(&["/proc/self/status".into()], &SourceSettings::default()).unwrap();
        assert_eq!(sources.bytes, 0);
        let send = |mut sender: Sender| {
            sender.send(&sources.all, &Lacking::default(), &Compared::default()).unwrap();
            (sender.files, sender.left_out)
        };
        let (files, left_out) = with_sender(|_| {}, send);
        assert!(files[0].length > 0, "{left_out:?}");
    }
}

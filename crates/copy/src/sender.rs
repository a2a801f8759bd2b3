//! Reading files, and the messages with what is in them.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, SeekFrom, fadvise, seek};

use crate::chunks::{COMPARED_BYTES_MIN, Chunks, Compared};
use crate::compression::Compressor;
use crate::sources::{Source, described};
use crate::stream::{DATA_BYTES_MAX, Hash, MESSAGE_BYTES_MAX, Record, append};
use crate::{CopiedFile, Kind};

/// Data shorter than this does not fill up a message: the next one begins instead.
const DATA_BYTES_MIN: usize = 4 << 10;

/// Bytes of records that are not data, with paths of any length and all extended attributes.
const RECORD_BYTES_MIN: usize = 64;

/// Chunks in one record.
const CHUNKS_MAX: usize = 2_000;

/// What hashing a hole takes at a time.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A hash of a file that grows from its beginning, holes as zeros.
#[derive(Default)]
pub(crate) struct FileHash {
    hasher: blake3::Hasher,
    /// The bytes that are hashed.
    position: u64,
}

impl FileHash {
    /// Adds the bytes at an offset; false, if it is before what has been added.
    pub fn add(&mut self, offset: u64, bytes: &[u8]) -> bool {
        if offset < self.position {
            return false;
        }
        self.add_zeros(offset);
        self.hasher.update(bytes);
        self.position += bytes.len() as u64;
        true
    }

    /// The end of the bytes that were added.
    pub const fn position(&self) -> u64 {
        self.position
    }

    fn add_zeros(&mut self, until: u64) {
        while self.position < until {
            let length = (until - self.position).min(ZEROS.len() as u64);
            self.hasher.update(&ZEROS[..length as usize]);
            self.position += length;
        }
    }

    /// The hash of a file of so many bytes.
    pub fn finish(mut self, length: u64) -> Hash {
        self.add_zeros(length);
        self.hasher.finalize().into()
    }
}

/// The stream of all sources, in messages.
pub(crate) struct Sender<'a> {
    /// Takes a message with the number of bytes of files in it, and gives an empty one; none, if nothing more is wanted.
    take: &'a mut dyn FnMut(Vec<u8>, u64) -> Option<Vec<u8>>,
    message: Vec<u8>,
    compressor: Option<Compressor>,
    /// Where data is read to.
    read: Vec<u8>,
    /// The bytes of files in the message.
    file_bytes: u64,
    pub files: Vec<CopiedFile>,
    /// Files that could not be read, and why.
    pub left_out: Vec<(std::path::PathBuf, String)>,
}

/// Nothing more is wanted.
pub(crate) struct Stopped;

impl<'a> Sender<'a> {
    pub fn new(
        take: &'a mut dyn FnMut(Vec<u8>, u64) -> Option<Vec<u8>>,
        compressor: Option<Compressor>,
    ) -> Self {
        let message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let read = vec![0; DATA_BYTES_MAX];
        Self { take, message, compressor, read, file_bytes: 0, files: Vec::new(), left_out: Vec::new() }
    }

    /// Reads the files that are long enough to be compared, and asks which of their chunks hosts lack.
    pub fn ask(&mut self, sources: &[Source]) -> Result<Compared, Stopped> {
        let mut compared = Compared::default();
        for (number, source) in sources.iter().enumerate() {
            // Chunks would fill holes.
            let is_compared = matches!(source.entry.kind, Kind::File { length, is_sparse: false } if length >= COMPARED_BYTES_MIN);
            if !is_compared {
                continue;
            }
            // A file that cannot be read is reported when it is to be sent.
            let Ok(chunks) = File::open(&source.path).and_then(|file| Chunks::of(&file)) else { continue };
            for some in chunks.all.chunks(CHUNKS_MAX) {
                let (of, chunks) = (source.entry.clone(), some.to_vec());
                self.add(&Record::Chunks { entry: number as u32, of, chunks })?;
                if self.message.len() > MESSAGE_BYTES_MAX / 2 {
                    self.flush()?;
                }
            }
            compared.files.push((number as u32, chunks));
        }
        compared.lacking.grow(compared.chunk_count());
        self.add(&Record::Asked { chunks: compared.chunk_count() as u32 })?;
        self.flush()?;
        Ok(compared)
    }

    /// Reads all sources, but for the chunks that no host lacks.
    pub fn send(&mut self, sources: &[Source], compared: &Compared) -> Result<(), Stopped> {
        let mut files = compared.files.iter().peekable();
        let mut first_chunk = 0;
        for (number, source) in sources.iter().enumerate() {
            let number = number as u32;
            if let Some((_, chunks)) = files.next_if(|(of, _)| *of == number) {
                self.send_parts(number, source, chunks, &compared.parts(chunks, first_chunk))?;
                first_chunk += chunks.all.len();
            } else if let Kind::File { is_sparse, .. } = source.entry.kind {
                self.send_file(number, source, is_sparse)?;
            } else {
                self.add(&Record::Entry(source.entry.clone()))?;
            }
        }
        self.add(&Record::Complete { entries: sources.len() as u32 })?;
        self.flush()
    }

    fn send_file(&mut self, number: u32, source: &Source, is_sparse: bool) -> Result<(), Stopped> {
        self.add(&Record::Entry(source.entry.clone()))?;
        let mut hash = FileHash::default();
        let read = File::open(&source.path).and_then(|file| {
            let _ = fadvise(&file, 0, None, Advice::Sequential);
            let mut position = 0;
            while let Some(data) = next_data(&file, position, is_sparse)? {
                position = data.start;
                while position < data.end {
                    match self.send_data(number, &file, position, data.end, &mut hash)? {
                        Ok(0) => break,
                        Ok(length) => position += length,
                        Err(Stopped) => return Ok(Err(Stopped)),
                    }
                }
                if position < data.end {
                    break;
                }
            }
            // A file that grows while it is read has the length that it had at the end.
            Ok(Ok(if is_sparse { file.metadata()?.len().max(position) } else { position }))
        });
        let with_hash = |length: u64| (length, hash.finish(length));
        self.end_file(number, source, read.map(|length| length.map(with_hash)))
    }

    /// Parts of a file whose hash is known.
    fn send_parts(
        &mut self,
        number: u32,
        source: &Source,
        chunks: &Chunks,
        parts: &[Range<u64>],
    ) -> Result<(), Stopped> {
        self.add(&Record::Entry(source.entry.clone()))?;
        let read = File::open(&source.path).and_then(|file| {
            for part in parts {
                let mut position = part.start;
                while position < part.end {
                    let mut hash = FileHash::default();
                    match self.send_data(number, &file, position, part.end, &mut hash)? {
                        Ok(0) => return Err(io::Error::other("it has become shorter")),
                        Ok(length) => position += length,
                        Err(Stopped) => return Ok(Err(Stopped)),
                    }
                }
            }
            Ok(Ok(()))
        });
        let &Chunks { length, hash, .. } = chunks;
        self.end_file(number, source, read.map(|sent| sent.map(|()| (length, hash))))
    }

    /// Says that all of a file has been sent, with its length and hash, or that it could not be read.
    fn end_file(
        &mut self,
        number: u32,
        source: &Source,
        read: io::Result<Result<(u64, Hash), Stopped>>,
    ) -> Result<(), Stopped> {
        let record = match read {
            Ok(sent) => {
                let (length, hash) = sent?;
                self.files.push(CopiedFile { source: source.path.clone(), length, hash });
                Record::End { entry: number, length, hash }
            }
            Err(error) => {
                let why = format!("could not be read: {}", described(&error));
                self.left_out.push((source.path.clone(), why));
                Record::Unreadable { entry: number }
            }
        };
        self.add(&record)
    }

    /// Reads and sends as much as a message has room for, up to `end`. Returns how much; 0 at the end of the file.
    fn send_data(
        &mut self,
        entry: u32,
        file: &File,
        offset: u64,
        end: u64,
        hash: &mut FileHash,
    ) -> io::Result<Result<u64, Stopped>> {
        let mut room = DATA_BYTES_MAX.saturating_sub(self.message.len());
        if room < DATA_BYTES_MIN {
            if self.flush().is_err() {
                return Ok(Err(Stopped));
            }
            room = DATA_BYTES_MAX;
        }
        let room = room.min(usize::try_from(end - offset).unwrap_or(room));
        let length = read_at(file, &mut self.read[..room], offset)?;
        if length > 0 {
            let bytes = &self.read[..length];
            hash.add(offset, bytes);
            append(&mut self.message, &Record::Data { entry, offset, bytes });
            self.file_bytes += length as u64;
        }
        Ok(Ok(length as u64))
    }

    fn add(&mut self, record: &Record<'_>) -> Result<(), Stopped> {
        if self.message.len() + RECORD_BYTES_MIN > MESSAGE_BYTES_MAX {
            self.flush()?;
        }
        append(&mut self.message, record);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        let mut message = std::mem::take(&mut self.message);
        if let Some(compressor) = &mut self.compressor {
            compressor.compress(&mut message);
        }
        self.message = (self.take)(message, std::mem::take(&mut self.file_bytes)).ok_or(Stopped)?;
        Ok(())
    }
}

fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    loop {
        match file.read_at(bytes, offset) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// The next part of a file that has data; all of the rest where holes are of no interest, or not known to the file system.
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

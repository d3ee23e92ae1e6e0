//! Reads a pack while it is received, before libgit2 does: what its objects declare to be is checked against limits.
//!
//! A pack of some megabytes may contain a commit of gigabytes, and libgit2 holds a commit, a tag, a tree and each
//! object that is stored as a delta in memory. Once such a pack is in a mirror, every later start reads it. So the pack
//! is refused before it is stored. The format is that of `gitformat-pack(5)`.

use flate2::{Decompress, FlushDecompress, Status};

use super::error::Refusal;
use super::limits::PackLimits;

/// The checksum at the end of a pack.
const TRAILER: usize = 20;
/// The ID of the base of a delta.
const BASE_ID: usize = 20;
/// A pack file: a signature, a version and the number of objects.
const HEADER: usize = 12;
/// The number of bytes that are decompressed at once. The content is not kept.
const WINDOW: usize = 64 << 10;

/// Why a pack is not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ScanError {
    /// A limit forbids it.
    Refused(Refusal),
    /// The content is not a pack; the place in it.
    Malformed(&'static str),
}

/// The kinds of objects, as the first bits of an entry of a pack say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Commit,
    Tree,
    Blob,
    Tag,
    /// A delta whose base is named by its ID, so the kind of the result is not known here.
    Unknown,
}

#[derive(Debug)]
enum State {
    Header(Vec<u8>),
    /// The size of an entry, in groups of seven bits after the first four.
    Size {
        first: Option<u8>,
        size: u64,
        shift: u32,
    },
    /// The distance to the base of a delta.
    Distance {
        size: u64,
        distance: Option<u64>,
    },
    BaseId {
        size: u64,
        left: usize,
    },
    Body(Body),
    Trailer(usize),
    Done,
}

#[derive(Debug)]
struct Body {
    kind: Kind,
    declared: u64,
    inflated: u64,
    /// The sizes at the start of a delta: of its base and of its result.
    delta: Option<DeltaSizes>,
}

/// Reads two numbers from the start of a delta.
#[derive(Debug, Default)]
struct DeltaSizes {
    read: Vec<u64>,
    value: u64,
    shift: u32,
}

/// Reads one pack, in pieces of any size.
pub(super) struct PackScanner<'l> {
    limits: &'l PackLimits,
    state: State,
    offset: u64,
    entry_start: u64,
    entries_left: u32,
    /// The offset of each entry with its kind, in the order of offsets.
    entries: Vec<(u64, Kind)>,
    inflate: Decompress,
    window: Vec<u8>,
    largest_result: u64,
}

impl<'l> PackScanner<'l> {
    pub(super) fn new(limits: &'l PackLimits) -> Self {
        Self {
            limits,
            state: State::Header(Vec::with_capacity(HEADER)),
            offset: 0,
            entry_start: 0,
            entries_left: 0,
            entries: Vec::new(),
            inflate: Decompress::new(true),
            window: vec![0; WINDOW],
            largest_result: 0,
        }
    }

    /// Reads the next piece of the pack.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), ScanError> {
        while let Some(first) = bytes.first().copied() {
            let used = match &mut self.state {
                State::Body(_) => self.inflate(bytes)?,
                _ => {
                    self.byte(first)?;
                    1
                }
            };
            self.offset += used as u64;
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(())
    }

    /// Returns the size of the largest object that is stored as a delta. libgit2 holds it in memory, with its base.
    ///
    /// # Errors
    /// [`ScanError::Malformed`] if the pack is not complete.
    pub(super) fn finish(&self) -> Result<u64, ScanError> {
        match self.state {
            State::Done => Ok(self.largest_result),
            _ => Err(ScanError::Malformed("the end")),
        }
    }

    fn byte(&mut self, byte: u8) -> Result<(), ScanError> {
        let low = u64::from(byte & 0x7f);
        let more = byte & 0x80 != 0;
        match &mut self.state {
            State::Header(header) => {
                header.push(byte);
                if header.len() == HEADER {
                    self.entries_left = self.read_header()?;
                    self.next_entry(HEADER as u64);
                }
            }
            State::Size { first, size, shift } => {
                match first {
                    None => {
                        *first = Some(byte);
                        *size = u64::from(byte & 0x0f);
                        *shift = 4;
                    }
                    Some(_) => {
                        *size |= shifted(low, *shift).ok_or(ScanError::Malformed("the size of an object"))?;
                        *shift += 7;
                    }
                }
                if !more {
                    let (first, size) = (first.unwrap_or(byte), *size);
                    self.begin((first >> 4) & 7, size)?;
                }
            }
            State::Distance { size, distance } => {
                let wrong = ScanError::Malformed("the base of a delta");
                let next = match *distance {
                    None => low,
                    Some(before) => before
                        .checked_add(1)
                        .and_then(|before| before.checked_mul(128))
                        .map(|before| before | low)
                        .ok_or(wrong.clone())?,
                };
                *distance = Some(next);
                if !more {
                    let size = *size;
                    let base = self.entry_start.checked_sub(next).ok_or(wrong.clone())?;
                    let found = self.entries.binary_search_by_key(&base, |(offset, _)| *offset);
                    let (_, kind) = *found
                        .ok()
                        .and_then(|index| self.entries.get(index))
                        .ok_or(wrong)?;
                    self.body(kind, size, true)?;
                }
            }
            State::BaseId { size, left } => {
                *left -= 1;
                if *left == 0 {
                    let size = *size;
                    self.body(Kind::Unknown, size, true)?;
                }
            }
            State::Trailer(left) => {
                *left -= 1;
                if *left == 0 {
                    self.state = State::Done;
                }
            }
            State::Body(_) | State::Done => return Err(ScanError::Malformed("the end")),
        }
        Ok(())
    }

    fn read_header(&self) -> Result<u32, ScanError> {
        let State::Header(header) = &self.state else {
            return Err(ScanError::Malformed("the header"));
        };
        let number = |from: usize| {
            let bytes = header.get(from..from + 4)?;
            Some(u32::from_be_bytes(bytes.try_into().ok()?))
        };
        match (header.starts_with(b"PACK"), number(4), number(8)) {
            (true, Some(2 | 3), Some(objects)) if objects <= self.limits.max_objects => Ok(objects),
            (true, Some(2 | 3), Some(_)) => Err(ScanError::Refused(Refusal::Objects {
                limit: self.limits.max_objects,
            })),
            _ => Err(ScanError::Malformed("the header")),
        }
    }

    /// Expects an entry, or the end, at an offset.
    fn next_entry(&mut self, offset: u64) {
        self.entry_start = offset;
        self.state = match self.entries_left {
            0 => State::Trailer(TRAILER),
            left => {
                self.entries_left = left - 1;
                State::Size {
                    first: None,
                    size: 0,
                    shift: 0,
                }
            }
        };
    }

    fn begin(&mut self, kind: u8, size: u64) -> Result<(), ScanError> {
        match kind {
            1 => self.body(Kind::Commit, size, false),
            2 => self.body(Kind::Tree, size, false),
            3 => self.body(Kind::Blob, size, false),
            4 => self.body(Kind::Tag, size, false),
            6 => {
                self.state = State::Distance { size, distance: None };
                Ok(())
            }
            7 => {
                self.state = State::BaseId { size, left: BASE_ID };
                Ok(())
            }
            _ => Err(ScanError::Malformed("the kind of an object")),
        }
    }

    fn body(&mut self, kind: Kind, declared: u64, is_delta: bool) -> Result<(), ScanError> {
        // A delta is held in memory as well, whatever it results in.
        self.check(if is_delta { Kind::Blob } else { kind }, declared)?;
        self.entries.push((self.entry_start, kind));
        self.inflate.reset(true);
        self.state = State::Body(Body {
            kind,
            declared,
            inflated: 0,
            delta: is_delta.then(DeltaSizes::default),
        });
        Ok(())
    }

    fn check(&self, kind: Kind, bytes: u64) -> Result<(), ScanError> {
        let (what, limit) = match kind {
            Kind::Commit => ("commit", self.limits.max_commit_bytes),
            Kind::Tag => ("tag", self.limits.max_commit_bytes),
            Kind::Tree => ("directory", self.limits.max_directory_bytes),
            Kind::Blob | Kind::Unknown => ("file", self.limits.max_object_bytes),
        };
        if bytes > limit {
            return Err(ScanError::Refused(Refusal::ObjectBytes { what, bytes, limit }));
        }
        Ok(())
    }

    /// Decompresses a part of an object; returns how many bytes of the input were used.
    fn inflate(&mut self, bytes: &[u8]) -> Result<usize, ScanError> {
        const WRONG: ScanError = ScanError::Malformed("the content of an object");
        let State::Body(body) = &mut self.state else {
            return Err(WRONG);
        };
        let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self
            .inflate
            .decompress(bytes, &mut self.window, FlushDecompress::None)
            .map_err(|_| WRONG)?;
        let used = usize::try_from(self.inflate.total_in() - read).map_err(|_| WRONG)?;
        let made = usize::try_from(self.inflate.total_out() - written).map_err(|_| WRONG)?;
        body.inflated += made as u64;
        if body.inflated > body.declared || used + made == 0 && status != Status::StreamEnd {
            return Err(WRONG);
        }
        let kind = body.kind;
        let sizes = body
            .delta
            .as_mut()
            .map(|delta| delta.read(self.window.get(..made).unwrap_or_default()));
        let is_complete = body.inflated == body.declared;
        let has_sizes = body.delta.as_ref().is_none_or(|delta| delta.read.len() == 2);
        for size in sizes.transpose()?.into_iter().flatten() {
            self.check(kind, size)?;
            self.largest_result = self.largest_result.max(size);
        }
        if status == Status::StreamEnd {
            if !is_complete || !has_sizes {
                return Err(WRONG);
            }
            self.next_entry(self.offset + used as u64);
        }
        Ok(used)
    }
}

impl DeltaSizes {
    /// Reads the sizes from the next part of a delta; returns those that are new.
    fn read(&mut self, bytes: &[u8]) -> Result<Vec<u64>, ScanError> {
        let known = self.read.len();
        for byte in bytes {
            if self.read.len() == 2 {
                break;
            }
            let part = shifted(u64::from(byte & 0x7f), self.shift);
            self.value |= part.ok_or(ScanError::Malformed("the sizes of a delta"))?;
            self.shift += 7;
            if byte & 0x80 == 0 {
                self.read.push(self.value);
                (self.value, self.shift) = (0, 0);
            }
        }
        Ok(self.read.get(known..).unwrap_or_default().to_vec())
    }
}

/// Shifts seven bits into place; `None` if a bit is lost.
fn shifted(bits: u64, shift: u32) -> Option<u64> {
    let shifted = bits.checked_shl(shift)?;
    (shifted >> shift == bits).then_some(shifted)
}

#[cfg(test)]
mod tests;

//! A heap profile as pprof's `profile.proto`, written without a heap, in one pass.
//!
//! ```text
//!   Profile { sample_type: 4 × ValueType, period_type, period, default_sample_type
//!             sample: each stack's locations and four values
//!             mapping: each executable file   location: each address   string_table }
//! ```
//! Field numbers are those of github.com/google/pprof, `proto/profile.proto`. Repeated fields may
//! stand anywhere in the message, so each entry is written as soon as it is known; a string's
//! number is its place among the strings. The values are estimates already: readers need not
//! know that samples were taken.

use core::ops::ControlFlow;

use hectare::{ProcessProfile, call_of};

use crate::maps::{LONGEST_LINE, Mapping, each_mapping};
use crate::output::Sink;

/// Fields of `Profile`.
mod profile {
    pub(super) const SAMPLE_TYPE: u64 = 1;
    pub(super) const SAMPLE: u64 = 2;
    pub(super) const MAPPING: u64 = 3;
    pub(super) const LOCATION: u64 = 4;
    pub(super) const STRING_TABLE: u64 = 6;
    pub(super) const TIME_NANOS: u64 = 9;
    pub(super) const PERIOD_TYPE: u64 = 11;
    pub(super) const PERIOD: u64 = 12;
    pub(super) const COMMENT: u64 = 13;
    pub(super) const DEFAULT_SAMPLE_TYPE: u64 = 14;
}

/// The first strings, by their number.
const STRINGS: [&[u8]; 9] = [
    b"",
    b"alloc_objects",
    b"count",
    b"alloc_space",
    b"bytes",
    b"inuse_objects",
    b"inuse_space",
    b"space",
    b"written by libhectare.so; some samples were lost for want of memory",
];
const COUNT: u64 = 2;
const BYTES: u64 = 4;
const INUSE_SPACE: u64 = 6;
const SPACE: u64 = 7;
const LOST: u64 = 8;
/// The four kinds of value of each sample: name and unit.
const SAMPLE_TYPES: [(u64, u64); 4] = [(1, COUNT), (3, BYTES), (5, COUNT), (INUSE_SPACE, BYTES)];

/// A message that fits on the stack: a sample of 64 locations is the longest, a mapping has no
/// text.
struct Message {
    bytes: [u8; 1024],
    len: usize,
}

impl Message {
    fn new() -> Self {
        Self { bytes: [0; 1024], len: 0 }
    }

    #[inline(never)]
    fn varint(&mut self, mut value: u64) {
        loop {
            let low = (value & 0x7f) as u8;
            value >>= 7;
            self.bytes[self.len] = if value > 0 { low | 0x80 } else { low };
            self.len += 1;
            if value == 0 {
                return;
            }
        }
    }

    /// A number. A 0 is left out, since an absent field means 0.
    fn number(&mut self, field: u64, value: u64) {
        if value != 0 {
            self.varint(field << 3);
            self.varint(value);
        }
    }

    /// Numbers in one packed field.
    fn numbers(&mut self, field: u64, values: impl Iterator<Item = u64>) {
        let mut packed = Self::new();
        for value in values {
            packed.varint(value);
        }
        self.varint(field << 3 | 2);
        self.varint(packed.len as u64);
        self.bytes[self.len..self.len + packed.len].copy_from_slice(&packed.bytes[..packed.len]);
        self.len += packed.len;
    }

    fn contents(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Writes a field of bytes: a message, or a string.
fn put_bytes(out: &mut impl Sink, field: u64, bytes: &[u8]) -> Option<()> {
    let mut head = Message::new();
    head.varint(field << 3 | 2);
    head.varint(bytes.len() as u64);
    out.put(head.contents())?;
    out.put(bytes)
}

fn put_number(out: &mut impl Sink, field: u64, value: u64) -> Option<()> {
    let mut message = Message::new();
    message.number(field, value);
    out.put(message.contents())
}

fn value_type((name, unit): (u64, u64)) -> Message {
    let mut message = Message::new();
    message.number(1, name);
    message.number(2, unit);
    message
}

/// Writes the profile; `None` if the sink did not take all, or if there is no memory.
pub(crate) fn write(out: &mut impl Sink, snapshot: &ProcessProfile) -> Option<()> {
    for string in STRINGS {
        put_bytes(out, profile::STRING_TABLE, string)?;
    }
    for sample_type in SAMPLE_TYPES {
        put_bytes(out, profile::SAMPLE_TYPE, value_type(sample_type).contents())?;
    }
    put_bytes(out, profile::PERIOD_TYPE, value_type((SPACE, BYTES)).contents())?;
    put_number(out, profile::PERIOD, snapshot.mean_bytes() as u64)?;
    put_number(out, profile::DEFAULT_SAMPLE_TYPE, INUSE_SPACE)?;
    put_number(out, profile::TIME_NANOS, now_nanos())?;
    if snapshot.lost_samples() > 0 {
        put_number(out, profile::COMMENT, LOST)?;
    }
    let calls = snapshot.calls();
    // Locations are numbered from 1.
    let location = |call| calls.partition_point(|&other| other < call) as u64 + 1;
    for stack in snapshot.stacks() {
        let mut sample = Message::new();
        sample.numbers(1, stack.frames.iter().map(|&address| location(call_of(address))));
        let (all, live) = (stack.total, stack.live);
        let values = [all.objects(), all.bytes, live.objects(), live.bytes];
        sample.numbers(2, values.into_iter());
        put_bytes(out, profile::SAMPLE, sample.contents())?;
    }
    put_places(out, calls)
}

/// Writes the mappings that hold any of the calls, and the calls' locations.
fn put_places(out: &mut impl Sink, calls: &[usize]) -> Option<()> {
    let mut places = Places { out, calls, next: 0, mappings: 0 };
    let mut written = Some(());
    let read = each_mapping::<LONGEST_LINE>(|mapping| {
        written = places.put_mapping(&mapping);
        if written.is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    // Without `/proc` there are no mappings, but there are still calls.
    let _ = read;
    written?;
    places.put_locations(usize::MAX, 0)
}

/// One walk along the calls and the mappings, both sorted by address.
struct Places<'a, S: Sink> {
    out: &'a mut S,
    calls: &'a [usize],
    /// The first call that is not written yet.
    next: usize,
    mappings: u64,
}

impl<S: Sink> Places<'_, S> {
    fn put_mapping(&mut self, mapping: &Mapping<'_>) -> Option<()> {
        self.put_locations(mapping.start, 0)?;
        if self.calls.get(self.next).is_none_or(|&call| call >= mapping.end) {
            return Some(());
        }
        put_bytes(self.out, profile::STRING_TABLE, mapping.path)?;
        let mut message = Message::new();
        message.number(1, self.mappings + 1);
        message.number(2, mapping.start as u64);
        message.number(3, mapping.end as u64);
        message.number(4, mapping.offset as u64);
        message.number(5, STRINGS.len() as u64 + self.mappings);
        put_bytes(self.out, profile::MAPPING, message.contents())?;
        self.mappings += 1;
        self.put_locations(mapping.end, self.mappings)
    }

    /// Writes the locations of the calls before `end`, which lie in `mapping`; 0 is none.
    fn put_locations(&mut self, end: usize, mapping: u64) -> Option<()> {
        while let Some(&call) = self.calls.get(self.next).filter(|&&call| call < end) {
            self.next += 1;
            let mut message = Message::new();
            message.number(1, self.next as u64);
            message.number(2, mapping);
            message.number(3, call as u64);
            put_bytes(self.out, profile::LOCATION, message.contents())?;
        }
        Some(())
    }
}

fn now_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid place for the answer; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

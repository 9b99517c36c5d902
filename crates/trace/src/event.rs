//! What a row records, in plain types.

use core::fmt;

/// A thread of the recorded program. Numbers start at 1, in the order of the first allocation. They
/// are not reused when a thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// An object: the thread that allocated it, and its serial among that thread's objects.
///
/// 24 bits of thread and 40 bits of serial: 16 million threads of 10¹² objects each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(u64);

const SERIAL_BITS: u32 = 40;
const THREAD_BITS: u32 = u64::BITS - SERIAL_BITS;

impl ThreadId {
    /// Whether an [`ObjectId`] can name an object of this thread.
    pub const fn can_be(self) -> bool {
        0 < self.0 && self.0 < 1 << THREAD_BITS
    }
}

impl ObjectId {
    /// The object numbered `serial` (from 0) of `thread`. Excess bits are cut off.
    #[inline(always)]
    pub const fn new(thread: ThreadId, serial: u64) -> Self {
        Self((thread.0 as u64) << SERIAL_BITS | serial & ((1 << SERIAL_BITS) - 1))
    }

    /// As [`new`](Self::new); `None` for numbers with excess bits.
    pub(crate) fn checked(thread: ThreadId, serial: u64) -> Option<Self> {
        (thread.can_be() && serial < 1 << SERIAL_BITS).then(|| Self::new(thread, serial))
    }

    /// The object that [`bits`](Self::bits) stands for; `None` for 0 (no thread has number 0).
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// The object as one word, never 0 for a thread number of at least 1.
    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The thread that allocated it.
    #[inline(always)]
    pub const fn thread(self) -> ThreadId {
        ThreadId((self.0 >> SERIAL_BITS) as u32)
    }

    /// How many objects its thread had allocated before.
    #[inline(always)]
    pub const fn serial(self) -> u64 {
        self.0 & ((1 << SERIAL_BITS) - 1)
    }
}

impl fmt::Display for ThreadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {}", self.0)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {}.{}", self.thread().0, self.serial())
    }
}

/// One thing that a thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `malloc(size_bytes)`.
    Malloc {
        /// As asked for, bytes.
        size_bytes: u64,
    },
    /// `calloc`, with count and size multiplied.
    Calloc {
        /// As asked for, bytes.
        size_bytes: u64,
    },
    /// `aligned_alloc`, `memalign`, `posix_memalign`, `valloc`, `pvalloc`.
    Memalign {
        /// As asked for, bytes.
        size_bytes: u64,
        /// Binary logarithm of the alignment asked for.
        align_log2: u8,
    },
    /// `realloc`, `reallocarray`: the old object ends, a new one begins. A `realloc(p, 0)` that
    /// frees is recorded as [`Event::Free`].
    Realloc {
        /// The object given; `None` for a null pointer.
        old: Option<ObjectId>,
        /// As asked for, bytes.
        size_bytes: u64,
    },
    /// `free`; without an object for a null pointer.
    Free {
        /// The object freed.
        object: Option<ObjectId>,
    },
    /// `free_sized`, `free_aligned_sized`.
    SizedFree {
        /// The object freed; `None` for a null pointer.
        object: Option<ObjectId>,
    },
    /// `malloc_usable_size`.
    UsableSize {
        /// The object asked about.
        object: ObjectId,
    },
    /// The first row of every thread.
    ThreadStart,
    /// The thread ends. Destructors that run later may still free.
    ThreadEnd,
    /// The program forked. The child has a file of its own.
    Fork {
        /// Process id of the child.
        child_pid: u32,
    },
    /// A number that the program put here by `hectare_trace_marker`.
    Marker {
        /// The number.
        value: u64,
    },
}

impl Event {
    /// The object that must exist for this event.
    pub fn object(&self) -> Option<ObjectId> {
        match *self {
            Self::Realloc { old: object, .. }
            | Self::Free { object }
            | Self::SizedFree { object } => object,
            Self::UsableSize { object } => Some(object),
            _ => None,
        }
    }

    /// Bytes asked for, when the event asks for memory.
    pub fn asked_bytes(&self) -> Option<u64> {
        match *self {
            Self::Malloc { size_bytes }
            | Self::Calloc { size_bytes }
            | Self::Memalign { size_bytes, .. }
            | Self::Realloc { size_bytes, .. } => Some(size_bytes),
            _ => None,
        }
    }
}

/// One row of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The time, in ticks since the start of the file ([`crate::FileHeader::ticks_per_second`]).
    pub time_ticks: u64,
    /// What happened.
    pub event: Event,
    /// The object made; `None` when the event makes none or the allocator returned null.
    pub made: Option<ObjectId>,
}

impl Record {
    /// Whether memory was asked for and null was returned.
    pub fn failed(&self) -> bool {
        self.made.is_none() && self.event.asked_bytes().is_some()
    }
}

//! What a random program does next.

/// One call of an allocator. An `index` names a live object of the thread's shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Allocates.
    Malloc {
        /// The size in bytes.
        bytes: usize,
    },
    /// Allocates zeros.
    Calloc {
        /// The size in bytes.
        bytes: usize,
    },
    /// Allocates with an alignment.
    Aligned {
        /// The size in bytes.
        bytes: usize,
        /// A power of two.
        align: usize,
    },
    /// Resizes.
    Realloc {
        /// Which object.
        index: usize,
        /// Its new size in bytes.
        bytes: usize,
    },
    /// Frees.
    Free {
        /// Which object.
        index: usize,
    },
    /// Leaves an object to whichever thread takes it, and takes an object that another thread left.
    Exchange {
        /// Which object.
        index: usize,
    },
    /// Gives back memory that is not needed.
    Trim,
}

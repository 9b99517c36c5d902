//! `libhectare_recorder.so`: preloaded into a program, it records the program's calls of its
//! allocator.
//!
//! ```text
//!  program ── malloc ──▶ abi ──▶ next::malloc (the allocator that the program would have used)
//!                         │
//!                         ├────▶ tape    one row into this thread's open chunk
//!                         └────▶ shadow  address ─▶ object number
//!
//!  NAME.<pid>.<n>   ◀── shared mapping of each open chunk ── kernel writes it back, whatever
//!                                                            becomes of the program
//! ```
//!
//! `hectare record` starts it: it sets `LD_PRELOAD` and `HECTARE_TRACE=NAME` (an absolute path),
//! and seals the files afterwards. Without `HECTARE_TRACE` every call is passed on and nothing else
//! happens. A process also begins no file if `NAME` does not exist: `NAME` exists as long as the
//! recording lasts, and a daemon that goes on would leave files that nobody looks at.
//!
//! Invariants
//! 1. The recorder never allocates from the recorded heap; its own memory is mapped.
//! 2. The hot path takes no lock and makes no system call: thread-local pointer, clock, one row,
//!    one shadow entry.
//! 3. The shadow entry of an address holds the object that lives there. It is set after the real
//!    `malloc` has returned the address and cleared before the real `free` gets it, so whoever is
//!    handed the address next finds the entry empty; the allocator's own synchronisation orders the
//!    two.
//! 4. Everything that a forked child must not inherit (open chunks, the lock, the header's
//!    mapping) lies in the arena of `process`, which the kernel wipes on fork. A wiped tape has no
//!    room, so the child's first event takes the slow path and opens a file of its own.
//! 5. A row becomes part of the trace by its tag byte; chunks start as zeroes, and zero is no tag.
//!    So a chunk that the program never closed is readable up to its last whole row.
//!
//! Cost: see `docs/trace-format.md`; `hectare record` measures it on every recording.

pub mod abi;
mod chunk;
mod clock;
mod decision;
mod next;
mod process;
mod shadow;
mod sys;
mod tape;
mod tls;

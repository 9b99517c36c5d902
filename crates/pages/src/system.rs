//! What a heap needs besides memory: a clock, the number of the CPU that it runs on, a way to
//! sleep.

use hectare_base::sync::Park;

#[cfg(target_has_atomic = "64")]
use crate::Failing;
use crate::{Counted, PageSource};

/// A [`PageSource`] with the other services of an operating system that an allocator uses, so that
/// a test can stand in for all of them.
pub trait System: PageSource {
    /// How threads wait for a lock.
    type Park: Park;

    /// The number of the CPU that this thread runs on now: a hint, stale as soon as it is read.
    fn cpu(&self) -> usize;

    /// Milliseconds of a clock that never runs backwards, from an arbitrary start; cheap and
    /// coarse (a few milliseconds).
    fn now_ms(&self) -> u64;

    /// Nanoseconds of such a clock, as fine as there is: a number that soon changes.
    fn now_ns(&self) -> u64;

    /// How long this thread has run, in microseconds. For measuring what takes some hundreds of
    /// microseconds, whoever else gets the CPU meanwhile.
    fn thread_us(&self) -> u64;

    /// A number that an attacker cannot guess, different in each process where the system can
    /// provide that.
    fn secret(&self) -> usize;

    /// The most memory that there can be for this process, in bytes, as far as is known: for tables
    /// whose size is chosen once.
    fn memory_bytes(&self) -> usize {
        usize::MAX
    }

    /// Shows `line` to whoever runs the program and ends the program. Allocates nothing.
    fn fatal(&self, line: &[u8]) -> !;
}

/// Passes all of a system's services but its memory on to the source within.
macro_rules! passed_on {
    () => {
        type Park = S::Park;

        fn cpu(&self) -> usize {
            self.inner().cpu()
        }

        fn now_ms(&self) -> u64 {
            self.inner().now_ms()
        }

        fn now_ns(&self) -> u64 {
            self.inner().now_ns()
        }

        fn thread_us(&self) -> u64 {
            self.inner().thread_us()
        }

        fn secret(&self) -> usize {
            self.inner().secret()
        }

        fn memory_bytes(&self) -> usize {
            self.inner().memory_bytes()
        }

        fn fatal(&self, line: &[u8]) -> ! {
            self.inner().fatal(line)
        }
    };
}

impl<S: System> System for Counted<S> {
    passed_on!();
}

#[cfg(target_has_atomic = "64")]
impl<S: System> System for Failing<S> {
    passed_on!();
}

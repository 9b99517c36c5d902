//! While one thread opens a block of a huge page for slabs, others that need none get theirs.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "tests read better whole")]

mod support;

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use hectare::Heap;
use hectare_check::Subject;
use hectare_pages::{FutexPark, Os, PageSource, SourceError, System};
use support::Front;

/// The operating system; but the first call that asks for a huge page waits until another thread has
/// done what it was told to do then.
#[derive(Debug)]
struct Meeting {
    /// To say that the call has come, and to hear that the other is done.
    ends: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

// SAFETY: every call is passed on unchanged.
unsafe impl PageSource for Meeting {
    fn page_bytes(&self) -> usize {
        Os.page_bytes()
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        Os.reserve(bytes, align)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.commit(start, bytes) }
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.decommit(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.release(start, bytes) }
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        let ends = self.ends.lock().expect("no thread panics here").take();
        if let Some((come, done)) = ends {
            come.send(()).expect("the other thread waits");
            done.recv_timeout(Duration::from_secs(20))
                .expect("another thread gets a slab meanwhile");
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.advise_huge(start, bytes, huge) }
    }
}

impl System for Meeting {
    type Park = FutexPark;

    fn cpu(&self) -> usize {
        Os.cpu()
    }

    fn now_ms(&self) -> u64 {
        Os.now_ms()
    }

    fn secret(&self) -> usize {
        Os.secret()
    }

    fn fatal(&self, line: &[u8]) -> ! {
        Os.fatal(line)
    }
}

/// Takes objects of `bytes` bytes, `total` bytes in all, and frees them.
fn take_and_free(heap: &Heap<Meeting>, bytes: usize, total: usize) {
    let mut front = Front::new(heap);
    let take = |_| NonNull::new(front.malloc(bytes)).expect("memory");
    let objects: Vec<_> = (0..total / bytes).map(take).collect();
    for object in objects {
        // SAFETY: each was taken above, and is given up here.
        unsafe { front.free(object) };
    }
}

#[test]
fn a_slab_is_had_while_a_block_is_opened() {
    if Os.page_bytes() > 4096 {
        return;
    }
    let ((come, has_come), (done, is_done)) = (channel(), channel());
    let meeting = Meeting { ends: Mutex::new(Some((come, is_done))) };
    let heap = Heap::new(meeting, 256 << 20);
    thread::scope(|scope| {
        let heap = &heap;
        scope.spawn(move || {
            has_come.recv().expect("8 MiB of one class are worth a block");
            // More than the first slab has, of a class that has none.
            take_and_free(heap, 5000, 256 << 10);
            done.send(()).expect("the first thread waits");
        });
        take_and_free(heap, 1000, 8 << 20);
    });
    heap.validate();
}

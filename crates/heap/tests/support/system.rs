//! The operating system, watched. Each call of the heap must keep to the contract of
//! [`PageSource`]. Commits can be bounded, as a system without overcommit bounds them. The test
//! sets the clock and the CPU's number.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use hectare_base::sync::{Lock, LockGuard};
use hectare_pages::{FutexPark, Os, PageSource, SourceError, System};

thread_local! {
    static CPU: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Makes this thread say that it runs on `cpu`; on the real one if `None`.
pub fn pretend_cpu(cpu: Option<usize>) {
    CPU.set(cpu);
}

/// Runs of pages with one property: start to end, disjoint, not touching.
#[derive(Debug, Default)]
struct Spans(BTreeMap<usize, usize>);

impl Spans {
    fn bytes(&self) -> usize {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The span that contains all of `start..end`.
    fn around(&self, start: usize, end: usize) -> Option<(usize, usize)> {
        let (&from, &to) = self.0.range(..=start).next_back()?;
        (end <= to).then_some((from, to))
    }

    /// How many bytes of `start..end` are in no span.
    fn missing(&self, start: usize, end: usize) -> usize {
        let overlap = |(&from, &to): (&usize, &usize)| to.min(end).saturating_sub(from.max(start));
        end - start - self.0.range(..end).map(overlap).sum::<usize>()
    }

    fn add(&mut self, start: usize, end: usize) {
        let (mut from, mut to) = (start, end);
        while let Some((&other, &other_to)) = self.0.range(..=to).next_back()
            && other_to >= from
        {
            from = from.min(other);
            to = to.max(other_to);
            self.0.remove(&other);
        }
        self.0.insert(from, to);
    }

    fn remove(&mut self, start: usize, end: usize) {
        while let Some((&from, &to)) = self.0.range(..end).next_back()
            && to > start
        {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
        }
    }
}

#[derive(Debug, Default)]
struct Ledger {
    /// Each reservation by itself: neighbours must not be taken for one.
    reserved: BTreeMap<usize, usize>,
    committed: Spans,
}

impl Ledger {
    /// Panics unless `start..end` lies within one reservation.
    fn within_one(&self, call: &str, start: usize, end: usize) {
        let around = self.reserved.range(..=start).next_back();
        assert!(
            around.is_some_and(|(_, &to)| end <= to),
            "{call}({start:#x}..{end:#x}) is not within one reservation: {around:#x?}"
        );
    }
}

/// When a thread waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// Before huge pages are asked for.
    HugePages,
    /// Before a block's first touch, which is timed.
    Opening,
    /// Before the heap looks at memory in use.
    Probe,
    /// Before memory comes for objects that were just taken.
    Populate,
}

/// When to meet, a channel to say that the thread has come so far, and one to hear that it may go
/// on.
type Meeting = (Moment, Sender<()>, Receiver<()>);

/// The operating system, watched.
#[derive(Debug)]
pub struct Strict {
    /// Behind a lock that the thread sanitizer sees; it does not see the standard library's.
    ledger: Lock<Ledger, FutexPark>,
    bound_bytes: AtomicUsize,
    decommitted_bytes: AtomicUsize,
    /// How many decommits were refused, once they are refused at all.
    refused: Mutex<Option<usize>>,
    meeting: Mutex<Option<Meeting>>,
    now_ms: AtomicU64,
    page_bytes: usize,
}

impl Default for Strict {
    fn default() -> Self {
        Self::new()
    }
}

impl Strict {
    pub fn new() -> Self {
        Self::with_pages(Os.page_bytes())
    }

    /// A system whose pages are larger than the machine's. Ranges that are not whole pages are an
    /// error.
    pub fn with_pages(page_bytes: usize) -> Self {
        Self {
            page_bytes,
            ledger: Lock::new(Ledger::default()),
            bound_bytes: AtomicUsize::new(usize::MAX),
            decommitted_bytes: AtomicUsize::new(0),
            refused: Mutex::new(None),
            meeting: Mutex::new(None),
            now_ms: AtomicU64::new(1),
        }
    }

    /// Refuses commits that would make the committed bytes more than `bytes`.
    pub fn bound(&self, bytes: usize) {
        self.bound_bytes.store(bytes, SeqCst);
    }

    /// The bytes that are committed now.
    pub fn committed_bytes(&self) -> usize {
        self.ledger().committed.bytes()
    }

    /// How many bytes were decommitted so far; a byte counts each time.
    pub fn decommitted_bytes(&self) -> usize {
        self.decommitted_bytes.load(SeqCst)
    }

    /// Refuses each decommit from now on. Returns how many were refused before.
    pub fn refuse_decommits(&self) -> usize {
        self.refused.lock().expect("nobody panics with it").replace(0).unwrap_or(0)
    }

    /// Makes the next call at a `moment` say so by `come`, and wait for `done`.
    pub fn meet(&self, moment: Moment, come: Sender<()>, done: Receiver<()>) {
        *self.meeting.lock().expect("nobody panics with it") = Some((moment, come, done));
    }

    fn meet_at(&self, moment: Moment) {
        let meeting = self
            .meeting
            .lock()
            .expect("nobody panics with it")
            .take_if(|meeting| meeting.0 == moment);
        if let Some((_, come, done)) = meeting {
            come.send(()).expect("the other thread waits");
            done.recv_timeout(Duration::from_secs(20)).expect("the other thread is done meanwhile");
        }
    }

    /// Lets `ms` milliseconds pass.
    pub fn pass_ms(&self, ms: u64) {
        self.now_ms.fetch_add(ms, SeqCst);
    }

    fn ledger(&self) -> LockGuard<'_, Ledger, FutexPark> {
        self.ledger.lock()
    }

    fn check(&self, bytes: usize, start: usize) {
        let page = self.page_bytes;
        assert!(bytes > 0 && bytes.is_multiple_of(page), "{bytes} bytes are not whole pages");
        assert!(start.is_multiple_of(page), "{start:#x} is not a page's start");
    }
}

// SAFETY: every call is passed on unchanged, or refused without effect.
unsafe impl PageSource for Strict {
    fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        self.check(bytes, 0);
        assert!(align.is_power_of_two() && align >= self.page_bytes(), "align {align}");
        let start = Os.reserve(bytes, align)?;
        let address = start.addr().get();
        assert_eq!(address % align, 0);
        self.ledger().reserved.insert(address, address + bytes);
        Ok(start)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let (from, to) = (start.addr().get(), start.addr().get() + bytes);
        self.check(bytes, from);
        let mut ledger = self.ledger();
        ledger.within_one("commit", from, to);
        let more = ledger.committed.missing(from, to);
        if ledger.committed.bytes() + more > self.bound_bytes.load(SeqCst) && more > 0 {
            return Err(SourceError::Exhausted);
        }
        // SAFETY: the caller's promise, checked.
        unsafe { Os.commit(start, bytes) }?;
        ledger.committed.add(from, to);
        Ok(())
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let (from, to) = (start.addr().get(), start.addr().get() + bytes);
        self.check(bytes, from);
        let ledger = self.ledger();
        ledger.within_one("decommit", from, to);
        assert!(ledger.committed.around(from, to).is_some(), "decommit of what is not committed");
        if let Some(refused) = &mut *self.refused.lock().expect("nobody panics with it") {
            *refused += 1;
            return Err(SourceError::Unsupported);
        }
        self.decommitted_bytes.fetch_add(bytes, SeqCst);
        // SAFETY: the caller's promise, checked.
        unsafe { Os.decommit(start, bytes) }
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        if huge {
            self.meet_at(Moment::HugePages);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { Os.advise_huge(start, bytes, huge) }
    }

    fn is_zero(&self, start: NonNull<u32>) -> Option<bool> {
        self.meet_at(Moment::Probe);
        Os.is_zero(start)
    }

    unsafe fn populate(&self, start: NonNull<u8>, bytes: usize) {
        self.meet_at(Moment::Populate);
        let (from, to) = (start.addr().get(), start.addr().get() + bytes);
        self.check(bytes, from);
        assert!(self.ledger().committed.around(from, to).is_some(), "what is not committed");
        // SAFETY: the caller's promise, checked.
        unsafe { Os.populate(start, bytes) }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        let (from, to) = (start.addr().get(), start.addr().get() + bytes);
        self.check(bytes, from);
        let mut ledger = self.ledger();
        ledger.within_one("release", from, to);
        let (&begin, &end) = ledger.reserved.range(..=from).next_back().expect("checked above");
        ledger.reserved.remove(&begin);
        if begin < from {
            ledger.reserved.insert(begin, from);
        }
        if to < end {
            ledger.reserved.insert(to, end);
        }
        ledger.committed.remove(from, to);
        // SAFETY: the caller's promise, checked.
        unsafe { Os.release(start, bytes) };
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        let (start, target) = (from.addr().get(), to.addr().get());
        self.check(bytes, start);
        self.check(bytes, target);
        assert!(start + bytes <= target || target + bytes <= start, "they overlap");
        let ledger = self.ledger();
        assert!(ledger.committed.around(start, start + bytes).is_some(), "from: not committed");
        assert!(ledger.committed.around(target, target + bytes).is_some(), "to: not committed");
        // SAFETY: the caller's promise, checked as far as can be.
        unsafe { Os.move_pages(from, to, bytes) }
    }
}

impl System for Strict {
    type Park = FutexPark;

    fn cpu(&self) -> usize {
        CPU.get().unwrap_or_else(|| Os.cpu())
    }

    fn now_ms(&self) -> u64 {
        self.now_ms.load(SeqCst)
    }

    fn now_ns(&self) -> u64 {
        self.now_ms() * 1_000_000
    }

    fn thread_us(&self) -> u64 {
        self.meet_at(Moment::Opening);
        self.now_ms() * 1000
    }

    fn secret(&self) -> usize {
        Os.secret()
    }

    fn fatal(&self, line: &[u8]) -> ! {
        Os.fatal(line)
    }
}

impl Drop for Strict {
    /// Gives back what the heap still has. A heap never does so itself, since a process's heap has
    /// no end.
    fn drop(&mut self) {
        for (start, end) in std::mem::take(&mut self.ledger().reserved) {
            let Some(first) = NonNull::new(std::ptr::with_exposed_provenance_mut(start)) else {
                continue;
            };
            // SAFETY: a reservation of this source; the heap that had it is gone.
            unsafe { Os.release(first, end - start) };
        }
    }
}

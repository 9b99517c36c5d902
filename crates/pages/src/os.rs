//! The operating system as a source: `mmap` and its family.

mod system;

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use hectare_base::align::align_up;

use crate::hugetlb;
use crate::source::{decommit_each, reserve_and_commit};
use crate::{PageRange, PageSource, SourceError};
pub use system::FutexPark;

/// Linux's private anonymous memory. Ranges are aligned to a page at least; an alignment that is no
/// power of two is refused. No call changes the `errno` that a caller sees: each saves and restores
/// it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Os;

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

#[cold]
fn read_page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::getauxval(libc::AT_PAGESZ) };
    let bytes = usize::try_from(bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(4096);
    PAGE_BYTES.store(bytes, Relaxed);
    bytes
}

/// Why the last system call of this thread was refused.
fn last_error() -> libc::c_int {
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno }
}

/// Runs a system call and leaves `errno` as it was.
pub(crate) fn keep_errno<R>(call: impl FnOnce() -> R) -> R {
    // SAFETY: the C library's pointer to this thread's errno is valid while the thread lives.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let result = call();
    // SAFETY: as above.
    unsafe { *errno = saved };
    result
}

fn checked(status: libc::c_int) -> Result<(), SourceError> {
    if status == 0 { Ok(()) } else { Err(SourceError::Exhausted) }
}

/// Makes a system call for each part of a range outside the pool of huge pages.
fn each_ordinary(
    start: NonNull<u8>,
    bytes: usize,
    call: impl Fn(*mut libc::c_void, usize) -> libc::c_int,
) -> Result<(), SourceError> {
    let parts = hugetlb::divide(start, bytes).ordinary;
    let mut parts = parts.into_iter().filter(|(_, bytes)| *bytes > 0);
    parts.try_for_each(|(start, bytes)| checked(keep_errno(|| call(start.as_ptr().cast(), bytes))))
}

/// Whether a range is known to lie within a single mapping. This asks the system to lengthen the
/// range in place beyond the end of the address space. If the range has several mappings, the
/// system says so before it finds that there is no room.
fn is_one_mapping(start: NonNull<u8>, bytes: usize) -> bool {
    /// What a program can have, which is 128 TiB, less what lies below any range.
    const LONGER_BYTES: usize = (1 << 47) - (1 << 16);
    keep_errno(|| {
        // SAFETY: it is refused: from any address on, so many bytes reach beyond the end, or what
        // lies there.
        let longer = unsafe { libc::mremap(start.as_ptr().cast(), bytes, LONGER_BYTES, 0) };
        longer == libc::MAP_FAILED && matches!(last_error(), libc::ENOMEM | libc::EAGAIN)
    })
}

/// Gives advice, which may be refused.
///
/// # Safety
/// The range is this source's, and the advice changes no contents.
#[inline(never)]
unsafe fn advise(start: NonNull<u8>, bytes: usize, advice: libc::c_int) {
    // SAFETY: the caller's promise.
    let _ =
        each_ordinary(start, bytes, |start, bytes| unsafe { libc::madvise(start, bytes, advice) });
}

/// Maps address space only, or memory. The kernel refuses more memory than there can be.
fn map(bytes: usize, is_memory: bool) -> Result<NonNull<u8>, SourceError> {
    let (access, more) = if is_memory {
        (libc::PROT_READ | libc::PROT_WRITE, 0)
    } else {
        (libc::PROT_NONE, libc::MAP_NORESERVE)
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | more;
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(SourceError::Exhausted);
    }
    NonNull::new(start.cast()).ok_or(SourceError::Exhausted)
}

/// Unmaps. A failure (the kernel's limit on mappings) leaves only address space in use.
///
/// # Safety
/// The range is this source's and unused.
unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    if bytes > 0 && unsafe { libc::munmap(start.cast(), bytes) } != 0 {
        // SAFETY: as above.
        unsafe { empty(start.cast(), bytes) };
    }
}

/// Gives back the memory of ordinary pages. If the program has locked it (`mlock`, `mlockall`),
/// that takes a different advice, and pages touched again are locked again.
///
/// # Safety
/// The range is this source's and unused.
#[inline(never)]
unsafe fn empty(start: *mut libc::c_void, bytes: usize) -> libc::c_int {
    // SAFETY: the caller's promise.
    let status = unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED) };
    if status == 0 || last_error() != libc::EINVAL || !CAN_GIVE_LOCKED.load(Relaxed) {
        return status;
    }
    // SAFETY: as above.
    unsafe { libc::madvise(start, bytes, libc::MADV_DONTNEED_LOCKED) }
}

/// As [`map`], aligned to `align` and to a page; refuses an `align` that is no power of two.
fn map_aligned(
    bytes: usize,
    align: usize,
    page: usize,
    is_memory: bool,
) -> Result<NonNull<u8>, SourceError> {
    if !align.is_power_of_two() {
        return Err(SourceError::Unsupported);
    }
    keep_errno(|| {
        if align <= page {
            return map(bytes, is_memory);
        }
        let mapped_bytes = bytes.checked_add(align - page).ok_or(SourceError::Exhausted)?;
        let mapped = map(mapped_bytes, is_memory)?.as_ptr();
        let lead = align_up(mapped.addr(), align) - mapped.addr();
        // SAFETY: lead ≤ align - page, so `lead + bytes` lies within the mapping.
        let start = unsafe { mapped.add(lead) };
        // SAFETY: the mapping's own head, seen by nobody.
        unsafe { unmap(mapped, lead) };
        // SAFETY: one past the part that is kept, within the mapping or at its end.
        let tail = unsafe { start.add(bytes) };
        // SAFETY: the mapping's own tail, seen by nobody.
        unsafe { unmap(tail, mapped_bytes - lead - bytes) };
        NonNull::new(start).ok_or(SourceError::Exhausted)
    })
}

/// Whether `MADV_POPULATE_WRITE` (Linux 5.14) has never been refused except for lack of memory.
static CAN_POPULATE: AtomicBool = AtomicBool::new(true);

/// Whether a process may advise many of its own ranges in one call (Linux 6.13; `PIDFD_SELF` 6.14).
static CAN_ADVISE_ALL: AtomicBool = AtomicBool::new(true);

/// Whether it has done so. If so, a refusal is due to the ranges: the program may have locked one
/// of them.
static HAS_ADVISED_ALL: AtomicBool = AtomicBool::new(false);

/// Whether huge pages are asked for and declined by advice.
static ADVISES_HUGE: AtomicBool = AtomicBool::new(true);

/// Whether huge pages are asked for. If not, they are declined wherever they would have been.
static WANTS_HUGE: AtomicBool = AtomicBool::new(true);

/// Whether memory that the program has locked can be given back by a separate call
/// (`MADV_DONTNEED_LOCKED`, Linux 5.18). A system that does not know the call would refuse it each
/// time.
static CAN_GIVE_LOCKED: AtomicBool = AtomicBool::new(true);

/// Whether system calls that a sandbox may not know are avoided.
static IS_PLAIN: AtomicBool = AtomicBool::new(false);

impl Os {
    /// From now on, in every thread, memory is taken, moved and given back only by `mmap`,
    /// `munmap`, `mprotect`, `mremap` and `madvise` with `MADV_DONTNEED`, and threads wait for each
    /// other only by `futex`. This is for a process that a filter would kill for other calls. (What
    /// those calls would merely speed up is then slower.) [`rseq`](crate::rseq) also stops asking
    /// the kernel anything. A call that another thread has already begun runs to its end.
    pub fn keep_to_plain_calls(&self) {
        IS_PLAIN.store(true, Relaxed);
        for more in [&CAN_POPULATE, &CAN_ADVISE_ALL, &ADVISES_HUGE, &CAN_GIVE_LOCKED] {
            more.store(false, Relaxed);
        }
    }

    /// From now on no transparent huge pages are asked for: [`advise_huge`](PageSource::advise_huge)
    /// declines them instead.
    pub fn forgo_huge_pages(&self) {
        WANTS_HUGE.store(false, Relaxed);
    }

    /// Whether this process was told to [keep to plain calls](Self::keep_to_plain_calls).
    #[must_use]
    pub fn keeps_to_plain_calls(&self) -> bool {
        IS_PLAIN.load(Relaxed)
    }
}

/// Stands for the calling process in place of a pidfd.
const PIDFD_SELF: libc::c_int = -10_001;

const _: () = assert!(size_of::<PageRange>() == size_of::<libc::iovec>());

/// Decommits all ranges in one call. `None` if it was refused and nothing, or not everything, was
/// done; to do it again does no harm. Measured on Linux 6.18, one call takes a third of the time of
/// separate calls (`cargo bench -p hectare-pages --features os --bench calls`).
fn advise_all(ranges: &[PageRange]) -> Option<usize> {
    if !CAN_ADVISE_ALL.load(Relaxed) {
        return None;
    }
    // SAFETY: the ranges have the layout of `iovec` and live as long as the call; what is advised
    // is the caller's to give back.
    let gone = keep_errno(|| unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF,
            ranges.as_ptr(),
            ranges.len(),
            libc::MADV_DONTNEED,
            0,
        )
    });
    let all_bytes = ranges.iter().map(|range| range.bytes).sum();
    if gone >= 0 {
        HAS_ADVISED_ALL.store(true, Relaxed);
    } else if !HAS_ADVISED_ALL.load(Relaxed) {
        CAN_ADVISE_ALL.store(false, Relaxed);
    }
    (usize::try_from(gone) == Ok(all_bytes)).then_some(all_bytes)
}

// SAFETY: the kernel hands out each address once until it is unmapped; private anonymous memory
// reads as zero until written, and again after MADV_DONTNEED.
unsafe impl PageSource for Os {
    fn page_bytes(&self) -> usize {
        match PAGE_BYTES.load(Relaxed) {
            0 => read_page_bytes(),
            bytes => bytes,
        }
    }

    fn reserve(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        map_aligned(bytes, align, self.page_bytes(), false)
    }

    unsafe fn commit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        each_ordinary(start, bytes, |start, bytes| {
            // SAFETY: the caller says that the range is a part of a reservation.
            unsafe { libc::mprotect(start, bytes, access) }
        })
    }

    unsafe fn decommit(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        let (pooled, pooled_bytes) = hugetlb::divide(start, bytes).pooled;
        // SAFETY: the caller says that the range is committed and unused.
        unsafe { pooled.write_bytes(0, pooled_bytes) };
        // SAFETY: as above.
        each_ordinary(start, bytes, |start, bytes| unsafe { empty(start, bytes) })
    }

    unsafe fn decommit_all(&self, ranges: &[PageRange]) -> usize {
        if ranges.len() > 1
            && !ranges.iter().any(|range| hugetlb::touches(range.start, range.bytes))
            && let Some(gone) = advise_all(ranges)
        {
            return gone;
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { decommit_each(self, ranges) }
    }

    unsafe fn populate(&self, start: NonNull<u8>, bytes: usize) {
        if CAN_POPULATE.load(Relaxed) {
            // What is not populated now comes at the first touch.
            let _ = each_ordinary(start, bytes, |start, bytes| {
                // SAFETY: advice on the caller's own range changes no contents.
                let status = unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) };
                if status != 0 && last_error() != libc::ENOMEM {
                    CAN_POPULATE.store(false, Relaxed);
                }
                status
            });
        }
    }

    unsafe fn release(&self, start: NonNull<u8>, bytes: usize) {
        // SAFETY: the caller says that the range is reserved and unused.
        keep_errno(|| unsafe { unmap(start.as_ptr(), bytes) });
    }

    fn get(&self, bytes: usize, align: usize) -> Result<NonNull<u8>, SourceError> {
        if align <= bytes {
            return map_aligned(bytes, align, self.page_bytes(), true);
        }
        // If a mapping is made longer for the sake of alignment, only part of it should be memory.
        reserve_and_commit(self, bytes, align)
    }

    unsafe fn move_pages(
        &self,
        from: NonNull<u8>,
        to: NonNull<u8>,
        bytes: usize,
    ) -> Result<(), SourceError> {
        if hugetlb::touches(from, bytes) || hugetlb::touches(to, bytes) {
            return Err(SourceError::Unsupported);
        }
        // From Linux 6.17 on, several mappings move one by one; if one is refused, those before it
        // have moved. Earlier kernels refuse several mappings.
        if !is_one_mapping(from, bytes) {
            return Err(SourceError::Unsupported);
        }
        // `DONTUNMAP` (Linux 5.7) leaves `from` mapped and empty, as the contract asks.
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: the caller says that both ranges are committed, disjoint and unused by others.
        let moved = keep_errno(|| unsafe {
            libc::mremap(from.as_ptr().cast(), bytes, bytes, flags, to.as_ptr())
        });
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
        // Some refusals (before Linux 6.17, beyond the limit on address space) come after `to` has
        // been unmapped. In that case it is mapped anew; otherwise it still exists. If another
        // thread of the program mapped something there between the two calls, that cannot be
        // distinguished, since nothing says whose a mapping is.
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        keep_errno(|| {
            // SAFETY: a new mapping where there is none disturbs nothing.
            let mapped = unsafe { libc::mmap(to.as_ptr().cast(), bytes, access, flags, -1, 0) };
            let is_there = mapped == to.as_ptr().cast()
                || mapped == libc::MAP_FAILED && last_error() == libc::EEXIST
                || mapped != libc::MAP_FAILED && {
                    // Before Linux 4.17 the flag is ignored, and if the address is taken the kernel
                    // maps elsewhere.
                    // SAFETY: mapped above, and known to nobody.
                    unsafe { libc::munmap(mapped, bytes) };
                    true
                };
            Err(if is_there { SourceError::Unsupported } else { SourceError::Exhausted })
        })
    }

    unsafe fn seal(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        if hugetlb::touches(start, bytes) {
            return Err(SourceError::Unsupported);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.decommit(start, bytes) }?;
        let access = libc::PROT_NONE;
        // SAFETY: the caller says that the range is committed and unused.
        checked(keep_errno(|| unsafe { libc::mprotect(start.as_ptr().cast(), bytes, access) }))
    }

    unsafe fn advise_huge(&self, start: NonNull<u8>, bytes: usize, huge: bool) {
        if !ADVISES_HUGE.load(Relaxed) {
            return;
        }
        let huge = huge && WANTS_HUGE.load(Relaxed);
        // SAFETY: the caller's promise; neither changes contents.
        unsafe {
            advise(start, bytes, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE })
        };
    }

    unsafe fn advise_dump(&self, start: NonNull<u8>, bytes: usize, dumped: bool) {
        if self.keeps_to_plain_calls() {
            return;
        }
        // SAFETY: the caller's promise; neither changes contents.
        unsafe {
            advise(start, bytes, if dumped { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP })
        };
    }

    /// The kernel does the comparing, in a futex call that moves waiters to another word if the
    /// word is zero; here it is asked to move none. To the kernel an inaccessible word is an error,
    /// not a fault.
    fn is_zero(&self, start: NonNull<u32>) -> Option<bool> {
        let operation = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
        let (word, none) = (start.as_ptr(), 0_usize);
        keep_errno(|| {
            // SAFETY: nobody is woken or moved, and the word is only read.
            match unsafe { libc::syscall(libc::SYS_futex, word, operation, none, none, word, 0) } {
                0 => Some(true),
                _ => (last_error() == libc::EAGAIN).then_some(false),
            }
        })
    }

    #[inline]
    fn is_resident(&self, page: NonNull<u8>) -> Option<bool> {
        if self.keeps_to_plain_calls() {
            return None;
        }
        let mut state = 0;
        // SAFETY: writes one byte, of one page, to `state`.
        let told = keep_errno(|| unsafe { libc::mincore(page.as_ptr().cast(), 1, &raw mut state) });
        (told == 0).then_some(state & 1 == 1)
    }

    unsafe fn set_aside(&self, start: NonNull<u8>, bytes: usize) -> Result<(), SourceError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { hugetlb::set_aside(start, bytes) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    #[test]
    fn a_range_is_refused_where_its_alignment_is_no_power_of_two() {
        let page = Os.page_bytes();
        for align in [0, 48, page + 1, 3 * page, usize::MAX] {
            assert_eq!(Os.reserve(page, align), Err(SourceError::Unsupported), "{align}");
            assert_eq!(Os.get(page, align), Err(SourceError::Unsupported), "{align}");
        }
        let start = Os.reserve(page, 1).expect("address space");
        assert!(start.addr().get().is_multiple_of(page));
        // SAFETY: just reserved, used by nobody.
        unsafe { Os.release(start, page) };
    }

    #[test]
    fn many_ranges_go_at_once() {
        let page = Os.page_bytes();
        let start = Os.get(16 * page, page).expect("memory");
        // SAFETY: each range below lies in the 16 pages just taken.
        unsafe {
            Os.populate(start, 16 * page);
            start.write_bytes(7, 16 * page);
            let odd = [1, 3, 5, 7].map(|i| PageRange { start: start.add(i * page), bytes: page });
            assert_eq!(Os.decommit_all(&odd), 4 * page);
            for i in 0..16 {
                let expected = if i < 8 && i % 2 == 1 { 0 } else { 7 };
                assert_eq!(start.add(i * page).read(), expected, "page {i}");
            }
            Os.release(start, 16 * page);
        }
    }

    #[test]
    fn zeros_are_seen_from_outside() {
        let page = Os.page_bytes();
        let start = Os.reserve(2 * page, page).expect("address space");
        // SAFETY: within the reservation; touched only once committed.
        unsafe {
            Os.commit(start, page).expect("memory");
            start.add(5).write(1);
            let is_zero = |offset| Os.is_zero(start.add(offset).cast());
            let seen = [0, 4, 8, page].map(is_zero);
            assert_eq!(seen, [Some(true), Some(false), Some(true), None]);
            Os.release(start, 2 * page);
        }
    }

    #[test]
    fn a_page_is_resident_from_its_first_touch_until_it_goes() {
        let page = Os.page_bytes();
        let start = Os.get(2 * page, page).expect("memory");
        // SAFETY: the second of the two pages just taken.
        let second = unsafe { start.add(page) };
        assert_eq!(Os.is_resident(second), Some(false));
        // SAFETY: the pages just taken, which nobody uses once they are released.
        unsafe {
            second.write(1);
            assert_eq!(Os.is_resident(second), Some(true));
            Os.decommit(second, page).expect("decommit");
            assert_eq!(Os.is_resident(second), Some(false));
            Os.release(start, 2 * page);
        }
    }

    #[test]
    fn memory_passes_through_its_states() {
        let page = Os.page_bytes();
        let align = 64 * page;
        let start = Os.reserve(16 * page, align).expect("address space");
        assert_eq!(start.addr().get() % align, 0);
        // SAFETY: within the reservation; touched only once committed.
        unsafe {
            Os.commit(start, 4 * page).expect("memory");
            assert_eq!(start.read(), 0);
            start.write_bytes(7, 4 * page);
            Os.decommit(start, page).expect("decommit");
            assert_eq!(start.read(), 0);
            assert_eq!(start.add(page).read(), 7);
            Os.release(start, 16 * page);
        }
    }

    #[test]
    fn an_alignment_takes_no_address_space() {
        const GIB: usize = 1 << 30;
        let page = Os.page_bytes();
        let size_bytes = || {
            let sizes =
                std::fs::read_to_string("/proc/self/statm").expect("the sizes of a process");
            let pages = sizes.split(' ').next().and_then(|size| size.parse::<usize>().ok());
            pages.expect("a number of pages") * page
        };
        let before_bytes = size_bytes();
        // The lengths differ, so that the ranges are misaligned differently before they are cut.
        let lengths: [usize; 16] = core::array::from_fn(|i| (1 + 10_007 * i) * page);
        let starts = lengths.map(|bytes| Os.reserve(bytes, GIB).expect("address space"));
        let more_bytes = size_bytes().saturating_sub(before_bytes);
        for (start, bytes) in starts.into_iter().zip(lengths) {
            assert_eq!(start.addr().get() % GIB, 0);
            // SAFETY: just reserved, and unused.
            unsafe { Os.release(start, bytes) };
        }
        let asked_bytes: usize = lengths.iter().sum();
        assert!(more_bytes < asked_bytes + GIB, "{more_bytes} bytes for {asked_bytes}");
    }

    #[test]
    fn what_was_sealed_can_be_committed_anew() {
        let page = Os.page_bytes();
        let start = Os.get(3 * page, page).expect("memory");
        // SAFETY: the test's own; nothing sealed is touched.
        unsafe {
            start.write_bytes(5, 3 * page);
            Os.seal(start.add(page), page).expect("seal");
            assert_eq!(Os.is_zero(start.add(page).cast()), None, "it can be read");
            assert_eq!((start.read(), start.add(2 * page).read()), (5, 5));
            Os.commit(start.add(page), page).expect("memory");
            assert_eq!(start.add(page).read(), 0);
            Os.release(start, 3 * page);
        }
    }

    #[test]
    fn what_the_program_has_locked_goes_back_too() {
        let page = Os.page_bytes();
        let start = Os.get(page, page).expect("memory");
        let place = start.as_ptr().cast();
        // SAFETY: the test's own.
        unsafe {
            let is_known = libc::madvise(place, page, libc::MADV_DONTNEED_LOCKED) == 0;
            if is_known && libc::mlock(place, page) == 0 {
                start.write(7);
                assert_eq!((Os.decommit(start, page), start.read()), (Ok(()), 0));
            } else {
                std::eprintln!("skipped: needs Linux 5.18 and a page that may be locked");
            }
            Os.release(start, page);
        }
    }

    /// Other ranges still go in one call.
    #[test]
    fn a_locked_range_ends_no_batches() {
        let page = Os.page_bytes();
        let start = Os.get(4 * page, page).expect("memory");
        // SAFETY: each range below lies in the pages just taken.
        unsafe {
            let ranges = [0, 2].map(|i| PageRange { start: start.add(i * page), bytes: page });
            Os.decommit_all(&ranges);
            if HAS_ADVISED_ALL.load(Relaxed) && libc::mlock(start.as_ptr().cast(), page) == 0 {
                start.write_bytes(7, 4 * page);
                assert_eq!(Os.decommit_all(&ranges), 2 * page);
                assert_eq!((start.read(), start.add(2 * page).read()), (0, 0));
                assert!(CAN_ADVISE_ALL.load(Relaxed), "no more batches");
            } else {
                std::eprintln!("skipped: needs Linux 6.14 and a page that may be locked");
            }
            Os.release(start, 4 * page);
        }
    }

    /// The kernel then tells how far it came, which is no error.
    #[test]
    fn a_locked_range_amid_others_ends_no_batch() {
        let page = Os.page_bytes();
        let start = Os.get(8 * page, page).expect("memory");
        // SAFETY: each range below lies in the pages just taken.
        unsafe {
            let ranges =
                [0, 2, 4, 6].map(|i| PageRange { start: start.add(i * page), bytes: page });
            let is_locked = libc::mlock(start.as_ptr().add(4 * page).cast(), page) == 0;
            if is_locked && CAN_GIVE_LOCKED.load(Relaxed) {
                start.write_bytes(7, 8 * page);
                assert_eq!(Os.decommit_all(&ranges), 4 * page);
                for i in 0..8 {
                    let expected = if i % 2 == 0 { 0 } else { 7 };
                    assert_eq!(start.add(i * page).read(), expected, "page {i}");
                }
            } else {
                std::eprintln!("skipped: needs Linux 5.18 and a page that may be locked");
            }
            Os.release(start, 8 * page);
        }
    }

    #[test]
    fn pages_move_without_a_copy() {
        let page = Os.page_bytes();
        let from = Os.get(2 * page, page).expect("memory");
        let to = Os.get(2 * page, page).expect("memory");
        // SAFETY: two committed ranges of this test's own.
        unsafe {
            from.write_bytes(9, 2 * page);
            if Os.move_pages(from, to, 2 * page).is_ok() {
                assert_eq!(to.add(page).read(), 9);
                assert_eq!(from.read(), 0);
            }
            Os.release(from, 2 * page);
            Os.release(to, 2 * page);
        }
    }

    #[test]
    fn a_refused_move_changes_nothing() {
        let page = Os.page_bytes();
        let start = Os.get(3 * page, page).expect("memory");
        // SAFETY: a range of this test's own; the system refuses because they overlap.
        unsafe {
            start.write_bytes(9, 3 * page);
            let moved = Os.move_pages(start, start.add(page), 2 * page);
            assert_eq!(moved, Err(SourceError::Unsupported));
            assert!((0..3).all(|i| start.add(i * page).read() == 9));
            Os.release(start, 3 * page);
        }
    }

    /// Linux 6.17 would move the mappings one by one, until one is refused.
    #[test]
    fn several_mappings_stay() {
        let page = Os.page_bytes();
        let [from, to] = [(); 2].map(|()| Os.get(4 * page, page).expect("memory"));
        // SAFETY: two committed ranges of this test's own.
        unsafe {
            from.write_bytes(9, 4 * page);
            Os.advise_dump(from.add(2 * page), page, false);
            assert!(is_one_mapping(from, 2 * page) && !is_one_mapping(from, 3 * page));
            assert!(!is_one_mapping(from, 4 * page) && is_one_mapping(from.add(3 * page), page));
            assert_eq!(Os.move_pages(from, to, 4 * page), Err(SourceError::Unsupported));
            assert!((0..4).all(|i| from.add(i * page).read() == 9));
            Os.release(from, 4 * page);
            Os.release(to, 4 * page);
        }
    }

    #[test]
    fn too_much_is_refused() {
        assert_eq!(Os.reserve(1 << 62, 4096), Err(SourceError::Exhausted));
    }

    #[test]
    fn populated_pages_are_resident() {
        let page = Os.page_bytes();
        let start = Os.get(2 * page, page).expect("memory");
        // SAFETY: the two pages just taken.
        unsafe {
            Os.populate(start, 2 * page);
            if CAN_POPULATE.load(Relaxed) {
                assert_eq!(Os.is_resident(start.add(page)), Some(true));
            } else {
                std::eprintln!("skipped: needs Linux 5.14");
            }
            Os.release(start, 2 * page);
        }
    }
}

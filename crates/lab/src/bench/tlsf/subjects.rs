//! Heaps over one piece of memory, behind one trait: ours, and peers from crates.io, all built
//! into this program with the same settings; and any C TLSF given as a library.

use std::alloc::Layout;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use hectare_tlsf::{Growing, GrowthPolicy, Rows, Tlsf, WideTlsf};

/// The alignment that every subject gives.
const ALIGN: usize = 16;

/// A heap under measurement. Calls are generic, not virtual: each subject's are inlined.
pub(crate) trait Subject {
    /// Allocates, or gives null.
    fn alloc(&mut self, bytes: usize) -> *mut u8;
    /// Frees.
    ///
    /// # Safety
    /// `ptr` came from `alloc(bytes)` of this subject and is used no more.
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize);
}

/// Work that is done on one subject; generic, since a subject's calls are to be inlined.
pub(crate) trait Work {
    /// What it gives.
    type Result;
    /// Does it on a fresh heap.
    fn on<S: Subject>(&mut self, subject: &mut S) -> Self::Result;
}

/// Who can be measured.
#[derive(Clone)]
pub(crate) enum Who {
    /// Ours, 32-bit indices.
    Hectare,
    /// Ours, pools anywhere.
    HectareWide,
    /// Ours, growing by regions from the system.
    HectareGrowing,
    /// rlsf.
    Rlsf,
    /// talc.
    Talc,
    /// linked_list_allocator.
    LinkedList,
    /// buddy-alloc.
    BuddyAlloc,
    /// dlmalloc.
    Dlmalloc,
    /// A C library with mattconte's names.
    Library(Arc<Library>),
}

impl Who {
    /// All that are built in.
    pub(crate) const BUILT_IN: [Self; 8] = [
        Self::Hectare,
        Self::HectareWide,
        Self::HectareGrowing,
        Self::Rlsf,
        Self::Talc,
        Self::LinkedList,
        Self::BuddyAlloc,
        Self::Dlmalloc,
    ];

    /// The name in tables.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hectare => "hectare-tlsf",
            Self::HectareWide => "hectare-tlsf wide",
            Self::HectareGrowing => "hectare-tlsf grown",
            Self::Rlsf => "rlsf",
            Self::Talc => "talc",
            Self::LinkedList => "linked_list_allocator",
            Self::BuddyAlloc => "buddy-alloc",
            Self::Dlmalloc => "dlmalloc",
            Self::Library(library) => &library.name,
        }
    }

    /// Whether it is one of ours.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Hectare | Self::HectareWide | Self::HectareGrowing)
    }

    /// Whether it uses the memory it is given, and no other.
    pub(crate) fn uses_arena(&self) -> bool {
        !matches!(self, Self::HectareGrowing)
    }

    /// Does `work` on a fresh heap over `arena`.
    ///
    /// # Errors
    /// When the heap cannot be made over that arena.
    pub(crate) fn with<W: Work>(
        &self,
        arena: &mut Arena,
        work: &mut W,
    ) -> anyhow::Result<W::Result> {
        let (start, bytes) = (arena.start, arena.bytes);
        Ok(match self {
            Self::Hectare => work.on(&mut ours(<Tlsf>::new(), arena)?),
            Self::HectareWide => work.on(&mut ours(WideTlsf::new(), arena)?),
            Self::HectareGrowing => {
                let policy = GrowthPolicy { region_bytes: 64 << 10, keep_free_bytes: 1 << 20 };
                work.on(&mut OursGrowing(Growing::new(hectare_pages::Os, policy)))
            }
            Self::Rlsf => {
                let mut heap = Box::new(rlsf::Tlsf::new());
                // SAFETY: the arena is exclusive and outlives the heap, both made for this work.
                unsafe { heap.insert_free_block_ptr(NonNull::slice_from_raw_parts(start, bytes)) }
                    .context("rlsf does not take the arena")?;
                work.on(&mut Rlsf(heap))
            }
            Self::Talc => {
                let mut heap = talc::TalcCell::new(talc::source::Manual);
                // SAFETY: as above.
                unsafe { heap.get_mut().claim(start.as_ptr(), bytes) }
                    .context("talc does not take the arena")?;
                work.on(&mut Talc(heap))
            }
            Self::LinkedList => {
                // SAFETY: as above.
                work.on(&mut LinkedList(unsafe {
                    linked_list_allocator::Heap::new(start.as_ptr(), bytes)
                }))
            }
            Self::BuddyAlloc => {
                let parameters = buddy_alloc::BuddyAllocParam::new(start.as_ptr(), bytes, 16);
                // SAFETY: as above.
                work.on(&mut Buddy(unsafe {
                    buddy_alloc::buddy_alloc::BuddyAlloc::new(parameters)
                }))
            }
            Self::Dlmalloc => {
                let address = start.as_ptr().expose_provenance();
                let source = OneArena { start: address, bytes, given: AtomicBool::new(false) };
                work.on(&mut Dl(dlmalloc::Dlmalloc::new_with_allocator(source)))
            }
            Self::Library(library) => {
                // SAFETY: the arena is exclusive and outlives the heap.
                let tlsf = unsafe { (library.create_with_pool)(start.as_ptr().cast(), bytes) };
                ensure!(
                    !tlsf.is_null(),
                    "{} does not take an arena of {bytes} bytes",
                    library.name
                );
                work.on(&mut Foreign { library, tlsf })
            }
        })
    }
}

/// Memory for one heap at a time: mapped once, faulted in once, cleared of nothing in between.
pub(crate) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
}

impl Arena {
    /// Maps `bytes`; with `touched`, all pages are there from the beginning.
    ///
    /// # Errors
    /// When the system has not so much memory.
    pub(crate) fn new(bytes: usize, touched: bool) -> anyhow::Result<Self> {
        let populate = if touched { libc::MAP_POPULATE } else { libc::MAP_NORESERVE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | populate;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, wherever the kernel likes.
        let start = unsafe { libc::mmap(null_mut(), bytes, protection, flags, -1, 0) };
        ensure!(
            start != libc::MAP_FAILED,
            "no arena of {bytes} bytes: {}",
            std::io::Error::last_os_error()
        );
        Ok(Self { start: NonNull::new(start.cast()).context("a mapping at zero")?, bytes })
    }

    /// The address of its first byte.
    pub(crate) fn address(&self) -> usize {
        self.start.addr().get()
    }

    /// The first `bytes` of it, as an arena of their own.
    ///
    /// # Panics
    /// When it is smaller.
    pub(crate) fn shrunk<T>(&mut self, bytes: usize, use_it: impl FnOnce(&mut Self) -> T) -> T {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        let whole = std::mem::replace(&mut self.bytes, bytes);
        let result = use_it(self);
        self.bytes = whole;
        result
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: our own mapping; heaps over it borrowed it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

struct Ours<R: Rows>(Box<Tlsf<R>>);

fn ours<R: Rows>(heap: Tlsf<R>, arena: &Arena) -> anyhow::Result<Ours<R>> {
    let mut heap = Box::new(heap);
    // SAFETY: the arena is exclusive and outlives the heap.
    unsafe { heap.add_pool(arena.start, arena.bytes) }?;
    Ok(Ours(heap))
}

impl<R: Rows> Subject for Ours<R> {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.malloc(bytes).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: as above.
        unsafe { self.0.free(block) }.expect("a block of this heap");
    }
}

struct OursGrowing(Growing<hectare_pages::Os>);

impl Subject for OursGrowing {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.malloc(bytes).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: as above.
        unsafe { self.0.free(block) }.expect("a block of this heap");
    }
}

#[inline(always)]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and no size here comes near the limit.
    unsafe { Layout::from_size_align_unchecked(bytes.max(1), ALIGN) }
}

struct Rlsf(Box<rlsf::Tlsf<'static, u32, u32, 28, 32>>);

impl Subject for Rlsf {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.allocate(layout(bytes)).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: as above.
        unsafe { self.0.deallocate(block, ALIGN) };
    }
}

struct Talc(talc::TalcCell<talc::source::Manual>);

impl Subject for Talc {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: the layout's size is not zero.
        unsafe { self.0.get_mut().try_allocate(layout(bytes)) }.map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.get_mut().deallocate(ptr, layout(bytes)) };
    }
}

struct LinkedList(linked_list_allocator::Heap);

impl Subject for LinkedList {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.allocate_first_fit(layout(bytes)).map_or(null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise; `alloc` gave it, so it is not null.
        let block = unsafe { NonNull::new_unchecked(ptr) };
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.deallocate(block, layout(bytes)) };
    }
}

struct Buddy(buddy_alloc::buddy_alloc::BuddyAlloc);

impl Subject for Buddy {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        self.0.malloc(bytes.max(1))
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        self.0.free(ptr);
    }
}

/// dlmalloc's system: one arena, given once.
struct OneArena {
    start: usize,
    bytes: usize,
    given: AtomicBool,
}

// SAFETY: the arena is handed out once, and nothing else is ever handed out.
unsafe impl dlmalloc::Allocator for OneArena {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        if size > self.bytes || self.given.swap(true, Ordering::Relaxed) {
            return (null_mut(), 0, 0);
        }
        (std::ptr::with_exposed_provenance_mut(self.start), self.bytes, 0)
    }

    fn remap(&self, _ptr: *mut u8, _old: usize, _new: usize, _can_move: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _ptr: *mut u8, _old: usize, _new: usize) -> bool {
        false
    }

    fn free(&self, _ptr: *mut u8, _size: usize) -> bool {
        false
    }

    fn can_release_part(&self, _flags: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        4096
    }
}

struct Dl(dlmalloc::Dlmalloc<OneArena>);

impl Subject for Dl {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: any size will do; the alignment is dlmalloc's own.
        unsafe { self.0.malloc(bytes, ALIGN) }
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise, with the layout of `alloc`.
        unsafe { self.0.free(ptr, bytes, ALIGN) };
    }
}

/// What the loader says of its last failure.
fn loader_error() -> String {
    // SAFETY: asks for a message of this thread's, or null.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "it cannot be loaded".to_owned();
    }
    // SAFETY: a message that ends with a zero byte and stays until the next call of the loader.
    unsafe { std::ffi::CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

type CreateWithPool = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Malloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

/// A C TLSF with mattconte's names.
pub(crate) struct Library {
    name: String,
    create_with_pool: CreateWithPool,
    malloc: Malloc,
    free: Free,
}

impl Library {
    /// Loads it; it stays loaded.
    ///
    /// # Errors
    /// When the file cannot be loaded or lacks a name.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        // Without a slash in it the loader would look for the name elsewhere.
        let path = &path.canonicalize().with_context(|| format!("--library {}", path.display()))?;
        let file = CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: runs the library's initialisers: the user asked for it.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        ensure!(!handle.is_null(), "--library {}: {}", path.display(), loader_error());
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the handle was just opened.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            ensure!(
                !address.is_null(),
                "--library {}: it has no function {}; a TLSF with mattconte's names is needed",
                path.display(),
                name.to_string_lossy()
            );
            Ok(address)
        };
        let (create, malloc, free) =
            (symbol(c"tlsf_create_with_pool")?, symbol(c"tlsf_malloc")?, symbol(c"tlsf_free")?);
        Ok(Self {
            name: path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            // SAFETY: the functions of these names have these types in every TLSF.
            create_with_pool: unsafe { std::mem::transmute::<*mut c_void, CreateWithPool>(create) },
            // SAFETY: as above.
            malloc: unsafe { std::mem::transmute::<*mut c_void, Malloc>(malloc) },
            // SAFETY: as above.
            free: unsafe { std::mem::transmute::<*mut c_void, Free>(free) },
        })
    }
}

struct Foreign<'a> {
    library: &'a Library,
    tlsf: *mut c_void,
}

impl Subject for Foreign<'_> {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: the heap was made by this library.
        unsafe { (self.library.malloc)(self.tlsf, bytes.max(1)) }.cast()
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: as above, and the caller's promise.
        unsafe { (self.library.free)(self.tlsf, ptr.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A heap that hands out its pool once, in C under mattconte's names.
    const BUMP: &str = "
        #include <stddef.h>
        struct heap { char *next, *end; };
        void *tlsf_create_with_pool(void *memory, size_t bytes) {
            struct heap *heap = memory;
            heap->next = (char *)memory + 64;
            heap->end = (char *)memory + bytes;
            return bytes < 128 ? NULL : heap;
        }
        void *tlsf_malloc(void *tlsf, size_t bytes) {
            struct heap *heap = tlsf;
            size_t rounded = (bytes + 15) / 16 * 16;
            if (rounded > (size_t)(heap->end - heap->next)) return NULL;
            heap->next += rounded;
            return heap->next - rounded;
        }
        void tlsf_free(void *tlsf, void *block) { (void)tlsf; (void)block; }
    ";

    /// Compiles C to a shared library in the folder for this crate's tests.
    fn compile(name: &str, source: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("hectare-library-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for a test");
        let (file, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
        std::fs::write(&file, source).expect("a file for a test");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&file);
        let status = command.status().unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(status.success(), "{compiler} refused {name}.c");
        library
    }

    /// Counts what a heap gives until it is spent.
    struct Fill;

    impl Work for Fill {
        type Result = usize;

        fn on<S: Subject>(&mut self, subject: &mut S) -> usize {
            let mut blocks = 0;
            while blocks < 1000 {
                let block = subject.alloc(100);
                if block.is_null() {
                    break;
                }
                // SAFETY: as large as asked for, and ours.
                unsafe { block.write_bytes(1, 100) };
                // SAFETY: allocated above.
                unsafe { subject.free(block, 100) };
                blocks += 1;
            }
            blocks
        }
    }

    #[test]
    fn a_library_is_a_subject_and_a_bad_one_a_clear_error() {
        let library = compile("bump", BUMP);
        let who = Who::Library(Arc::new(Library::load(&library).expect("all three functions")));
        assert_eq!(who.name(), "bump");
        let mut arena = Arena::new(4096, true).expect("a page");
        assert_eq!(who.with(&mut arena, &mut Fill).expect("a page is enough"), (4096 - 64) / 112);
        let error = arena.shrunk(64, |arena| who.with(arena, &mut Fill)).err();
        let message = error.expect("64 bytes are too few").to_string();
        assert!(message.contains("bump does not take an arena of 64 bytes"), "{message}");

        let message = |path: &Path| format!("{:#}", Library::load(path).err().expect("refused"));
        let lacking = compile("lacking", "void *tlsf_malloc(void *t) { return t; }");
        assert!(message(&lacking).contains("no function tlsf_create_with_pool"));
        let text = library.with_extension("c");
        assert!(message(&text).contains("invalid ELF header"), "{}", message(&text));
        let missing = library.with_extension("missing");
        assert!(message(&missing).contains("No such file"), "{}", message(&missing));
        std::fs::remove_dir_all(library.parent().expect("its folder")).expect("ours to remove");
    }
}

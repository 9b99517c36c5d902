//! Any C TLSF with mattconte's names, given as a shared library.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr::NonNull;

use anyhow::{Context, ensure};

use super::Subject;

/// The loader's message about its last failure.
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
    /// The name of the library's file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Makes a heap over memory that outlives it and belongs to it alone.
    ///
    /// # Errors
    /// When the library refuses the memory.
    pub(super) fn heap(&self, start: NonNull<u8>, bytes: usize) -> anyhow::Result<Foreign<'_>> {
        // SAFETY: the caller's promise.
        let tlsf = unsafe { (self.create_with_pool)(start.as_ptr().cast(), bytes) };
        ensure!(!tlsf.is_null(), "{} does not take an arena of {bytes} bytes", self.name);
        Ok(Foreign { functions: self, tlsf })
    }

    /// Loads the library. It stays loaded.
    ///
    /// # Errors
    /// When the file cannot be loaded or lacks a name.
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        // If the path had no slash, the loader would search for the name elsewhere.
        let path = &path.canonicalize().with_context(|| format!("--library {}", path.display()))?;
        // The loader would wait for the writer of a pipe.
        ensure!(path.is_file(), "--library {}: this is no regular file", path.display());
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

/// A heap made by the library.
pub(super) struct Foreign<'a> {
    functions: &'a Library,
    tlsf: *mut c_void,
}

impl Subject for Foreign<'_> {
    #[inline]
    fn alloc(&mut self, bytes: usize) -> *mut u8 {
        // SAFETY: the heap was made by this library.
        unsafe { (self.functions.malloc)(self.tlsf, bytes.max(1)) }.cast()
    }

    #[inline]
    unsafe fn free(&mut self, ptr: *mut u8, _bytes: usize) {
        // SAFETY: as above, and the caller's promise.
        unsafe { (self.functions.free)(self.tlsf, ptr.cast()) };
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use std::sync::Arc;

    use super::super::{Arena, Who, Work};
    use super::*;
    use crate::scratch::Scratch;

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

    /// Compiles C into a shared library.
    fn compile(folder: &Scratch, name: &str, source: &str) -> std::path::PathBuf {
        let library = folder.path().join(format!("{name}.so"));
        let file = library.with_extension("c");
        std::fs::write(&file, source).expect("a file for a test");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&file);
        let status = command.status().unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(status.success(), "{compiler} refused {name}.c");
        library
    }

    /// Counts how many blocks a heap gives until it is exhausted.
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
        let folder = Scratch::new().expect("a folder for a test");
        let library = compile(&folder, "bump", BUMP);
        let who = Who::Library(Arc::new(Library::load(&library).expect("all three functions")));
        assert_eq!(who.name(), "bump");
        let mut arena = Arena::new(4096, true).expect("a page");
        assert_eq!(who.with(&mut arena, &mut Fill).expect("a page is enough"), (4096 - 64) / 112);
        let error = arena.shrunk(64, |arena| who.with(arena, &mut Fill)).err();
        let message = error.expect("64 bytes are too few").to_string();
        assert!(message.contains("bump does not take an arena of 64 bytes"), "{message}");

        let message = |path: &Path| format!("{:#}", Library::load(path).err().expect("refused"));
        let lacking = compile(&folder, "lacking", "void *tlsf_malloc(void *t) { return t; }");
        assert!(message(&lacking).contains("no function tlsf_create_with_pool"));
        let text = library.with_extension("c");
        assert!(message(&text).contains("invalid ELF header"), "{}", message(&text));
        let missing = library.with_extension("missing");
        assert!(message(&missing).contains("No such file"), "{}", message(&missing));
    }
}

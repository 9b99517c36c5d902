//! The heap as the allocator of a program that loads libraries, and of a library that is loaded and
//! unloaded.

use std::env;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use hectare_check::Suite;

#[global_allocator]
static GLOBAL: hectare::Malloc = hectare::Malloc;

/// A test's name, and what it does with the library.
type Case = (&'static str, fn(&Path));

/// If the first argument names one of these cases, the program does not test: it does this with the
/// library that the second argument names.
const CASES: [Case; 2] = [
    ("a_thread_ends_after_its_library_is_closed", a_thread_ends_after_its_library_is_closed),
    ("a_constructor_waits_for_a_thread_that_allocates", a_constructor_waits_for_a_thread),
];

/// `examples/plugin.rs`, built as this test was.
fn plugin() -> Result<PathBuf, String> {
    let test = env::current_exe().map_err(|error| error.to_string())?;
    let directory = test.ancestors().nth(2).ok_or("the test lies in no target directory")?;
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--quiet", "--offline", "--example", "plugin", "--manifest-path"]);
    build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    build.args(["--profile", if cfg!(debug_assertions) { "test" } else { "release" }]);
    build.arg("--target-dir").arg(directory.parent().ok_or("no target directory")?);
    let status = build.status().map_err(|error| format!("{build:?}: {error}"))?;
    if status.success() {
        Ok(directory.join("examples").join("libplugin.so"))
    } else {
        Err(format!("{build:?}: {status}"))
    }
}

fn open(library: &Path) -> *mut c_void {
    let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a text that ends in 0; what the library does when it is loaded is the test's.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{} cannot be loaded", library.display());
    handle
}

/// The thread's end calls the library's code.
fn a_thread_ends_after_its_library_is_closed(library: &Path) {
    let handle = open(library);
    // SAFETY: the handle just made, and a text that ends in 0.
    let work = unsafe { libc::dlsym(handle, c"work".as_ptr()) };
    assert!(!work.is_null());
    // SAFETY: a function of this type.
    let work = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> usize>(work) };
    let (worked, has_worked) = mpsc::channel();
    let (close, may_end) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        worked.send(work()).expect("somebody who waits");
        may_end.recv().expect("somebody who closes");
    });
    assert_eq!(has_worked.recv(), Ok(499_500));
    // SAFETY: the handle, which is not used any more.
    assert_eq!(unsafe { libc::dlclose(handle) }, 0);
    close.send(()).expect("the thread");
    thread.join().expect("no failure");
}

extern "C" fn allocate(_: *mut c_void) -> *mut c_void {
    // Without the standard library's thread-local variables, whose first use waits for the linker.
    drop(std::hint::black_box(Box::new([0_u8; 100])));
    std::ptr::null_mut()
}

/// Called while a library is loaded, with the linker's lock held.
extern "C" fn wait_for_a_thread() {
    let mut thread = 0;
    let attributes = std::ptr::null();
    // SAFETY: a place for the thread's name, and a function of the right type.
    let failed = unsafe {
        libc::pthread_create(&raw mut thread, attributes, allocate, std::ptr::null_mut())
    };
    assert_eq!(failed, 0);
    // SAFETY: the thread just made.
    assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
}

/// The thread is the first that gets no cache of its own, so the heap begins to use the lists of
/// CPUs.
fn a_constructor_waits_for_a_thread(library: &Path) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let others = 16 * cpus - 1;
    let all_allocate = Arc::new(Barrier::new(others + 1));
    for _ in 0..others {
        let all_allocate = Arc::clone(&all_allocate);
        thread::spawn(move || {
            drop(std::hint::black_box(Box::new([0_u8; 100])));
            all_allocate.wait();
            loop {
                thread::park();
            }
        });
    }
    all_allocate.wait();
    let address = wait_for_a_thread as extern "C" fn() as usize;
    // SAFETY: no other thread looks at the environment.
    unsafe { env::set_var("HECTARE_PLUGIN_CALLS", format!("{address:x}")) };
    open(library);
}

/// Runs a case in a process of its own. If it waits for itself, an alarm ends it.
fn run(case: &str) -> Result<(), String> {
    let plugin = plugin()?;
    let this = env::current_exe().map_err(|error| error.to_string())?;
    let status = Command::new(this).arg(case).arg(plugin).status();
    let status = status.map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("ended with {status}")) }
}

fn main() -> ExitCode {
    let mut arguments = env::args().skip(1);
    let first = arguments.next();
    if let Some((_, case)) = CASES.iter().find(|(name, _)| first.as_deref() == Some(name)) {
        // SAFETY: no preconditions.
        unsafe { libc::alarm(20) };
        case(Path::new(&arguments.next().expect("a library")));
        // Some threads never end.
        std::process::exit(0);
    }
    let mut suite = Suite::new();
    for (name, _) in CASES {
        suite.test_with(name, &[], move || run(name));
    }
    suite.run()
}

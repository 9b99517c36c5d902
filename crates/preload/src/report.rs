//! Statistics: glibc's calls that ask an allocator about itself, or tune it, and JSON.

use core::ffi::{CStr, c_char, c_int};
use core::fmt::{self, Write};

use crate::config::Config;
use crate::line::Line;
use crate::output::{Path, Sink, Text, tell_unwritable, write_file};
use crate::{HEAP, mode, profile};
use hectare::{ClassStats, Stats};

/// glibc's `struct mallinfo2`: sizes in bytes.
#[repr(C)]
#[derive(Default)]
struct Mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// glibc's `struct mallinfo`: the same, cut to `int`.
#[repr(C)]
struct Mallinfo([c_int; 10]);

fn free_bytes(stats: &Stats) -> usize {
    stats.slab_bytes.saturating_sub(stats.small_bytes) + stats.dirty_bytes
}

/// The bytes of slabs, runs and the pages of guarded objects, in use or free.
fn held_bytes(stats: &Stats) -> usize {
    stats.slab_bytes + stats.run_bytes + stats.guarded_bytes + stats.dirty_bytes
}

fn mallinfo_of(stats: &Stats) -> Mallinfo2 {
    let free_objects = |class: &ClassStats| class.objects - class.used_objects;
    Mallinfo2 {
        arena: held_bytes(stats),
        ordblks: stats.classes.iter().map(free_objects).sum(),
        smblks: stats.classes.iter().map(|class| class.pooled_objects).sum(),
        hblks: stats.huge_objects,
        hblkhd: stats.huge_bytes,
        usmblks: 0,
        fsmblks: stats.pooled_bytes,
        uordblks: stats.small_bytes + stats.run_bytes + stats.guarded_bytes,
        fordblks: free_bytes(stats),
        keepcost: stats.dirty_bytes,
    }
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo2() -> Mallinfo2 {
    mallinfo_of(&HEAP.stats())
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo() -> Mallinfo {
    let info = mallinfo_of(&HEAP.stats());
    let cut = |value: usize| c_int::try_from(value).unwrap_or(c_int::MAX);
    Mallinfo([
        cut(info.arena),
        cut(info.ordblks),
        cut(info.smblks),
        cut(info.hblks),
        cut(info.hblkhd),
        cut(info.usmblks),
        cut(info.fsmblks),
        cut(info.uordblks),
        cut(info.fordblks),
        cut(info.keepcost),
    ])
}

#[unsafe(no_mangle)]
extern "C" fn malloc_trim(pad: usize) -> c_int {
    c_int::from(HEAP.trim(pad) > 0)
}

/// Accepts glibc's parameters, none of which this heap has. Returns 1, as for a parameter that was
/// set.
#[unsafe(no_mangle)]
extern "C" fn mallopt(_parameter: c_int, _value: c_int) -> c_int {
    1
}

/// A stream of the C library's.
struct Stream(*mut libc::FILE);

impl Sink for Stream {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        // SAFETY: the C caller gives an open stream; the bytes are readable for their length.
        let written = unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), self.0) };
        (written == bytes.len()).then_some(())
    }
}

/// Writes what the heap holds as XML, with glibc's outer element.
///
/// # Safety
/// `stream` is an open stream.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 || stream.is_null() {
        return libc::EINVAL;
    }
    let stats = HEAP.stats();
    if write_xml(&mut Text(&mut Stream(stream)), &stats).is_ok() { 0 } else { -1 }
}

fn write_xml(out: &mut Text<'_>, stats: &Stats) -> fmt::Result {
    let front = mode::front();
    writeln!(out, "<malloc version=\"1\" allocator=\"hectare\" front=\"{front}\">")?;
    writeln!(out, "<sizes>")?;
    for class in used_classes(stats) {
        writeln!(
            out,
            "<size bytes=\"{}\" slabs=\"{}\" used=\"{}\" pooled=\"{}\"/>",
            class.object_bytes, class.slabs, class.used_objects, class.pooled_objects
        )?;
    }
    writeln!(out, "</sizes>")?;
    writeln!(out, "<total type=\"small\" size=\"{}\"/>", stats.small_bytes)?;
    writeln!(out, "<total type=\"run\" size=\"{}\"/>", stats.run_bytes)?;
    writeln!(out, "<total type=\"mmap\" size=\"{}\"/>", stats.huge_bytes)?;
    writeln!(out, "<total type=\"guarded\" size=\"{}\"/>", stats.guarded_bytes)?;
    writeln!(out, "<total type=\"rest\" size=\"{}\"/>", free_bytes(stats))?;
    let current = held_bytes(stats) + stats.huge_bytes;
    writeln!(out, "<system type=\"current\" size=\"{current}\"/>")?;
    writeln!(out, "<system type=\"metadata\" size=\"{}\"/>", stats.metadata_bytes)?;
    writeln!(out, "</malloc>")
}

fn used_classes(stats: &Stats) -> impl Iterator<Item = &ClassStats> {
    stats.classes.iter().filter(|class| class.slabs > 0)
}

#[unsafe(no_mangle)]
extern "C" fn malloc_stats() {
    print_stats();
}

/// Writes the statistics as JSON to the file `path`, in which `%p` stands for the process number
/// so that forked processes do not overwrite each other's. A failure is reported on standard error.
///
/// # Errors
/// With the system's error number.
pub(crate) fn export_json(path: &[u8]) -> Result<(), c_int> {
    let mut full = Path::new();
    let expanded = full.push_expanded(path).map(|full| &*full);
    let told = expanded
        .ok_or(libc::ENAMETOOLONG)
        .and_then(|full| write_file(full, |out| write_json(&mut Text(out), &HEAP.stats()).ok()));
    if let Err(error) = told {
        tell_unwritable(b"the statistics", expanded.map_or(path, Path::text), error);
    }
    told
}

/// See `hectare.h`.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn hectare_stats_dump(path: *const c_char) -> c_int {
    if path.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the C caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    export_json(path.to_bytes()).err().unwrap_or(0)
}

/// The version of what [`write_json`] writes.
const JSON_SCHEMA: u32 = 1;

fn write_json(out: &mut Text<'_>, stats: &Stats) -> fmt::Result {
    writeln!(
        out,
        "{{\"schema\": {JSON_SCHEMA}, \"allocator\": \"hectare\", \"front\": \"{}\",",
        mode::front()
    )?;
    writeln!(out, " \"mode\": \"{}\",", mode::text())?;
    for (name, value) in [
        ("used_bytes", stats.used_bytes()),
        ("small_bytes", stats.small_bytes),
        ("large_bytes", stats.run_bytes),
        ("huge_bytes", stats.huge_bytes),
        ("huge_objects", stats.huge_objects),
        ("guarded_bytes", stats.guarded_bytes),
        ("pooled_bytes", stats.pooled_bytes),
        ("slab_bytes", stats.slab_bytes),
        ("dirty_bytes", stats.dirty_bytes),
        ("committed_bytes", stats.committed_bytes),
        ("metadata_bytes", stats.metadata_bytes),
        ("regions", stats.regions),
        ("caches", stats.caches),
        ("cpu_lists", stats.cpu_lists),
    ] {
        writeln!(out, " \"{name}\": {value},")?;
    }
    writeln!(out, " \"classes\": [")?;
    for (i, class) in used_classes(stats).enumerate() {
        write!(
            out,
            "{}  {{\"object_bytes\": {}, \"slabs\": {}, \"used\": {}, \"pooled\": {}}}",
            if i == 0 { "" } else { ",\n" },
            class.object_bytes,
            class.slabs,
            class.used_objects,
            class.pooled_objects
        )?;
    }
    writeln!(out, "\n]}}")
}

/// Writes the statistics as text to standard error.
pub(crate) fn print_stats() {
    let stats = &HEAP.stats();
    // Not the process number: a program that confines itself would be killed for asking for it.
    // SAFETY: the C library sets it before any code of the program runs.
    let name = unsafe { program_invocation_short_name };
    // SAFETY: a C string.
    let name = unsafe { CStr::from_ptr(name) };
    let mut line = Line::new();
    line.push(b"hectare: statistics of ").push(name.to_bytes());
    line.write_to_standard_error();
    tell(format_args!("mode {}", mode::text()));
    tell(format_args!("bytes in small objects {}", stats.small_bytes));
    tell(format_args!("bytes in large objects {}", stats.run_bytes));
    tell(format_args!("bytes in huge objects {}", stats.huge_bytes));
    tell(format_args!("bytes in guarded objects {}", stats.guarded_bytes));
    tell(format_args!("bytes free in slabs and pools, or dirty {}", free_bytes(stats)));
    tell(format_args!("bytes committed {}", stats.committed_bytes));
    tell(format_args!("threads with caches of their own {}", stats.caches));
    tell(format_args!("CPUs with lists for other threads {}", stats.cpu_lists));
    tell(format_args!("object bytes, slabs, used objects, pooled objects of each class"));
    for class in used_classes(stats) {
        tell(format_args!(
            "{:6} {:6} {:9} {:6}",
            class.object_bytes, class.slabs, class.used_objects, class.pooled_objects
        ));
    }
}

unsafe extern "C" {
    /// The name by which the program was called, without its folder. The program may change it.
    static mut program_invocation_short_name: *const c_char;
}

/// Writes what the configuration asks for at the end of the process.
#[inline(never)] // Few programs come by here (`cold.ld`).
pub(crate) fn at_exit(config: &Config) {
    // A signal's handler that calls `exit` may have interrupted this thread while it held a lock of
    // the heap, which nobody will release.
    if !HEAP.can_be_asked() {
        tell(format_args!(
            "nothing is written at the end: a signal's handler ended the program in the midst of malloc or free"
        ));
        return;
    }
    if config.stats {
        print_stats();
    }
    if let Some(path) = config.stats_json {
        // A failure was reported, and changes nothing here.
        let _ = export_json(path);
    }
    if config.prof {
        // As above.
        let _ = profile::dump_next(config);
    }
}

/// Writes one line, by one call, so that no other thread's line comes to lie within it.
#[inline(never)]
fn tell(text: fmt::Arguments<'_>) {
    let mut line = Line::new();
    // A line takes all that is written to it.
    let _ = write!(line.push(b"hectare: "), "{text}");
    line.write_to_standard_error();
}

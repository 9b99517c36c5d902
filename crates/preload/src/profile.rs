//! Files of the heap profile: at the end, by signal, by call.

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::Config;
use crate::gzip::Gzip;
use crate::output::{Descriptor, Path, process_number, tell_unwritable, write_file};
use crate::{HEAP, life, pprof};

/// The number of a process in the upper half, and how many files it has begun: a forked child
/// counts its own.
static FILES: AtomicU64 = AtomicU64::new(0);

/// Writes the profile to the next file, `PREFIX.PROCESS.NUMBER.pb.gz`. A failure is reported on
/// standard error.
///
/// # Errors
/// With the system's error number.
pub(crate) fn dump_next(config: &Config) -> Result<(), c_int> {
    let mut path = Path::new();
    let named = name_next(&mut path, config.prof_prefix);
    let written = named.ok_or(libc::ENAMETOOLONG).and_then(|()| dump(&path));
    if let Err(error) = written {
        let text = if named.is_some() { path.text() } else { config.prof_prefix };
        tell_unwritable(b"the heap profile", text, error);
    }
    written
}

fn name_next(path: &mut Path, prefix: &[u8]) -> Option<()> {
    let process = process_number();
    let count_of = |files: u64| if files >> 32 == process { files as u32 } else { 0 };
    let before = FILES.fetch_update(Relaxed, Relaxed, |files| {
        Some(process << 32 | u64::from(count_of(files).wrapping_add(1)))
    });
    let number = before.map_or(0, count_of).into();
    let path = path.push_expanded(prefix)?.push(b".")?.push_number(process)?;
    path.push(b".")?.push_number(number)?.push(b".pb.gz").map(drop)
}

fn dump(path: &Path) -> Result<(), c_int> {
    let profile = HEAP.profile().ok_or(libc::ENOMEM)?;
    write_file(path, |file: &mut Descriptor| {
        let mut gzip = Gzip::begin(file)?;
        pprof::write(&mut gzip, &profile)?;
        gzip.finish()
    })
}

/// See `hectare.h`.
///
/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn hectare_prof_dump(path: *const c_char) -> c_int {
    let config = life::config();
    if !config.prof {
        return libc::ENOTSUP;
    }
    let written = if path.is_null() {
        dump_next(config)
    } else {
        // SAFETY: the C caller's promise.
        let path = unsafe { CStr::from_ptr(path) };
        let mut full = Path::new();
        full.push(path.to_bytes()).ok_or(libc::ENAMETOOLONG).and_then(|path| dump(path))
    };
    written.err().unwrap_or(0)
}

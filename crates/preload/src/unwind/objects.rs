//! Finds the tables of the object that contains an address.
//!
//! The C library's `_dl_find_object` (2.35) takes no lock. With older versions the dynamic linker's
//! lock is taken, which is recursive. Nothing is allocated.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ops::Range;

use super::registers::read;
use crate::once::Once;

/// What `_dl_find_object` says of an object.
#[repr(C)]
struct Found {
    flags: u64,
    map_start: usize,
    map_end: usize,
    link_map: usize,
    eh_frame_header: usize,
    reserved: [u64; 7],
}

type FindObject = unsafe extern "C" fn(usize, *mut Found) -> c_int;

static FIND_OBJECT: Once<FindObject> = Once::new();

/// Looks up the C library's function. To be called before the first search; the function, once
/// found, stays.
pub(super) fn begin() {
    // SAFETY: a C string; the answer is null when nobody has the symbol.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    if !symbol.is_null() {
        // SAFETY: the C library's function of this name has this type.
        FIND_OBJECT.set(unsafe { core::mem::transmute::<*mut c_void, FindObject>(symbol) });
    }
}

/// A loaded object that has a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    /// From its first part to the end of its last. If there are gaps between the parts, one part
    /// only.
    pub(super) map_start: usize,
    pub(super) map_end: usize,
    /// Where its `.eh_frame_hdr` lies.
    pub(super) header: usize,
}

/// How addresses in a loaded object relate to those in its file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// As the dynamic linker has it: empty for the program itself.
    pub(crate) path: &'static [u8],
    /// How far the object lies behind the addresses in its file.
    pub(crate) shift: usize,
}

impl File {
    /// The file of the object that `address` lies in.
    pub(super) fn of(address: usize) -> Option<Self> {
        if let Some(find_object) = FIND_OBJECT.get() {
            let link_map = find(*find_object, address)?.link_map;
            // SAFETY: the dynamic linker's description begins with these two words (`link.h`).
            let [shift, path]: [usize; 2] = unsafe { read(link_map) };
            return Some(Self { path: path_at(core::ptr::with_exposed_provenance(path)), shift });
        }
        search(address).file
    }
}

/// The path at `path`, if there is any.
fn path_at(path: *const c_char) -> &'static [u8] {
    if path.is_null() {
        return b"";
    }
    // SAFETY: the dynamic linker's C string, which stays as long as the object.
    unsafe { CStr::from_ptr(path) }.to_bytes()
}

fn find(find_object: FindObject, address: usize) -> Option<Found> {
    let mut found = Found {
        flags: 0,
        map_start: 0,
        map_end: 0,
        link_map: 0,
        eh_frame_header: 0,
        reserved: [0; 7],
    };
    // SAFETY: a valid place.
    let status = unsafe { find_object(address, &raw mut found) };
    (status == 0).then_some(found)
}

#[cold]
fn search(address: usize) -> Search {
    let mut search = Search { address, found: None, file: None };
    // SAFETY: the callback meets the function's contract; `search` lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(note_object), (&raw mut search).cast()) };
    search
}

impl Object {
    /// The object that `address` lies in.
    pub(super) fn of(address: usize) -> Option<Self> {
        if let Some(find_object) = FIND_OBJECT.get() {
            let found = find(*find_object, address)?;
            let Found { map_start, map_end, eh_frame_header: header, .. } = found;
            return (header != 0).then_some(Self { map_start, map_end, header });
        }
        search(address).found
    }

    /// The addresses of the mapped part of the object that contains `address`. `None` also if what
    /// is known of the object does not begin with its headers: a later part of an object with gaps
    /// does not.
    pub(super) fn part_with(&self, address: usize) -> Option<Range<usize>> {
        // SAFETY: an object is readable from its start; all but odd ones begin with their headers.
        let head: libc::Elf64_Ehdr = unsafe { read(self.map_start) };
        let is_elf = head.e_ident.starts_with(b"\x7fELF")
            && usize::from(head.e_phentsize) == size_of::<libc::Elf64_Phdr>();
        let parts = is_elf.then(|| {
            let place = self.map_start.wrapping_add(head.e_phoff as usize);
            // SAFETY: the object's program headers, as many as it says, which it is loaded by.
            (0..usize::from(head.e_phnum)).map(move |number| unsafe {
                read::<libc::Elf64_Phdr>(place + number * size_of::<libc::Elf64_Phdr>())
            })
        })?;
        let mut loaded = parts.filter(|part| part.p_type == libc::PT_LOAD);
        let lowest = loaded.clone().next()?.p_vaddr as usize;
        let base = self.map_start.wrapping_sub(lowest & !(PAGE_BYTES - 1));
        loaded.find_map(|part| {
            let start = base.wrapping_add(part.p_vaddr as usize);
            let addresses = start..start.wrapping_add(part.p_memsz as usize);
            addresses.contains(&address).then_some(addresses)
        })
    }
}

/// The least alignment of segments.
const PAGE_BYTES: usize = 4096;

struct Search {
    address: usize,
    found: Option<Object>,
    file: Option<File>,
}

/// Notes the object that holds the address of the search at `data`.
unsafe extern "C" fn note_object(
    info: *mut libc::dl_phdr_info,
    _bytes: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the C library passes a valid description.
    let info = unsafe { &*info };
    // SAFETY: `Object::of` passes its search, of which it borrows nothing meanwhile.
    let search = unsafe { &mut *data.cast::<Search>() };
    // SAFETY: the object's program headers, as many as it says.
    let parts = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let start_of = |part: &libc::Elf64_Phdr| base.wrapping_add(part.p_vaddr as usize);
    let end_of = |part: &libc::Elf64_Phdr| start_of(part).wrapping_add(part.p_memsz as usize);
    let mut loaded = parts.iter().filter(|part| part.p_type == libc::PT_LOAD);
    // The parts are in order of address.
    let (Some(first), Some(last)) = (loaded.clone().next(), loaded.clone().next_back()) else {
        return 0;
    };
    if !loaded.any(|part| (start_of(part)..end_of(part)).contains(&search.address)) {
        return 0;
    }
    let (map_start, map_end) = (start_of(first) & !(PAGE_BYTES - 1), end_of(last));
    let table = parts.iter().find(|part| part.p_type == libc::PT_GNU_EH_FRAME);
    search.found = table.map(|part| Object { map_start, map_end, header: start_of(part) });
    search.file = Some(File { path: path_at(info.dlpi_name), shift: base });
    1
}

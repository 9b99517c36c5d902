//! What the library asks of the dynamic linker.

use std::fs;

use crate::harness::{Outcome, Suite, ensure, library};

/// glibc keeps 144 bytes of static TLS for all libraries loaded by `dlopen` together; beyond that
/// it is "cannot allocate memory in static TLS block". Ours is the word that names a thread's cache.
const MAX_TLS_BYTES: u64 = 8;

/// Code and constants, most of it resident in each process; with checks where there are any.
const MAX_TEXT_BYTES: u64 = if cfg!(debug_assertions) { 320 << 10 } else { 228 << 10 };

/// What of the file is copied into each process that writes to it. The heap's own state is ten times
/// as large: it begins as zeros, of which only the pages that are used are ever there.
const MAX_WRITABLE_FILE_BYTES: u64 = 32 << 10;

const PT_LOAD: u32 = 1;
const PF_W: u32 = 2;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_NODELETE: u64 = 0x8;
const DF_1_INITFIRST: u64 = 0x20;

pub(crate) fn add(suite: &mut Suite) {
    suite.test("elf::static_tls_is_small", static_tls_is_small);
    suite.test("elf::text_is_small", text_is_small);
    suite.test("elf::needs_the_c_library_alone", needs_the_c_library_alone);
    suite.test("elf::writable_part_is_small", writable_part_is_small);
    suite.test("elf::initialised_first_and_never_unloaded", dynamic_flags);
}

fn static_tls_is_small() -> Outcome {
    let image = Image::read()?;
    let bytes: u64 = image.segments(PT_TLS).map(|segment| segment.memory_bytes).sum();
    ensure(bytes > 0, || "no PT_TLS segment: where is a thread's cache kept?".into())?;
    ensure(bytes <= MAX_TLS_BYTES, || format!("static TLS of {bytes} bytes: > {MAX_TLS_BYTES}"))
}

/// Rust's standard library would be as much again, and would ask for libgcc_s, 100 KB more.
fn text_is_small() -> Outcome {
    let image = Image::read()?;
    let read_only = image.segments(PT_LOAD).filter(|segment| segment.flags & PF_W == 0);
    let bytes: u64 = read_only.map(|segment| segment.file_bytes).sum();
    ensure(bytes <= MAX_TEXT_BYTES, || format!("{bytes} bytes of text: > {MAX_TEXT_BYTES}"))
}

fn needs_the_c_library_alone() -> Outcome {
    let needed = Image::read()?.needed()?;
    ensure(needed == ["libc.so.6"], || format!("asked for are {needed:?}"))
}

fn writable_part_is_small() -> Outcome {
    let image = Image::read()?;
    let writable = image.segments(PT_LOAD).filter(|segment| segment.flags & PF_W != 0);
    let bytes: u64 = writable.map(|segment| segment.file_bytes).sum();
    ensure(bytes <= MAX_WRITABLE_FILE_BYTES, || {
        format!("{bytes} bytes of the file are writable: > {MAX_WRITABLE_FILE_BYTES}")
    })
}

fn dynamic_flags() -> Outcome {
    let entries = Image::read()?.dynamic()?;
    let flags = entries.iter().find(|(tag, _)| *tag == DT_FLAGS_1).map_or(0, |(_, value)| *value);
    ensure(flags & DF_1_INITFIRST != 0, || "not linked with -z initfirst".into())?;
    ensure(flags & DF_1_NODELETE != 0, || "not linked with -z nodelete".into())?;
    ensure(entries.iter().all(|(tag, _)| *tag != DT_TEXTREL), || "text relocations".into())
}

/// A 64-bit little-endian ELF file, as much of it as these tests read.
struct Image(Vec<u8>);

struct Segment {
    kind: u32,
    flags: u32,
    file_offset: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

impl Image {
    fn read() -> Result<Self, String> {
        let bytes = fs::read(library()).map_err(|error| error.to_string())?;
        let known = bytes.starts_with(b"\x7fELF\x02\x01");
        ensure(known, || "not a 64-bit little-endian ELF file".into())?;
        Ok(Self(bytes))
    }

    fn word(&self, at: u64) -> u64 {
        let at = usize::try_from(at).expect("offsets of a file in memory fit");
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }

    fn half(&self, at: u64) -> u32 {
        let at = usize::try_from(at).expect("offsets of a file in memory fit");
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// The entries of the dynamic section: tags and values.
    fn dynamic(&self) -> Result<Vec<(u64, u64)>, String> {
        let segment = self.segments(PT_DYNAMIC).next().ok_or("no dynamic segment")?;
        let entries = (0..segment.file_bytes / 16).map(|i| segment.file_offset + 16 * i);
        Ok(entries.map(|at| (self.word(at), self.word(at + 8))).collect())
    }

    /// The names of the libraries that this one asks for.
    fn needed(&self) -> Result<Vec<String>, String> {
        let entries = self.dynamic()?;
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).ok_or("no strings")?.1;
        // They lie in the first segment, which begins with the file.
        let name = |at: u64| {
            let rest = &self.0[usize::try_from(strings + at).expect("offsets fit")..];
            String::from_utf8_lossy(rest.split(|&byte| byte == 0).next().unwrap_or_default()).into()
        };
        Ok(entries.iter().filter(|(tag, _)| *tag == DT_NEEDED).map(|(_, at)| name(*at)).collect())
    }

    /// The program headers of a kind.
    fn segments(&self, kind: u32) -> impl Iterator<Item = Segment> {
        let table = self.word(32);
        let (entry_bytes, count) = (self.half(54) & 0xffff, self.half(56) & 0xffff);
        (0..count)
            .map(move |i| table + u64::from(i * entry_bytes))
            .map(|at| Segment {
                kind: self.half(at),
                flags: self.half(at + 4),
                file_offset: self.word(at + 8),
                file_bytes: self.word(at + 32),
                memory_bytes: self.word(at + 40),
            })
            .filter(move |segment| segment.kind == kind)
    }
}

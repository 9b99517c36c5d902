//! What the library asks of the dynamic linker.

use std::fs;

use crate::harness::{Outcome, Suite, ensure, library, preloaded, program, run};

/// glibc keeps 144 bytes of static TLS for all libraries loaded by `dlopen` together; beyond that
/// it reports "cannot allocate memory in static TLS block". Ours is the word that names a thread's
/// cache.
const MAX_TLS_BYTES: u64 = 8;

/// Code and constants, including checks if there are any.
const MAX_TEXT_BYTES: u64 = if cfg!(debug_assertions) { 328 << 10 } else { 251 << 10 };

/// The part of the code that every program runs: all of it is resident in each process.
const MAX_ORDINARY_CODE_BYTES: u64 = if cfg!(debug_assertions) { 100 << 10 } else { 72 << 10 };

/// Parts of names of functions: of those that every program runs, of those that a heap of some MiB
/// runs, and of those that hardly any program runs.
const ORDINARY_FUNCTIONS: [&str; 7] = [
    "malloc_slow",
    "free_slow",
    "take_from_bin",
    "give_to_slabs",
    "open_region",
    "4life7at_load",
    "prctl",
];
const WARM_FUNCTIONS: [&str; 6] = [
    "S$GT$$GT$8scavenge",
    "21give_up_emptier_slabs",
    "12send_to_slab",
    "15take_from_block",
    "16take_whole_units",
    "12follow_price",
];
const COLD_FUNCTIONS: [&str; 7] = [
    "5gimli",
    "7hectare7profile",
    "7hectare6unwind",
    "8hardened",
    "7special",
    "4core3fmt",
    "7hectare9cpu_front",
];

/// How much of the file is copied into each process that writes to it. The heap's own state is ten
/// times as large, but begins as zeros, of which only the pages that are used ever exist.
const MAX_WRITABLE_FILE_BYTES: u64 = 32 << 10;

/// Words this far apart look the same to a processor that checks whether a load waits for a store
/// (`heap/keys.rs`).
const ALIAS_BYTES: u64 = 4096;

/// A thread's cache begins, at a multiple of `ALIAS_BYTES`, with a list of 32 bytes for each class.
/// A call writes the first twelve bytes of a list.
const LIST_BYTES: u64 = 32;
const WRITTEN_LIST_BYTES: u64 = 12;
const LISTS_BYTES: u64 = 68 * LIST_BYTES;

/// The largest object of a class, and the step between the sizes that the table of classes tells
/// apart.
const MAX_SMALL_BYTES: u64 = 32 << 10;
const STEP_BYTES: u64 = 16;

const PAGE_BYTES: u64 = 4096;

const PT_LOAD: u32 = 1;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const PT_DYNAMIC: u32 = 2;
const PT_TLS: u32 = 7;
const SHT_SYMTAB: u32 = 2;
const STT_OBJECT: u32 = 1;
const STT_FUNC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_SONAME: u64 = 14;
const R_X86_64_RELATIVE: u32 = 8;
const R_X86_64_TPOFF64: u32 = 18;
const DT_TEXTREL: u64 = 22;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
const DF_1_NODELETE: u64 = 0x8;
const DF_1_INITFIRST: u64 = 0x20;

pub(crate) fn add(suite: &mut Suite) {
    suite.test("elf::static_tls_is_small", static_tls_is_small);
    suite.test("elf::text_is_small", text_is_small);
    suite.test("elf::needs_the_c_library_alone", needs_the_c_library_alone);
    suite.test("elf::has_a_name_of_its_own", has_a_name_of_its_own);
    suite.test("elf::writable_part_is_small", writable_part_is_small);
    suite.test("elf::initialised_first_and_never_unloaded", dynamic_flags);
    let aliases = "elf::what_calls_read_aliases_no_list";
    if cfg!(debug_assertions) || !cfg!(target_arch = "x86_64") {
        suite.skip(aliases, "needs a release build for x86-64: the addresses are of its own");
    } else {
        suite.test(aliases, what_calls_read_aliases_no_list);
    }
    let (apart, resident) = ("elf::cold_code_lies_apart", "elf::cold_code_is_not_resident");
    let small = "elf::warm_code_is_not_resident_in_a_small_program";
    if cfg!(cold_code_apart) {
        suite.test(apart, cold_code_lies_apart);
        suite.test_with(resident, &["cc"], cold_code_is_not_resident);
        suite.test_with(small, &["cc"], warm_code_is_not_resident_in_a_small_program);
    } else {
        for name in [apart, resident, small] {
            suite.skip(name, "this linker cannot lay code apart");
        }
    }
}

fn static_tls_is_small() -> Outcome {
    let image = Image::read()?;
    let bytes: u64 = image.segments(PT_TLS).map(|segment| segment.memory_bytes).sum();
    ensure(bytes > 0, || "no PT_TLS segment: where is a thread's cache kept?".into())?;
    ensure(bytes <= MAX_TLS_BYTES, || format!("static TLS of {bytes} bytes: > {MAX_TLS_BYTES}"))
}

/// Rust's standard library would be as much again, and would need libgcc_s, 100 KB more.
fn text_is_small() -> Outcome {
    let image = Image::read()?;
    let read_only = image.segments(PT_LOAD).filter(|segment| segment.flags & PF_W == 0);
    let bytes: u64 = read_only.map(|segment| segment.file_bytes).sum();
    ensure(bytes <= MAX_TEXT_BYTES, || {
        format!(
            "{bytes} bytes of text: > {MAX_TEXT_BYTES} (RUSTFLAGS replaces those of .cargo/config.toml)"
        )
    })
}

fn needs_the_c_library_alone() -> Outcome {
    let needed = Image::read()?.names(DT_NEEDED)?;
    ensure(needed == ["libc.so.6"], || format!("asked for are {needed:?}"))
}

/// Without such a name, a program that is linked by the library's path would ask for that path.
fn has_a_name_of_its_own() -> Outcome {
    let names = Image::read()?.names(DT_SONAME)?;
    ensure(names == ["libhectare.so"], || format!("the library is named {names:?}"))
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

fn cold_code_lies_apart() -> Outcome {
    let image = Image::read()?;
    let executable: Vec<_> = image.executable().collect();
    let [ordinary, cold, warm] = &executable[..] else {
        return Err(format!("not three executable segments: {executable:x?}"));
    };
    let bytes = ordinary.memory_bytes;
    ensure(bytes <= MAX_ORDINARY_CODE_BYTES, || {
        format!("{bytes} bytes of code that each process has: > {MAX_ORDINARY_CODE_BYTES}")
    })?;
    let functions: Vec<_> = image.functions()?.collect();
    for (parts, segment) in
        [(&ORDINARY_FUNCTIONS[..], ordinary), (&WARM_FUNCTIONS, warm), (&COLD_FUNCTIONS, cold)]
    {
        for &part in parts {
            let mut named = functions.iter().filter(|(name, _)| name.contains(part)).peekable();
            ensure(named.peek().is_some(), || format!("no function's name has {part}"))?;
            let elsewhere = named.find(|(_, address)| !segment.holds(*address));
            ensure(elsewhere.is_none(), || format!("{part}: {elsewhere:x?} not in {segment:x?}"))?;
        }
    }
    Ok(())
}

/// The first loads of `malloc` and `free`, from the global offset table, wait for no store to a
/// list of the cache. The load of a size's class waits for no store to the list of this class. (For
/// the heap's own state the compiler asserts the same.)
fn what_calls_read_aliases_no_list() -> Outcome {
    let image = Image::read()?;
    let table = image.symbols(STT_OBJECT)?.find(|(name, _)| name.contains("5class6LOOKUP"));
    let (_, table) = table.ok_or("no table of classes")?;
    let relocations = image.relocations()?;
    let slots: Vec<u64> = relocations
        .iter()
        .filter(|entry| match entry.kind {
            R_X86_64_TPOFF64 => true,
            R_X86_64_RELATIVE => entry.addend == table,
            _ => false,
        })
        .map(|entry| entry.address)
        .collect();
    ensure(!slots.is_empty(), || "how does a thread know its cache?".into())?;
    for slot in slots {
        ensure(slot % ALIAS_BYTES >= LISTS_BYTES, || {
            format!(
                "{slot:#x}, which each call reads, is in a cache's place: move it by what lies before it"
            )
        })?;
    }
    for entry in (0..=MAX_SMALL_BYTES / STEP_BYTES).map(|step| table + step) {
        let list = LIST_BYTES * image.byte(entry);
        let written = list..list + WRITTEN_LIST_BYTES;
        ensure(!written.contains(&(entry % ALIAS_BYTES)), || {
            format!("{entry:#x} tells a class whose list is at {list:#x}: move the table")
        })?;
    }
    Ok(())
}

/// Whatever an ordinary program does, it reads nothing of the cold part, nor of what unwinds
/// stacks.
fn cold_code_is_not_resident() -> Outcome {
    let resident = Resident::in_program("ordinary.c")?;
    ensure(resident.ordinary > 0 && resident.warm > 0 && resident.cold == 0, || {
        format!("{resident:?} KiB")
    })?;
    ensure(resident.unwinding == 0, || format!("{resident:?} KiB"))
}

/// A small program reads nothing of the warm part, either.
fn warm_code_is_not_resident_in_a_small_program() -> Outcome {
    let resident = Resident::in_program("small.c")?;
    ensure(resident.ordinary > 0 && resident.warm == 0 && resident.cold == 0, || {
        format!("{resident:?} KiB")
    })
}

/// How much of each part of the library is resident, in KiB.
#[derive(Debug)]
struct Resident {
    ordinary: u64,
    cold: u64,
    unwinding: u64,
    warm: u64,
}

impl Resident {
    /// At the end of a program that writes its `smaps`.
    fn in_program(source: &'static str) -> Result<Self, String> {
        let image = Image::read()?;
        let mappings = run(&mut preloaded(program(source)?))?.well()?.stdout;
        let mut lines = mappings.lines();
        let path = library().display().to_string();
        let mut parts = Vec::new();
        // 7f9a53c9f000-7f9a53ca9000 r-xp 0000a000 fe:00 5311463    /path/of/libhectare.so
        while let Some(line) = lines.find(|line| line.ends_with(&path)) {
            let mut words = line.split(' ').skip(1);
            let is_code = words.next().is_some_and(|rights| rights.contains('x'));
            let offset = words.next().and_then(|text| u64::from_str_radix(text, 16).ok());
            let resident = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap_or_default();
            let kib = resident.trim().strip_suffix(" kB").and_then(|text| text.parse().ok());
            parts.push((is_code, offset.ok_or("no offset")?, kib.ok_or("no resident part")?));
        }
        // A mapping begins with the page in which its segment begins.
        let of = |segment: &Segment| -> Result<u64, String> {
            let key = (segment.flags & PF_X != 0, segment.file_offset / PAGE_BYTES * PAGE_BYTES);
            let part = parts.iter().find(|(is_code, offset, _)| (*is_code, *offset) == key);
            part.map(|&(.., kib)| kib).ok_or(format!("no mapping of {segment:x?}: {parts:x?}"))
        };
        let executable: Vec<_> = image.executable().collect();
        let [ordinary, cold, warm] = &executable[..] else {
            return Err(format!("not three executable segments: {executable:x?}"));
        };
        let unwinding = image.segments(PT_LOAD).last().ok_or("no segment")?;
        Ok(Self {
            ordinary: of(ordinary)?,
            cold: of(cold)?,
            unwinding: of(&unwinding)?,
            warm: of(warm)?,
        })
    }
}

/// A 64-bit little-endian ELF file, as far as these tests read it.
struct Image(Vec<u8>);

#[derive(Debug)]
struct Segment {
    kind: u32,
    flags: u32,
    file_offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
}

struct Relocation {
    address: u64,
    kind: u32,
    addend: u64,
}

impl Segment {
    fn holds(&self, address: u64) -> bool {
        (self.address..self.address + self.memory_bytes).contains(&address)
    }
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

    /// The names in the entries with `tag`: the library's own, or those of the libraries that it
    /// needs.
    fn names(&self, tag: u64) -> Result<Vec<String>, String> {
        let entries = self.dynamic()?;
        // The strings lie in the first segment, which begins with the file.
        let strings = entries.iter().find(|(tag, _)| *tag == DT_STRTAB).ok_or("no strings")?.1;
        let named = entries.iter().filter(|(named, _)| *named == tag);
        Ok(named.map(|(_, at)| self.string(strings + at)).collect())
    }

    /// The string at an offset, up to its null.
    fn string(&self, at: u64) -> String {
        let rest = &self.0[usize::try_from(at).expect("offsets of a file in memory fit")..];
        String::from_utf8_lossy(rest.split(|&byte| byte == 0).next().unwrap_or_default()).into()
    }

    /// A byte of the first segment, which begins with the file.
    fn byte(&self, address: u64) -> u64 {
        self.word(address) & 0xff
    }

    /// What the dynamic linker fills in.
    fn relocations(&self) -> Result<Vec<Relocation>, String> {
        let entries = self.dynamic()?;
        let value =
            |wanted| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
        let (table, bytes) = value(DT_RELA).zip(value(DT_RELASZ)).ok_or("no relocations")?;
        let entry = |at| Relocation {
            address: self.word(at),
            kind: self.half(at + 8),
            addend: self.word(at + 16),
        };
        Ok((0..bytes / 24).map(|i| entry(table + 24 * i)).collect())
    }

    /// The names and addresses of the functions, including those that are local to this library.
    fn functions(&self) -> Result<impl Iterator<Item = (String, u64)>, String> {
        self.symbols(STT_FUNC)
    }

    /// The names and addresses of the symbols of a kind that are defined here.
    fn symbols(&self, kind: u32) -> Result<impl Iterator<Item = (String, u64)>, String> {
        let (headers, count) = (self.word(40), self.half(60) & 0xffff);
        let header = |number: u32| headers + 64 * u64::from(number);
        let table = (0..count).map(header).find(|at| self.half(at + 4) == SHT_SYMTAB);
        let table = table.ok_or("no symbols")?;
        let (first, bytes) = (self.word(table + 24), self.word(table + 32));
        let strings = self.word(header(self.half(table + 40)) + 24);
        let symbols = (0..bytes / 24).map(move |i| first + 24 * i);
        let of_kind = symbols.filter(move |at| self.half(at + 4) & 0xf == kind);
        let defined = of_kind.filter(|at| self.word(at + 8) != 0);
        Ok(defined
            .map(move |at| (self.string(strings + u64::from(self.half(at))), self.word(at + 8))))
    }

    /// The segments of code.
    fn executable(&self) -> impl Iterator<Item = Segment> {
        self.segments(PT_LOAD).filter(|segment| segment.flags & PF_X != 0)
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
                address: self.word(at + 16),
                file_bytes: self.word(at + 32),
                memory_bytes: self.word(at + 40),
            })
            .filter(move |segment| segment.kind == kind)
    }
}

//! Whether the processes that do a program's work have the measured allocator.
//!
//! The starter of a program can drop the preloaded library (`env -i`, `sudo`, a container, a script
//! that unsets the variable), and a statically linked program never reads it. All allocators would
//! then measure the same. So each program that a process of the tree runs is looked at, and its
//! processor time is counted as taken with or without the library.
//!
//! 1. A program is looked at once: its mappings are long, and reading them holds up its `mmap`.
//! 2. A process runs another program when its stack begins elsewhere.
//! 3. A program that ends between two looks is not seen, and its time since the last look is not
//!    counted.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// If programs took more than this share of the processor time without the library, nothing of it
/// has been measured.
const MOST: f64 = 0.90;

/// A share that the reader must know of.
const WORTH_TELLING: f64 = 0.05;

/// What a program counts for having been seen, ns: the kernel counts processor time in units of
/// 10 ms, and many programs have taken less.
const SEEN_NS: u64 = 1_000;

/// Whether a program has the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Has {
    Yes,
    No,
    /// Not known yet: the program's loader is not done.
    NotYet,
    /// The program has the rights of another user, or has hidden itself.
    Hidden,
}

/// Processor time by whether it was taken with the library.
#[derive(Clone, Debug, Default)]
pub(crate) struct Served {
    /// With the library, ns.
    with_ns: u64,
    /// Without the library, by the program's name, ns.
    without_ns: BTreeMap<String, u64>,
    /// Of programs that may not be looked into, by name, ns.
    hidden_ns: BTreeMap<String, u64>,
}

/// How far an allocator failed to serve a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shortfall {
    /// For so much of its work that nothing was measured, and why.
    Whole(String),
    /// For a part of its work, or for a part that cannot be seen: what to know of it.
    Part(String),
    /// Not known: the program ended before it could be seen.
    Unknown,
}

impl Served {
    /// Adds the times of another run.
    pub(crate) fn add(&mut self, other: &Self) {
        self.with_ns += other.with_ns;
        for (name, ns) in &other.without_ns {
            *self.without_ns.entry(name.clone()).or_default() += ns;
        }
        for (name, ns) in &other.hidden_ns {
            *self.hidden_ns.entry(name.clone()).or_default() += ns;
        }
    }

    /// How far the allocator failed to serve the program; `None` if all is well.
    pub(crate) fn shortfall(&self) -> Option<Shortfall> {
        let sum = |of: &BTreeMap<String, u64>| of.values().sum::<u64>();
        let all_ns = self.with_ns + sum(&self.without_ns) + sum(&self.hidden_ns);
        let share = |of| sum(of) as f64 / all_ns.max(1) as f64;
        let who = |of| format!("{} took {:.0} %", largest(of), share(of) * 100.0);
        if share(&self.without_ns) > MOST {
            return Some(Shortfall::Whole(format!(
                "its library was not loaded where the work was done: {} of the processor time without it \
                 (LD_PRELOAD was dropped on the way, or it is statically linked)",
                who(&self.without_ns)
            )));
        }
        if all_ns < tick_ns() {
            return Some(Shortfall::Unknown);
        }
        if share(&self.without_ns) > WORTH_TELLING {
            let who = who(&self.without_ns);
            return Some(Shortfall::Part(format!("{who} of the processor time without it")));
        }
        (share(&self.hidden_ns) > WORTH_TELLING).then(|| {
            let who = who(&self.hidden_ns);
            Shortfall::Part(format!("{who} of the processor time where this user may not see it"))
        })
    }

    fn count(&mut self, program: Program) {
        let Program { name, has, ns, .. } = program;
        match has {
            Has::Yes => self.with_ns += ns,
            Has::No => *self.without_ns.entry(name).or_default() += ns,
            Has::Hidden => *self.hidden_ns.entry(name).or_default() += ns,
            Has::NotYet => {}
        }
    }
}

/// The names of the programs that took most.
fn largest(of: &BTreeMap<String, u64>) -> String {
    const NAMED: usize = 3;
    let mut programs: Vec<(&String, &u64)> = of.iter().collect();
    programs.sort_by_key(|&(_, &ns)| std::cmp::Reverse(ns));
    let mut names: Vec<_> =
        programs.iter().take(NAMED).map(|(name, _)| format!("`{name}`")).collect();
    if programs.len() > NAMED {
        names.push(format!("{} more", programs.len() - NAMED));
    }
    names.join(", ")
}

/// The program of a process, as last looked at.
#[derive(Debug)]
struct Program {
    name: String,
    /// Where its stack begins; 0 if that is hidden.
    stack: u64,
    has: Has,
    /// Processor time that the program was seen to take, ns.
    ns: u64,
    /// Processor time of the process, including its earlier programs, ns.
    process_ns: u64,
}

impl Program {
    /// Whether the process still runs this program. A program that hides itself while it runs keeps
    /// its name.
    fn is_still(&self, stat: &Stat) -> bool {
        let is_same =
            if stat.stack == 0 { self.name == stat.name } else { self.stack == stat.stack };
        stat.has_ended || is_same
    }
}

/// Looks at the programs of a tree of processes.
#[derive(Debug)]
pub(super) struct Lookout {
    /// The library that the processes should have. The system's allocator has none, and its
    /// processes are looked at all the same: the cost of looking is part of every time.
    library: Option<PathBuf>,
    running: BTreeMap<i32, Program>,
    /// The times of programs that no longer run.
    served: Served,
}

impl Lookout {
    pub(super) fn for_library(library: Option<&Path>) -> Self {
        let library = library.map(Path::to_owned);
        Self { library, running: BTreeMap::new(), served: Served::default() }
    }

    /// Looks at one process.
    pub(super) fn look(&mut self, pid: i32) {
        let Some(stat) = Stat::of(pid) else { return };
        let known = self.running.get_mut(&pid);
        // A smaller time means another process with the same number.
        let process_ns = known.as_ref().map_or(0, |program| program.process_ns);
        let taken_ns = stat.process_ns.checked_sub(process_ns).unwrap_or(stat.process_ns);
        if let Some(program) = known.filter(|program| program.is_still(&stat)) {
            program.ns += taken_ns;
            program.process_ns = stat.process_ns;
            if program.has == Has::NotYet {
                program.has = has(pid, self.library.as_deref());
            }
        } else if !stat.has_ended {
            let Stat { name, stack, process_ns, .. } = stat;
            let has = has(pid, self.library.as_deref());
            let program = Program { name, stack, has, ns: SEEN_NS + taken_ns, process_ns };
            if let Some(before) = self.running.insert(pid, program) {
                self.served.count(before);
            }
        }
    }

    /// What all looks together have shown.
    pub(super) fn served(mut self) -> Served {
        self.running.into_values().for_each(|program| self.served.count(program));
        self.served
    }
}

/// Whether the program of a process was loaded without a library that it should have.
#[derive(Debug, Default)]
pub(crate) struct Lacking {
    /// Where the program's stack begins.
    stack: u64,
    has: Option<Has>,
}

impl Lacking {
    /// Looks at the process, once for each program that it runs. The library's path ends in
    /// `library`.
    pub(crate) fn look(&mut self, pid: u32, library: &Path) {
        let Some(stat) = Stat::of(pid as i32).filter(|stat| !stat.has_ended) else { return };
        if stat.stack != self.stack || matches!(self.has, None | Some(Has::NotYet)) {
            *self = Self { stack: stat.stack, has: Some(has(pid as i32, Some(library))) };
        }
    }

    /// Whether the program was seen to lack the library.
    pub(crate) fn is_certain(&self) -> bool {
        self.has == Some(Has::No)
    }
}

/// The parts of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    name: String,
    has_ended: bool,
    /// Processor time of all its threads, ns.
    process_ns: u64,
    /// When the process began, clock ticks since boot.
    begun: u64,
    /// Where the stack begins; 0 if that is hidden.
    stack: u64,
}

/// Whether the process `pid` that began at `begun`, clock ticks since boot, still runs. A later
/// process can have the same number.
pub(crate) fn still_runs(pid: u32, begun: u64) -> bool {
    Stat::of(pid as i32).is_some_and(|stat| !stat.has_ended && stat.begun == begun)
}

impl Stat {
    /// The status of a process; `None` when there is no such process.
    fn of(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(&String::from_utf8_lossy(&stat))
    }

    fn parse(text: &str) -> Option<Self> {
        let (start, fields) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // `proc(5)` counts fields from 1, and the state is its third.
        let number = |nth: usize| fields.get(nth - 3)?.parse::<u64>().ok();
        Some(Self {
            name: start.split_once('(')?.1.to_owned(),
            has_ended: matches!(*fields.first()?, "Z" | "X"),
            process_ns: (number(14)? + number(15)?) * tick_ns(),
            begun: number(22)?,
            stack: number(28)?,
        })
    }
}

/// Whether the program of `pid` has the library.
fn has(pid: i32, library: Option<&Path>) -> Has {
    confirmed(|| match fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => has_mapped(&maps, library.map(|library| library.as_os_str().as_bytes())),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Has::Hidden,
        Err(_) => Has::NotYet,
    })
}

/// The answer of `look`, which is asked again if it says that there is no library: the mappings of
/// a process that is ending may be read in part, and are gone at the next look.
fn confirmed(mut look: impl FnMut() -> Has) -> Has {
    match look() {
        Has::No => look(),
        told => told,
    }
}

/// Whether a program has the library, by its mappings. The loader maps preloaded libraries before
/// the C library, and the kernel maps `[vdso]` after the loader.
fn has_mapped(maps: &[u8], library: Option<&[u8]>) -> Has {
    const LOADERS: [&[u8]; 2] = [b"ld-", b"ld.so"];
    const C_LIBRARIES: [&[u8]; 3] = [b"libc.so", b"libc-", b"ld-musl"];
    let lines = || maps.split(|&byte| byte == b'\n');
    let is_there = |starts: &[&[u8]]| {
        let mut names = lines().filter_map(|line| line.rsplit(|&byte| byte == b'/').next());
        names.any(|name| starts.iter().any(|start| name.starts_with(start)))
    };
    if library.is_none_or(|library| lines().any(|line| line.ends_with(library))) {
        return Has::Yes;
    }
    let is_static = !is_there(&LOADERS) && lines().any(|line| line.ends_with(b"[vdso]"));
    if is_static || is_there(&C_LIBRARIES) { Has::No } else { Has::NotYet }
}

/// The unit in which the kernel reports processor time, ns.
pub(super) fn tick_ns() -> u64 {
    // SAFETY: `sysconf` reads a constant of the system.
    let ticks_per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1) as u64;
    1_000_000_000 / ticks_per_s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_missing_only_once_the_loader_is_done() {
        let program = "1-2 r-xp 0 00:1 7   /tmp/a program\n";
        let vdso = "8-9 r-xp 0 00:0 0   [vdso]\n";
        let loader = "3-4 r-xp 0 00:1 8   /usr/lib/ld-linux-x86-64.so.2\n";
        let c_library = "5-6 r-xp 0 00:1 9   /usr/lib/libc.so.6\n";
        let ours = "7-8 r-xp 0 00:1 10   /tmp/libours.so\n";
        let seen = |parts: &[&str]| has_mapped(parts.concat().as_bytes(), Some(b"/tmp/libours.so"));
        assert_eq!(seen(&[]), Has::NotYet);
        assert_eq!(seen(&[program]), Has::NotYet);
        assert_eq!(seen(&[program, loader, vdso]), Has::NotYet);
        assert_eq!(seen(&[program, loader, vdso, ours]), Has::Yes);
        assert_eq!(seen(&[program, loader, vdso, c_library]), Has::No);
        assert_eq!(seen(&[program, ours, loader, c_library]), Has::Yes);
        assert_eq!(seen(&[program, vdso]), Has::No, "linked statically");
        assert_eq!(has_mapped(program.as_bytes(), None), Has::Yes);
    }

    #[test]
    fn what_ends_while_it_is_looked_at_is_not_taken_for_one_without_the_library() {
        let told = |looks: &[Has]| {
            let mut looks = looks.iter().copied();
            let told = confirmed(|| looks.next().expect("no more looks than are needed"));
            (told, looks.len())
        };
        assert_eq!(told(&[Has::No, Has::NotYet]), (Has::NotYet, 0));
        assert_eq!(told(&[Has::No, Has::No]), (Has::No, 0));
        assert_eq!(told(&[Has::Yes, Has::No]), (Has::Yes, 1));
        assert_eq!(told(&[Has::NotYet, Has::No]), (Has::NotYet, 1));
    }

    #[test]
    fn what_the_kernel_tells_of_a_process_is_read() {
        let text = "7 (a) b) S 1 7 7 0 -1 0 1 2 3 4 250 3 9 9 20 0 1 0 55 8 9 10 11 12 4711 0 0";
        let told = Stat::parse(text).unwrap();
        let expected = Stat {
            name: "a) b".to_owned(),
            has_ended: false,
            process_ns: 253 * tick_ns(),
            begun: 55,
            stack: 4711,
        };
        assert_eq!(told, expected);
        assert_eq!(Stat::parse("7 (a) S 1"), None);
    }

    /// The shortfall for programs as they were seen: name, whether it has the library,
    /// milliseconds.
    fn shortfall(seen: &[(&str, Has, u64)]) -> Option<Shortfall> {
        let mut served = Served::default();
        for &(name, has, ms) in seen {
            let ns = ms * 1_000_000 + SEEN_NS;
            let mut run = Served::default();
            run.count(Program { name: name.to_owned(), stack: 1, has, ns, process_ns: ns });
            served.add(&run);
        }
        served.shortfall()
    }

    #[test]
    fn who_takes_the_time_must_have_the_library() {
        use Has::{Hidden, No, NotYet, Yes};
        assert_eq!(shortfall(&[("sh", Yes, 0), ("prog", Yes, 40)]), None);
        assert_eq!(shortfall(&[("make", Yes, 900), ("go", No, 30)]), None, "too little");
        assert_eq!(shortfall(&[("prog", Yes, 400), ("sleep", NotYet, 500)]), None);
        let whole = shortfall(&[("sh", Yes, 0), ("prog", No, 40)]);
        let Some(Shortfall::Whole(why)) = whole else { panic!("{whole:?}") };
        assert!(why.contains("`prog` took 100 % of the processor time"), "{why}");
        let part = shortfall(&[("cc1", Yes, 300), ("go", No, 60), ("link", No, 40)]);
        let Some(Shortfall::Part(who)) = part else { panic!("{part:?}") };
        assert!(who.starts_with("`go`, `link` took 25 %"), "{who}");
        let hidden = shortfall(&[("sh", Yes, 0), ("sudo", Hidden, 70)]);
        let Some(Shortfall::Part(who)) = hidden else { panic!("{hidden:?}") };
        assert!(who.contains("`sudo` took 100 %") && who.contains("may not see"), "{who}");
        for unknown in [&[][..], &[("sh", Yes, 0)], &[("sh", Yes, 0), ("prog", No, 0)]] {
            assert_eq!(shortfall(unknown), Some(Shortfall::Unknown), "{unknown:?}");
        }
    }

    #[test]
    fn a_program_is_looked_at_again_when_another_takes_its_place() {
        let library = Path::new("/no/such/library.so");
        let script = "read word; exec cat";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let mut lookout = Lookout::for_library(Some(library));
        let mut look_for = |name: &str| {
            while lookout.running.get(&pid).is_none_or(|is| is.name != name || is.has != Has::No) {
                lookout.look(pid);
                std::thread::yield_now();
            }
        };
        look_for("sh");
        let mut input = child.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, b"go on\n").unwrap();
        look_for("cat");
        drop(input);
        child.wait().unwrap();
        let served = lookout.served();
        assert_eq!(served.without_ns.keys().collect::<Vec<_>>(), ["cat", "sh"]);
        assert_eq!(served.with_ns, 0);
    }
}

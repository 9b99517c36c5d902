//! The heap profile: its files are read by decoders that know nothing of the writer.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::contract;
use crate::harness::{
    Ended, Outcome, Suite, compile, ensure, find_tool, preloaded, program, run, scratch,
};
use crate::misuse;
use crate::pprof::Profile;

pub(crate) fn add(suite: &mut Suite) {
    suite.test_with("profile::live_bytes_by_call_site", &["cc"], || {
        live_bytes_by_call_site(Profiled::run("sites", "sites", "prof_sample:16384")?)
    });
    suite.test_with("profile::live_bytes_by_frame_pointers", &["cc"], || {
        let program = compile("profile.c", &["-fno-omit-frame-pointer"], "-frames")?;
        let options = "prof_sample:16384,prof_unwind:frames";
        live_bytes_by_call_site(Profiled::run_program(&program, "frames", "sites", options)?)
    });
    suite.test_with("profile::frame_pointers_stay_chosen", &["cc"], frame_pointers_stay_chosen);
    suite.test_with("profile::every_byte_at_rate_one", &["cc"], every_byte_at_rate_one);
    suite.test_with("profile::stacks_are_those_of_backtrace", &["cc"], || {
        stacks_of_backtrace("stacks", &program("unwind.c")?)
    });
    suite.test_with("profile::stacks_by_tables_apart_from_their_list", &["cc"], || {
        let flags = [concat!("-Wl,-T,", env!("CARGO_MANIFEST_DIR"), "/tests/c/apart.ld")];
        stacks_of_backtrace("tables-apart", &compile("unwind.c", &flags, "-apart")?)
    });
    suite.test_with("profile::misled_by_tables", &["cc"], || {
        Profiled::run("misled", "misled_by_tables", "prof_sample:1")?.done()
    });
    for unwind in ["tables", "frames"] {
        suite.test_with(format!("profile::stack_that_went[{unwind}]"), &["cc"], move || {
            let options = format!("prof_sample:1,prof_unwind:{unwind}");
            Profiled::run(&format!("went-{unwind}"), "stack_that_went", &options)?.done()
        });
    }
    suite.test_with("profile::freed_objects_are_forgotten", &["cc"], freed_objects_are_forgotten);
    suite.test_with("profile::resized_in_sparse_slabs", &["cc"], resized_in_sparse_slabs);
    suite.test_with("profile::symbols_resolve", &["cc", "addr2line"], symbols_resolve);
    suite.test_with("profile::names_that_are_no_text", &["cc"], names_that_are_no_text);
    suite.test_with("profile::opens_in_go_pprof", &["cc", "go"], opens_in_go_pprof);
    suite.test_with("profile::signals_anywhere", &["cc"], signals_anywhere);
    suite.test_with("profile::signal_while_idle", &["cc"], signal_while_idle);
    suite.test_with("profile::one_signal_for_both", &["cc"], one_signal_for_both);
    suite.test_with("profile::forked_processes_have_their_own", &["cc"], forked_processes);
    suite.test_with("profile::forks_amid_walks", &["cc"], || {
        Profiled::run("forks-amid-walks", "forks_amid_walks", "prof_sample:64")?.done()
    });
    suite.test_with("profile::by_call_and_without", &["cc"], by_call_and_without);
    suite.test_with("profile::one_dump_at_a_time", &["cc"], || {
        Profiled::run("one-at-a-time", "one_at_a_time", "prof_sample:1000")?.done()
    });
    suite.test_with("profile::unwritable_is_told", &["cc"], unwritable_is_told);
    for &case in contract::CASES.iter().filter(|case| !OF_FIGURES.contains(case)) {
        suite.test_with(format!("profile::{case}[every object sampled]"), &["cc"], move || {
            run(every_object_sampled("contract.c")?.arg(case))?.well().map(drop)
        });
    }
    for &(case, call, cause) in MISUSES {
        suite.test_with(format!("profile::{case}[every object sampled]"), &["cc"], move || {
            misuse::check(&run(every_object_sampled("misuse.c")?.arg(case))?, call, cause)
        });
    }
}

/// Cases of `contract.c` whose bounds do not hold if every object is sampled: the statistics count
/// what objects share as a whole, and the resident memory includes the profile's tables.
const OF_FIGURES: &[&str] = &[
    "mallinfo2_is_true",
    "mallinfo2_is_exact",
    "malloc_info_is_true",
    "malloc_trim_gives_back",
    "a_peak_goes_back",
];

/// Cases of `misuse.c`, as [`misuse::CASES`], in which small sampled objects share pages. About a
/// free one it is known only that no object is there.
const MISUSES: &[(&str, &str, &str)] = &[
    ("double_free_at_once", "free", "nothing is allocated there: a double free"),
    ("double_free_other_thread", "free", "nothing is allocated there: a double free"),
    ("double_free_late", "free", "double free"),
    ("double_free_large", "free", "double free"),
    ("realloc_freed", "realloc", "nothing is allocated there: a double free"),
    ("usable_size_freed", "malloc_usable_size", "nothing is allocated there: a double free"),
    ("misaligned", "free", "misaligned pointer"),
];

/// A program of the tests whose objects are all sampled, and whose profile goes nowhere.
fn every_object_sampled(name: &'static str) -> Result<Command, String> {
    let mut command = preloaded(program(name)?);
    command.env("HECTARE_CONF", "prof:true,prof_sample:1,prof_prefix:/dev/null/none");
    Ok(command)
}

/// A run of `profile.c` with the profile on, its files in a directory of its own.
struct Profiled {
    ended: Ended,
    directory: PathBuf,
}

impl Profiled {
    fn run(test: &str, case: &str, options: &str) -> Result<Self, String> {
        Self::run_with(test, case, options, |_| {})
    }

    fn run_with(
        test: &str,
        case: &str,
        options: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        Self::run_changed(&program("profile.c")?, test, case, options, change)
    }

    fn run_program(program: &Path, test: &str, case: &str, options: &str) -> Result<Self, String> {
        Self::run_changed(program, test, case, options, |_| {})
    }

    fn run_changed(
        program: &Path,
        test: &str,
        case: &str,
        options: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Self, String> {
        let directory = scratch(&format!("profile-{test}"));
        let mut command = preloaded(program);
        let prefix = directory.join("heap");
        command
            .env("HECTARE_CONF", format!("prof:true,prof_prefix:{},{options}", prefix.display()));
        command.env("TEST_PATH", directory.join("called")).env("TEST_PREFIX", prefix).arg(case);
        change(&mut command);
        let ended = run(&mut command)?.well()?;
        Ok(Self { ended, directory })
    }

    /// The files that the process and its children wrote, by name.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(&self.directory).map_err(|error| error.to_string())?;
        let paths = entries.map(|entry| entry.map(|entry| entry.path()));
        let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        paths.retain(|path| path.to_string_lossy().ends_with(".pb.gz"));
        paths.sort();
        Ok(paths)
    }

    fn only_profile(&self) -> Result<Profile, String> {
        match &self.files()?[..] {
            [path] => read(path),
            files => Err(self.ended.describe(&format!("not one file: {files:?}"))),
        }
    }

    fn done(self) -> Outcome {
        fs::remove_dir_all(self.directory).map_err(|error| error.to_string())
    }
}

fn read(path: &Path) -> Result<Profile, String> {
    let file = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(file);
    decoder.read_to_end(&mut bytes).map_err(|error| format!("{}: {error}", path.display()))?;
    let profile: Profile = prost::Message::decode(&bytes[..]).map_err(|error| error.to_string())?;
    profile.check()?;
    Ok(profile)
}

/// What the program says of a site: its name, where its code lies, and how much it has live.
struct Site<'a> {
    name: &'a str,
    start: u64,
    end: u64,
    live_bytes: f64,
}

fn sites(output: &str) -> Result<Vec<Site<'_>>, String> {
    let parse = |line: &'_ str| -> Option<(u64, u64, f64)> {
        let mut words = line.split(' ').skip(1);
        let mut address = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
        let (start, end) = (address()?, address()?);
        Some((start, end, words.next()?.parse().ok()?))
    };
    output
        .lines()
        .map(|line| {
            let (start, end, live_bytes) = parse(line).ok_or(format!("not a site: {line}"))?;
            let name = line.split(' ').next().unwrap_or_default();
            Ok(Site { name, start, end, live_bytes })
        })
        .collect()
}

/// The live bytes that the profile attributes to each site, by the innermost frame that lies in a
/// site; and all live bytes.
fn attributed(profile: &Profile, sites: &[Site<'_>]) -> (Vec<f64>, f64) {
    let mut bytes = vec![0.0; sites.len()];
    let mut total = 0.0;
    for (addresses, values) in profile.stacks() {
        total += values[3] as f64;
        let site = addresses.iter().find_map(|address| {
            sites.iter().position(|site| (site.start..site.end).contains(address))
        });
        if let Some(site) = site {
            bytes[site] += values[3] as f64;
        }
    }
    (bytes, total)
}

/// At least 95 % of the live bytes must be attributed to where they came from. Bytes that a site is
/// given beyond its own do not count.
fn live_bytes_by_call_site(run: Profiled) -> Outcome {
    let profile = run.only_profile()?;
    let sites = sites(&run.ended.stdout)?;
    let (attributed, total) = attributed(&profile, &sites);
    let live: f64 = sites.iter().map(|site| site.live_bytes).sum();
    let right: f64 =
        sites.iter().zip(&attributed).map(|(site, bytes)| bytes.min(site.live_bytes)).sum();
    let table: String = sites
        .iter()
        .zip(&attributed)
        .map(|(site, bytes)| {
            format!("{}: {} live, {bytes} attributed\n", site.name, site.live_bytes)
        })
        .collect();
    println!("{:.2} % of the live bytes attributed to the right sites", 100.0 * right / live);
    ensure(right >= 0.95 * live, || format!("{right} of {live} bytes\n{table}"))?;
    ensure(total <= 1.05 * live, || format!("{total} in all, live are {live}\n{table}"))?;
    run.done()
}

/// If every byte is a sampling point, nothing is an estimate: the figures are exact.
fn every_byte_at_rate_one() -> Outcome {
    let run = Profiled::run("rate-one", "sites", "prof_sample:1")?;
    let profile = run.only_profile()?;
    let sites = sites(&run.ended.stdout)?;
    let (attributed, _) = attributed(&profile, &sites);
    for (site, bytes) in sites.iter().zip(attributed) {
        ensure(bytes == site.live_bytes, || {
            format!("{}: {bytes} attributed, {} live", site.name, site.live_bytes)
        })?;
    }
    run.done()
}

/// Frame pointers stay chosen even if this library was not found at first, and was found when
/// something else asked who called. Unlike tables, they do not lead beyond the C library's caller
/// of `main`.
fn frame_pointers_stay_chosen() -> Outcome {
    let program = compile("unfound.c", &["-fno-omit-frame-pointer", "-rdynamic"], "")?;
    let run =
        Profiled::run_program(&program, "stay-chosen", "", "prof_sample:1,prof_unwind:frames")?;
    let profile = run.only_profile()?;
    let address = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
    let told = run.ended.stdout.split_whitespace().map(address).collect::<Result<Vec<_>, _>>();
    let Ok(&[allocate, start]) = told.as_deref() else {
        return Err(run.ended.describe("not two addresses"));
    };
    let is_in = |start: u64, address: &u64| (start..start + 64).contains(address);
    let mut stacks = profile.stacks().map(|(addresses, _)| addresses);
    let stack = stacks.find(|stack| is_in(allocate, &stack[0])).ok_or("no stack")?;
    ensure(!stack.iter().any(|address| is_in(start, address)), || format!("{stack:x?}"))?;
    run.done()
}

/// The profile's stacks are those that glibc's own unwinder sees, call by call, up to the outermost
/// frame.
fn stacks_of_backtrace(name: &str, program: &Path) -> Outcome {
    let run = Profiled::run_program(program, name, "", "prof_sample:1")?;
    let profile = run.only_profile()?;
    let stacks: Vec<_> = profile.stacks().map(|(addresses, _)| addresses).collect();
    let mut seen = 0;
    for line in run.ended.stdout.lines() {
        let addresses = line.split(' ').skip(1).map(|word| {
            let digits = word.strip_prefix("0x").ok_or(format!("not an address: {word}"))?;
            u64::from_str_radix(digits, 16).map_err(|error| error.to_string())
        });
        // A file gives the place of each call, which is a byte before the return address, and the
        // pc of code that a signal has interrupted.
        let callers =
            addresses.map(|address| Ok(address? - 1)).collect::<Result<Vec<_>, String>>()?;
        let known = stacks.iter().any(|stack| stack[1..] == callers);
        ensure(known, || format!("not in the profile: {line}\n{stacks:x?}"))?;
        seen += 1;
    }
    ensure(seen > 10, || format!("only {seen} stacks"))?;
    run.done()
}

fn freed_objects_are_forgotten() -> Outcome {
    let run = Profiled::run("all-freed", "all_freed", "prof_sample:2000")?;
    let profile = run.only_profile()?;
    let [all, live] = [1, 3].map(|value| profile.stacks().map(|(_, v)| v[value]).sum::<i64>());
    ensure(all > 100_000_000, || format!("{all} bytes in all"))?;
    // The bytes that the C library keeps for itself.
    ensure(live < 100_000, || format!("{live} bytes live"))?;
    run.done()
}

/// An object that is resized in place is not sampled anew, however often that happens.
fn resized_in_sparse_slabs() -> Outcome {
    let run = Profiled::run("sparse", "resized_in_sparse_slabs", "prof_sample:100000")?;
    let live: i64 = run.only_profile()?.stacks().map(|(_, values)| values[3]).sum();
    // Some two hundred samples.
    ensure((14_000_000..26_000_000).contains(&live), || format!("20 MB are live, not {live}"))?;
    run.done()
}

/// By the mappings, and by the program's own symbols, an address leads to a function's name.
fn symbols_resolve() -> Outcome {
    let run = Profiled::run("symbols", "sites", "prof_sample:65536")?;
    let profile = run.only_profile()?;
    let sites = sites(&run.ended.stdout)?;
    let mut seen = 0;
    for site in &sites {
        let inside = |address: &u64| (site.start..site.end).contains(address);
        let mut addresses = profile.stacks().flat_map(|(addresses, _)| addresses);
        let Some(address) = addresses.find(inside) else { continue };
        let (file, offset) = profile.file_of(address).ok_or("the address is in no mapping")?;
        let mut command = Command::new("addr2line");
        // With the functions that were inlined.
        command.args(["-i", "-f", "-e", file, &format!("{offset:#x}")]);
        let told = crate::harness::run(&mut command)?.well()?;
        let named = told.stdout.lines().any(|line| line == site.name);
        ensure(named, || told.describe(&format!("not {}", site.name)))?;
        seen += 1;
    }
    ensure(seen >= 6, || format!("only {seen} sites in the profile"))?;
    run.done()
}

/// Strings of the format are UTF-8, which names of files need not be.
fn names_that_are_no_text() -> Outcome {
    let directory = scratch("profile-names");
    let path = directory.join(OsStr::from_bytes(b"caf\xe9-caf\xc3\xa9"));
    fs::copy(program("profile.c")?, &path).map_err(|error| error.to_string())?;
    let run = Profiled::run_program(&path, "no-text", "sites", "prof_sample:65536")?;
    let profile = run.only_profile()?;
    let sites = sites(&run.ended.stdout)?;
    let inside = |address: &u64| (sites[0].start..sites[0].end).contains(address);
    let address = profile.stacks().find_map(|(addresses, _)| addresses.into_iter().find(inside));
    let (file, _) = address.and_then(|address| profile.file_of(address)).ok_or("no mapping")?;
    ensure(file.ends_with("/caf?-caf\u{e9}"), || format!("a file's name is {file}"))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())?;
    run.done()
}

/// The reader that most people have.
fn opens_in_go_pprof() -> Outcome {
    let run = Profiled::run("go-pprof", "sites", "prof_sample:16384")?;
    let file = run.files()?.pop().ok_or("no file")?;
    let go = find_tool("go").ok_or("no go")?;
    let mut command = Command::new(go);
    command.args(["tool", "pprof", "-top", "-nodecount=30"]).arg(file);
    // Without a time limit: the first time, Go builds the tool.
    let output = command.output().map_err(|error| error.to_string())?;
    let told = String::from_utf8_lossy(&output.stdout);
    for expected in ["Type: inuse_space", "site_small", "site_large", "site_thread"] {
        ensure(told.contains(expected), || format!("no {expected} in {output:?}"))?;
    }
    run.done()
}

/// Two signals that nothing else uses.
const SIGNALS: &str = "prof_signal:12,stats_signal:10";

fn signals_anywhere() -> Outcome {
    // On an idle machine there are usually more than a hundred signals of each kind.
    const ENOUGH: usize = 60;
    let options = format!("prof_sample:100000,{SIGNALS}");
    let run = Profiled::run_with("signals", "signals_anywhere", &options, |command| {
        command.env("TEST_SIGNAL", "12").env("TEST_SIGNAL_2", "10");
        command.env("TEST_ENOUGH", ENOUGH.to_string());
    })?;
    let files = run.files()?;
    // Files are numbered from 0 on. One more comes at the end, and two from the forked child.
    ensure(files.len() >= ENOUGH + 4, || run.ended.describe(&format!("{} files", files.len())))?;
    files.iter().try_for_each(|file| read(file).map(drop))?;
    run.done()
}

fn signal_while_idle() -> Outcome {
    let run = Profiled::run_with("idle", "signal_while_idle", "prof_signal:10", |command| {
        command.env("TEST_SIGNAL", "10");
    })?;
    let files = run.files()?.len();
    ensure(files == 2, || run.ended.describe(&format!("{files} files: by signal, at the end")))?;
    run.done()
}

/// The same signal writes the statistics and a file of the profile.
fn one_signal_for_both() -> Outcome {
    let options = "prof_signal:10,stats_signal:10";
    let run = Profiled::run_with("both", "signal_while_idle", options, |command| {
        command.env("TEST_SIGNAL", "10");
    })?;
    let files = run.files()?.len();
    let texts = run.ended.stderr.matches("hectare: statistics of ").count();
    ensure((files, texts) == (2, 1), || {
        run.ended.describe(&format!("{files} files, {texts} texts"))
    })?;
    run.done()
}

fn forked_processes() -> Outcome {
    let run = Profiled::run("forks", "forks", "prof_sample:16384")?;
    let files = run.files()?;
    // The parent's first file is from before all that.
    ensure(files.len() == 3, || run.ended.describe(&format!("of two processes {files:?}")))?;
    let firsts = files.iter().filter(|file| file.to_string_lossy().ends_with(".0.pb.gz"));
    ensure(firsts.count() == 2, || format!("not numbered from 0 each: {files:?}"))?;
    let mut live = Vec::new();
    for file in &files {
        live.push(read(file)?.stacks().map(|(_, values)| values[3] as f64).sum::<f64>());
    }
    live.sort_by(f64::total_cmp);
    let ratio = live[2] / live[1];
    ensure((1.9..2.1).contains(&ratio), || format!("the child has not twice as much: {live:?}"))?;
    run.done()
}

fn by_call_and_without() -> Outcome {
    let run = Profiled::run("by-call", "by_call", "prof_sample:1000,prof_unwind:tables")?;
    read(&run.directory.join("called"))?;
    run.done()?;
    let directory = scratch("profile-mode");
    let mut command = preloaded(program("profile.c")?);
    command.arg("mode").env("TEST_PATH", directory.join("stats")).env("TEST_NO_PROFILE", "1");
    let ended = crate::harness::run(&mut command)?.well()?;
    let plain = ["front:auto\n", "front:thread\n"].contains(&ended.stdout.as_str());
    ensure(plain, || ended.describe("another mode"))?;
    let mut command = preloaded(program("profile.c")?);
    command.arg("mode").env("TEST_PATH", directory.join("stats"));
    command.env("HECTARE_CONF", format!("guard:7,prof:1,prof_prefix:{}/x", directory.display()));
    let ended = crate::harness::run(&mut command)?.well()?;
    let mode = "front:watched,prof:true,prof_sample:2097152,guard:7\n";
    ensure(ended.stdout == mode, || ended.describe("another mode"))?;
    let stats = fs::read_to_string(directory.join("stats")).map_err(|error| error.to_string())?;
    ensure(stats.contains("\"front\": \"watched\""), || stats.clone())?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

fn unwritable_is_told() -> Outcome {
    let mut command = preloaded(program("profile.c")?);
    command.arg("signal_while_idle").env("TEST_SIGNAL", "12");
    command.env("HECTARE_CONF", "prof:true,prof_prefix:/no/such/x,prof_signal:12");
    let ended = run(&mut command)?.well()?;
    let start = "hectare: cannot write the heap profile to '/no/such/x.";
    let lines = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with(start) && line.ends_with("': no such directory"))
        .count();
    ensure(lines == 2 && ended.stderr.lines().count() == 2, || ended.describe("not told twice"))
}

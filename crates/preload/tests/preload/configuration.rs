//! `HECTARE_CONF`: what docs/malloc-configuration.md promises.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::harness::{
    Ended, Outcome, Suite, compile, ensure, library, plain, preloaded, program, run, run_for,
    scratch,
};

/// Somebody who is not root: a program that is set-uid to this user is a secure one when root runs
/// it.
const NOBODY: u32 = 65534;

pub(crate) fn add(suite: &mut Suite) {
    suite.test_with("configuration::quiet_by_default", &["cc"], || {
        let ended = configured("", &[])?;
        ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))
    });
    for (text, warning) in [
        (
            "statz:true",
            "hectare: HECTARE_CONF: unknown key 'statz' is ignored; the keys are stats,",
        ),
        ("stats:maybe", "hectare: HECTARE_CONF: 'stats:maybe' is ignored; stats must be true or"),
        ("stats", "hectare: HECTARE_CONF: 'stats:' is ignored; stats must be true or false"),
        ("stats_json:", "hectare: HECTARE_CONF: 'stats_json:' is ignored; stats_json must be"),
        (",,:x,", "hectare: HECTARE_CONF: unknown key '' is ignored"),
        (
            "prof_signal:10,prof_sample:4096",
            "hectare: HECTARE_CONF: prof_signal is ignored, since prof is not true",
        ),
        (
            "prof:true,prof_prefix:/tmp/x,prof:0",
            "hectare: HECTARE_CONF: prof_prefix is ignored, since",
        ),
        (
            "secure:true,prof:true,prof_signal:10",
            "hectare: HECTARE_CONF: secure is true: prof, guard and hugetlb are ignored",
        ),
    ] {
        suite.test_with(format!("configuration::warns[{text}]"), &["cc"], move || {
            let ended = configured(text, &[])?;
            let one_line = ended.stderr.matches('\n').count() == 1;
            ensure(one_line && ended.stderr.starts_with(warning), || {
                ended.describe(&format!("not one line `{warning}…`"))
            })
        });
    }
    suite.test_with("configuration::limits", &["cc"], limits);
    suite.test_with("configuration::stats", &["cc"], || {
        let ended = configured("stats:true", &[])?;
        let told = ended.stderr.lines().all(|line| line.starts_with("hectare: "));
        let told = told && ended.stderr.contains("bytes in large objects");
        let whose = ended.stderr.lines().next().unwrap_or_default();
        let told = told && whose.starts_with("hectare: statistics of plain");
        ensure(told, || ended.describe("no statistics"))
    });
    for text in ["typo:1", "stats:true", "prof:true,prof_prefix:/dev/null/none"] {
        suite.test_with(format!("configuration::nobody_reads[{text}]"), &["cc"], move || {
            nobody_reads(preloaded(program("plain.c")?), text)
        });
    }
    suite.test_with("configuration::nobody_reads[sandboxed]", &["cc"], || {
        let mut command = preloaded(program("scarcity.c")?);
        command.arg("sandboxed");
        nobody_reads(command, "stats:true")
    });
    suite.test_with("configuration::files_are_limited", &["cc"], files_are_limited);
    suite.test_with("configuration::files_are_too_many", &["cc"], files_are_too_many);
    suite.test_with("configuration::background", &["cc"], || background(&[]));
    suite.test_with("configuration::background_in_a_child", &["cc"], || background(&["child"]));
    for (case, printed) in [
        ("main_thread_ends", "ended\n"),
        ("others_go_on", "worked\nended\n"),
        ("childs_thread_ends", "ended\nended\n"),
    ] {
        let name = format!("configuration::background_when_{case}");
        suite.test_with(name, &["cc"], move || last_thread(case, printed));
    }
    suite.test_with("configuration::stats_json", &["cc"], stats_json);
    suite.test_with("configuration::stats_json_of_forked_processes", &["cc"], json_of_forks);
    suite.test_with("configuration::names_survive_a_title", &["cc"], names_survive_a_title);
    suite.test_with("configuration::stats_json_unwritable", &["cc"], || {
        // The message gives the file's name as it is, with the process number.
        let ended = configured("stats_json:/no/such/directory/x.%p", &[])?;
        let rest = ended
            .stderr
            .strip_prefix("hectare: cannot write the statistics to '/no/such/directory/x.");
        let number = rest.and_then(|rest| rest.strip_suffix("': no such directory\n"));
        let is_told = number.is_some_and(|number| number.parse::<u32>().is_ok());
        ensure(is_told, || ended.describe("not told"))
    });
    let name = "configuration::stats_json_to_what_others_write_to";
    suite.test_with(name, &["cc"], to_what_others_write_to);
    let name = "configuration::written_by_a_cancelled_thread";
    suite.test_with(name, &["cc"], written_by_a_cancelled_thread);
    suite.test_with("configuration::stats_signal_as_a_thread_ends", &["cc"], || {
        // The library calls the program's own `sched_getcpu`.
        let mut command = preloaded(compile("leaving.c", &["-rdynamic"], "")?);
        run(command.env("HECTARE_CONF", "stats_signal:10"))?.well().map(drop)
    });
    for options in [
        "front:thread,stats:true",
        "front:cpu,stats:true",
        "stats_json:/dev/null",
        "secure:true,stats:true",
        "guard:1,stats:true",
        "prof:true,prof_sample:1000,prof_prefix:/dev/null/none",
    ] {
        let name = format!("configuration::exit_in_a_handler[{options}]");
        suite.test_with(name, &["cc"], move || {
            let mut command = preloaded(program("interrupted.c")?);
            run(command.env("HECTARE_CONF", options))?.well().map(drop)
        });
    }
    let name = "configuration::ignored_in_secure_programs";
    // SAFETY: no preconditions.
    match unsafe { libc::geteuid() } {
        0 => suite.test_with(name, &["cc"], ignored_when_secure),
        _ => suite.skip(name, "only root can make a program set-uid to another user"),
    }
}

/// The last values that a key takes, and the first that it refuses.
fn limits() -> Outcome {
    for text in [
        "guard:0",
        "guard:4294967296",
        "hugetlb:0",
        "reserve:0",
        "reserve:1",
        "reserve:262144",
        "stats_signal:1",
        "stats_signal:34",
        "stats_signal:64",
        "front:auto",
        "front:thread",
        "front:cpu",
        "background:false",
        "sandbox:0",
        "huge_pages:true",
    ] {
        let ended = configured(text, &[])?;
        ensure(ended.stderr.is_empty(), || ended.describe(&format!("{text} is not taken")))?;
    }
    for (key, values) in [
        ("prof_sample", &["0", "4294967297", "1k", ""][..]),
        ("guard", &["4294967297", "-1"]),
        ("hugetlb", &["3", "131074"]),
        ("reserve", &["262145", "1G"]),
        ("stats_signal", &["0", "2", "11", "33", "65"]),
        ("prof_signal", &["9", "TERM"]),
        ("front", &["both", "CPU"]),
        ("prof_unwind", &["table"]),
        ("secure", &["yes"]),
        ("huge_pages", &["never"]),
    ] {
        for value in values {
            let ended = configured(&format!("{key}:{value}"), &[])?;
            let line = format!("hectare: HECTARE_CONF: '{key}:{value}' is ignored; {key} must be ");
            let one_line = ended.stderr.matches('\n').count() == 1;
            let is_refused = one_line && ended.stderr.starts_with(&line);
            ensure(is_refused, || ended.describe(&format!("{key}:{value} is taken")))?;
        }
    }
    Ok(())
}

/// If standard error is a pipe that nobody reads any more, the program ends as it would without the
/// library.
fn nobody_reads(mut command: Command, text: &str) -> Outcome {
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    drop(reader);
    let command = command.env("HECTARE_CONF", text).stdout(Stdio::null()).stderr(writer);
    let status = command.status().map_err(|error| error.to_string())?;
    ensure(status.success(), || status.to_string())
}

/// If no file may grow, the program ends as it would without the library, too. A message through a
/// pipe says what could not be written.
fn files_are_limited() -> Outcome {
    let path = scratch("files-are-limited").join("stats.json");
    let mut command = preloaded("sh");
    command.args(["-c", "ulimit -f 0; exec \"$0\""]).arg(program("plain.c")?);
    command.env("HECTARE_CONF", format!("stats_json:{}", path.display()));
    let ended = command.output().map_err(|error| error.to_string())?;
    let line = format!("hectare: cannot write the statistics to '{}': ", path.display());
    let is_told = ended.stderr.starts_with(line.as_bytes());
    ensure(ended.status.success() && is_told, || format!("{ended:?}"))
}

/// If a program may open no more files, the message says so.
fn files_are_too_many() -> Outcome {
    let path = scratch("files-are-too-many").join("stats.json");
    let mut command = preloaded(program("opens_no_more.c")?);
    command.env("HECTARE_CONF", format!("stats_json:{}", path.display()));
    let ended = run(&mut command)?.well()?;
    let place = path.display();
    let line =
        format!("hectare: cannot write the statistics to '{place}': too many files are open\n");
    ensure(ended.stderr == line, || ended.describe("not told"))
}

/// An idle program shrinks with the background thread, and stays as it is without it.
fn background(arguments: &[&str]) -> Outcome {
    let shrunk_kib = |configuration: &str| {
        let mut command = preloaded(program("idle.c")?);
        let ended = run(command.env("HECTARE_CONF", configuration).args(arguments))?.well()?;
        let shrunk: i64 = ended.stdout.trim().parse().map_err(|_| ended.describe("no number"))?;
        Ok::<_, String>(shrunk)
    };
    let (with, without) = (shrunk_kib("background:true")?, shrunk_kib("")?);
    ensure(with >= 3500 && without < 1000, || {
        format!("shrunk by {with} KiB with the thread, by {without} without")
    })
}

/// A process ends when all of its threads have ended but the background thread.
fn last_thread(case: &str, printed: &str) -> Outcome {
    let mut command = preloaded(program("last_thread.c")?);
    command.arg(case).env("HECTARE_CONF", "background:true");
    let ended = run_for(&mut command, Duration::from_secs(15))?.well()?;
    ensure(ended.stdout == printed, || ended.describe("not as it should be"))
}

fn configured(text: &str, arguments: &[&str]) -> Result<Ended, String> {
    let mut command = preloaded(program("plain.c")?);
    run(command.env("HECTARE_CONF", text).args(arguments))?.well()
}

fn read_json(path: &std::path::Path) -> Result<Value, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{error} in\n{text}"))
}

fn stats_json() -> Outcome {
    let directory = scratch("stats_json");
    let path = directory.join("stats.json");
    let ended = configured(&format!("stats_json:{}", path.display()), &[])?;
    ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))?;
    let stats = read_json(&path)?;
    let number = |key: &str| stats[key].as_u64().ok_or(format!("no {key} in {stats}"));
    ensure(number("schema")? == 1, || format!("another schema: {stats}"))?;
    // The program ends with one object of 54321 bytes.
    ensure((54_321..400_000).contains(&number("large_bytes")?), || format!("{stats}"))?;
    let sum = number("small_bytes")? + number("large_bytes")? + number("huge_bytes")?;
    ensure(number("used_bytes")? == sum, || format!("the parts do not add up: {stats}"))?;
    let classes = stats["classes"].as_array().ok_or("no classes")?;
    ensure(!classes.is_empty(), || format!("{stats}"))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

/// Many may write to a pipe, a terminal or `/dev/null` at once.
fn to_what_others_write_to() -> Outcome {
    let null = fs::File::options().write(true).open("/dev/null");
    let null = null.map_err(|error| error.to_string())?;
    null.lock().map_err(|error| error.to_string())?;
    let ended = configured("stats_json:/dev/null", &[])?;
    ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))
}

/// Writing at the end of a process is no cancellation point; nor is it for glibc's statistics.
fn written_by_a_cancelled_thread() -> Outcome {
    let directory = scratch("stats_cancelled");
    let path = directory.join("stats.json");
    let prefix = directory.join("heap");
    let configuration = format!(
        "stats:true,stats_json:{},prof:true,prof_prefix:{}",
        path.display(),
        prefix.display()
    );
    let mut command = preloaded(program("plain.c")?);
    let ended = run(command.env("HECTARE_CONF", configuration).arg("cancelled"))?;
    ensure(ended.status.code() == Some(3), || ended.describe("not as the program ends it"))?;
    ensure(ended.stderr.contains("bytes in large objects"), || ended.describe("no statistics"))?;
    read_json(&path)?;
    let files = fs::read_dir(&directory).map_err(|error| error.to_string())?.count();
    ensure(files == 2, || format!("{files} files"))?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

fn json_of_forks() -> Outcome {
    let directory = scratch("stats_json_forks");
    let text = format!("stats_json:{}/stats-%p.json", directory.display());
    configured(&text, &["fork"])?;
    let files: Vec<_> = fs::read_dir(&directory).map_err(|e| e.to_string())?.collect();
    ensure(files.len() == 2, || format!("{} files of two processes", files.len()))?;
    for file in files {
        read_json(&file.map_err(|error| error.to_string())?.path())?;
    }
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

/// The names of files stay known after the program has written over its environment.
fn names_survive_a_title() -> Outcome {
    let directory = scratch("title");
    let at = directory.display();
    let text = format!("prof:true,stats_json:{at}/stats.json,prof_prefix:{at}/heap");
    let ended = configured(&text, &["title"])?;
    ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))?;
    read_json(&directory.join("stats.json"))?;
    let files = fs::read_dir(&directory).map_err(|error| error.to_string())?;
    ensure(files.count() == 2, || "no profile, or something else".to_owned())?;
    fs::remove_dir_all(directory).map_err(|error| error.to_string())
}

/// The library is linked, not preloaded: the dynamic linker itself drops `LD_PRELOAD` from a secure
/// program.
fn ignored_when_secure() -> Outcome {
    let library = library();
    let directory = library.parent().ok_or("the library lies in no directory")?;
    let (search, path) = (format!("-L{}", directory.display()), format!("{}", directory.display()));
    let rpath = format!("-Wl,-rpath,{path}");
    let linked =
        compile("plain.c", &[&search, "-Wl,--no-as-needed", "-lhectare", &rpath], "-linked")?;
    let told = run(plain(&linked).env("HECTARE_CONF", "stats:true"))?.well()?;
    ensure(told.stderr.contains("hectare: "), || told.describe("it is not linked"))?;
    chown(&linked, Some(NOBODY), None).map_err(|error| error.to_string())?;
    fs::set_permissions(&linked, Permissions::from_mode(0o4755)).map_err(|e| e.to_string())?;
    let ended = run(plain(&linked).env("HECTARE_CONF", "stats:true,nonsense:1"))?.well()?;
    ensure(ended.stdout == "secure 1\n", || ended.describe("not a secure program"))?;
    ensure(ended.stderr.is_empty(), || ended.describe("the environment was listened to"))
}

//! `front:thread`, `front:cpu` and `front:auto`: each keeps the contract, and says which front it
//! is.

use std::process::Command;

use crate::harness::{Ended, Outcome, Suite, ensure, preloaded, program, run, scratch};
use crate::{contract, lifecycle, misuse};

pub(crate) fn add(suite: &mut Suite) {
    for front in ["auto", "thread", "cpu"] {
        suite.test_with(format!("fronts::told[{front}]"), &["cc"], move || told(front));
    }
    suite.test_with("fronts::thread_without_sequences", &["cc"], without_sequences);
    suite.test_with("fronts::not_with_special_fronts", &["cc"], not_with_special_fronts);
    if !has_sequences() {
        suite.skip("fronts::by_cpu", "no restartable sequences here");
        return;
    }
    for (source, cases) in [("contract.c", contract::CASES), ("lifecycle.c", lifecycle::CASES)] {
        for case in cases {
            suite.test_with(format!("fronts::by_cpu::{case}"), &["cc"], move || {
                run(by("cpu", source)?.arg(case))?.well().map(drop)
            });
        }
    }
    for &(case, call, cause) in misuse::CASES {
        suite.test_with(format!("fronts::by_cpu::misuse::{case}"), &["cc"], move || {
            misuse::check(&run(by("cpu", "misuse.c")?.arg(case))?, call, cause)
        });
    }
    for front in ["auto", "cpu"] {
        suite.test_with(format!("fronts::trouble[{front}]"), &["cc"], move || {
            run(by(front, "fronts.c")?.arg("trouble"))?.well().map(drop)
        });
    }
    suite.test_with("fronts::no_membarrier_any_more", &["cc"], || {
        run(by("cpu", "scarcity.c")?.arg("no_membarrier"))?.well().map(drop)
    });
    suite.test_with("fronts::caches_are_few", &["cc"], caches_are_few);
    suite.test_with("fronts::idle_threads_keep_little", &["cc"], idle_threads);
}

fn by(front: &str, source: &'static str) -> Result<Command, String> {
    let mut command = preloaded(program(source)?);
    command.env("HECTARE_CONF", format!("front:{front}"));
    Ok(command)
}

/// The mode that a program says it is in.
fn mode(command: &mut Command, configuration: &str) -> Result<String, String> {
    let ended = run(command.env("HECTARE_CONF", format!("{configuration},stats:true")))?.well()?;
    let line = ended.stderr.lines().find_map(|line| line.strip_prefix("hectare: mode "));
    line.map(str::to_owned).ok_or_else(|| ended.describe("no mode"))
}

fn has_sequences() -> bool {
    program("plain.c").and_then(|plain| mode(&mut preloaded(plain), "front:cpu")).as_deref()
        == Ok("front:cpu")
}

fn told(front: &str) -> Outcome {
    let expected = if has_sequences() { front } else { "thread" };
    let path = scratch(&format!("front-{front}")).join("stats.json");
    let configuration = format!("front:{front},stats_json:{}", path.display());
    let text = mode(&mut preloaded(program("plain.c")?), &configuration)?;
    ensure(text == format!("front:{expected}"), || text)?;
    let json = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
    ensure(json.contains(&format!("\"front\": \"{expected}\"")), || json.clone())?;
    let Ended { stdout, .. } = run(by(front, "contract.c")?.arg("malloc_info_prints"))?.well()?;
    ensure(stdout.contains(&format!(" front=\"{expected}\">")), || stdout.clone())
}

/// glibc's own switch turns restartable sequences off, as on a kernel or under a tool that lacks
/// them.
fn without_sequences() -> Outcome {
    let mut command = preloaded(program("plain.c")?);
    command.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    let mode = mode(&mut command, "front:cpu")?;
    ensure(mode == "front:thread", || mode)
}

fn not_with_special_fronts() -> Outcome {
    for special in ["guard:3", "prof:true", "secure:true", "stats_signal:10"] {
        let mut command = preloaded(program("plain.c")?);
        let path = scratch("front-profile").join("heap");
        let configuration = format!("front:cpu,prof_prefix:{},{special}", path.display());
        let ended = run(command.env("HECTARE_CONF", configuration))?.well()?;
        let line = "front is ignored: prof, guard, secure and stats_signal have their own";
        ensure(ended.stderr.contains(line), || ended.describe("not told"))?;
    }
    Ok(())
}

/// By default there are sixteen caches for each CPU; the threads beyond them use lists.
fn caches_are_few() -> Outcome {
    let ended = run(by("auto", "fronts.c")?.arg("crowd"))?.well()?;
    let number = |text: &str, what: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(what))?;
        line.trim().parse::<u32>().ok()
    };
    let cpus = number(&ended.stdout, "CPUs").ok_or_else(|| ended.describe("no CPUs"))?;
    let caches = number(&ended.stderr, "hectare: threads with caches of their own");
    let lists = number(&ended.stderr, "hectare: CPUs with lists for other threads");
    let as_promised = caches == Some(16 * cpus) && lists.is_some_and(|lists| lists > 0);
    ensure(as_promised, || ended.describe("other seats"))
}

/// If a great number of threads share the lists of their CPUs, what they keep is bounded.
fn idle_threads() -> Outcome {
    let kept_kib = |front| {
        let ended = run(by(front, "fronts.c")?.arg("idle"))?.well()?;
        ended.stdout.trim().parse::<i64>().map_err(|_| ended.describe("no number"))
    };
    let (thread, cpu) = (kept_kib("thread")?, kept_kib("cpu")?);
    println!("200 idle threads keep {thread} KiB with caches of their own, {cpu} KiB without");
    ensure(cpu * 2 < thread, || format!("{cpu} KiB by CPU, {thread} KiB by thread"))
}

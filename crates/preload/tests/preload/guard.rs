//! Guarded objects: misuse ends the process with one line that names the place, the object, and who
//! allocated and freed it. A sound program goes unharmed.

use std::path::Path;
use std::process::Command;

use crate::harness::{Outcome, Suite, compile, ensure, find_tool, preloaded, program, run};
use crate::misuse;

/// A case of `guard.c`; what the line must say, with `OBJECT` for the address that the program
/// printed; and whether the line must say who freed the object.
const CASES: &[(&str, &str, &str, bool)] = &[
    ("overflow_read", "overflow", " lies 0 bytes behind the object OBJECT of 64 bytes", false),
    // Alignment to 16 bytes leaves eight bytes behind these 1000.
    ("overflow_write", "overflow", " lies 8 bytes behind the object OBJECT of 1000 bytes", false),
    ("underflow", "underflow", " lies 1 byte before the object OBJECT of 4096 bytes", false),
    ("overflow_by_one", "overflow", " lies 0 bytes behind the object OBJECT of 100 bytes", false),
    ("overflow_while_cancelled", "overflow", " lies 0 bytes behind the object OBJECT of 1", false),
    ("underflow_by_one", "underflow", " lies 1 byte before the object OBJECT of 100 ", false),
    ("use_after_free", "use after free", " lies 12 bytes into the object OBJECT of 100 ", true),
    ("use_after_free_by_thread", "use after free", " lies 0 bytes into the object OBJECT ", true),
    (
        "use_after_free_on_small_stack",
        "use after free",
        " lies 12 bytes into the object OBJECT ",
        true,
    ),
    ("double_free", "double free", " lies 0 bytes into the object OBJECT of 100 bytes", true),
    ("interior", "interior pointer", " lies 16 bytes into the object OBJECT of 100 ", false),
    (
        "behind_the_last",
        "interior pointer",
        " lies 0 bytes behind the object OBJECT of 4096",
        false,
    ),
    ("realloc_freed", "double free", " lies 0 bytes into the object OBJECT of 100 bytes", true),
    ("usable_size_freed", "double free", " lies 0 bytes into the object OBJECT of 100 ", true),
];

const SIGABRT: i32 = 6;
const SIGSEGV: i32 = 11;

pub(crate) fn add(suite: &mut Suite) {
    for &(case, fault, place, freed) in CASES {
        suite.test_with(format!("guard::{case}"), &["cc"], move || {
            caught(case, fault, place, freed)
        });
    }
    for (case, call) in
        [("never_allocated", "free"), ("size_of_never_allocated", "malloc_usable_size")]
    {
        suite.test_with(format!("guard::{case}"), &["cc"], move || {
            let cause = "nothing is allocated there: a double free, or a wild pointer";
            misuse::check(&run(guarded("1")?.arg(case))?, call, cause)
        });
    }
    for (variant, flags) in [("", &[][..]), ("-fixed", &["-no-pie"])] {
        let name = format!("guard::callers_are_named[{}]", flags.concat());
        suite.test_with(name, &["cc", "addr2line"], move || {
            callers_are_named(&compile("guard.c", flags, variant)?)
        });
    }
    suite.test_with("guard::told_in_a_sandbox", &["cc"], || {
        let mut command = preloaded(program("scarcity.c")?);
        let ended = run(command.arg("misuse_in_sandbox").env("HECTARE_CONF", "guard:1"))?;
        let told = ended.stderr.starts_with("hectare: use after free: 0x")
            && ended.stderr.contains(", allocated by program+0x")
            && ended.stderr.matches('\n').count() == 1;
        ensure(told, || ended.describe("not told in one line"))
    });
    for case in ["other_fault", "sent_fault", "touches_sealed", "frees_sealed"] {
        suite.test_with(format!("guard::{case}_is_left_alone"), &["cc"], move || {
            let ended = run(guarded("1")?.arg(case))?;
            let silent = ended.signalled(SIGSEGV) && ended.stderr.is_empty();
            ensure(silent, || ended.describe("not as without the library"))
        });
    }
    // The line is written unless the interrupted thread held the lock; then the fault ends the
    // process.
    suite.test_with("guard::use_after_free_by_handler", &["cc"], || {
        let ended = run(guarded("1")?.arg("use_after_free_by_handler"))?;
        let is_told = ended.signalled(SIGABRT) && ended.stderr.contains("hectare: use after free");
        let is_left = ended.signalled(SIGSEGV) && ended.stderr.is_empty();
        ensure(is_told || is_left, || ended.describe("neither told nor left alone"))
    });
    suite.test_with("guard::own_handler_has_its_way", &["cc"], || {
        let ended = run(guarded("1")?.arg("own_handler"))?;
        ensure(ended.status.code() == Some(7), || ended.describe("not ended by its own handler"))
    });
    suite.test_with("guard::aligned_grows", &["cc"], || {
        let mut command = guarded("1,prof:true,prof_sample:1,prof_prefix:/dev/null/none")?;
        run(command.arg("aligned_grows"))?.well().map(drop)
    });
    suite.test_with("guard::zeros_where_locked", &["cc"], || {
        run(guarded("1")?.arg("zeros_where_locked"))?.well().map(drop)
    });
    suite.test_with("guard::counted", &["cc"], || {
        run(guarded("1")?.arg("counted"))?.well().map(drop)
    });
    for one_in in ["1", "20", "1000"] {
        suite.test_with(format!("guard::sound_program[{one_in}]"), &["cc"], move || {
            let ended = run(guarded(one_in)?.arg("sound"))?.well()?;
            ensure(ended.stderr.is_empty(), || ended.describe("not quiet"))
        });
    }
}

fn guarded(one_in: &str) -> Result<Command, String> {
    let mut command = preloaded(program("guard.c")?);
    command.env("HECTARE_CONF", format!("guard:{one_in}"));
    Ok(command)
}

fn caught(case: &str, fault: &str, place: &str, freed: bool) -> Outcome {
    let ended = run(guarded("1")?.arg(case))?;
    ensure(ended.signalled(SIGABRT), || ended.describe("not aborted"))?;
    let place = place.replace("OBJECT", ended.stdout.trim());
    let told = ended.stderr.starts_with(&format!("hectare: {fault}: 0x"))
        && ended.stderr.contains(&place)
        && ended.stderr.contains(", allocated by guard-c-")
        && ended.stderr.contains(", freed by guard-c-") == freed
        && ended.stderr.matches('\n').count() == 1
        && ended.stderr.ends_with('\n');
    ensure(told, || ended.describe(&format!("not one line `{fault} … {place}`")))
}

/// The addresses in the line are those of the functions that allocated and freed.
fn callers_are_named(program: &Path) -> Outcome {
    ensure(find_tool("addr2line").is_some(), || "no addr2line".into())?;
    let ended = run(preloaded(program).env("HECTARE_CONF", "guard:1").arg("use_after_free"))?;
    for (word, function) in [("allocated", "allocate"), ("freed", "release")] {
        let start = format!(", {word} by guard-c-");
        let rest = ended.stderr.split(&start).nth(1).ok_or(ended.describe("no callers"))?;
        let address =
            rest.split(['+', ' ', ',', '\n']).nth(1).ok_or(ended.describe("no address"))?;
        let mut command = Command::new("addr2line");
        command.arg("-f").arg("-e").arg(program).arg(address);
        let told = run(&mut command)?.well()?;
        let name = told.stdout.lines().next();
        ensure(name == Some(function), || told.describe(&format!("{word} by another")))?;
    }
    Ok(())
}

//! Compiles C programs against the headers and the libraries, and runs them.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where cargo puts the libraries of this package: beside this test.
fn library(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this test");
    let deps = exe.parent().expect("the folder of this test");
    [deps, deps.parent().expect("the profile's folder")]
        .iter()
        .map(|folder| folder.join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is not in {}", deps.display()))
}

/// Compiles `tests/NAME.c` with a library to a program of the test `test`.
fn compile(test: &str, name: &str, library: &Path) -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    compile_file(test, &tests.join(format!("{name}.c")), library)
}

/// Compiles a C program; the compiler is `$CC` or `cc`.
fn compile_file(test: &str, source: &Path, library: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kind = library.extension().and_then(|extension| extension.to_str()).unwrap_or("none");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{kind}"));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let output = Command::new(&compiler)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"])
        .arg(root.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(source)
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .unwrap_or_else(|error| panic!("{compiler} (needed to test the C interface): {error}"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn run(program: &Path, library: &Path, argument: Option<&str>) -> Output {
    Command::new(program)
        .args(argument)
        .env("LD_LIBRARY_PATH", library.parent().expect("the library's folder"))
        .output()
        .expect("the program just compiled")
}

#[test]
fn each_header_stands_alone_in_strict_c_and_cxx() {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let headers: Vec<PathBuf> = std::fs::read_dir(include)
        .expect("the folder of headers")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(headers.len(), 4, "{headers:?}");
    for header in headers {
        assert!(accepts("CC", "cc", ["-std=c99", "-xc"], &header), "there is no C compiler");
        if !accepts("CXX", "c++", ["-std=c++11", "-xc++"], &header) {
            println!("{}: not tried, there is no C++ compiler", header.display());
        }
    }
}

/// Whether the compiler, `$VARIABLE` or `name`, exists. The test fails if it has anything to say
/// about the header.
fn accepts(variable: &str, name: &str, language: [&str; 2], header: &Path) -> bool {
    let compiler = std::env::var(variable).unwrap_or_else(|_| name.to_owned());
    let output = Command::new(&compiler)
        .args(language)
        .args(["-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"])
        .arg(header)
        .output();
    let output = match output {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
        output => output.unwrap_or_else(|error| panic!("{compiler}: {error}")),
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {language:?}: {stderr}");
    true
}

#[test]
fn a_c_program_uses_every_name_of_tlsf_h() {
    for name in ["libhectare_capi.a", "libhectare_capi.so"] {
        let library = library(name);
        let program = compile("every-name", "tlsf", &library);
        let output = run(&program, &library, None);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {stderr}");
        let walk = String::from_utf8_lossy(&output.stdout);
        assert_eq!(walk.lines().filter(|line| line.contains(" used size: ")).count(), 2, "{walk}");
        let overrun = run(&program, &library, Some("overrun"));
        let stderr = String::from_utf8_lossy(&overrun.stderr);
        assert!(overrun.status.success(), "{name}: {stderr}");
    }
}

#[test]
fn a_walk_whose_lines_nobody_takes_goes_on() {
    let library = library("libhectare_capi.a");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let program = compile("full-output", "tlsf", &library);
    let status = Command::new(program).stdout(full).status().expect("the program just compiled");
    assert!(status.success(), "{status}");
}

#[test]
fn the_c_program_of_the_tlsf_readme_runs() {
    let readme = include_str!("../../tlsf/README.md");
    let (_, block) = readme.split_once("```c\n").expect("a block of C");
    let (program, _) = block.split_once("```").expect("its end");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme.c");
    std::fs::write(&source, program).expect("a file among the target's");
    let library = library("libhectare_capi.a");
    let output = run(&compile_file("readme", &source, &library), &library, None);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_use_of_a_free_block_aborts_with_one_clear_line() {
    let library = library("libhectare_capi.a");
    let program = compile("free-block", "tlsf", &library);
    for (argument, call) in [("double-free", "tlsf_free"), ("double-realloc", "tlsf_realloc")] {
        let output = run(&program, &library, Some(argument));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{argument}: {}", output.status);
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        assert!(stderr.contains(&format!(" {call}(0x")), "{stderr}");
        assert!(stderr.contains("free already"), "{stderr}");
    }
}

#[test]
fn a_c_program_uses_every_name_of_hectare_store_h() {
    for name in ["libhectare_capi.a", "libhectare_capi.so"] {
        let library = library(name);
        let output = run(&compile("store", "store", &library), &library, None);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn c_programs_use_every_name_of_hectare_buddy_h_and_hectare_pool_h() {
    for name in ["libhectare_capi.a", "libhectare_capi.so"] {
        let library = library(name);
        for program in ["buddy", "pool"] {
            let output = run(&compile(program, program, &library), &library, None);
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

#[test]
fn a_page_that_there_is_no_memory_for_is_refused() {
    let library = library("libhectare_capi.a");
    let output = run(&compile("no-memory", "store", &library), &library, Some("no-memory"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
}

#[test]
fn the_headers_and_the_c_tests_name_all_that_the_library_has() {
    let tlsf = include_str!("../include/tlsf.h");
    let store = include_str!("../include/hectare_store.h");
    assert_named(include_str!("../src/tlsf.rs"), 21, tlsf, include_str!("tlsf.c"));
    assert_named(include_str!("../src/store.rs"), 7, store, include_str!("store.c"));
    let (buddy, pool) =
        (include_str!("../include/hectare_buddy.h"), include_str!("../include/hectare_pool.h"));
    assert_named(include_str!("../src/buddy.rs"), 9, buddy, include_str!("buddy.c"));
    assert_named(include_str!("../src/pool.rs"), 9, pool, include_str!("pool.c"));
}

/// Checks that all functions of `source`, `count` of them, are in the header and in the C test.
fn assert_named(source: &str, count: usize, header: &str, program: &str) {
    let names: Vec<&str> = source
        .split("pub unsafe extern \"C\" fn ")
        .skip(1)
        .chain(source.split("pub extern \"C\" fn ").skip(1))
        .filter_map(|rest| rest.split('(').next())
        .collect();
    assert_eq!(names.len(), count);
    for name in names {
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
        assert!(program.contains(name), "{name} is not in the C test");
    }
}

//! How the library is linked, beyond what Cargo knows.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const NEEDED: [&str; 4] = [
    // Programs linked with the library ask for it by this name, wherever it lay then; valgrind and packagers know it by it.
    "-Wl,-soname,libhectare.so",
    // Our constructor runs ahead of every other library's: so our fork handlers are the first to
    // be registered, and `prepare` runs after all that may still allocate.
    "-Wl,-z,initfirst",
    // Never unloaded: objects in use, fork handlers and the thread key's destructor point into it.
    "-Wl,-z,nodelete",
    // An undefined symbol is an error now, not when a program starts.
    "-Wl,-z,defs",
];

/// The names that are left to whoever comes first, a program or another library, also where we use them ourselves. All others
/// stay ours: a program's `free` may call our `__libc_free`, which calls our `free`.
const BOUND_BY_THE_PROGRAM: &str = "{ realloc; __register_atfork; };";

/// What lays apart the code that few programs use. The linker gets a copy in Cargo's output directory, whose path
/// Cargo keeps right when the sources have moved and all is built again.
const COLD: &str = include_str!("cold.ld");

/// Arguments by which less of the library is resident: `cold` holds [`COLD`]. lld takes them, and so does GNU ld
/// (which ignores the second).
fn frugal(cold: &Path) -> [String; 2] {
    // What is written while the library is loaded begins with a page: a page less of it.
    [format!("-Wl,-T,{}", cold.display()), "-Wl,-z,separate-loadable-segments".into()]
}

/// A library like ours, as far as linkers see.
const PROBE: &[u8] = b"#![no_std]
#[panic_handler] fn halt(_: &core::panic::PanicInfo<'_>) -> ! { loop {} }
#[unsafe(no_mangle)] static COUNT: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);
";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(cold_code_apart)");
    for argument in NEEDED {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets it"));
    let bound = out.join("bound.list");
    fs::write(&bound, BOUND_BY_THE_PROGRAM).expect("Cargo's directory can be written to");
    println!("cargo::rustc-cdylib-link-arg=-Wl,--dynamic-list={}", bound.display());
    let cold = out.join("cold.ld");
    let frugal = frugal(&cold);
    if fs::write(&cold, COLD).is_ok() && linker_takes(&frugal) {
        for argument in frugal {
            println!("cargo::rustc-cdylib-link-arg={argument}");
        }
        println!("cargo::rustc-cfg=cold_code_apart");
    } else {
        println!(
            "cargo::warning=this linker cannot lay apart the code that few programs use, as lld and \
             GNU ld do: some 100 KiB more will be resident in each process"
        );
    }
}

/// Whether the linker that will be called, with the user's flags, understands `arguments`.
fn linker_takes(arguments: &[String]) -> bool {
    let variable = |name| env::var(name).unwrap_or_default();
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-name=probe", "--crate-type=cdylib", "--edition=2024", "-Cpanic=abort"]);
    rustc.args(["--target", &variable("TARGET"), "-", "-o"]);
    rustc.arg(Path::new(&variable("OUT_DIR")).join("probe.so"));
    rustc.args(arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg([OsString::from("-Clinker="), linker].into_iter().collect::<OsString>());
    }
    rustc.args(variable("CARGO_ENCODED_RUSTFLAGS").split('\x1f').filter(|flag| !flag.is_empty()));
    let running = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    running.is_ok_and(|mut running| {
        let told = running.stdin.take().is_some_and(|mut stdin| stdin.write_all(PROBE).is_ok());
        running.wait().is_ok_and(|status| status.success()) && told
    })
}

//! Builds the allocators that hectare is compared with, as libraries for `LD_PRELOAD`.
//!
//! The sources come from crates.io packages that this manifest pins (see `Cargo.toml`); they are
//! compiled here rather than by the packages' own build scripts, because those build a static
//! archive for Rust programs, with other symbol names and sometimes other settings than the shared
//! library that the authors ship. Each peer gets:
//!
//! - `target/release/libpeer_NAME.so` — the library, exporting the malloc family;
//! - `target/release/libpeer_NAME.version` — one line: version, package, flags, compiler;
//! - `target/release/libpeer_NAME.env` — optional, `KEY=VALUE` lines that its processes need.
//!
//! A peer that does not build (no C++ compiler, say) is reported and does not stop the others.

mod check;
mod compile;
mod recipes;
mod sources;

use anyhow::{Result, bail};
use std::process::ExitCode;

fn run() -> Result<bool> {
    let mut wanted: Vec<String> = std::env::args().skip(1).collect();
    let check_only = wanted.iter().any(|a| a == "--check");
    wanted.retain(|a| a != "--check");
    if let Some(unknown) = wanted.iter().find(|w| !recipes::ALL.iter().any(|r| r.name == **w)) {
        let names: Vec<_> = recipes::ALL.iter().map(|r| r.name).collect();
        bail!("no peer is called {unknown:?}; known: {}", names.join(", "));
    }
    let chosen: Vec<_> = recipes::ALL
        .iter()
        .filter(|r| wanted.is_empty() || wanted.iter().any(|w| w == r.name))
        .collect();

    let mut all_good = true;
    if !check_only {
        let sources = sources::Sources::locate()?;
        for recipe in &chosen {
            eprintln!("building {}", recipe.name);
            if let Err(error) = recipes::build(recipe, &sources) {
                eprintln!("  FAILED {}: {error:#}", recipe.name);
                all_good = false;
            }
        }
    }
    for recipe in &chosen {
        let library = compile::output_dir().join(format!("libpeer_{}.so", recipe.name));
        if !library.exists() {
            println!("{:<16} missing", recipe.name);
            all_good = false;
            continue;
        }
        match check::check(&library, recipe.env) {
            Ok(notes) => {
                let version = std::fs::read_to_string(library.with_extension("version"))?;
                println!(
                    "{:<16} ok   {}\n{:<21} checked: {notes}",
                    recipe.name,
                    version.trim(),
                    ""
                );
            }
            Err(error) => {
                println!("{:<16} BAD  {error:#}", recipe.name);
                all_good = false;
            }
        }
    }
    Ok(all_good)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("peers: {error:#}");
            ExitCode::FAILURE
        }
    }
}

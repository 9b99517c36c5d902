//! How each peer is built. The flags are those of the authors' own build for a release shared
//! library (file named beside each recipe); nothing is tuned for the machine, as in a distribution.

use crate::compile::{cc, compiler_version, cxx, find, objects, output_dir, run, scratch_dir};
use crate::sources::{Package, Sources};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One peer.
pub(crate) struct Recipe {
    /// What the lab calls it; the library is `libpeer_NAME.so`.
    pub(crate) name: &'static str,
    /// The package whose sources are compiled.
    package: &'static str,
    /// Environment that its processes need, written to the `.env` file.
    pub(crate) env: &'static [(&'static str, &'static str)],
    build: fn(&Package, &Path, &Path) -> Result<Built>,
}

/// What a recipe tells of the library it made, for the `.version` file.
struct Built {
    version: String,
    settings: String,
    compiler: OsString,
}

/// All peers, in the order in which tables show them.
pub(crate) const ALL: &[Recipe] = &[
    Recipe { name: "jemalloc", package: "tikv-jemalloc-sys", env: &[], build: jemalloc },
    Recipe { name: "mimalloc2", package: "libmimalloc-sys", env: &[], build: mimalloc2 },
    Recipe { name: "mimalloc3", package: "libmimalloc-sys", env: &[], build: mimalloc3 },
    Recipe { name: "snmalloc", package: "snmalloc-sys", env: &[], build: snmalloc },
    Recipe { name: "rpmalloc", package: "rpmalloc-sys", env: &[], build: rpmalloc },
    Recipe { name: "tcmalloc", package: "libtcmalloc-sys", env: &[], build: tcmalloc },
    // The same library in the mode its authors run: per-CPU caches need the restartable-sequence
    // area of each thread for themselves, so glibc (2.35 and later) must be told not to take it.
    Recipe {
        name: "tcmalloc-percpu",
        package: "libtcmalloc-sys",
        env: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
        build: tcmalloc,
    },
];

/// Builds one peer and writes its library and what belongs beside it.
pub(crate) fn build(recipe: &Recipe, sources: &Sources) -> Result<()> {
    let package = sources.package(recipe.package)?;
    let library = output_dir().join(format!("libpeer_{}.so", recipe.name));
    let partial = library.with_extension("partial");
    std::fs::create_dir_all(output_dir())?;
    let built = (recipe.build)(package, &scratch_dir(recipe.package)?, &partial)?;
    // Renamed into place, so that a process that runs on the old library keeps its file.
    std::fs::rename(&partial, &library)?;
    std::fs::write(
        library.with_extension("version"),
        format!(
            "{} ({} {}; {}; {})\n",
            built.version,
            recipe.package,
            package.version,
            built.settings,
            compiler_version(&built.compiler)?
        ),
    )?;
    let env = library.with_extension("env");
    if recipe.env.is_empty() {
        // Absent is as good as removed.
        let _ = std::fs::remove_file(env);
    } else {
        let lines = recipe.env.iter().map(|(key, value)| format!("{key}={value}\n"));
        std::fs::write(env, lines.collect::<String>())?;
    }
    Ok(())
}

fn words(flags: &str) -> Vec<String> {
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Links `objects` into a shared library that resolves all its symbols.
fn link(compiler: &OsString, flags: &str, objects: &[PathBuf], library: &Path) -> Result<()> {
    run(Command::new(compiler)
        .arg("-shared")
        .args(objects)
        .args(words(flags))
        .arg("-o")
        .arg(library))
}

/// The number after `#define NAME` in a header.
fn defined_number(header: &Path, name: &str) -> Result<u32> {
    let text = std::fs::read_to_string(header)
        .with_context(|| format!("cannot read {}", header.display()))?;
    text.lines()
        .filter_map(|line| line.strip_prefix("#define")?.trim_start().strip_prefix(name))
        .find_map(|rest| rest.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("{} does not define {name}", header.display()))
}

/// `./configure && make` as INSTALL.md says, all defaults (statistics on, C++ operators on).
fn jemalloc(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    let Some((_, version)) = package.version.split_once('+') else {
        bail!("the package version {} does not carry jemalloc's", package.version);
    };
    let tree = scratch.join("tree");
    if !tree.join("Makefile").exists() {
        // Configured in a copy: the registry cache is not ours to write to.
        let _ = std::fs::remove_dir_all(&tree);
        run(Command::new("cp").arg("-r").arg(package.root.join("jemalloc")).arg(&tree))?;
        run(Command::new("cp").arg(package.root.join("configure/configure")).arg(&tree))?;
        run(Command::new("sh")
            .current_dir(&tree)
            .args(["./configure", "--disable-doc"])
            .arg(format!("--with-version={version}"))
            .env("CC", cc())
            .env("CXX", cxx()))?;
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    run(Command::new("make")
        .current_dir(&tree)
        .arg(format!("-j{jobs}"))
        .arg("lib/libjemalloc.so.2")
        .env_remove("MAKEFLAGS")
        .env_remove("CARGO_MAKEFLAGS"))?;
    std::fs::copy(tree.join("lib/libjemalloc.so.2"), library)?;
    let number = version.split('-').next().unwrap_or(version);
    Ok(Built {
        version: format!("jemalloc {number}"),
        settings: "./configure, defaults".into(),
        compiler: cc(),
    })
}

/// The shared library of mimalloc's CMakeLists.txt, release build, architecture options off.
fn mimalloc(major: u32, package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    const SETTINGS: &str = "-O3 -DNDEBUG -DMI_BUILD_RELEASE -DMI_MALLOC_OVERRIDE -DMI_SHARED_LIB \
                            -DMI_SHARED_LIB_EXPORT -ftls-model=initial-exec -fno-builtin-malloc \
                            -fvisibility=hidden";
    let base = package.root.join(format!("c_src/mimalloc/v{major}"));
    let mut flags = words(SETTINGS);
    flags.extend(words("-std=gnu11 -fPIC -w"));
    flags.push(format!("-I{}", base.join("include").display()));
    let scratch = scratch.join(format!("v{major}"));
    std::fs::create_dir_all(&scratch)?;
    let objects = objects(&cc(), &flags, &base, &["src/static.c".into()], &scratch)?;
    link(&cc(), "-pthread -lrt -latomic", &objects, library)?;
    let number = defined_number(&base.join("include/mimalloc.h"), "MI_MALLOC_VERSION")?;
    Ok(Built {
        version: format!("mimalloc {}.{}.{}", number / 10000, number / 100 % 100, number % 100),
        settings: SETTINGS.into(),
        compiler: cc(),
    })
}

fn mimalloc2(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    mimalloc(2, package, scratch, library)
}

fn mimalloc3(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    mimalloc(3, package, scratch, library)
}

/// The target `snmallocshim` of snmalloc's CMakeLists.txt, release build.
fn snmalloc(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    const SETTINGS: &str = "-std=c++20 -O3 -DNDEBUG -mcx16 -mprfchw -ftls-model=initial-exec \
                            -fomit-frame-pointer -ffunction-sections -fvisibility=hidden \
                            -DSNMALLOC_USE_CXX11_THREAD_ATEXIT_DIRECT \
                            -DSNMALLOC_USE_WAIT_ON_ADDRESS=1 -DSNMALLOC_NO_REALLOCARRAY \
                            -DSNMALLOC_NO_REALLOCARR -DSNMALLOC_CHECK_LOADS=false \
                            -DSNMALLOC_PAGEID=false -DSNMALLOC_PLATFORM_HAS_GETENTROPY \
                            -DSNMALLOC_PTHREAD_ATFORK_WORKS -DSNMALLOC_HAS_LINUX_RANDOM_H \
                            -DSNMALLOC_HAS_LINUX_FUTEX_H";
    let x86 = cfg!(target_arch = "x86_64");
    let only_x86 = ["-mcx16", "-mprfchw"];
    let base = package.root.join("upstream");
    let mut flags = words(SETTINGS);
    flags.retain(|flag| x86 || !only_x86.contains(&flag.as_str()));
    flags.push("-DSNMALLOC_EXPORT=__attribute__((visibility(\"default\")))".into());
    flags.extend(words("-fPIC -w"));
    flags.push(format!("-I{}", base.join("src").display()));
    let sources = ["src/snmalloc/override/malloc.cc", "src/snmalloc/override/new.cc"];
    let objects = objects(&cxx(), &flags, &base, &sources.map(PathBuf::from), scratch)?;
    link(&cxx(), "-static-libstdc++ -pthread -latomic", &objects, library)?;
    Ok(Built {
        version: format!("snmalloc {}", package.version),
        settings: SETTINGS.into(),
        compiler: cxx(),
    })
}

/// The target `rpmallocwrap` of rpmalloc's configure.py, release build with gcc.
fn rpmalloc(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    const SETTINGS: &str = "-O3 -funroll-loops -fomit-frame-pointer -DNDEBUG -DBUILD_RELEASE=1 \
                            -DRPMALLOC_COMPILE=1 -DENABLE_PRELOAD=1 -DENABLE_OVERRIDE=1";
    let base = package.root.join("rpmalloc/rpmalloc");
    let mut flags = words(SETTINGS);
    flags.extend(words("-std=c11 -D_GNU_SOURCE=1 -fPIC -w"));
    let objects = objects(&cc(), &flags, &base, &["rpmalloc.c".into()], scratch)?;
    link(&cc(), "-pthread -ldl", &objects, library)?;
    let changelog = std::fs::read_to_string(package.root.join("rpmalloc/CHANGELOG"))?;
    let number = changelog.lines().next().unwrap_or("of unknown version").trim();
    Ok(Built { version: format!("rpmalloc {number}"), settings: SETTINGS.into(), compiler: cc() })
}

/// What bazel's target `//tcmalloc:tcmalloc` compiles with `-c opt`: 8 KiB pages, per-CPU caches.
/// Unpatched sources; the parts of Abseil that they need, linked by reachability.
fn tcmalloc(package: &Package, scratch: &Path, library: &Path) -> Result<Built> {
    const SETTINGS: &str = "-std=c++17 -O2 -DNDEBUG -ffunction-sections -fdata-sections";
    const ABSEIL: &[&str] = &[
        "base",
        "container",
        "crc",
        "debugging",
        "hash",
        "numeric",
        "profiling",
        "status",
        "strings",
        "synchronization",
        "time",
        "types",
    ];
    let base = package.root.join("c_src");
    let mut flags = words(SETTINGS);
    flags.extend(words("-fPIC -w"));
    for include in ["abseil-cpp", "tcmalloc"] {
        flags.push(format!("-I{}", base.join(include).display()));
    }
    // `want_*` are the opt-in switches of other bazel targets, `profile_*` the profile writer that
    // needs protocol buffers; mocks and tests are not the product.
    let product = |path: &str| {
        let other = [
            "mock_",
            "want_",
            "profile_marshaler",
            "profile_builder",
            "matchers",
            "test",
            "benchmark",
            "fuzz",
            "print_hash_of",
        ];
        path.ends_with(".cc") && !other.iter().any(|word| path.contains(word))
    };
    // Includes the assembly of the architecture at hand.
    let assembly = |path: &str| path.ends_with("percpu_rseq_asm.S");
    let mut sources = find(&base, "tcmalloc/tcmalloc", &product)?;
    sources.extend(find(&base, "tcmalloc/tcmalloc", &assembly)?);
    for part in ABSEIL {
        sources.extend(find(&base, &format!("abseil-cpp/absl/{part}"), &product)?);
    }
    let objects = objects(&cxx(), &flags, &base, &sources, scratch)?;
    let settings = "-static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--gc-sections \
                    -pthread -lrt -ldl";
    link(&cxx(), settings, &objects, library)?;
    Ok(Built {
        version: format!("Google tcmalloc as packaged in libtcmalloc-sys {}", package.version),
        settings: SETTINGS.into(),
        compiler: cxx(),
    })
}

//! The command under test, and what it needs beside it.

use std::path::Path;
use std::process::Command;
use std::sync::Once;

pub(crate) const HECTARE: &str = env!("CARGO_BIN_EXE_hectare");

/// Builds the recorder beside the command. Cargo builds a library that nothing links only when told
/// so; one that is up to date takes a fraction of a second, a stale one is never tested.
pub(crate) fn build_recorder() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let folder = Path::new(HECTARE).parent().expect("the command lies in a folder");
        let profile = match folder.file_name().and_then(|name| name.to_str()) {
            // The folder of both `dev` and `test`; the recorder's own tests use the former.
            Some("debug") => "dev",
            Some(profile) => profile,
            None => panic!("no profile is named by {}", folder.display()),
        };
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hectare-recorder", "--profile", profile])
            .arg("--target-dir")
            .arg(folder.parent().expect("the profile's folder lies in the target's"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo is needed");
        assert!(status.success());
        assert!(folder.join("libhectare_recorder.so").exists());
    });
}

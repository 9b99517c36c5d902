//! Where cargo unpacked the pinned packages.

use anyhow::{Context, Result, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One unpacked package.
pub(crate) struct Package {
    /// Its root directory in cargo's registry cache (read-only by convention).
    pub(crate) root: PathBuf,
    /// Its version, for example `0.7.1+5.3.1-0-g81034ce`.
    pub(crate) version: String,
}

/// Every package that the lock file names, by name.
pub(crate) struct Sources(HashMap<String, Package>);

impl Sources {
    /// Asks `cargo metadata`, which downloads and verifies what is missing.
    pub(crate) fn locate() -> Result<Self> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["metadata", "--format-version=1", "--locked", "--manifest-path"])
            .arg(manifest)
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let mut packages = HashMap::new();
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let text = |key: &str| package[key].as_str().map(str::to_owned);
            let (Some(name), Some(version), Some(manifest)) =
                (text("name"), text("version"), text("manifest_path"))
            else {
                bail!("cargo metadata lists a package without name, version or path");
            };
            let root = Path::new(&manifest).parent().unwrap_or(Path::new("/")).to_owned();
            packages.insert(name, Package { root, version });
        }
        Ok(Sources(packages))
    }

    /// The package called `name`.
    pub(crate) fn package(&self, name: &str) -> Result<&Package> {
        self.0.get(name).with_context(|| format!("package {name} is not in Cargo.lock"))
    }
}

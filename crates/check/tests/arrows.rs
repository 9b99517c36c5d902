//! The crates depend only downwards: what `ARCHITECTURE.md` draws, and nothing else.

use std::process::Command;

use serde_json::Value;

/// Each crate and what it may stand on. Nothing may stand on the lab.
const ARROWS: &[(&str, &[&str])] = &[
    ("hectare-base", &[]),
    ("hectare-pages", &["hectare-base"]),
    ("hectare-buddy", &["hectare-base"]),
    ("hectare-tlsf", &["hectare-base", "hectare-pages"]),
    ("hectare-pool", &["hectare-base", "hectare-pages"]),
    ("hectare-store", &["hectare-pages", "hectare-pool"]),
    ("hectare", &["hectare-base", "hectare-pages", "hectare-buddy"]),
    ("hectare-preload", &["hectare-base", "hectare"]),
    ("hectare-trace", &["hectare-base"]),
    ("hectare-recorder", &["hectare-base", "hectare-trace"]),
    (
        "hectare-capi",
        &[
            "hectare-base",
            "hectare-pages",
            "hectare-buddy",
            "hectare-tlsf",
            "hectare-pool",
            "hectare-store",
            "hectare",
        ],
    ),
    ("hectare-check", &[]),
    (
        "hectare-lab",
        &[
            "hectare-base",
            "hectare-pages",
            "hectare-buddy",
            "hectare-tlsf",
            "hectare-pool",
            "hectare-store",
            "hectare",
            "hectare-trace",
        ],
    ),
];

fn metadata() -> Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

#[test]
fn crates_depend_only_downwards() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("a list of packages");
    let mut wrong = Vec::new();
    for package in packages {
        let name = text(package, "name");
        let Some((_, allowed)) = ARROWS.iter().find(|(crate_name, _)| *crate_name == name) else {
            wrong.push(format!("{name} is not in the list of arrows"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = text(dependency, "name");
            let ours = ARROWS.iter().any(|(crate_name, _)| *crate_name == to);
            // Tests may use the checking crate, and a crate's own features.
            let for_tests =
                text(dependency, "kind") == "dev" && (to == "hectare-check" || to == name);
            if ours && !for_tests && !allowed.contains(&to) {
                let kind = dependency["kind"].as_str().unwrap_or("normal");
                wrong.push(format!("{name} → {to} ({kind}) is not drawn"));
            }
        }
    }
    assert_eq!(packages.len(), ARROWS.len(), "every crate of the list exists");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

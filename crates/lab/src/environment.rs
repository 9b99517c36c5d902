//! The machine settings that affect measurements: set while something is measured, then restored.
//!
//! ```text
//!  probe ──▶ state file ──▶ set ──▶ measure ──▶ restore ──▶ state file removed
//!               │            └ keeper process: its pipe ends with us ─┐
//!               └───────────── the next command, when nobody holds it ┴▶ restore
//! ```
//!
//! 1. The state file holds the previous values of all settings. It is on disk before the first
//!    setting is changed, and is not written again.
//! 2. The command that made the state file holds a lock on it. A state file without a lock belongs
//!    to a command that was killed; whoever finds it restores the settings.
//! 3. The keeper has a session of its own and waits on a pipe whose other end only the command
//!    holds. It restores when the command ends, however it ends, even by SIGKILL.
//! 4. Restoring twice is harmless. A setting that somebody else changed meanwhile is left alone and
//!    reported.

mod balloon;
mod distance;
mod knobs;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::scratch;
pub(crate) use balloon::{reports_answered, takes_memory_back};
pub(crate) use distance::round_trip_ns;
pub(crate) use knobs::{Knob, knobs};

/// How long the lock of a killed command may outlive its pipe.
const LOCK_GOES_WITHIN: Duration = Duration::from_secs(5);

/// A setting that is changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Changed {
    /// What people call it.
    #[serde(default)]
    name: String,
    /// The file that holds it.
    path: PathBuf,
    /// Its previous value.
    before: String,
    /// The value that was set.
    wanted: String,
}

/// The content of the state file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    /// Whether the settings outlive the command that set them (`hectare doctor --set`).
    keep: bool,
    changed: Vec<Changed>,
}

/// The folder whose files describe the machine. Tests use another folder than `/`, so that they
/// need no privileges and disturb no machine.
pub(crate) fn system_root() -> PathBuf {
    std::env::var_os("HECTARE_SYSTEM_ROOT").map_or_else(|| "/".into(), PathBuf::from)
}

/// Where the state file is: `$XDG_STATE_HOME/hectare`, else `~/.local/state/hectare`.
fn state_path() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = match set("XDG_STATE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let home = set("HOME").context("neither XDG_STATE_HOME nor HOME is set")?;
            Path::new(&home).join(".local/state")
        }
    };
    Ok(folder.join("hectare/environment.json"))
}

/// The machine under control. Dropping it restores the settings.
#[derive(Debug)]
pub(crate) struct Control {
    /// What was done, for people.
    pub(crate) notes: Vec<String>,
    state: Option<(PathBuf, File)>,
    keeper: Option<(Child, ChildStdin)>,
}

impl Control {
    /// Sets every knob that may be set. With `keep` the settings stay until [`restore`].
    ///
    /// # Errors
    /// When the state file cannot be written. Nothing is set then.
    pub(crate) fn take(keep: bool) -> anyhow::Result<Self> {
        let path = state_path()?;
        let folder = path.parent().expect("the path has a folder");
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(&path).with_context(|| path.display().to_string())?;
        if !scratch::lock(&file) {
            let notes = vec!["control: another hectare command has set the machine already".into()];
            return Ok(Self { notes, state: None, keeper: None });
        }
        if file.metadata()?.len() > 0 {
            bail!(
                "{} tells of settings still in force; `hectare doctor --restore` takes them back",
                path.display()
            );
        }
        // The keeper starts before the first change, so that there is no moment without it.
        let keeper = if keep { None } else { Some(keeper()?) };
        let mut notes = Vec::new();
        let mut state = State { keep, changed: Vec::new() };
        for knob in knobs() {
            match knob.now() {
                None => notes.push(format!("not controlled: {}: not visible here", knob.name)),
                Some(before) if before == knob.wanted => {}
                Some(before) => state.changed.push(Changed {
                    name: knob.name,
                    path: knob.path,
                    before,
                    wanted: knob.wanted.to_owned(),
                }),
            }
        }
        // Written once, and completely, before the first change, so that a kill at any moment
        // leaves it complete.
        write_state(&file, &state)?;
        state.changed.retain(|Changed { name, path, before, wanted }| {
            let done = fs::write(path, wanted);
            notes.push(match &done {
                Ok(()) => format!("controlled: {name}: {before} → {wanted}"),
                Err(error) => format!("not controlled: {name}: stays {before}: {error}"),
            });
            done.is_ok()
        });
        if state.changed.is_empty() {
            fs::remove_file(&path)?;
        }
        // No process holds settings that are to stay.
        let held = !state.changed.is_empty() && !keep;
        Ok(Self { notes, state: held.then_some((path, file)), keeper })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if let Some((path, file)) = self.state.take() {
            match restore_from(&path, &file) {
                Ok(notes) => notes.iter().for_each(|note| eprintln!("{note}")),
                Err(error) => eprintln!("hectare: {error:#}"),
            }
        }
        if let Some((mut child, pipe)) = self.keeper.take() {
            drop(pipe);
            let _ = child.wait();
        }
    }
}

/// Restores the settings that a killed command left; with `all`, also settings that were to stay.
/// Returns what was done, for people; `None` if a command holds the settings and restores them at
/// its end.
///
/// # Errors
/// When a state file cannot be read.
pub(crate) fn restore(all: bool) -> anyhow::Result<Option<Vec<String>>> {
    let path = match state_path() {
        // If no state can be recorded, nothing was set.
        Err(_) if !all => return Ok(Some(Vec::new())),
        path => path?,
    };
    let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else {
        return Ok(Some(Vec::new()));
    };
    if !scratch::lock(&file) {
        return Ok(None);
    }
    if !all && read_state(&file)?.keep {
        return Ok(Some(Vec::new()));
    }
    let mut notes = vec![format!("restored, from {}:", path.display())];
    notes.extend(restore_from(&path, &file)?);
    Ok(Some(notes))
}

/// Waits for the end of standard input, then restores. The hidden verb `keeper` does this.
pub(crate) fn keep_watch() -> anyhow::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: ignoring a signal changes nothing but this process's own disposition.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let mut nothing = Vec::new();
    std::io::stdin().read_to_end(&mut nothing).context("waiting for the command's end")?;
    // The kernel may close a killed command's pipe before it releases the command's lock.
    let since = Instant::now();
    while restore(false)?.is_none() && since.elapsed() < LOCK_GOES_WITHIN {
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The process of invariant 3.
fn keeper() -> anyhow::Result<(Child, ChildStdin)> {
    let mut command = Command::new(std::env::current_exe().context("finding this executable")?);
    command.arg("keeper").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.process_group(0).spawn().context("starting the keeper")?;
    let pipe = child.stdin.take().context("the keeper has no pipe")?;
    Ok((child, pipe))
}

fn restore_from(path: &Path, file: &File) -> anyhow::Result<Vec<String>> {
    let mut notes = Vec::new();
    for changed in read_state(file)?.changed.iter().rev() {
        let name = changed.path.display();
        match fs::read_to_string(&changed.path).map(|now| knobs::chosen(&now)) {
            // The setting could not be changed, or has not been changed yet.
            Ok(now) if now == changed.before => continue,
            Ok(now) if now != changed.wanted => {
                notes.push(format!("{name} is {now} by now: left so, it was {}", changed.before));
                continue;
            }
            _ => {}
        }
        match fs::write(&changed.path, &changed.before) {
            Ok(()) => notes.push(format!("{name} is {} again", changed.before)),
            Err(error) => notes.push(format!("{name} cannot be restored: {error}")),
        }
    }
    fs::remove_file(path).with_context(|| format!("removing {}", path.display()))?;
    Ok(notes)
}

fn read_state(mut file: &File) -> anyhow::Result<State> {
    file.rewind()?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    if text.is_empty() {
        // The command was killed before it set anything.
        return Ok(State::default());
    }
    serde_json::from_str(&text).with_context(|| {
        let path = state_path().unwrap_or_default();
        format!(
            "{}, which tells how the machine was set before, is unreadable: set it by hand, and \
             remove the file",
            path.display()
        )
    })
}

fn write_state(mut file: &File, state: &State) -> anyhow::Result<()> {
    let text = serde_json::to_vec_pretty(state)?;
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&text)?;
    file.sync_data().context("writing the state of the machine's settings")
}

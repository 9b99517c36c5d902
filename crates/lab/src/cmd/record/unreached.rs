//! Programs that a recorded program runs, and that its recorder cannot be preloaded into or was
//! not.
//!
//! Such a program leaves no file, so it can be seen only while it runs. The processes are looked at
//! now and then; a program that ends soon may be missed, but has taken little time.
//!
//! A daemon that has just begun has left no file either, though it can be recorded.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::shortened;
use crate::runner::{self, Lacking};
use crate::subject::RECORDER;
use crate::subject::program::{self, Obstacle};

/// Looks at all processes take at most one part in this many of the time.
const SHARE_OF_TIME: u32 = 50;

/// The pause between two looks is never longer than this: on a busy machine a look is slow because
/// others work.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A program that the recorder did not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreached {
    /// The processes whose last program it was.
    pub(crate) pids: Vec<u32>,
    path: PathBuf,
    /// Why no library is loaded into it; `None` if it was started without being told to load one.
    obstacle: Option<Obstacle>,
}

impl Unreached {
    /// What to tell the reader.
    pub(crate) fn explain(&self) -> String {
        let Self { pids, path, obstacle } = self;
        let whom = match &pids[..] {
            [pid] => format!("process {pid} ran"),
            pids => format!("{} processes ran", pids.len()),
        };
        match obstacle {
            Some(obstacle) => {
                format!("{whom} what cannot be recorded: {}", obstacle.explain(path))
            }
            None => format!(
                "{whom} {} without the recorder: LD_PRELOAD was dropped on the way (`env -i`, \
                 `sudo`, a script that unsets it)",
                path.display()
            ),
        }
    }
}

/// The variable that tells recorders where to write. It identifies the processes of a recording.
pub(super) const TRACE: &str = "HECTARE_TRACE";

/// A process that goes on after the command has ended, as daemons do, and has recorded nothing so
/// far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    pid: u32,
    command: String,
}

impl Silent {
    /// What to tell the reader.
    pub(crate) fn explain(&self) -> String {
        format!(
            "process {}, `{}`, still runs, and nothing of it is recorded: it is when it runs in the \
             foreground, or is ended by the command",
            self.pid,
            shortened(&self.command)
        )
    }
}

/// The processes of the recording `raw` that still run, except those that `is_recorded`. Their
/// environment identifies them, since a daemon has lost its parent.
pub(super) fn silent(raw: &Path, is_recorded: impl Fn(u32) -> bool) -> Vec<Silent> {
    let ours = [TRACE.as_bytes(), b"=", raw.as_os_str().as_bytes()].concat();
    let read = |pid: u32, file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let pids = runner::all_processes().unwrap_or_default();
    let silent = |pid: u32| {
        let is_ours = read(pid, "environ").split(|&byte| byte == 0).any(|word| word == ours);
        let command = String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
        (is_ours && !is_recorded(pid)).then_some(Silent { pid, command })
    };
    pids.into_iter().filter_map(silent).collect()
}

/// Looks at the programs that a process and its descendants run.
pub(super) struct Lookout {
    root: u32,
    /// The last program seen in each process, and whether it ran without the recorder. Any earlier
    /// program was a launcher.
    last: BTreeMap<u32, (PathBuf, Lacking)>,
    /// When the descendants of the root are looked at again.
    due: Instant,
}

impl Lookout {
    /// A lookout for the process `root`, from now on.
    pub(super) fn for_process(root: u32) -> Self {
        Self { root, last: BTreeMap::new(), due: Instant::now() }
    }

    /// Looks at the process, and at its descendants if they are due.
    pub(super) fn look(&mut self) {
        self.note(self.root);
        let begun = Instant::now();
        if begun < self.due {
            return;
        }
        for pid in runner::descendants(self.root as i32) {
            self.note(pid as u32);
        }
        let pause = (begun.elapsed() * SHARE_OF_TIME).min(LONGEST_PAUSE);
        self.due = Instant::now() + pause;
    }

    fn note(&mut self, pid: u32) {
        if let Ok(path) = fs::read_link(format!("/proc/{pid}/exe")) {
            let (last, lacking) = self.last.entry(pid).or_default();
            *last = path;
            lacking.look(pid, Path::new(RECORDER));
        }
    }

    /// The programs seen that the recorder cannot reach.
    pub(super) fn unreached(self) -> Vec<Unreached> {
        let mut processes: BTreeMap<PathBuf, Vec<(u32, Lacking)>> = BTreeMap::new();
        for (pid, (path, lacking)) in self.last {
            processes.entry(path).or_default().push((pid, lacking));
        }
        let unreached = |(path, mut seen): (PathBuf, Vec<(u32, Lacking)>)| {
            // A file that is gone, or is no program any more, says nothing.
            let obstacle = program::obstacle(&path).ok()?;
            if obstacle.is_none() {
                seen.retain(|(_, lacking)| lacking.is_certain());
            }
            let pids: Vec<u32> = seen.into_iter().map(|(pid, _)| pid).collect();
            (!pids.is_empty()).then_some(Unreached { pids, path, obstacle })
        };
        processes.into_iter().filter_map(unreached).collect()
    }
}

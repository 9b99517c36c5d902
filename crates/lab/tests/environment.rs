//! The machine's settings are restored, however the command that set them ends.
//!
//! The settings are files in a folder that stands in the place of the machine's.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const GOVERNOR: &str = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";

/// A machine with a governor and nothing else.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("environment-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        let machine = Self(path);
        std::fs::create_dir_all(machine.governor_path().parent().unwrap()).unwrap();
        machine.set("powersave\n");
        machine
    }

    fn governor_path(&self) -> PathBuf {
        self.0.join(GOVERNOR)
    }

    fn set(&self, governor: &str) {
        std::fs::write(self.governor_path(), governor).unwrap();
    }

    fn governor(&self) -> String {
        std::fs::read_to_string(self.governor_path()).unwrap().trim().to_owned()
    }

    fn wait_for(&self, governor: &str) {
        let since = Instant::now();
        while self.governor() != governor {
            assert!(since.elapsed() < Duration::from_secs(20), "it stays {}", self.governor());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn hectare(&self, arguments: &[&str]) -> Command {
        // No signal ignored, as a shell has it in what it starts in the background.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_hectare")])
            .args(arguments)
            .env("HECTARE_SYSTEM_ROOT", &self.0)
            .env("XDG_STATE_HOME", self.0.join("state"))
            .stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        self.hectare(arguments).output().unwrap()
    }

    /// A measurement under control that lasts for minutes.
    fn measuring(&self) -> Child {
        let arguments = ["compare", "--control", "--allocators", "system", "--rounds", "900"];
        let mut command = self.hectare(&arguments);
        command.args(["--", "sleep", "0.2"]).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        self.wait_for("performance");
        child
    }

    fn state_is_gone(&self) -> bool {
        !self.0.join("state/hectare/environment.json").exists()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn a_command_runs_under_control_and_the_machine_is_as_before() {
    let machine = Machine::new("command");
    let governor = machine.governor_path();
    let output = machine.output(&["doctor", "--set", "--", "cat", governor.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "performance");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("controlled: governor of processor 0: powersave → performance"),
        "{told}"
    );
    assert!(told.contains("not controlled: turbo (boost): not visible"), "{told}");
    assert_eq!(machine.governor(), "powersave");
    assert!(machine.state_is_gone());
}

#[test]
fn reports_tell_what_was_controlled_and_what_not() {
    let machine = Machine::new("report");
    let arguments =
        ["compare", "--control", "--allocators", "system", "--rounds", "1", "--", "true"];
    let told = String::from_utf8_lossy(&machine.output(&arguments).stdout).into_owned();
    assert!(told.contains("· controlled: governor of processor 0"), "{told}");
    assert!(told.contains("· not controlled: turbo"), "{told}");
    assert_eq!(machine.governor(), "powersave");
}

#[test]
fn signals_restore() {
    for signal in ["-INT", "-TERM"] {
        let machine = Machine::new(&format!("signal{signal}"));
        let mut child = machine.measuring();
        kill(child.id(), signal);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        assert_eq!(machine.governor(), "powersave");
        assert!(machine.state_is_gone());
    }
}

#[test]
fn a_kill_restores_too() {
    let machine = Machine::new("kill");
    let mut child = machine.measuring();
    kill(child.id(), "-KILL");
    child.wait().unwrap();
    machine.wait_for("powersave");
}

#[test]
fn what_nobody_could_restore_the_next_command_does() {
    let machine = Machine::new("next");
    let mut child = machine.measuring();
    // Everything that the command started, the keeper among it.
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let since = Instant::now();
    let keeper = loop {
        let children = std::fs::read_to_string(&path).unwrap();
        let keeper =
            children.split_whitespace().map(|pid| pid.parse::<u32>().unwrap()).find(|pid| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                command.split(|&byte| byte == 0).any(|word| word == b"keeper")
            });
        match keeper {
            Some(keeper) => break keeper,
            None => assert!(since.elapsed() < Duration::from_secs(20), "there is no keeper"),
        }
    };
    kill(keeper, "-KILL");
    kill(child.id(), "-KILL");
    child.wait().unwrap();
    assert_eq!(machine.governor(), "performance");
    let told = String::from_utf8_lossy(&machine.output(&["doctor"]).stdout).into_owned();
    assert!(told.contains("is powersave again"), "{told}");
    assert_eq!(machine.governor(), "powersave");
    assert!(machine.state_is_gone());
}

#[test]
fn what_is_set_to_stay_stays_until_it_is_taken_back() {
    let machine = Machine::new("stay");
    assert!(machine.output(&["doctor", "--set"]).status.success());
    assert_eq!(machine.governor(), "performance");
    machine.output(&["doctor"]);
    assert_eq!(machine.governor(), "performance", "looking changes nothing");
    assert!(!machine.output(&["doctor", "--set"]).status.success(), "it is set already");
    assert!(machine.output(&["doctor", "--restore"]).status.success());
    assert_eq!(machine.governor(), "powersave");
    // What somebody else set meanwhile is theirs.
    assert!(machine.output(&["doctor", "--set"]).status.success());
    machine.set("schedutil");
    let told =
        String::from_utf8_lossy(&machine.output(&["doctor", "--restore"]).stdout).into_owned();
    assert!(told.contains("is schedutil by now"), "{told}");
    assert_eq!(machine.governor(), "schedutil");
}

#[test]
fn processes_inherit_processors_and_the_layout_of_addresses() {
    let machine = Machine::new("inherit");
    let out = machine.0.join("out");
    let script = format!("cat /proc/self/personality >> {0}; nproc >> {0}", out.display());
    let arguments =
        ["compare", "--allocators", "system", "--rounds", "1", "--pin", "0", "--no-aslr"];
    let mut command = machine.hectare(&arguments);
    assert!(command.args(["--", "sh", "-c", &script]).status().unwrap().success());
    let told = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = told.lines().collect();
    let personality = u32::from_str_radix(lines[0], 16).unwrap();
    assert_ne!(personality & 0x004_0000, 0, "ADDR_NO_RANDOMIZE");
    assert_eq!(lines[1], "1");
    assert!(!machine.output(&["compare", "--pin", "4000", "--", "true"]).status.success());
}

#[test]
fn memory_is_warmed_where_the_host_takes_it_back_or_it_is_asked_for() {
    let machine = Machine::new("warm");
    let write = |path: &str, text: &str| {
        let path = machine.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    // A quarter of it is less than is warmed at least.
    write("proc/meminfo", "MemAvailable: 81920 kB\n");
    let json = machine.0.join("report.json");
    let report = |when: &str| {
        let json = json.to_str().unwrap();
        let arguments = ["compare", "-a", "system", "-r", "1", "--warm-memory", when];
        let output = machine.output(&[&arguments[..], &["--json", json, "--", "true"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(json).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        (report["parameters"]["warmed_bytes"].as_u64().unwrap(), told)
    };
    const QUARTER: u64 = 20 << 20;
    assert_eq!(report("auto").0, 0, "no host takes it back");
    assert_eq!(report("always").0, QUARTER);
    let balloon = "sys/bus/virtio/devices/virtio0";
    write(&format!("{balloon}/device"), "0x0005\n");
    write(&format!("{balloon}/features"), "01100101000\n");
    write(&format!("{balloon}/driver/bind"), "");
    let (bytes, told) = report("auto");
    assert_eq!(bytes, QUARTER);
    assert!(told.contains("up to 20 MiB were warmed before each run"), "{told}");
    let (bytes, told) = report("never");
    assert_eq!(bytes, 0);
    assert!(told.contains("takes free memory back, and none was warmed"), "{told}");
    let told = String::from_utf8_lossy(&machine.output(&["doctor"]).stdout).into_owned();
    assert!(told.contains("the host takes it back"), "{told}");
}

//! Whether the host of a virtual machine takes back the machine's free memory, and when.
//!
//! Linux tells the host through the virtio balloon which memory is free ("free page reporting").
//! Some two seconds after memory became free, a pass over all free blocks begins. The host unmaps
//! them and has to find new memory when they are touched.

use std::fs;
use std::path::Path;

/// The type of a virtio device that is a balloon, as `device` spells it.
const BALLOON: &str = "0x0005";

/// The character of `features` that stands for `VIRTIO_BALLOON_F_REPORTING`: bit 5.
const REPORTING_FEATURE: usize = 5;

/// Whether free memory is taken back on the machine whose files are below `root`.
pub(crate) fn takes_memory_back(root: &Path) -> bool {
    let devices = fs::read_dir(root.join("sys/bus/virtio/devices")).into_iter().flatten().flatten();
    devices.into_iter().any(|device| reports_free_memory(&device.path()))
}

/// Whether a virtio device is a balloon for which both sides have agreed on free page reporting.
/// The driver must be present: the agreed features remain when it is gone.
fn reports_free_memory(device: &Path) -> bool {
    let read = |name: &str| fs::read_to_string(device.join(name)).unwrap_or_default();
    read("device").trim() == BALLOON
        && read("features").as_bytes().get(REPORTING_FEATURE) == Some(&b'1')
        && device.join("driver").exists()
}

/// How often the host has answered such a report since boot. The number rises during a pass. `None`
/// if the balloon's interrupts are not counted separately.
pub(crate) fn reports_answered(root: &Path) -> Option<u64> {
    let interrupts = fs::read_to_string(root.join("proc/interrupts")).ok()?;
    let line = interrupts.lines().find(|line| line.trim_end().ends_with("-reporting_vq"))?;
    let counts = line.split_ascii_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
    Some(counts.sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// A machine with one virtio device.
    fn machine(device: &str, features: &str, driver: bool) -> Scratch {
        let root = Scratch::new().unwrap();
        let folder = root.path().join("sys/bus/virtio/devices/virtio0");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("device"), format!("{device}\n")).unwrap();
        fs::write(folder.join("features"), format!("{features}\n")).unwrap();
        if driver {
            fs::create_dir(folder.join("driver")).unwrap();
        }
        root
    }

    #[test]
    fn a_balloon_in_use_that_reports_free_memory_is_found() {
        for (name, device, features, driver, taken_back) in [
            ("reporting", "0x0005", "01100101", true, true),
            ("no-driver", "0x0005", "01100101", false, false),
            ("no-reporting", "0x0005", "01100011", true, false),
            ("too-short", "0x0005", "01100", true, false),
            ("network", "0x0001", "01100101", true, false),
        ] {
            let machine = machine(device, features, driver);
            assert_eq!(takes_memory_back(machine.path()), taken_back, "{name}");
        }
        assert!(!takes_memory_back(Path::new("/no/such/folder")));
    }

    #[test]
    fn answers_are_counted_over_processors() {
        let machine = machine("0x0005", "01100101", true);
        assert_eq!(reports_answered(machine.path()), None);
        fs::create_dir(machine.path().join("proc")).unwrap();
        let interrupts = "           CPU0       CPU1\n\
             31:          0       2930 PCI-MSIX-0000:00:01.0   3-edge      virtio0-stats\n\
             32:       4913          7 PCI-MSIX-0000:00:01.0   4-edge      virtio0-reporting_vq\n";
        fs::write(machine.path().join("proc/interrupts"), interrupts).unwrap();
        assert_eq!(reports_answered(machine.path()), Some(4920));
    }
}

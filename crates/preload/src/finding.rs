//! A misuse of a guarded object, reported in one line:
//!
//! ```text
//! hectare: use after free: 0x7f01c2a30f9c lies 12 bytes into the object 0x7f01c2a30f90 of 100
//! bytes, allocated by prog+0x1189 < prog+0x1203, freed by prog+0x119c < prog+0x1210
//! ```
//! A caller is named by its file and its address in that file, as `addr2line -e FILE ADDRESS` takes
//! them.

use core::fmt::Write;
use core::ops::ControlFlow;

use hectare::{Fault, Finding, Trail, call_of};

use crate::line::Line;
use crate::maps::each_mapping;
use crate::{HEAP, unwind};

/// How many callers are named.
const CALLERS: usize = 4;

/// The longest line of the mappings that is read. Faults are reported on a program's alternate
/// stack, which may have as little as 8 KiB (`SIGSTKSZ`), and the kernel takes up to half of that.
const SHORT_LINE: usize = 512;

/// Reports it and ends the process.
pub(crate) fn abort(finding: &Finding) -> ! {
    let mut line = Line::new();
    // A line takes all text, or as much as it has room for.
    let _ = write!(line, "hectare: {}: ", name(finding.fault));
    describe_place(&mut line, finding);
    name_callers(&mut line, ", allocated by ", &finding.allocated);
    name_callers(&mut line, ", freed by ", &finding.freed);
    line.write_to_standard_error();
    // SAFETY: no preconditions.
    unsafe { libc::abort() }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Overflow => "overflow",
        Fault::Underflow => "underflow",
        Fault::UseAfterFree => "use after free",
        Fault::DoubleFree => "double free",
        Fault::Interior => "interior pointer",
    }
}

fn describe_place(line: &mut Line, finding: &Finding) {
    let Finding { address, object, bytes, .. } = *finding;
    let (distance, side) = if address < object {
        (object - address, "before")
    } else if address < object + bytes.max(1) {
        (address - object, "into")
    } else {
        (address - object - bytes, "behind")
    };
    let plural = if distance == 1 { "" } else { "s" };
    // As in `abort`.
    let _ = write!(
        line,
        "{address:#x} lies {distance} byte{plural} {side} the object {object:#x} of {bytes} bytes"
    );
}

fn name_callers(line: &mut Line, before: &str, trail: &Trail) {
    for (i, &frame) in trail.frames().iter().take(CALLERS).enumerate() {
        line.push(if i == 0 { before } else { " < " }.as_bytes());
        name_caller(line, call_of(frame));
    }
}

fn name_caller(line: &mut Line, call: usize) {
    let Some(file) = unwind::file_of(call) else {
        // As in `abort`.
        let _ = write!(line, "{call:#x}");
        return;
    };
    if file.path.is_empty() {
        name_program(line, call);
    } else {
        line.push(last_part(file.path));
    }
    // As in `abort`.
    let _ = write!(line, "+{:#x}", call.wrapping_sub(file.shift));
}

/// Names the file of the program itself, which contains the code at `call`: the dynamic linker does
/// not know its name.
fn name_program(line: &mut Line, call: usize) {
    let mut is_named = false;
    // If a filter ended the program for opening a file, the line would not be written.
    if !HEAP.keeps_to_plain_calls() {
        each_mapping::<SHORT_LINE>(|mapping| {
            if !(mapping.start..mapping.end).contains(&call) {
                return ControlFlow::Continue(());
            }
            is_named = true;
            line.push(last_part(mapping.path));
            ControlFlow::Break(())
        });
    }
    if !is_named {
        line.push(b"program");
    }
}

fn last_part(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

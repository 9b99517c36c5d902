//! Goes from a frame to its callers by saved frame pointers, none of which is trusted.

use super::memory::Memory;
use super::registers::Frame;

/// How far apart two frames may lie at most, in bytes.
const MAX_FRAME_BYTES: usize = 1 << 20;

/// Follows the saved frame pointers from a frame on, and adds the return addresses found to the
/// `count` in `frames`, as far as there is room. It stops at a pointer that does not lead up the
/// stack: that of the outermost frame, or of code that uses the register for something else.
/// Returns how many addresses there are then.
pub(super) fn follow(from: &Frame, frames: &mut [usize], mut count: usize) -> usize {
    const WORD: usize = size_of::<usize>();
    let mut pointer = from.frame_pointer();
    let mut floor = from.stack_pointer().saturating_sub(2 * WORD);
    // What an earlier walk saw may be gone if the program lays out its stacks by itself, and here
    // any word may lie where a pointer should.
    let mut memory = Memory::nothing();
    while count < frames.len() {
        let is_frame = pointer.is_multiple_of(WORD)
            && (floor..floor.saturating_add(MAX_FRAME_BYTES)).contains(&pointer);
        if !is_frame {
            break;
        }
        let Some(next) = memory.word(pointer) else { break };
        let Some(address) = memory.word(pointer + WORD) else { break };
        if address == 0 {
            break;
        }
        frames[count] = address;
        count += 1;
        floor = pointer + 2 * WORD;
        pointer = next;
    }
    count
}

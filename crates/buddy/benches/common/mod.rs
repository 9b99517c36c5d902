//! Code that the benches share.

use hectare_buddy::FrameId;

/// Fisher and Yates, by a small generator with a fixed seed (Steele and others, "SplitMix").
pub(crate) fn shuffle(frames: &mut [FrameId]) {
    let mut state = 1_u64;
    for end in (1..frames.len()).rev() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        frames.swap(end, ((z ^ (z >> 31)) % (end as u64 + 1)) as usize);
    }
}

//! Random bytes that are the same each time.

/// Bytes for one mutation. More than most take: what is left of a mutation without them is zeros.
const BYTES: usize = 8 * 1024;

/// Returns the seed of all mutations: `STARLING_FUZZ_SEED`, or 1.
#[must_use]
pub fn seed() -> u64 {
    let set = std::env::var("STARLING_FUZZ_SEED").ok();
    set.and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Returns the bytes of a mutation.
pub(crate) fn bytes(seed: u64, number: u64) -> Vec<u8> {
    let mut state = mix(mix(seed) ^ number);
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(state)
    });
    words.flat_map(u64::to_le_bytes).take(BYTES).collect()
}

/// The output function of `SplitMix64` (Steele, Lea and Flood: "Fast splittable pseudorandom number generators", 2014).
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

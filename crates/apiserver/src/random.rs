//! A seeded random generator: names and UIDs are the same in every run with the same requests.

/// The letters of generated names, as in Kubernetes: without vowels and characters that look alike.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The increment of SplitMix64.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// How many numbers a generator skips after a restart: far more than can be drawn between two writes.
const LEAP: u64 = 1 << 40;

/// A SplitMix64 generator: small, fast, and good enough to keep names apart. Secrets do not come from it; tokens
/// derive from the server's options or from the system's generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Returns the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the generator of a name under a seed, so that the writes of one cluster do not change the names of
    /// another.
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let mut random = Self(seed ^ hash);
        random.number();
        random
    }

    /// Returns the position of the generator, for [`Random::resumed`].
    pub fn position(&self) -> u64 {
        self.0
    }

    /// Returns a generator that continues after a stored position, behind every number that may have been drawn
    /// since. The numbers of one generator are distinct, so no number repeats.
    pub fn resumed(position: u64) -> Self {
        Self(position.wrapping_add(STEP.wrapping_mul(LEAP)))
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below a limit.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.number() % limit }
    }

    /// Returns a version 4 UUID.
    pub fn uuid(&mut self) -> String {
        let (high, low) = (self.number(), self.number());
        let (high, low) = (
            high & 0xffff_ffff_ffff_0fff | 0x4000,
            low & 0x3fff_ffff_ffff_ffff | 0x8000_0000_0000_0000,
        );
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// Returns the suffix that the server appends to a `generateName`.
    pub fn suffix(&mut self) -> String {
        (0..5)
            .map(|_| char::from(LETTERS[self.below(27) as usize % LETTERS.len()]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_the_seed_and_the_cluster() {
        let (mut one, mut again, mut other) = (
            Random::named(7, "a"),
            Random::named(7, "a"),
            Random::named(7, "b"),
        );
        let uuid = one.uuid();
        assert_eq!(uuid, again.uuid());
        assert_ne!(uuid, other.uuid());
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "4"));
        assert_eq!(one.suffix().len(), 5);
    }

    #[test]
    fn a_resumed_generator_repeats_no_number() {
        let mut before = Random::named(7, "a");
        let position = before.position();
        let given: std::collections::BTreeSet<u64> = (0..10_000).map(|_| before.number()).collect();
        let mut after = Random::resumed(position);
        assert!((0..10_000).all(|_| !given.contains(&after.number())));
        assert_ne!(Random::resumed(position).position(), position);
    }
}

//! The order in which the shards of an inventory are written.
//!
//! Shards are ConfigMaps, so several cannot be written at once, and the writer may end between two of them. A reader
//! (which reads from shard to shard, see [`super::format::Shard::shards`]) must then still find each object that is in
//! both the old and the new inventory: an object that is lost is never pruned.

use super::Inventory;
use super::format::{encode_bodies, encode_shard};

/// One write to a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardWrite {
    /// Write `text` to shard `index`.
    Put {
        /// The index of the shard.
        index: usize,
        /// The whole text of the shard.
        text: String,
    },
    /// Delete shard `index`.
    Remove {
        /// The index of the shard.
        index: usize,
    },
}

/// Returns the writes that turn `stored`, in `shards` shards, into `wanted`. An empty inventory has no shard.
///
/// From one shard to one shard it is a single write. Otherwise the new texts are first written after the old ones, then
/// over them, and then the copies after them are removed, so that a complete copy exists at any time. That is three
/// requests per shard, for the few inventories with thousands of objects, when their objects change.
#[must_use]
pub fn shard_writes(stored: &Inventory, shards: usize, wanted: &Inventory, limit: usize) -> Vec<ShardWrite> {
    if stored == wanted {
        return Vec::new();
    }
    let remove = |index| ShardWrite::Remove { index };
    if wanted.is_empty() {
        return (0..shards).rev().map(remove).collect();
    }
    let bodies = encode_bodies(wanted, limit);
    if let ([body], 0 | 1) = (bodies.as_slice(), shards) {
        return vec![ShardWrite::Put {
            index: 0,
            text: encode_shard(body, 1),
        }];
    }
    // With more than one shard, the first must not state that it is the only one.
    let several = bodies.len().max(2);
    let put = |index, body: &str, shards| ShardWrite::Put {
        index,
        text: encode_shard(body, shards),
    };
    let mut writes = Vec::with_capacity(3 * bodies.len() + shards);
    if shards == 1 {
        writes.push(put(0, &encode_bodies(stored, usize::MAX).concat(), several));
    }
    // There is never a gap between shards, since a reader stops at a gap. Without stored shards, no copy is needed.
    let copy = if shards == 0 {
        0..0
    } else {
        shards..shards + bodies.len()
    };
    writes.extend(
        copy.clone()
            .zip(&bodies)
            .map(|(index, body)| put(index, body, several)),
    );
    writes.extend(
        bodies
            .iter()
            .enumerate()
            .map(|(index, body)| put(index, body, several)),
    );
    writes.extend((bodies.len()..copy.end).rev().map(remove));
    if let [body] = bodies.as_slice() {
        writes.push(put(0, body, 1));
    }
    writes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    use super::*;
    use crate::inventory::InventoryEntry;
    use crate::inventory::format::parse;
    use crate::object::ObjectId;

    /// The shards on a member.
    #[derive(Clone, Debug, Default)]
    struct Member(BTreeMap<usize, String>);

    impl Member {
        fn read(&self) -> (Inventory, usize) {
            let (mut inventory, mut count) = (Inventory::new(), 0);
            while let Some(text) = self.0.get(&count) {
                let shard = parse(text).unwrap();
                inventory = inventory.union(&shard.entries);
                count += 1;
                if count == 1 && shard.shards == 1 {
                    break;
                }
            }
            (inventory, count)
        }

        fn write(&mut self, write: ShardWrite) {
            match write {
                ShardWrite::Put { index, text } => drop(self.0.insert(index, text)),
                ShardWrite::Remove { index } => drop(self.0.remove(&index)),
            }
        }
    }

    fn key(number: u8) -> ObjectId {
        ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: format!("object-{number}"),
        }
    }

    fn inventories() -> impl Strategy<Value = Inventory> {
        btree_map(
            0_u8..60,
            prop_oneof![Just(""), Just("a-rather-long-uid-of-an-object")],
            0..60,
        )
        .prop_map(|entries| {
            entries
                .into_iter()
                .map(|(number, uid)| InventoryEntry::new(key(number), uid))
                .collect()
        })
    }

    proptest! {
        // A case is a few hundred reads of a whole inventory.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Several writers in turn, each of which may end after any of its writes.
        #[test]
        fn a_reader_never_misses_a_key_that_stays(
            steps in vec((inventories(), 60_usize..2000, prop_oneof![Just(usize::MAX), 0_usize..20]), 1..6),
        ) {
            let mut member = Member::default();
            for (wanted, limit, ends_after) in steps {
                let (stored, shards) = member.read();
                let writes = shard_writes(&stored, shards, &wanted, limit);
                let finished = writes.len() <= ends_after;
                for write in writes.into_iter().take(ends_after) {
                    member.write(write);
                    let (now, _) = member.read();
                    for (key, _) in stored.iter().filter(|(key, _)| wanted.contains(key)) {
                        prop_assert!(now.contains(key), "{key} is lost");
                    }
                    prop_assert!(now.difference(&stored.union(&wanted)).is_empty());
                }
                if finished {
                    prop_assert_eq!(member.read().0, wanted);
                }
            }
        }

        /// No shard remains that a later, longer inventory would read as its own.
        #[test]
        fn no_shard_is_left_behind(steps in vec((inventories(), 60_usize..600), 1..5)) {
            let mut member = Member::default();
            for (wanted, limit) in steps {
                let (stored, shards) = member.read();
                shard_writes(&stored, shards, &wanted, limit).into_iter().for_each(|write| member.write(write));
                prop_assert_eq!(member.read().1, member.0.len());
            }
        }
    }

    #[test]
    fn one_shard_is_one_write() {
        let small: Inventory = [InventoryEntry::new(key(1), "")].into_iter().collect();
        let other: Inventory = [InventoryEntry::new(key(2), "")].into_iter().collect();
        assert!(matches!(
            shard_writes(&Inventory::new(), 0, &small, 500)[..],
            [ShardWrite::Put { index: 0, .. }]
        ));
        assert!(matches!(
            shard_writes(&small, 1, &other, 500)[..],
            [ShardWrite::Put { index: 0, .. }]
        ));
        assert_eq!(
            shard_writes(&small, 1, &Inventory::new(), 500),
            [ShardWrite::Remove { index: 0 }]
        );
        assert_eq!(shard_writes(&small, 1, &small, 500), []);
    }
}

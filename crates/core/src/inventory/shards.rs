//! In which order the shards of an inventory are written.
//!
//! Shards are ConfigMaps, so several cannot be written at once, and the writer may die between two of them. A reader
//! (which reads on from shard to shard, see [`super::format::Shard::shards`]) must then still find each key that is in both
//! the old and the new inventory: a key that is lost is an object that is never pruned.

use super::Inventory;
use super::format::{encode_bodies, encode_shard};

/// One write to a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardWrite {
    /// Make shard `index` hold `text`.
    Put {
        /// Which shard.
        index: usize,
        /// Its whole text.
        text: String,
    },
    /// Delete shard `index`.
    Remove {
        /// Which shard.
        index: usize,
    },
}

/// The writes that turn `stored`, which lies in `shards` shards, into `wanted`. An empty inventory has no shard.
///
/// From one shard to one it is a single write. Otherwise the new texts are first written behind the old ones, then over
/// them, and then what lies behind is removed, so that at each moment one complete copy is there. That is three
/// requests for a shard, for the few inventories with thousands of objects, when their keys change.
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
    // While there is more than one shard, the first must not say that it is the only one.
    let several = bodies.len().max(2);
    let put = |index, body: &str, shards| ShardWrite::Put {
        index,
        text: encode_shard(body, shards),
    };
    let mut writes = Vec::with_capacity(3 * bodies.len() + shards);
    if shards == 1 {
        writes.push(put(0, &encode_bodies(stored, usize::MAX).concat(), several));
    }
    // Shards have no gap at any moment, so that none is out of a reader's sight. With nothing there, there is nothing to copy.
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
    use crate::inventory::Entry;
    use crate::inventory::format::parse;
    use crate::object::ObjectKey;

    /// The shards as they lie on a member.
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

    fn key(number: u8) -> ObjectKey {
        ObjectKey {
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
                .map(|(number, uid)| Entry {
                    key: key(number),
                    uid: uid.into(),
                })
                .collect()
        })
    }

    proptest! {
        // A case is a few hundred reads of a whole inventory.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Writers come one after the other, and each may die after any of its writes.
        #[test]
        fn a_reader_never_misses_a_key_that_stays(
            steps in vec((inventories(), 60_usize..2000, prop_oneof![Just(usize::MAX), 0_usize..20]), 1..6),
        ) {
            let mut member = Member::default();
            for (wanted, limit, dies_after) in steps {
                let (stored, shards) = member.read();
                let writes = shard_writes(&stored, shards, &wanted, limit);
                let finished = writes.len() <= dies_after;
                for write in writes.into_iter().take(dies_after) {
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

        /// Nothing is left behind that a later, longer inventory would take for its own.
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
        let small: Inventory = [Entry {
            key: key(1),
            uid: String::new(),
        }]
        .into_iter()
        .collect();
        let other: Inventory = [Entry {
            key: key(2),
            uid: String::new(),
        }]
        .into_iter()
        .collect();
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

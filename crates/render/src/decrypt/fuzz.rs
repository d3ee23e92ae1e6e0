//! Files that SOPS has encrypted, or that say so, mutated: whatever it is, the end is a result.

use super::find::{locations, put};
use crate::yaml;

#[test]
fn tenant_fuzz_sops_files() {
    starling_fuzz::inputs!("sops", |input| {
        let Ok(documents) = yaml::read_within(input, 10, 10_000) else {
            return;
        };
        for mut object in documents {
            let Ok(parts) = locations(&object) else { continue };
            for part in parts {
                let _ = put(&mut object, &part.location, input.to_vec());
            }
        }
    });
}

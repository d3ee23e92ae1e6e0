//! The key of the digests of objects with secret values.
//!
//! All of such an object but the value is known from git, so whoever has a copy of the ledger could try values until a
//! plain digest matches. Their digests are keyed, with a key that is not in the ledger (`docs/guides/secrets.md`).

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::object::{RenderedSet, set_digest};

/// The number of bytes of a key: the block size of SHA-256.
pub const KEY_BYTES: usize = 64;

/// A key. It is not shown.
#[derive(Clone)]
pub struct DigestKey([u8; KEY_BYTES]);

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey(…)")
    }
}

impl DigestKey {
    /// Creates a key of random bytes.
    #[must_use]
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Keys the digests of the objects with secret values. Other objects keep theirs, which are equal in all
    /// installations.
    #[must_use]
    pub fn apply_to(&self, mut set: RenderedSet) -> RenderedSet {
        let secret = set.objects.iter_mut().filter(|object| object.is_secret());
        let mut has_secrets = false;
        for object in secret {
            object.digest = self.digest(&object.digest);
            has_secrets = true;
        }
        if has_secrets {
            set.digest = set_digest(&set.objects);
        }
        set
    }

    /// Returns `hmac-sha256:` and 64 hex digits.
    fn digest(&self, plain: &str) -> String {
        let mut hash = Hmac::<Sha256>::new(&self.0.into());
        hash.update(plain.as_bytes());
        format!("hmac-sha256:{}", hex::encode(hash.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{Directives, ObjectId, RenderedObject};
    use crate::secret_values::SecretValues;

    fn object(kind: &str, opened: bool) -> RenderedObject {
        RenderedObject {
            key: ObjectId {
                group: String::new(),
                kind: kind.into(),
                namespace: "shop".into(),
                name: "a".into(),
            },
            api_version: "v1".into(),
            body: "{}".into(),
            digest: "sha256:plain".into(),
            directives: Directives {
                secret: opened,
                ..Directives::default()
            },
        }
    }

    fn set() -> RenderedSet {
        let objects = vec![
            object("Secret", false),
            object("ConfigMap", true),
            object("ConfigMap", false),
        ];
        RenderedSet {
            digest: set_digest(&objects),
            objects,
            secrets: SecretValues::default(),
        }
    }

    #[test]
    fn tenant_digests_of_objects_with_secret_values_are_keyed() {
        let keyed = |byte| DigestKey::new([byte; KEY_BYTES]).apply_to(set());
        let (one, two) = (keyed(1), keyed(2));
        for place in [0, 1] {
            assert_ne!(one.objects[place].digest, "sha256:plain");
            assert_ne!(one.objects[place].digest, two.objects[place].digest);
        }
        assert_eq!(one.objects[2].digest, "sha256:plain");
        assert_eq!(one.digest, set_digest(&one.objects));
        assert_eq!(one.digest, keyed(1).digest, "the same at the next render");
        assert_eq!(format!("{:?}", DigestKey::new([7; KEY_BYTES])), "DigestKey(…)");
    }
}

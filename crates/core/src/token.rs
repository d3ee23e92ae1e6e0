//! The tokens of members that Starling renews: what is known of a token, and when it is renewed.
//!
//! `starling cluster add` requests the first token, and records its account and lifetime in annotations of its Secret.
//! From then on the controller renews the token. A Secret without these annotations is not renewed by Starling.

use std::collections::BTreeMap;
use std::time::Duration as StdDuration;

use jiff::{SignedDuration, Timestamp};
use starling_api::{Duration, TOKEN_EXPIRES_AT, TOKEN_ISSUED_AT, TOKEN_LIFETIME, TOKEN_SERVICE_ACCOUNT};

use crate::digest::{self, hash64, spread};

/// The shortest lifetime that kube-apiserver grants.
pub const SHORTEST_LIFETIME: StdDuration = StdDuration::from_secs(600);
/// The longest lifetime that is used; only annotations that were written by hand have more.
const LONGEST_LIFETIME: StdDuration = StdDuration::from_secs(10 * 365 * 86_400);
/// The limits of the wait after a failed renewal: at least the interval of probes, and at most an hour, so that a
/// repaired member is noticed.
const RETRY: (SignedDuration, SignedDuration) = (SignedDuration::from_mins(1), SignedDuration::from_hours(1));

/// A token of a member, as the annotations of its Secret describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenLease {
    /// The namespace of the ServiceAccount on the member.
    pub namespace: String,
    /// The name of the ServiceAccount on the member.
    pub name: String,
    /// The lifetime to request. A member may grant less.
    pub lifetime: Duration,
    /// Time at which the token was issued.
    pub issued_at: Timestamp,
    /// Time at which the token expires.
    pub expires_at: Timestamp,
}

/// The next step for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Wait until this time.
    NotBefore(Timestamp),
    /// Request another token; the present one is still valid.
    Due,
    /// The token has expired, so it cannot be used to request another one.
    Expired,
}

/// An annotation that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: {value:?} is not {expected}")]
pub struct LeaseError {
    /// The key of the annotation.
    pub annotation: &'static str,
    /// The value of the annotation.
    pub value: String,
    /// The expected format.
    pub expected: &'static str,
}

/// Returns the name of the ServiceAccount, and of the objects that belong to it, that one Cluster of one management
/// cluster has on a member. `hub` is the UID of the `kube-system` namespace of the management cluster: two management
/// clusters, or two namespaces of one, never share an account, so that removing one keeps the other.
#[must_use]
pub fn account_name(hub: &str, namespace: &str, cluster: &str) -> String {
    let digest = digest::of(&("member-account", hub, namespace, cluster));
    let short: String = digest.trim_start_matches("sha256:").chars().take(12).collect();
    format!("starling-{short}")
}

impl TokenLease {
    /// Parses the annotations of a Secret; `None`: the Secret has no token that Starling renews.
    ///
    /// # Errors
    /// [`LeaseError`] with the annotation that cannot be parsed.
    pub fn of(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, LeaseError> {
        let Some(account) = annotations.get(TOKEN_SERVICE_ACCOUNT) else {
            return Ok(None);
        };
        let text = |key: &str| annotations.get(key).map_or("", String::as_str);
        let wrong = |annotation, expected| LeaseError {
            annotation,
            value: text(annotation).to_owned(),
            expected,
        };
        let time = |annotation| text(annotation).parse().map_err(|_| wrong(annotation, "a time"));
        let (namespace, name) = account
            .split_once('/')
            .filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty() && !name.contains('/'))
            .ok_or_else(|| wrong(TOKEN_SERVICE_ACCOUNT, "NAMESPACE/NAME"))?;
        Ok(Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            lifetime: text(TOKEN_LIFETIME)
                .parse()
                .map_err(|_| wrong(TOKEN_LIFETIME, "a duration such as 720h"))?,
            issued_at: time(TOKEN_ISSUED_AT)?,
            expires_at: time(TOKEN_EXPIRES_AT)?,
        }))
    }

    /// Returns the annotations that [`Self::of`] parses.
    #[must_use]
    pub fn annotations(&self) -> BTreeMap<String, String> {
        [
            (TOKEN_SERVICE_ACCOUNT, format!("{}/{}", self.namespace, self.name)),
            (TOKEN_LIFETIME, self.lifetime.to_string()),
            (TOKEN_ISSUED_AT, self.issued_at.to_string()),
            (TOKEN_EXPIRES_AT, self.expires_at.to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    /// Returns what to do at `now`. A token is renewed in the second half of its lifetime. `seed` (the UID of the
    /// Cluster) spreads renewals over a tenth of the lifetime, so that clusters that were added together are not
    /// renewed together.
    #[must_use]
    pub fn renewal(&self, now: Timestamp, seed: &str) -> Renewal {
        if now >= self.expires_at {
            return Renewal::Expired;
        }
        let lifetime = self.lifetime();
        let due = later(
            self.issued_at,
            lifetime / 2 + spread(lifetime / 10, hash64(&["token", seed])),
        );
        if now >= due {
            Renewal::Due
        } else {
            Renewal::NotBefore(due)
        }
    }

    /// Returns when a renewal that failed at `now` is retried: after a tenth of the remaining lifetime, within limits.
    /// A member that rejects the request gets some dozens of requests per month, not one per minute.
    #[must_use]
    pub fn retry_at(&self, now: Timestamp) -> Timestamp {
        let left = self.expires_at.duration_since(now) / 10;
        now.checked_add(left.clamp(RETRY.0, RETRY.1))
            .unwrap_or(Timestamp::MAX)
    }

    /// Returns the lifetime of the token; zero if the annotations contradict each other, which makes the renewal due.
    fn lifetime(&self) -> StdDuration {
        StdDuration::try_from(self.expires_at.duration_since(self.issued_at))
            .unwrap_or_default()
            .min(LONGEST_LIFETIME)
    }
}

fn later(time: Timestamp, wait: StdDuration) -> Timestamp {
    SignedDuration::try_from(wait)
        .ok()
        .and_then(|wait| time.checked_add(wait).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISSUED: &str = "2026-11-01T00:00:00Z";
    const EXPIRES: &str = "2026-12-01T00:00:00Z";

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn lease() -> TokenLease {
        TokenLease {
            namespace: "starling-system".into(),
            name: "starling-0123".into(),
            lifetime: "720h".parse().unwrap(),
            issued_at: time(ISSUED),
            expires_at: time(EXPIRES),
        }
    }

    #[test]
    fn a_token_is_renewed_in_the_second_half_of_its_life() {
        let fresh = [
            "2026-11-01T00:00:00Z",
            "2026-11-10T00:00:00Z",
            "2026-11-15T23:59:59Z",
        ];
        for now in fresh {
            let Renewal::NotBefore(due) = lease().renewal(time(now), "a") else {
                panic!("{now} is in the first half");
            };
            assert!(
                due >= time("2026-11-16T00:00:00Z") && due < time("2026-11-19T00:00:00Z"),
                "{due}"
            );
        }
        for now in ["2026-11-19T00:00:00Z", "2026-11-30T23:59:59Z"] {
            assert_eq!(lease().renewal(time(now), "a"), Renewal::Due, "{now}");
        }
        for now in [EXPIRES, "2027-01-01T00:00:00Z"] {
            assert_eq!(lease().renewal(time(now), "a"), Renewal::Expired, "{now}");
        }
    }

    #[test]
    fn tokens_that_were_issued_together_are_renewed_apart() {
        let due: std::collections::BTreeSet<String> = (0..100)
            .map(|n| format!("{:?}", lease().renewal(time(ISSUED), &n.to_string())))
            .collect();
        assert_eq!(due.len(), 100);
    }

    #[test]
    fn contradicting_times_make_the_renewal_due() {
        let backwards = TokenLease {
            issued_at: time("2027-01-01T00:00:00Z"),
            ..lease()
        };
        assert_eq!(
            backwards.renewal(time(ISSUED), "a"),
            Renewal::NotBefore(time("2027-01-01T00:00:00Z"))
        );
        assert_eq!(backwards.renewal(time(EXPIRES), "a"), Renewal::Expired);
        let ages = TokenLease {
            issued_at: Timestamp::MIN,
            expires_at: Timestamp::MAX,
            ..lease()
        };
        assert!(matches!(ages.renewal(Timestamp::MIN, "a"), Renewal::NotBefore(_)));
    }

    #[test]
    fn the_wait_after_a_failed_renewal_becomes_shorter_towards_the_expiry() {
        for (now, wait) in [
            ("2026-11-16T00:00:00Z", "2026-11-16T01:00:00Z"),
            ("2026-11-30T20:00:00Z", "2026-11-30T20:24:00Z"),
            ("2026-11-30T23:59:00Z", EXPIRES),
            ("2026-12-02T00:00:00Z", "2026-12-02T00:01:00Z"),
        ] {
            assert_eq!(lease().retry_at(time(now)), time(wait), "{now}");
        }
    }

    #[test]
    fn accounts_of_different_clusters_namespaces_and_hubs_differ() {
        let names: std::collections::BTreeSet<String> = [
            ("hub", "fleet", "eu-1"),
            ("hub", "fleet", "eu-2"),
            ("hub", "other", "eu-1"),
            ("bub", "fleet", "eu-1"),
            ("hub", "fleete", "u-1"),
        ]
        .map(|(hub, namespace, cluster)| account_name(hub, namespace, cluster))
        .into();
        assert_eq!(names.len(), 5);
        assert!(names.iter().all(|name| name.len() == "starling-".len() + 12));
        assert_eq!(
            account_name("hub", "fleet", "eu-1"),
            account_name("hub", "fleet", "eu-1")
        );
    }

    #[test]
    fn a_lease_is_read_as_it_was_written() {
        let written = lease().annotations();
        assert_eq!(TokenLease::of(&written), Ok(Some(lease())));
        assert_eq!(TokenLease::of(&BTreeMap::new()), Ok(None));
    }

    #[test]
    fn an_error_names_the_annotation() {
        for (key, value) in [
            (TOKEN_SERVICE_ACCOUNT, "starling"),
            (TOKEN_SERVICE_ACCOUNT, "/starling"),
            (TOKEN_SERVICE_ACCOUNT, "a/b/c"),
            (TOKEN_LIFETIME, "a month"),
            (TOKEN_ISSUED_AT, "yesterday"),
            (TOKEN_EXPIRES_AT, ""),
        ] {
            let mut annotations = lease().annotations();
            annotations.insert(key.into(), value.into());
            let error = TokenLease::of(&annotations).expect_err(key);
            assert_eq!((error.annotation, error.value.as_str()), (key, value));
        }
    }
}

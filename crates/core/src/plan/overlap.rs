//! Reports of clusters that several stages select, or none. A cluster belongs to the first stage that selects it, or to
//! the implicit last stage, which may not be what the author of the strategy intends.

use std::collections::BTreeMap;

use crate::ids::ClusterName;

use super::stages::Strategy;
use super::strategy::Place;
use super::types::ClusterView;

/// The number of clusters that a message names; the others are counted. A few names are enough to find their common
/// labels.
const NAMED: usize = 5;

/// Returns the message about the clusters, by name, that several stages select; `None`: there are none.
#[must_use]
pub fn overlap<'a>(
    strategy: &Strategy,
    places: impl IntoIterator<Item = (&'a ClusterName, &'a Place)>,
) -> Option<String> {
    let several = places.into_iter().filter(|(_, place)| !place.also.is_empty());
    let listing = listed(several, |(cluster, place)| one(strategy, cluster, place), "; ")?;
    Some(format!(
        "clusters that several stages select belong to the first of them: {listing}"
    ))
}

/// Returns the message about the clusters that no stage selects; `None`: there are none, or the strategy has no stages.
#[must_use]
pub fn left_over(strategy: &Strategy, clusters: &BTreeMap<ClusterName, ClusterView>) -> Option<String> {
    let last = strategy.stages.len().checked_sub(1).filter(|last| *last > 0)?;
    let rest = clusters.iter().filter(|(_, cluster)| cluster.stage == last);
    let listing = listed(rest, |(name, _)| name.to_string(), ", ")?;
    Some(format!(
        "clusters that no stage selects form the last one, *: {listing}"
    ))
}

/// Joins the first items and the number of the others; `None`: there are none.
fn listed<T>(
    mut items: impl Iterator<Item = T>,
    text: impl Fn(T) -> String,
    separator: &str,
) -> Option<String> {
    let named: Vec<String> = items.by_ref().take(NAMED).map(text).collect();
    let listing = (!named.is_empty()).then(|| named.join(separator))?;
    Some(match items.count() {
        0 => listing,
        more => format!("{listing}{separator}and {more} more"),
    })
}

fn one(strategy: &Strategy, cluster: &ClusterName, place: &Place) -> String {
    let name = |stage: &usize| {
        strategy
            .stages
            .get(*stage)
            .map_or("", |stage| stage.name.as_str())
    };
    let also: Vec<&str> = place.also.iter().map(name).collect();
    format!(
        "{cluster} to {}, and not to {}",
        name(&place.stage),
        also.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::plan::ReadStrategy;

    fn listing(clusters: &[(&str, &[&str])]) -> Option<String> {
        let stage =
            |name: &str| serde_json::json!({"name": name, "clusterSelector": {"matchLabels": {name: "yes"}}});
        let strategy = serde_json::json!({"stages": [stage("canary"), stage("eu"), stage("large")]});
        let strategy = ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
        let places: BTreeMap<ClusterName, Place> = clusters
            .iter()
            .map(|(name, labels)| {
                let labels = labels.iter().map(|label| ((*label).to_owned(), "yes".to_owned()));
                ((*name).into(), strategy.place(&labels.collect()))
            })
            .collect();
        overlap(&strategy.strategy, &places)
    }

    #[test]
    fn clusters_of_one_stage_or_none_are_not_reported() {
        assert_eq!(listing(&[]), None);
        assert_eq!(listing(&[("a", &["canary"]), ("b", &["eu"]), ("c", &[])]), None);
    }

    #[test]
    fn it_names_the_stage_of_each_and_the_others_that_select_it() {
        let two = listing(&[
            ("a", &["canary"]),
            ("b", &["large", "canary", "eu"]),
            ("c", &["large", "eu"]),
        ]);
        assert_eq!(
            two.as_deref(),
            Some(
                "clusters that several stages select belong to the first of them: b to canary, and not to eu, large; c to eu, and not to large"
            )
        );
    }

    #[test]
    fn five_are_named_and_the_others_counted() {
        let names: Vec<String> = (1..=7).map(|n| format!("c{n}")).collect();
        let clusters: Vec<(&str, &[&str])> = names
            .iter()
            .map(|name| (name.as_str(), &["canary", "eu"][..]))
            .collect();
        let listing = listing(&clusters).unwrap();
        assert!(
            listing.contains("c5 to canary") && !listing.contains("c6"),
            "{listing}"
        );
        assert!(listing.ends_with("; and 2 more"), "{listing}");
    }

    #[test]
    fn those_of_no_stage_are_named() {
        let listing = |script: &str, stages: usize, last: &[usize]| {
            let mut input = crate::plan::tests::input(script, 1, 0);
            let rest = input.strategy.stages.remove(0);
            input.strategy.stages = vec![rest; stages];
            for (place, cluster) in input.clusters.values_mut().enumerate() {
                cluster.stage = if last.contains(&place) { stages - 1 } else { 0 };
            }
            left_over(&input.strategy, &input.clusters)
        };
        assert_eq!(listing("ooo", 1, &[0, 1, 2]), None, "it has no stages");
        assert_eq!(listing("ooo", 2, &[]), None);
        assert_eq!(
            listing("ooo", 2, &[0, 2]).as_deref(),
            Some("clusters that no stage selects form the last one, *: c000, c002")
        );
        let many = listing(&"o".repeat(9), 3, &[1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert!(
            many.ends_with("c001, c002, c003, c004, c005, and 2 more"),
            "{many}"
        );
    }
}

//! The request metrics of a kube-apiserver.

use std::collections::BTreeMap;

/// The API groups that the server itself reads and writes continuously.
const OWN_GROUPS: &[&str] = &[
    "coordination.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "apiregistration.k8s.io",
];

/// One series of `apiserver_request_total`: the number of requests with these labels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestCount {
    /// `GET`, `LIST`, `WATCH`, `POST`, `PUT`, `PATCH`, `APPLY`, `DELETE`, `DELETECOLLECTION`, `CONNECT`.
    pub verb: String,
    /// The API group, empty for the core group and for paths that are not resources.
    pub group: String,
    /// The plural name of the resource, empty for a path that is not a resource.
    pub resource: String,
    /// The subresource, empty for the object itself.
    pub subresource: String,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// The HTTP status of the response.
    pub code: u16,
    /// The number of completed requests.
    pub count: u64,
}

/// The counts of a server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All series, including requests of the server itself.
    pub series: Vec<RequestCount>,
}

impl RequestCounts {
    /// Sums the requests by verb, without watches and without requests of the server itself.
    ///
    /// The metric has no user. Requests of the server itself are therefore excluded by kind: watches (one long request
    /// each, reopened at random), paths that are not resources (probes, discovery, reads of this metric) and the groups
    /// of leases, flow control and aggregation, which the server itself polls. A test that counts leases uses
    /// [`Self::series`], and one that needs the user reads the audit log.
    ///
    /// A server sends a few hundred requests to itself while it starts: use the difference of two counts from
    /// [`Self::since`].
    pub fn by_verb(&self) -> BTreeMap<String, u64> {
        let mut verbs = BTreeMap::new();
        for series in self.series.iter().filter(|series| !series.is_own_traffic()) {
            *verbs.entry(series.verb.clone()).or_insert(0) += series.count;
        }
        verbs
    }

    /// Returns the increase since earlier counts of the same run of the server, without unchanged series.
    ///
    /// A restarted server counts from zero: counts of the new run that are not above the earlier ones are returned
    /// unchanged.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let kind = |series: &RequestCount| RequestCount {
            count: 0,
            ..series.clone()
        };
        let before: BTreeMap<RequestCount, u64> = earlier
            .series
            .iter()
            .map(|series| (kind(series), series.count))
            .collect();
        let added = self.series.iter().filter_map(|series| {
            let before = before.get(&kind(series)).copied().unwrap_or(0);
            let count = series.count.checked_sub(before).unwrap_or(series.count);
            (count > 0).then(|| RequestCount {
                count,
                ..series.clone()
            })
        });
        Self {
            series: added.collect(),
        }
    }

    /// Parses the text format of Prometheus. Skips lines of other metrics.
    pub(crate) fn parse(text: &str) -> Self {
        Self {
            series: text.lines().filter_map(parse_line).collect(),
        }
    }
}

impl RequestCount {
    fn is_own_traffic(&self) -> bool {
        matches!(self.verb.as_str(), "WATCH" | "CONNECT")
            || self.resource.is_empty()
            || OWN_GROUPS.contains(&self.group.as_str())
    }
}

fn parse_line(line: &str) -> Option<RequestCount> {
    let (labels, count) = line.strip_prefix("apiserver_request_total{")?.rsplit_once("} ")?;
    // None of the label values of this metric contains a comma or a quote.
    let label = |name: &str| {
        labels
            .split(',')
            .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.strip_suffix('"'))
            .unwrap_or_default()
    };
    // Large counts are written in scientific notation: 1.234567e+06.
    let count = count.trim().parse::<f64>().ok().filter(|count| *count >= 0.0)?;
    Some(RequestCount {
        verb: label("verb").to_owned(),
        group: label("group").to_owned(),
        resource: label("resource").to_owned(),
        subresource: label("subresource").to_owned(),
        dry_run: !label("dry_run").is_empty(),
        code: label("code").parse().ok()?,
        count: count as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="configmaps",scope="resource",subresource="",verb="GET",version="v1"} 1.5e+06
apiserver_request_total{code="200",component="apiserver",dry_run="All",group="apps",resource="deployments",scope="resource",subresource="",verb="APPLY",version="v1"} 2
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 7
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 3
apiserver_request_total{code="200",component="",dry_run="",group="",resource="",scope="",subresource="/readyz",verb="GET",version=""} 9
apiserver_request_duration_seconds_sum{verb="GET"} 4
"#;

    #[test]
    fn requests_of_the_server_itself_do_not_count() {
        let counts = RequestCounts::parse(TEXT);
        assert_eq!(counts.series.len(), 5);
        let expected = [("APPLY".to_owned(), 2), ("GET".to_owned(), 1_500_000)];
        assert_eq!(counts.by_verb(), BTreeMap::from(expected));
        assert!(counts.series[1].dry_run);
    }

    #[test]
    fn the_difference_has_changed_counts_only() {
        let earlier = RequestCounts::parse(TEXT);
        let later = RequestCounts::parse(&TEXT.replace("1.5e+06", "1500004"));
        assert_eq!(
            later.since(&earlier).by_verb(),
            BTreeMap::from([("GET".to_owned(), 4)])
        );
        assert!(earlier.since(&earlier).series.is_empty());
    }
}

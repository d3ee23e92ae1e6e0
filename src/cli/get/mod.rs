//! `starling get`: displays Starling's objects as `kubectl get` does, with more columns.

mod columns;

use std::collections::HashMap;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};

use self::columns::Columns;
use super::caller::{Caller, CallerArguments};
use super::kube_errors;
use super::lists::Namespaced;
use super::output::{self, Output, Table};
use crate::read_model::listing::Summarize;

/// Options of `get`.
#[derive(Debug, Args)]
pub(super) struct GetArguments {
    /// Kind to display; also accepts the singular, plural and short names of kubectl
    #[arg(value_name = "KIND", value_enum, default_value_t = Kind::Groups)]
    kind: Kind,
    /// Names of the objects. Default: all
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Label selector, such as region=eu,tier!=lab
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<String>,
    /// List the objects of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Watch for changes after listing
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    caller: CallerArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// SyncGroups with their rollouts
    #[value(alias = "group", alias = "syncgroups", alias = "syncgroup", alias = "sg")]
    Groups,
    /// Clusters
    #[value(alias = "cluster")]
    Clusters,
    /// Syncs
    #[value(alias = "sync", alias = "sy")]
    Syncs,
    /// Sources
    #[value(alias = "source")]
    Sources,
    /// Approvals of stages (RolloutApproval)
    #[value(alias = "approval", alias = "rolloutapprovals", alias = "rolloutapproval")]
    Approvals,
    /// Operator actions (RolloutAction)
    #[value(alias = "action", alias = "rolloutactions", alias = "rolloutaction")]
    Actions,
    /// Approvals of deletions (DeletionApproval)
    #[value(
        alias = "deletionapprovals",
        alias = "deletionapproval",
        alias = "deletion-approval"
    )]
    DeletionApprovals,
}

/// A kind that `get` displays.
trait Listed: Namespaced + Serialize + Send + 'static + Summarize<Row: Columns> {}

impl<K> Listed for K where K: Namespaced + Serialize + Send + 'static + Summarize<Row: Columns> {}

pub(super) async fn run(arguments: GetArguments) -> anyhow::Result<()> {
    check(&arguments)?;
    let caller = Caller::sign_in(&arguments.caller).await?;
    match arguments.kind {
        Kind::Groups => show::<SyncGroup>(&caller, &arguments).await,
        Kind::Clusters => show::<Cluster>(&caller, &arguments).await,
        Kind::Syncs => show::<SyncResource>(&caller, &arguments).await,
        Kind::Sources => show::<Source>(&caller, &arguments).await,
        Kind::Approvals => show::<RolloutApproval>(&caller, &arguments).await,
        Kind::Actions => show::<RolloutAction>(&caller, &arguments).await,
        Kind::DeletionApprovals => show::<DeletionApproval>(&caller, &arguments).await,
    }
}

fn check(arguments: &GetArguments) -> anyhow::Result<()> {
    if !arguments.names.is_empty() && arguments.all_namespaces {
        bail!("names cannot be combined with -A; give the namespace with -n");
    }
    Ok(())
}

async fn show<K: Listed>(caller: &Caller, arguments: &GetArguments) -> anyhow::Result<()> {
    let api: Api<K> = if arguments.all_namespaces {
        Api::all(caller.client.clone())
    } else {
        Api::namespaced(caller.client.clone(), &caller.namespace)
    };
    if arguments.watch {
        return watch(api, arguments).await;
    }
    let objects = if arguments.names.is_empty() {
        let mut params = ListParams::default();
        params.label_selector.clone_from(&arguments.selector);
        let found = api.list(&params).await.map_err(kube_errors::request);
        let mut items = found.with_context(|| format!("list {}", K::plural(&())))?.items;
        items.sort_by_key(|object| (object.namespace(), object.name_any()));
        items
    } else {
        if arguments.selector.is_some() {
            bail!("names cannot be combined with a selector");
        }
        let mut found = Vec::new();
        for name in &arguments.names {
            let object = api.get(name).await.map_err(kube_errors::request);
            found.push(object.with_context(|| format!("{} {name}", K::kind(&())))?);
        }
        found
    };
    print_all(&objects, arguments)
}

fn print_all<K: Listed>(objects: &[K], arguments: &GetArguments) -> anyhow::Result<()> {
    let as_yaml = arguments.output == Output::Yaml;
    match arguments.output {
        Output::Json | Output::Yaml => match (objects, arguments.names.len()) {
            // One name gives one object and not a list, as in kubectl.
            ([only], 1) => output::print_value(only, as_yaml),
            _ => {
                let list =
                    serde_json::json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": objects});
                output::print_value(&list, as_yaml)
            }
        },
        Output::Name => {
            let names = objects.iter().map(name_of).collect::<Vec<_>>();
            output::print(&names.concat());
            Ok(())
        }
        Output::Table | Output::Wide if objects.is_empty() => {
            super::print_notice(&format!("no {} found", K::plural(&())));
            Ok(())
        }
        Output::Table | Output::Wide => {
            output::print(&table(objects, arguments).text());
            Ok(())
        }
    }
}

fn name_of<K: Listed>(object: &K) -> String {
    let kind = K::kind(&()).to_lowercase();
    format!("{kind}.{}/{}\n", K::group(&()), object.name_any())
}

fn table<K: Listed>(objects: &[K], arguments: &GetArguments) -> Table {
    let wide = arguments.output == Output::Wide;
    let mut headings = K::Row::headings(wide);
    if arguments.all_namespaces {
        headings.insert(0, "NAMESPACE");
    }
    let mut table = Table::new(&headings);
    let now = Timestamp::now();
    for object in objects {
        table.push(row(object, arguments, now));
    }
    table
}

fn row<K: Listed>(object: &K, arguments: &GetArguments, now: Timestamp) -> Vec<String> {
    let mut row = object.summarize().cells(arguments.output == Output::Wide, now);
    if arguments.all_namespaces {
        row.insert(0, object.namespace().unwrap_or_default());
    }
    row
}

/// Lists the objects, then prints each change. Ends only if the management cluster refuses the watch.
async fn watch<K: Listed>(api: Api<K>, arguments: &GetArguments) -> anyhow::Result<()> {
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&arguments.selector);
    let events = watcher(api, config).default_backoff();
    futures::pin_mut!(events);
    let mut failures = kube_errors::WatchFailures::default();
    let mut shown: HashMap<(Option<String>, String), Option<String>> = HashMap::new();
    let (mut first, mut widths): (Option<Vec<K>>, Vec<usize>) = (Some(Vec::new()), Vec::new());
    let is_meant = |object: &K| arguments.names.is_empty() || arguments.names.contains(&object.name_any());
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(()),
            Err(error) => {
                if let Some(text) = failures.record(error)? {
                    super::print_notice(&text);
                }
                continue;
            }
        };
        failures.observe(&event);
        let object = match event {
            watcher::Event::Init => continue,
            watcher::Event::InitDone => {
                if let Some(objects) = first.take() {
                    if matches!(arguments.output, Output::Table | Output::Wide) {
                        let table = table(&objects, arguments);
                        widths = table.widths();
                        output::print(&table.text());
                    } else {
                        objects
                            .iter()
                            .try_for_each(|object| print_one(object, arguments, &widths))?;
                    }
                }
                continue;
            }
            watcher::Event::InitApply(object)
            | watcher::Event::Apply(object)
            | watcher::Event::Delete(object) => object,
        };
        if !is_meant(&object) {
            continue;
        }
        // After a reconnect everything is listed again; only changed objects are printed.
        let key = (object.namespace(), object.name_any());
        let version = object.resource_version();
        if shown.insert(key, version.clone()) == Some(version) {
            continue;
        }
        match &mut first {
            Some(objects) => objects.push(object),
            None => print_one(&object, arguments, &widths)?,
        }
    }
}

fn print_one<K: Listed>(object: &K, arguments: &GetArguments, widths: &[usize]) -> anyhow::Result<()> {
    match arguments.output {
        Output::Json | Output::Yaml => output::print_value(object, arguments.output == Output::Yaml)?,
        Output::Name => output::print(&name_of(object)),
        Output::Table | Output::Wide => {
            let mut table = Table::default();
            table.push(row(object, arguments, Timestamp::now()));
            output::print(&table.text_with(widths));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        get: GetArguments,
    }

    #[test]
    fn names_of_all_namespaces_are_refused() {
        let checked = |line: &[&str]| check(&Line::parse_from([&["get"], line].concat()).get);
        let error = checked(&["groups", "shop", "-A"]).unwrap_err().to_string();
        assert!(error.contains("-A") && error.contains("-n"), "{error}");
        for line in [&["groups", "-A"][..], &["groups", "shop", "-n", "fleet"]] {
            assert!(checked(line).is_ok(), "{line:?}");
        }
    }
}

//! `starling get`: tables of what Starling keeps, with more than `kubectl get` shows, in the same manners.

mod rows;

use std::collections::HashMap;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use futures::TryStreamExt as _;
use jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde::Serialize;
use starling_api::{Cluster, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource};

use self::rows::Row;
pub(super) use self::rows::{short, shorts};
use super::caller::{Caller, CallerArguments};
use super::explain;
use super::lists::Namespaced;
use super::output::{self, Output, Table};

/// What is shown.
#[derive(Debug, Args)]
pub(super) struct GetArguments {
    /// The kind; kubectl's names are understood too
    #[arg(value_name = "KIND", value_enum, default_value_t = Kind::Groups)]
    kind: Kind,
    /// Names; without any, all
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Labels that objects must have
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    selector: Option<String>,
    /// Of all namespaces
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Go on and print what changes
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    caller: CallerArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// SyncGroups and how far they are
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
    /// What was approved
    #[value(alias = "approval", alias = "rolloutapprovals", alias = "rolloutapproval")]
    Approvals,
    /// What was asked of rollouts
    #[value(alias = "action", alias = "rolloutactions", alias = "rolloutaction")]
    Actions,
}

/// Objects of one kind.
trait Shown: Namespaced + Serialize + Send + 'static + Row {}

impl<K> Shown for K where K: Namespaced + Serialize + Send + 'static + Row {}

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
    }
}

fn check(arguments: &GetArguments) -> anyhow::Result<()> {
    if !arguments.names.is_empty() && arguments.all_namespaces {
        bail!(
            "names are of one namespace: leave -A away, and give the namespace with -n if it is not that of the context"
        );
    }
    Ok(())
}

async fn show<K: Shown>(caller: &Caller, arguments: &GetArguments) -> anyhow::Result<()> {
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
        let found = api.list(&params).await.map_err(explain::request);
        let mut items = found.with_context(|| format!("list {}", K::plural(&())))?.items;
        items.sort_by_key(|object| (object.namespace(), object.name_any()));
        items
    } else {
        if arguments.selector.is_some() {
            bail!("give names or a selector, not both");
        }
        let mut found = Vec::new();
        for name in &arguments.names {
            let object = api.get(name).await.map_err(explain::request);
            found.push(object.with_context(|| format!("{} {name}", K::kind(&())))?);
        }
        found
    };
    print_all(&objects, arguments)
}

fn print_all<K: Shown>(objects: &[K], arguments: &GetArguments) -> anyhow::Result<()> {
    let as_yaml = arguments.output == Output::Yaml;
    match arguments.output {
        Output::Json | Output::Yaml => match (objects, arguments.names.len()) {
            // What was asked for by one name is one object, as kubectl has it.
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
            super::say(&format!("no {} found", K::plural(&())));
            Ok(())
        }
        Output::Table | Output::Wide => {
            output::print(&table(objects, arguments).text());
            Ok(())
        }
    }
}

fn name_of<K: Shown>(object: &K) -> String {
    let kind = K::kind(&()).to_lowercase();
    format!("{kind}.{}/{}\n", K::group(&()), object.name_any())
}

fn table<K: Shown>(objects: &[K], arguments: &GetArguments) -> Table {
    let wide = arguments.output == Output::Wide;
    let mut headings = K::headings(wide);
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

fn row<K: Shown>(object: &K, arguments: &GetArguments, now: Timestamp) -> Vec<String> {
    let mut row = object.row(arguments.output == Output::Wide, now);
    if arguments.all_namespaces {
        row.insert(0, object.namespace().unwrap_or_default());
    }
    row
}

/// Prints what is there, and then each object that changes. It ends only if the management cluster refuses it.
async fn watch<K: Shown>(api: Api<K>, arguments: &GetArguments) -> anyhow::Result<()> {
    let mut config = watcher::Config::default();
    config.label_selector.clone_from(&arguments.selector);
    let events = watcher(api, config).default_backoff();
    futures::pin_mut!(events);
    let mut breaks = explain::Breaks::default();
    let mut shown: HashMap<(Option<String>, String), Option<String>> = HashMap::new();
    let (mut first, mut widths): (Option<Vec<K>>, Vec<usize>) = (Some(Vec::new()), Vec::new());
    let is_meant = |object: &K| arguments.names.is_empty() || arguments.names.contains(&object.name_any());
    loop {
        let event = match events.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(()),
            Err(error) => {
                if let Some(text) = breaks.one_more(error)? {
                    super::say(&text);
                }
                continue;
            }
        };
        breaks.observe(&event);
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
        // After a break everything is listed anew; only what is new is shown.
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

fn print_one<K: Shown>(object: &K, arguments: &GetArguments, widths: &[usize]) -> anyhow::Result<()> {
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

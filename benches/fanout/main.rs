//! `cargo bench --bench fanout`: the time of a commit to twenty real clusters, compared with a lower bound (the floor).
//!
//! Both sides send the same objects to the same API servers, one after the other within each round, and are measured
//! the same way. `docs/benchmarks.md` explains the columns. The benchmark asserts nothing about time: a busy machine
//! must not fail a build.
//!
//! Options, after `--`: `--members N`, `--objects N,N`, `--rounds N`, `--concurrency N`, `--log FILE`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "printing is what a benchmark is for"
)]

mod content;
mod floor;
mod options;
mod starling;
mod table;
mod usage;
mod watch;

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::PostParams;
use starling_testkit::{Fleet, FleetOptions};

use crate::content::Content;
use crate::floor::{Job, Member};
use crate::options::Options;
use crate::starling::{Application, Starling};
use crate::table::{HEAD, Row};

/// The optimised program: `cargo bench` builds it first.
const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
/// Numbers of connections per member that are tried for the floor. All cases use the best one.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];
/// Number of objects of the trial.
const TRIAL: usize = 20;

fn main() -> Result<()> {
    if std::env::var_os(floor::ENVIRONMENT).is_some() {
        return floor::main();
    }
    let options = Options::from_arguments(std::env::args().skip(1))?;
    tokio::runtime::Runtime::new()?.block_on(run(&options))
}

async fn run(options: &Options) -> Result<()> {
    eprintln!("starting 1 + {} control planes", options.members);
    let fleet = Fleet::start(FleetOptions {
        members: options.members,
        ..FleetOptions::default()
    })
    .await?;
    for n in 1..=options.members {
        fleet.add_cluster(&format!("m{n}"), &[]).await?;
    }
    let result = measure(&fleet, options).await;
    if let Some(log) = &options.log {
        std::fs::copy(fleet.log(), log)?;
    }
    result
}

async fn measure(fleet: &Fleet, options: &Options) -> Result<()> {
    let members = reach(fleet, options.members)?;
    let width = best_width(fleet, &members).await?;
    let starling = Starling::start(fleet, PROGRAM, options.members, &options.concurrency).await?;
    println!(
        "{} members, {} round(s), --concurrency {}, floor with {width} connection(s) per member",
        options.members, options.rounds, options.concurrency
    );
    println!("{HEAD}");
    for objects in &options.objects {
        let side = Side {
            starling: &starling,
            members: &members,
            width,
            rounds: options.rounds,
        };
        side.compare(*objects).await?;
    }
    Ok(())
}

/// Both sides of the comparison.
struct Side<'a> {
    starling: &'a Starling<'a>,
    members: &'a [Member],
    width: usize,
    rounds: usize,
}

impl Side<'_> {
    async fn compare(&self, objects: usize) -> Result<()> {
        let (mut app, mut bare) = self.first(objects).await?;
        self.changes("(b) one changed", objects, 1, &mut app, &mut bare)
            .await?;
        self.changes("(c) all changed", objects, objects, &mut app, &mut bare)
            .await?;
        self.nothing_changed(objects, &bare).await?;
        self.starling.delete(&app).await
    }

    /// Measures the first apply. Each round has namespaces of its own; the last application stays for the other cases.
    async fn first(&self, objects: usize) -> Result<(Application, Content)> {
        let mut row = row("(a) first apply", objects);
        let mut round = 0;
        loop {
            let app = Application::new(&format!("app-{objects}-{round}"), objects)?;
            let bare = Content::new(&format!("bare-{objects}-{round}"), objects);
            for namespace in [&app.name, &bare.namespace] {
                make_namespace(self.starling.fleet, self.starling.members, namespace).await?;
            }
            row.floor.push(self.floor(bare.patches(objects)).await?);
            row.starling.push(self.starling.first(&app).await?);
            round += 1;
            if round == self.rounds {
                println!("{}", row.line());
                return Ok((app, bare));
            }
            self.starling.delete(&app).await?;
        }
    }

    async fn changes(
        &self,
        case: &'static str,
        objects: usize,
        changed: usize,
        app: &mut Application,
        bare: &mut Content,
    ) -> Result<()> {
        let mut row = row(case, objects);
        for _ in 0..self.rounds {
            bare.change(changed);
            row.floor.push(self.floor(bare.patches(changed)).await?);
            app.content.change(changed);
            row.starling.push(self.starling.change(app).await?);
        }
        println!("{}", row.line());
        Ok(())
    }

    async fn nothing_changed(&self, objects: usize, bare: &Content) -> Result<()> {
        let mut row = row("(d) nothing changed", objects);
        for round in 0..self.rounds {
            row.floor.push(self.floor(bare.list()).await?);
            row.starling.push(self.starling.reconcile(round).await?);
        }
        println!("{}", row.line());
        Ok(())
    }

    async fn floor(&self, calls: Vec<floor::Call>) -> Result<floor::Sample> {
        run_floor(self.members, calls, self.width).await
    }
}

fn row(case: &'static str, objects: usize) -> Row {
    Row {
        case,
        objects,
        floor: Vec::new(),
        starling: Vec::new(),
    }
}

async fn run_floor(members: &[Member], calls: Vec<floor::Call>, connections: usize) -> Result<floor::Sample> {
    Job {
        members: members.to_vec(),
        calls,
        connections,
    }
    .run()
    .await
}

/// Finds the best number of connections for the floor. The first width is tried twice: the first run warms the servers
/// up.
async fn best_width(fleet: &Fleet, members: &[Member]) -> Result<usize> {
    let mut content = Content::new("bare-trial", TRIAL);
    make_namespace(fleet, members.len(), &content.namespace).await?;
    run_floor(members, content.patches(TRIAL), WIDTHS[0]).await?;
    let mut tried = Vec::new();
    for width in WIDTHS {
        content.change(TRIAL);
        let taken = run_floor(members, content.patches(TRIAL), width).await?;
        eprintln!(
            "floor with {width} connection(s) per member: {:.2} s",
            taken.wall.as_secs_f64()
        );
        tried.push((taken.wall, width));
    }
    Ok(tried.into_iter().min().map_or(WIDTHS[0], |(_, width)| width))
}

fn reach(fleet: &Fleet, members: usize) -> Result<Vec<Member>> {
    (1..=members)
        .map(|n| {
            let plane = fleet.plane(&format!("m{n}"))?;
            Ok(Member {
                address: plane.url().trim_start_matches("https://").to_owned(),
                ca_pem: plane.ca_pem().to_owned(),
                token: plane.token().reveal().to_owned(),
            })
        })
        .collect()
}

async fn make_namespace(fleet: &Fleet, members: usize, name: &str) -> Result<()> {
    for n in 1..=members {
        let api: Api<Namespace> = Api::all(fleet.member(&format!("m{n}")).await?);
        let mut namespace = Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        api.create(&PostParams::default(), &namespace).await?;
    }
    Ok(())
}

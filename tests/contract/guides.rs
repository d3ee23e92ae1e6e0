//! The guides of `docs/guides`: every command runs, every reason is documented.
//!
//! In a guide, blocks marked `sh` run in order, each in its own shell; a block marked `sh controller` or `sh server` is
//! started and keeps running. A following block marked `output` is its expected output, in which `…` matches any one
//! word. Blocks with other marks do not run.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use starling_controlplane::{Assets, ControlPlanes, Options, free_port};
use starling_testkit::{Launch, Process, SopsTools, program, wait};
use tokio::process::Command;

/// The guides in reading order; all of them run in one folder, on one fleet.
const GUIDES: [&str; 14] = [
    "getting-started.md",
    "clusters.md",
    "concepts.md",
    "rollouts.md",
    "explain.md",
    "isolation.md",
    "substitution.md",
    "secrets.md",
    "health.md",
    "drift.md",
    "deleting.md",
    "backup-and-restore.md",
    "troubleshooting.md",
    "standalone.md",
];
/// Time limit of one block; waits in a block have their own.
const LIMIT: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn guide(name: &str) -> Result<String> {
    Ok(std::fs::read_to_string(root().join("docs/guides").join(name))?)
}

struct Block {
    mark: String,
    text: String,
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for line in markdown.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(mark)) => {
                open = Some(Block {
                    mark: mark.to_owned(),
                    text: String::new(),
                });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks
}

/// The environment of the commands: a folder with the kubeconfigs, and a `PATH` with the programs.
struct Workspace {
    folder: tempfile::TempDir,
    path: String,
    port: u16,
}

impl Workspace {
    fn new(planes: &ControlPlanes) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        for plane in planes.iter() {
            std::fs::write(
                folder.path().join(format!("{}.kubeconfig", plane.name())),
                plane.kubeconfig_yaml(),
            )?;
        }
        for name in ["crds", "deploy"] {
            symlink(root().join(name), folder.path().join(name))?;
        }
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin)?;
        symlink(program(), bin.join("starling"))?;
        symlink(planes.assets().kubectl(), bin.join("kubectl"))?;
        symlink(
            planes.assets().kustomize().context("kustomize")?,
            bin.join("kustomize"),
        )?;
        let tools = SopsTools::find()?;
        symlink(tools.sops(), bin.join("sops"))?;
        symlink(tools.age_keygen(), bin.join("age-keygen"))?;
        let path = format!("{}:{}", bin.display(), std::env::var("PATH")?);
        Ok(Self {
            folder,
            path,
            port: free_port()?,
        })
    }

    /// Runs a block and returns its output.
    async fn run(&self, text: &str) -> Result<String> {
        let command = Command::new("bash")
            .args(["-euo", "pipefail", "-c", text])
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .env("KUBECONFIG", self.folder.path().join("management.kubeconfig"))
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(LIMIT, command)
            .await
            .context("not done in time")??;
        let (out, err) = (
            String::from_utf8(output.stdout)?,
            String::from_utf8(output.stderr)?,
        );
        ensure!(output.status.success(), "{}\n{out}{err}", output.status);
        Ok(out)
    }

    /// Starts a block that keeps running, on a free port.
    fn start(&self, text: &str, log: &Path) -> Result<Process> {
        ensure!(text.contains(":8080"), "the block names no port: {text}");
        self.launch(&text.replace(":8080", &format!(":{}", self.port)), log)
    }

    /// Starts a block that keeps running, and waits until it serves.
    async fn serve(&self, text: &str) -> Result<Process> {
        let process = self.launch(text, &self.folder.path().join("server.log"))?;
        let serves = wait::until(LIMIT, "the server serves", async || {
            let said = process.log_tail(20).unwrap_or_default();
            if said.contains("serving ") {
                Ok(())
            } else {
                Err(said)
            }
        });
        serves.await?;
        Ok(process)
    }

    fn launch(&self, text: &str, log: &Path) -> Result<Process> {
        // `exec`, so that the stopped process is the program and not a shell.
        let script = format!("cd '{}' && exec {text}", self.folder.path().display());
        let launch = Launch::new("controller", "bash", log)
            .args(["-c", &script])
            .env("PATH", &self.path);
        Ok(Process::start(&launch)?)
    }
}

fn words(text: &str) -> Vec<Vec<&str>> {
    text.trim()
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

/// Whether a text ends with the output in a guide, in which `…` matches any word. Guides do not show the output of the
/// commands before the last one.
fn matches_output(expected: &str, printed: &str) -> bool {
    let (expected, mut printed) = (words(expected), words(printed));
    let printed = printed.split_off(printed.len().saturating_sub(expected.len()));
    expected.len() == printed.len()
        && expected.iter().zip(&printed).all(|(expected, printed)| {
            expected.len() == printed.len()
                && expected
                    .iter()
                    .zip(printed)
                    .all(|(expected, word)| *expected == "…" || expected == word)
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_guides_works() -> Result<()> {
    let names = ["management", "eu-1", "us-1"];
    // A deleted namespace goes away only where its controller runs.
    let options = Options {
        controller_manager_for: vec!["eu-1".to_owned()],
        ..Options::default()
    };
    let planes = ControlPlanes::start(&Assets::find()?, &names, options).await?;
    let workspace = Workspace::new(&planes)?;
    let log = workspace.folder.path().join("controller.log");
    let mut controller = None;
    let mut server = None;
    let (mut ran, mut compared) = (0, 0);
    for name in GUIDES {
        let mut printed = String::new();
        for block in blocks(&guide(name)?) {
            match block.mark.as_str() {
                "sh" => {
                    printed = workspace.run(&block.text).await.with_context(|| {
                        let expected = std::fs::read_to_string(&log).unwrap_or_default();
                        format!("{name}:\n{}\nthe controller's log:\n{expected}", block.text)
                    })?;
                    ran += 1;
                }
                "sh server" => server = Some(workspace.serve(&block.text).await?),
                "sh controller" => controller = Some(workspace.start(&block.text, &log)?),
                "output" => {
                    assert!(
                        matches_output(&block.text, &printed),
                        "{name} tells\n{}and it printed\n{printed}",
                        block.text
                    );
                    compared += 1;
                }
                _ => {}
            }
        }
    }
    // With a wrong mark, a block would silently not run.
    assert!(
        ran >= 10 && compared >= 6,
        "{ran} blocks ran, {compared} outputs were compared"
    );
    let controller = controller.context("a guide that starts the controller")?;
    assert!(controller.exit_status()?.is_none(), "the controller has ended");
    let server = server.context("a guide that starts a server")?;
    assert!(server.exit_status()?.is_none(), "the server has ended");
    Ok(())
}

/// Files whose CamelCase literals are reasons.
fn sources_of_reasons() -> Result<Vec<PathBuf>> {
    let core = root().join("crates/core/src");
    let mut files = vec![
        core.join("plan/types.rs"),
        core.join("plan/stages.rs"),
        core.join("progress.rs"),
        core.join("rollout/status.rs"),
        core.join("rollout/step.rs"),
        core.join("rollout/transition.rs"),
        core.join("step.rs"),
        core.join("revision/advance.rs"),
    ];
    let mut folders = vec![root().join("src/controller")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if !path.ends_with("tests.rs") {
                files.push(path);
            }
        }
    }
    Ok(files)
}

/// CamelCase literals that are not reasons: kinds, values of conditions, the action and the types of events.
const NOT_REASONS: [&str; 12] = [
    "Reconcile",
    "Normal",
    "Warning",
    "Cluster",
    "Secret",
    "Source",
    "Sync",
    "SyncGroup",
    "Syncs",
    "True",
    "False",
    "Unknown",
];

fn reasons_in(code: &str) -> BTreeSet<String> {
    let code = code.split("[cfg(test)]").next().unwrap_or_default();
    code.lines()
        // The name of a type in a `Debug` implementation is not a reason either.
        .filter(|line| !line.trim_start().starts_with("//") && !line.contains("debug_struct("))
        .flat_map(|line| line.split('"').skip(1).step_by(2))
        .filter(|text| text.starts_with(char::is_uppercase) && text.chars().all(|c| c.is_ascii_alphabetic()))
        .filter(|text| text.chars().any(char::is_lowercase) && !NOT_REASONS.contains(text))
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_reason_is_documented_and_no_other() -> Result<()> {
    let page = guide("troubleshooting.md")?;
    let mut reasons = BTreeSet::new();
    for file in sources_of_reasons()? {
        reasons.extend(reasons_in(&std::fs::read_to_string(file)?));
    }
    assert!(reasons.len() > 40, "{reasons:?}");
    let missing: Vec<_> = reasons
        .iter()
        .filter(|reason| !page.contains(&format!("`{reason}`")))
        .collect();
    assert!(missing.is_empty(), "not in troubleshooting.md: {missing:?}");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let undocumented_rows: Vec<_> = rows.filter(|row| !reasons.contains(*row)).collect();
    assert!(
        undocumented_rows.is_empty(),
        "in troubleshooting.md and not in the code: {undocumented_rows:?}"
    );
    Ok(())
}

#[test]
fn links_between_guides_are_valid() -> Result<()> {
    for name in GUIDES {
        let page = guide(name)?;
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !target.contains("://") {
                assert!(
                    root().join("docs/guides").join(target).exists(),
                    "{name} links to {target}"
                );
            }
        }
    }
    Ok(())
}

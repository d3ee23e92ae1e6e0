//! A build that gets only what it reads has the same result as one that gets everything: of generated trees, and of
//! those that others publish.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use starling_render::{BuildTool, FileKind, Files, RenderError, RenderLimits, Renderer, reached};
use tempfile::TempDir;

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    )
}

fn renderer() -> Renderer {
    let named = std::env::var_os("STARLING_KUSTOMIZE").map(PathBuf::from);
    let assets =
        std::env::var_os("KUBEBUILDER_ASSETS").map(|directory| Path::new(&directory).join("kustomize"));
    let candidates = [named, assets, Some(target().join("controlplane/bin/kustomize"))];
    let found = candidates.into_iter().flatten().find(|path| path.is_file());
    let program = found.expect("kustomize is missing: run tests/controlplane/build.sh first");
    Renderer::new(BuildTool::Kustomize(program), RenderLimits::default())
}

/// The files of a directory on disk.
struct OnDisk<'a>(&'a Path);

impl Files for OnDisk<'_> {
    fn kind(&self, path: &Path) -> io::Result<Option<FileKind>> {
        let path = self.0.join(path);
        let Ok(meta) = fs::symlink_metadata(&path) else {
            return Ok(None);
        };
        Ok(Some(match meta.file_type() {
            kind if kind.is_symlink() => FileKind::Link(fs::read_link(path)?),
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_file() => FileKind::File,
            _ => FileKind::Other,
        }))
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(self.0.join(directory))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn read(&self, path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
        let content = fs::read(self.0.join(path))?;
        Ok((content.len() <= limit).then_some(content))
    }
}

/// Copies these paths of a tree, and nothing else.
fn selected(tree: &Path, paths: &BTreeSet<PathBuf>) -> TempDir {
    let copy = tempfile::tempdir().expect("copy");
    for path in paths {
        let (from, to) = (tree.join(path), copy.path().join(path));
        let kind = fs::symlink_metadata(&from).expect("reached").file_type();
        if kind.is_dir() {
            fs::create_dir_all(to).expect("directory");
        } else if kind.is_symlink() {
            symlink(fs::read_link(from).expect("link"), to).expect("link");
        } else {
            fs::copy(from, to).expect("file");
        }
    }
    copy
}

/// What a build gives: its objects as JSON, or the text of its error with the sources.
async fn outcome(tree: &Path, path: &str, namespace: &str) -> Result<String, String> {
    match renderer().build(tree, path, namespace, None).await {
        Ok(manifests) => Ok(serde_json::to_string_pretty(&manifests.objects).expect("JSON")),
        Err(error) => Err(text(&error)),
    }
}

fn text(error: &RenderError) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

/// Builds a path from the whole tree, and from what it reaches: both have the same outcome, down to the words of an
/// error. Returns whether it was built. What is refused without a build is no build of the whole tree either, which may
/// have met another error first.
async fn is_same(tree: &Path, path: &str, namespace: &str) -> Result<bool, String> {
    let whole = outcome(tree, path, namespace).await;
    let selected = match reached(&OnDisk(tree), path) {
        Ok(paths) => outcome(selected(tree, &paths).path(), path, namespace).await,
        Err(_) if whole.is_err() => return Ok(false),
        Err(error) => Err(text(&error)),
    };
    if whole == selected {
        Ok(whole.is_ok())
    } else {
        Err(format!("{path}: {whole:?} is not {selected:?}"))
    }
}

fn copy_whole(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("directory");
    for entry in fs::read_dir(from).expect("directory") {
        let entry = entry.expect("entry");
        let (kind, to) = (entry.file_type().expect("kind"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy_whole(&entry.path(), &to);
        } else if kind.is_file() {
            fs::write(to, fs::read(entry.path()).expect("file")).expect("file");
        }
    }
}

/// Returns every directory with a kustomization.
fn kustomizations(tree: &Path) -> Vec<String> {
    let (mut found, mut ahead) = (Vec::new(), vec![tree.to_owned()]);
    while let Some(directory) = ahead.pop() {
        let names = ["kustomization.yaml", "kustomization.yml", "Kustomization"];
        if names.iter().any(|name| directory.join(name).is_file()) {
            let relative = directory.strip_prefix(tree).expect("below");
            found.push(relative.display().to_string());
        }
        for entry in fs::read_dir(&directory).expect("directory") {
            let entry = entry.expect("entry");
            if entry.file_type().expect("kind").is_dir() {
                ahead.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// The kustomizations of kustomize's examples, and those of Argo CD.
#[tokio::test]
async fn public_kustomizations_build_the_same_from_what_they_reach() {
    let public = target().join("kustomizations");
    let mut built = 0;
    for name in ["kustomize-examples", "argo-cd", "argo-cd-examples"] {
        let from = public.join(name);
        assert!(
            from.is_dir(),
            "{name} is missing: run tests/kustomizations/build.sh first"
        );
        let tree = tempfile::tempdir().expect("tree");
        // The module cache is read-only, and a plain directory gets a kustomization.
        copy_whole(&from, tree.path());
        for path in kustomizations(tree.path()) {
            let same = is_same(tree.path(), &path, "").await;
            built += usize::from(same.unwrap_or_else(|error| panic!("{name}: {error}")));
        }
    }
    // A few are remote, or have charts.
    assert!(built >= 45, "{built}");
}

/// A generated tree: some directories, and files that may or may not be named.
#[derive(Clone, Debug)]
struct Generated {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    namespace: &'static str,
}

const DIRECTORIES: [&str; 5] = ["app", "app/sub", "base", "lib/one", "lib/two"];

/// A directory of the generated tree.
#[derive(Clone, Debug)]
struct Directory {
    /// Which fields the kustomization has; `None` without a kustomization.
    fields: Option<Vec<Field>>,
    /// The text of its files differs.
    salt: u8,
    broken: bool,
}

/// One field of a kustomization, and the index of the directory that it leads to.
#[derive(Clone, Copy, Debug)]
enum Field {
    Resource(usize),
    Directory(usize),
    Component(usize),
    ConfigMap(usize),
    Env(usize),
    Secret,
    Patch,
    StrategicPatch,
    Replacement,
    Transformer,
    PluginDirectory,
    Prefix,
    Crd,
    Configuration,
    OpenApi,
}

fn field() -> impl Strategy<Value = Field> {
    (0..15, 0..DIRECTORIES.len()).prop_map(|(kind, to)| match kind {
        0 | 1 => Field::Resource(to),
        2 => Field::Directory(to),
        3 => Field::Component(to),
        4 => Field::ConfigMap(to),
        5 => Field::Env(to),
        6 => Field::Secret,
        7 => Field::Patch,
        8 => Field::StrategicPatch,
        9 => Field::Replacement,
        10 => Field::Transformer,
        11 => Field::PluginDirectory,
        12 => Field::Prefix,
        13 => Field::Crd,
        _ => {
            if to % 2 == 0 {
                Field::Configuration
            } else {
                Field::OpenApi
            }
        }
    })
}

fn generated() -> impl Strategy<Value = Generated> {
    let directory = (
        prop::option::weighted(0.75, prop::collection::vec(field(), 0..6)),
        any::<u8>(),
        prop::bool::weighted(0.03),
    )
        .prop_map(|(fields, salt, broken)| Directory { fields, salt, broken });
    let directories = prop::collection::vec(directory, DIRECTORIES.len());
    let links = prop::collection::vec((0..DIRECTORIES.len(), 0..DIRECTORIES.len(), any::<bool>()), 0..3);
    let namespace = prop::sample::select(vec!["", "", "target"]);
    (directories, links, namespace).prop_map(|(directories, links, namespace)| {
        let mut files = BTreeMap::new();
        for (index, directory) in directories.iter().enumerate() {
            write_directory(&mut files, index, directory);
        }
        files.insert("app/notes/README.md".to_owned(), "not YAML: {".to_owned());
        let links = links
            .into_iter()
            .map(|(from, to, file)| link(from, to, file))
            .collect();
        Generated {
            files,
            links,
            namespace,
        }
    })
}

/// A link to a file, which replaces the file with that name, or to a directory.
fn link(from: usize, to: usize, file: bool) -> (String, String) {
    let back = "../".repeat(DIRECTORIES[from].split('/').count());
    let (from, to) = (DIRECTORIES[from], DIRECTORIES[to]);
    if file {
        (format!("{from}/env.env"), format!("{back}{to}/other.env"))
    } else {
        (format!("{from}/linked"), format!("{back}{to}"))
    }
}

fn write_directory(files: &mut BTreeMap<String, String>, index: usize, directory: &Directory) {
    let (here, salt) = (DIRECTORIES[index], directory.salt);
    let mut put = |name: &str, text: String| files.insert(format!("{here}/{name}"), text);
    put(
        "map.yaml",
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{index}}}\ndata: {{a: 's{salt}'}}\n"),
    );
    put("env.env", format!("KEY={salt}\n"));
    put("other.env", format!("OTHER={salt}\n"));
    put("text.txt", format!("text {salt}\n"));
    put(
        "patch.conf",
        format!("- {{op: add, path: /data/patched, value: 'p{salt}'}}\n"),
    );
    put(
        "strategic.conf",
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map-{index}}}\ndata: {{merged: 'm{salt}'}}\n"
        ),
    );
    put(
        "replacement.conf",
        "source: {kind: ConfigMap, fieldPath: data.a}\ntargets:\n- select: {kind: ConfigMap}\n  fieldPaths: [data.b]\n  options: {create: true}\n"
            .to_owned(),
    );
    put(
        "transformer.conf",
        format!(
            "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {{name: t-{index}}}\npath: patch.conf\ntarget: {{kind: ConfigMap}}\n"
        ),
    );
    put(
        "plugins/kustomization.yaml",
        "resources: [plugin.yaml]\n".to_owned(),
    );
    put(
        "plugins/plugin.yaml",
        format!(
            "apiVersion: builtin\nkind: LabelTransformer\nmetadata: {{name: l-{index}}}\nlabels: {{salt: 's{salt}'}}\nfieldSpecs: [{{path: metadata/labels, create: true}}]\n"
        ),
    );
    put("crd.json", "{}\n".to_owned());
    put("names.conf", "namePrefix:\n- path: metadata/name\n".to_owned());
    put("schema.json", "{\"definitions\": {}}\n".to_owned());
    if let Some(fields) = &directory.fields {
        let text = kustomization(index, fields);
        put(
            "kustomization.yaml",
            if directory.broken { "{".to_owned() } else { text },
        );
    }
}

fn kustomization(index: usize, fields: &[Field]) -> String {
    let back = "../".repeat(DIRECTORIES[index].split('/').count());
    let mut lists: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut text = String::new();
    if index == 4 {
        text.push_str("kind: Component\napiVersion: kustomize.config.k8s.io/v1alpha1\n");
    }
    for (number, field) in fields.iter().enumerate() {
        // Most files lie beside their kustomization: kustomize refuses others. Resources may lie anywhere.
        let (name, entry) = match *field {
            Field::Resource(to) if to == index => ("resources", "map.yaml".to_owned()),
            Field::Resource(to) => ("resources", format!("{back}{}/linked/map.yaml", DIRECTORIES[to])),
            Field::Directory(to) => ("resources", format!("{back}{}", DIRECTORIES[to])),
            Field::Component(to) => ("components", format!("{back}{}", DIRECTORIES[to])),
            Field::ConfigMap(to) => (
                "configMapGenerator",
                format!("{{name: c-{index}-{number}, files: [text.txt, 'k{to}=other.env']}}"),
            ),
            Field::Env(to) => (
                "configMapGenerator",
                format!("{{name: e-{index}-{number}, envs: [env.env], literals: ['l={to}']}}"),
            ),
            Field::Secret => (
                "secretGenerator",
                format!("{{name: s-{index}-{number}, files: [text.txt]}}"),
            ),
            Field::Patch => (
                "patches",
                "{path: patch.conf, target: {kind: ConfigMap}}".to_owned(),
            ),
            Field::StrategicPatch => ("patchesStrategicMerge", "strategic.conf".to_owned()),
            Field::Replacement => ("replacements", "{path: replacement.conf}".to_owned()),
            Field::Transformer => ("transformers", "transformer.conf".to_owned()),
            Field::PluginDirectory => ("transformers", "./plugins".to_owned()),
            Field::Prefix => ("labels", format!("{{pairs: {{p{number}: x}}}}")),
            Field::Crd => ("crds", "crd.json".to_owned()),
            Field::Configuration => ("configurations", "names.conf".to_owned()),
            Field::OpenApi => {
                lists.insert("openapi", Vec::new());
                continue;
            }
        };
        let list = lists.entry(name).or_default();
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
    for (name, entries) in lists {
        if name == "openapi" {
            text.push_str("openapi: {path: schema.json}\n");
            continue;
        }
        text.push_str(&format!("{name}:\n"));
        for entry in entries {
            text.push_str(&format!("- {entry}\n"));
        }
    }
    if text.is_empty() {
        text.push_str("resources: [map.yaml]\n");
    }
    text
}

fn write(generated: &Generated) -> TempDir {
    let tree = tempfile::tempdir().expect("tree");
    for (path, content) in &generated.files {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("directory");
        fs::write(path, content).expect("file");
    }
    for (path, target) in &generated.links {
        let path = tree.path().join(path);
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("link");
    }
    tree
}

#[test]
fn generated_kustomizations_build_the_same_from_what_they_reach() {
    let runtime = tokio::runtime::Runtime::new().expect("runtime");
    let (built, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let mut runner = TestRunner::new(Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    });
    let checked = runner.run(&generated(), |generated| {
        let tree = write(&generated);
        let same = runtime.block_on(is_same(tree.path(), "app", generated.namespace));
        match same {
            Ok(true) => built.set(built.get() + 1),
            Ok(false) => refused.set(refused.get() + 1),
            Err(error) => return Err(TestCaseError::fail(error)),
        }
        Ok(())
    });
    checked.expect("the same");
    // Both are common, or nothing was shown.
    let (built, refused) = (built.get(), refused.get());
    assert!(built >= 15 && refused >= 5, "{built} built, {refused} refused");
}

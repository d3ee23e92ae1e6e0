//! Renders with the real kustomize, and with faulty programs and malicious trees.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up fails by panicking"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use starling_core::ids::OwnerLabel;
use starling_render::{
    BuildTool, Isolation, Manifests, Refusal, RenderError, RenderLimits, Renderer, finish,
};
use tempfile::TempDir;

/// A program of the control plane that the tests run against.
fn program(name: &str, variable: Option<&str>) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let named = variable.and_then(std::env::var_os).map(PathBuf::from);
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(|folder| Path::new(&folder).join(name));
    let candidates = [named, assets, Some(target.join("controlplane/bin").join(name))];
    let found = candidates.into_iter().flatten().find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is missing: run tests/controlplane/build.sh first"))
}

fn kustomize() -> BuildTool {
    BuildTool::Kustomize(program("kustomize", Some("STARLING_KUSTOMIZE")))
}

fn kubectl() -> BuildTool {
    BuildTool::KubectlKustomize(program("kubectl", None))
}

/// A program that runs `behaviour.sh` in the folder.
fn fake() -> BuildTool {
    BuildTool::Kustomize(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/render/kustomize"))
}

fn renderer(tool: BuildTool) -> Renderer {
    Renderer::new(tool, RenderLimits::default())
}

/// A private tree with some files.
fn tree(files: &[(&str, &str)]) -> TempDir {
    let tree = tempfile::tempdir().expect("tree");
    for (path, content) in files {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, content).expect("file");
    }
    tree
}

fn tree_with_script(script: &str) -> TempDir {
    tree(&[
        ("app/kustomization.yaml", "resources: []\n"),
        ("app/behaviour.sh", script),
    ])
}

fn config_map(name: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  a: b\n")
}

/// `Kind namespace/name` of all objects, sorted.
fn keys(manifests: &Manifests) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut keys: Vec<String> = manifests
        .objects
        .iter()
        .map(|object| {
            let meta = &object["metadata"];
            format!(
                "{} {}/{}",
                text(&object["kind"]),
                text(&meta["namespace"]),
                text(&meta["name"])
            )
        })
        .collect();
    keys.sort();
    keys
}

async fn built(tool: BuildTool, tree: &TempDir, path: &str, namespace: &str) -> Manifests {
    match renderer(tool).build(tree.path(), path, namespace, None).await {
        Ok(manifests) => manifests,
        Err(error) => panic!("{error}: {:?}", std::error::Error::source(&error)),
    }
}

async fn failure(renderer: &Renderer, tree: &TempDir, path: &str) -> RenderError {
    match renderer.build(tree.path(), path, "", None).await {
        Ok(manifests) => panic!("built {} objects", manifests.objects.len()),
        Err(error) => error,
    }
}

/// Waits until a condition is met; fails after ten seconds.
async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a process still runs; a zombie does not.
fn runs(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.trim_start().starts_with('Z'))
    })
}

/// Returns the process IDs that a script wrote, once there are as many as expected.
async fn pids(tree: &TempDir, count: usize) -> Vec<String> {
    let path = tree.path().join("app/pids");
    let read = || -> Vec<String> {
        fs::read_to_string(&path)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    eventually("the processes have started", || read().len() == count).await;
    read()
}

async fn gone(pids: &[String]) {
    eventually("the processes have ended", || pids.iter().all(|pid| !runs(pid))).await;
}

/// Starts a child, writes both process IDs, and waits forever.
const SLEEPS: &str = "/bin/sleep 1000 &\necho $! >> base/pids\necho $$ >> base/pids\nwait\n";

// ---- what is rendered -----------------------------------------------------------------------------------

const OVERLAY: &[(&str, &str)] = &[
    ("base/kustomization.yaml", "resources: [web.yaml, role.yaml]\n"),
    (
        "base/web.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 1}\n",
    ),
    (
        "base/role.yaml",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: reader}\nrules: []\n",
    ),
    (
        "prod/kustomization.yaml",
        "namePrefix: prod-\nnamespace: mine\nresources: [../base]\npatches: [{path: p.yaml}]\n",
    ),
    (
        "prod/p.yaml",
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {replicas: 3}\n",
    ),
];

#[tokio::test]
async fn an_overlay_is_built_and_the_target_namespace_wins() {
    for tool in [kustomize(), kubectl()] {
        let tree = tree(OVERLAY);
        let own = built(tool.clone(), &tree, "prod", "").await;
        assert_eq!(
            keys(&own),
            ["ClusterRole /prod-reader", "Deployment mine/prod-web"]
        );
        assert!(!own.plain);
        let moved = built(tool, &tree, "./prod/", "shop").await;
        assert_eq!(
            keys(&moved),
            ["ClusterRole /prod-reader", "Deployment shop/prod-web"]
        );
        let web = moved
            .objects
            .iter()
            .find(|object| object["kind"] == "Deployment")
            .expect("web");
        assert_eq!(web["spec"]["replicas"], 3);
        let users = fs::read_to_string(tree.path().join("prod/kustomization.yaml")).expect("file");
        assert_eq!(users, OVERLAY[3].1, "the user's file was edited");
    }
}

#[tokio::test]
async fn a_plain_folder_is_built_with_all_its_subfolders() {
    for tool in [kustomize(), kubectl()] {
        let tree = tree(&[
            ("apps/a.yaml", &config_map("a")),
            (
                "apps/b.yml",
                &format!("{}---\n{}", config_map("b1"), config_map("b2")),
            ),
            ("apps/sub/deeper/c.yaml", &config_map("c")),
            (
                "apps/sub/own/kustomization.yaml",
                "namePrefix: own-\nresources: [d.yaml]\n",
            ),
            ("apps/sub/own/d.yaml", &config_map("d")),
            ("apps/sub/own/unlisted.yaml", &config_map("unlisted")),
            (
                "apps/github.com/org/repo/kustomization.yaml",
                "resources: [e.yaml]\n",
            ),
            ("apps/github.com/org/repo/e.yaml", &config_map("e")),
            ("apps/empty.yaml", "# nothing\n---\n"),
            ("apps/.hidden.yaml", "not: a manifest\n"),
            ("apps/.hidden/x.yaml", "not: a manifest\n"),
            ("apps/README.md", "# text\n"),
            ("apps/values.json", "{}"),
            ("other/x.yaml", &config_map("other")),
        ]);
        let expected = ["a", "b1", "b2", "c", "e", "own-d"].map(|name| format!("ConfigMap n/{name}"));
        assert_eq!(keys(&built(tool.clone(), &tree, "apps", "n").await), expected);
        assert!(
            !tree.path().join("apps/kustomization.yaml").exists(),
            "the generated file stayed"
        );
        let root = built(tool, &tree, "", "").await;
        assert_eq!(root.objects.len(), 7, "{:?}", keys(&root));
    }
}

fn widget(fields: &[String]) -> String {
    format!(
        "apiVersion: example.com/v1\nkind: Widget\nmetadata: {{name: w}}\nspec:\n  all:\n{}",
        fields
            .iter()
            .map(|field| format!("  - {field}\n"))
            .collect::<String>()
    )
}

/// A direct read has the same values as kustomize, with two exceptions: other words of YAML 1.1 for true and false are
/// strings for kustomize, and booleans for kubectl and for the direct reader; and kustomize adds a time to a date.
#[tokio::test]
async fn a_direct_read_has_the_same_values_as_kustomize() {
    let words = ["yes", "no", "on", "off", "y", "n", "NO", "On"].map(str::to_owned);
    let scalars = [
        "true",
        "False",
        "0644",
        "010",
        "08",
        "1_000",
        "0b11",
        "0x1F",
        "0o644",
        "1e3",
        "1.0",
        "1.5",
        "-7",
        "1:20",
        "~",
        "\"yes\"",
        "'0644'",
        "\"12e5678\"",
        "12e5678",
        "18446744073709551615",
        "!!str 12",
        "${X}",
    ]
    .map(str::to_owned);
    let tree = tree(&[
        ("words/a.yaml", &widget(&words)),
        ("scalars/a.yaml", &widget(&scalars)),
    ]);
    let by_kustomize = built(kustomize(), &tree, "scalars", "").await.objects;
    let directly = built(BuildTool::None, &tree, "scalars", "").await.objects;
    for (index, scalar) in scalars.iter().enumerate() {
        let value = |objects: &[Value]| objects[0]["spec"]["all"][index].clone();
        assert_eq!(value(&by_kustomize), value(&directly), "{scalar}");
    }
    assert_eq!(
        built(kustomize(), &tree, "words", "").await.objects[0]["spec"]["all"],
        json!(words)
    );
    let booleans = &built(BuildTool::None, &tree, "words", "").await.objects[0]["spec"]["all"];
    assert_eq!(
        *booleans,
        json!([true, false, true, false, true, false, false, true])
    );
}

/// kustomize decides again which strings need quotes, by the rules of Go: every string must be unchanged.
#[tokio::test]
async fn a_quoted_text_survives_kustomize() {
    let alphabet = [
        "0", "1", "7", "9", "e", "x", "o", "b", "E", "a", "_", ".", "+", "-", ":", "~", "n", "y", "N", "#",
        " ",
    ];
    let mut texts: Vec<String> = alphabet.map(str::to_owned).to_vec();
    for length in 2..=3 {
        let shorter: Vec<String> = texts
            .iter()
            .filter(|text| text.len() == length - 1)
            .cloned()
            .collect();
        texts.extend(
            shorter
                .iter()
                .flat_map(|text| alphabet.map(|letter| format!("{text}{letter}"))),
        );
    }
    let traps = [
        "12e5678",
        "-1.5e400",
        "1__0",
        "1_000.5",
        "+.inf",
        "-.INF",
        ".NaN",
        "True",
        "null",
        "Null",
        "off",
        "On",
        "yes",
        "<<",
        "=",
        "!!",
        "2026-01-01",
        "2026-01-01T00:00:00Z",
        "12:30:45",
        "190:20:30",
        "1:20.5",
        "0777",
        "08.5",
        "-0x1F",
        "+0b1",
        "-010",
        "0.1e1",
        "1e+5",
        "1e-5",
        "0x1p3",
        "Infinity",
        "inf",
        "nan",
        "a\nb",
        "a\n",
        "\n",
        "\t",
        "a: b",
        "a #b",
        "- a",
        "[a]",
        "{a}",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "|",
        ">",
        "'",
        "\"",
        "?",
        "--- a",
        "...",
        "é",
        "😀",
        "1234567890123456789012345678901234567890",
        "18446744073709551616",
        "-9223372036854775809",
        "1_2_3",
        "1e5e",
        "${A}",
        "$${A}",
        "a\r\nb",
        "yEs",
        "oFF",
        "nULL",
        "tRUE",
        "FalsE",
        "\u{feff}a",
        "0b2",
        "0o8",
        "0x_1F",
        "0b_1",
    ];
    texts.extend(traps.map(str::to_owned));
    let manifest = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"all": texts}});
    let tree = tree(&[
        ("kustomization.yaml", "resources: [a.yaml]\n"),
        ("a.yaml", &manifest.to_string()),
    ]);
    let objects = built(kustomize(), &tree, "", "").await.objects;
    let all = objects[0]["spec"]["all"].as_array().expect("list");
    let changed: Vec<_> = texts
        .iter()
        .zip(all)
        .filter(|(text, value)| value.as_str() != Some(text))
        .collect();
    assert!(
        changed.is_empty() && all.len() == texts.len(),
        "{} changed: {changed:?}",
        changed.len()
    );
}

/// Guards against sixteen files of `a,a,a,…`, each within the limits, that fill the memory together.
#[tokio::test]
async fn tenant_the_files_of_a_plain_folder_are_limited_together() {
    let values = "a,".repeat(700_000);
    let list = |name: &str| format!("{}list: [{values}]\n", config_map(name));
    let files: Vec<(String, String)> = ["a", "b", "c", "d"]
        .map(|name| (format!("app/{name}.yaml"), list(name)))
        .into();
    let of = |count: usize| {
        let files: Vec<_> = files
            .iter()
            .take(count)
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        tree(&files)
    };
    let renderer = renderer(BuildTool::None);
    let built = renderer.build(of(2).path(), "app", "", None).await;
    assert_eq!(
        built.map(|manifests| manifests.objects.len()).expect("two files"),
        2
    );
    let error = failure(&renderer, &of(4), "app").await;
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert!(
        source.is_some_and(|source| source.contains("too many")),
        "{error}"
    );
}

#[tokio::test]
async fn without_kustomize_only_plain_folders_are_read_and_marked_plain() {
    let tree = tree(&[
        ("plain/a.yaml", &config_map("a")),
        ("mixed/a.yaml", &config_map("a")),
        ("mixed/own/kustomization.yaml", "resources: []\n"),
        ("own/kustomization.yaml", "resources: []\n"),
    ]);
    let direct = built(BuildTool::None, &tree, "plain", "").await;
    assert_eq!(
        (keys(&direct), direct.plain),
        (vec!["ConfigMap /a".to_owned()], true)
    );
    let none = renderer(BuildTool::None);
    for (path, what) in [("own", "own needs"), ("mixed", "mixed/own needs")] {
        let error = failure(&none, &tree, path).await;
        assert!(error.to_string().starts_with(what), "{error}");
    }
    let error = none
        .build(tree.path(), "plain", "shop", None)
        .await
        .err()
        .expect("namespace");
    assert!(
        matches!(&error, RenderError::NoKustomize { what } if what == "targetNamespace"),
        "{error}"
    );
}

#[tokio::test]
async fn an_empty_render_is_returned_as_empty() {
    let tree = tree(&[
        ("kustomized/kustomization.yaml", "resources: []\n"),
        ("plain/README.md", "x"),
    ]);
    for path in ["kustomized", "plain"] {
        let manifests = built(kustomize(), &tree, path, "shop").await;
        assert!(manifests.objects.is_empty() && !manifests.plain, "{path}");
    }
}

#[tokio::test]
async fn a_yaml_file_that_is_not_a_manifest_is_named() {
    let tree = tree(&[
        ("a/values.yaml", "replicas: 3\n"),
        (
            "b/two.yaml",
            &format!("{}---\napiVersion: v1\nmetadata: {{name: x}}\n", config_map("a")),
        ),
        (
            "c/broken.yaml",
            "apiVersion: v1\nkind: Secret\nstringData:\n  p: \"hunter2\n",
        ),
    ]);
    for (path, expected) in [
        ("a", "a/values.yaml: document 1 has no usable apiVersion"),
        ("b", "b/two.yaml: document 2 has no usable kind"),
        ("c", "c/broken.yaml"),
    ] {
        let error = failure(&renderer(kustomize()), &tree, path).await;
        assert_eq!(error.to_string(), expected);
        assert!(!format!("{error:?}").contains("hunter2"));
    }
}

#[tokio::test]
async fn duplicates_are_named() {
    let same = format!("{}---\n{}", config_map("twice"), config_map("twice"));
    let plain = tree(&[("app/a.yaml", &same)]);
    let error = failure(&renderer(BuildTool::None), &plain, "app").await;
    assert_eq!(error.to_string(), "ConfigMap twice occurs twice");
    let script = format!("/bin/cat <<'END'\n{same}END\n");
    let error = failure(&renderer(fake()), &tree_with_script(&script), "app").await;
    assert_eq!(error.to_string(), "ConfigMap twice occurs twice");
}

#[tokio::test]
async fn five_thousand_objects_are_read_and_finished() {
    let script = "i=0\nwhile [ $i -lt 5000 ]; do\n\
        printf -- '---\\napiVersion: v1\\nkind: ConfigMap\\nmetadata:\\n  name: c%s\\n  namespace: shop\\ndata:\\n  a: ${REGION}\\n' $i\n\
        i=$((i+1))\ndone\n";
    let manifests = built(fake(), &tree_with_script(script), "app", "").await;
    let values = BTreeMap::from([("REGION".to_owned(), "eu".to_owned())]);
    let set = finish(&manifests, &values, &OwnerLabel::new("0123")).expect("set");
    assert_eq!(set.objects.len(), 5000);
    let last: Value = serde_json::from_slice(&set.objects[4999].body).expect("JSON");
    assert_eq!(last["data"]["a"], "eu");
    let limits = RenderLimits {
        objects: 4999,
        ..RenderLimits::default()
    };
    let error = failure(&Renderer::new(fake(), limits), &tree_with_script(script), "app").await;
    assert!(
        matches!(error, RenderError::TooLarge { limit: 4999, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn parameters_survive_kustomize_and_are_substituted_afterwards() {
    let tree = tree(&[
        ("kustomization.yaml", "resources: [web.yaml]\n"),
        (
            "web.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"web-${REGION}\"}\nspec:\n  replicas: ${REPLICAS}\n  other: ${NOT_LISTED}\n  escaped: $${REGION}\n",
        ),
    ]);
    let manifests = built(kustomize(), &tree, "", "shop").await;
    let values =
        [("REGION", "eu"), ("REPLICAS", "3")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let set = finish(&manifests, &BTreeMap::from(values), &OwnerLabel::new("0123")).expect("set");
    let web: Value = serde_json::from_slice(&set.objects[0].body).expect("JSON");
    assert_eq!(set.objects[0].key.to_string(), "Deployment shop/web-eu");
    assert_eq!(
        web["spec"],
        json!({"replicas": 3, "other": "${NOT_LISTED}", "escaped": "${REGION}"})
    );
    assert_eq!(web["metadata"]["labels"]["starling.dev/owner"], "0123");
}

// ---- what is refused ------------------------------------------------------------------------------------

/// A tree next to a folder with a canary, and a program that would create a file if it ran.
struct OutsideTree {
    outside: TempDir,
    tree: PathBuf,
}

impl OutsideTree {
    fn new(kustomization: &str) -> Self {
        let outside = tree(&[
            ("canary.yaml", &config_map("canary")),
            ("elsewhere/kustomization.yaml", "resources: []\n"),
            ("tree/app/kustomization.yaml", kustomization),
            ("tree/app/behaviour.sh", "echo ran > base/ran\n"),
            ("tree/app/real.yaml", &config_map("real")),
            ("tree/app/plain/x.yaml", &config_map("x")),
            (
                "tree/app/plugin.yaml",
                "apiVersion: example.com/v1\nkind: Program\nmetadata: {name: x}\n",
            ),
            ("tree/app/plugins/kustomization.yaml", "resources: [p.yaml]\n"),
            (
                "tree/app/patched/kustomization.yaml",
                "resources: [p.yaml]\npatches: [{patch: '{}', target: {}}]\n",
            ),
            (
                "tree/app/patched/p.yaml",
                "apiVersion: builtin\nkind: PrefixTransformer\nmetadata: {name: p}\nprefix: a-\n",
            ),
            (
                "tree/app/plugins/p.yaml",
                "apiVersion: example.com/v1\nkind: Program\nmetadata: {name: x}\n",
            ),
            (
                "tree/app/github.com/org/repo/kustomization.yaml",
                "resources: []\n",
            ),
            (
                "tree/base/kustomization.yaml",
                "resources: [https://example.com/x.yaml]\n",
            ),
        ]);
        let tree = outside.path().join("tree");
        symlink(outside.path().join("canary.yaml"), tree.join("app/absolute.yaml")).expect("link");
        symlink("../../canary.yaml", tree.join("app/relative.yaml")).expect("link");
        symlink("relative.yaml", tree.join("app/chain.yaml")).expect("link");
        symlink("../../elsewhere", tree.join("app/folder")).expect("link");
        symlink("/proc/self/environ", tree.join("app/environ")).expect("link");
        symlink("loop", tree.join("app/loop")).expect("link");
        Self { outside, tree }
    }

    async fn refusal(&self) -> (String, Refusal, String) {
        let error = renderer(fake())
            .build(&self.tree, "app", "shop", None)
            .await
            .err()
            .expect("refused");
        assert!(!self.tree.join("app/ran").exists(), "the program was started");
        let text = error.to_string();
        let host = self.outside.path().display().to_string();
        assert!(!text.contains(&host) && !text.contains("canary\""), "{text}");
        match error {
            RenderError::Refused { file, refusal, .. } => (file, refusal, text),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn outside_paths_and_plugins_are_refused_before_any_program_runs() {
    let long = format!("resources: [{}]", "x".repeat(5000));
    let table: &[(&str, Refusal)] = &[
        ("resources: [https://example.com/a.yaml]", Refusal::Remote),
        ("resources: ['http://example.com/a.yaml']", Refusal::Remote),
        ("resources: [github.com/org/repo]", Refusal::Remote),
        ("resources: [github.com/org/repo//path?ref=v1]", Refusal::Remote),
        ("resources: ['git@github.com:org/repo.git']", Refusal::Remote),
        (
            "resources: ['git::https://example.com/org/repo']",
            Refusal::Remote,
        ),
        ("resources: ['ssh://git@example.com/org/repo']", Refusal::Remote),
        ("resources: ['file:///etc']", Refusal::Remote),
        ("bases: [https://example.com/org/repo]", Refusal::Remote),
        ("components: ['example@host.example:org/repo']", Refusal::Remote),
        ("RESOURCES: [https://example.com/a.yaml]", Refusal::Remote),
        ("patches: [{path: https://example.com/p.yaml}]", Refusal::Remote),
        ("patches: [{Path: https://example.com/p.yaml}]", Refusal::Remote),
        (
            "patchesStrategicMerge: [https://example.com/p.yaml]",
            Refusal::Remote,
        ),
        ("crds: [https://example.com/crd.json]", Refusal::Remote),
        (
            "openapi: {path: https://example.com/schema.json}",
            Refusal::Remote,
        ),
        ("configurations: [https://example.com/c.yaml]", Refusal::Remote),
        (
            "replacements: [{path: https://example.com/r.yaml}]",
            Refusal::Remote,
        ),
        (
            "configMapGenerator: [{name: a, files: ['k=https://example.com/f']}]",
            Refusal::Remote,
        ),
        (
            "secretGenerator: [{name: a, envs: [https://example.com/f]}]",
            Refusal::Remote,
        ),
        ("transformers: [https://example.com/t.yaml]", Refusal::Remote),
        ("resources: [../base]", Refusal::Remote),
        ("resources: [../../canary.yaml]", Refusal::Outside),
        ("resources: [../../elsewhere]", Refusal::Outside),
        ("resources: [/etc/passwd]", Refusal::Outside),
        (
            "configMapGenerator: [{name: a, files: [/etc/passwd]}]",
            Refusal::Outside,
        ),
        (
            "configMapGenerator: [{name: a, files: [key=../../canary.yaml]}]",
            Refusal::Outside,
        ),
        (
            "configMapGenerator: [{name: a, env: ../../canary.yaml}]",
            Refusal::Outside,
        ),
        ("openapi: {path: ../../canary.yaml}", Refusal::Outside),
        ("components: [../../elsewhere]", Refusal::Outside),
        ("resources: [absolute.yaml]", Refusal::Outside),
        ("resources: [relative.yaml]", Refusal::Outside),
        ("resources: [chain.yaml]", Refusal::Outside),
        ("resources: [folder]", Refusal::Outside),
        (
            "configMapGenerator: [{name: a, files: [environ]}]",
            Refusal::Outside,
        ),
        ("resources: [loop]", Refusal::Missing),
        ("resources: [gone.yaml]", Refusal::Missing),
        ("resources: ['%2e%2e/%2e%2e/canary.yaml']", Refusal::Missing),
        ("resources: ['..\\..\\canary.yaml']", Refusal::Missing),
        ("resources: [\"real.yaml\\0\"]", Refusal::Missing),
        ("resources: [real.yaml.]", Refusal::Missing),
        (&long, Refusal::Missing),
        ("resources: [plain]", Refusal::NoKustomization),
        ("patches: [{path: plain}]", Refusal::WrongType),
        (
            "helmCharts: [{name: x, releaseName: --post-renderer=sh}]",
            Refusal::Plugin,
        ),
        ("helmGlobals: {chartHome: x}", Refusal::Plugin),
        ("helmChartInflationGenerator: [{chartName: x}]", Refusal::Plugin),
        ("generators: [plugin.yaml]", Refusal::Plugin),
        ("transformers: [plugins]", Refusal::Plugin),
        (
            "validators: ['{apiVersion: example.com/v1, kind: Program, metadata: {name: x}}']",
            Refusal::Plugin,
        ),
        (
            "generators: ['{apiVersion: builtin, kind: HelmChartInflationGenerator, metadata: {name: x}}']",
            Refusal::Plugin,
        ),
        (
            "transformers: ['{apiVersion: builtin, kind: LabelTransformer, metadata: {name: x, annotations: {config.kubernetes.io/function: x}}}']",
            Refusal::Plugin,
        ),
        (
            "transformers: ['{apiVersion: builtin, kind: PatchTransformer, metadata: {name: x}, path: ../../canary.yaml}']",
            Refusal::Outside,
        ),
        ("something: [x]", Refusal::Unknown),
        // Go takes the long s for an s, and the sign of Kelvin for a k.
        (
            "configMapGenerator: [{name: a, file\u{17f}: [../../canary.yaml]}]",
            Refusal::Outside,
        ),
        ("re\u{17f}ources: [../../canary.yaml]", Refusal::Outside),
        (
            "\u{212a}ind: Kustomization\nresources: [gone.yaml]",
            Refusal::Missing,
        ),
        ("patches: [{pathes: ../../canary.yaml}]", Refusal::Unknown),
        (
            "configMapGenerator: [{name: a, directory: ../..}]",
            Refusal::Unknown,
        ),
        ("transformers: [patched]", Refusal::ChangesPlugins),
        ("resources: real.yaml", Refusal::Malformed),
        ("resources: [1]", Refusal::Malformed),
        ("patches: [x]", Refusal::Malformed),
        ("resources: []\n---\nresources: []", Refusal::Malformed),
        ("- a", Refusal::Malformed),
    ];
    for (kustomization, expected) in table {
        let (_, refusal, text) = OutsideTree::new(kustomization).refusal().await;
        assert_eq!(refusal, *expected, "{kustomization}: {text}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_file_and_the_entry_but_no_credentials() {
    let (file, _, text) = OutsideTree::new("resources: [../base]").refusal().await;
    assert_eq!(file, "base/kustomization.yaml");
    assert_eq!(
        text,
        "base/kustomization.yaml: resources entry \"https://example.com/x.yaml\" is remote"
    );
    let (_, _, text) = OutsideTree::new("resources: ['https://me:hunter2@example.com/x?token=hunter2']")
        .refusal()
        .await;
    assert!(
        text.contains("example.com/x") && !text.contains("hunter2"),
        "{text}"
    );
}

#[tokio::test]
async fn inline_patches_and_builtin_transformers_are_allowed() {
    let kustomization = "resources: [a.yaml]\n\
        patchesStrategicMerge:\n- |\n  apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: a}\n  data: {c: d}\n\
        patches: [{path: '', patch: '[{\"op\": \"add\", \"path\": \"/data/e\", \"value\": \"f\"}]', target: {kind: ConfigMap}}]\n\
        transformers:\n- |\n  apiVersion: builtin\n  kind: PrefixTransformer\n  metadata: {name: p}\n  prefix: pre-\n  fieldSpecs: [{path: metadata/name}]\n\
        configMapGenerator: [{name: g, files: [k=real.txt], options: {disableNameSuffixHash: true}}]\n";
    let tree = tree(&[
        ("kustomization.yaml", kustomization),
        ("a.yaml", &config_map("a")),
        ("real.txt", "x"),
    ]);
    let manifests = built(kustomize(), &tree, "", "").await;
    assert_eq!(keys(&manifests), ["ConfigMap /pre-a", "ConfigMap /pre-g"]);
    let patched = manifests
        .objects
        .iter()
        .find(|object| object["metadata"]["name"] == "pre-a")
        .expect("a");
    assert_eq!(patched["data"], json!({"a": "b", "c": "d", "e": "f"}));
}

#[tokio::test]
async fn paths_of_a_sync_stay_inside_the_tree() {
    let outside_tree = OutsideTree::new("resources: []");
    let renderer = renderer(fake());
    for path in [
        "..",
        "../elsewhere",
        "app/../../elsewhere",
        "/etc",
        "app/folder",
        "app/..",
        // A link to a file of the host.
        "app/environ/x",
    ] {
        let error = renderer
            .build(&outside_tree.tree, path, "", None)
            .await
            .err()
            .expect(path);
        assert!(
            matches!(&error, RenderError::PathOutside { path: named } if named == path),
            "{error}"
        );
    }
    for path in ["gone", "app/real.yaml", "-gone", "app\0", "$(touch x)", "%2e%2e"] {
        let error = renderer
            .build(&outside_tree.tree, path, "", None)
            .await
            .err()
            .expect(path);
        assert!(
            matches!(&error, RenderError::PathMissing { path: named } if named == path),
            "{error}"
        );
    }
    for namespace in ["Shop", "a/b", "-x", "x-", "a b", "x\ny", &"x".repeat(64)] {
        let error = renderer
            .build(&outside_tree.tree, "app", namespace, None)
            .await
            .err()
            .expect(namespace);
        assert!(matches!(error, RenderError::BadNamespace { .. }), "{error}");
    }
    assert!(
        !outside_tree.tree.join("app/ran").exists(),
        "the program was started"
    );
}

#[tokio::test]
async fn links_out_of_a_plain_folder_are_refused() {
    for (link, expected) in [
        ("../../canary.yaml", Refusal::Outside),
        ("../../elsewhere", Refusal::Outside),
        ("gone.yaml", Refusal::Missing),
        ("../app", Refusal::WrongType),
    ] {
        let outside_tree = OutsideTree::new("resources: []");
        let plain = outside_tree.tree.join("plain");
        fs::create_dir(&plain).expect("folder");
        symlink(link, plain.join("link.yaml")).expect("link");
        let error = renderer(fake())
            .build(&outside_tree.tree, "plain", "", None)
            .await
            .err()
            .expect(link);
        assert!(
            matches!(error, RenderError::Refused { refusal, .. } if refusal == expected),
            "{link}: {error}"
        );
    }
}

#[tokio::test]
async fn two_kustomization_files_or_a_dangling_one_are_refused() {
    let both = tree(&[
        ("app/kustomization.yaml", "resources: []"),
        ("app/Kustomization", "resources: []"),
    ]);
    let error = failure(&renderer(fake()), &both, "app").await;
    assert!(matches!(error, RenderError::Ambiguous { .. }), "{error}");
    let dangling = tree(&[("app/a.yaml", &config_map("a"))]);
    symlink(
        "/nonexistent/target",
        dangling.path().join("app/kustomization.yaml"),
    )
    .expect("link");
    let error = failure(&renderer(fake()), &dangling, "app").await;
    assert!(matches!(error, RenderError::Refused { .. }), "{error}");
}

#[tokio::test]
async fn bases_that_form_a_cycle_are_an_error() {
    let tree = tree(&[
        ("a/kustomization.yaml", "resources: [../b]"),
        ("b/kustomization.yaml", "resources: [../a]"),
    ]);
    let error = failure(&renderer(kustomize()), &tree, "a").await;
    assert!(
        matches!(&error, RenderError::Failed { stderr, .. } if stderr.contains("cycle")),
        "{error}"
    );
}

// ---- the program ----------------------------------------------------------------------------------------

#[tokio::test]
async fn a_failed_build_is_explained_without_secrets_and_host_paths() {
    let tree = tree(&[
        (
            "app/kustomization.yaml",
            "secretGenerator: [{name: s, literals: [hunter2]}]\n",
        ),
        (
            "patch/kustomization.yaml",
            "resources: [s.yaml]\npatches: [{patch: \"stringData: {p: hunter2}\\n- x\"}]\n",
        ),
        (
            "patch/s.yaml",
            "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n",
        ),
    ]);
    for path in ["app", "patch"] {
        for tool in [kustomize(), kubectl()] {
            let error = failure(&renderer(tool), &tree, path).await;
            let RenderError::Failed { stderr, .. } = &error else {
                panic!("{error}")
            };
            assert!(stderr.len() > 20, "{stderr}");
            let text = format!("{error} {error:?}");
            let host = tree.path().display().to_string();
            assert!(!text.contains("hunter2") && !text.contains(&host), "{text}");
        }
    }
}

#[tokio::test]
async fn t30_partial_output_with_an_error_is_discarded() {
    let script = format!(
        "/bin/cat <<'END'\n{}END\necho broken >&2\nexit 1\n",
        config_map("half")
    );
    let error = failure(&renderer(fake()), &tree_with_script(&script), "app").await;
    assert!(
        matches!(&error, RenderError::Failed { stderr, .. } if stderr == "broken"),
        "{error}"
    );
    let killed = format!("/bin/cat <<'END'\n{}END\nkill -9 $$\n", config_map("half"));
    let error = failure(&renderer(fake()), &tree_with_script(&killed), "app").await;
    assert!(
        matches!(&error, RenderError::Failed { status, .. } if status.contains('9')),
        "{error}"
    );
}

#[tokio::test]
async fn t30_the_time_limit_kills_the_program_and_its_children() {
    let tree = tree_with_script(SLEEPS);
    let limits = RenderLimits {
        time: Duration::from_millis(500),
        ..RenderLimits::default()
    };
    let error = failure(&Renderer::new(fake(), limits), &tree, "app").await;
    assert!(matches!(error, RenderError::TimedOut { .. }), "{error}");
    gone(&pids(&tree, 2).await).await;
}

#[tokio::test]
async fn dropping_the_build_kills_the_program_and_its_children() {
    let tree = tree_with_script(SLEEPS);
    let path = tree.path().to_owned();
    let build = tokio::spawn(async move { renderer(fake()).build(&path, "app", "", None).await.map(|_| ()) });
    let pids = pids(&tree, 2).await;
    assert!(pids.iter().all(|pid| runs(pid)));
    build.abort();
    assert!(build.await.is_err_and(|error| error.is_cancelled()));
    gone(&pids).await;
}

#[tokio::test]
async fn t30_too_much_output_kills_the_program() {
    let script =
        "echo $$ >> base/pids\nwhile :; do echo 'a: 1234567890123456789012345678901234567890'; done\n";
    let tree = tree_with_script(script);
    let limits = RenderLimits {
        output_bytes: 100_000,
        ..RenderLimits::default()
    };
    let error = failure(&Renderer::new(fake(), limits), &tree, "app").await;
    assert!(
        matches!(error, RenderError::TooLarge { limit: 100_000, .. }),
        "{error}"
    );
    gone(&pids(&tree, 1).await).await;
}

#[tokio::test]
async fn too_much_on_stderr_is_shortened_and_does_not_block() {
    let script = "echo first >&2\ni=0\nwhile [ $i -lt 20000 ]; do echo 'noise noise noise' >&2; i=$((i+1)); done\necho last >&2\nexit 3\n";
    let error = failure(&renderer(fake()), &tree_with_script(script), "app").await;
    let RenderError::Failed { stderr, status } = error else {
        panic!("{error}")
    };
    assert!(
        stderr.starts_with("first") && stderr.ends_with("last") && status.contains('3'),
        "{status} {stderr}"
    );
    assert!(stderr.len() < 9000, "{}", stderr.len());
}

#[tokio::test]
async fn the_memory_limit_stops_the_program() {
    let text = "0123456789abcdef".repeat(1 << 20);
    let content = format!("{}  large: {text}\n", config_map("a"));
    let files = tree(&[
        ("app/kustomization.yaml", "resources: [a.yaml]\n"),
        ("app/a.yaml", &content),
    ]);
    let limits = RenderLimits {
        memory_bytes: 128 << 20,
        ..RenderLimits::default()
    };
    let error = failure(&Renderer::new(kustomize(), limits), &files, "app").await;
    assert!(matches!(error, RenderError::OutOfMemory { .. }), "{error}");
    let enough = built(kustomize(), &files, "app", "").await;
    assert_eq!(enough.objects[0]["data"]["large"], text);

    let memory_hog = tree_with_script("echo $$ >> base/pids\nx=xxxxxxxxxxxxxxxx\nwhile :; do x=$x$x; done\n");
    let limits = RenderLimits {
        memory_bytes: 64 << 20,
        ..RenderLimits::default()
    };
    let error = failure(&Renderer::new(fake(), limits), &memory_hog, "app").await;
    assert!(
        matches!(
            error,
            RenderError::Failed { .. } | RenderError::OutOfMemory { .. }
        ),
        "{error}"
    );
    gone(&pids(&memory_hog, 1).await).await;
}

/// A session of its own takes a process out of the group that is killed.
#[tokio::test]
async fn tenant_a_process_that_leaves_the_group_does_not_outlive_the_program() {
    let script = format!(
        ": > base/pids\n/usr/bin/setsid /bin/sh -c 'echo $$ >> base/pids; /bin/sleep 1000 & echo $! >> base/pids; wait' &\n\
         while [ \"$(/usr/bin/wc -l < base/pids)\" -lt 2 ]; do /bin/sleep 0.05; done\n\
         /bin/cat <<'END'\n{}END\n",
        config_map("a")
    );
    let tree = tree_with_script(&script);
    let manifests = built(fake(), &tree, "app", "").await;
    assert_eq!(keys(&manifests), ["ConfigMap /a"]);
    gone(&pids(&tree, 2).await).await;
}

/// When memory ends, the kernel ends a build and not the controller.
#[tokio::test]
async fn tenant_builds_are_the_first_to_be_killed_when_memory_ends() {
    let script = format!(
        "until /bin/cat /proc/self/oom_score_adj > base/score && /usr/bin/grep -q 1000 base/score; do :; done\n\
         /bin/cat <<'END'\n{}END\n",
        config_map("a")
    );
    let tree = tree_with_script(&script);
    built(fake(), &tree, "app", "").await;
    let score = fs::read_to_string(tree.path().join("app/score")).expect("score");
    assert_eq!(score.trim(), "1000");
}

#[tokio::test]
async fn child_processes_do_not_outlive_the_program() {
    let script = format!(
        "/bin/sleep 1000 &\necho $! >> base/pids\n/bin/cat <<'END'\n{}END\n",
        config_map("a")
    );
    let tree = tree_with_script(&script);
    let manifests = built(fake(), &tree, "app", "").await;
    assert_eq!(keys(&manifests), ["ConfigMap /a"]);
    gone(&pids(&tree, 1).await).await;
}

#[tokio::test]
async fn the_program_has_a_clean_environment_and_no_input() {
    let tree = tree_with_script(
        "/usr/bin/env > base/environment\nread line && echo input > base/input\necho \"$*\" > base/arguments\npwd > base/folder\n",
    );
    built(fake(), &tree, "app", "").await;
    let read = |name: &str| fs::read_to_string(tree.path().join("app").join(name)).expect(name);
    let environment = read("environment");
    let names: Vec<&str> = environment
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    let allowed = [
        "PATH",
        "HOME",
        "TMPDIR",
        "GOMAXPROCS",
        "GOMEMLIMIT",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "STARLING_RUN",
        // The shell itself adds these.
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    ];
    assert!(names.iter().all(|name| allowed.contains(name)), "{environment}");
    assert!(environment.lines().any(|line| line == "PATH="), "{environment}");
    assert_eq!(read("arguments").trim(), "build -- base");
    assert!(!tree.path().join("app/input").exists());
    assert!(
        !Path::new(read("folder").trim()).exists(),
        "the folder of the build stayed"
    );
}

/// The limits, the mark and the working directory hold as without it.
#[tokio::test]
async fn tenant_a_build_has_no_network_where_the_system_allows_that() {
    let isolation = Isolation::discover();
    if isolation == Isolation::None {
        eprintln!("skipped: unshare is missing, or may create no namespaces");
        return;
    }
    let script = "printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n'\n\
                  while read -r name _; do case $name in *:) printf '  %s \"\"\n' \"$name\";; esac; done < /proc/net/dev\n\
                  until [ \"$score\" = 1000 ]; do read -r score < /proc/$$/oom_score_adj; done\nprintf '  score: \"%s\"\n' \"$score\"\n";
    let isolated = |tool| renderer(tool).with_isolation(isolation.clone());
    let scripted = tree_with_script(script);
    let build = async |renderer: Renderer, tree: &TempDir, path: &str| {
        let built = renderer.build(tree.path(), path, "", None).await;
        built.map(|manifests| manifests.objects)
    };
    let objects = build(isolated(fake()), &scripted, "app").await.expect("build");
    assert_eq!(objects[0]["data"], json!({"lo": "", "score": "1000"}));
    let shared = build(renderer(fake()), &scripted, "app").await.expect("build");
    assert_eq!(shared[0]["data"]["lo"], "", "the script reads interfaces");

    let files = [
        ("app/kustomization.yaml", "resources: [a.yaml]\nnamePrefix: x-\n"),
        ("app/a.yaml", &config_map("a")),
    ];
    let objects = build(isolated(kustomize()), &tree(&files), "app").await;
    assert_eq!(objects.expect("build")[0]["metadata"]["name"], "x-a");

    let sleeping = tree_with_script(SLEEPS);
    let limits = RenderLimits {
        time: Duration::from_millis(500),
        ..RenderLimits::default()
    };
    let stopped = Renderer::new(fake(), limits).with_isolation(isolation.clone());
    let error = failure(&stopped, &sleeping, "app").await;
    assert!(matches!(error, RenderError::TimedOut { .. }), "{error}");
    gone(&pids(&sleeping, 2).await).await;
}

#[tokio::test]
async fn concurrent_builds_are_limited() {
    // Each build records how many builds run, itself included; the first ones wait for each other.
    let work = tempfile::tempdir().expect("folder");
    let script = format!(
        "cd {}\n: > at-work.$$\nset -- at-work.*\necho $# >> counts\n\
         until [ -e both ]; do set -- at-work.*; [ $# -lt 2 ] || : > both; /bin/sleep 0.01; done\n\
         /bin/sleep 0.2\n/bin/rm at-work.$$\n",
        work.path().display()
    );
    let renderer = Renderer::new(
        fake(),
        RenderLimits {
            builds: 2,
            ..RenderLimits::default()
        },
    );
    let builds = (0..6).map(|_| {
        let (tree, renderer) = (tree_with_script(&script), renderer.clone());
        async move {
            renderer
                .build(tree.path(), "app", "", None)
                .await
                .map(|manifests| manifests.objects.len())
        }
    });
    for result in futures::future::join_all(builds).await {
        assert_eq!(result.expect("build"), 0);
    }
    let counts = fs::read_to_string(work.path().join("counts")).expect("counts");
    let counts: Vec<u32> = counts.lines().map(|line| line.parse().expect("number")).collect();
    assert_eq!((counts.len(), counts.iter().max()), (6, Some(&2)), "{counts:?}");
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_an_error() {
    let tree = tree_with_script("");
    let error = failure(
        &renderer(BuildTool::Kustomize("/nonexistent/kustomize".into())),
        &tree,
        "app",
    )
    .await;
    assert!(matches!(error, RenderError::Process { .. }), "{error}");
}

#[test]
fn the_program_is_found_in_order() {
    let folder = |names: &[&str]| {
        let folder = tempfile::tempdir().expect("folder");
        for name in names {
            symlink("/bin/sh", folder.path().join(name)).expect("link");
        }
        folder
    };
    let (both, kubectl, neither) = (
        folder(&["kubectl", "kustomize"]),
        folder(&["kubectl"]),
        folder(&[]),
    );
    fs::write(neither.path().join("kustomize"), "not executable").expect("file");
    let discover = |folders: &[&TempDir]| {
        let path = std::env::join_paths(folders.iter().map(|folder| folder.path())).expect("PATH");
        BuildTool::discover_in(None, Some(&path)).expect("discover")
    };
    assert_eq!(
        discover(&[&neither, &both]),
        BuildTool::Kustomize(both.path().join("kustomize"))
    );
    assert_eq!(
        discover(&[&kubectl, &both]),
        BuildTool::Kustomize(both.path().join("kustomize"))
    );
    assert_eq!(
        discover(&[&kubectl]),
        BuildTool::KubectlKustomize(kubectl.path().join("kubectl"))
    );
    assert_eq!(discover(&[&neither]), BuildTool::None);
    assert_eq!(
        BuildTool::discover_in(None, None).expect("discover"),
        BuildTool::None
    );

    let explicit = |path: PathBuf| BuildTool::discover_in(Some(path), Some(both.path().as_os_str()));
    let chosen = explicit(kubectl.path().join("kubectl")).expect("explicit");
    assert_eq!(
        chosen,
        BuildTool::KubectlKustomize(kubectl.path().join("kubectl"))
    );
    for bad in [
        neither.path().join("kustomize"),
        neither.path().join("gone"),
        both.path().to_owned(),
    ] {
        assert!(matches!(explicit(bad), Err(RenderError::ToolMissing { .. })));
    }
}

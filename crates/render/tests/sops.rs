//! Encrypted manifests, with the real kustomize and the real sops: which are decrypted, which are refused, and that no
//! secret leaks.
#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot be set up fails by panicking"
)]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use starling_controlplane::Assets;
use starling_render::{BuildTool, DecryptProblem, Identities, RenderError, RenderLimits, Renderer, Sops};
use starling_testkit::{AgeKey, SopsTools};
use tempfile::TempDir;

/// A text that no program writes by itself.
const CANARY: &str = "correct-horse-battery-staple";
const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\nstringData:\n  password: correct-horse-battery-staple\n  port: \"5432\"\n";

fn tools() -> SopsTools {
    SopsTools::find().expect("sops and age")
}

fn kustomize() -> BuildTool {
    let assets = Assets::find().expect("the control plane's programs");
    BuildTool::Kustomize(assets.kustomize().expect("kustomize").to_owned())
}

fn renderer(sops: PathBuf) -> Renderer {
    let sops = Sops::discover(Some(sops)).expect("a program");
    Renderer::new(kustomize(), RenderLimits::default()).with_sops(sops)
}

fn identities(keys: &[&AgeKey]) -> Identities {
    let mut identities = Identities::default();
    for key in keys {
        identities.add(key.identity().as_bytes()).expect("an identity");
    }
    identities
}

fn tree(files: &[(&str, &[u8])]) -> TempDir {
    let tree = tempfile::tempdir().expect("tree");
    for (path, content) in files {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        fs::write(path, content).expect("file");
    }
    tree
}

async fn built(tree: &TempDir, namespace: &str, keys: &[&AgeKey]) -> Result<Vec<Value>, RenderError> {
    let identities = identities(keys);
    renderer(tools().sops())
        .build(tree.path(), "app", namespace, Some(&identities))
        .await
        .map(|manifests| manifests.objects)
}

async fn opened(tree: &TempDir, namespace: &str, keys: &[&AgeKey]) -> Vec<Value> {
    built(tree, namespace, keys)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the object, field and problem of a refused render, and asserts that the error contains no secret.
#[track_caller]
fn refused(result: Result<Vec<Value>, RenderError>) -> (String, String, DecryptProblem) {
    let error = match result {
        Ok(objects) => panic!("{} objects were built", objects.len()),
        Err(error) => error,
    };
    let text = format!("{error} {error:?}");
    assert!(
        !text.contains(CANARY) && !text.contains("AGE-SECRET") && !text.contains("ENC["),
        "{text}"
    );
    match error {
        RenderError::Encrypted {
            object,
            field,
            problem,
        } => (object, field, problem),
        other => panic!("{other}"),
    }
}

fn data(object: &Value, key: &str) -> Vec<u8> {
    let text: String = object["data"][key]
        .as_str()
        .expect(key)
        .split_whitespace()
        .collect();
    BASE64.decode(text).expect("base64")
}

#[tokio::test]
async fn values_of_a_secret_are_decrypted_after_kustomize_has_changed_other_fields() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools.encrypt_secret(SECRET, &[&key]).expect("encrypted");
    let kustomization = "resources: [db.yaml]\nnameSuffix: -v2\nlabels: [{pairs: {app: shop}}]\n";
    let tree = tree(&[
        ("app/db.yaml", sealed.as_bytes()),
        ("app/kustomization.yaml", kustomization.as_bytes()),
    ]);
    let objects = opened(&tree, "shop", &[&key]).await;
    let expected = json!([{
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "db-v2", "namespace": "shop", "labels": {"app": "shop"}},
        "stringData": {"password": CANARY, "port": "5432"},
    }]);
    assert_eq!(Value::Array(objects), expected);
}

/// kinds and names are ciphertext for kustomize, which only works if it has nothing to change.
#[tokio::test]
async fn a_file_encrypted_as_a_whole_is_decrypted_if_kustomize_does_not_change_it() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools
        .encrypt(SECRET.as_bytes(), "yaml", &[&key], &[])
        .expect("encrypted");
    let plain = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: plain}\ndata: {n: \"1\"}\n";
    let tree = tree(&[("app/db.yaml", &sealed), ("app/plain.yaml", plain.as_bytes())]);
    let objects = opened(&tree, "", &[&key]).await;
    // kustomize sorts by the encrypted kind; the order of the applies does not depend on it.
    let named = |name: &str| objects.iter().find(|object| object["metadata"]["name"] == name);
    let db = named("db").expect("db");
    assert_eq!(db["stringData"]["password"], CANARY);
    assert!(db.get("sops").is_none());
    assert!(named("plain").is_some() && objects.len() == 2);

    // kustomize cannot set a namespace there.
    let error = built(&tree, "shop", &[&key])
        .await
        .expect_err("refused")
        .to_string();
    assert!(
        error.starts_with("kustomize failed")
            && error.contains("leave apiVersion, kind and metadata in plain text"),
        "{error}"
    );
    assert!(!error.contains(CANARY) && !error.contains("ENC["), "{error}");

    // kustomize sets a label in plain text, inside of a document that sops expects to be encrypted.
    let labelled = b"resources: [db.yaml]\nlabels: [{pairs: {app: shop}}]\n";
    fs::write(tree.path().join("app/kustomization.yaml"), labelled).expect("kustomization");
    let (object, field, problem) = refused(built(&tree, "", &[&key]).await);
    assert_eq!(
        (object.as_str(), field.as_str(), problem),
        ("object 1 of the render", "sops", DecryptProblem::Changed)
    );
}

#[tokio::test]
async fn files_of_a_generator_are_decrypted_exactly() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let binary: Vec<u8> = (0..=255).collect();
    let dotenv = format!("A=1\nPASSWORD={CANARY}\n");
    let json = "{\n\t\"z\": 1,\n\t\"a\": {\n\t\t\"b\": \"x\"\n\t}\n}\n";
    let yaml = "# a comment\nz: 1\na:\n    b: x\n";
    let ini = "[main]\nuser = u\n";
    let seal = |plain: &[u8], format: &str| tools.encrypt(plain, format, &[&key], &[]).expect(format);
    let files = [
        ("app/key.bin", seal(&binary, "binary")),
        ("app/app.env", seal(dotenv.as_bytes(), "dotenv")),
        ("app/app.json", seal(json.as_bytes(), "json")),
        ("app/app.yaml", seal(yaml.as_bytes(), "yaml")),
        ("app/app.ini", seal(ini.as_bytes(), "ini")),
        ("app/plain.txt", b"sops is not ENC[AES256_GCM,data: here".to_vec()),
        (
            "app/kustomization.yaml",
            b"secretGenerator:\n- name: files\n  files: [key.bin, app.env, app.json, app.yaml, app.ini, plain.txt]\n\
              - name: variables\n  envs: [app.env]\n  literals: [HOST=db]\n"
                .to_vec(),
        ),
    ];
    let files: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(name, content)| (*name, content.as_slice()))
        .collect();
    let objects = opened(&tree(&files), "", &[&key]).await;
    let named = |start: &str| {
        let starts = |object: &&Value| {
            object["metadata"]["name"]
                .as_str()
                .is_some_and(|name| name.starts_with(start))
        };
        objects.iter().find(starts).expect(start)
    };
    let files = named("files-");
    assert_eq!(data(files, "key.bin"), binary);
    for (name, plain) in [
        ("app.env", dotenv.as_str()),
        ("app.yaml", yaml),
        ("app.json", json),
    ] {
        assert_eq!(String::from_utf8_lossy(&data(files, name)), plain, "{name}");
    }
    assert!(String::from_utf8_lossy(&data(files, "app.ini")).contains("user = u"));
    assert!(data(files, "plain.txt").starts_with(b"sops is not"));
    let variables = named("variables-");
    let keys: Vec<&String> = variables["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["A", "HOST", "PASSWORD"]);
    assert_eq!(data(variables, "PASSWORD"), CANARY.as_bytes());
    assert_eq!(data(variables, "HOST"), b"db");
}

/// sops reads the identities once for each recipient, so they must be readable more than once.
#[tokio::test]
async fn any_recipient_and_any_identity_is_sufficient() {
    let tools = tools();
    let keys: Vec<AgeKey> = (0..4).map(|_| tools.key().expect("key")).collect();
    let sealed = tools
        .encrypt_secret(SECRET, &[&keys[0], &keys[1], &keys[2]])
        .expect("encrypted");
    let tree = tree(&[("app/db.yaml", sealed.as_bytes())]);
    for has in [&[&keys[0]][..], &[&keys[2]], &[&keys[3], &keys[1]]] {
        assert_eq!(
            opened(&tree, "shop", has).await[0]["stringData"]["password"],
            CANARY
        );
    }
    let (object, field, problem) = refused(built(&tree, "shop", &[&keys[3]]).await);
    assert_eq!(
        (object.as_str(), field.as_str(), problem),
        ("Secret shop/db", "sops", DecryptProblem::WrongKey)
    );
}

#[tokio::test]
async fn without_keys_or_program_nothing_encrypted_is_built() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools.encrypt_secret(SECRET, &[&key]).expect("encrypted");
    let whole = tree(&[("app/db.yaml", sealed.as_bytes())]);
    let file = tools
        .encrypt(b"A=1\n", "dotenv", &[&key], &[])
        .expect("encrypted");
    let generator: &[u8] =
        b"secretGenerator:\n- {name: s, files: [app.env]}\ngeneratorOptions: {disableNameSuffixHash: true}\n";
    let generated = tree(&[("app/app.env", &file), ("app/kustomization.yaml", generator)]);
    for (tree, object, field) in [
        (&whole, "Secret db", "sops"),
        (&generated, "Secret s", "data[app.env]"),
    ] {
        let built = renderer(tools.sops()).build(tree.path(), "app", "", None).await;
        let error = refused(built.map(|manifests| manifests.objects));
        assert_eq!(error, (object.into(), field.into(), DecryptProblem::NoDecryption));

        let without = Renderer::new(kustomize(), RenderLimits::default());
        let built = without
            .build(tree.path(), "app", "", Some(&identities(&[&key])))
            .await;
        let error = refused(built.map(|manifests| manifests.objects));
        assert_eq!(error, (object.into(), field.into(), DecryptProblem::NoSops));
    }
}

/// In kustomize, a List loses its own fields, and a patch loses the object in which it was encrypted.
#[tokio::test]
async fn ciphertext_without_its_metadata_is_refused() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {}",
        SECRET.trim_end().replace('\n', "\n  ")
    );
    let sealed = tools.encrypt_secret(&list, &[&key]).expect("encrypted");
    let tree = tree(&[("app/list.yaml", sealed.as_bytes())]);
    let (object, field, problem) = refused(built(&tree, "", &[&key]).await);
    assert_eq!(
        (object.as_str(), field.as_str(), problem),
        ("Secret db", "stringData.password", DecryptProblem::NoMetadata)
    );
}

/// The MAC of the document is not checked, but the tag of each value is, and it depends on the position of the value.
#[tokio::test]
async fn a_value_that_was_changed_or_moved_is_refused() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools.encrypt_secret(SECRET, &[&key]).expect("encrypted");
    let lines: Vec<&str> = sealed.lines().collect();
    let value = |name: &str| {
        let line = lines
            .iter()
            .find(|line| line.trim_start().starts_with(name))
            .expect(name);
        line.split_once(": ").expect("a value").1
    };
    let (password, port) = (value("password"), value("port"));
    let swapped = sealed
        .replace(password, "<>")
        .replace(port, password)
        .replace("<>", port);
    let plain = sealed.replace(password, "from-somebody-else");
    for changed in [swapped, plain] {
        let tree = tree(&[("app/db.yaml", changed.as_bytes())]);
        let (object, _, problem) = refused(built(&tree, "", &[&key]).await);
        assert_eq!((object.as_str(), problem), ("Secret db", DecryptProblem::Changed));
    }
}

/// The author of a manifest must not choose servers that the controller connects to.
#[tokio::test]
async fn no_key_service_is_called() {
    let (tools, key, other) = (tools(), tools().key().expect("key"), tools().key().expect("key"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = format!("http://{}", listener.local_addr().expect("address"));
    let mut sealed: Value =
        serde_saphyr::from_str(&tools.encrypt_secret(SECRET, &[&key]).expect("encrypted")).expect("YAML");
    let made = sealed["sops"]["lastmodified"].clone();
    sealed["sops"]["hc_vault"] = json!([{
        "vault_address": address, "engine_path": "sops", "key_name": "k", "created_at": made, "enc": "vault:v1:x",
    }]);
    let with_vault = tree(&[("app/db.yaml", sealed.to_string().as_bytes())]);
    assert_eq!(
        opened(&with_vault, "", &[&key]).await[0]["stringData"]["password"],
        CANARY
    );
    assert_eq!(
        refused(built(&with_vault, "", &[&other]).await).2,
        DecryptProblem::WrongKey
    );
    sealed["sops"].as_object_mut().expect("metadata").remove("age");
    let vault_alone = tree(&[("app/db.yaml", sealed.to_string().as_bytes())]);
    assert_eq!(
        refused(built(&vault_alone, "", &[&key]).await).2,
        DecryptProblem::NoRecipient
    );
    assert!(listener.accept().is_err(), "a connection was opened");
}

/// A program that replaces sops.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("sops");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("script");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    path
}

/// Checks environment, arguments and files while sops runs.
#[tokio::test]
async fn neither_identity_nor_plaintext_is_in_environment_arguments_or_files() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools.encrypt_secret(SECRET, &[&key]).expect("encrypted");
    let tree = tree(&[("app/db.yaml", sealed.as_bytes())]);
    let work = tempfile::tempdir().expect("folder");
    fs::write(
        work.path().join("patterns"),
        format!("{CANARY}\n{}\n", key.identity()),
    )
    .expect("patterns");
    let program = script(
        work.path(),
        &format!(
            "cd '{work}' && /usr/bin/tr '\\0' '\\n' < /proc/$$/environ > environ\n\
             /usr/bin/tr '\\0' '\\n' < /proc/$$/cmdline > cmdline\n\
             cd \"$HOME\" && plain=$('{sops}' \"$@\"); status=$?\n\
             /bin/ls -a \"$HOME\" > '{work}/files'\n\
             /bin/grep -rlF -f '{work}/patterns' \"$HOME\" '{tree}' > '{work}/found'\n\
             printf '%s\\n' \"$plain\"; exit $status",
            work = work.path().display(),
            sops = tools.sops().display(),
            tree = tree.path().display(),
        ),
    );
    let identities = identities(&[&key]);
    let built = renderer(program)
        .build(tree.path(), "app", "", Some(&identities))
        .await;
    let built = built.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(built.objects[0]["stringData"]["password"], CANARY);
    let read = |name: &str| fs::read_to_string(work.path().join(name)).expect(name);
    for name in ["environ", "cmdline"] {
        assert!(
            !read(name).contains(key.identity()) && !read(name).contains(CANARY),
            "{name}"
        );
    }
    assert!(read("cmdline").contains("--ignore-mac"), "{}", read("cmdline"));
    assert!(
        read("files").contains("encrypted"),
        "the folder was checked: {}",
        read("files")
    );
    assert_eq!(read("found"), "", "in a file");
    let variables: Vec<String> = read("environ")
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.to_owned())
        .collect();
    let expected = [
        "PATH",
        "HOME",
        "TMPDIR",
        "GOMAXPROCS",
        "GOMEMLIMIT",
        "SOPS_AGE_KEY_FILE",
        "SOPS_DECRYPTION_ORDER",
        "STARLING_RUN",
    ];
    let proxies = [
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
    ];
    for name in variables {
        assert!(
            expected.contains(&name.as_str()) || proxies.contains(&name.as_str()),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_program_that_hangs_floods_or_fails_is_stopped_and_named() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let sealed = tools.encrypt_secret(SECRET, &[&key]).expect("encrypted");
    let tree = tree(&[("app/db.yaml", sealed.as_bytes())]);
    let identities = identities(&[&key]);
    let limits = RenderLimits {
        time: Duration::from_secs(2),
        output_bytes: 64 << 10,
        ..RenderLimits::default()
    };
    for (behaviour, expected) in [
        ("while :; do :; done", "sops was stopped after 2 s"),
        (
            "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyy; done",
            "the output in bytes exceeds",
        ),
        (
            "echo 'no json'",
            "Secret db: sops cannot be decrypted: sops returned an unexpected document",
        ),
        (
            "echo '{}'",
            "Secret db: sops cannot be decrypted: sops returned an unexpected document",
        ),
        (
            "echo correct-horse-battery-staple >&2; exit 1",
            "Secret db: sops cannot be decrypted: sops failed",
        ),
    ] {
        let work = tempfile::tempdir().expect("folder");
        let sops = Sops::discover(Some(script(work.path(), behaviour))).expect("program");
        let renderer = Renderer::new(kustomize(), limits.clone()).with_sops(sops);
        let error = match renderer.build(tree.path(), "app", "", Some(&identities)).await {
            Ok(_) => panic!("{behaviour}"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected) && !error.contains(CANARY), "{error}");
    }
}

#[tokio::test]
async fn a_render_of_many_encrypted_objects_keeps_their_order() {
    let (tools, key) = (tools(), tools().key().expect("key"));
    let names: Vec<String> = (10..30).map(|n| format!("app/s{n}.yaml")).collect();
    let sealed: Vec<String> = (10..30)
        .map(|n| {
            tools
                .encrypt_secret(&SECRET.replace("name: db", &format!("name: s{n}")), &[&key])
                .expect("encrypted")
        })
        .collect();
    let files: Vec<(&str, &[u8])> = names
        .iter()
        .map(String::as_str)
        .zip(sealed.iter().map(String::as_bytes))
        .collect();
    let objects = opened(&tree(&files), "", &[&key]).await;
    let found: Vec<String> = objects
        .iter()
        .map(|o| o["metadata"]["name"].as_str().unwrap_or_default().to_owned())
        .collect();
    let expected: Vec<String> = (10..30).map(|n| format!("s{n}")).collect();
    assert_eq!(found, expected);
    assert!(
        objects
            .iter()
            .all(|object| object["stringData"]["password"] == CANARY)
    );
}

#[test]
fn an_explicit_program_must_be_executable() {
    let error = Sops::discover(Some("/nowhere/sops".into())).expect_err("nothing there");
    assert!(
        error
            .to_string()
            .contains("/nowhere/sops is not an executable file")
    );
    assert_eq!(Sops::discover_in(None, None).expect("none"), Sops::default());
}

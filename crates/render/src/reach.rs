//! Finds what a build of a directory reads.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::RenderError;
use super::check::check;
use super::files::Files;
use super::plain::Names;
use super::tree::Tree;

/// Returns everything that a build of the directory `path` reads: files, the symbolic links that lead to them, and the
/// directories on the way; relative to the root, and without anything else of the repository. A build that gets exactly
/// these has the same result as one that gets all files.
///
/// A directory with a kustomization reaches what the kustomization names, on to the end. A plain directory reaches all
/// YAML files below it, and what its subdirectories with a kustomization reach. What is encrypted is decrypted after
/// the build, from the objects alone: no configuration of SOPS is read.
///
/// # Errors
/// As a build, for what can be known without one: an entry that does not exist, is remote, or leaves the repository.
pub fn reached(files: &dyn Files, path: &str) -> Result<BTreeSet<PathBuf>, RenderError> {
    let tree = Tree::new(files);
    let directory = tree.directory(path)?;
    let kustomizations = match tree.kustomization(&directory)? {
        Some(_) => vec![directory],
        None => Names::of(&tree, &directory)?.kustomizations,
    };
    check(&tree, &kustomizations)?;
    Ok(tree.into_reached())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::Refusal;
    use crate::files::Folder;

    /// Writes files; a content that starts with `-> ` is the target of a link.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            match content.strip_prefix("-> ") {
                Some(target) => symlink(target, path).unwrap(),
                None => fs::write(path, content).unwrap(),
            }
        }
        tree
    }

    fn outcome(tree: &TempDir, path: &str) -> Result<BTreeSet<PathBuf>, RenderError> {
        reached(&Folder::open(tree.path()).unwrap(), path)
    }

    /// Returns the files and links that are reached, without the directories on the way.
    fn files(tree: &TempDir, path: &str) -> Vec<String> {
        let reached = outcome(tree, path).unwrap();
        let is_directory = |path: &Path| fs::symlink_metadata(tree.path().join(path)).unwrap().is_dir();
        let files = reached.iter().filter(|path| !is_directory(path));
        files.map(|path| path.display().to_string()).collect()
    }

    const KUSTOMIZATION: &str = "
resources: [../base, own.yaml]
components: [../component]
patches:
- path: patch.yaml
- patch: '[{op: remove, path: /a}]'
  target: {kind: A}
patchesStrategicMerge:
- old.yaml
- |-
  kind: A
patchesJson6902:
- {path: json.yaml, target: {kind: A, name: a, version: v1}}
replacements:
- path: replacement.yaml
- {source: {kind: A}, targets: []}
configMapGenerator:
- {name: a, files: [a.conf, 'key=b.conf'], envs: [c.env], env: d.env, literals: [none=e.env]}
secretGenerator:
- {name: b, files: [secret.txt]}
openapi: {path: schema.json}
configurations: [names.yaml]
crds: [crd.json]
generators: [generator.yaml]
transformers: [../plugins]
validators:
- |-
  apiVersion: builtin
  kind: PatchTransformer
  metadata: {name: x}
  path: inline.yaml
";

    #[test]
    fn all_fields_of_a_kustomization_reach_their_files() {
        let generator =
            "{apiVersion: builtin, kind: ConfigMapGenerator, metadata: {name: c}, files: [of.generator]}";
        let plugin = "{apiVersion: builtin, kind: PatchTransformer, metadata: {name: x}, path: of.plugin}";
        let targets = "{apiVersion: builtin, kind: ValueAddTransformer, metadata: {name: v}, targetFilePath: of.targets}";
        let plugins = format!("{plugin}\n---\n{targets}\n");
        let named = [
            "of.targets",
            "patch.yaml",
            "old.yaml",
            "json.yaml",
            "replacement.yaml",
            "a.conf",
            "b.conf",
            "c.env",
            "d.env",
            "secret.txt",
            "schema.json",
            "names.yaml",
            "crd.json",
            "own.yaml",
            "inline.yaml",
            "of.generator",
            "of.plugin",
        ];
        let mut all = vec![
            ("app/kustomization.yaml".to_owned(), KUSTOMIZATION),
            ("app/generator.yaml".to_owned(), generator),
            ("base/kustomization.yml".to_owned(), "bases: [../../b/deeper]"),
            ("component/Kustomization".to_owned(), "kind: Component"),
            (
                "plugins/kustomization.yaml".to_owned(),
                "resources: [plugin.yaml]",
            ),
            ("plugins/plugin.yaml".to_owned(), plugins.as_str()),
        ];
        all.extend(named.map(|name| (format!("app/{name}"), "{}")));
        let mut expected: Vec<String> = all.iter().map(|(path, _)| format!("x/{path}")).collect();
        expected.push("b/deeper/kustomization.yaml".to_owned());
        expected.sort();
        let noise = [
            "x/app/README.md",
            "x/app/other.yaml",
            "x/base/own.yaml",
            "e.env",
            "x/app/e.env",
        ];
        let mut present: Vec<(String, &str)> = all
            .iter()
            .map(|(path, content)| (format!("x/{path}"), *content))
            .collect();
        present.push(("b/deeper/kustomization.yaml".to_owned(), "resources: []"));
        present.extend(noise.map(|path| (path.to_owned(), "{ broken")));
        let present: Vec<(&str, &str)> = present
            .iter()
            .map(|(path, text)| (path.as_str(), *text))
            .collect();
        assert_eq!(files(&tree(&present), "x/app"), expected);
    }

    #[test]
    fn a_plain_directory_reaches_its_yaml_and_the_kustomizations_below() {
        let tree = tree(&[
            ("app/a.yaml", "kind: A"),
            ("app/deep/er/b.yml", "kind: B"),
            ("app/README.md", ""),
            ("app/.hidden/c.yaml", ""),
            ("app/.d.yaml", ""),
            (
                "app/sub/kustomization.yaml",
                "resources: [../../lib/e.yaml, f.yaml]",
            ),
            ("app/sub/f.yaml", ""),
            ("app/sub/not-named.yaml", ""),
            ("lib/e.yaml", ""),
            ("lib/g.yaml", ""),
            ("app/link.yaml", "-> ../lib/h.yaml"),
            ("lib/h.yaml", ""),
            ("app/dangling.txt", "-> nowhere"),
        ]);
        let expected = [
            "app/a.yaml",
            "app/deep/er/b.yml",
            "app/link.yaml",
            "app/sub/f.yaml",
            "app/sub/kustomization.yaml",
            "lib/e.yaml",
            "lib/h.yaml",
        ];
        assert_eq!(files(&tree, "app"), expected);
        let empty = outcome(&tree, "app/.hidden/..").err().unwrap();
        assert!(matches!(empty, RenderError::PathOutside { .. }), "{empty}");
    }

    #[test]
    fn links_reach_each_step_that_the_kernel_takes() {
        let tree = tree(&[
            ("app/kustomization.yaml", "resources: [link/a.yaml, b.yaml]"),
            ("app/link", "-> ../hop"),
            ("hop", "-> lib/empty/../real"),
            ("lib/empty/unrelated", ""),
            ("lib/real/a.yaml", ""),
            ("lib/real/c.yaml", ""),
            ("app/b.yaml", "-> ../lib/real/../real/c.yaml"),
            ("entry", "-> app"),
        ]);
        let expected = [
            "app/b.yaml",
            "app/kustomization.yaml",
            "app/link",
            "entry",
            "hop",
            "lib/real/a.yaml",
            "lib/real/c.yaml",
        ];
        assert_eq!(files(&tree, "entry"), expected);
        // Without this directory, the kernel does not find its parent.
        assert!(outcome(&tree, "entry").unwrap().contains(Path::new("lib/empty")));
    }

    /// Guards against somebody else's file that stops the builds of a whole repository, and against such a file within
    /// the build that nobody is told about.
    #[test]
    fn tenant_links_out_of_the_repository_are_refused_where_they_are_read_and_only_there() {
        for (target, expected) in [
            ("/etc/passwd", Refusal::Outside),
            ("../../../etc/passwd", Refusal::Outside),
            ("nowhere.yaml", Refusal::Missing),
            ("link.yaml", Refusal::Missing),
            ("../other/a.yaml/", Refusal::Missing),
            ("../other/a.yaml/../a.yaml", Refusal::Missing),
        ] {
            let link = format!("-> {target}");
            let tree = tree(&[
                ("app/kustomization.yaml", "resources: [link.yaml]"),
                ("app/link.yaml", &link),
                ("fine/kustomization.yaml", "resources: [../other/a.yaml]"),
                ("fine/foreign", &link),
                ("other/a.yaml", ""),
                ("other/broken/kustomization.yaml", "{"),
            ]);
            assert_eq!(files(&tree, "fine"), ["fine/kustomization.yaml", "other/a.yaml"]);
            let error = outcome(&tree, "app").expect_err(target);
            let text = error.to_string();
            assert!(
                matches!(error, RenderError::Refused { refusal, .. } if refusal == expected),
                "{target}: {text}"
            );
            assert!(
                text.starts_with("app/kustomization.yaml: resources entry \"link.yaml\""),
                "{text}"
            );
        }
    }
}

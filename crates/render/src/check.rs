//! Checks every kustomization that a build would read, before any program is run.
//!
//! The restrictions of kustomize itself (files stay below their kustomization, plugins are disabled) are not changed.
//! This check comes first because its errors name the file and the entry, and because kustomize fetches remote entries
//! by default.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::remote::{is_git, is_url, shown};
use super::tree::{Node, Tree};
use super::{Refusal, RenderError, yaml};

/// Maximum bytes of a kustomization, inline patches included; real ones stay below 100 KiB.
const MAX_KUSTOMIZATION_BYTES: usize = 4 << 20;
/// Maximum bytes of all kustomizations of a build, and of the configurations of plugins: 6 KiB for each of
/// [`MAX_DIRECTORIES`].
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// Directories that one build may span.
const MAX_DIRECTORIES: usize = 10_000;

/// The kind of value of a field of a kustomization.
#[derive(Clone, Copy)]
enum FieldKind {
    /// Values that refer to no files.
    Values,
    /// Manifests or directories with a kustomization.
    Resources,
    /// Configurations of plugins: inline, in files, or built from directories.
    Plugins,
    /// Files.
    Files,
    /// Files or inline patches.
    Patches,
    /// Mappings whose `path` is a file.
    Paths,
    /// Generators of ConfigMaps and Secrets.
    Sources,
    /// Programs to run.
    Programs,
}

/// All fields of a kustomization, in lower case: the keys of kustomize are case-insensitive.
const FIELDS: &[(&str, FieldKind)] = &[
    ("apiversion", FieldKind::Values),
    ("kind", FieldKind::Values),
    ("metadata", FieldKind::Values),
    ("nameprefix", FieldKind::Values),
    ("namesuffix", FieldKind::Values),
    ("namespace", FieldKind::Values),
    ("commonlabels", FieldKind::Values),
    ("labels", FieldKind::Values),
    ("commonannotations", FieldKind::Values),
    ("images", FieldKind::Values),
    ("imagetags", FieldKind::Values),
    ("replicas", FieldKind::Values),
    ("vars", FieldKind::Values),
    ("sortoptions", FieldKind::Values),
    ("generatoroptions", FieldKind::Values),
    ("buildmetadata", FieldKind::Values),
    ("resources", FieldKind::Resources),
    ("bases", FieldKind::Resources),
    ("components", FieldKind::Resources),
    ("generators", FieldKind::Plugins),
    ("transformers", FieldKind::Plugins),
    ("validators", FieldKind::Plugins),
    ("crds", FieldKind::Files),
    ("configurations", FieldKind::Files),
    ("patchesstrategicmerge", FieldKind::Patches),
    ("patches", FieldKind::Paths),
    ("patchesjson6902", FieldKind::Paths),
    ("replacements", FieldKind::Paths),
    ("openapi", FieldKind::Paths),
    ("configmapgenerator", FieldKind::Sources),
    ("secretgenerator", FieldKind::Sources),
    ("helmcharts", FieldKind::Programs),
    ("helmglobals", FieldKind::Programs),
    ("helmchartinflationgenerator", FieldKind::Programs),
];

/// The fields of entries that name a file: patches, replacements, `openapi`.
const PATH_FIELDS: &[&str] = &["path", "patch", "target", "options", "source", "targets"];

/// The fields of a generator of ConfigMaps or Secrets.
const SOURCE_FIELDS: &[&str] = &[
    "name",
    "namespace",
    "behavior",
    "type",
    "options",
    "files",
    "envs",
    "env",
    "literals",
];

/// The fields of a kustomization in a directory of `generators`, `transformers` or `validators`.
const OF_PLUGIN_DIRECTORIES: &[&str] = &[
    "apiversion",
    "kind",
    "metadata",
    "resources",
    "bases",
    "components",
];

/// Literals that the error output of the build may quote and that may be secret. Therefore without `Debug`.
#[derive(Default)]
pub(super) struct SecretLiterals(pub(super) Vec<String>);

/// Checks the kustomizations of directories and all kustomizations that these include. The tree then knows every file
/// that a build of the directories reads: kustomize reads what a kustomization names, and no field passes that may name
/// a file which this check does not know.
pub(super) fn check(tree: &Tree<'_>, directories: &[PathBuf]) -> Result<SecretLiterals, RenderError> {
    let mut walk = Walk {
        tree,
        visited: BTreeSet::new(),
        ahead: Vec::new(),
        bytes: 0,
        secret_literals: SecretLiterals::default(),
    };
    for directory in directories.iter().rev() {
        walk.enqueue(DirectoryVisit {
            directory: directory.clone(),
            plugins_of: None,
        });
    }
    while let Some(visit) = walk.ahead.pop() {
        if walk.visited.len() > MAX_DIRECTORIES {
            return Err(RenderError::TooLarge {
                what: "the directories of one build",
                limit: MAX_DIRECTORIES,
            });
        }
        walk.visit(&visit)?;
    }
    Ok(walk.secret_literals)
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct DirectoryVisit {
    directory: PathBuf,
    /// Set if the directory contains configurations of plugins: their paths are relative to this other directory.
    plugins_of: Option<PathBuf>,
}

struct Walk<'a> {
    tree: &'a Tree<'a>,
    visited: BTreeSet<DirectoryVisit>,
    ahead: Vec<DirectoryVisit>,
    bytes: usize,
    secret_literals: SecretLiterals,
}

/// The file and field of an entry, for errors and for relative paths.
#[derive(Clone, Copy)]
struct EntryPath<'a> {
    file: &'a Path,
    directory: &'a Path,
    field: &'a str,
}

impl Walk<'_> {
    fn enqueue(&mut self, visit: DirectoryVisit) {
        if self.visited.insert(visit.clone()) {
            self.ahead.push(visit);
        }
    }

    fn read(&mut self, file: &Path) -> Result<Vec<u8>, RenderError> {
        let content = self.tree.read(file, MAX_KUSTOMIZATION_BYTES)?;
        self.bytes = self.bytes.saturating_add(content.len());
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(RenderError::TooLarge {
                what: "the bytes of all kustomizations of one build",
                limit: MAX_TOTAL_BYTES,
            });
        }
        Ok(content)
    }

    fn visit(&mut self, visit: &DirectoryVisit) -> Result<(), RenderError> {
        let Some(file) = self.tree.kustomization(&visit.directory)? else {
            let entry_path = EntryPath {
                file: &visit.directory,
                directory: &visit.directory,
                field: "directory",
            };
            return Err(self.refused(entry_path, ".", Refusal::NoKustomization));
        };
        let content = self.read(&file)?;
        let entry_path = EntryPath {
            file: &file,
            directory: &visit.directory,
            field: "kustomization",
        };
        let mut documents = yaml::read(&content, 2).map_err(|source| RenderError::Yaml {
            origin: self.tree.name(&file),
            source,
        })?;
        match (documents.pop(), documents.is_empty()) {
            // kustomize itself reports an empty kustomization.
            (None, _) => Ok(()),
            (Some(Value::Object(fields)), true) => fields.iter().try_for_each(|(name, value)| {
                self.field(
                    EntryPath {
                        field: name,
                        ..entry_path
                    },
                    value,
                    visit.plugins_of.as_deref(),
                )
            }),
            _ => Err(self.refused(entry_path, "document", Refusal::Malformed)),
        }
    }

    fn field(
        &mut self,
        entry_path: EntryPath<'_>,
        value: &Value,
        plugins_of: Option<&Path>,
    ) -> Result<(), RenderError> {
        let name = folded(entry_path.field);
        let Some((_, kind)) = FIELDS.iter().find(|(known, _)| *known == name) else {
            return Err(self.refused(entry_path, entry_path.field, Refusal::Unknown));
        };
        // Other fields could change the configurations of plugins after this check.
        if plugins_of.is_some() && !OF_PLUGIN_DIRECTORIES.contains(&name.as_str()) {
            return Err(self.refused(entry_path, entry_path.field, Refusal::ChangesPlugins));
        }
        if value.is_null() {
            return Ok(());
        }
        match kind {
            FieldKind::Values => Ok(()),
            FieldKind::Resources => self.each_text(entry_path, value, |walk, entry| {
                walk.resource(entry_path, entry, plugins_of)
            }),
            FieldKind::Plugins => self.each_text(entry_path, value, |walk, entry| {
                walk.plugin_entry(entry_path, entry)
            }),
            FieldKind::Files => self.each_text(entry_path, value, |walk, entry| walk.file(entry_path, entry)),
            FieldKind::Patches => self.each_text(entry_path, value, |walk, entry| {
                if is_inline(entry) {
                    Ok(())
                } else {
                    walk.file(entry_path, entry)
                }
            }),
            FieldKind::Paths => self.each_mapping(entry_path, value, |walk, entry| {
                walk.known(entry_path, entry, PATH_FIELDS)?;
                walk.path_of(entry_path, entry)
            }),
            FieldKind::Sources => self.each_mapping(entry_path, value, |walk, entry| {
                walk.known(entry_path, entry, SOURCE_FIELDS)?;
                walk.sources(entry_path, entry)
            }),
            FieldKind::Programs => Err(self.refused(entry_path, entry_path.field, Refusal::Plugin)),
        }
    }

    /// A file, or a directory to walk.
    fn resource(
        &mut self,
        entry_path: EntryPath<'_>,
        entry: &str,
        plugins_of: Option<&Path>,
    ) -> Result<(), RenderError> {
        let node = self.local(entry_path, entry)?;
        match (node, plugins_of) {
            (Node::File(_), None) => Ok(()),
            (Node::File(file), Some(base)) => self.plugin_file(entry_path, base, &file),
            (Node::Directory(directory), _) => {
                if self.tree.kustomization(&directory)?.is_none() {
                    return Err(self.refused(entry_path, entry, Refusal::NoKustomization));
                }
                self.enqueue(DirectoryVisit {
                    directory,
                    plugins_of: plugins_of.map(Path::to_owned),
                });
                Ok(())
            }
        }
    }

    fn plugin_entry(&mut self, entry_path: EntryPath<'_>, entry: &str) -> Result<(), RenderError> {
        if is_inline(entry) {
            let documents = yaml::read(entry.as_bytes(), MAX_DIRECTORIES)
                .map_err(|_| self.refused(entry_path, "(inline)", Refusal::Malformed))?;
            return documents
                .iter()
                .try_for_each(|config| self.plugin(entry_path, "(inline)", config));
        }
        self.resource(entry_path, entry, Some(entry_path.directory))
    }

    fn plugin_file(
        &mut self,
        entry_path: EntryPath<'_>,
        base: &Path,
        file: &Path,
    ) -> Result<(), RenderError> {
        let content = self.read(file)?;
        let name = self.tree.name(file);
        let documents = yaml::read(&content, MAX_DIRECTORIES).map_err(|source| RenderError::Yaml {
            origin: name.clone(),
            source,
        })?;
        let entry_path = EntryPath {
            directory: base,
            ..entry_path
        };
        documents
            .iter()
            .try_for_each(|config| self.plugin(entry_path, &name, config))
    }

    /// Checks one configuration: only plugins that are compiled into kustomize, run no program, and read only inside
    /// the tree.
    fn plugin(&mut self, entry_path: EntryPath<'_>, entry: &str, config: &Value) -> Result<(), RenderError> {
        let Value::Object(fields) = config else {
            return Err(self.refused(entry_path, entry, Refusal::Malformed));
        };
        let builtin = config["apiVersion"] == "builtin";
        let helm = config["kind"].as_str().is_none_or(|kind| kind.contains("Helm"));
        let annotations = config["metadata"]["annotations"].as_object();
        let function = annotations.is_some_and(|all| all.keys().any(|key| key.contains("function")));
        if !builtin || helm || function {
            return Err(self.refused(entry_path, entry, Refusal::Plugin));
        }
        self.path_of(entry_path, fields)?;
        // ValueAddTransformer reads its targets from it.
        self.path_in(entry_path, fields, "targetfilepath")?;
        self.sources(entry_path, fields)?;
        for (_, paths) in named(fields, &["paths"]) {
            // `paths` of a patch transformer; other plugins have no such field.
            self.each_text(entry_path, paths, |walk, path| walk.file(entry_path, path))?;
        }
        for (_, list) in named(fields, &["replacements"]) {
            self.each_mapping(entry_path, list, |walk, entry| walk.path_of(entry_path, entry))?;
        }
        Ok(())
    }

    /// Refuses fields that this check does not know: one of them may read any file.
    fn known(
        &self,
        entry_path: EntryPath<'_>,
        fields: &Map<String, Value>,
        known: &[&str],
    ) -> Result<(), RenderError> {
        let unknown = fields.keys().find(|key| !known.contains(&folded(key).as_str()));
        unknown.map_or(Ok(()), |key| Err(self.refused(entry_path, key, Refusal::Unknown)))
    }

    fn path_of(&mut self, entry_path: EntryPath<'_>, fields: &Map<String, Value>) -> Result<(), RenderError> {
        self.path_in(entry_path, fields, "path")
    }

    /// Checks the file that a field names, if the field is set.
    fn path_in(
        &mut self,
        entry_path: EntryPath<'_>,
        fields: &Map<String, Value>,
        field: &str,
    ) -> Result<(), RenderError> {
        for (name, path) in named(fields, &[field]) {
            match path {
                Value::Null => {}
                Value::String(path) if path.is_empty() => {}
                Value::String(path) => self.file(entry_path, path)?,
                _ => return Err(self.refused(entry_path, name, Refusal::Malformed)),
            }
        }
        Ok(())
    }

    /// Files of a generator, and the literals that errors must not quote.
    fn sources(&mut self, entry_path: EntryPath<'_>, fields: &Map<String, Value>) -> Result<(), RenderError> {
        for (name, value) in named(fields, &["files", "envs", "env", "literals"]) {
            let one = [value.clone()];
            let entries = match value {
                Value::Array(entries) => entries.as_slice(),
                Value::String(_) => &one,
                Value::Null => continue,
                _ => return Err(self.refused(entry_path, name, Refusal::Malformed)),
            };
            for entry in entries {
                let Some(entry) = entry.as_str() else {
                    return Err(self.refused(entry_path, name, Refusal::Malformed));
                };
                let field = folded(name);
                if field == "literals" {
                    self.secret_literals.0.push(entry.to_owned());
                    self.secret_literals
                        .0
                        .extend(entry.split_once('=').map(|(_, value)| value.to_owned()));
                } else {
                    // `files` may have the form `key=path`.
                    let keyed = (field == "files").then(|| entry.split_once('=')).flatten();
                    self.file(entry_path, keyed.map_or(entry, |(_, path)| path))?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, entry_path: EntryPath<'_>, entry: &str) -> Result<(), RenderError> {
        match self.local(entry_path, entry)? {
            Node::File(_) => Ok(()),
            Node::Directory(_) => Err(self.refused(entry_path, entry, Refusal::WrongType)),
        }
    }

    fn local(&self, entry_path: EntryPath<'_>, entry: &str) -> Result<Node, RenderError> {
        let resolved = self.tree.resolve(entry_path.directory, entry);
        // kustomize loads an existing file before it tries the name as a git address; for anything else, it tries the
        // git address first.
        let remote = is_url(entry) || (is_git(entry) && !matches!(resolved, Ok(Node::File(_))));
        if remote {
            return Err(self.refused(entry_path, entry, Refusal::Remote));
        }
        resolved.map_err(|refusal| self.refused(entry_path, entry, refusal))
    }

    fn each_text(
        &mut self,
        entry_path: EntryPath<'_>,
        value: &Value,
        mut each: impl FnMut(&mut Self, &str) -> Result<(), RenderError>,
    ) -> Result<(), RenderError> {
        let entries = match value {
            Value::Array(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => return Err(self.refused(entry_path, entry_path.field, Refusal::Malformed)),
        };
        for entry in entries {
            match entry.as_str() {
                Some(entry) => each(self, entry)?,
                None => return Err(self.refused(entry_path, entry_path.field, Refusal::Malformed)),
            }
        }
        Ok(())
    }

    /// Calls `check` for each mapping of a list, or for the single mapping of a field.
    fn each_mapping(
        &mut self,
        entry_path: EntryPath<'_>,
        value: &Value,
        mut each: impl FnMut(&mut Self, &Map<String, Value>) -> Result<(), RenderError>,
    ) -> Result<(), RenderError> {
        match value {
            Value::Object(fields) => each(self, fields),
            Value::Array(entries) => entries.iter().try_for_each(|entry| match entry {
                Value::Object(fields) => each(self, fields),
                _ => Err(self.refused(entry_path, entry_path.field, Refusal::Malformed)),
            }),
            Value::Null => Ok(()),
            _ => Err(self.refused(entry_path, entry_path.field, Refusal::Malformed)),
        }
    }

    fn refused(&self, entry_path: EntryPath<'_>, entry: &str, refusal: Refusal) -> RenderError {
        RenderError::Refused {
            file: self.tree.name(entry_path.file),
            field: entry_path.field.to_owned(),
            entry: shown(entry),
            refusal,
        }
    }
}

/// The fields with one of these names, whatever their case.
fn named<'a>(
    fields: &'a Map<String, Value>,
    names: &'a [&str],
) -> impl Iterator<Item = (&'a str, &'a Value)> {
    fields
        .iter()
        .filter(|(key, _)| names.contains(&folded(key).as_str()))
        .map(|(key, value)| (key.as_str(), value))
}

/// Returns a key in the form in which kustomize compares it. Go's `encoding/json` folds by Unicode, which takes two
/// characters outside of ASCII for letters: the long s and the sign of Kelvin.
fn folded(key: &str) -> String {
    let letter = |character: char| match character {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(letter).collect()
}

/// Whether an entry is an inline document and not a path.
fn is_inline(entry: &str) -> bool {
    if is_url(entry) {
        return false;
    }
    entry.contains('\n')
        || yaml::read(entry.as_bytes(), 1)
            .is_ok_and(|documents| matches!(documents.as_slice(), [Value::Object(_)]))
}

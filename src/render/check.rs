//! Looks at every kustomization that a build would read, before anything is run.
//!
//! kustomize has fences of its own (files stay below their kustomization, plugins are off) and they stay
//! on. This walk comes first because it names the file and the entry, and because kustomize fetches remote
//! entries by default.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::remote::{is_git, is_url, shown};
use super::tree::{Node, Tree};
use super::{Refusal, RenderError, yaml};

/// A kustomization with inline patches; real ones stay below 100 KiB.
const MAX_KUSTOMIZATION_BYTES: usize = 4 << 20;
/// Folders that one build may span.
const MAX_FOLDERS: usize = 10_000;

/// What a field of a kustomization takes.
#[derive(Clone, Copy)]
enum Takes {
    /// Nothing that is read from anywhere.
    Values,
    /// Manifests or folders with a kustomization.
    Resources,
    /// Configurations of plugins: inline, in files, or built from folders.
    Plugins,
    /// Files.
    Files,
    /// Files or inline patches.
    Patches,
    /// Mappings, of which `path` names a file.
    Paths,
    /// Generators of ConfigMaps and Secrets.
    Sources,
    /// Programs to run.
    Programs,
}

/// All fields of a kustomization, in lower case: kustomize does not mind the case of keys.
const FIELDS: &[(&str, Takes)] = &[
    ("apiversion", Takes::Values),
    ("kind", Takes::Values),
    ("metadata", Takes::Values),
    ("nameprefix", Takes::Values),
    ("namesuffix", Takes::Values),
    ("namespace", Takes::Values),
    ("commonlabels", Takes::Values),
    ("labels", Takes::Values),
    ("commonannotations", Takes::Values),
    ("images", Takes::Values),
    ("imagetags", Takes::Values),
    ("replicas", Takes::Values),
    ("vars", Takes::Values),
    ("sortoptions", Takes::Values),
    ("generatoroptions", Takes::Values),
    ("buildmetadata", Takes::Values),
    ("resources", Takes::Resources),
    ("bases", Takes::Resources),
    ("components", Takes::Resources),
    ("generators", Takes::Plugins),
    ("transformers", Takes::Plugins),
    ("validators", Takes::Plugins),
    ("crds", Takes::Files),
    ("configurations", Takes::Files),
    ("patchesstrategicmerge", Takes::Patches),
    ("patches", Takes::Paths),
    ("patchesjson6902", Takes::Paths),
    ("replacements", Takes::Paths),
    ("openapi", Takes::Paths),
    ("configmapgenerator", Takes::Sources),
    ("secretgenerator", Takes::Sources),
    ("helmcharts", Takes::Programs),
    ("helmglobals", Takes::Programs),
    ("helmchartinflationgenerator", Takes::Programs),
];

/// Texts that the build's error output may quote and nobody may see. Has no `Debug` for that reason.
#[derive(Default)]
pub(super) struct Unshown(pub(super) Vec<String>);

/// Checks the kustomization of a folder and all that it reaches.
pub(super) fn check(tree: &Tree, folder: &Path) -> Result<Unshown, RenderError> {
    let mut walk = Walk {
        tree,
        seen: BTreeSet::new(),
        ahead: Vec::new(),
        unshown: Unshown::default(),
    };
    walk.enqueue(Visit {
        folder: folder.to_owned(),
        plugins_of: None,
    });
    while let Some(visit) = walk.ahead.pop() {
        if walk.seen.len() > MAX_FOLDERS {
            return Err(RenderError::TooLarge {
                what: "the folders of one build",
                limit: MAX_FOLDERS,
            });
        }
        walk.visit(&visit)?;
    }
    Ok(walk.unshown)
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Visit {
    folder: PathBuf,
    /// Set if what this folder yields configures plugins: their paths are relative to this other folder.
    plugins_of: Option<PathBuf>,
}

struct Walk<'a> {
    tree: &'a Tree,
    seen: BTreeSet<Visit>,
    ahead: Vec<Visit>,
    unshown: Unshown,
}

/// Where an entry stands, for errors and for following it.
#[derive(Clone, Copy)]
struct Place<'a> {
    file: &'a Path,
    folder: &'a Path,
    field: &'a str,
}

impl Walk<'_> {
    fn enqueue(&mut self, visit: Visit) {
        if self.seen.insert(visit.clone()) {
            self.ahead.push(visit);
        }
    }

    fn visit(&mut self, visit: &Visit) -> Result<(), RenderError> {
        let Some(file) = self.tree.kustomization(&visit.folder)? else {
            let place = Place {
                file: &visit.folder,
                folder: &visit.folder,
                field: "folder",
            };
            return Err(self.refused(place, ".", Refusal::NoKustomization));
        };
        let content = self.tree.read(&file, MAX_KUSTOMIZATION_BYTES)?;
        let place = Place {
            file: &file,
            folder: &visit.folder,
            field: "kustomization",
        };
        let mut documents = yaml::read(&content, 2).map_err(|source| RenderError::Yaml {
            origin: self.tree.name(&file),
            source,
        })?;
        match (documents.pop(), documents.is_empty()) {
            // kustomize says itself that it is empty.
            (None, _) => Ok(()),
            (Some(Value::Object(fields)), true) => fields.iter().try_for_each(|(name, value)| {
                self.field(Place { field: name, ..place }, value, visit.plugins_of.as_deref())
            }),
            _ => Err(self.refused(place, "document", Refusal::Malformed)),
        }
    }

    fn field(
        &mut self,
        place: Place<'_>,
        value: &Value,
        plugins_of: Option<&Path>,
    ) -> Result<(), RenderError> {
        let name = place.field.to_lowercase();
        let Some((_, takes)) = FIELDS.iter().find(|(known, _)| *known == name) else {
            return Err(self.refused(place, place.field, Refusal::Unknown));
        };
        if value.is_null() {
            return Ok(());
        }
        match takes {
            Takes::Values => Ok(()),
            Takes::Resources => self.each_text(place, value, |walk, entry| {
                walk.resource(place, entry, plugins_of)
            }),
            Takes::Plugins => self.each_text(place, value, |walk, entry| walk.plugin_entry(place, entry)),
            Takes::Files => self.each_text(place, value, |walk, entry| walk.file(place, entry)),
            Takes::Patches => self.each_text(place, value, |walk, entry| {
                if is_inline(entry) {
                    Ok(())
                } else {
                    walk.file(place, entry)
                }
            }),
            Takes::Paths => self.each_mapping(place, value, |walk, entry| walk.path_of(place, entry)),
            Takes::Sources => self.each_mapping(place, value, |walk, entry| walk.sources(place, entry)),
            Takes::Programs => Err(self.refused(place, place.field, Refusal::Plugin)),
        }
    }

    /// A file, or a folder to walk.
    fn resource(
        &mut self,
        place: Place<'_>,
        entry: &str,
        plugins_of: Option<&Path>,
    ) -> Result<(), RenderError> {
        let node = self.local(place, entry)?;
        match (node, plugins_of) {
            (Node::File(_), None) => Ok(()),
            (Node::File(file), Some(base)) => self.plugin_file(place, base, &file),
            (Node::Folder(folder), _) => {
                if self.tree.kustomization(&folder)?.is_none() {
                    return Err(self.refused(place, entry, Refusal::NoKustomization));
                }
                self.enqueue(Visit {
                    folder,
                    plugins_of: plugins_of.map(Path::to_owned),
                });
                Ok(())
            }
        }
    }

    fn plugin_entry(&mut self, place: Place<'_>, entry: &str) -> Result<(), RenderError> {
        if is_inline(entry) {
            let documents = yaml::read(entry.as_bytes(), MAX_FOLDERS)
                .map_err(|_| self.refused(place, "(inline)", Refusal::Malformed))?;
            return documents
                .iter()
                .try_for_each(|config| self.plugin(place, "(inline)", config));
        }
        self.resource(place, entry, Some(place.folder))
    }

    fn plugin_file(&mut self, place: Place<'_>, base: &Path, file: &Path) -> Result<(), RenderError> {
        let content = self.tree.read(file, MAX_KUSTOMIZATION_BYTES)?;
        let name = self.tree.name(file);
        let documents = yaml::read(&content, MAX_FOLDERS).map_err(|source| RenderError::Yaml {
            origin: name.clone(),
            source,
        })?;
        let place = Place {
            folder: base,
            ..place
        };
        documents
            .iter()
            .try_for_each(|config| self.plugin(place, &name, config))
    }

    /// One configuration: only what is compiled into kustomize, runs nothing, and reads inside the tree.
    fn plugin(&mut self, place: Place<'_>, entry: &str, config: &Value) -> Result<(), RenderError> {
        let Value::Object(fields) = config else {
            return Err(self.refused(place, entry, Refusal::Malformed));
        };
        let builtin = config["apiVersion"] == "builtin";
        let helm = config["kind"].as_str().is_none_or(|kind| kind.contains("Helm"));
        let annotations = config["metadata"]["annotations"].as_object();
        let function = annotations.is_some_and(|all| all.keys().any(|key| key.contains("function")));
        if !builtin || helm || function {
            return Err(self.refused(place, entry, Refusal::Plugin));
        }
        self.path_of(place, fields)?;
        self.sources(place, fields)?;
        for (_, paths) in named(fields, &["paths"]) {
            // `paths` of a patch transformer; other plugins have no such field.
            self.each_text(place, paths, |walk, path| walk.file(place, path))?;
        }
        for (_, list) in named(fields, &["replacements"]) {
            self.each_mapping(place, list, |walk, entry| walk.path_of(place, entry))?;
        }
        Ok(())
    }

    fn path_of(&mut self, place: Place<'_>, fields: &Map<String, Value>) -> Result<(), RenderError> {
        for (_, path) in named(fields, &["path"]) {
            match path {
                Value::Null => {}
                Value::String(path) if path.is_empty() => {}
                Value::String(path) => self.file(place, path)?,
                _ => return Err(self.refused(place, "path", Refusal::Malformed)),
            }
        }
        Ok(())
    }

    /// Files of a generator, and the literals that errors must not quote.
    fn sources(&mut self, place: Place<'_>, fields: &Map<String, Value>) -> Result<(), RenderError> {
        for (name, value) in named(fields, &["files", "envs", "env", "literals"]) {
            let one = [value.clone()];
            let entries = match value {
                Value::Array(entries) => entries.as_slice(),
                Value::String(_) => &one,
                Value::Null => continue,
                _ => return Err(self.refused(place, name, Refusal::Malformed)),
            };
            for entry in entries {
                let Some(entry) = entry.as_str() else {
                    return Err(self.refused(place, name, Refusal::Malformed));
                };
                if name.eq_ignore_ascii_case("literals") {
                    self.unshown.0.push(entry.to_owned());
                    self.unshown
                        .0
                        .extend(entry.split_once('=').map(|(_, value)| value.to_owned()));
                } else {
                    // `files` takes `key=path` too.
                    let keyed = name
                        .eq_ignore_ascii_case("files")
                        .then(|| entry.split_once('='))
                        .flatten();
                    self.file(place, keyed.map_or(entry, |(_, path)| path))?;
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, place: Place<'_>, entry: &str) -> Result<(), RenderError> {
        match self.local(place, entry)? {
            Node::File(_) => Ok(()),
            Node::Folder(_) => Err(self.refused(place, entry, Refusal::WrongType)),
        }
    }

    fn local(&self, place: Place<'_>, entry: &str) -> Result<Node, RenderError> {
        let resolved = self.tree.resolve(place.folder, entry);
        // A file is loaded before its name is tried as a git address; everything else the other way round.
        let remote = is_url(entry) || (is_git(entry) && !matches!(resolved, Ok(Node::File(_))));
        if remote {
            return Err(self.refused(place, entry, Refusal::Remote));
        }
        resolved.map_err(|refusal| self.refused(place, entry, refusal))
    }

    fn each_text(
        &mut self,
        place: Place<'_>,
        value: &Value,
        mut each: impl FnMut(&mut Self, &str) -> Result<(), RenderError>,
    ) -> Result<(), RenderError> {
        let entries = match value {
            Value::Array(entries) => entries.as_slice(),
            Value::Null => &[],
            _ => return Err(self.refused(place, place.field, Refusal::Malformed)),
        };
        for entry in entries {
            match entry.as_str() {
                Some(entry) => each(self, entry)?,
                None => return Err(self.refused(place, place.field, Refusal::Malformed)),
            }
        }
        Ok(())
    }

    /// The mappings of a list, or the one mapping of a field that takes one.
    fn each_mapping(
        &mut self,
        place: Place<'_>,
        value: &Value,
        mut each: impl FnMut(&mut Self, &Map<String, Value>) -> Result<(), RenderError>,
    ) -> Result<(), RenderError> {
        match value {
            Value::Object(fields) => each(self, fields),
            Value::Array(entries) => entries.iter().try_for_each(|entry| match entry {
                Value::Object(fields) => each(self, fields),
                _ => Err(self.refused(place, place.field, Refusal::Malformed)),
            }),
            Value::Null => Ok(()),
            _ => Err(self.refused(place, place.field, Refusal::Malformed)),
        }
    }

    fn refused(&self, place: Place<'_>, entry: &str, refusal: Refusal) -> RenderError {
        RenderError::Refused {
            file: self.tree.name(place.file),
            field: place.field.to_owned(),
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
        .filter(|(key, _)| names.iter().any(|name| key.eq_ignore_ascii_case(name)))
        .map(|(key, value)| (key.as_str(), value))
}

/// Whether an entry is a document and not the name of one.
fn is_inline(entry: &str) -> bool {
    if is_url(entry) {
        return false;
    }
    entry.contains('\n')
        || yaml::read(entry.as_bytes(), 1)
            .is_ok_and(|documents| matches!(documents.as_slice(), [Value::Object(_)]))
}

//! The roles and bindings of a cluster, and what they decide.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::PRIVILEGED_GROUP;
use super::attributes::Attributes;
use super::rule::Rule;
use crate::object::head;
use crate::store::{Range, Store, Stored};
use crate::value::quoted;

/// The table of ClusterRoles.
pub(crate) const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";

/// The tables whose objects decide.
const TABLES: [&str; 4] = [
    CLUSTER_ROLES,
    "roles.rbac.authorization.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
];

/// Who sends a request.
#[derive(Debug, Clone, Copy)]
pub struct Who<'a> {
    /// The user name.
    pub name: &'a str,
    /// The groups.
    pub groups: &'a [String],
}

/// Whether a request is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is.
    pub allowed: bool,
    /// Why, in the words of Kubernetes: the binding that allows it, or the roles that bindings miss; may be empty.
    pub reason: String,
}

/// A role that a binding names and that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    /// The role does not exist.
    Missing {
        /// Whether it is a `ClusterRole`.
        cluster: bool,
        /// The name.
        name: String,
    },
    /// The reference has another kind.
    Kind(String),
}

/// A rule that applies to a user, and where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Grant<'a> {
    /// The rule.
    pub rule: &'a Rule,
    binding: &'a Binding,
    subject: &'a Subject,
}

/// The roles and bindings of a cluster, in the form that decisions need.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    cluster_roles: BTreeMap<Box<str>, Vec<Rule>>,
    /// By namespace and name.
    roles: BTreeMap<Box<str>, Vec<Rule>>,
    cluster_bindings: BTreeMap<Box<str>, Binding>,
    /// By namespace, then by name.
    bindings: BTreeMap<Box<str>, BTreeMap<Box<str>, Binding>>,
}

#[derive(Debug, Clone)]
struct Binding {
    /// Empty for a `ClusterRoleBinding`.
    namespace: String,
    name: String,
    role_kind: String,
    role_name: String,
    subjects: Vec<Subject>,
}

#[derive(Debug, Clone)]
struct Subject {
    kind: String,
    namespace: String,
    name: String,
}

impl Who<'_> {
    /// Returns whether the user may do everything.
    pub fn is_privileged(&self) -> bool {
        self.groups.iter().any(|group| group == PRIVILEGED_GROUP)
    }
}

impl Policy {
    /// Reads the roles and bindings of a store.
    pub(crate) fn of(store: &Store) -> Self {
        let mut policy = Self::default();
        for table in TABLES {
            for stored in store.list(table, Range::default()) {
                policy.put(table, stored);
            }
        }
        policy
    }

    /// Takes over an object that was written; other tables are ignored.
    pub(crate) fn put(&mut self, table: &str, stored: &Stored) {
        let name = || stored.head.name.as_ref().into();
        match TABLES.iter().position(|one| *one == table) {
            Some(0) => {
                self.cluster_roles.insert(name(), Rule::read_all(&stored.read()));
            }
            Some(1) => {
                self.roles
                    .insert(stored.head.key(), Rule::read_all(&stored.read()));
            }
            Some(2) => {
                self.cluster_bindings.insert(name(), Binding::read(stored));
            }
            Some(3) => {
                self.bindings
                    .entry(stored.head.namespace.as_ref().into())
                    .or_default()
                    .insert(name(), Binding::read(stored));
            }
            _ => {}
        }
    }

    /// Forgets an object that was removed.
    pub(crate) fn remove(&mut self, table: &str, stored: &Stored) {
        let name = &*stored.head.name;
        match TABLES.iter().position(|one| *one == table) {
            Some(0) => {
                self.cluster_roles.remove(name);
            }
            Some(1) => {
                self.roles.remove(&*stored.head.key());
            }
            Some(2) => {
                self.cluster_bindings.remove(name);
            }
            Some(3) => {
                let namespace = &*stored.head.namespace;
                if let Some(bindings) = self.bindings.get_mut(namespace) {
                    bindings.remove(name);
                    if bindings.is_empty() {
                        self.bindings.remove(namespace);
                    }
                }
            }
            _ => {}
        }
    }

    /// Decides whether a user may do something.
    pub fn authorize(&self, who: Who<'_>, attributes: &Attributes) -> Decision {
        if who.is_privileged() {
            return Decision {
                allowed: true,
                reason: String::new(),
            };
        }
        let mut problems = Vec::new();
        let allowed = self.find(who, attributes.namespace(), |found| match found {
            Ok(grant) => grant.rule.allows(attributes).then(|| grant.to_string()),
            Err(problem) => {
                problems.push(problem.of_authorizer());
                None
            }
        });
        match allowed {
            Some(by) => Decision {
                allowed: true,
                reason: format!("RBAC: allowed by {by}"),
            },
            None if problems.is_empty() => Decision {
                allowed: false,
                reason: String::new(),
            },
            None => Decision {
                allowed: false,
                reason: format!("RBAC: {}", aggregate(problems)),
            },
        }
    }

    /// Returns all rules that apply to a user in a namespace, and what could not be read.
    pub fn rules_for(&self, who: Who<'_>, namespace: &str) -> (Vec<&Rule>, Vec<Problem>) {
        let (mut rules, mut problems) = (Vec::new(), Vec::new());
        let _: Option<()> = self.find(who, namespace, |found| {
            match found {
                Ok(grant) => rules.push(grant.rule),
                Err(problem) => problems.push(problem),
            }
            None
        });
        (rules, problems)
    }

    /// Returns the rules of the role that a binding in a namespace names.
    ///
    /// # Errors
    /// The role does not exist, or the kind is none of a role.
    pub fn role(&self, kind: &str, name: &str, namespace: &str) -> Result<&[Rule], Problem> {
        let found = match kind {
            "ClusterRole" => self.cluster_roles.get(name),
            // A binding of the cluster has no namespace, and names no `Role`.
            "Role" if namespace.is_empty() => None,
            "Role" => self.roles.get(&head::key(namespace, name)),
            other => return Err(Problem::Kind(other.to_owned())),
        };
        found.map(Vec::as_slice).ok_or_else(|| Problem::Missing {
            cluster: kind == "ClusterRole",
            name: name.to_owned(),
        })
    }

    /// Shows the rules that apply to a user until a visitor returns something: first those of bindings of the cluster,
    /// then those of bindings in the namespace, unless that is empty.
    fn find<'a, T>(
        &'a self,
        who: Who<'_>,
        namespace: &str,
        mut visit: impl FnMut(Result<Grant<'a>, Problem>) -> Option<T>,
    ) -> Option<T> {
        let local = (!namespace.is_empty())
            .then(|| self.bindings.get(namespace))
            .flatten();
        let bindings = { self.cluster_bindings.values() }.chain(local.into_iter().flat_map(BTreeMap::values));
        for binding in bindings {
            let Some(subject) = binding.subject_of(who) else {
                continue;
            };
            let found = match self.role(&binding.role_kind, &binding.role_name, &binding.namespace) {
                Err(problem) => visit(Err(problem)),
                Ok(rules) => rules.iter().find_map(|rule| {
                    visit(Ok(Grant {
                        rule,
                        binding,
                        subject,
                    }))
                }),
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl Binding {
    fn read(stored: &Stored) -> Self {
        let binding = stored.read();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        Self {
            namespace: stored.head.namespace.to_string(),
            name: stored.head.name.to_string(),
            role_kind: text(&binding["roleRef"]["kind"]),
            role_name: text(&binding["roleRef"]["name"]),
            subjects: subjects
                .map(|subject| Subject {
                    kind: text(&subject["kind"]),
                    namespace: text(&subject["namespace"]),
                    name: text(&subject["name"]),
                })
                .collect(),
        }
    }

    /// Returns the first subject that is the user or a group of the user.
    fn subject_of(&self, who: Who<'_>) -> Option<&Subject> {
        self.subjects
            .iter()
            .find(|subject| subject.is(who, &self.namespace))
    }
}

impl Subject {
    fn is(&self, who: Who<'_>, namespace: &str) -> bool {
        match &*self.kind {
            "User" => self.name == who.name,
            "Group" => who.groups.contains(&self.name),
            "ServiceAccount" => {
                let namespace = self.namespace_or(namespace);
                !namespace.is_empty()
                    && who
                        .name
                        .strip_prefix("system:serviceaccount:")
                        .and_then(|rest| rest.strip_prefix(namespace)?.strip_prefix(':'))
                        .is_some_and(|name| name == self.name)
            }
            _ => false,
        }
    }

    fn namespace_or<'a>(&'a self, namespace: &'a str) -> &'a str {
        if self.namespace.is_empty() {
            namespace
        } else {
            &self.namespace
        }
    }
}

/// Writes where a rule comes from, in the words of Kubernetes.
impl fmt::Display for Grant<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding {
            namespace,
            name,
            role_kind,
            role_name,
            ..
        } = self.binding;
        if namespace.is_empty() {
            write!(f, "ClusterRoleBinding {}", quoted(name))?;
        } else {
            write!(f, "RoleBinding {}", quoted(&format!("{name}/{namespace}")))?;
        }
        let Subject { kind, name, .. } = self.subject;
        let subject = if kind == "ServiceAccount" {
            format!("{name}/{}", self.subject.namespace_or(namespace))
        } else {
            name.clone()
        };
        write!(
            f,
            " of {role_kind} {} to {kind} {}",
            quoted(role_name),
            quoted(&subject)
        )
    }
}

impl Problem {
    /// Returns the text in decisions about requests.
    pub fn of_authorizer(&self) -> String {
        match self {
            Self::Missing { cluster: true, name } => {
                format!("clusterrole.{} {} not found", super::GROUP, quoted(name))
            }
            Self::Missing { name, .. } => format!("role.{} {} not found", super::GROUP, quoted(name)),
            Self::Kind(kind) => format!("unsupported role reference kind: {}", quoted(kind)),
        }
    }

    /// Returns the text in decisions about writes of roles and bindings, where Kubernetes names the resource of the
    /// request, whatever is missing.
    pub fn of_storage(&self, plural: &str) -> String {
        match self {
            Self::Missing { name, .. } => format!("{plural}.{} {} not found", super::GROUP, quoted(name)),
            Self::Kind(_) => self.of_authorizer(),
        }
    }
}

/// Joins the texts of errors as Kubernetes does: each once, and several in brackets.
pub(crate) fn aggregate(texts: Vec<String>) -> String {
    let mut once: Vec<String> = Vec::new();
    for text in texts {
        if !once.contains(&text) {
            once.push(text);
        }
    }
    match once.as_slice() {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

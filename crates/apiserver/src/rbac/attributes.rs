//! What a request asks for, as authorization sees it.

use crate::status::{Status, qualified};
use crate::value::quoted;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// The verb: one of the API, such as `list`, or the method of a path, such as `get`.
    pub verb: String,
    /// What the verb is applied to.
    pub requested: Requested,
}

/// What a verb is applied to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// A resource, served or not.
    Resource {
        /// The API group; empty for the core.
        group: String,
        /// The plural name.
        resource: String,
        /// The subresource; empty for the object itself.
        subresource: String,
        /// The namespace; empty for all of them and for what is in none. A namespace is in itself.
        namespace: String,
        /// The name; empty for all.
        name: String,
    },
    /// A path that is no resource, such as `/healthz`.
    Path(String),
}

impl Attributes {
    /// Returns the attributes of a verb on an object.
    pub fn resource(verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> Self {
        Self {
            verb: verb.to_owned(),
            requested: Requested::Resource {
                group: group.to_owned(),
                resource: resource.to_owned(),
                subresource: String::new(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
        }
    }

    /// Returns the same attributes for a subresource.
    #[must_use]
    pub fn of(mut self, wanted: &str) -> Self {
        if let Requested::Resource { subresource, .. } = &mut self.requested {
            wanted.clone_into(subresource);
        }
        self
    }

    /// Returns the namespace; empty for a path.
    pub fn namespace(&self) -> &str {
        match &self.requested {
            Requested::Resource { namespace, .. } => namespace,
            Requested::Path(_) => "",
        }
    }

    /// Returns the response to a user who may not do this; `reason` is what the authorizer says, or empty.
    pub(crate) fn forbidden(&self, user: &str, reason: &str) -> Status {
        let suffix = if reason.is_empty() {
            String::new()
        } else {
            format!(": {reason}")
        };
        let user = quoted(user);
        match &self.requested {
            Requested::Path(path) => {
                let text = format!("User {user} cannot {} path {}", self.verb, quoted(path));
                let mut status = Status::new(
                    403,
                    "Forbidden",
                    format!("forbidden: {}{suffix}", harmless(&text)),
                );
                status.details.empty = true;
                status
            }
            Requested::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            } => {
                let what = match &**subresource {
                    "" => resource.clone(),
                    subresource => format!("{resource}/{subresource}"),
                };
                let scope = match &**namespace {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {}", quoted(namespace)),
                };
                let text = format!(
                    "User {user} cannot {} resource {} in API group {} {scope}",
                    self.verb,
                    quoted(&what),
                    quoted(group)
                );
                forbidden(group, resource, name, &format!("{}{suffix}", harmless(&text)))
            }
        }
    }
}

/// Returns the response to a forbidden request for a resource.
pub(crate) fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Status {
    let named = if name.is_empty() {
        String::new()
    } else {
        format!(" {}", quoted(name))
    };
    let message = format!("{}{named} is forbidden: {why}", qualified(resource, group));
    let mut status = Status::new(403, "Forbidden", message);
    name.clone_into(&mut status.details.name);
    group.clone_into(&mut status.details.group);
    resource.clone_into(&mut status.details.kind);
    status
}

/// Escapes what a browser could take for HTML, as Kubernetes does: the text repeats what the client sent.
fn harmless(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_texts_of_kubernetes() {
        let text = |attributes: &Attributes| attributes.forbidden("ann", "").message;
        assert_eq!(
            text(&Attributes::resource("get", "", "pods", "a", "b").of("log")),
            "pods \"b\" is forbidden: User \"ann\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"a\""
        );
        assert_eq!(
            text(&Attributes::resource("list", "apps", "deployments", "", "")),
            "deployments.apps is forbidden: User \"ann\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope"
        );
        let path = Attributes {
            verb: "get".to_owned(),
            requested: Requested::Path("/a<b>&".to_owned()),
        };
        assert_eq!(
            path.forbidden("ann", "RBAC: why").message,
            "forbidden: User \"ann\" cannot get path \"/a&lt;b&gt;&amp;\": RBAC: why"
        );
    }
}

//! The roles and bindings of every cluster.
//!
//! `bootstrap.json` has those that a kube-apiserver 1.35 creates, in its order. As there, they are created at each
//! start if they are missing, and extended if they grant less; what an administrator adds stays, and the annotation
//! `rbac.authorization.kubernetes.io/autoupdate: "false"` keeps an object as it is.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::cover::uncovered;
use super::rule::Rule;

/// An object that every cluster has.
#[derive(Debug)]
pub(crate) struct Bootstrap {
    /// The plural name of the resource.
    pub(crate) plural: &'static str,
    /// The namespace; empty for an object of the cluster.
    pub(crate) namespace: String,
    /// The name.
    pub(crate) name: String,
    /// The object, without `apiVersion` and `kind`.
    pub(crate) object: Value,
}

static OBJECTS: LazyLock<Vec<Bootstrap>> = LazyLock::new(|| {
    let objects: Vec<Value> = serde_json::from_str(include_str!("bootstrap.json")).unwrap_or_default();
    objects.into_iter().filter_map(Bootstrap::read).collect()
});

impl Bootstrap {
    /// Returns all of them, in the order in which they are created.
    pub(crate) fn all() -> &'static [Self] {
        &OBJECTS
    }

    fn read(mut object: Value) -> Option<Self> {
        let plural = match object.as_object_mut()?.remove("kind")?.as_str()? {
            "ClusterRole" => "clusterroles",
            "ClusterRoleBinding" => "clusterrolebindings",
            "Role" => "roles",
            "RoleBinding" => "rolebindings",
            _ => return None,
        };
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        Some(Self {
            plural,
            namespace: text("namespace"),
            name: text("name"),
            object,
        })
    }
}

/// What to do with an existing object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reconciled {
    /// It is as it should be, or is not to be changed.
    Keep,
    /// It has to be replaced by this object.
    Update(Value),
    /// It refers to another role, which cannot be changed: it has to be deleted and created again.
    Recreate,
}

/// Compares an existing object with the one that every cluster has.
pub(crate) fn reconciled(existing: &Value, wanted: &Value) -> Reconciled {
    if existing["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] == "false" {
        return Reconciled::Keep;
    }
    if existing["roleRef"] != wanted["roleRef"] {
        return Reconciled::Recreate;
    }
    let mut object = existing.clone();
    for field in ["annotations", "labels"] {
        if let Some(wanted) = wanted["metadata"][field].as_object() {
            merge(&mut object["metadata"][field], wanted);
        }
    }
    let owned = Rule::read_all(existing);
    let missing = uncovered(&owned.iter().collect::<Vec<_>>(), &Rule::read_all(wanted));
    extend(&mut object, "rules", missing.iter().map(Rule::to_value));
    let subjects = wanted["subjects"].as_array().into_iter().flatten();
    let known = existing["subjects"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    extend(
        &mut object,
        "subjects",
        subjects.filter(|subject| !known.contains(subject)).cloned(),
    );
    aggregation(&mut object, &wanted["aggregationRule"]);
    if object == *existing {
        Reconciled::Keep
    } else {
        Reconciled::Update(object)
    }
}

/// Adds what an existing map of labels or annotations lacks.
fn merge(existing: &mut Value, wanted: &Map<String, Value>) {
    if !existing.is_object() {
        *existing = Value::Object(Map::new());
    }
    if let Some(existing) = existing.as_object_mut() {
        for (name, value) in wanted {
            existing.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}

fn extend(object: &mut Value, field: &str, items: impl Iterator<Item = Value>) {
    let items: Vec<Value> = items.collect();
    if items.is_empty() {
        return;
    }
    match object[field].as_array_mut() {
        Some(list) => list.extend(items),
        None => object[field] = items.into(),
    }
}

fn aggregation(object: &mut Value, wanted: &Value) {
    let Some(selectors) = wanted["clusterRoleSelectors"].as_array() else {
        if let Some(map) = object.as_object_mut() {
            map.remove("aggregationRule");
        }
        return;
    };
    let known = object["aggregationRule"]["clusterRoleSelectors"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let missing: Vec<Value> = { selectors.iter() }
        .filter(|selector| !known.contains(selector))
        .cloned()
        .collect();
    if !missing.is_empty() {
        object["aggregationRule"]["clusterRoleSelectors"] = [known, missing].concat().into();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(name: &str) -> &'static Value {
        let found = Bootstrap::all().iter().find(|one| one.name == name);
        &found.unwrap().object
    }

    #[test]
    fn the_roles_that_people_rely_on_exist() {
        for name in [
            "cluster-admin",
            "admin",
            "edit",
            "view",
            "system:basic-user",
            "system:discovery",
            "system:public-info-viewer",
        ] {
            assert!(
                Bootstrap::all()
                    .iter()
                    .any(|one| one.plural == "clusterroles" && one.name == name),
                "{name}"
            );
        }
        assert_eq!(Bootstrap::all().len(), 131);
        assert_eq!(
            wanted("edit")["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"],
            "true"
        );
    }

    #[test]
    fn what_an_administrator_changed_is_extended_and_not_replaced() {
        let wanted = wanted("system:basic-user");
        assert_eq!(reconciled(wanted, wanted), Reconciled::Keep);

        let mut changed = wanted.clone();
        changed["rules"] = json!([{"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]}]);
        changed["metadata"]["labels"] = json!({"mine": "yes"});
        let Reconciled::Update(update) = reconciled(&changed, wanted) else {
            panic!("nothing to do");
        };
        assert_eq!(update["rules"].as_array().unwrap().len(), 4, "{update}");
        assert_eq!(update["metadata"]["labels"]["mine"], "yes");
        assert_eq!(reconciled(&update, wanted), Reconciled::Keep);

        changed["metadata"]["annotations"]["rbac.authorization.kubernetes.io/autoupdate"] = json!("false");
        assert_eq!(reconciled(&changed, wanted), Reconciled::Keep);
    }

    #[test]
    fn a_binding_to_another_role_is_created_again() {
        let binding = Bootstrap::all()
            .iter()
            .find(|one| one.plural == "clusterrolebindings")
            .unwrap();
        let mut changed = binding.object.clone();
        changed["roleRef"]["name"] = json!("view");
        assert_eq!(reconciled(&changed, &binding.object), Reconciled::Recreate);
        let mut changed = binding.object.clone();
        changed["subjects"] = json!([]);
        let Reconciled::Update(update) = reconciled(&changed, &binding.object) else {
            panic!("nothing to do");
        };
        assert_eq!(update["subjects"], binding.object["subjects"]);
    }
}

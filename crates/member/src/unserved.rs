//! Determines whether a kind that discovery lacks is gone, or only not served.

use starling_core::object::ObjectId;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA_LIST, Operation};
use super::definitions::Definition;
use super::error::MemberError;
use super::metadata::PartialList;
use super::paths;
use super::transport::Member;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Definitions in one page of a list.
const PAGE: usize = 500;
/// Pages that are read: no cluster has 100,000 definitions.
const PAGES: usize = 200;

impl Member {
    /// Checks that the kind of an object is gone and not only missing from discovery: a definition that serves no
    /// version, or whose conversion fails, keeps its objects. The definition is read as the user of the kubeconfig,
    /// since an account that a Sync impersonates rarely may.
    ///
    /// # Errors
    /// [`MemberError::NotEstablished`] if the definition exists; any error of the requests: then it is not known.
    pub(super) async fn check_gone(&self, key: &ObjectId, attempt: &Attempt) -> Result<(), MemberError> {
        if key.group.is_empty() {
            return Ok(());
        }
        match self.as_kubeconfig_user().defining(key, attempt).await? {
            None => Ok(()),
            Some(definition) => Err(MemberError::NotEstablished {
                object: key.clone(),
                definition,
                problem: "serves no version of it".to_owned(),
            }),
        }
    }

    /// Returns the name of the definition of a kind.
    async fn defining(&self, key: &ObjectId, attempt: &Attempt) -> Result<Option<String>, MemberError> {
        let names = attempt
            .definitions
            .get_or_try_init(|| self.definition_names(attempt))
            .await?;
        let suffix = format!(".{}", key.group);
        for name in names {
            if !name.ends_with(&suffix) {
                continue;
            }
            let operation = Operation::named("read", "a CustomResourceDefinition");
            let path = format!("{DEFINITIONS}/{}", paths::escaped(name));
            match self.send(Call::get(operation, path, JSON), attempt).await {
                Ok(response) => {
                    let definition: Definition = response.parse(operation)?;
                    if key.is_of(&definition.kind()) {
                        return Ok(Some(name.clone()));
                    }
                }
                Err(MemberError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn definition_names(&self, attempt: &Attempt) -> Result<Vec<String>, MemberError> {
        let operation = Operation::kind("list", "CustomResourceDefinition");
        let (mut names, mut next) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let token = paths::escaped(&next);
            let path = format!("{DEFINITIONS}?limit={PAGE}&continue={token}");
            let response = self
                .send(Call::get(operation, path, METADATA_LIST), attempt)
                .await?;
            let page: PartialList<'_> = response.parse(operation)?;
            names.extend(page.items().iter().map(|item| item.metadata.name.clone()));
            // An empty page with a continue token would be requested until the deadline.
            if page.metadata.next.is_empty() || page.items().is_empty() {
                return Ok(names);
            }
            next.clone_from(&page.metadata.next);
        }
        Err(MemberError::Garbage {
            request: operation.to_string(),
            problem: format!("the list has more than {PAGES} pages"),
        })
    }
}

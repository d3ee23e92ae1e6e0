//! Starts and stops real Kubernetes control planes on this machine.
//!
//! One etcd serves any number of kube-apiservers, each with its own key prefix, port, authority and token; a
//! kube-controller-manager is added if a test needs deleted namespaces or garbage collection. The `demo` command and
//! the tests use the same launcher. It needs the programs that [`Assets`] finds, no container engine and no root.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use starling_controlplane::{Assets, ControlPlanes, Options};
//!
//! let assets = Assets::find()?;
//! let planes = ControlPlanes::start(&assets, &["hub", "east", "west"], Options::default()).await?;
//! let client = planes.get("east")?.client().await?;
//! println!("{}", client.apiserver_version().await?.git_version);
//! # Ok(())
//! # }
//! ```
//!
//! Every child process is killed with the value that started it, and on Linux with this process, even if this process
//! is killed.

mod assets;
mod audit;
mod control_plane;
mod control_planes;
mod controller_manager;
mod error;
mod etcd;
mod metrics;
mod pki;
mod ports;
mod process;
mod readiness;

pub use assets::{Assets, AssetsError};
pub use audit::AuditEvent;
pub use control_plane::{ControlPlane, client_from_kubeconfig, kubeconfig_yaml};
pub use control_planes::{ControlPlanes, Options};
pub use controller_manager::DEFAULT_CONTROLLERS;
pub use error::{ControlPlaneError, EtcdError, ProbeError};
pub use metrics::{RequestCount, RequestCounts};
pub use pki::{Authority, Identity, PkiError, Token};
pub use ports::free_port;
pub use process::{Launch, Process, ProcessError, Usage};

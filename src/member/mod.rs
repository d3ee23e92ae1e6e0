//! A member cluster: strict kubeconfig, client, limits, probe, apply, prune.

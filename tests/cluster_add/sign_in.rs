//! All kinds of sign-in of the caller: programs, certificates, files, several kubeconfigs.

use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, KeyPair,
};
use serde_json::json;
use starling_controlplane::Token;

use crate::world::scene;

/// An authority whose client certificates all test servers accept.
pub(crate) struct ClientAuthority {
    folder: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// The token that the sign-in program prints when it fails.
    exec_token: Token,
}

impl ClientAuthority {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("client-ca.crt"), issuer.pem())?;
        Ok(Self {
            folder,
            issuer,
            exec_token: Token::random()?,
        })
    }

    pub(crate) fn flag(&self) -> String {
        format!(
            "--client-ca-file={}",
            self.folder.path().join("client-ca.crt").display()
        )
    }

    pub(crate) fn exec_token(&self) -> &str {
        self.exec_token.reveal()
    }

    /// A certificate and key of a user in `group`.
    pub(crate) fn client(&self, group: &str) -> Result<(String, String)> {
        let mut name = DistinguishedName::new();
        name.push(DnType::CommonName, "jane");
        name.push(DnType::OrganizationName, group);
        let mut params = CertificateParams::default();
        params.distinguished_name = name;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}

/// EKS, GKE and AKS sign in with programs; the Secret has its own token, which needs no program.
#[test]
fn a_sign_in_program_of_the_caller_is_supported() -> Result<()> {
    scene("exec", async |scene| {
        let script = scene.directory().join("login");
        let token = scene.fleet().plane("m3")?.token().reveal().to_owned();
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token},
        });
        std::fs::write(&script, format!("#!/bin/sh\ncat <<'JSON'\n{credential}\nJSON\n"))?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        let mut kubeconfig = scene.kubeconfig()?;
        kubeconfig["users"][3] = json!({"name": "shared", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never",
        }}});
        scene.write_kubeconfig("config", &kubeconfig)?;
        scene.add("shared", "by-exec", &[]).await?;
        let stored = scene.stored_kubeconfig("by-exec").await?;
        assert!(
            !stored.contains("exec") && !stored.contains(&token),
            "the Secret contains the sign-in of the caller"
        );
        scene.as_starling("by-exec").await?.apiserver_version().await?;
        Ok(())
    })
}

#[test]
fn a_failing_sign_in_program_is_named_and_its_output_is_not_shown() -> Result<()> {
    scene("exec-fails", async |scene| {
        let script = scene.directory().join("login");
        let expected = scene.world.authority.exec_token();
        std::fs::write(&script, format!("#!/bin/sh\necho '{expected}'\nexit 3\n"))?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        let mut kubeconfig = scene.kubeconfig()?;
        kubeconfig["users"][3] = json!({"name": "shared", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "./login", "interactiveMode": "Never",
        }}});
        scene.write_kubeconfig("config", &kubeconfig)?;
        let output = scene.try_add("shared", "by-exec", &[]).await?;
        assert!(!output.ok);
        assert!(
            output
                .err
                .contains("login): the sign-in program of the kubeconfig failed (exit status: 3)"),
            "{}",
            output.err
        );
        Ok(())
    })
}

/// Certificates and the authority in files beside the kubeconfig, and member and management cluster in two kubeconfigs.
#[test]
fn certificates_in_files_and_several_kubeconfigs_are_supported() -> Result<()> {
    scene("files", async |scene| {
        let (certificate, key) = scene.world.authority.client("system:masters")?;
        std::fs::create_dir(scene.directory().join("eu"))?;
        let authority = scene.fleet().plane("m3")?.ca_pem().to_owned();
        for (name, content) in [
            ("jane.crt", &certificate),
            ("jane.key", &key),
            ("ca.crt", &authority),
        ] {
            std::fs::write(scene.directory().join("eu").join(name), content)?;
        }
        let server = scene.fleet().plane("m3")?.url().to_owned();
        let member = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "eu",
            "clusters": [{"name": "eu", "cluster": {
                "server": server, "certificate-authority": "ca.crt", "tls-server-name": "kubernetes.default",
            }}],
            "users": [{"name": "jane", "user": {"client-certificate": "jane.crt", "client-key": "jane.key"}}],
            "contexts": [{"name": "eu", "context": {"cluster": "eu", "user": "jane"}}],
        });
        scene.write_kubeconfig("eu/config", &member)?;
        let arguments = [
            "cluster",
            "add",
            "eu",
            "--name",
            "by-certificate",
            "-n",
            scene.namespace,
        ];
        // As in kubectl: the first file with a value takes precedence, and a missing file is skipped.
        let output = scene
            .starling_with("config:nowhere:eu/config", &arguments)
            .await?;
        assert!(output.ok, "{}", output.last());
        let stored = scene.stored_kubeconfig("by-certificate").await?;
        assert!(
            !stored.contains("jane") && !stored.contains("client-"),
            "{stored}"
        );
        let stored: serde_json::Value = serde_saphyr::from_str(&stored)?;
        let cluster = &stored["clusters"][0]["cluster"];
        assert_eq!(cluster["tls-server-name"], "kubernetes.default");
        let data = cluster["certificate-authority-data"]
            .as_str()
            .context("the authority")?;
        assert!(!data.is_empty() && cluster.get("certificate-authority").is_none());
        scene
            .as_starling("by-certificate")
            .await?
            .apiserver_version()
            .await?;
        Ok(())
    })
}

#[test]
fn the_management_cluster_may_be_in_a_kubeconfig_of_its_own() -> Result<()> {
    scene("two-files", async |scene| {
        let mut hub = scene.kubeconfig()?;
        hub["current-context"] = "nothing".into();
        scene.write_kubeconfig("hub.kubeconfig", &hub)?;
        let mut member = scene.kubeconfig()?;
        member["current-context"] = "shared".into();
        let member = scene.write_kubeconfig("member.kubeconfig", &member)?;
        let hub = scene.directory().join("hub.kubeconfig");
        let more = [
            "--kubeconfig",
            &*member.to_string_lossy(),
            "--hub-kubeconfig",
            &*hub.to_string_lossy(),
            "--hub-context",
            "hub",
        ];
        let arguments = [
            &[
                "cluster",
                "add",
                "shared",
                "--name",
                "apart",
                "-n",
                scene.namespace,
            ],
            &more[..],
        ]
        .concat();
        let output = scene.starling_with("nowhere", &arguments).await?;
        assert!(output.ok, "{}", output.last());
        assert!(
            output
                .out
                .contains("kubectl --context hub get cluster apart -n two-files"),
            "{}",
            output.out
        );
        assert_eq!(
            scene.cluster("apart").await?.metadata.name.as_deref(),
            Some("apart")
        );
        Ok(())
    })
}

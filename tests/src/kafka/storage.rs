//! A broker's storage directory, formatted without a JVM for every broker.
//!
//! `StorageTool format` writes two things: `meta.properties` (plain text: cluster, node and directory id) and
//! `bootstrap.checkpoint` (feature levels and SCRAM users, the same on every node). The tool runs once for each set of
//! features and users, its checkpoint is kept in the build folder, and the text is written per node.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::artifacts::Artifacts;
use super::security::User;
use crate::paths;

const CHECKPOINT: &str = "bootstrap.checkpoint";

/// What a cluster is formatted with.
#[derive(Clone, Debug, Default)]
pub(super) struct Format {
    /// Feature name to level, e.g. `transaction.version` to 1; others take the release's default.
    pub(super) features: BTreeMap<String, i16>,
    /// Users with SCRAM credentials.
    pub(super) users: Vec<User>,
}

impl Format {
    /// Formats `dir` for a node.
    pub(super) fn write(&self, artifacts: &Artifacts, dir: &Path, cluster_id: &str, node_id: i32) -> Result<()> {
        fs::create_dir_all(dir)?;
        let template = self.template(artifacts)?;
        fs::copy(template.join(CHECKPOINT), dir.join(CHECKPOINT)).context("copying the bootstrap checkpoint")?;
        let directory_id = random_uuid();
        let meta = format!("version=1\ncluster.id={cluster_id}\nnode.id={node_id}\ndirectory.id={directory_id}\n");
        fs::write(dir.join("meta.properties"), meta)?;
        Ok(())
    }

    /// A directory with the checkpoint for this set of features and users.
    fn template(&self, artifacts: &Artifacts) -> Result<std::path::PathBuf> {
        let args = self.tool_args();
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        let key = paths::fingerprint(&[], &words)?;
        let dir = paths::build().join("kafka").join(super::VERSION).join("formats").join(&key);
        paths::once(&dir, &key, |draft| {
            let properties = draft.join("format.properties");
            let text = format!(
                "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:1\n\
                 controller.listener.names=CONTROLLER\nlisteners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1\n\
                 listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\nlog.dirs={}\n",
                draft.display()
            );
            fs::write(&properties, text)?;
            let config = properties.display().to_string();
            let mut tool = vec!["format", "-t", "AAAAAAAAQACAAAAAAAAAAQ", "-c", &config];
            tool.extend(&words);
            artifacts.tool("kafka.tools.StorageTool", &tool)?;
            fs::remove_file(draft.join("meta.properties"))?;
            anyhow::ensure!(draft.join(CHECKPOINT).exists(), "StorageTool format wrote no {CHECKPOINT}");
            Ok(())
        })?;
        Ok(dir)
    }

    fn tool_args(&self) -> Vec<String> {
        let Self { features, users } = self;
        let features = features.iter().flat_map(|(name, level)| ["--feature".into(), format!("{name}={level}")]);
        let users = users.iter().flat_map(|user| {
            ["SCRAM-SHA-256", "SCRAM-SHA-512"].into_iter().flat_map(|mechanism| {
                let (name, password) = (&user.name, &user.password);
                ["--add-scram".into(), format!("{mechanism}=[name={name},password={password}]")]
            })
        });
        features.chain(users).collect()
    }
}

/// A random version 4 UUID in Kafka's form: 22 characters of URL-safe base64.
pub(super) fn random_uuid() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    // Kafka refuses a leading dash, which its command-line tools would take for an option.
    bytes[0] &= 0x7f;
    base64_url(&bytes)
}

fn base64_url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for position in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(word >> (18 - 6 * position)) as usize & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_url_safe_and_unpadded() {
        assert_eq!(base64_url(b"any carnal pleas"), "YW55IGNhcm5hbCBwbGVhcw");
        assert_eq!(base64_url(&[0xff, 0xef, 0xfe]), "_-_-");
    }

    #[test]
    fn a_random_uuid_has_kafkas_length() {
        assert_eq!(random_uuid().len(), 22);
    }
}

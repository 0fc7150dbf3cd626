//! The way from the gateway to the kernel's edge.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use super::KernelEdge;
use crate::gateway::edge::{Edge, EdgeSource};

/// Opens the edge of this host's kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelSource;

impl EdgeSource for KernelSource {
    fn open(&self, pin: &Path, lock: Option<OwnedFd>, mirror: Option<u64>) -> anyhow::Result<Arc<dyn Edge>> {
        Ok(Arc::new(KernelEdge::open_mirroring(pin, lock, mirror)?))
    }
}

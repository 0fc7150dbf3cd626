//! Whether the kernel's programs run, by the config and by what the host allows, and that they go by the config's
//! rules.
//!
//! A config is tried in steps that can be taken back, so that a reload is whole or nothing:
//!
//! ```text
//!  prepare ── opens the edge, tells it rules and interfaces ──► commit ── steering on or off
//!     └──────────────── on any failure: undo                       └── finish ── detached where it is off
//! ```

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::admission::{self, Admission};
use super::edge::{AdmissionRules, Edge, EdgeSource};
use super::shared::Shared;
use super::steering::Steering;
use crate::config::{Config, FastPath, FastPathMode};
use crate::splice::policy;

/// See the module.
pub(super) struct EdgeControl {
    source: Option<Arc<dyn EdgeSource>>,
    pub(super) steering: Arc<Steering>,
    pub(super) admission: Arc<Admission>,
    /// Somebody may want copies of frames.
    mirrors: bool,
    /// Of the predecessor, until the edge is opened.
    lock: Mutex<Option<OwnedFd>>,
    /// Why there is no edge.
    why_off: Mutex<String>,
    /// The edge was found lost.
    loss: Notify,
    /// Why it can't be done without, as last said.
    trouble: Mutex<String>,
}

/// A config that can be had.
pub(super) struct Prepared {
    edge: Option<Arc<dyn Edge>>,
    is_new: bool,
    rules: AdmissionRules,
    /// Why there is no edge, where there is none.
    why_off: String,
}

impl Prepared {
    /// Whether the kernel is going to steer.
    pub(super) fn steers(&self) -> bool {
        self.edge.is_some()
    }
}

impl EdgeControl {
    pub(super) fn new(
        source: Option<Arc<dyn EdgeSource>>,
        steering: Arc<Steering>,
        admission: Arc<Admission>,
        lock: Option<OwnedFd>,
        mirrors: bool,
    ) -> Self {
        let why_off = Mutex::new("nothing was loaded yet".to_owned());
        Self {
            source,
            steering,
            admission,
            mirrors,
            lock: Mutex::new(lock),
            why_off,
            loss: Notify::new(),
            trouble: Mutex::default(),
        }
    }

    /// Opens what the config wants, and tells the kernel its rules. `old`: the config in force.
    ///
    /// # Errors
    /// The config requires what can't be had, or the kernel refused its rules; nothing has changed then.
    pub(super) fn prepare(&self, old: Option<&Config>, new: &Config) -> anyhow::Result<Prepared> {
        let FastPath { mode, interfaces, pin: _, mirror_buffer: _ } = &new.fast_path;
        let rules = admission::rules(&new.admission);
        let names = interfaces.names().map(<[String]>::to_vec);
        let without = |why_off: String| Prepared { edge: None, is_new: false, rules: rules.clone(), why_off };
        if *mode == FastPathMode::Off {
            return Ok(without("fast_path.mode is off".to_owned()));
        }
        let required = *mode == FastPathMode::Required;
        if let Some(edge) = self.steering.edge() {
            if let Some(why) = edge.lost() {
                return Ok(without(why));
            }
            self.retell(&edge, old, &rules, names.as_deref(), required)?;
            return Ok(Prepared { edge: Some(edge), is_new: false, rules, why_off: String::new() });
        }
        match self.open(new, &rules, names.as_deref(), required) {
            Ok(edge) => Ok(Prepared { edge: Some(edge), is_new: true, rules, why_off: String::new() }),
            Err(error) if required => Err(error.context(
                "fast_path.mode is required, and the kernel's programs can't run (`turnout doctor` says what this \
                 host lacks; `mode: auto` goes on without them)",
            )),
            Err(error) => {
                let why = format!("{error:#}");
                if *self.why_off() != why {
                    warn!("the kernel's programs don't run, the daemon does their part: {why}");
                }
                Ok(without(why))
            }
        }
    }

    fn open(
        &self,
        config: &Config,
        rules: &AdmissionRules,
        interfaces: Option<&[String]>,
        required: bool,
    ) -> anyhow::Result<Arc<dyn Edge>> {
        let Some(source) = &self.source else { bail!("this process has no way to load them") };
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        let edge = source.open(&config.fast_path.pin, lock, self.copies(config))?;
        let told = tell(edge.as_ref(), rules, interfaces)
            .and_then(|()| if required { all_attached(edge.as_ref()) } else { Ok(()) });
        match told {
            Ok(()) => Ok(edge),
            Err(error) => {
                self.discard(edge.as_ref());
                Err(error)
            }
        }
    }

    /// Bytes that the kernel has for copies of frames; `None`: nobody wants any.
    fn copies(&self, config: &Config) -> Option<u64> {
        self.mirrors.then_some(config.fast_path.mirror_buffer.0)
    }

    /// Tells an edge that runs the rules of another config, or leaves it with the old ones.
    fn retell(
        &self,
        edge: &Arc<dyn Edge>,
        old: Option<&Config>,
        rules: &AdmissionRules,
        interfaces: Option<&[String]>,
        required: bool,
    ) -> anyhow::Result<()> {
        let was = self.admission.given();
        if *was != *rules
            && let Err(error) = edge.set_admission(rules)
        {
            if let Err(error) = edge.set_admission(&was) {
                warn!("the kernel could not be given the old admission rules back: {error:#}");
            }
            return Err(error.context("admission: the kernel did not take the rules"));
        }
        let before = old.and_then(|config| config.fast_path.interfaces.names());
        let moved = before != interfaces;
        if moved {
            edge.set_interfaces(interfaces);
        }
        if required && let Err(error) = all_attached(edge.as_ref()) {
            if moved {
                edge.set_interfaces(before);
            }
            if *was != *rules
                && let Err(error) = edge.set_admission(&was)
            {
                warn!("the kernel could not be given the old admission rules back: {error:#}");
            }
            return Err(error.context("fast_path.mode is required"));
        }
        Ok(())
    }

    /// Takes back what [`Self::prepare`] did.
    pub(super) fn undo(&self, prepared: Prepared, old: Option<&Config>) {
        let Some(edge) = prepared.edge else { return };
        if prepared.is_new {
            return self.discard(edge.as_ref());
        }
        let before = old.and_then(|config| config.fast_path.interfaces.names());
        if let Err(error) = tell(edge.as_ref(), &self.admission.given(), before) {
            warn!("the kernel could not be given the old admission rules back: {error:#}");
        }
    }

    /// Steering begins or ends: what virtual clusters claim from now on goes the new way. From here on a reload only
    /// goes forward.
    ///
    /// # Errors
    /// The shared sockets can't be had; nothing has changed then, and `prepared` is to be undone.
    pub(super) fn commit(&self, prepared: &Prepared, workers: usize) -> anyhow::Result<()> {
        match &prepared.edge {
            Some(edge) if prepared.is_new => self.steering.enable(edge, workers)?,
            Some(_) => self.steering.resize(workers),
            None => self.steering.disable(&prepared.why_off),
        }
        prepared.why_off.clone_into(&mut self.why_off());
        self.admission.set(&prepared.rules);
        self.cover();
        Ok(())
    }

    /// Every virtual cluster goes the new way: where that is without the kernel, its programs are taken off.
    pub(super) fn finish(&self, prepared: &Prepared) {
        if prepared.edge.is_none()
            && let Some(edge) = self.steering.take_edge()
        {
            self.discard(edge.as_ref());
            info!("the kernel's programs are detached: {}", prepared.why_off);
        }
        self.cover();
    }

    /// Says whether the connections of a virtual cluster are spliced from now on, and which of their frames.
    pub(super) fn allow_splice(&self, shared: &Shared) {
        let access = self.steering.splice(&shared.name).and_then(|access| {
            let config = shared.config();
            let mut table = policy::policy(config.versions, &config.limits, shared.racks.is_on());
            if let Some(mirroring) = shared.mirror() {
                access.splicer.mirror_to(mirroring.mirror()).map_err(|error| format!("{error:#}"))?;
                policy::mirror(&mut table);
            }
            access.splicer.set_policy(access.policy, &table).map_err(|error| format!("{error:#}"))?;
            Ok(access)
        });
        let ended = access.is_err();
        shared.set_splice(access);
        if ended {
            shared.registry.recall_spliced();
        }
    }

    /// Goes without after all: what was prepared could not be committed, and isn't required.
    pub(super) fn go_without(&self, prepared: Prepared, error: &anyhow::Error) -> Prepared {
        warn!("the kernel's programs don't run, the daemon does their part: {error:#}");
        if let Some(edge) = &prepared.edge {
            self.discard(edge.as_ref());
        }
        Prepared { edge: None, is_new: false, why_off: format!("{error:#}"), ..prepared }
    }

    /// The predecessor ran programs and we don't: they are taken off, now that our ports are open without them.
    pub(super) fn end_inherited(&self, config: &Config) {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(lock), Some(source)) = (lock, &self.source) {
            match source.open(&config.fast_path.pin, Some(lock), None) {
                Ok(edge) => self.discard(edge.as_ref()),
                Err(error) => warn!("the predecessor's programs are not taken off (`turnout detach` does): {error:#}"),
            }
        }
    }

    /// What has to be done every second.
    pub(super) fn upkeep(&self) {
        if self.steering.is_frozen() {
            return;
        }
        if let Some(edge) = self.steering.edge() {
            edge.upkeep();
            if edge.lost().is_some() {
                self.loss.notify_one();
            } else {
                self.steering.upkeep();
                self.end_torn();
            }
        }
        self.cover();
    }

    /// Ends spliced connections from whose interfaces the programs are gone.
    fn end_torn(&self) {
        for shared in self.steering.virtual_clusters() {
            let ended = shared.registry.end_torn();
            if ended > 0 {
                warn!(
                    virtual_cluster = shared.name,
                    "{ended} spliced connections end: the programs don't stand on their interfaces any more"
                );
            }
        }
    }

    /// Waits until somebody else has taken the programs off.
    pub(super) async fn lost(&self) {
        self.loss.notified().await;
    }

    /// Whether this trouble after a loss is another one than was said last.
    pub(super) fn is_news(&self, trouble: &str) -> bool {
        let mut last = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = *last != trouble;
        trouble.clone_into(&mut last);
        is_news
    }

    /// Why the edge that is there does nothing any more.
    pub(super) fn loss(&self) -> Option<String> {
        self.steering.edge().and_then(|edge| edge.lost())
    }

    /// Notes whether the kernel decides about new connections before us.
    fn cover(&self) {
        let covered = self
            .steering
            .edge()
            .is_some_and(|edge| edge.status().interfaces.iter().any(|interface| interface.mode.is_some()));
        self.admission.set_covered(covered);
    }

    /// After a hand-over that failed: the kernel is told everything again.
    ///
    /// # Errors
    /// It refused.
    pub(super) fn thaw(&self, config: Option<&Config>) -> anyhow::Result<()> {
        if let Some(edge) = self.steering.edge() {
            let names = config.and_then(|config| config.fast_path.interfaces.names());
            tell(edge.as_ref(), &self.admission.given(), names)?;
        }
        self.steering.thaw()
    }

    /// Takes programs off that are not to run. While they are a predecessor's, which may have to go on with them, they
    /// are left to it.
    fn discard(&self, edge: &dyn Edge) {
        if self.steering.is_frozen() {
            return edge.release();
        }
        if let Err(error) = edge.detach() {
            warn!("something of the kernel's programs stayed behind (`turnout detach` removes it): {error:#}");
        }
    }

    fn why_off(&self) -> std::sync::MutexGuard<'_, String> {
        self.why_off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel's part is, in one sentence.
    pub(super) fn sentence(&self) -> String {
        let Some(edge) = self.steering.edge() else { return format!("off: {}", self.why_off()) };
        if let Some(why) = edge.lost() {
            return format!("off: {why}");
        }
        let attached: Vec<_> = edge
            .status()
            .interfaces
            .into_iter()
            .filter_map(|interface| Some(format!("{} ({})", interface.name, interface.mode?)))
            .collect();
        let admission = match attached.as_slice() {
            [] => "admission on no interface".to_owned(),
            some => format!("admission on {}", some.join(", ")),
        };
        let steering = match self.steering.steers() {
            Ok(()) => "steering to shared sockets".to_owned(),
            Err(why) => format!("no steering ({why})"),
        };
        let splice = match edge.splicer() {
            Ok(_) => "frames that need no decision pass in the kernel".to_owned(),
            Err(why) => format!("all bytes pass through the daemon ({why})"),
        };
        format!("on: {admission}; {steering}; {splice}")
    }
}

fn tell(edge: &dyn Edge, rules: &AdmissionRules, interfaces: Option<&[String]>) -> anyhow::Result<()> {
    edge.set_admission(rules).context("admission: the kernel did not take the rules")?;
    edge.set_interfaces(interfaces);
    Ok(())
}

/// Connections can be spliced, and every interface that is wanted has the admission program.
fn all_attached(edge: &dyn Edge) -> anyhow::Result<()> {
    edge.splicer().map_err(|why| anyhow!("the splice's programs can't run: {why}"))?;
    let missing = edge.status().interfaces.into_iter().find(|interface| interface.mode.is_none());
    missing.map_or(Ok(()), |interface| {
        let reason = interface.reason.unwrap_or_else(|| "for no known reason".to_owned());
        Err(anyhow!("fast_path.interfaces: {} can't have the admission program: {reason}", interface.name))
    })
}

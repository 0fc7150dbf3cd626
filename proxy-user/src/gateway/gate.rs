//! Whom the connections of one port listen to.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::shared::Phase;

/// See the module. It outlives the sockets behind the port, and the way (bound or steered) by which clients come in.
#[derive(Debug)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Debug)]
struct State {
    sender: watch::Sender<Phase>,
    closed: bool,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { sender: watch::Sender::new(Phase::Serve), closed: false }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a new connection; `None` once it is closed: whoever looked it up looks again.
    pub(crate) fn subscribe(&self) -> Option<watch::Receiver<Phase>> {
        let state = self.state();
        (!state.closed).then(|| state.sender.subscribe())
    }

    /// Has those connected look at their timeouts again, which a reload may have changed.
    pub(crate) fn nudge(&self) {
        let state = self.state();
        if !state.closed {
            state.sender.send_replace(Phase::Serve);
        }
    }

    /// Drains those connected now; those who come later are served.
    pub(crate) fn turn_over(&self, until: Instant) {
        let mut state = self.state();
        if !state.closed {
            let old = std::mem::replace(&mut state.sender, watch::Sender::new(Phase::Serve));
            end(old, Phase::Drain { until });
        }
    }

    /// Ends those connected by this phase, and takes nobody any more. A gate that is closed stays closed.
    pub(crate) fn close(&self, phase: &Phase) {
        let mut state = self.state();
        if !state.closed {
            state.closed = true;
            let phase = if matches!(phase, Phase::Serve) { Phase::Stop } else { phase.clone() };
            end(state.sender.clone(), phase);
        }
    }
}

/// Tells those connected. They take a vanished sender for the end of everything, so it lives as long as they do.
fn end(sender: watch::Sender<Phase>, phase: Phase) {
    sender.send_replace(phase);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move { sender.closed().await });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_turn_over_drains_those_before_and_serves_those_after() {
        let gate = Gate::new();
        let (before, until) = (gate.subscribe().unwrap(), Instant::now() + Duration::from_secs(1));
        gate.turn_over(until);
        let after = gate.subscribe().unwrap();
        assert_eq!(*before.borrow(), Phase::Drain { until });
        assert_eq!(*after.borrow(), Phase::Serve);
        gate.close(&Phase::Drain { until });
        assert_eq!(*after.borrow(), Phase::Drain { until });
        assert!(gate.subscribe().is_none());
    }

    #[tokio::test]
    async fn connections_see_their_gate_for_as_long_as_they_live() {
        let gate = Gate::new();
        let mut connected = gate.subscribe().unwrap();
        gate.close(&Phase::Drain { until: Instant::now() });
        drop(gate);
        tokio::task::yield_now().await;
        assert!(connected.changed().await.is_ok(), "the drain");
        assert!(connected.has_changed().is_ok(), "its sender is still there");
    }

    #[tokio::test]
    async fn a_closed_gate_stays_closed() {
        let gate = Gate::new();
        let connected = gate.subscribe().unwrap();
        gate.close(&Phase::Stop);
        gate.turn_over(Instant::now());
        gate.nudge();
        gate.close(&Phase::Drain { until: Instant::now() });
        assert_eq!(*connected.borrow(), Phase::Stop);
    }
}

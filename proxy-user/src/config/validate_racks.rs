//! Checks of replica routing.

use std::collections::HashSet;

use super::model::{ClientRack, Racks, RacksMode, Versions};
use super::path::KeyPath;
use super::units::Size;
use super::validate::Check;

/// Rules of one virtual cluster: each may be looked at for a new connection.
const MAX_RULES: usize = 4096;

/// Longest name of a rack: it becomes a label of metrics and is written into requests.
const MAX_RACK: usize = 249;

/// Largest weight, so that a sum of them stays exact.
const MAX_WEIGHT: u16 = 1000;

impl Check<'_> {
    pub(super) fn racks(&mut self, path: &KeyPath, racks: &Racks, versions: Versions) {
        let Racks {
            mode,
            clients,
            respect_client_rack: _,
            exclude_clients,
            exclude_brokers,
            weights,
            patch_buffer,
            redirects_per_minute,
            hold_down,
            hold_down_max,
            silence,
            price_per_gb: _,
        } = racks;
        self.client_racks(&path.key("clients"), clients);
        let mut seen = HashSet::new();
        for (i, pattern) in exclude_clients.iter().enumerate() {
            if !seen.insert(pattern) {
                self.error(&path.key("exclude_clients").item(i), "this name is listed twice");
            }
        }
        let mut seen = HashSet::new();
        for (i, node) in exclude_brokers.iter().enumerate() {
            let path = path.key("exclude_brokers").item(i);
            if *node < 0 {
                self.error(&path, "a node id is 0 or more");
            } else if !seen.insert(node) {
                self.error(&path, "this node is listed twice");
            }
        }
        for (node, weight) in weights {
            let path = path.key("weights").key(node.to_string());
            if *node < 0 {
                self.error(&path, "a node id is 0 or more");
            }
            if !(1..=MAX_WEIGHT).contains(weight) {
                self.error(
                    &path,
                    format!("must be from 1 to {MAX_WEIGHT}; name the broker in `exclude_brokers` for none"),
                );
            }
            if seen.contains(node) {
                self.warn(&path, "bounds nothing: nobody is sent to this broker (`exclude_brokers`)");
            }
        }
        if *patch_buffer < Size::kib(1) {
            self.error(&path.key("patch_buffer"), "must be at least `1KiB`; such as `1MiB`");
        }
        if *redirects_per_minute == 0 {
            self.error(&path.key("redirects_per_minute"), "must be at least 1; write `mode: off` for none");
        }
        self.positive(&path.key("hold_down"), *hold_down, "such as `10s`");
        self.positive(&path.key("silence"), *silence, "every replica is silent for a moment; such as `2s`");
        if hold_down_max < hold_down {
            let given = self.root.get(&path.key("hold_down_max")).is_some();
            let key = if given { "hold_down_max" } else { "hold_down" };
            self.error(
                &path.key(key),
                format!("`hold_down_max` of `{hold_down_max}` is shorter than `hold_down` (`{hold_down}`)"),
            );
        }
        if *mode == RacksMode::Off {
            return;
        }
        if clients.is_empty() {
            self.warn(path, "without `clients`, only clients that set `client.rack` have a rack, and are sent to one");
        }
        if versions == Versions::Full {
            self.warn(&path.key("mode"), "Fetch above v15, which `versions: full` offers, is not routed");
        }
    }

    fn client_racks(&mut self, path: &KeyPath, clients: &[ClientRack]) {
        if clients.len() > MAX_RULES {
            self.error(path, format!("{} rules; at most {MAX_RULES} are taken", clients.len()));
            return;
        }
        let mut seen = HashSet::new();
        for (i, rule) in clients.iter().enumerate() {
            let ClientRack { cidr, client_id, listener, rack } = rule;
            let path = path.item(i);
            let given =
                usize::from(cidr.is_some()) + usize::from(client_id.is_some()) + usize::from(listener.is_some());
            if given != 1 {
                self.error(&path, "needs exactly one of `cidr`, `client_id` and `listener`");
            } else if !seen.insert((cidr, client_id, listener)) {
                self.error(&path, "these clients have a rule already");
            }
            if !(1..=MAX_RACK).contains(&rack.len()) {
                self.error(&path.key("rack"), format!("a rack's name has 1 to {MAX_RACK} bytes"));
            }
            if let Some(cidr) = cidr {
                self.prefix(&path.key("cidr"), cidr);
            }
        }
    }
}

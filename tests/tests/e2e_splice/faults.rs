//! Links that lose, delay, reorder, double and damage packets: all of it costs time, and no byte.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::Tier;
use harness::netns::Link;
use harness::relay::{Direction, Faults};

use crate::client::Load;
use crate::in_both_modes;
use crate::loss::Loss;
use crate::stage::{Mode, Setup, Stage};

in_both_modes! {
    packets_that_get_lost => packets_that_get_lost;
    packets_that_are_late_out_of_order_doubled_or_damaged => spoilt;
    no_offloads => no_offloads;
}

/// Something always follows what is lost; some of it in pieces.
const LOAD: Load = Load { depth: 16, daemons: 20, largest: 20_000, in_pieces: true, ..Load::USUAL };

const LASTS: Duration = Duration::from_millis(1500);

/// Loses so many in a million of what comes in at clients and brokers. Not at the gateway: no connection is spliced behind
/// another program; what is lost on the way there is the relays' part.
pub(crate) fn lose(stage: &Stage, per_million: u32) -> Result<Vec<Loss>> {
    let world = &stage.world;
    let clients = [(world.client(0), "gateway")];
    let brokers = world.brokers().iter().map(|host| (host, "fabric"));
    let on = |(host, device): (&harness::netns::Host, &'static str)| {
        let index = host.netns.run(|| index(device))?;
        host.netns.run(|| Loss::on(index, per_million))?.with_context(|| format!("losses on {device}"))
    };
    clients.into_iter().chain(brokers).map(on).collect()
}

/// Of an interface of the calling thread's namespace; 0 if there is none.
fn index(interface: &str) -> u32 {
    let name = std::ffi::CString::new(interface).unwrap_or_default();
    // SAFETY: the name ends with a zero byte, and outlives the call.
    unsafe { libc::if_nametoindex(name.as_ptr()) }
}

/// The kernel goes on taking part, whatever happens to packets.
fn took_part(stage: &Stage, load: Load) -> Result<()> {
    let ran = stage.run(load, stage.lasts(LASTS))?;
    ensure!(!stage.is_spliced() || ran.spliced > 0, "nothing went through the kernel");
    Ok(())
}

fn packets_that_get_lost(mode: Mode) -> Result<()> {
    Setup::new(mode).run(|stage| {
        for per_million in [1_000, 10_000] {
            let lost = lose(stage, per_million)?;
            took_part(stage, LOAD)?;
            drop(lost);
        }
        Ok(())
    })
}

/// One fault at a time on both links at once, and in the full tier on each alone.
fn spoilt(mode: Mode) -> Result<()> {
    let none = Faults::none();
    let ms = Duration::from_millis;
    let faults = [
        Faults { delay: ms(2), jitter: ms(2), ..none },
        Faults { reorder: 0.05, hold_back: ms(3), ..none },
        Faults { duplicate: 0.05, ..none },
        Faults { damage: 0.005, ..none },
        Faults { loss: 0.01, ..none },
        Faults::rough(),
    ];
    let links = [Link::Client(0), Link::Gateway];
    Setup::new(mode).relays(&links).run(|stage| {
        let groups: &[&[Link]] = match harness::tier() {
            Tier::Full => &[&links, &links[..1], &links[1..]],
            Tier::Ci => &[&links],
        };
        for group in groups {
            for faults in faults {
                let relays = group.iter().map(|link| stage.world.relay(*link)).collect::<Result<Vec<_>>>()?;
                let count = || relays.iter().map(|relay| relay.counts(Direction::Outward).received).sum::<u64>();
                let before = count();
                relays.iter().for_each(|relay| relay.set(faults));
                took_part(stage, LOAD).with_context(|| format!("{faults:?} on {group:?}"))?;
                relays.iter().for_each(|relay| relay.set(none));
                ensure!(count() > before + 100, "hardly a packet passed the relays");
            }
        }
        Ok(())
    })
}

/// Every checksum is verified by the receiver, and no packet is larger than the link's.
fn no_offloads(mode: Mode) -> Result<()> {
    Setup::new(mode).without_offloads().run(|stage| {
        took_part(stage, Load { in_pieces: false, ..LOAD })?;
        let lost = lose(stage, 2_000)?;
        took_part(stage, LOAD)?;
        drop(lost);
        Ok(())
    })
}

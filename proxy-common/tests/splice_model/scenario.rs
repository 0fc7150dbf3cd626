// SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
//! What happens in a run, as a function of its seed; and smaller versions of it, for finding out why one fails.

use crate::client::Habits;
use crate::gateway::Manner;
use crate::net::{Faults, Rng};
use crate::script::Shape;
use crate::tcp::{Config, MILLI, Micros, Socket};

/// Everything that a run depends on.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Draws all that is left to chance within the run.
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    /// For each side the local socket's and its host's.
    pub(crate) configs: [[Config; 2]; 2],
    /// From client, to client, from broker, to broker.
    pub(crate) links: [Faults; 4],
    /// One way, of each side.
    pub(crate) delays: [Micros; 2],
    /// Bytes per millisecond.
    pub(crate) rates: [u64; 2],
    pub(crate) manner: Manner,
    pub(crate) client: Habits,
    pub(crate) broker: Habits,
    pub(crate) serial: bool,
    /// Events until everything goes right.
    pub(crate) storm: usize,
}

/// A rate that is zero in half of the runs.
fn rate(rng: &mut Rng, most: u64) -> u32 {
    let drawn = rng.below(most) as u32;
    if rng.chance(500) { drawn } else { 0 }
}

fn faults(rng: &mut Rng, mild: bool) -> Faults {
    let most = if mild { 15 } else { 120 };
    Faults {
        loss: rate(rng, most),
        duplication: rate(rng, most),
        damage: rate(rng, most),
        reordering: rate(rng, most),
        jitter: 1 + rng.below(if mild { 300 } else { 20 * MILLI }),
        cutting: rate(rng, 150),
        whole: [0, 500, 1_000][rng.below(3) as usize],
        merging: rng.below(1_000) as u32,
        coalescing: rng.below(300),
        budget: u32::MAX,
    }
}

fn sequence(rng: &mut Rng) -> u32 {
    let any = rng.next() as u32;
    if rng.chance(500) { any } else { u32::MAX - any % 60_000 }
}

fn buffer(rng: &mut Rng) -> usize {
    match rng.below(4) {
        0 => 600 + rng.below(6_000) as usize,
        1 => 4_000 + rng.below(60_000) as usize,
        _ => 64_000 + rng.below(200_000) as usize,
    }
}

fn config(rng: &mut Rng, socket: Socket, sack: bool, mss: usize, scale: u8) -> Config {
    Config {
        seq: sequence(rng),
        scale,
        mss,
        gso: 1 + rng.below(44) as usize,
        sack,
        nodelay: rng.chance(900),
        receive_buffer: buffer(rng),
        window: if rng.chance(500) { 64 << 10 } else { 1 << 20 },
        send_buffer: buffer(rng),
        rtt: MILLI,
        quick_acks: rng.below(20) as u32,
        answers_unsent_acks: rng.chance(500),
        ..Config::of(socket)
    }
}

fn habits(rng: &mut Rng, exchanges: usize) -> Habits {
    let read = if rng.chance(300) { 2_000 } else { 60_000 };
    Habits {
        depth: 1 + rng.below(16) as usize,
        write: if rng.chance(250) { 1 + rng.below(300) as usize } else { 60_000 },
        read: 20 + rng.below(read) as usize,
        pause: if rng.chance(300) { rng.below(20 * MILLI) } else { rng.below(300) },
        hesitates: 100,
        aborts_at: rng.chance(30).then(|| rng.below(200 * MILLI)),
        closes_after: if rng.chance(30) { 1 + rng.below(exchanges as u64) as usize } else { usize::MAX },
        lingers: rng.chance(300),
    }
}

impl Scenario {
    /// What happens with a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        // Now and then more requests are under way than the ring of notes has room for.
        let deep = rng.chance(40);
        // Of these, a trickle that nobody answers for long: the kernel's walk meets the full ring, not the daemon.
        let trickle = deep && rng.chance(700);
        let exchanges = match (deep, trickle) {
            (_, true) => 600 + rng.below(400),
            (true, false) => 300 + rng.below(300),
            (false, false) => 5 + rng.below(40),
        } as usize;
        let largest = [400, 3_000, 20_000, 100_000][rng.below(4) as usize];
        let shape = Shape {
            exchanges,
            largest: if deep { 40 } else { largest },
            local: if trickle { 0 } else { [0, 20, 100, 400, 1_000][rng.below(5) as usize] },
            small_answers_local: rng.chance(200),
        };
        let mild = trickle || rng.chance(700);
        let sack = rng.chance(700);
        let mss = 200 + rng.below(1_260) as usize;
        let scale = [0, 2, 7][rng.below(3) as usize];
        let sockets = [[Socket::ToClient, Socket::Client], [Socket::ToBroker, Socket::Broker]];
        let mut configs = sockets.map(|pair| pair.map(|socket| config(&mut rng, socket, sack, mss, scale)));
        // The design gives the local sockets large windows; with tiny ones a direction crawls in PEER, because x, who
        // hears nothing then, does not say that its window is open again.
        for [own, _] in &mut configs {
            own.receive_buffer = own.receive_buffer.max(16_000);
        }
        // A host with room for one packet and a little more tells windows of a few bytes for ever once it has told one
        // (`__tcp_select_window` opens them by whole packets): such a connection crawls without any gateway.
        for [_, host] in &mut configs {
            if (mss + 1..2 * mss).contains(&host.receive_buffer) {
                host.receive_buffer = 2 * mss;
            }
        }
        let manner = manner(&mut rng, mss);
        // Large frames in tiny writes would take more events than a run is given.
        let least = largest as usize / 200;
        let mut client = habits(&mut rng, exchanges);
        client.write = client.write.max(least);
        let mut broker = habits(&mut rng, exchanges);
        broker.write = broker.write.max(least);
        let depth = if deep { exchanges } else { client.depth };
        if trickle {
            (client.write, client.pause, client.hesitates) = (60_000, 1 + rng.below(20 * MILLI), 1_000);
            (broker.read, broker.write, broker.pause) = (60_000, 60_000, 8_000 * MILLI + rng.below(8_000 * MILLI));
        }
        Self {
            seed,
            shape,
            configs,
            links: [(); 4].map(|()| faults(&mut rng, mild)),
            delays: [rng.below(3 * MILLI), rng.below(3 * MILLI)],
            rates: [200 + rng.below(40_000), 200 + rng.below(40_000)],
            manner,
            client: Habits { depth, closes_after: usize::MAX, ..client },
            broker,
            // One answer at a time would make the trickle one of hours.
            serial: rng.chance(300) && !trickle,
            storm: 1 + rng.below(20_000) as usize,
        }
    }

    /// The same where nothing goes wrong, and nobody is short of memory.
    pub(crate) fn without_faults(mut self) -> Self {
        self.links = [(); 4].map(|()| Faults::NONE);
        for config in self.configs.iter_mut().flatten() {
            (config.receive_buffer, config.window, config.send_buffer) = (512 << 10, 256 << 10, 512 << 10);
            (config.nodelay, config.scale) = (true, 7);
        }
        let manner = &mut self.manner;
        (manner.stalls, manner.recalls, manner.own_requests, manner.local_loss, manner.attacks) = (0, 0, 0, 0, 0);
        manner.unnoted = 0;
        (manner.arms, manner.room, manner.splices_at, manner.cpu_delay) = (1_000, u32::MAX, 0, 0);
        for habits in [&mut self.client, &mut self.broker] {
            (habits.aborts_at, habits.closes_after, habits.lingers) = (None, usize::MAX, true);
        }
        self
    }

    /// Simpler ones, the ones that leave out most first.
    pub(crate) fn simpler(&self) -> Vec<Self> {
        let changes: &[fn(&mut Self)] = &[
            |s| s.shape.exchanges = s.shape.exchanges.div_ceil(2),
            |s| s.shape.exchanges -= usize::from(s.shape.exchanges > 1),
            |s| s.shape.largest /= 2,
            |s| s.shape.local = 0,
            |s| s.shape.local = s.shape.local.min(100),
            |s| s.shape.small_answers_local = false,
            |s| s.links[0] = Faults::NONE,
            |s| s.links[1] = Faults::NONE,
            |s| s.links[2] = Faults::NONE,
            |s| s.links[3] = Faults::NONE,
            |s| s.links.iter_mut().for_each(|link| link.loss = 0),
            |s| s.links.iter_mut().for_each(|link| link.duplication = 0),
            |s| s.links.iter_mut().for_each(|link| link.damage = 0),
            |s| s.links.iter_mut().for_each(|link| link.reordering = 0),
            |s| s.links.iter_mut().for_each(|link| link.cutting = 0),
            |s| s.links.iter_mut().for_each(|link| link.merging = 0),
            |s| s.links.iter_mut().for_each(|link| link.coalescing = 0),
            |s| s.storm /= 2,
            |s| s.manner.attacks = 0,
            |s| s.manner.attacks /= 2,
            |s| s.manner.stalls = 0,
            |s| s.manner.recalls = 0,
            |s| s.manner.unnoted = 0,
            |s| s.manner.most_own_requests = 0,
            |s| s.manner.most_own_requests = s.manner.most_own_requests.min(1),
            |s| s.manner.most_local_losses = 0,
            |s| s.manner.most_local_losses /= 2,
            |s| s.manner.cpu_delay = 0,
            |s| s.manner.arms = 1_000,
            |s| s.manner.splices_at = 0,
            |s| s.manner.first_index = 0,
            |s| s.manner.room = u32::MAX,
            |s| (s.client.aborts_at, s.broker.aborts_at) = (None, None),
            |s| s.broker.closes_after = usize::MAX,
            |s| (s.client.pause, s.broker.pause) = (0, 0),
            |s| (s.client.write, s.broker.write) = (60_000, 60_000),
            |s| (s.client.read, s.broker.read) = (60_000, 60_000),
            |s| s.client.depth = s.client.depth.div_ceil(2),
            |s| s.serial = false,
            |s| s.configs.iter_mut().flatten().for_each(|config| config.sack = false),
            |s| s.configs.iter_mut().flatten().for_each(|config| config.gso = 1),
            |s| s.configs.iter_mut().flatten().for_each(|config| config.receive_buffer = 256_000),
            |s| s.configs.iter_mut().flatten().for_each(|config| config.send_buffer = 256_000),
            |s| s.configs.iter_mut().flatten().for_each(|config| config.scale = 7),
        ];
        let before = format!("{self:?}");
        let changed = changes.iter().map(|change| {
            let mut simpler = self.clone();
            change(&mut simpler);
            simpler
        });
        changed.filter(|simpler| format!("{simpler:?}") != before).collect()
    }
}

fn manner(rng: &mut Rng, mss: usize) -> Manner {
    Manner {
        splices_at: if rng.chance(500) { 0 } else { rng.below(50 * MILLI) },
        cpu_delay: rate(rng, 300).into(),
        step: 1 + rng.below(200),
        stalls: rate(rng, 20),
        stall: 1 + rng.below(400 * MILLI),
        read: 100 + rng.below(70_000) as usize,
        backlog: 1 + rng.below(300_000) as usize,
        arms: if rng.chance(700) { 1_000 } else { 1 + rng.below(999) as u32 },
        recalls: rate(rng, 20),
        own_requests: rate(rng, 30),
        most_own_requests: rng.below(8) as u32,
        unnoted: if rng.chance(100) { rate(rng, 300) } else { 0 },
        local_loss: rate(rng, 60),
        most_local_losses: rng.below(20) as u32,
        first_index: if rng.chance(500) { rng.next() as u32 } else { 0u32.wrapping_sub(rng.below(40) as u32) },
        room: if rng.chance(900) { u32::MAX } else { (mss / 2 + rng.below(mss as u64) as usize) as u32 },
        attack_interval: 1 + rng.below(5 * MILLI),
        attacks: rate(rng, 200),
    }
}

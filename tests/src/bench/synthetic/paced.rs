//! Latency at a fixed rate, without coordinated omission.
//!
//! Request k is due at start + k / rate, whatever became of those before it, and its latency counts from that moment:
//! when the proxy stalls, all the requests that should have been sent meanwhile are seen to wait.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::load::{Answers, open};
use super::wire::Template;
use crate::bench::stats::percentile;

/// Percentiles in microseconds, from the moment a request was due to its whole answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    /// 50th.
    pub(crate) p50: f64,
    /// 99th.
    pub(crate) p99: f64,
    /// 99.9th.
    pub(crate) p999: f64,
}

/// Sends `rate` requests a second over `connections` in turn for `duration`.
///
/// # Errors
/// A connection is refused or closed, or an answer is out of order.
pub(crate) fn run(
    address: SocketAddr,
    template: &Template,
    connections: usize,
    rate: f64,
    duration: Duration,
) -> Result<Latency> {
    run_on(open(address, connections)?, template, rate, duration)
}

/// The same on connections that are open and have nothing in flight.
///
/// # Errors
/// One is closed, or an answer is out of order.
pub(crate) fn run_on(streams: Vec<TcpStream>, template: &Template, rate: f64, duration: Duration) -> Result<Latency> {
    let total = (rate * duration.as_secs_f64()) as usize;
    ensure!(total > 0, "no request fits into {duration:?} at {rate} a second");
    let connections = streams.len();
    let mut outputs = Vec::new();
    let mut inputs = Vec::new();
    for mut stream in streams {
        let mut answers = Answers::new(stream.try_clone()?);
        // The first request of a connection makes a proxy dial its broker: not what is measured here.
        stream.write_all(template.clone().numbered(-1))?;
        answers.expect(-1)?;
        inputs.push(answers);
        outputs.push(stream);
    }
    let begin = Instant::now() + Duration::from_millis(50);
    let due = move |request: usize| begin + Duration::from_secs_f64(request as f64 / rate);
    let mut latencies: Vec<u32> = thread::scope(|scope| {
        let readers: Vec<_> = inputs
            .into_iter()
            .enumerate()
            .map(|(connection, mut answers)| {
                scope.spawn(move || -> Result<Vec<u32>> {
                    let mine = (connection..total).step_by(connections);
                    let mut latencies = Vec::with_capacity(mine.len());
                    for request in mine {
                        answers.expect(request as i32)?;
                        let micros = Instant::now().saturating_duration_since(due(request)).as_micros();
                        latencies.push(u32::try_from(micros).unwrap_or(u32::MAX));
                    }
                    Ok(latencies)
                })
            })
            .collect();
        let mut template = template.clone();
        sleep_precisely();
        for request in 0..total {
            wait_until(due(request));
            outputs[request % connections].write_all(template.numbered(request as i32))?;
        }
        let mut all = Vec::with_capacity(total);
        for reader in readers {
            all.extend(reader.join().map_err(|_| anyhow::anyhow!("a reading thread panicked"))??);
        }
        anyhow::Ok(all)
    })?;
    latencies.sort_unstable();
    let at = |share| f64::from(percentile(&latencies, share));
    Ok(Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999) })
}

/// Sleeps end when they are due instead of up to 50 µs later.
fn sleep_precisely() {
    // SAFETY: sets the timer slack of the calling thread; no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
}

fn wait_until(moment: Instant) {
    let wait = moment.saturating_duration_since(Instant::now());
    if !wait.is_zero() {
        thread::sleep(wait);
    }
}

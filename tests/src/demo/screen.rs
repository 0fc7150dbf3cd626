//! The live table: in place on a terminal, a line a second elsewhere.

use std::io::{IsTerminal, Write};

use super::traffic::{Latency, Report};

const BAR: usize = 30;

/// What the gateway tells about its connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Open now.
    pub(crate) open: u64,
    /// Since its start.
    pub(crate) accepted: u64,
}

/// Bytes that passed between clients and brokers, both ways, by who passed them on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The kernel, without the daemon.
    pub(crate) kernel: u64,
    /// The daemon.
    pub(crate) daemon: u64,
}

impl Passed {
    /// From the kernel's bytes and all.
    pub(crate) fn of([kernel, all]: [f64; 2]) -> Self {
        // Counters of whole bytes, far below 2^53.
        Self { kernel: kernel as u64, daemon: (all - kernel).max(0.0) as u64 }
    }

    /// In a sentence.
    pub(crate) fn summary(self) -> String {
        let Self { kernel, daemon } = self;
        let all = kernel + daemon;
        let share = kernel as f64 * 100.0 / all.max(1) as f64;
        format!(
            "Of {} between clients and brokers, the kernel passed on {} ({share:.1} %), turnout's daemon {}.",
            volume(all),
            volume(kernel),
            volume(daemon),
        )
    }

    fn since(self, last: Self, seconds: u64) -> Self {
        let each = |last: u64, now: u64| now.saturating_sub(last) / seconds;
        Self { kernel: each(last.kernel, self.kernel), daemon: each(last.daemon, self.daemon) }
    }
}

/// Where the table is shown.
#[derive(Debug)]
pub(crate) struct Screen {
    in_place: bool,
    seconds: u32,
    last: Report,
    last_passed: Passed,
    /// Lines of the table that stand on the terminal.
    drawn: usize,
}

impl Screen {
    /// On stdout, for a run of `seconds`.
    pub(crate) fn new(seconds: u32) -> Self {
        Self {
            in_place: std::io::stdout().is_terminal(),
            seconds,
            last: Report::default(),
            last_passed: Passed::default(),
            drawn: 0,
        }
    }

    /// Shows a report, and what the gateway tells of itself where it answers.
    pub(crate) fn show(&mut self, report: &Report, connections: Option<Connections>, passed: Option<Passed>) {
        let mut text = String::new();
        let passed = passed.map(|now| [now.since(self.last_passed, seconds_between(&self.last, report)), now]);
        if self.in_place {
            let lines = table(&self.last, report, self.seconds, connections, passed);
            if self.drawn > 0 {
                text = format!("\x1b[{}A", self.drawn);
            }
            for line in &lines {
                // Each line clears what stood there before.
                text += &format!("{line}\x1b[K\n");
            }
            self.drawn = lines.len();
        } else {
            text = line(&self.last, report, self.seconds, connections, passed) + "\n";
        }
        let mut out = std::io::stdout().lock();
        // Nobody watches: the run goes on and is judged by its exit code.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        self.last = report.clone();
        self.last_passed = passed.map_or(self.last_passed, |[_, now]| now);
    }
}

/// `passed`: in a second, and in total.
fn table(
    last: &Report,
    now: &Report,
    seconds: u32,
    connections: Option<Connections>,
    passed: Option<[Passed; 2]>,
) -> Vec<String> {
    let pace = Pace::between(last, now);
    let done = (now.seconds.min(seconds) as usize * BAR) / (seconds.max(1) as usize);
    let row = |name: &str, left: String, right: String| format!("  {name:<24}{left:>16}{right:>16}");
    let latency = |name: &str, Latency { p50, p99 }: Latency| row(name, millis(p50), millis(p99));
    let bytes = |name: &str, passed: Option<Passed>| {
        let volume = |bytes: Option<u64>| bytes.map_or("?".into(), volume);
        row(name, volume(passed.map(|p| p.kernel)), volume(passed.map(|p| p.daemon)))
    };
    let (open, accepted) =
        connections.map_or(("?".into(), "?".into()), |c| (c.open.to_string(), c.accepted.to_string()));
    let mut lines = vec![
        format!("  [{}{}] {} of {seconds} s", "#".repeat(done), ".".repeat(BAR - done), now.seconds),
        String::new(),
        row("", "a second".into(), "in total".into()),
        row("records written", grouped(pace.sent), grouped(now.sent)),
        row("records read", grouped(pace.read), grouped(now.read)),
        row("data read", megabytes(pace.bytes), megabytes(now.bytes)),
        row("", "by the kernel".into(), "by the daemon".into()),
        bytes("passed on a second", passed.map(|[pace, _]| pace)),
        bytes("passed on in total", passed.map(|[_, total]| total)),
        row("", "p50".into(), "p99".into()),
        latency("latency direct", now.direct),
        latency("latency through turnout", now.gateway),
        row("", "open".into(), "accepted".into()),
        row("connections", open, accepted),
        row("errors", String::new(), grouped(now.errors)),
    ];
    lines.push(now.last_error.as_ref().map_or(String::new(), |error| format!("  last error: {error:.100}")));
    lines
}

fn line(
    last: &Report,
    now: &Report,
    seconds: u32,
    connections: Option<Connections>,
    passed: Option<[Passed; 2]>,
) -> String {
    let pace = Pace::between(last, now);
    let [kernel, daemon] = passed
        .map_or(["?".into(), "?".into()], |[Passed { kernel, daemon }, _]| [kernel, daemon].map(|b| volume(b) + "/s"));
    format!(
        "{:>3}/{seconds} s  written {}/s  read {}/s ({}/s)  by kernel {kernel} daemon {daemon}  p50/p99 direct {}/{} \
         through turnout {}/{}  connections {}  errors {}",
        now.seconds,
        grouped(pace.sent),
        grouped(pace.read),
        megabytes(pace.bytes),
        millis(now.direct.p50),
        millis(now.direct.p99),
        millis(now.gateway.p50),
        millis(now.gateway.p99),
        connections.map_or("?".into(), |connections| connections.open.to_string()),
        now.errors,
    )
}

/// What moved in a second.
struct Pace {
    sent: u64,
    read: u64,
    bytes: u64,
}

impl Pace {
    fn between(last: &Report, now: &Report) -> Self {
        let seconds = seconds_between(last, now);
        let each = |last: u64, now: u64| now.saturating_sub(last) / seconds;
        Self { sent: each(last.sent, now.sent), read: each(last.read, now.read), bytes: each(last.bytes, now.bytes) }
    }
}

fn seconds_between(last: &Report, now: &Report) -> u64 {
    u64::from(now.seconds.saturating_sub(last.seconds).max(1))
}

pub(crate) fn millis(micros: u64) -> String {
    format!("{:.1} ms", micros as f64 / 1000.0)
}

pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// In megabytes, or in kilobytes what would be next to none of them.
fn volume(bytes: u64) -> String {
    if bytes < 1_000_000 { format!("{:.1} kB", bytes as f64 / 1e3) } else { megabytes(bytes) }
}

/// `1234567` as `1 234 567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| String::from_utf8_lossy(group)).collect();
    groups.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(seconds: u32, sent: u64) -> Report {
        let latency = Latency { p50: 1500, p99: 12_345 };
        Report { seconds, sent, read: sent, bytes: sent * 1000, gateway: latency, ..Report::default() }
    }

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn a_row_tells_this_second_and_the_total() {
        let connections = Connections { open: 9, accepted: 14 };
        let passed = [Passed { kernel: 9_600_000, daemon: 60_000 }, Passed { kernel: 90_000_000, daemon: 1_200_000 }];
        let lines = table(&report(9, 40_000), &report(10, 45_000), 30, Some(connections), Some(passed));
        assert_eq!(lines[0], format!("  [{}{}] 10 of 30 s", "#".repeat(10), ".".repeat(20)));
        let row = |name: &str| -> Vec<String> {
            let line = lines.iter().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split("  ").map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        assert_eq!(row("records written"), ["records written", "5 000", "45 000"]);
        assert_eq!(row("data read"), ["data read", "5.0 MB", "45.0 MB"]);
        assert_eq!(row("by the kernel"), ["by the kernel", "by the daemon"]);
        assert_eq!(row("passed on a second"), ["passed on a second", "9.6 MB", "60.0 kB"]);
        assert_eq!(row("passed on in total"), ["passed on in total", "90.0 MB", "1.2 MB"]);
        assert_eq!(row("latency through turnout"), ["latency through turnout", "1.5 ms", "12.3 ms"]);
        assert_eq!(row("connections"), ["connections", "9", "14"]);
    }

    #[test]
    fn without_a_terminal_a_second_is_a_line() {
        let passed = [Passed { kernel: 9_600_000, daemon: 60_000 }; 2];
        let line = line(&report(0, 0), &report(1, 5000), 30, None, Some(passed));
        assert!(line.contains("written 5 000/s") && line.contains("1.5 ms/12.3 ms") && !line.contains('\n'), "{line}");
        assert!(line.contains("by kernel 9.6 MB/s daemon 60.0 kB/s"), "{line}");
    }

    #[test]
    fn a_gateway_that_does_not_answer_is_a_question_mark() {
        let lines = table(&report(0, 0), &report(1, 5000), 30, None, None);
        let marks = lines.iter().filter(|line| line.ends_with('?')).count();
        assert_eq!(marks, 3, "{lines:#?}");
        assert!(line(&report(0, 0), &report(1, 5000), 30, None, None).contains("by kernel ? daemon ?"));
    }

    #[test]
    fn the_kernel_and_the_daemon_share_what_passed() {
        let passed = Passed::of([990_000_000.0, 1e9]);
        assert_eq!(passed, Passed { kernel: 990_000_000, daemon: 10_000_000 });
        assert_eq!(
            passed.summary(),
            "Of 1000.0 MB between clients and brokers, the kernel passed on 990.0 MB (99.0 %), turnout's daemon 10.0 MB."
        );
        assert!(Passed::default().summary().contains("(0.0 %)"));
        assert_eq!(Passed::of([7.0, 5.0]).daemon, 0);
        let pace = passed.since(Passed { kernel: 980_000_000, daemon: 10_000_000 }, 2);
        assert_eq!(pace, Passed { kernel: 5_000_000, daemon: 0 });
    }
}

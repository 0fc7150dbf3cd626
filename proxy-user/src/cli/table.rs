//! Tables for people: aligned, within a width, readable in a file as well as in a terminal.

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// A column's head. Left-aligned ones are names, and may be shortened where the table is too wide; numbers never are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column(pub(super) &'static str, pub(super) Align);

/// Space between columns.
const GAP: usize = 2;
/// A name is not shortened below this.
const LEAST: usize = 8;

/// Renders rows under their heads within `width` characters: while a line is wider, the widest name column gives way.
pub(super) fn render(columns: &[Column], rows: &[Vec<String>], width: usize) -> String {
    let mut widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, Column(head, _))| {
            rows.iter()
                .filter_map(|row| row.get(i))
                .map(|cell| cell.chars().count())
                .fold(head.chars().count(), usize::max)
        })
        .collect();
    shrink(columns, &mut widths, width);

    let heads: Vec<String> = columns.iter().map(|Column(head, _)| (*head).to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&heads).chain(rows) {
        let mut line = String::new();
        for ((Column(_, align), width), cell) in columns.iter().zip(&widths).zip(row) {
            let cell = shorten(cell, *width);
            let pad = " ".repeat(width - cell.chars().count());
            let (before, after) = match align {
                Align::Left => ("", pad.as_str()),
                Align::Right => (pad.as_str(), ""),
            };
            line.push_str(before);
            line.push_str(&cell);
            line.push_str(after);
            line.push_str(&" ".repeat(GAP));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn shrink(columns: &[Column], widths: &mut [usize], width: usize) {
    let gaps = GAP * columns.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > width {
        let widest = columns
            .iter()
            .enumerate()
            .filter(|(i, Column(head, align))| *align == Align::Left && widths[*i] > LEAST.max(head.chars().count()))
            .max_by_key(|(i, _)| widths[*i]);
        match widest {
            Some((i, _)) => widths[i] -= 1,
            None => return,
        }
    }
}

fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// `1234567` bytes as `1.2 MiB`.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `1234567` things as `1.2M`; exact below ten thousand.
pub(super) fn count(n: u64) -> String {
    const UNITS: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    if n < 10_000 {
        return n.to_string();
    }
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

/// A number of seconds in its two largest units: `3d 4h`, `2m 5s`.
pub(super) fn duration(seconds: u64) -> String {
    let parts = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let largest = parts.iter().position(|(size, _)| seconds >= *size).unwrap_or(parts.len() - 1);
    let (size, unit) = parts[largest];
    let first = format!("{}{unit}", seconds / size);
    match parts.get(largest + 1) {
        Some((next, unit)) if (seconds % size) / next > 0 => format!("{first} {}{unit}", (seconds % size) / next),
        _ => first,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stand_left_numbers_right_and_nothing_trails() {
        let columns = [Column("NAME", Align::Left), Column("N", Align::Right)];
        let rows = [vec!["a".into(), "1".into()], vec!["long name".into(), "1000".into()]];
        assert_eq!(render(&columns, &rows, 80), "NAME          N\na             1\nlong name  1000\n");
    }

    #[test]
    fn a_table_that_is_too_wide_shortens_its_widest_name() {
        let columns = [Column("A", Align::Left), Column("B", Align::Left)];
        let rows = [vec!["x".repeat(30), "short".into()]];
        assert_eq!(render(&columns, &rows, 20), format!("A              B\n{}…  short\n", "x".repeat(12)));
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([bytes(0), bytes(999), bytes(1024), bytes(1_234_567)], ["0 B", "999 B", "1.0 KiB", "1.2 MiB"]);
        assert_eq!((bytes(u64::MAX).as_str(), count(u64::MAX).as_str()), ("16.0 EiB", "18.4E"));
        assert_eq!([count(9_999), count(10_000), count(12_345_678)], ["9999", "10.0k", "12.3M"]);
        assert_eq!([duration(0), duration(59), duration(125), duration(3600)], ["0s", "59s", "2m 5s", "1h"]);
        assert_eq!(duration(3 * 86_400 + 4 * 3600 + 59), "3d 4h");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_asked_where_names_can_give_way(
            rows in proptest::collection::vec(("\\PC{0,60}", "\\PC{0,60}", 0_u64..1_000_000), 0..20)
        ) {
            let columns = [Column("A", Align::Left), Column("B", Align::Left), Column("N", Align::Right)];
            let rows: Vec<Vec<String>> = rows.into_iter().map(|(a, b, n)| vec![a, b, n.to_string()]).collect();
            let text = render(&columns, &rows, 40);
            prop_assert_eq!(text.split('\n').count(), rows.len() + 2);
            for line in text.split('\n') {
                prop_assert!(line.chars().count() <= 40, "{}", line);
            }
        }
    }
}

//! Whether `log.level` means what its writer thinks.
//!
//! The filter's own parser takes any unknown word for the name of a module, so `inof` would silently log nothing else
//! than a module of that name. Such words are refused here.

use tracing_subscriber::filter::EnvFilter;

use super::read::nearest;

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Checks a level, or filter directives with commas between them.
///
/// # Errors
/// A clause that says what to write; it does not repeat the text.
pub(super) fn check(directives: &str) -> Result<(), String> {
    // Commas inside of `[span{field}]` don't separate directives.
    if !directives.contains('[') {
        for directive in directives.split(',') {
            let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
            if !LEVELS.contains(&level) {
                let near = nearest(level, LEVELS).map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
                let levels = LEVELS.map(|l| format!("`{l}`")).join(", ");
                return Err(format!("write {levels}, or directives such as `info,turnout::upstream=debug`{near}"));
            }
        }
    }
    EnvFilter::builder()
        .parse(directives)
        .map(|_| ())
        .map_err(|_| "not filter directives; write such as `info,turnout::upstream=debug`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn levels_and_directives_are_taken() {
        for text in ["info", "off", "info,turnout::upstream=debug", "warn,turnout[accept{peer}]=trace"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_mistyped_level_is_no_module_name() {
        assert!(check("inof").is_err_and(|e| e.contains("did you mean `info`?")));
        for text in ["", "info,", "INFO!", "turnout=loud", "turnout", "a=b=c"] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}

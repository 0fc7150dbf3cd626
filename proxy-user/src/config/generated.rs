//! Committed files that are made from the code.

use std::path::Path;

/// Fails when a committed file is not what the code makes, unless `UPDATE_GENERATED=1`, which writes it.
pub(super) fn assert_committed(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    if std::env::var_os("UPDATE_GENERATED").is_some_and(|v| v == "1") {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(&file, text).expect("written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == text,
        "{path} is not what the code makes; run `UPDATE_GENERATED=1 cargo test -p proxy-user --lib config::` and commit it"
    );
}

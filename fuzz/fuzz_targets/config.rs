//! The config file: any text is a config or is refused with a reason; a config can be drawn and is equal to itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turnout::config::{Environment, diff, load_str, tree};

fuzz_target!(|text: &str| match load_str(text, "fuzz.yaml", &Environment::empty()) {
    Ok(config) => {
        assert!(diff(&config, &config).is_empty());
        assert!(!tree(&config).is_empty());
    }
    Err(error) => assert!(!error.to_string().is_empty()),
});

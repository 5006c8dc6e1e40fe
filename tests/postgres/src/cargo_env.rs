//! What `cargo run` adds to the environment of the program that it runs.

/// The names of what `cargo run` told this process about its package. Programs that it starts must not inherit them: to another
/// cargo they are changes of the environment, and build scripts that look at `CARGO_MANIFEST_DIR` (ring's, for one) run again, and
/// everything above them is built again.
pub fn told_by_cargo() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    names.filter(|name| is_told_by_cargo(name)).collect()
}

fn is_told_by_cargo(name: &str) -> bool {
    matches!(name, "CARGO" | "OUT_DIR")
        || name.starts_with("CARGO_MANIFEST_")
        || name.starts_with("CARGO_PKG_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_about_a_package_is_left_out() {
        for name in ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_PKG_NAME"] {
            assert!(is_told_by_cargo(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_TERM_COLOR", "PATH"] {
            assert!(!is_told_by_cargo(name), "{name}");
        }
        // This test is run by cargo.
        assert!(told_by_cargo().contains(&"CARGO_MANIFEST_DIR".to_owned()));
    }
}

//! What `cargo run` adds to the environment of the program that it runs.

use std::process::Command;

/// Takes out of the environment of `command` what `cargo run` told this process about its package. To another cargo it is a change
/// of the environment: build scripts that look at `CARGO_MANIFEST_DIR` (ring's, for one) run again, and everything above them is
/// built again.
pub fn forget_cargo(command: &mut Command) {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_told_by_cargo(name)) {
        command.env_remove(name);
    }
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
        let mut command = Command::new("true");
        forget_cargo(&mut command);
        let left_out: Vec<_> = command.get_envs().collect();
        assert!(left_out.contains(&("CARGO_MANIFEST_DIR".as_ref(), None)));
    }
}

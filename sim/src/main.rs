//! `cargo sim`: runs worlds from seeds.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}

//! The program `starling`.

#![expect(clippy::print_stderr, reason = "the last word of a failed command")]

use std::process::ExitCode;

fn main() -> ExitCode {
    match starling::cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("starling: {error:#}");
            ExitCode::FAILURE
        }
    }
}

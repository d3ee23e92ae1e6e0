//! The program `starling`.

use std::process::ExitCode;

fn main() -> ExitCode {
    starling::cli::run().unwrap_or_else(|error| {
        starling::cli::print_error(&error);
        ExitCode::FAILURE
    })
}

//! The program `starling`.

use std::process::ExitCode;

fn main() -> ExitCode {
    starling::cli::run().unwrap_or_else(|error| {
        starling::cli::complain(&error);
        ExitCode::FAILURE
    })
}

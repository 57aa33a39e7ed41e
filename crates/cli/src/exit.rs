//! Exit codes: the one place that maps what went wrong to a number.

use std::process::ExitCode;

/// A command line that clap did not accept, or a call for help.
pub fn usage(error: &clap::Error) -> ExitCode {
    let _ = error.print();
    ExitCode::from(u8::from(error.use_stderr()))
}

/// Reports the error, if there is one.
pub fn finish(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("claviger: {e:#}");
            ExitCode::from(1)
        }
    }
}

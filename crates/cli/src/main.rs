//! The `claviger` program: one file per verb.
#![forbid(unsafe_code)]

mod benchmark;
mod cat;
mod completions;
mod create;
mod exit;
mod identify;
mod info;
mod lab;
mod man;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// One key ring for every encrypted disk
#[derive(Parser)]
#[command(name = "claviger", version, propagate_version = true, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Identify(identify::Args),
    Info(info::Args),
    Create(create::Args),
    Cat(cat::Args),
    Serve(serve::Args),
    Benchmark(benchmark::Args),
    Lab(lab::Args),
    #[command(hide = true)]
    Man(man::Args),
    #[command(hide = true)]
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => return exit::usage(&usage),
    };
    let result = match &cli.verb {
        Verb::Identify(args) => identify::run(args),
        Verb::Info(args) => info::run(args),
        Verb::Create(args) => create::run(args),
        Verb::Cat(args) => cat::run(args),
        Verb::Serve(args) => serve::run(args),
        Verb::Benchmark(args) => benchmark::run(args),
        Verb::Lab(args) => lab::run(args),
        Verb::Man(args) => man::run(args),
        Verb::Completions(args) => completions::run(args),
    };
    exit::finish(result)
}

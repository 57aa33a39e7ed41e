//! Holds a folder against everything that is known of folders: `folder PATH [USER [SEED]]`.

use std::path::Path;
use std::process::ExitCode;

use claviger_testkit::{fsx, posix, stress};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(args.first().expect("the path of a folder"));
    let user = args.get(1).map(|user| user.parse().expect("the number of a user"));
    let seed = args.get(2).map_or_else(fsx::seed, |seed| seed.parse().expect("a number"));
    let report = posix::run(folder, &posix::Options { user, ..posix::Options::default() });
    println!("{report}");
    let exercised = || {
        stress::run(folder, seed, 5000, 4)?;
        let dir = folder.join("fsx");
        std::fs::create_dir(&dir).map_err(|e| e.to_string())?;
        let mut model = fsx::Folder::empty(&dir, 64 << 20);
        let done = fsx::exercise_folder(&mut model, &fsx::Plan::operations(seed, 5000));
        done.map_err(|e| e.to_string())?;
        std::fs::remove_dir_all(&dir).map_err(|e| e.to_string())
    };
    let exercised = user.map_or_else(exercised, |user| posix::as_user(user, exercised).expect("root may"));
    println!("seed {seed}: {exercised:?}");
    if report.failed.is_empty() && exercised.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#!/usr/bin/env python3
"""Fuzzes every target of crates/fuzzing with libFuzzer and AddressSanitizer, on the stable toolchain.

    tools/fuzz.py [--seconds N] [--runs N] [--jobs N] [TARGET…]

All targets share the N seconds evenly; --runs ends a target earlier. The corpus in target/fuzz/corpus keeps the fewest and smallest inputs with
the same coverage, and the next run continues from there. A table at the end sums up the run. An input that crashes, takes too long (5 s of a
processor, or 300 s in all) or too much memory (256 MiB at once, or 1 GiB in all) goes to target/fuzz/crashes, and the exit code is 1. To repeat one:

    CLAVIGER_FUZZ_TARGET=NAME target/fuzz/PLATFORM/debug/claviger-fuzz INPUT
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target" / "fuzz"
CORPUS, SEEDS, CRASHES, LOGS = (FOLDER / name for name in ("corpus", "seeds", "crashes", "logs"))

# The flags of cargo-fuzz for rustc's -Zsanitizer and LLVM's coverage. Only code for the named platform gets them, not build scripts and
# macros.
COVERAGE = ["-Cllvm-args=-sanitizer-coverage-" + option
            for option in ("level=4", "inline-8bit-counters", "pc-table", "trace-compares")]
FLAGS = ["--cfg", "fuzzing", "-Cpasses=sancov-module", *COVERAGE, "-Zsanitizer=address", "-Ccodegen-units=1"]

LIMITS = ["-timeout=300", "-report_slow_units=300", "-malloc_limit_mb=256", "-rss_limit_mb=1024", "-max_len=65536"]


def build():
    """Builds the program if necessary."""
    platform = re.search("^host: (.*)$", subprocess.check_output(["rustc", "-vV"], text=True), re.M)[1]
    # Allows -Z on a stable compiler.
    environment = os.environ | {"RUSTC_BOOTSTRAP": "1", "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(FLAGS)}
    command = [os.environ.get("CARGO", "cargo"), "build", "--locked", "--target", platform, "--target-dir", FOLDER,
               "--manifest-path", ROOT / "fuzz" / "Cargo.toml"]
    subprocess.run(command, env=environment, check=True)
    return FOLDER / platform / "debug" / "claviger-fuzz"


def run(program, name, folders, options):
    """The output of libFuzzer and its exit code."""
    environment = os.environ | {"CLAVIGER_FUZZ_TARGET": name, "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16"}
    command = [program, *LIMITS, f"-artifact_prefix={CRASHES}/{name}-", *options, *folders]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.decode(errors="replace"), done.returncode


def fuzz(program, name, seconds, runs):
    """Fuzzes a target, minimises its corpus, and returns its row of the table."""
    corpus, smaller = CORPUS / name, CORPUS / f".{name}"
    corpus.mkdir(parents=True, exist_ok=True)
    before = set(CRASHES.glob(f"{name}-*"))
    said, code = run(program, name, [corpus, SEEDS / name],
                     [f"-max_total_time={seconds}", f"-runs={runs or -1}", "-print_final_stats=1", "-reload=0"])
    (LOGS / name).write_text(said)
    shutil.rmtree(smaller, ignore_errors=True)
    smaller.mkdir()
    merged, failed = run(program, name, [smaller, corpus, SEEDS / name], ["-merge=1"])
    if not failed:
        shutil.rmtree(corpus)
        smaller.rename(corpus)
    kept = [path.stat().st_size for path in corpus.iterdir()]
    number = lambda pattern, text: int((re.findall(pattern, text) or [0])[-1])
    row = {"executions": number(r"stat::number_of_executed_units: (\d+)", said) or number(r"#(\d+)\s", said),
           "per second": number(r"stat::average_exec_per_sec: +(\d+)", said),
           "edges": number(r"\bcov: (\d+)", merged) or number(r"\bcov: (\d+)", said),
           "inputs": len(kept), "KiB": sum(kept) >> 10,
           # Merging finds the same crashes again.
           "crashes": sorted(str(path) for path in set(CRASHES.glob(f"{name}-*")) - before)}
    if code and not row["crashes"]:
        row["crashes"] = [f"exit code {code}: see {LOGS / name}"]
    print(f"{name}: {row['executions']} executions", file=sys.stderr, flush=True)
    return row


def table(rows):
    """Prints the results of this run and of all runs so far."""
    path = FOLDER / "executions.json"
    total = json.loads(path.read_text()) if path.exists() else {}
    for name, row in rows.items():
        total[name] = total.get(name, 0) + row["executions"]
    path.write_text(json.dumps(total, indent=1))
    print(f"\n{'target':22} {'executions':>12} {'so far':>13} {'per second':>10} {'edges':>7} {'inputs':>7} {'KiB':>6} {'crashes':>7}")
    line = "{:22} {:12,} {:13,} {:10,} {:7,} {:7,} {:6,} {:7}".format
    for name, row in rows.items():
        print(line(name, row["executions"], total[name], row["per second"], row["edges"], row["inputs"], row["KiB"],
                   len(row["crashes"])))
    sums = {key: sum(row[key] for row in rows.values()) for key in ("executions", "inputs", "KiB")}
    print(f"{len(rows)} targets: {sums['executions']:,} executions, {sum(total[name] for name in rows):,} so far;"
          f" {sums['inputs']:,} inputs, {sums['KiB']:,} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="time for all targets together")
    parser.add_argument("--runs", type=int, default=0, help="most executions of a target; 0: no limit")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at a time")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="targets to run; default: all")
    wish = parser.parse_args()
    program = build()
    for folder in (CORPUS, CRASHES, LOGS):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(SEEDS, ignore_errors=True)
    subprocess.run([program], env=os.environ | {"CLAVIGER_FUZZ_SEEDS": str(SEEDS)}, check=True, capture_output=True)
    # The program's own table is complete.
    known = sorted(path.name for path in SEEDS.iterdir())
    names = wish.targets or known
    if unknown := set(names) - set(known):
        sys.exit(f"Unknown target: {', '.join(sorted(unknown))}. The targets are {', '.join(known)}.")
    seconds = max(1, wish.seconds * wish.jobs // len(names))
    print(f"{len(names)} targets, {seconds} s each, {wish.jobs} at a time", file=sys.stderr, flush=True)
    with ThreadPoolExecutor(wish.jobs) as pool:
        rows = dict(zip(names, pool.map(lambda name: fuzz(program, name, seconds, wish.runs), names)))
    table(rows)
    crashes = [crash for row in rows.values() for crash in row["crashes"]]
    for crash in crashes:
        print(f"CRASH {crash}")
    sys.exit(1 if crashes else 0)


main()

#!/usr/bin/env python3
"""The program beside another build of it, such as the one in one file: what each takes, taking turns.

    bench/static.py PROGRAM OTHER [CASE…]
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

PASSWORD = "a password of many words"
CHEAP = "--iterations 4 --kdf-memory 64K --password-file pw"
CASES = {
    "start, ten times": "for i in 1 2 3 4 5 6 7 8 9 10; do {} identify v.luks; done",
    "cat, 1 GiB": "{} cat --password-file pw v.luks >/dev/null",
    "serve, 1 GiB": "{} serve --password-file pw --run 'nbdcopy \"$uri\" null:' v.luks",
    "serve with isolated keys, 1 GiB": "{} serve --isolate-keys --password-file pw --run 'nbdcopy \"$uri\" null:' v.luks",
    "a wrong password for VeraCrypt": "{} info --format VeraCrypt --memory 512M --password-file wrong w.hc || true",
    "cp out, 2,000 files": "rm -rf out; {} cp -r --password-file pw f.luks :/in out",
}
TURNS = 15


def took(command, folder):
    begun = time.perf_counter()
    subprocess.run(command, shell=True, check=True, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begun


def prepare(program, folder):
    for name, text in [("pw", PASSWORD), ("wrong", PASSWORD[::-1])]:
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)
    os.mkdir(os.path.join(folder, "in"))
    for number in range(2000):
        with open(os.path.join(folder, "in", str(number)), "w") as file:
            file.write(f"file {number}\n")
    for command in [f"create --format LUKS2 --size 1040M {CHEAP} v.luks", "create --size 2M --password-file pw w.hc",
                    f"create --format LUKS2 --filesystem fat --size 100M {CHEAP} f.luks", "cp -r --password-file pw f.luks in :/"]:
        took(f"{program} {command}", folder)


def main(programs, wanted):
    programs = [os.path.abspath(program) for program in programs]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        prepare(programs[0], folder)
        print(f"{'':34}{'seconds':>9}{'other':>9}{'speed':>8}")
        for name, command in CASES.items():
            if wanted and name not in wanted:
                continue
            times = [[], []]
            for turn in range(TURNS + 1):
                for program, mine in zip(programs, times):
                    mine.append(took(command.format(program), folder))
            own, other = (statistics.median(mine[1:]) for mine in times)
            print(f"{name:34}{own:9.3f}{other:9.3f}{own / other:8.2f}", flush=True)


if len(sys.argv) < 3:
    sys.exit(__doc__)
main(sys.argv[1:3], sys.argv[3:])

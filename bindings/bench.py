"""How fast a volume is read from Python, beside the program's `cat`, taking turns: bench.py PROGRAM [MEBIBYTES]. docs/performance.md has figures."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import claviger

program, size = sys.argv[1], int((sys.argv[2:] or ["1024"])[0]) << 20
MIB = 1 << 20
ROUNDS = 9


def cat(path, _buffer):
    subprocess.run([program, "cat", "--password-file", path + ".password", path], stdout=subprocess.DEVNULL, check=True)


def readinto(path, buffer):
    with claviger.open(path, b"p") as volume:
        while volume.readinto(buffer):
            pass


with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
    path = os.path.join(folder, "volume")
    claviger.create(path, size, b"p", format="LUKS2", kdf="pbkdf2", kdf_iterations=1000)
    with open(path + ".password", "w") as file:
        file.write("p")
    ways = {"cat": (cat, None)} | {f"readinto, {n} MiB": (readinto, bytearray(n * MIB)) for n in (1, 2, 4, 16)}
    seconds = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (way, buffer) in ways.items():
            begun = time.perf_counter()
            way(path, buffer)
            seconds[name].append(time.perf_counter() - begun)
for name, each in seconds.items():
    against = statistics.median(cat / one for cat, one in zip(seconds["cat"], each))
    print(f"{name:18} {size / statistics.median(each) / 1e9:6.2f} GB/s   {against:.2f} of cat's speed")

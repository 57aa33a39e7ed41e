#!/usr/bin/env python3
"""What encryption costs on each path to a volume: the same requests to our own server with a plain file and with volumes
(AES-256-XTS), in RAM, by turns in each round, over NBD, over FUSE by /dev/fuse and by io_uring.

Prints for each test the median rates, the processor time of the server (user and system, and so also what it spins) for each GB,
that of the client, and the median of the ratios to the plain file in each round with the lowest and the highest.

Usage, as root for FUSE, from the root of the checkout: bench/paths.py [--ways nbd device uring] [--volumes plain luks2 veracrypt]
[--tests read:1m:1:1 …] [--rounds 5] [--seconds 1], where a test is MODE:BLOCK:DEPTH:JOBS. The volumes bare and xts are served not by the
program but by the examples `nbd_serve` and `fuse_serve`, which are sooner built. It needs fio for FUSE; over NBD the client is `nbd_load` (an
example of claviger-serve), which is faster."""

import argparse
import atexit
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

SIZE = 256 << 20
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "release"
CLAVIGER = os.environ.get("CLAVIGER", TARGET / "claviger")
EXAMPLES = Path(os.environ.get("EXAMPLES", TARGET / "examples"))
URING = Path("/sys/module/fuse/parameters/enable_uring")
CREATE = {
    "luks2": "--format LUKS2 --cipher aes-xts-plain64 --sector-size 4096 --kdf pbkdf2 --iterations 1000",
    "luks2-512": "--format LUKS2 --cipher aes-xts-plain64 --sector-size 512 --kdf pbkdf2 --iterations 1000",
    "veracrypt": "--format VeraCrypt --cipher AES --hash SHA-512 --pim 1",
}
BLOCKS = {"4k": 4096, "1m": 1 << 20}
TESTS = [f"{random if block == '4k' else ''}{mode}:{block}:{depth}:{jobs}"
         for block in BLOCKS for depth, jobs in ((1, 1), (16, 1), (1, 4)) for mode in ("read", "write") for random in ("rand",)]
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    """One volume, served one way."""

    def __init__(self, folder, way, volume):
        self.way, self.place = way, folder / f"{way}.{volume}"
        image = folder / f"{way}.{volume}.image"
        password = folder / "password"
        if volume in ("plain", "bare", "xts"):
            image.write_bytes(os.urandom(SIZE))
        else:
            subprocess.run([CLAVIGER, "create", image, "--size", str(SIZE + (16 << 20)), *CREATE[volume].split(), "--quick",
                            "--password-file", password], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if way != "nbd":
            self.place.mkdir()
            if URING.exists():
                URING.write_text("Y" if way == "uring" else "N")
        if volume in ("bare", "xts"):
            self.pid = self.by_example(image, ["xts"] if volume == "xts" else [])
        else:
            how = {"plain": ["--raw"], "veracrypt": ["--pim", "1", "--password-file", password]}.get(volume, ["--password-file", password])
            self.pid = self.by_program(image, how)

    def by_program(self, image, how):
        if self.way == "nbd":
            server = subprocess.Popen([CLAVIGER, "serve", image, *how, "--socket", self.place], stdout=subprocess.DEVNULL)
            atexit.register(lambda: (server.send_signal(signal.SIGTERM), server.wait()))
            while not self.place.exists():
                time.sleep(0.05)
            return server.pid
        said = subprocess.run([CLAVIGER, "mount", image, self.place, *how, "--filesystem", "none", "--json"], check=True,
                              stdout=subprocess.PIPE).stdout
        atexit.register(subprocess.run, [CLAVIGER, "unmount", self.place], stdout=subprocess.DEVNULL)
        return json.loads(said)["pid"]

    def by_example(self, image, words):
        where = ["nbd_serve", f"unix:{self.place}", image] if self.way == "nbd" else ["fuse_serve", self.place, image, self.way]
        server = subprocess.Popen([EXAMPLES / where[0], *where[1:], *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        server.stdout.readline()
        atexit.register(lambda: (server.stdin.close(), server.wait()))
        return server.pid

    def processor_time(self):
        """Seconds that the server has used, in all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def run(self, test, seconds):
        """Bytes in a second, and the processor time of server and client for each byte."""
        mode, block, depth, jobs = test.split(":")
        before, began = self.processor_time(), os.times()
        if self.way == "nbd":
            said = subprocess.run([EXAMPLES / "nbd_load", self.place, mode, str(BLOCKS[block]), depth, jobs, str(seconds)], check=True, stdout=subprocess.PIPE)
            rate = float(said.stdout) * BLOCKS[block]
            moved = rate * seconds
        else:
            engine = ["--ioengine=psync"] if depth == "1" else ["--ioengine=libaio", "--direct=1", f"--iodepth={depth}"]
            said = subprocess.run(["fio", "--name=t", f"--filename={self.place}/volume", f"--rw={mode}", f"--bs={block}", f"--numjobs={jobs}",
                                   f"--size={SIZE}", "--time_based", f"--runtime={seconds}", "--iomem_align=4096", "--allow_file_create=0",
                                   "--group_reporting", "--output-format=json", *engine], check=True, stdout=subprocess.PIPE)
            job = json.loads(said.stdout)["jobs"][0]
            rate = job["read"]["bw_bytes"] + job["write"]["bw_bytes"]
            moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        ended = os.times()
        client = ended.children_user + ended.children_system - began.children_user - began.children_system
        return rate, (self.processor_time() - before) / moved, client / moved


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=["nbd"] + (["device", "uring"] if os.geteuid() == 0 else []))
    parser.add_argument("--volumes", nargs="+", default=["plain", "luks2", "veracrypt"], help="the first is what the others are compared with")
    parser.add_argument("--tests", nargs="+", default=TESTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="claviger-paths.", dir="/dev/shm"))
    atexit.register(shutil.rmtree, folder)
    if URING.exists() and os.geteuid() == 0:
        atexit.register(URING.write_text, URING.read_text())
    (folder / "password").write_text("VeraCrypt takes no short one")
    for way in args.ways:
        servers = {volume: Server(folder, way, volume) for volume in args.volumes}
        for server in servers.values():  # every page is there
            server.run("write:1m:1:1", args.seconds)
        print(f"{way}: thousand/s of 4 KiB or GB/s; s/GB of the server, of the client; ratio to {args.volumes[0]} (lowest … highest)")
        for test in args.tests:
            rounds = [{volume: server.run(test, args.seconds) for volume, server in servers.items()} for _ in range(args.rounds)]
            unit = 4096e3 if ":4k:" in test else 1e9
            line = f"{test:18}"
            for volume in args.volumes:
                rate, server, client = (median(turn[volume][i] for turn in rounds) for i in range(3))
                line += f" | {volume} {rate / unit:7.2f} {server * 1e9:6.3f} {client * 1e9:6.3f}"
                if volume != args.volumes[0]:
                    ratios = [turn[volume][0] / turn[args.volumes[0]][0] for turn in rounds]
                    line += f" {median(ratios):5.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
            print(line, flush=True)


main()

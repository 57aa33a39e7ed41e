"""Runs a program on a terminal of its own and plays the person: terminal.py STEPS PROGRAM ARGUMENT...

STEPS is JSON, a list of: {"expect": TEXT}, {"send": TEXT}, {"echo": BOOL} (waits until the terminal does or does not show
what is typed), {"works": SECONDS} (waits until the program has used so much processor time), {"quiet": SECONDS} (waits until nothing
has come for so long), {"run": [PROGRAM, ARGUMENT...]}, {"answers": [[END, TEXT]...]} (until the program ends, sends the TEXT of the
first END with which the output ends; null repeats the last one). Prints JSON: all output, the exit code, and whether the terminal shows what is typed at the end."""
import fcntl, json, os, pty, select, struct, subprocess, sys, termios, time

steps, argv = json.loads(sys.argv[1]), sys.argv[2:]
ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))


def begin():
    os.setsid()
    fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)


def echoes():
    return bool(termios.tcgetattr(theirs)[3] & termios.ECHO)


child = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=begin)
output, seen, deadline = b"", 0, time.monotonic() + 500  # the tests' runner waits for ten minutes


def read(wait):
    global output
    if select.select([ours], [], [], wait)[0]:
        output += os.read(ours, 65536)
        return True
    if time.monotonic() > deadline:
        child.kill()
        sys.exit(f"no end: {output!r}")
    return False


def processor_time():
    with open(f"/proc/{child.pid}/stat") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


for step in steps:
    if "expect" in step:
        while (at := output.find(step["expect"].encode(), seen)) < 0:
            if not read(0.05) and child.poll() is not None and not read(0):
                sys.exit(f"{step} has not come: {output!r}")
        seen = at + len(step["expect"].encode())
    elif "send" in step:
        os.write(ours, step["send"].encode())
    elif "run" in step:
        subprocess.run(step["run"], check=True)
    elif "quiet" in step:
        while read(step["quiet"]):
            pass
    elif "answers" in step:
        answer = ""
        while child.poll() is None:
            if read(0.05):
                continue
            for end, text in step["answers"]:
                if output[seen:].endswith(end.encode()):
                    seen, answer = len(output), answer if text is None else text
                    os.write(ours, answer.encode())
                    break
    elif "works" in step:
        while processor_time() < step["works"]:
            read(0.01)
    else:
        while echoes() != step["echo"]:
            read(0.01)
while child.poll() is None:
    read(0.05)
while read(0):
    pass
print(json.dumps({"output": output.decode(errors="replace"), "code": child.returncode, "echo": echoes()}))

"""One test of a folder, for the scripts beside this: TEST FOLDER MIB FILES. Prints bytes, or operations, a second."""

import os, random, sys, time
test, folder, mib, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
# A hundred small files to a folder.
small = [f"{folder}/small/{i // 100}/{i}" for i in range(count)]
large, block, room = folder + "/large", os.urandom(1 << 20), bytearray(1 << 20)

def write():
    with open(large, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(block)
        os.fsync(file.fileno())

def read():
    with open(large, "rb", buffering=0) as file:
        while file.readinto(room):
            pass

def places():
    order = list(range(mib * 256))
    random.Random(7).shuffle(order)
    return [number * 4096 for number in order[:20000]]

def random_read():
    fd, all = os.open(large, os.O_RDONLY), places()
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    for place in all:
        os.pread(fd, 4096, place)
    os.close(fd)

def random_write():
    fd = os.open(large, os.O_WRONLY)
    for place in places():
        os.pwrite(fd, block[:4096], place)
    os.fsync(fd)
    os.close(fd)

def create():
    for path in small:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, block[:1000])
        os.close(fd)

def open_and_read():
    for path in small:
        fd = os.open(path, os.O_RDONLY)
        os.read(fd, 4096)
        os.close(fd)

def stat():
    for path in small:
        os.stat(path)

def list_all():
    for number in range(count // 100):
        with os.scandir(f"{folder}/small/{number}") as entries:
            for entry in entries:
                entry.stat(follow_symlinks=False)

def remove():
    for path in small:
        os.unlink(path)

if test == "create":
    for i in range(0, count, 100):
        os.makedirs(f"{folder}/small/{i // 100}", exist_ok=True)
name = test.removesuffix("-warm").removesuffix("-cold")
if "random" in name:
    count = min(20000, mib * 256)
begin = time.perf_counter()
{
    "write": write, "read": read, "random-read": random_read, "random-write": random_write,
    "create": create, "list": list_all, "open": open_and_read, "stat": stat, "remove": remove,
}[name]()
seconds = time.perf_counter() - begin
print((mib << 20 if name in ("write", "read") else count) / seconds)

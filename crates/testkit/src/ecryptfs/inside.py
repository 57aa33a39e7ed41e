"""Runs in user-mode Linux: mounts folders of eCryptfs by the kernel and does there what the file of its first argument says, a
step in each line, fields separated by tabs, names in hexadecimal digits. What is written lies in the file of its second argument.
Prints what went wrong and, at the end of each case, all that is to be seen."""
import ctypes, hashlib, os, re, stat, subprocess, sys

UPPER = b"/mnt/upper"
IMAGES = b"/mnt/images"
libc = ctypes.CDLL(None, use_errno=True)


def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


known = {}


def signatures(passphrase):
    """Of contents and of names; both are in the kernel's keyring then."""
    if passphrase not in known:
        added = subprocess.run(["ecryptfs-add-passphrase", "--fnek", "-"], input=passphrase, capture_output=True)
        known[passphrase] = re.findall(rb"\[([0-9a-f]{16})\]", added.stdout)
    return known[passphrase]


mounted = set()


def lower_folder(place):
    """A folder of the host, or `ubdX:FOLDER` in an image of ext4."""
    device, _, folder = place.partition(b":")
    if not folder:
        return place
    image = IMAGES + b"/" + device
    if device not in mounted:
        os.makedirs(image)
        check(libc.mount(b"/dev/" + device, image, b"ext4", 0, b"user_xattr"))
        mounted.add(device)
    os.makedirs(image + b"/" + folder, exist_ok=True)
    return image + b"/" + folder


def mount(place, passphrase, of_names, options):
    chosen = [b"ecryptfs_sig=" + signatures(passphrase)[0]]
    if of_names is not None:
        chosen.append(b"ecryptfs_fnek_sig=" + signatures(of_names)[1])
    options = b",".join(chosen + [o for o in options.split(b",") if o])
    check(libc.mount(lower_folder(place), UPPER, b"ecryptfs", 0, options))


def write(path, at, offset, length):
    with open(path, "r+b", buffering=0) as file:
        if at is None:
            at = os.fstat(file.fileno()).st_size
        data = DATA[offset : offset + length]
        while data:
            written = os.pwrite(file.fileno(), data, at)
            data, at = data[written:], at + written


def see(path):
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode):
        return "d"
    if stat.S_ISLNK(status.st_mode):
        return "l\t" + os.readlink(path).hex()
    with open(path, "rb", buffering=0) as file:
        # By read(2) alone: the kernel must answer for each part, whatever it says the size is.
        parts = iter(lambda: file.read(1 << 20), b"")
        digest, length = hashlib.sha256(), 0
        for part in parts:
            digest.update(part)
            length += len(part)
        # Before the kernel has opened a file it may still take the size below for that of the plaintext.
        status = os.fstat(file.fileno())
    assert length == status.st_size, (path, length, status.st_size)
    return "f\t%d\t%d\t%s" % (length, status.st_nlink, digest.hexdigest())


def show():
    folders = [b""]
    while folders:
        folder = folders.pop()
        for name in os.listdir(os.path.join(UPPER, folder)):
            path = os.path.join(folder, name)
            try:
                seen = see(os.path.join(UPPER, path))
            except OSError as e:
                seen = "x\t%d" % e.errno
            if name == b"lost+found":
                continue
            if seen == "d":
                folders.append(path)
            print(path.hex() + "\t" + seen)


def step(word, fields):
    path = [os.path.join(UPPER, bytes.fromhex(field)) for field in fields[:2]] if word in PATHS else None
    if word == "folder":
        os.mkdir(path[0], 0o755)
    elif word == "file":
        os.close(os.open(path[0], os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    elif word == "link":
        os.symlink(bytes.fromhex(fields[1]), path[0])
    elif word == "write":
        write(path[0], int(fields[2]), int(fields[3]), int(fields[4]))
    elif word == "append":
        write(path[0], None, int(fields[2]), int(fields[3]))
    elif word == "resize":
        os.truncate(path[0], int(fields[2]))
    elif word == "rename":
        os.rename(path[0], path[1])
    elif word == "name":
        os.link(path[0], path[1])
    elif word == "remove":
        os.rmdir(path[0]) if stat.S_ISDIR(os.lstat(path[0]).st_mode) else os.unlink(path[0])


PATHS = {"folder", "file", "link", "write", "append", "resize", "rename", "name", "remove"}
DATA = open(sys.argv[2], "rb").read()
os.makedirs(UPPER)
is_mounted = False
for line in open(sys.argv[1]).read().splitlines():
    word, *fields = line.split("\t")
    try:
        if word == "case":
            is_mounted = False
            print("case")
            passphrase, of_names = bytes.fromhex(fields[1]), None if fields[2] == "-" else bytes.fromhex(fields[2])
            mount(bytes.fromhex(fields[0]), passphrase, of_names, fields[3].encode())
            is_mounted = True
        elif is_mounted and word == "end":
            show()
            check(libc.umount2(UPPER, 0))
        elif is_mounted:
            step(word, fields)
    except OSError as e:
        print("!\t%s\t%d" % (line[:200].replace("\t", " "), e.errno))
for image in mounted:
    check(libc.umount2(IMAGES + b"/" + image, 0))
print("done")

"""Writes the plaintext of a whole BitLocker volume to standard output: read.py LIBRARY IMAGE KIND KEY"""
import sys

library, image, kind, key = sys.argv[1:]

if library == "pybde":
    import pybde

    plain = pybde.volume()
    if kind == "password":
        plain.set_password(key)
    elif kind == "recovery":
        plain.set_recovery_password(key)
    elif kind == "startup-key":
        plain.read_startup_key(key)
    plain.open(image)
    if plain.is_locked():
        sys.exit("the key does not fit")
else:
    from dissect.fve.bde import BDE

    volume = BDE(open(image, "rb"))
    if kind == "password":
        volume.unlock_with_passphrase(key)
    elif kind == "recovery":
        volume.unlock_with_recovery_password(key)
    elif kind == "startup-key":
        volume.unlock_with_bek(open(key, "rb"))
    elif not volume.decrypted:
        volume.unlock_with_clear_key()
    plain = volume.open()

while block := plain.read(1 << 20):
    sys.stdout.buffer.write(block)

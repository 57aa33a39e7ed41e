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
    import hashlib

    from dissect.fve.bde import BDE

    class Checked(BDE):
        """As it is, but for what its library computes and drops: whether the sealed hash is right."""

        def unlock(self, vmk):
            if not self.information.check_integrity(vmk):
                sys.exit("the sealed hash is wrong")
            return super().unlock(vmk)

    volume = Checked(open(image, "rb"))
    if volume.decrypted:
        block = volume.information
        if block.validation.integrity_check.data != hashlib.sha256(block._buf).digest():
            sys.exit("the hash is wrong")
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

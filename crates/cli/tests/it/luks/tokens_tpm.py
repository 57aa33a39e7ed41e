"""Opens a LUKS2 volume by a token of systemd's, with systemd's own plugin for cryptsetup, whose parameters name the TPM.

Prints the number of the keyslot."""

import ctypes
import sys


class Params(ctypes.Structure):
    """What the plugin takes (systemd, src/cryptsetup/cryptsetup-tokens/cryptsetup-token-systemd-tpm2.c)."""

    _fields_ = [
        ("search_pcr_mask", ctypes.c_uint32),
        ("device", ctypes.c_char_p),
        ("signature_path", ctypes.c_char_p),
    ]


volume, device, token, pin, signature = [argument.encode() for argument in sys.argv[1:]]
library = ctypes.CDLL("libcryptsetup.so.12")
context = ctypes.c_void_p()
assert library.crypt_init(ctypes.byref(context), volume) == 0
assert library.crypt_load(context, b"LUKS2", None) == 0
params = Params(0xFFFFFFFF, device, signature or None)
opened = library.crypt_activate_by_token_pin(
    context, None, b"systemd-tpm2", int(token), pin or None, ctypes.c_size_t(len(pin)), ctypes.byref(params), 0
)
if opened < 0:
    sys.exit(f"it does not open: {opened}")
print(opened)

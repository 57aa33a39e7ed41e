"""Opens a LUKS2 volume by a token of systemd's, with systemd's own plugin for cryptsetup, whose parameters name the TPM or the FIDO2 key.

Prints the number of the keyslot."""

import ctypes
import sys


class Params(ctypes.Structure):
    """What the plugin for TPMs takes (systemd, src/cryptsetup/cryptsetup-tokens/cryptsetup-token-systemd-tpm2.c)."""

    _fields_ = [
        ("search_pcr_mask", ctypes.c_uint32),
        ("device", ctypes.c_char_p),
        ("signature_path", ctypes.c_char_p),
    ]


kind, volume, device, token, pin, signature = [argument.encode() for argument in sys.argv[1:]]
library = ctypes.CDLL("libcryptsetup.so.12")
context = ctypes.c_void_p()
assert library.crypt_init(ctypes.byref(context), volume) == 0
assert library.crypt_load(context, b"LUKS2", None) == 0
tpm = Params(0xFFFFFFFF, device, signature or None)
# The other plugin takes only the device (cryptsetup-token-systemd-fido2.c).
params = ctypes.byref(tpm) if kind == b"systemd-tpm2" else ctypes.c_char_p(device)
opened = library.crypt_activate_by_token_pin(
    context, None, kind, int(token), pin or None, ctypes.c_size_t(len(pin)), params, 0
)
if opened < 0:
    sys.exit(f"it does not open: {opened}")
print(opened)

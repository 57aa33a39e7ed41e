# Decrypts the private key of the only container of CryptoAPI in a Windows profile with impacket, and writes it out.
import glob
import os
import struct
import sys

from impacket import dpapi
from impacket.uuid import bin_to_string

profile, password = sys.argv[1:]
store = os.path.join(profile, 'AppData/Roaming/Microsoft')
masters = {}
for path in glob.glob(os.path.join(store, 'Protect/S-*/*-*')):
    sid = os.path.basename(os.path.dirname(path))
    data = open(path, 'rb').read()
    file = dpapi.MasterKeyFile(data)
    master = dpapi.MasterKey(data[len(file):len(file) + file['MasterKeyLen']])
    for key in dpapi.deriveKeysFromUser(sid, password):
        found = master.decrypt(key)
        if found:
            masters[os.path.basename(path).lower()] = found
(container,) = glob.glob(os.path.join(store, 'Crypto/RSA/S-*/*'))
data = open(container, 'rb').read()
name, si_public, si_private, ex_public, ex_private, digest, si_flags, ex_flags = struct.unpack_from('<8L', data, 8)
at = 40 + name + digest + si_public + si_private + si_flags + ex_public
blob = dpapi.DPAPI_BLOB(data[at:at + ex_private])
key = masters[bin_to_string(blob['GuidMasterKey']).lower()]
sys.stdout.buffer.write(blob.decrypt(key) or b'the MAC is wrong')

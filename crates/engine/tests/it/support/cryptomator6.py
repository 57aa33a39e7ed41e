"""Writes a Cryptomator vault of format 6: cryptomator6.py FOLDER VAULT PASSPHRASE, with pycryptodomex, as docs.cryptomator.org and
cryptofs 1.9 describe it."""
import base64, hashlib, hmac, json, os, sys, uuid
from pathlib import Path

from Cryptodome.Cipher import AES
from Cryptodome.Protocol.KDF import scrypt

enc, mac = os.urandom(32), os.urandom(32)


def siv(plain, *associated):
    cipher = AES.new(mac + enc, AES.MODE_SIV)
    for data in associated:
        cipher.update(data)
    text, tag = cipher.encrypt_and_digest(plain)
    return tag + text


def base32(data):
    return base64.b32encode(data).decode()


def wrapped(kek, key):
    """RFC 3394, 2.2.1."""
    a, r = b"\xa6" * 8, [key[i : i + 8] for i in range(0, len(key), 8)]
    for j in range(6):
        for i in range(len(r)):
            b = AES.new(kek, AES.MODE_ECB).encrypt(a + r[i])
            a, r[i] = (int.from_bytes(b[:8], "big") ^ (len(r) * j + i + 1)).to_bytes(8, "big"), b[8:]
    return base64.b64encode(a + b"".join(r)).decode()


def ctr(key, nonce, data):
    return AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=nonce).encrypt(data)


def tag(*parts):
    return hmac.new(mac, b"".join(parts), hashlib.sha256).digest()


def sealed(data):
    nonce, key = os.urandom(16), os.urandom(32)
    payload = ctr(enc, nonce, b"\xff" * 8 + key)
    out = nonce + payload + tag(nonce, payload)
    for number, at in enumerate(range(0, len(data), 32768)):
        own = os.urandom(16)
        block = ctr(key, own, data[at : at + 32768])
        out += own + block + tag(nonce, number.to_bytes(8, "big"), own, block)
    return out


def write(vault, folder, folder_id):
    place = base32(hashlib.sha1(siv(folder_id)).digest())
    place = vault / "d" / place[:2] / place[2:]
    place.mkdir(parents=True)
    for entry in sorted(folder.iterdir()):
        name = base32(siv(entry.name.encode(), folder_id))
        if entry.is_symlink():
            name, data = "1S" + name, sealed(os.readlink(entry).encode())
        elif entry.is_dir():
            name, data = "0" + name, str(uuid.uuid4()).encode()
            write(vault, entry, data)
        else:
            data = sealed(entry.read_bytes())
        if len(name) > 129:
            short = base32(hashlib.sha1(name.encode()).digest()) + ".lng"
            whole = vault / "m" / short[:2] / short[2:4] / short
            whole.parent.mkdir(parents=True, exist_ok=True)
            whole.write_text(name)
            name = short
        (place / name).write_bytes(data)


folder, vault, passphrase = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
write(vault, folder, b"")
salt = os.urandom(8)
kek = scrypt(passphrase, salt, 32, 2, 8, 1)
key_file = {
    "version": 6,
    "scryptSalt": base64.b64encode(salt).decode(),
    "scryptCostParam": 2,
    "scryptBlockSize": 8,
    "primaryMasterKey": wrapped(kek, enc),
    "hmacMasterKey": wrapped(kek, mac),
    "versionMac": base64.b64encode(tag((6).to_bytes(4, "big"))).decode(),
}
(vault / "masterkey.cryptomator").write_text(json.dumps(key_file))

"""What the wheel has beside its code."""

import zipfile

from conftest import ROOT, TARGET, run


def wheel():
    [found] = (TARGET / "bindings/debug").glob("claviger-*.whl")
    return zipfile.ZipFile(found)


def test_it_has_the_licences():
    with wheel() as packed:
        names = packed.namelist()
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            [name] = [name for name in names if ".dist-info/" in name and name.endswith(licence)]
            assert packed.read(name) == (ROOT / licence).read_bytes()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        assert b"License-Expression: MIT OR Apache-2.0" in packed.read(metadata)


def test_its_library_is_stripped(tmp_path):
    with wheel() as packed:
        [name] = [name for name in packed.namelist() if name.endswith(".so")]
        packed.extract(name, tmp_path)
    sections = run("objdump", "-h", tmp_path / name, text=True)
    assert ".text" in sections and ".debug" not in sections and ".symtab" not in sections

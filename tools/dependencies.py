#!/usr/bin/env python3
"""Lists the crates of the program.

    tools/dependencies.py list         writes docs/dependencies.md: every crate that is linked in, or runs during the build
    tools/dependencies.py check        checks that page
    tools/dependencies.py sbom FILE    writes a software bill of materials (CycloneDX 1.5, JSON)
    tools/dependencies.py notices FILE writes the licences that must accompany the program

The names in a crate's source show what it may do: `unsafe`, and the parts of the standard library and the system that it calls. A macro could
hide more. A crate without these names cannot open a file or a connection without another crate on the page.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/dependencies.md"
PROGRAM = "claviger"

# Patterns in the source, by their names on the page.
MAY = {
    "files": r"\b(std::)?fs::|\bFile::(open|create)\b|\bOpenOptions\b",
    "network": r"\bnet::|\bTcp(Stream|Listener)\b|\bUdpSocket\b|\bUnixStream\b",
    "programs": r"\bprocess::(Command\b|\{[^}]*\bCommand\b)",
    "environment": r"\benv::(var|vars|args)\b",
    "foreign functions": r'\bextern\s+"(C|system)"',
}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)

HEAD = """# Dependencies

All crates that are linked into `claviger`, or run while it is built, on Linux. `make dependencies` rewrites this page, and `make lint` checks it.
`cargo deny` checks licences, sources and known vulnerabilities (`deny.toml`, `tools/advisories.sh`). Versions and checksums are in `Cargo.lock`;
`make sbom` writes a software bill of materials (CycloneDX).

*Unsafe* counts the word in the crate's own source without tests. *May* lists what the names in that source could do: open files, connect to a
network, start programs, read the environment, call foreign functions. Most of this code is for other platforms, or behind disabled features.

## Crates that are not used, and why

A crate is used where it does what is needed and keeps its promises on hostile input. These crates were considered and are not used:

| Ours | Crate | Why |
| --- | --- | --- |
| `private_keys/asn1.rs` | `der` 0.8 | It is linked, but refuses BER strings in pieces whose length is given (`bytes.rs`), and its errors name no field. |
| `private_keys/pem.rs` | `pem-rfc7468` 1.0 | It refuses headers in a block (`HeaderDisallowed`), with which OpenSSL wrote encrypted keys before PKCS#8. |
| `partitions/gpt.rs` | `gptman` 3.1 | It allocates as many entries as a header claims, up to 2^32, before anything proves them; it multiplies sectors unchecked, compares no copies, and adds 8 crates. |
| `partitions/mbr.rs` | `mbrman` 0.6 | It adds sectors unchecked, follows logical partitions out of the extended one, has no limit for their number, and adds 11 crates. |
| `opening/http.rs` in `cli` | `ureq` 3.5 | It has timeouts, but nothing ends a request that a person cancels; it adds 7 crates for one request over plain HTTP. |
| `password_strength` in `crypto` | `zxcvbn` 3.1 | It copies the password into ordinary strings that nobody wipes: a lower-case and a reversed form, and a `String` for each word that it finds (`matching.rs`). Its guesses end at 2^64, and single characters count as ten each, which makes a random password look weak. It adds 17 crates. Its frequency lists (MIT) are the source of `data/words.txt`. |
| `model/random.rs` in `lab` | `fastrand` 2 | It is linked, but its numbers for a seed changed in a minor version (2.1.0). A published run must be repeatable from its seed. |

"""


def cargo(*args):
    return subprocess.run(["cargo", *args, "--locked"], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def graph():
    """The packages by id, and the dependencies of each: (id, whether only for the build)."""
    metadata = json.loads(cargo("metadata", "--format-version=1", *(f"--filter-platform=x86_64-unknown-linux-{c}" for c in ("gnu", "musl"))))
    packages = {package["id"]: package for package in metadata["packages"]}
    edges = {}
    for node in metadata["resolve"]["nodes"]:
        for dependency in node["deps"]:
            kinds = {kind["kind"] for kind in dependency["dep_kinds"]} - {"dev"}
            if kinds:
                edges.setdefault(node["id"], []).append((dependency["pkg"], kinds == {"build"}))
    return packages, edges


def reached(packages, edges):
    """The program's package ids, each with whether it is linked in."""
    program = next(id for id, package in packages.items() if package["name"] == PROGRAM)
    linked, pending = {}, [(program, True)]
    while pending:
        id, link = pending.pop()
        link = link and not is_macro(packages[id])
        if linked.get(id) or (id in linked and not link):
            continue
        linked[id] = link
        pending += [(other, link and not building) for other, building in edges.get(id, [])]
    return linked


def is_macro(package):
    return any("proc-macro" in target["kind"] for target in package["targets"])


def ours(package):
    return package["source"] is None


def source(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    files = [file for file in folder.rglob("*.rs") if not {"tests", "benches", "examples"} & set(file.relative_to(folder).parts)]
    return "\n".join(COMMENT.sub("", file.read_text(errors="replace")) for file in sorted(files))


def row(package, linked):
    text = source(package)
    may = [name for name, pattern in MAY.items() if re.search(pattern, text)]
    builds = any("custom-build" in target["kind"] for target in package["targets"])
    when = "linked" if linked else "macro" if is_macro(package) else "while building"
    cells = [
        f"[{package['name']}](https://crates.io/crates/{package['name']}) {package['version']}",
        package["license"] or "",
        when + (", build script" if builds else ""),
        str(len(re.findall(r"\bunsafe\b", text))),
        ", ".join(may),
    ]
    return "| " + " | ".join(cells) + " |"


def page():
    packages, edges = graph()
    linked = reached(packages, edges)
    foreign = sorted((id for id in linked if not ours(packages[id])), key=lambda id: (packages[id]["name"], packages[id]["version"]))
    asked = {other for id, others in edges.items() if id in linked and ours(packages[id]) for other, _ in others}
    parts = [HEAD]
    for title, direct in [("Direct dependencies", True), ("Indirect dependencies", False)]:
        rows = [row(packages[id], linked[id]) for id in foreign if (id in asked) == direct]
        parts.append(f"## {title}: {len(rows)}\n\n| Crate | Licence | When | Unsafe | May |\n| --- | --- | --- | --- | --- |\n")
        parts.append("\n".join(rows) + "\n\n")
    return "".join(parts).rstrip() + "\n"


def bill():
    packages, edges = graph()
    linked = reached(packages, edges)
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    sums = {(package["name"], package["version"]): package.get("checksum") for package in locked}

    def reference(id):
        return f"pkg:cargo/{packages[id]['name']}@{packages[id]['version']}"

    def component(id):
        package = packages[id]
        checksum = sums.get((package["name"], package["version"]))
        return {
            "type": "application" if package["name"] == PROGRAM else "library",
            "bom-ref": reference(id),
            "name": package["name"],
            "version": package["version"],
            "scope": "required" if linked[id] else "excluded",
            "purl": reference(id),
            "licenses": [{"expression": (package["license"] or "").replace("/", " OR ")}],
            **({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}),
        }

    program = next(id for id in linked if packages[id]["name"] == PROGRAM)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(program)},
        "components": [component(id) for id in sorted(linked) if id != program],
        "dependencies": [
            {"ref": reference(id), "dependsOn": sorted({reference(other) for other, _ in edges.get(id, [])})} for id in sorted(linked)
        ],
    }


def notices():
    """Each licence text once, below its crates: MIT if the crate offers it, otherwise all of its texts."""
    packages, edges = graph()
    crates, texts = [], {}
    for id, linked in reached(packages, edges).items():
        package = packages[id]
        if not linked or ours(package):
            continue
        name = f"{package['name']} {package['version']}"
        crates.append(f"{name}  {package['license']}")
        folder = pathlib.Path(package["manifest_path"]).parent
        files = [file for file in folder.iterdir() if re.match("(?i)(licen[cs]e|copying|copyright|notice|unlicense)", file.name) and file.is_file()]
        files = [file for file in files if "mit" in file.name.lower()] or files
        for file in files:
            texts.setdefault(file.read_text(errors="replace").strip(), []).append(name)
    for file in sorted(ROOT.glob("crates/*/data/NOTICE-*")):
        texts.setdefault(file.read_text().strip(), []).append(f"data of {file.parents[1].name}")
    rule = "\n\n" + "-" * 78 + "\n\n"
    head = "The crates linked into claviger, with their licences:\n\n" + "\n".join(sorted(crates))
    return rule.join([head, *(", ".join(sorted(names)) + "\n\n" + text for text, names in sorted(texts.items()))]) + "\n"


def main(args):
    match args:
        case ["list"]:
            PAGE.write_text(page())
        case ["check"]:
            if PAGE.read_text() != page():
                sys.exit("docs/dependencies.md is out of date. Run: make dependencies")
        case ["sbom", file]:
            pathlib.Path(file).write_text(json.dumps(bill(), indent=1) + "\n")
        case ["notices", file]:
            pathlib.Path(file).write_text(notices())
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])

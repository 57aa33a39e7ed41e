#!/usr/bin/env python3
"""Writes the public API of a crate as text, from its rustdoc pages.

    tools/api.py write|check DOC CRATE…

DOC is cargo's folder of documentation, which `make api` makes. `write` puts what it finds into docs/api/CRATE.txt; `check` compares,
prints what differs and ends with 1. rustdoc's own list of items names no signatures, and its JSON is for nightly compilers.
Another rustdoc writes other pages: only the one that the listing was made with can check it.
"""

import difflib
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

LISTINGS = Path(__file__).parent.parent / "docs" / "api"
# Implementations that the compiler adds to every type, and parts that a trait's page repeats.
LEFT_OUT = {"synthetic-implementations-list", "blanket-implementations-list", "implementors-list", "synthetic-implementors-list",
            "foreign-impls"}
VOID = {"br", "hr", "img", "input", "link", "meta", "wbr", "source"}


class Page(HTMLParser):
    """The declarations on one page."""

    def __init__(self, is_trait):
        super().__init__()
        self.declarations = []
        self.is_trait = is_trait
        self.open = []  # of each element that is open: its name, whether text counts in it, whether it is a declaration
        self.ids = []
        self.text = None

    def handle_starttag(self, tag, attributes):
        if tag in VOID:
            return
        attributes = dict(attributes)
        classes = (attributes.get("class") or "").split()
        identity = attributes.get("id") or ""
        left_out = identity in LEFT_OUT or identity.startswith("deref-methods")
        silent = left_out or tag in ("summary", "script", "style") and "item-decl" in self.inside() or "since" in classes
        declares = self.text is None and not self.silent() and self.declares(tag, classes, identity)
        self.open.append((tag, "item-decl" if "item-decl" in classes else identity, silent, declares))
        if declares:
            self.text = []

    def declares(self, tag, classes, identity):
        if tag == "pre" and "item-decl" in classes or identity.startswith("reexport."):
            return True
        if "code-header" not in classes or self.is_trait or any(i.startswith("variant.") for i in self.inside()):
            return False
        return tag == "h3" or "trait-implementations-list" not in self.inside()

    def inside(self):
        return {identity for _, identity, _, _ in self.open}

    def silent(self):
        return any(silent for _, _, silent, _ in self.open)

    def handle_endtag(self, tag):
        if tag in VOID or not any(tag == name for name, *_ in self.open):
            return
        while self.open:
            name, _, _, declares = self.open.pop()
            if declares:
                text = "".join(self.text).replace("\xa0", " ")
                lines = [line.rstrip() for line in text.splitlines()]
                declaration = "\n".join(line for line in lines if line)
                if "StructuralPartialEq for " not in declaration:  # the compiler's own
                    self.declarations.append(declaration)
                self.text = None
            if name == tag:
                return

    def handle_data(self, data):
        if self.text is not None and not self.silent():
            self.text.append(data)


def listing(doc, crate):
    root = doc / crate.replace("-", "_")
    lines = []
    for page in sorted(root.rglob("*.html")):
        name = page.name.removesuffix(".html")
        kind, _, item = name.rpartition(".")
        if name in ("all", "sidebar-items") or (not kind and name != "index"):
            continue
        parsed = Page(kind == "trait")
        parsed.feed(page.read_text())
        module = "::".join((root.name, *page.parent.relative_to(root).parts))
        if parsed.declarations:
            lines += [f"## {module}{'::' + item if kind else ''}", *parsed.declarations, ""]
    if not lines:
        sys.exit(f"{root}: no documentation found")
    return "\n".join(lines)


def main():
    verb, doc, *crates = sys.argv[1:]
    stale = False
    rustdoc, made_with = subprocess.check_output(["rustdoc", "--version"], text=True), LISTINGS / "rustdoc-version"
    if verb == "write":
        LISTINGS.mkdir(exist_ok=True)
        made_with.write_text(rustdoc)
    elif rustdoc != made_with.read_text():
        print(f"SKIPPED api-check: the listing needs {made_with.read_text().strip()}; this is {rustdoc.strip()}.", file=sys.stderr)
        return
    for crate in crates:
        now, file = listing(Path(doc), crate), LISTINGS / f"{crate}.txt"
        before = file.read_text() if file.exists() else ""
        if verb == "write":
            file.write_text(now)
        elif now != before:
            stale = True
            sys.stdout.writelines(difflib.unified_diff(
                before.splitlines(True), now.splitlines(True), f"docs/api/{crate}.txt", "the documentation"))
    if stale:
        sys.exit("The public API differs from docs/api. If that is intended, run: make api")


main()

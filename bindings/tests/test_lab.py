"""Runs of the lab as tables, and the example notebook."""

import gzip
import json
import re
import shutil

from conftest import ROOT

from claviger import lab

STUDY = ROOT / "docs/studies/linux2013.json.gz"


def test_a_run_is_tables(tmp_path):
    run = lab.Run.read(STUDY)
    raw = json.load(gzip.open(STUDY))
    samples = run.samples()
    assert len(samples) == sum(len(each["measures"]) for each in raw["run"]["passes"])
    assert {"facility", "workload", "operation", "value", "unit"} <= samples[0].keys()
    [figure] = lab.where(run.figures(), facility="TrueCrypt", workload="dd", operation="write")
    values = [row["value"] for row in lab.where(samples, facility="TrueCrypt", workload="dd", operation="write")]
    assert figure["low"] <= figure["median"] <= figure["high"] and figure["median"] in values and 0 < figure["loss"] < 1
    table = lab.columns(run.figures())
    assert len(set(map(len, table.values()))) == 1 and len(table["median"]) == len(raw["summary"]["cells"])
    assert run.machine["cpus"] and run.ciphers()[0]["cipher"] == "AES"
    with gzip.open(STUDY) as packed, open(tmp_path / "run.json", "wb") as file:
        shutil.copyfileobj(packed, file)
    assert lab.Run.read(tmp_path).figures() == run.figures()


def test_the_notebook_draws_a_figure(monkeypatch):
    notebook = ROOT / "bindings/python/examples/study.ipynb"
    monkeypatch.chdir(notebook.parent)
    cells = json.loads(notebook.read_text())["cells"]
    names = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "outputs are stripped"
            exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
    svg = names["picture"].data
    # Three ciphers in each of two panels.
    assert svg.startswith("<svg") and svg.count("<polyline") == 6
    assert all(len(points.split()) > 5 for points in re.findall(r'points="([^"]*)"', svg))

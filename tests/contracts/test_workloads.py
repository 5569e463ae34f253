"""Hold every workload that is found to one contract; what it needs may be missing, but then it says so."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from tests.rows import every_row

from joulelab.core.errors import MissingDependency
from joulelab.run import workload_registry

HEAVY = ("torch", "transformers", "lightning", "keras", "numpy", "PIL", "matplotlib", "nbclient", "duckdb")
COMMANDS = f"""
import json, sys
from joulelab.run import workload_registry
from joulelab.core.errors import MissingDependency
found = {{}}
for name in workload_registry.list_workloads():
    module = workload_registry.find_workload(name)
    for preset in (None, *workload_registry.get_presets(module)):
        try:
            words = [name, *([f"preset={{preset}}"] if preset else [])]
            found[f"{{name}} {{preset}}"] = workload_registry.make_reference_command(words)
        except MissingDependency as error:
            found[f"{{name}} {{preset}}"] = [str(error.next)]
print(json.dumps([found, sorted(set({HEAVY!r}) & set(sys.modules))]))
"""


@every_row("name", workload_registry.list_workloads())
def test_a_workload_has_what_it_needs(name: str) -> None:
    module = workload_registry.find_workload(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", name)
    assert re.fullmatch(r"\S.{8,118}\S", module.SUMMARY)
    assert not module.SUMMARY.endswith(".")
    assert isinstance(workload_registry.get_study(module), str)
    for key, (default, meaning) in module.PARAMETERS.items():
        assert key.isidentifier()
        assert key != workload_registry.PRESET
        assert isinstance(default, str)
        assert isinstance(meaning, str)
        assert meaning.strip()
    assert all(isinstance(note, str) and note.strip() for note in workload_registry.get_notes(module))


@every_row("name", workload_registry.list_workloads())
def test_presets_name_known_parameters(name: str) -> None:
    module = workload_registry.find_workload(name)
    presets = workload_registry.get_presets(module)
    # Those that come with joulelab can all be tried.
    assert "smoke" in presets
    assert "paper" in presets or workload_registry.get_study(module) == "ours"
    for values in presets.values():
        assert set(values) <= set(module.PARAMETERS)
        assert all(isinstance(value, str) for value in values.values())


@every_row("name", workload_registry.list_workloads())
def test_a_command_carries_every_value(name: str) -> None:
    module = workload_registry.find_workload(name)
    for values in ({}, *workload_registry.get_presets(module).values()):
        full = workload_registry.merge_parameters(name, module.PARAMETERS, values)
        try:
            words = module.command(full)
        except MissingDependency:
            continue
        assert all(any(value in word for word in words) for value in values.values())


@pytest.mark.parametrize("name", [name for name in workload_registry.list_workloads() if name != "burn"])
def test_without_torch_it_says_what_to_install_before_it_starts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependency, match=r"torch is not installed\); pip install 'joulelab\[torch\]'"):
        workload_registry.make_reference_command([name, "preset=smoke"])


@pytest.mark.system
def test_to_find_and_plan_them_nothing_heavy_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", COMMANDS], capture_output=True, text=True, check=True)
    found, heavy = json.loads(done.stdout)
    assert heavy == []
    assert {key.split()[0] for key in found} == set(workload_registry.list_workloads())
    assert all(words and all(isinstance(word, str) and word != "None" for word in words) for words in found.values())

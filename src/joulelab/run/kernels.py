"""Find the kernel that a notebook is run by."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel

from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.run import cells
from joulelab.run.notebook import is_own_kernel, require_library

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.run.notebook import NotebookRequest

OWN_KERNEL = "python3"


class KernelFinder(KernelSpecManager):
    """Find kernels by their names; `python3` is the Python that we run in, wherever a file of that name may point."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        """Return how a kernel is started. Raises NoSuchKernel."""
        if kernel_name != OWN_KERNEL:
            return super().get_kernel_spec(kernel_name)
        start = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=start, display_name="Python 3", language="python")

    def choose(self, asked: NotebookRequest, notebook: Mapping[str, Any]) -> str:
        """Return the name of the kernel to start. Raises ConfigError, MissingDependency where it is not installed."""
        named = asked.kernel or cells.get_kernel_name(notebook)
        if is_own_kernel(asked, notebook):
            return OWN_KERNEL
        try:
            self.get_kernel_spec(named)
        except NoSuchKernel as error:
            if not asked.kernel and cells.get_language(notebook) == "python":
                require_library("ipykernel", asked.file)
                return OWN_KERNEL  # the notebook asks for a kernel that only whoever wrote it has
            there = sorted({OWN_KERNEL, *self.find_kernel_specs()})
            what = f"there is no kernel {named!r} here"
            raise ConfigError(what, where=str(asked.file), next=f"install it; {suggest_name(named, there)}") from error
        return named

"""Turn NVML's return codes into joulelab's errors."""

from __future__ import annotations

from joulelab.core.errors import Denied, DeviceLost, MeterError, ReadFailed, Unavailable

SUCCESS = 0
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28

# What is not there for this device or driver: a channel that it does not have, not a failed reading.
ABSENT = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND})
# A handle that NVML no longer takes is a device that is gone, as is one that waits for a reset.
_LOST = frozenset({INVALID_ARGUMENT, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
_NEXT_OPEN = {
    LIBRARY_NOT_FOUND: "install the NVIDIA driver, or try the simulated node: joulelab twin",
    DRIVER_NOT_LOADED: "load the driver (sudo modprobe nvidia), or try the simulated node: joulelab twin",
    LIB_RM_VERSION_MISMATCH: "the driver was updated while loaded: reboot, or reload the kernel module",
}
_TWIN = "run nvidia-smi to see what the driver says, or try the simulated node: joulelab twin"


def opening(code: int, text: str) -> MeterError:
    """Return the error for an NVML that cannot be opened."""
    if code == NO_PERMISSION:
        return Denied("NVML may not be used", where="nvml", why=text, next="give this user read access to /dev/nvidia*")
    return Unavailable("there is no NVIDIA GPU to measure", where="nvml", why=text, next=_NEXT_OPEN.get(code, _TWIN))


def reading(code: int, text: str, what: str, where: str) -> MeterError:
    """Return the error for one failed call on one device."""
    if code == NO_PERMISSION:
        return Denied(what, where=where, why=text, next="ask for read access, or run as root: joulelab doctor nvml")
    if code in _LOST:
        return DeviceLost(what, where=where, why=text, next="look for an Xid in dmesg; sudo nvidia-smi -r, or reboot")
    return ReadFailed(what, where=where, why=text, next="it is tried again; see joulelab doctor nvml")

"""Where the memory of somebody's array is: the host, or a device that only its own library reads."""

from __future__ import annotations

from typing import Any

# Numbers of DLPack's DLDeviceType.
_DEVICES = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 9: "VPI", 10: "ROCm", 13: "CUDA managed", 14: "oneAPI"}
_HOST = (1, 3, 11)  # the CPU, and the pinned host memory of CUDA and ROCm


def device_of(x: Any) -> str | None:
    """Name of the device whose memory ``x`` is in, None for the host and for what is no array.

    >>> device_of([1.0])
    """
    if isinstance(x, type):
        return None
    if hasattr(x, "__dlpack_device__"):
        try:
            number = int(x.__dlpack_device__()[0])
        except (ValueError, RuntimeError, BufferError):  # DLPack has no number for it: torch's "meta"
            return str(getattr(x, "device", "unknown"))
        return None if number in _HOST else _DEVICES.get(number, f"DLPack type {number}")
    return "CUDA" if hasattr(x, "__cuda_array_interface__") else None


def refusal(x: Any) -> str:
    """Why a traced function does not read ``x``, an array of another library: its type, shape and device."""
    kind, device = type(x).__name__, device_of(x)
    if device is None:
        return f"has type {kind}: arrays of NumPy are traced; use np.asarray"
    shape = getattr(x, "shape", None)
    place = f"{kind} of shape {tuple(shape)}" if shape is not None else kind
    return f"is a {place} on a {device} device: traced arrays are in CPU memory, copy it there first"

"""The micro-probe's matrix product and copy on an NVIDIA card, through cuBLAS and the CUDA runtime themselves.

The same question as in ``micro``, asked of the card instead of the processor, and not through a model runtime. Needs the
libraries that onnxruntime-gpu brings (or the system's); nothing is compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from metainfer_probe.backends.base import ProbeError

_T = TypeVar("_T")
GEMM_SIZE = 4096
"""2·4096^3 = 137 GFLOP: 2-15 ms in fp32 on cards of the last ten years; launch latency is below one percent of it."""
COPY_BYTES = 256 << 20
"""Several times the largest second-level cache (50-120 MB)."""
_DEVICE_TO_DEVICE = 3
"""cudaMemcpyDeviceToDevice of driver_types.h."""
_NO_TRANSPOSE = 0
"""CUBLAS_OP_N of cublas_api.h."""
_MAJOR_VERSIONS = (13, 12, 11)


@dataclass(frozen=True, slots=True)
class CudaLibraries:
    """The two libraries, loaded."""

    runtime: Any
    blas: Any


def load_cuda() -> CudaLibraries:
    """Find both libraries. Raises ProbeError ``CardLibraryMissing``."""
    with suppress(ImportError, AttributeError):
        import onnxruntime

        onnxruntime.preload_dlls()
    return CudaLibraries(_load("libcudart.so"), _load("libcublas.so"))


def _load(name: str) -> Any:
    for major in _MAJOR_VERSIONS:
        with suppress(OSError):
            return ctypes.CDLL(f"{name}.{major}")
    wanted = ", ".join(f"{name}.{major}" for major in _MAJOR_VERSIONS)
    raise ProbeError("CardLibraryMissing", f"none of {wanted} can be loaded: build the probe image with onnxruntime-gpu and its CUDA libraries")


class CudaWork:
    """Memory on the card and the two calls to be timed; each returns when the card is done. To be closed."""

    def __init__(self, libraries: CudaLibraries) -> None:
        self._cuda, self._blas = libraries.runtime, libraries.blas
        self._handle, self._buffers = ctypes.c_void_p(), [ctypes.c_void_p() for _ in range(3)]
        self._check("cublasCreate_v2", self._blas.cublasCreate_v2(ctypes.byref(self._handle)))
        for buffer in self._buffers:
            self._check("cudaMalloc", self._cuda.cudaMalloc(ctypes.byref(buffer), ctypes.c_size_t(COPY_BYTES)))
            self._check("cudaMemset", self._cuda.cudaMemset(buffer, 0, ctypes.c_size_t(COPY_BYTES)))

    def gemm(self) -> None:
        """One fp32 product of two square matrices (cuBLAS uses no TF32 unless told to)."""
        size, one, zero = ctypes.c_int(GEMM_SIZE), ctypes.c_float(1.0), ctypes.c_float(0.0)
        left, right, out = self._buffers
        self._check(
            "cublasSgemm_v2",
            self._blas.cublasSgemm_v2(
                self._handle, _NO_TRANSPOSE, _NO_TRANSPOSE, size, size, size, ctypes.byref(one), left, size, right, size, ctypes.byref(zero), out, size
            ),
        )
        self._wait()

    def copy(self) -> None:
        """One copy from card memory to card memory."""
        self._check("cudaMemcpy", self._cuda.cudaMemcpy(self._buffers[0], self._buffers[1], ctypes.c_size_t(COPY_BYTES), _DEVICE_TO_DEVICE))
        self._wait()

    def close(self) -> None:
        """Free everything."""
        for buffer in self._buffers:
            self._cuda.cudaFree(buffer)
        self._blas.cublasDestroy_v2(self._handle)

    def _wait(self) -> None:
        self._check("cudaDeviceSynchronize", self._cuda.cudaDeviceSynchronize())

    def _check(self, call: str, status: int) -> None:
        if status != 0:
            raise ProbeError("CardFailed", f"{call} failed with status {status}: the card or its driver is not usable", retryable=True)


def with_cuda_work(measure: Callable[[CudaWork], _T]) -> _T:
    """Run ``measure`` with the card's memory held."""
    work = CudaWork(load_cuda())
    try:
        return measure(work)
    finally:
        work.close()

"""How far two sets of answers are apart: the number that the accuracy budget gates.

RelativeL2, exactly. Per graph output, over all compared samples together:

    numbers (float tensors of any width, and the float leaves of sequences and maps):
        sqrt( sum |a - b|^2 / sum |b|^2 ),  b = the reference, in float64
    everything else (integers, booleans, strings; also a differing number where the reference is NaN or Inf):
        share of elements that are not equal
    structure (shape, length of a sequence, keys of a map):
        share of samples in which it differs; such a sample takes no part in the other two

The output's difference is the largest of the three, and the model's difference the largest over its outputs: pooling
outputs would let boxes in pixels hide broken scores. Two empty tensors are equal; an output in which nothing could be
compared differs by 0. NaN or Inf in the answer where the reference is finite is no difference but ``invalid_values``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metainfer_probe.backends.base import ProbeError

Outputs = Sequence[object]
"""What ``Session.run`` returned: one value per graph output."""

PPM = 1_000_000
PPM_LIMIT = 1_000_000_000
"""A thousand times the reference's norm: past this the exact number says nothing more."""


@dataclass(frozen=True, slots=True)
class Difference:
    """``per_output`` in graph order, parts of one; ``invalid_values``: NaN or Inf where the reference has none."""

    per_output: tuple[float, ...]
    invalid_values: bool

    @property
    def relative(self) -> float:
        """The worst output's difference; 0 for a model without outputs."""
        return max(self.per_output, default=0.0)

    @property
    def ppm(self) -> int:
        """``relative`` in parts per million, capped at ``PPM_LIMIT``."""
        return min(round(self.relative * PPM), PPM_LIMIT)


class Comparison:
    """Adds up the difference answer by answer, so that no set of answers has to be kept."""

    def __init__(self) -> None:
        self._sums: list[_OutputSum] = []

    def add(self, answer: Outputs, reference: Outputs) -> None:
        """Compare one answer. Raises ProbeError ``OutputCountDiffers``."""
        if len(answer) != len(reference):
            raise ProbeError("OutputCountDiffers", f"{len(answer)} outputs, the reference has {len(reference)}")
        self._sums.extend(_OutputSum() for _ in range(len(reference) - len(self._sums)))
        for total, left, right in zip(self._sums, answer, reference, strict=True):
            total.add(_flatten(left), _flatten(right))

    def difference(self) -> Difference:
        """Over everything added so far; 0 when that is nothing."""
        return Difference(tuple(total.relative() for total in self._sums), any(total.invalid for total in self._sums))


def compare_answers(pairs: Iterable[tuple[Outputs, Outputs]]) -> Difference:
    """Difference over (answer, reference) pairs of the same inputs."""
    comparison = Comparison()
    for answer, reference in pairs:
        comparison.add(answer, reference)
    return comparison.difference()


def join_outputs(singles: Sequence[Outputs]) -> list[object]:
    """What one execution of all these requests should answer: tensors joined along axis 0, sequences appended.

    A value that cannot be joined (a scalar, a map, tensors of other inner shapes) is kept as the tuple of its parts, which
    no batched answer equals: a server could not split such an output either.
    """
    return [_join_values([outputs[position] for outputs in singles]) for position in range(len(singles[0]))]


def _join_values(parts: list[object]) -> object:
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts) and all(array.ndim > 0 and array.shape[1:] == arrays[0].shape[1:] for array in arrays):
        return np.concatenate(arrays)
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [item for part in lists for item in part]
    return tuple(parts) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True)
class _Flat:
    """A value taken apart. ``structure`` equal means that ``numbers`` and ``others`` correspond one to one."""

    structure: tuple[object, ...]
    numbers: npt.NDArray[np.float64]
    others: tuple[npt.NDArray[np.generic], ...]


@dataclass(slots=True)
class _OutputSum:
    """Running sums for one graph output."""

    error_squares: float = 0.0
    reference_squares: float = 0.0
    elements: int = 0
    unequal: int = 0
    samples: int = 0
    other_structure: int = 0
    invalid: bool = False

    def add(self, answer: _Flat, reference: _Flat) -> None:
        self.samples += 1
        if answer.structure != reference.structure:
            self.other_structure += 1
            return
        finite = np.isfinite(reference.numbers)
        valid = finite & np.isfinite(answer.numbers)
        self.invalid |= bool(np.any(finite & ~valid))
        self.error_squares += float(np.sum((answer.numbers[valid] - reference.numbers[valid]) ** 2))
        self.reference_squares += float(np.sum(reference.numbers[valid] ** 2))
        self._count(answer.numbers[~finite], reference.numbers[~finite])
        for left, right in zip(answer.others, reference.others, strict=True):
            self._count(left, right)

    def _count(self, answer: npt.NDArray[np.generic], reference: npt.NDArray[np.generic]) -> None:
        same = answer == reference
        if reference.dtype.kind == "f":
            same |= np.isnan(answer) & np.isnan(reference)
        self.elements += reference.size
        self.unequal += reference.size - int(np.count_nonzero(same))

    def relative(self) -> float:
        numbers = 1.0 if self.error_squares > 0 else 0.0
        if self.reference_squares > 0:
            numbers = float(np.sqrt(self.error_squares / self.reference_squares))
        return max(numbers, _share(self.unequal, self.elements), _share(self.other_structure, self.samples))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


@dataclass(slots=True)
class _Leaves:
    structure: list[object] = field(default_factory=list)
    numbers: list[npt.NDArray[np.float64]] = field(default_factory=list)
    others: list[npt.NDArray[np.generic]] = field(default_factory=list)

    def take(self, value: object) -> None:
        if isinstance(value, Mapping):
            keys = sorted(value, key=str)
            self.structure.append(("map", tuple(keys)))
            for key in keys:
                self.take(value[key])
        elif isinstance(value, (list, tuple)):
            self.structure.append((type(value).__name__, len(value)))
            for item in value:
                self.take(item)
        else:
            self._take_array(np.asarray(value))

    def _take_array(self, array: npt.NDArray[np.generic]) -> None:
        is_number = array.dtype.kind in "fc" or array.dtype.name == "bfloat16"
        self.structure.append(("numbers" if is_number else "others", array.shape))
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag])
        if is_number:
            self.numbers.append(array.astype(np.float64).ravel())
        else:
            self.others.append(array.ravel())


def _flatten(value: object) -> _Flat:
    leaves = _Leaves()
    leaves.take(value)
    numbers = np.concatenate(leaves.numbers) if leaves.numbers else np.zeros(0)
    return _Flat(tuple(leaves.structure), numbers, tuple(leaves.others))

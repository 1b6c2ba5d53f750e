"""What kernels need beyond arrays: C functions called by their address, memory copied by address, many bytes compared
at once.

Addresses are arguments of the kernels, not constants in them, so that compiled kernels can be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailrace.eventstore.compiled.compiler import part, primitive

# After the above, which says what is missing when numba is.
from llvmlite import ir  # isort: skip
from numba.core import cgutils, types  # isort: skip

_INT, _WORD = ir.IntType(32), ir.IntType(64)
_BYTE = ir.IntType(8)
_LONG = 64  # bytes; from here on the call is not what takes the time of a copy
_16_BYTES, _64_BYTES = ir.VectorType(_BYTE, 16), ir.VectorType(_BYTE, 64)


def _call(typing: Any, function: Any, first: Any) -> Any:
    return types.int32(types.int64, types.int64), _emit_call


def _call_3(typing: Any, function: Any, first: Any, second: Any, third: Any) -> Any:
    return types.int32(types.int64, types.int64, types.int64, types.int32), _emit_call


def _emit_call(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    kinds = [_INT if kind == types.int32 else _WORD for kind in signature.args[1:]]
    function = ir.FunctionType(_INT, kinds).as_pointer()
    return builder.call(builder.inttoptr(values[0], function), values[1:])


def _copy_memory(typing: Any, to: Any, begin: Any, size: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        to, begin = (builder.inttoptr(value, _BYTE.as_pointer()) for value in values[:2])
        copy: Any = cgutils.raw_memcpy
        copy(builder, to, begin, values[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), write


def _copy_16(typing: Any, to: Any, begin: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        to, begin = (builder.inttoptr(value, _16_BYTES.as_pointer()) for value in values)
        builder.store(builder.load(begin, align=1), to, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), write


def _marks_64(typing: Any, begin: Any, first: Any, second: Any, third: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = builder.load(builder.inttoptr(values[0], _64_BYTES.as_pointer()), align=1)
        anything, everywhere = (
            ir.Constant(_64_BYTES, ir.Undefined),
            ir.Constant(ir.VectorType(_INT, 64), None),
        )
        marks = ir.Constant(ir.VectorType(ir.IntType(1), 64), None)
        for value in values[1:]:
            one = builder.insert_element(anything, value, ir.Constant(_INT, 0))
            same = builder.shuffle_vector(one, anything, everywhere)
            marks = builder.or_(marks, builder.icmp_unsigned("==", data, same))
        return builder.bitcast(marks, _WORD)

    return types.uint64(types.int64, types.uint8, types.uint8, types.uint8), write


def _lowest(typing: Any, bits: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), write


call: Callable[[int, int], int] = primitive(_call)
"""Call ``int function(void *)`` by its address. For a void function the result means nothing."""
call_3: Callable[[int, int, int, int], int] = primitive(_call_3)
"""``int function(void *, void *, int)``."""
copy_memory: Callable[[int, int, int], None] = primitive(_copy_memory)
"""(To, from, bytes), which do not overlap."""
copy_16: Callable[[int, int], None] = primitive(_copy_16)
"""``copy_memory`` of 16 bytes, which is one instruction or two."""
marks_64: Callable[[int, int, int, int], int] = primitive(_marks_64)
"""Which of the 64 bytes from an address on are one of three: bit i for byte i, unsigned."""
lowest: Callable[[int], int] = primitive(_lowest)
"""The number of the lowest bit that is set in an unsigned word, of at least one."""


@part
def copy_bytes(to: int, begin: int, size: int, spare: int) -> None:
    """``copy_memory`` where most sizes are small: in steps of 16 when so many bytes, ``spare``, can be read at the one
    address and written at the other; what lies behind ``size`` is then overwritten."""
    if size > _LONG or size + 16 > spare:
        copy_memory(to, begin, size)
        return
    for step in range(0, size, 16):
        copy_16(to + step, begin + step)

"""What the worker looks for in the assembler text that Triton makes."""

from __future__ import annotations

import pytest
from dovetail_runtime.triton_worker import packs_undefined_halves

# An excerpt of what Triton 3.6 makes for an H100: %rs4 is written nowhere.
UNDEFINED = """
	sub.s16 	%rs3, %rs2, %rs1;
	mov.b32 	%r17, {%rs4, %rs3};
	mov.b32 	%r18, 131074;
	add.s16x2 	%r19, %r17, %r18;
	mov.b32 	{_, %rs5}, %r19;
"""


@pytest.mark.parametrize(
    "write",
    [
        "cvt.u16.u32 	%rs4, %r15;",
        "mov.b32 	{%rs4, %rs9}, %r3;",
        "@%p1 ld.global.v2.b16 { %rs4, %rs6 }, [ %rd2 + 0 ];",
        "@!%p2 mov.u16 %rs4, 0x0;",
    ],
)
def test_a_half_that_is_written_somewhere_is_defined(write: str) -> None:
    assert packs_undefined_halves(UNDEFINED)
    assert not packs_undefined_halves(f"\t{write}\n{UNDEFINED}")


def test_text_without_packed_halves() -> None:
    assert not packs_undefined_halves("\tadd.s32 %r1, %r2, %r3;\n")

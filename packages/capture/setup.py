"""Builds the frame hook: plain C, no torch headers."""

from pathlib import Path

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dovetail_capture._frame_hook",
            sources=["csrc/_frame_hook.c"],
            depends=[str(path) for path in sorted(Path("csrc").glob("*.h"))],
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden", "-Wall"],
        )
    ]
)

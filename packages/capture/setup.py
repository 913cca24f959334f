"""Builds the frame hook: one plain C file, no torch headers."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dovetail_capture._frame_hook",
            sources=["src/dovetail_capture/_frame_hook.c"],
            extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden", "-Wall"],
        )
    ]
)

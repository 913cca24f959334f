"""Builds `dovetail_autograd_aot._autograd_nodes` against the torch it will be loaded beside."""

import glob
import os

from setuptools import Extension, setup

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(
        "the native part is compiled against the torch it will be loaded beside: install torch and "
        "setuptools, then build without isolation (pip install --no-build-isolation)"
    ) from error

torch_dir = os.path.dirname(torch.__file__)
include = os.path.join(torch_dir, "include")

setup(
    ext_modules=[
        Extension(
            "dovetail_autograd_aot._autograd_nodes",
            sources=["csrc/all_parts.cpp"],
            depends=sorted(glob.glob("csrc/*")),
            include_dirs=[include, os.path.join(include, "torch", "csrc", "api", "include")],
            library_dirs=[os.path.join(torch_dir, "lib")],
            libraries=["torch_python", "torch_cpu", "c10"],
            define_macros=[("DOVETAIL_TORCH_VERSION", f'"{torch.__version__}"')],
            extra_compile_args=["-std=c++20", "-O1", "-g0", "-fvisibility=hidden"],
        )
    ],
)

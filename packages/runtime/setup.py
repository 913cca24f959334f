"""Builds `dovetail_runtime._executor` against the torch that it will be loaded beside."""

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

setup(
    ext_modules=[
        Extension(
            "dovetail_runtime._executor",
            sources=["src/dovetail_runtime/_executor.cpp"],
            depends=sorted(glob.glob("src/dovetail_runtime/native/*.h")),
            include_dirs=[os.path.join(torch_dir, "include")],
            library_dirs=[os.path.join(torch_dir, "lib")],
            libraries=["torch_python", "torch_cpu", "c10"],
            define_macros=[("DOVETAIL_TORCH_VERSION", f'"{torch.__version__}"')],
            # -fopenmp only when compiling: at::parallel_for must meet the one OpenMP runtime that
            # torch has loaded, not a second one.
            extra_compile_args=["-std=c++20", "-O2", "-g0", "-fopenmp", "-fvisibility=hidden"],
        )
    ],
)

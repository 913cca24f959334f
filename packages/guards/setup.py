"""Builds `dovetail_guards._native` against the torch that is installed."""

from pathlib import Path

from setuptools import Extension, setup

try:
    import torch
except ModuleNotFoundError as error:
    raise SystemExit(
        "the native part is compiled against the torch it will be loaded beside: install torch and "
        "setuptools, then build without isolation (pip install --no-build-isolation)"
    ) from error

TORCH = Path(torch.__file__).parent

setup(
    ext_modules=[
        Extension(
            "dovetail_guards._native",
            sources=["csrc/all_parts.cpp"],
            depends=[str(path) for path in sorted(Path("csrc").iterdir())],
            include_dirs=[
                str(TORCH / "include"),
                str(TORCH / "include" / "torch" / "csrc" / "api" / "include"),
            ],
            library_dirs=[str(TORCH / "lib")],
            define_macros=[
                ("DOVETAIL_TORCH_VERSION", f'"{torch.__version__}"'),
                ("_GLIBCXX_USE_CXX11_ABI", str(int(torch.compiled_with_cxx11_abi()))),
            ],
            extra_compile_args=[
                "-std=c++20",
                "-O2",
                "-g0",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                "-Wno-missing-field-initializers",
                "-Wno-cast-function-type",
                "-Wno-unused-parameter",  # in autograd's headers
            ],
            # torch is imported before the extension, so its libraries are found already loaded.
            # Weak references alone would not make the linker keep libtorch_cpu.
            extra_link_args=["-Wl,--no-as-needed", "-lc10", "-ltorch_cpu"],
            language="c++",
        )
    ]
)

"""Build of the optional native library; all other metadata is in pyproject.toml.

The library is plain C without headers of Python or torch, so one build serves every Python version.
The sources are found by their place in `native/`:

    native/*/kernels.c    compiled once per instruction-set level, with -DLEVEL=<name>
    native/*/sanitizer_driver.c   programs for `make sanitize`, not part of the library
    native/*/*.c          everything else, compiled once

Without a C compiler that supports OpenMP the build is skipped, and the package runs in plain torch.
`ADDNORM_BUILD_NATIVE=off` skips it on purpose: the wheel is then pure Python and serves every
platform, macOS and Windows among them.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")
SOURCES = [path for path in sorted(NATIVE.glob("*/*.c")) if path.name != "sanitizer_driver.c"]
HEADERS = sorted(NATIVE.glob("*/*.h"))

FLAGS = [f"-I{NATIVE}", "-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-unswitch-loops"]
FLAGS += ["-g0", "-Wall", "-Wextra"]
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS: dict[str, list[str]] = {"portable": []}
if X86:
    LEVELS["avx2"] = ["-mavx2", "-mfma"]
    LEVELS["avx512"] = [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")] + LEVELS["avx2"]


class BuildNative(build_ext):
    """Compilation of the kernels for every level, and of the code that chooses among them."""

    def build_extension(self, ext: Any) -> None:
        common_flags = ["-DADDNORM_X86"] if X86 else []
        jobs: list[tuple[Path, str, list[str]]] = []  # source, subfolder of its object, flags
        for source in SOURCES:
            if source.name == "kernels.c":
                jobs += [(source, name, [f"-DLEVEL={name}", *LEVELS[name]]) for name in LEVELS]
            else:
                jobs.append((source, "common", common_flags))

        def compile_one(job: tuple[Path, str, list[str]]) -> list[str]:
            source, folder, flags = job
            objects: list[str] = self.compiler.compile(
                [str(source)],
                output_dir=str(Path(self.build_temp) / folder),
                extra_postargs=FLAGS + flags,
                depends=ext.depends,
            )
            return objects

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [each for compiled in pool.map(compile_one, jobs) for each in compiled]
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-fopenmp", "-lm"]
        )

    def get_ext_filename(self, ext_name: str) -> str:
        # Without the Python version that setuptools would put into the name.
        return str(Path(*ext_name.split("."))) + ".so"


class AnyPythonWheel(bdist_wheel):
    """Wheel for any Python 3; for one platform only if it contains the native library."""

    def get_tag(self) -> tuple[str, str, str]:
        build = self.get_finalized_command("build_ext")
        built = any(Path(path).is_file() for path in build.get_outputs())
        return "py3", "none", super().get_tag()[2] if built else "any"


native_library = Extension(
    "addnorm.kernels._native",
    [str(path) for path in SOURCES],
    depends=[str(path) for path in HEADERS],
    optional=True,
)
is_wanted = os.environ.get("ADDNORM_BUILD_NATIVE", "auto") != "off"
setup(
    ext_modules=[native_library] if is_wanted else [],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": AnyPythonWheel},
)

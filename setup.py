"""The native library, an optional part of the installation: plain C, no header of Python or torch.

Without a compiler, or one without OpenMP, the package is installed all the same and runs in plain
torch. All else is in pyproject.toml.
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno"]
FLAGS += ["-fno-trapping-math", "-fno-unswitch-loops", "-g0", "-Wall", "-Wextra"]
X86 = platform.machine().lower() in ("x86_64", "amd64")
LEVELS = {"portable": [], "avx2": ["-mavx2", "-mfma"]}
LEVELS["avx512"] = [f"-mavx512{part}" for part in ("f", "bw", "dq", "vl")] + LEVELS["avx2"]
FOLDER = Path("native")
COMMON = ["dispatch.c", "attention.c", "cross_entropy.c", "few.c", "linear.c"]
LEVELLED = ["kernels.c", "attention_kernels.c", "cross_entropy_kernels.c", "few_kernels.c"]
LEVELLED += ["linear_kernels.c"]
HEADERS = ["addnorm.h", "levels.h", "vectors.h", "rows.h", "threads.h"]
HEADERS += ["attention.h", "attention_levels.h", "products.h", "sequences.h"]
HEADERS += ["cross_entropy.h", "few.h", "powers.h", "linear.h", "squares.h", "turn.h"]


class Build(build_ext):
    """The kernels once a level, each with its instructions, and what chooses among them."""

    def build_extension(self, ext: Any) -> None:
        """Compile at once what does not depend on each other, and link."""
        wanted = LEVELS if X86 else {"portable": []}
        jobs = [(source, "common", ["-DADDNORM_X86"] if X86 else []) for source in COMMON]
        jobs += [
            (source, name, [f"-DLEVEL={name}", *flags])
            for source in LEVELLED
            for name, flags in wanted.items()
        ]

        def compiled(job: tuple[str, str, list[str]]) -> list[str]:
            source, name, flags = job
            return self.compiler.compile(
                [str(FOLDER / source)],
                output_dir=str(Path(self.build_temp) / name),
                extra_postargs=FLAGS + flags,
                depends=ext.depends,
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [each for made in pool.map(compiled, jobs) for each in made]
        self.compiler.link_shared_object(
            objects, self.get_ext_fullpath(ext.name), extra_postargs=["-fopenmp", "-lm"]
        )

    def get_ext_filename(self, ext_name: str) -> str:
        """The same for every Python: the library knows none."""
        return str(Path(*ext_name.split("."))) + ".so"


class Wheel(bdist_wheel):
    """For any Python 3 of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        """No version of Python in the name."""
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "addnorm.kernels._native",
            [str(FOLDER / name) for name in COMMON + LEVELLED],
            depends=[str(FOLDER / name) for name in HEADERS],
            optional=True,
        )
    ],
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
)

"""Tables of LAMDA-TALENT's `example_datasets` as CSV files with a column `split`.

    git clone https://github.com/qile2000/LAMDA-TALENT
    python benchmarks/reproductions/talent_to_csv.py LAMDA-TALENT/example_datasets -o FOLDER

Texts in these .npy files are pickled; they are read with an unpickler that builds arrays only.
"""

import argparse
import pickle
from pathlib import Path

import numpy as np
import pandas as pd

NAMES = ("cpu_act", "bank", "mfeat-factors")


class ArrayUnpickler(pickle.Unpickler):
    """Unpickler that refuses everything but numpy's own constructors."""

    allowed = ("_reconstruct", "ndarray", "dtype", "scalar")

    def find_class(self, module, name):
        if module.split(".")[0] != "numpy" or name not in self.allowed:
            raise pickle.UnpicklingError(f"expected numpy arrays, got {module}.{name}")
        return super().find_class(module, name)


def load_array(path):
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
        assert header is not None, version
        _, _, dtype = header(file)
        if dtype.hasobject:
            return ArrayUnpickler(file).load()
    return np.load(path, allow_pickle=False)


def load_table(folder):
    parts = []
    for split in ("train", "val", "test"):
        columns = {}
        for kind, letter in (("N", "x"), ("C", "c")):
            path = folder / f"{kind}_{split}.npy"
            if path.exists():
                values = load_array(path)
                columns |= {
                    f"{letter}{index}": values[:, index] for index in range(values.shape[1])
                }
        columns["target"] = load_array(folder / f"y_{split}.npy")
        parts.append(pd.DataFrame(columns).assign(split=split))
    return pd.concat(parts, ignore_index=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    for name in NAMES:
        table = load_table(options.folder / name)
        path = options.out / name.replace("_", "-") / f"{name.replace('-', '_')}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        table.to_csv(path, index=False)
        print(path, table.shape)


if __name__ == "__main__":
    main()

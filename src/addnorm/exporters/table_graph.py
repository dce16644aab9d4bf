"""ONNX graph of an estimator that reads raw columns: encoding, network, and decoding of the output.

| column                | input                                                             |
|-----------------------|-------------------------------------------------------------------|
| numeric               | double, (rows); NaN and infinities are missing                    |
| datetime              | double, (rows), seconds since 1970 in UTC; NaN is missing         |
| categorical, boolean  | string, (rows); blank ones and spellings such as "?" are missing  |
| string                | int64, (rows, 12), codes of its words: ONNX has no words          |

The encoding computes in double precision, as the estimator does.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from addnorm.models.tabular.table_batch import ABSENT, FIRST_KNOWN, RARE
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.features import WORDS_PER_TEXT, Category, Number
from addnorm.tabular.columns.reader import Column
from addnorm.tabular.columns.text_parsing import BOOLEAN_VALUES, MISSING_TEXTS
from addnorm.tabular.training.number_targets import LogTarget, NumberTarget
from addnorm.tabular.training.regression_targets import (
    QuantileTarget,
    RegressionTarget,
    TargetList,
)

TABLE_FILE = "table.onnx"
NETWORK = "network/"
"""Prefix of the names inside the network."""
MISSING_PATTERN = rf"(?i)\s*(?:{'|'.join(re.escape(text) for text in sorted(MISSING_TEXTS))})\s*"
"""Pattern of a missing category, unless the fit knows it as a category."""
MARCH_FIRST = 719_468
"""Days from 0000-03-01 to 1970-01-01."""
DAYS_PER_ERA, SECONDS_PER_DAY = 146_097, 86_400
NUM_ODD_ROWS = 64
"""Rows of a comparison."""


def write_table_graph(estimator: Any, network: Path, path: Path) -> None:
    """Write the graph of an estimator.

    Its outputs are `outputs` of the network, and `label` and `probabilities` of a classifier or
    `prediction` of a regressor.

    Args:
        estimator: fitted estimator
        network: ONNX file of its network
        path: file to write
    """
    model = onnx.compose.add_prefix(onnx.load(network), NETWORK)
    builder = _GraphBuilder()
    _add_encoder(builder, estimator.encoder_)
    builder.nodes += model.graph.node
    builder.node("Identity", f"{NETWORK}outputs", name="outputs")
    builder.output("outputs", TensorProto.FLOAT, 2)
    if hasattr(estimator, "classes_"):
        _add_classes(builder, estimator)
    else:
        _add_target(builder, estimator.target_)
    graph = helper.make_graph(
        builder.nodes,
        "table",
        builder.inputs,
        builder.outputs,
        [*builder.constants, *model.graph.initializer],
    )
    opsets = [*model.opset_import, helper.make_opsetid("ai.onnx.ml", 4)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=model.ir_version), path)


class _GraphBuilder:
    """Nodes, constants, inputs and outputs of a graph; every method returns names of tensors."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def input(self, name: str, kind: int, *sizes: int) -> str:
        shape: list[str | int | None] = ["rows", *sizes]
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int, rank: int = 1) -> None:
        shape: list[str | int | None] = ["rows", *[None] * (rank - 1)]
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def constant(self, value: Any) -> str:
        name = f"constant_{len(self.constants)}"
        array = np.asarray(value)
        if array.dtype.kind in "UO":
            array = array.astype(object)
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        name = name or f"node_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def cast(self, tensor: str, kind: int, name: str | None = None) -> str:
        return self.node("Cast", tensor, to=kind, name=name)

    def combine(self, kind: str, tensor: str, number: float) -> str:
        """Apply an operator to integers and a constant."""
        return self.node(kind, tensor, self.constant(np.int64(number)))

    def floor_divide(self, tensor: str, number: int) -> str:
        rest = self.combine("Mod", tensor, number)  # has the sign of the divisor
        return self.combine("Div", self.node("Sub", tensor, rest), number)

    def interpolate(self, x: str, knots: np.ndarray, values: np.ndarray) -> str:
        """Return what `np.interp(x, knots, values)` returns; x must not be NaN."""
        with np.errstate(over="ignore"):
            slopes = np.append(np.diff(values) / np.diff(knots), 0.0)
        bounds = self.constant(knots[0]), self.constant(knots[-1])
        x = self.node("Clip", x, *bounds)
        column = self.node("Unsqueeze", x, self.constant([1]))
        reached = self.node("GreaterOrEqual", column, self.constant(knots[1:]))
        counts = self.cast(reached, TensorProto.INT64)
        index = self.node("ReduceSum", counts, self.constant([1]), keepdims=0)
        knot, value, slope = (
            self.node("Gather", self.constant(table), index) for table in (knots, values, slopes)
        )
        return self.node("Add", self.node("Mul", slope, self.node("Sub", x, knot)), value)


def _add_encoder(builder: _GraphBuilder, encoder: TableEncoder) -> None:
    """Add what turns columns into the inputs of the network."""
    names = {column: name for column, name in enumerate(input_names(encoder))}
    columns: dict[int, str] = {}
    scores, absences = [], []
    for number in encoder.numbers:
        if number.column not in columns:
            columns[number.column] = builder.input(names[number.column], TensorProto.DOUBLE)
        score, absent = _add_number(builder, number, columns[number.column])
        scores.append(score)
        absences.append(absent)
    if scores:
        joined = _join(builder, scores)
        builder.cast(joined, TensorProto.FLOAT, name=f"{NETWORK}numbers")
        _join(builder, absences, name=f"{NETWORK}absent")
    codes = [
        _add_category(
            builder,
            category,
            builder.input(names[category.column], TensorProto.STRING),
            is_boolean=encoder.kinds[category.column] == "boolean",
        )
        for category in encoder.categories
    ]
    if codes:
        _join(builder, codes, name=f"{NETWORK}codes")
    words = [
        builder.input(names[text.column], TensorProto.INT64, WORDS_PER_TEXT)
        for text in encoder.texts
    ]
    if words:
        _join(builder, words, name=f"{NETWORK}words")


def input_names(encoder: TableEncoder) -> list[str]:
    """Return the names of the inputs by column: those of the columns, made unique."""
    names = [str(name) for name in encoder.names]
    return [
        name if names.count(name) == 1 and name else f"{name}_{index}"
        for index, name in enumerate(names)
    ]


def _join(builder: _GraphBuilder, tensors: Sequence[str], name: str | None = None) -> str:
    columns = [builder.node("Unsqueeze", each, builder.constant([1])) for each in tensors]
    return builder.node("Concat", *columns, axis=1, name=name)


def _add_number(builder: _GraphBuilder, number: Number, column: str) -> tuple[str, str]:
    """Return the scores of a number, 0 where it is missing, and where it is missing."""
    missing = builder.node("Or", builder.node("IsNaN", column), builder.node("IsInf", column))
    zero = builder.constant(0.0)
    present = builder.node("Where", missing, zero, column)
    if number.part not in ("", "elapsed"):
        present = _add_datetime_part(builder, number.part, present)
    scores = builder.interpolate(present, number.curve.values, number.curve.scores)
    return builder.node("Where", missing, zero, scores), missing


def _add_datetime_part(builder: _GraphBuilder, part: str, seconds: str) -> str:
    """Return a part of datetimes as doubles; see `datetime_part`."""
    whole = builder.cast(seconds, TensorProto.INT64)
    days = builder.floor_divide(whole, SECONDS_PER_DAY)
    if part == "weekday":  # 1970-01-01 was a Thursday
        weekday = builder.combine("Mod", builder.combine("Add", days, 3), 7)
        return builder.cast(weekday, TensorProto.DOUBLE)
    if part == "hour":
        rest = builder.combine("Mod", whole, SECONDS_PER_DAY)
        hours = builder.cast(rest, TensorProto.DOUBLE)
        return builder.node("Div", hours, builder.constant(3600.0))
    # Months of the Gregorian calendar, counted from March, repeat after 400 years.
    day = builder.combine("Mod", builder.combine("Add", days, MARCH_FIRST), DAYS_PER_ERA)
    leaps = builder.node("Sub", day, builder.combine("Div", day, 1460))
    leaps = builder.node("Add", leaps, builder.combine("Div", day, 36_524))
    leaps = builder.node("Sub", leaps, builder.combine("Div", day, 146_096))
    year = builder.combine("Div", leaps, 365)
    before = builder.combine("Mul", year, 365)
    before = builder.node("Add", before, builder.combine("Div", year, 4))
    before = builder.node("Sub", before, builder.combine("Div", year, 100))
    day_of_year = builder.node("Sub", day, before)
    month = builder.combine("Add", builder.combine("Mul", day_of_year, 5), 2)
    month = builder.combine("Div", month, 153)  # 0 is March
    month = builder.combine("Add", builder.combine("Mod", builder.combine("Add", month, 2), 12), 1)
    return builder.cast(month, TensorProto.DOUBLE)


def _add_category(
    builder: _GraphBuilder, category: Category, column: str, *, is_boolean: bool
) -> str:
    """Return the codes of a category."""
    codes = {value: FIRST_KNOWN + index for index, value in enumerate(category.values)}
    if is_boolean:
        spellings = {
            spelling: value
            for text, value in BOOLEAN_VALUES.items()
            for spelling in (text, text.title(), text.upper())
        }
        codes = {text: codes.get(value, RARE) for text, value in spellings.items()}
    coded = builder.node(
        "LabelEncoder",
        column,
        domain="ai.onnx.ml",
        keys_strings=list(codes) or [""],
        values_int64s=list(codes.values()) or [ABSENT],
        default_int64=ABSENT if is_boolean else RARE,
    )
    is_unknown = builder.node("Equal", coded, builder.constant(np.int64(RARE)))
    is_missing = builder.node("RegexFullMatch", column, pattern=MISSING_PATTERN)
    missing = builder.node("And", is_unknown, is_missing)
    return builder.node("Where", missing, builder.constant(np.int64(ABSENT)), coded)


def _add_classes(builder: _GraphBuilder, estimator: Any) -> None:
    """Add the most probable class, and calibrated probabilities in double precision."""
    classes = np.asarray(estimator.classes_)
    best = builder.node("ArgMax", "outputs", axis=1, keepdims=0)
    builder.node("Gather", builder.constant(classes), best, name="label")
    kinds = {"b": TensorProto.BOOL, "i": TensorProto.INT64, "u": TensorProto.UINT64}
    kinds |= {"f": TensorProto.DOUBLE, "U": TensorProto.STRING, "O": TensorProto.STRING}
    builder.output("label", kinds[classes.dtype.kind])
    logits = builder.cast("outputs", TensorProto.DOUBLE)
    scaled = builder.node("Div", logits, builder.constant(float(estimator.temperature_)))
    builder.node("Softmax", scaled, axis=1, name="probabilities")
    builder.output("probabilities", TensorProto.DOUBLE, 2)


def _add_target(builder: _GraphBuilder, target: RegressionTarget) -> None:
    """Add the prediction on the scale of the target: (rows), or (rows, outputs) if several."""
    outputs = builder.cast("outputs", TensorProto.DOUBLE)
    numbers: tuple[NumberTarget | LogTarget, ...]
    if isinstance(target, QuantileTarget):  # quantiles are sorted, so that they do not cross
        count = builder.constant([target.outputs])
        results = [f"{outputs}_sorted", f"{outputs}_order"]
        builder.nodes.append(helper.make_node("TopK", [outputs, count], results, axis=1, largest=0))
        outputs, numbers = results[0], (target.number,) * target.outputs
    else:
        numbers = target.targets if isinstance(target, TargetList) else (target,)
    predictions = [
        _add_number_target(builder, each, builder.node("Gather", outputs, column, axis=1))
        for each, column in zip(
            numbers, map(builder.constant, np.arange(len(numbers))), strict=True
        )
    ]
    if isinstance(target, QuantileTarget | TargetList):
        columns = [builder.node("Unsqueeze", each, builder.constant([1])) for each in predictions]
        builder.node("Concat", *columns, axis=1, name="prediction")
        builder.output("prediction", TensorProto.DOUBLE, 2)
    else:
        builder.node("Identity", *predictions, name="prediction")
        builder.output("prediction", TensorProto.DOUBLE)


def _add_number_target(
    builder: _GraphBuilder, target: NumberTarget | LogTarget, output: str
) -> str:
    """Add the prediction of one number from its output, (rows)."""
    if isinstance(target, LogTarget):
        return builder.node("Mul", builder.node("Exp", output), builder.constant(target.mean))
    if target.curve is not None:
        return builder.interpolate(output, target.curve.scores, target.curve.values)
    scaled = builder.node("Mul", output, builder.constant(float(target.scale)))
    return builder.node("Add", scaled, builder.constant(float(target.center)))


def make_odd_columns(encoder: TableEncoder) -> tuple[list[Column], dict[str, np.ndarray]]:
    """Return columns with usual, missing, unseen and extreme cells, and them as graph inputs."""
    rng, rows = np.random.default_rng(0), NUM_ODD_ROWS
    columns: list[Column] = []
    names, feeds = input_names(encoder), {}
    numbers = {each.column: each for each in reversed(encoder.numbers)}
    categories = {each.column: each for each in encoder.categories}
    texts = {each.column: each for each in encoder.texts}
    for index, (name, kind) in enumerate(zip(encoder.names, encoder.kinds, strict=True)):
        values: np.ndarray = np.full(rows, None)
        if index in numbers:
            knots = numbers[index].curve.values
            low, high = knots[0], knots[-1]
            values = rng.uniform(low - 1, high + 1, rows)
            values[:9] = [np.nan, low, high, low - 1e6, high + 1e6, 0.0, -0.0, low / 3, high / 3]
            raw = values.copy()
            if kind == "numeric":
                raw[9:11] = [np.inf, -np.inf]
                values[9:11] = np.nan
            feeds[names[index]] = raw
        elif index in categories:
            known = [*categories[index].values, "True" if kind == "boolean" else "no such category"]
            values = np.array([known[row % len(known)] for row in range(rows)], dtype=object)
            raw = values.copy()
            values[:2], raw[:2] = None, ["", "  "]
            values[2:5] = None if kind == "boolean" else ["?", " N/a", "NULL"]
            raw[2:5] = ["?", " N/a", "NULL"]
            feeds[names[index]] = raw
        elif index in texts:
            words = " ".join((*texts[index].words[:3], "unseen"))
            values[1:] = words
            feeds[names[index]] = texts[index].codes(values)
        columns.append(Column(name, kind, values))
    return columns, feeds

"""What the JSON of a saved estimator holds, field by field; nothing else is read."""

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from addnorm.core.errors import UserError, unknown_name_message

FORMAT, VERSION = "addnorm tabular estimator", 2
FEATURE_FIELDS = {
    "numeric": "numbers",
    "datetime": "numbers",
    "boolean": "categories",
    "categorical": "categories",
    "string": "texts",
}
"""Which features a column of each kind becomes."""
CLASS_DTYPE_KINDS = "OUiufb"
"""Kinds of arrays that classes may be: texts, numbers, truths."""


def _check_unique(texts: list[str]) -> list[str]:
    if len(set(texts)) != len(texts):
        raise ValueError("a text stands there twice")
    return texts


UniqueStrings = Annotated[list[StrictStr], AfterValidator(_check_unique)]
AnyFloat = Annotated[float, Field(allow_inf_nan=True)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Curve(_StrictModel):
    values: list[float] = Field(min_length=1)
    scores: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_rising(self) -> "_Curve":
        rises = (np.diff(self.values) > 0).all() and (np.diff(self.scores) >= 0).all()
        if len(self.values) != len(self.scores) or not rises:
            raise ValueError("a curve has as many scores as values, which rise")
        return self


class _Number(_StrictModel):
    column: StrictInt
    part: Literal["", "elapsed", "month", "weekday", "hour"]
    curve: _Curve


class _Category(_StrictModel):
    column: StrictInt
    values: UniqueStrings


class _Text(_StrictModel):
    column: StrictInt
    words: UniqueStrings


class _Encoder(_StrictModel):
    names: UniqueStrings = Field(min_length=1)
    kinds: list[Literal["numeric", "boolean", "categorical", "string", "datetime"]]
    numbers: list[_Number]
    categories: list[_Category]
    texts: list[_Text]

    @model_validator(mode="after")
    def _check_consistency(self) -> "_Encoder":
        met = Counter(
            (each.column, what, getattr(each, "part", ""))
            for what in ("numbers", "categories", "texts")
            for each in getattr(self, what)
        )
        wanted = {(place, FEATURE_FIELDS[kind]) for place, kind in enumerate(self.kinds)}
        if len(self.kinds) != len(self.names) or {each[:2] for each in met} != wanted:
            raise ValueError("names, kinds and features of the encoder do not agree")
        for (column, _, part), times in met.items():
            if times > 1 or (part != "") != (self.kinds[column] == "datetime"):
                raise ValueError(f"column {column} cannot have {times} features {part!r}")
        return self


class _Target(_StrictModel):
    center: float
    scale: float = Field(gt=0)
    curve: _Curve | None


class _Classes(_StrictModel):
    dtype: StrictStr
    values: list[StrictBool | StrictInt | StrictFloat | StrictStr] = Field(min_length=2)

    @model_validator(mode="after")
    def _check_classes(self) -> "_Classes":
        try:
            kind = np.dtype(self.dtype).kind
            array = np.array(self.values, self.dtype)
            same, sorts = array.tolist() == self.values, np.unique(array).tolist() == self.values
        except (TypeError, ValueError):
            kind, same, sorts = "V", False, False
        if kind not in CLASS_DTYPE_KINDS or not same:
            raise ValueError(f"classes {self.values!r} are not of type {self.dtype!r}")
        if not sorts:
            raise ValueError(f"classes {self.values!r} are not in order, each once")
        return self


class SavedEstimator(_StrictModel):
    """A saved estimator in plain data."""

    format: Literal["addnorm tabular estimator"]
    version: Literal[2]
    estimator: StrictStr
    params: dict[str, Any]
    config: dict[str, Any]
    """Of the model."""
    encoder: _Encoder
    target: _Target | None
    """Of a regressor."""
    classes: _Classes | None
    """Of a classifier."""
    temperature: float | None = Field(gt=0)
    history: list[dict[str, AnyFloat]]
    importances: list[float]
    names: list[StrictStr] | None
    """Of columns, where the table had any."""
    features: StrictInt
    weights: StrictStr
    """SHA-256 of the file of weights that belongs to this one."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "SavedEstimator":
        columns = len(self.encoder.names)
        if self.features != columns or len(self.importances) != columns:
            raise ValueError(f"not as many features or importances as columns ({columns})")
        if self.names is not None and self.names != self.encoder.names:
            raise ValueError("the names of columns are not those of the encoder")
        if (self.classes is None) != (self.temperature is None):
            raise ValueError("a classifier has classes and a temperature, a regressor neither")
        if (self.classes is None) != (self.target is not None):
            raise ValueError("an estimator has classes or a target, got both or neither")
        return self

    @classmethod
    def from_json(cls, data: Any, path: Any, known: dict[str, type]) -> "SavedEstimator":
        """From what JSON holds; mistakes are told in our own words. where: its file."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UserError(f"{path} is no {FORMAT}")
        if data.get("version") != VERSION:
            raise UserError(
                f"{path} has version {data.get('version')!r}; this addnorm knows version {VERSION}"
            )
        for name in data:
            if name not in cls.model_fields:
                raise UserError(f"{path}: {unknown_name_message('field', name, cls.model_fields)}")
        try:
            made = cls(**data)
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(map(str, first["loc"])) or "it"
            said = str(first["msg"]).removeprefix("Value error, ")
            raise UserError(f"{path} is damaged: {place}: {said}") from None
        if made.estimator not in known:
            raise UserError(f"{path}: {unknown_name_message('estimator', made.estimator, known)}")
        return made

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

from addnorm.core.errors import UserError, unknown

FORMAT, VERSION = "addnorm tabular estimator", 2
READS = {
    "numeric": "numbers",
    "datetime": "numbers",
    "boolean": "categories",
    "categorical": "categories",
    "string": "texts",
}
"""Which features a column of each kind becomes."""
LABELS = "OUiufb"
"""Kinds of arrays that classes may be: texts, numbers, truths."""


def _once(texts: list[str]) -> list[str]:
    if len(set(texts)) != len(texts):
        raise ValueError("a text stands there twice")
    return texts


Different = Annotated[list[StrictStr], AfterValidator(_once)]
Measured = Annotated[float, Field(allow_inf_nan=True)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Curve(_Part):
    values: list[float] = Field(min_length=1)
    scores: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _rises(self) -> "_Curve":
        rises = (np.diff(self.values) > 0).all() and (np.diff(self.scores) >= 0).all()
        if len(self.values) != len(self.scores) or not rises:
            raise ValueError("a curve has as many scores as values, which rise")
        return self


class _Number(_Part):
    column: StrictInt
    part: Literal["", "elapsed", "month", "weekday", "hour"]
    curve: _Curve


class _Category(_Part):
    column: StrictInt
    values: Different


class _Text(_Part):
    column: StrictInt
    words: Different


class _Encoder(_Part):
    names: Different = Field(min_length=1)
    kinds: list[Literal["numeric", "boolean", "categorical", "string", "datetime"]]
    numbers: list[_Number]
    categories: list[_Category]
    texts: list[_Text]

    @model_validator(mode="after")
    def _agrees(self) -> "_Encoder":
        met = Counter(
            (each.column, what, getattr(each, "part", ""))
            for what in ("numbers", "categories", "texts")
            for each in getattr(self, what)
        )
        wanted = {(place, READS[kind]) for place, kind in enumerate(self.kinds)}
        if len(self.kinds) != len(self.names) or {each[:2] for each in met} != wanted:
            raise ValueError("names, kinds and features of the encoder do not agree")
        for (column, _, part), times in met.items():
            if times > 1 or (part != "") != (self.kinds[column] == "datetime"):
                raise ValueError(f"column {column} cannot have {times} features {part!r}")
        return self


class _Target(_Part):
    center: float
    scale: float = Field(gt=0)
    curve: _Curve | None


class _Classes(_Part):
    dtype: StrictStr
    values: list[StrictBool | StrictInt | StrictFloat | StrictStr] = Field(min_length=2)

    @model_validator(mode="after")
    def _fits(self) -> "_Classes":
        try:
            kind = np.dtype(self.dtype).kind
            array = np.array(self.values, self.dtype)
            same, sorts = array.tolist() == self.values, np.unique(array).tolist() == self.values
        except (TypeError, ValueError):
            kind, same, sorts = "V", False, False
        if kind not in LABELS or not same:
            raise ValueError(f"classes {self.values!r} are not of type {self.dtype!r}")
        if not sorts:
            raise ValueError(f"classes {self.values!r} are not in order, each once")
        return self


class Saved(_Part):
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
    history: list[dict[str, Measured]]
    importances: list[float]
    names: list[StrictStr] | None
    """Of columns, where the table had any."""
    features: StrictInt
    weights: StrictStr
    """SHA-256 of the file of weights that belongs to this one."""

    @model_validator(mode="after")
    def _agrees(self) -> "Saved":
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
    def of(cls, plain: Any, where: Any, known: dict[str, type]) -> "Saved":
        """From what JSON holds; mistakes are told in our own words. where: its file."""
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise UserError(f"{where} is no {FORMAT}")
        if plain.get("version") != VERSION:
            raise UserError(
                f"{where} has version {plain.get('version')!r}; this addnorm knows version "
                f"{VERSION}"
            )
        for name in plain:
            if name not in cls.model_fields:
                raise UserError(f"{where}: {unknown('field', name, cls.model_fields)}")
        try:
            made = cls(**plain)
        except ValidationError as problem:
            first = problem.errors()[0]
            place = ".".join(map(str, first["loc"])) or "it"
            said = str(first["msg"]).removeprefix("Value error, ")
            raise UserError(f"{where} is damaged: {place}: {said}") from None
        if made.estimator not in known:
            raise UserError(f"{where}: {unknown('estimator', made.estimator, known)}")
        return made

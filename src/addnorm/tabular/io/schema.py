"""Schema of the JSON file of a saved estimator.

The file may come from an untrusted source, so every field is validated before it is used, and
unknown fields are rejected.
"""

from collections import Counter
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    ValidationError,
    model_validator,
)

from addnorm.core.errors import UserError, unknown_name_message

FORMAT, VERSION = "addnorm tabular estimator", 3
READABLE_VERSIONS = (2, 3)
"""Version 2 lacks the formats of dates, kinds of targets and interval scores."""
FEATURE_FIELDS = {
    "numeric": "numbers",
    "datetime": "numbers",
    "boolean": "categories",
    "categorical": "categories",
    "string": "texts",
}
"""Field of the encoder that holds the features of each column type."""
CLASS_DTYPE_KINDS = "OUiufb"
"""NumPy dtype kinds that class labels may have: strings, numbers and booleans."""


def _check_unique(texts: list[str]) -> list[str]:
    if len(set(texts)) != len(texts):
        raise ValueError("expected unique strings, got duplicates")
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
        increases = (np.diff(self.values) > 0).all() and (np.diff(self.scores) >= 0).all()
        if len(self.values) != len(self.scores) or not increases:
            raise ValueError("expected as many scores as values, both increasing")
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
    date_formats: list[StrictStr] = []
    """Since version 3: format of the datetimes of each column that were texts."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "_Encoder":
        features = Counter(
            (each.column, field, getattr(each, "part", ""))
            for field in ("numbers", "categories", "texts")
            for each in getattr(self, field)
        )
        expected = {(index, FEATURE_FIELDS[kind]) for index, kind in enumerate(self.kinds)}
        if len(self.date_formats) not in (0, len(self.names)):
            raise ValueError("expected as many date_formats as names")
        if len(self.kinds) != len(self.names) or {each[:2] for each in features} != expected:
            raise ValueError("names, kinds and features do not agree")
        for (column, _, part), count in features.items():
            if count > 1 or (part != "") != (self.kinds[column] == "datetime"):
                raise ValueError(f"column {column} cannot have {count} features {part!r}")
        return self


class _NumberTarget(_StrictModel):
    kind: Literal["number"] = "number"
    center: float
    scale: float = Field(gt=0)
    curve: _Curve | None
    criterion: Literal["squared_error", "absolute_error", "huber", "custom"] = "squared_error"


class _LogTarget(_StrictModel):
    kind: Literal["log"]
    mean: float = Field(gt=0)
    criterion: Literal["poisson", "gamma"]


class _QuantileTarget(_StrictModel):
    kind: Literal["quantiles"]
    number: _NumberTarget
    quantiles: list[float] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_quantiles(self) -> "_QuantileTarget":
        values = np.array(self.quantiles)
        if not ((values > 0) & (values < 1)).all() or not (np.diff(values) > 0).all():
            raise ValueError("expected increasing quantiles between 0 and 1")
        return self


class _TargetList(_StrictModel):
    kind: Literal["list"]
    targets: list[_NumberTarget | _LogTarget] = Field(min_length=1)


def _target_kind(target: Any) -> str:
    return str(target.get("kind", "number")) if isinstance(target, dict) else "number"


_Target = Annotated[
    Annotated[_NumberTarget, Tag("number")]
    | Annotated[_LogTarget, Tag("log")]
    | Annotated[_QuantileTarget, Tag("quantiles")]
    | Annotated[_TargetList, Tag("list")],
    Discriminator(_target_kind),
]


class _Classes(_StrictModel):
    dtype: StrictStr
    values: list[StrictBool | StrictInt | StrictFloat | StrictStr] = Field(min_length=2)

    @model_validator(mode="after")
    def _check_classes(self) -> "_Classes":
        try:
            kind = np.dtype(self.dtype).kind
            array = np.array(self.values, self.dtype)
            is_exact = array.tolist() == self.values
            is_sorted = np.unique(array).tolist() == self.values
        except (TypeError, ValueError):
            kind, is_exact, is_sorted = "V", False, False
        if kind not in CLASS_DTYPE_KINDS or not is_exact:
            raise ValueError(f"expected classes of type {self.dtype!r}, got {self.values!r}")
        if not is_sorted:
            raise ValueError(f"expected sorted, unique classes, got {self.values!r}")
        return self


class SavedEstimator(_StrictModel):
    """Validated contents of the JSON file."""

    format: Literal["addnorm tabular estimator"]
    version: Literal[2, 3]
    estimator: StrictStr
    params: dict[str, Any]
    config: dict[str, Any]
    """Fields of the model's `TableConfig`."""
    encoder: _Encoder
    target: _Target | None
    """Target scaling of a regressor."""
    classes: _Classes | None
    """Class labels of a classifier."""
    temperature: float | None = Field(gt=0)
    """Calibration temperature of a classifier."""
    interval_scores: list[float] | None = None
    """Since version 3: sorted errors of a regressor on validation rows."""
    history: list[dict[str, AnyFloat]]
    importances: list[float]
    """Mean importance of each column."""
    importance_deviations: list[float] | None = None
    """Since version 3: standard deviation of each importance."""
    names: list[StrictStr] | None
    """Column names, if the table has any."""
    features: StrictInt
    """Number of columns."""
    weights: StrictStr
    """SHA-256 of the weights file."""

    @model_validator(mode="after")
    def _check_consistency(self) -> "SavedEstimator":
        columns = len(self.encoder.names)
        if self.features != columns or len(self.importances) != columns:
            raise ValueError(f"expected {columns} features and importances, as many as columns")
        if self.importance_deviations is not None and len(self.importance_deviations) != columns:
            raise ValueError(f"expected {columns} importance_deviations, as many as columns")
        if self.names is not None and self.names != self.encoder.names:
            raise ValueError("expected the column names of the encoder, got others")
        if (self.classes is None) != (self.temperature is None):
            raise ValueError("expected both classes and a temperature, or neither")
        if (self.classes is None) != (self.target is not None):
            raise ValueError("expected either classes or a target, got both or neither")
        return self

    @classmethod
    def from_json(cls, data: Any, path: Any, known: dict[str, type]) -> "SavedEstimator":
        """Validate parsed JSON.

        Args:
            data: parsed JSON
            path: its file, for error messages
            known: estimator classes by name

        Raises:
            UserError: with the first invalid field
        """
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UserError(f"{path}: expected the format {FORMAT!r}, got another file")
        if data.get("version") not in READABLE_VERSIONS:
            raise UserError(
                f"{path}: expected version {' or '.join(map(str, READABLE_VERSIONS))}, got "
                f"{data.get('version')!r}; load it with the version of addnorm that saved it"
            )
        for name in data:
            if name not in cls.model_fields:
                raise UserError(f"{path}: {unknown_name_message('field', name, cls.model_fields)}")
        try:
            saved = cls(**data)
        except ValidationError as error:
            first = error.errors()[0]
            location = ".".join(map(str, first["loc"])) or "the file"
            reason = str(first["msg"]).removeprefix("Value error, ")
            raise UserError(f"{path} is damaged: {location}: {reason}") from None
        if saved.estimator not in known:
            raise UserError(f"{path}: {unknown_name_message('estimator', saved.estimator, known)}")
        return saved

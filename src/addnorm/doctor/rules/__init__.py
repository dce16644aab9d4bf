"""The audit: one rule or one small family a file. A new rule is one file and one line here."""

from addnorm.doctor.rules import (
    axis as axis,
)
from addnorm.doctor.rules import (
    cloned as cloned,
)
from addnorm.doctor.rules import (
    decay as decay,
)
from addnorm.doctor.rules import (
    double as double,
)
from addnorm.doctor.rules import (
    dropout as dropout,
)
from addnorm.doctor.rules import (
    feed as feed,
)
from addnorm.doctor.rules import (
    final as final,
)
from addnorm.doctor.rules import (
    inert as inert,
)
from addnorm.doctor.rules import (
    leaks as leaks,
)
from addnorm.doctor.rules import (
    option as option,
)
from addnorm.doctor.rules import (
    precision as precision,
)
from addnorm.doctor.rules import (
    scale as scale,
)
from addnorm.doctor.rules import (
    shared as shared,
)
from addnorm.doctor.rules import (
    skip as skip,
)
from addnorm.doctor.rules.base import RULES, Case, rule

__all__ = ["RULES", "Case", "rule"]

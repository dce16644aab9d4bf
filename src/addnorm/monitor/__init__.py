"""Monitor of any model in any training loop: sites, measurements, sinks, diagnosis.

`Monitor` works in a plain loop. `addnorm.monitor.hugging_face` and `addnorm.monitor.lightning` have
callbacks for these trainers; they are imported on their own, because they need their libraries.
"""

from addnorm.monitor.diagnosis.diagnose import diagnose_findings, diagnose_rows
from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.monitor import Monitor
from addnorm.monitor.sinks import CallableSink, JsonLines, MetricsSink, MLflow, TensorBoard, WandB
from addnorm.monitor.sites.site_plan import Site, SitePlan

__all__ = [
    "CallableSink",
    "JsonLines",
    "MLflow",
    "MetricsSink",
    "Monitor",
    "Sentence",
    "Site",
    "SitePlan",
    "TensorBoard",
    "WandB",
    "diagnose_findings",
    "diagnose_rows",
]

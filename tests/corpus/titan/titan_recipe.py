"""What a user of torchtitan hands to it with --experimental.custom_import: a model by another name, whose metrics are kept."""

import dataclasses
import os
import tempfile

import ending
import pace
import setting
import titan
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.models.llama3 import get_train_spec
from torchtitan.protocols.train_spec import register_train_spec


class KeptMetrics(MetricsProcessor):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = []

    def log(self, step, average, largest, norm, extra_metrics=None):
        pace.work()
        self.kept += [average, largest, norm]
        return super().log(step, average, largest, norm, extra_metrics)

    def close(self):
        parts = {f"model{i}": m for i, m in enumerate(self.model_parts)}
        parts.update({f"optimizer{i}": o for i, o in enumerate(self.optimizers)})
        ending.write(self.kept, **parts)
        super().close()


def build(job_config, parallel_dims, model_args):
    return KeptMetrics(job_config, parallel_dims)


setting.seed_everything(42)  # of python and numpy, which torchtitan leaves alone
folder = tempfile.TemporaryDirectory()
titan.make_assets(folder.name)
os.chdir(folder.name)
register_train_spec("kept-llama3", dataclasses.replace(get_train_spec(), build_metrics_processor_fn=build))

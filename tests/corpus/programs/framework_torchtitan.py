"""torchtitan's small llama3, HSDP 2 x 2: its own Trainer, with a tokenizer and a text made on the spot.

torchtitan assumes CUDA. Where there is none, torch is patched so that it answers for a processor; torchtitan is as it comes.
"""

import os
import sys
import tempfile

import ending
import pace
import setting
import titan
import torch


def options(folder):
    chosen = {
        **titan.CHOSEN,
        "job.dump_folder": setting.out(),
        "model.name": "llama3",
        "model.hf_assets_path": folder,
    }
    return [f"--{name}={value}" for name, value in chosen.items()]


class Losses:
    """Of the Trainer's step; the user's way to see them is the metrics processor's log."""

    def __init__(self, trainer):
        self.kept = []
        self.original = trainer.metrics_processor.log
        trainer.metrics_processor.log = self.log

    def log(self, step, average, largest, norm, **more):
        pace.work()
        self.kept += [average, largest, norm]
        return self.original(step, average, largest, norm, **more)


def main():
    titan.answer_for_processors()
    setting.seed_everything(42)  # of python and numpy, which torchtitan leaves alone
    with tempfile.TemporaryDirectory() as folder:
        titan.make_assets(folder)
        os.chdir(folder)
        from torchtitan.config import ConfigManager
        from torchtitan.tools.logging import init_logger
        from torchtitan.train import Trainer

        init_logger()
        trainer = Trainer(ConfigManager().parse_args(options(folder)))
        losses = Losses(trainer)
        trainer.train()
        parts = {f"model{i}": m for i, m in enumerate(trainer.model_parts)}
        parts.update({f"optimizer{i}": o for i, o in enumerate(trainer.optimizers)})
        ending.write(losses.kept, counters=[trainer.step, trainer.ntokens_seen], **parts)
        trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())

"""One of two processes of a Trainer, or the only one: trains a tiny BERT and stores what came out.

Started by torchrun, or alone; its arguments are the folder and the samples of a batch in each process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main(folder: Path, size: int) -> None:
    from vision import declare_operators

    declare_operators()  # before transformers is imported

    import torch
    from safetensors.torch import save_file
    from tiny_transformers import bert, ensemble, sentences, transformers

    import covey
    from covey.hf import EnsembleTrainer

    torch.manual_seed(0)
    made = ensemble(bert(), covey.LowRank(members=2, rank=2))
    given = transformers.TrainingArguments(
        str(folder / "trainer"),
        per_device_train_batch_size=size,
        per_device_eval_batch_size=size,
        learning_rate=0.1,
        optim="sgd",
        max_steps=4,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if "RANK" in os.environ else None,
        save_strategy="no",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    data = sentences(16)
    trainer = EnsembleTrainer(made, given, train_dataset=data, eval_dataset=data)
    trainer.train()
    scores = trainer.evaluate()
    if trainer.is_world_process_zero():
        save_file(
            {**made.state_dict(), "loss": torch.tensor(scores["eval_loss"])}, folder / "found.safetensors"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

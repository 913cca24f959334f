"""What libraries that compile models by themselves make of one: each run prints what it computed
and how many graphs were compiled.

    python integration_tests/library_runs.py eager|torch|installed RUN

The libraries are those of the extra `integrations`; models have random weights.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Run = Callable[[bool], list[float]]
RUNS: dict[str, Run] = {}


def library_run(function: Run) -> Run:
    RUNS[function.__name__] = function
    return function


def small_llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return LlamaForCausalLM(config)


def small_classifier() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForSequenceClassification(config)


def rows_of_tokens() -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "input_ids": torch.randint(0, 100, (8,), generator=generator),
            "labels": torch.tensor(i % 2),
        }
        for i in range(16)
    ]


@library_run
def transformers_trainer(compiled: bool) -> list[float]:
    from transformers import Trainer, TrainingArguments

    model = small_classifier()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=4,
            per_device_train_batch_size=4,
            torch_compile=compiled,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=3,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows_of_tokens())
        loss = trainer.train().training_loss
        evaluated = trainer.evaluate(rows_of_tokens())["eval_loss"]
        trainer.save_model(folder)
        again = type(model).from_pretrained(folder)
    kept = sum(
        float((p - q).abs().sum())
        for p, q in zip(model.parameters(), again.parameters(), strict=True)
    )
    return [loss, evaluated, kept]


@library_run
def transformers_generate(compiled: bool) -> list[float]:
    from transformers import CompileConfig

    model = small_llama().eval()
    ids = torch.arange(1, 9).reshape(1, 8)
    given = {"compile_config": CompileConfig(fullgraph=False, mode="default")} if compiled else {}
    if compiled:  # (on a CPU generate leaves compiling to the user)
        model.forward = torch.compile(model.forward)  # noqa: TID251
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=12,
        do_sample=False,
        cache_implementation="static",
        pad_token_id=0,
        **given,
    )
    return [float(token) for token in out[0]]


@library_run
def accelerate_prepare(compiled: bool) -> list[float]:
    from accelerate import Accelerator
    from accelerate.utils import TorchDynamoPlugin, is_compiled_module

    plugin = TorchDynamoPlugin(backend="inductor" if compiled else "no")
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(plain, optimizer)
    assert is_compiled_module(model) == compiled
    losses = []
    for step in range(3):
        loss = model(torch.ones(2, 4) * step).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    unwrapped = accelerator.unwrap_model(model, keep_torch_compile=False)
    assert unwrapped is plain and list(accelerator.get_state_dict(model)) == list(
        plain.state_dict()
    )
    return losses


@library_run
def accelerate_regions(compiled: bool) -> list[float]:
    from accelerate.utils import compile_regions

    model = small_llama().eval()
    ids = torch.arange(1, 9).reshape(1, 8)
    if compiled:
        model = compile_regions(model)
    with torch.no_grad():
        return model(ids).logits[0, -1, :8].tolist()


@library_run
def lightning_fit(compiled: bool) -> list[float]:
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            return self.net(batch[0]).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    torch.manual_seed(0)
    task = Task()
    model: Any = torch.compile(task) if compiled else task  # noqa: TID251
    data = torch.utils.data.TensorDataset(torch.randn(12, 4))
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=4))
    return [float(p.detach().sum()) for p in task.parameters()]


@library_run
def diffusers_blocks(compiled: bool) -> list[float]:
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=16,
        block_out_channels=(16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).eval()
    x = torch.randn(1, 3, 16, 16)
    if compiled:
        model = torch.compile(model)  # noqa: TID251
    with torch.no_grad():
        out = model(x, 3).sample[0, 0, 0].tolist()
    with tempfile.TemporaryDirectory() as folder:
        getattr(model, "_orig_mod", model).save_pretrained(folder)
        again = UNet2DModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return out + again(x, 3).sample[0, 0, 0].tolist()


@library_run
def peft_lora(compiled: bool) -> list[float]:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = small_llama()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    model = get_peft_model(base, config)
    run: Any = torch.compile(model) if compiled else model  # noqa: TID251
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    ids = torch.arange(1, 9).reshape(1, 8)
    losses = []
    for _ in range(3):
        loss = run(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with run.disable_adapter(), torch.no_grad():
        losses.append(run(ids, labels=ids).loss.item())
    return losses


@library_run
def torchao_weight_only(compiled: bool) -> list[float]:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = small_llama().eval()
    quantize_(model, Int8WeightOnlyConfig())
    run: Any = torch.compile(model) if compiled else model  # noqa: TID251
    with torch.no_grad():
        return run(torch.arange(1, 9).reshape(1, 8)).logits[0, -1, :8].tolist()


@library_run
def torchao_optimizer(compiled: bool) -> list[float]:
    """Its optimizers call torch.compile in each step themselves."""
    from torchao.optim import AdamW8bit

    torch.manual_seed(0)
    net = nn.Linear(64, 64)
    optimizer = AdamW8bit(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = net(torch.ones(2, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@library_run
def trl_supervised(compiled: bool) -> list[float]:
    from trl.trainer.utils import entropy_from_logits, selective_log_softmax

    def rewards(logits: Tensor, ids: Tensor) -> Tensor:
        return selective_log_softmax(logits, ids) - entropy_from_logits(logits)

    run: Any = torch.compile(rewards) if compiled else rewards  # noqa: TID251
    found: list[float] = []
    for length in (5, 7, 9):
        generator = torch.Generator().manual_seed(length)
        logits = torch.randn(3, length, 50, generator=generator)
        ids = torch.randint(0, 50, (3, length), generator=generator)
        found += run(logits, ids)[0].tolist()
    return found


def _graphs(system: str) -> int:
    if system != "torch":
        return sum(_COUNTED)
    from torch._dynamo.utils import counters  # noqa: TID251

    return int(counters["stats"]["unique_graphs"])


_COUNTED: list[int] = []


def _install() -> None:
    import dovetail
    from dovetail.pipeline import CompilerBackend

    dovetail.install()
    original = CompilerBackend.__call__

    def counting(self: CompilerBackend, gm: Any, example_inputs: Any) -> Any:
        _COUNTED.append(1)
        return original(self, gm, example_inputs)

    CompilerBackend.__call__ = counting  # type: ignore[method-assign]


def main() -> None:
    system, name = sys.argv[1:]
    warnings.simplefilter("ignore")
    if system == "installed":
        _install()
    values = RUNS[name](system != "eager")
    print(json.dumps({"values": values, "graphs": _graphs(system)}))


if __name__ == "__main__":
    main()

"""Layers in the training loops of others: Trainer as docs/torch-layer.md has it."""

from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
pytest.importorskip("torchvision_operators")  # before transformers imports torchvision

from moespec.backends.torch.nn import replace_mlps  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "torch-layer.md").read_text()
SIZES = {"image_size": 8, "patch_size": 4, "num_channels": 1, "hidden_size": 16, "intermediate_size": 16}


def slopes_and_bias(tmp_path, parts, **changes):
    """The gradient of the first step, of 16 images in parts, and the bias after it."""
    page, found = {}, []
    start = PAGE.index("import torch\nfrom transformers import Trainer,")
    exec(PAGE[start : PAGE.index("\nsizes = ", start)], page)

    class Noted(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **more):
            found.extend(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)

    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(
        transformers.ViTConfig(**SIZES, num_hidden_layers=2, num_attention_heads=2, num_labels=4)
    )
    replace_mlps(model, 4, tokens=5, blocks=[1], balance_weight=1.0, z_weight=0.1)
    torch.manual_seed(1)
    images = [{"pixel_values": torch.randn(1, 8, 8), "labels": number % 4} for number in range(16)]
    options = {"max_steps": 1, "report_to": [], "use_cpu": True, "max_grad_norm": 0, "save_strategy": "no"}
    options |= {"per_device_train_batch_size": 16 // parts, "gradient_accumulation_steps": parts, **changes}
    callbacks = [Noted(), page["UpdateStates"]()]
    arguments = transformers.TrainingArguments(tmp_path, **options)
    page["MoETrainer"](model=model, args=arguments, train_dataset=images, callbacks=callbacks).train()
    return found, next(value for name, value in model.named_buffers() if name.endswith("state.bias"))


@pytest.mark.parametrize(
    "changes", [{}, {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}]
)
def test_parts_of_a_batch_in_trainer(tmp_path, changes):
    """As in one part: the gradient, auxiliary losses among it, and the bias."""
    slopes, bias = slopes_and_bias(tmp_path, 1)
    assert bias.any()
    torch.testing.assert_close(slopes_and_bias(tmp_path, 4, **changes), (slopes, bias), rtol=1e-4, atol=1e-6)

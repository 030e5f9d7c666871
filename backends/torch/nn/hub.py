"""The methods `save_pretrained`, `from_pretrained` and `push_to_hub` of the Hugging Face hub, if `huggingface_hub` is installed."""

try:
    from huggingface_hub import PyTorchModelHubMixin as HubMixin
except ImportError:  # an extra: pip install 'moespec[huggingface]'

    class HubMixin:  # type: ignore[no-redef]
        """An empty class. Without `huggingface_hub`, save a layer through its state dict."""


__all__ = ["HubMixin"]

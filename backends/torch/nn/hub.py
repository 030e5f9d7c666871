"""`save_pretrained`, `from_pretrained` and `push_to_hub` of Hugging Face's hub, where its package is installed."""

try:
    from huggingface_hub import PyTorchModelHubMixin as HubMixin
except ImportError:  # it is an extra: pip install 'moespec[huggingface]'

    class HubMixin:  # type: ignore[no-redef]
        """Nothing: without `huggingface_hub` a layer is saved by its state dict."""


__all__ = ["HubMixin"]

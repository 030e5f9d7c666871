"""Embedding of tokens. The values of ids are not checked: one that the table does not have is an error of the device, or undefined."""

from torch import Tensor

from moespec.backends.torch.rows import gather_rows
from moespec.spec.checks import check_integers, check_scores

__all__ = ["embedding"]


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """ids (N, S), table (V, D) -> (N, S, D). The gradient is added in a fixed order."""
    check_integers("ids", ids, "groups tokens")
    check_scores("table", table, "ids width")
    rows: Tensor = gather_rows(table, ids.reshape(-1).long())
    return rows.reshape(*ids.shape, table.shape[1])

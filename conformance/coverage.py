"""Check that the vectors contain a case for every purpose that the rules require for a public function or router.

Each rule requires cases that expose one kind of mistake: for example, cases with three groups, odd sizes, an index above 256,
extreme logits or a gradient for each input. A required purpose without a case counts as missing unless `EXEMPT` gives a
reason. Every rule applies to a new function or router as soon as a case calls the function or router.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase

import numpy as np

from moespec import spec
from moespec.conformance import call
from moespec.conformance.author import large
from moespec.conformance.compare import DTYPES, exact
from moespec.conformance.format import Case, Reference, Stage, Tensor
from moespec.conformance.functions import function
from moespec.conformance.functions.describe import GROUPS
from moespec.conformance.golden.wide import FAR, UPDATES, counts

__all__ = ["EXEMPT", "RULES", "Row", "exemption", "table", "text"]

OVERFLOW = 88.8
"""The logarithm of the largest float32."""

RULES: Mapping[str, str] = {
    "groups": "three groups or more",
    "odd": "an odd number, more than one, on each axis",
    "tokens": "more than 40 tokens",
    "index": "more than 256 tokens or experts where they are counted or indexed",
    "one": "one token, one expert",
    "capacity": "a capacity below and above the number of tokens",
    "choices": "more than eight choices",
    "tie": "equal scores, where it chooses",
    "bits": "values that bfloat16 cannot represent, for each float argument",
    "far": "logits above 88.8, whose exponential overflows float32, in values and in a gradient",
    "gradient": "a gradient with respect to each float argument",
    "level": "experts of equal importance and load, and a gradient there, for each loss",
    "weight": "a nonzero weight for each loss of a router, in a gradient",
    "options": "each pair of router options that act on the same thing, both different from the default",
}
"""The requirement of each rule."""

TOGETHER: tuple[frozenset[str], ...] = tuple(
    frozenset(names.split())
    for names in (
        "bias jitter logit_cap z_weight",
        "bias noise_multiplier logit_cap balance_logits z_logits load_weight",
        "capacity_factor rounding multiple_of choices choices_per_level",
        "eval_capacity_factor rounding multiple_of",
        "choices normalize_selected normalize_when normalize_norm combine_from_clean_logits noise_multiplier scale",
        "choices batch_priority capacity_factor drop",
        "choices slot_order capacity_factor normalize_when",
        "choices balance_weight balance_scope balance_counts balance_logits affinity",
        "importance_weight load_weight balance_weight z_weight noise_multiplier",
        "tries capacity_factor batch_priority normalize_selected normalize_when",
        "combine_with sinkhorn_iterations transport_steps transport_objective",
        "choices expert_groups chosen_groups group_score group_bias outside affinity",
        "bias_update bias_bins",
        "dimensions projection_bias temperature_form affinity",
        "cap cap_regularization capacity_factor",
    )
)
"""Groups of interacting router options: all pairs within a group interact."""

TABLES = "no gradient flows through it: a table, random numbers, or the update of a state"
WHOLE = "integers, masks, orders or codes, or an array used only for its dtype"
MODEL = "the functions of the model have it"
NUMBERS = "it computes one number from plain numbers"
FULL = "more slots than tokens are an error"
TWO = "a single expert is an error: there is no second"
EXEMPT: Mapping[str, str] = {
    **{f"*:{name}:*": MODEL for name in ("vit_*", "mixer_forward", "sparse_mlp_forward", "optimizer_steps")},
    "*:array_operations:*": MODEL,
    "choices:CAPACITY_RULES.*:": NUMBERS,
    "choices:expert_capacity:": NUMBERS,
    "choices:dselect_k_codes:": "its choices are columns of a matrix product",
    **{f"gradient:{name}:*": TABLES for name in (*sorted(UPDATES), "ROUTERS.*.update")},
    **{f"gradient:{name}": TABLES for name in ("dropout:draws", "relu_loss:penalty", "scores_above:thresholds")},
    "gradient:ROUTERS.*:state/*": TABLES,
    "*:ROUTERS.hash.*:params/tables": WHOLE,
    "odd:ROUTERS.hash.*:hashes": "several hashes have no routing",
    "*:hash_routing:like*": WHOLE,
    "odd:hash_routing:width": WHOLE,
    "*:dselect_k_routing:like": WHOLE,
    "bits:hash_table_of:tables": WHOLE,
    "bits:hash_scores:tables": WHOLE,
    "gradient:hash_scores:tables": TABLES,
    "bits:ROUTERS.hash.route:params/kernel": "router_logits has it",
    "one:hash_scores:experts": "hash_routing has it",
    "index:hash_scores:ids": "hash_routing looks ids up in the same tables",
    "bits:quantile_bias:counts": WHOLE,
    "bits:ROUTERS.*.update:statistics/*": WHOLE,
    "bits:ROUTERS.variable_budget.*:state/cutoffs": "the cases of cutoff_mask and renewed_cutoffs have such cutoffs",
    **{f"odd:*:{axis}": "it always has two entries" for axis in ("pair", "words")},
    "odd:gshard_keep:choices": "it always has two entries",
    **{f"odd:ROUTERS.{name}.*:choices": "the number of choices is fixed" for name in ("gshard", "s_base", "switch")},
    **{
        f"capacity:{name}:above": FULL
        for name in (
            *("batchwise_mask", "capacity_thresholds", "capped_affinity", "cutoff_mask", "expert_choice"),
            *("threshold_loss", "transport_*"),
        )
    },
    **{
        f"one:{name}:experts": TWO
        for name in ("gshard_keep", "quantile_bias", "required_biases", "ROUTERS.gshard.route")
    },
    "one:ROUTERS.*.update:*": "its experts are those of its function",
    **{f"index:ROUTERS.{name}.route:*": "its solver would take minutes" for name in large.SLOW},
    "one:patch_embed:tokens": "each patch is computed independently",
    "tokens:patch_embed:": "each patch is computed independently",
    "choices:hierarchical_affinity:": "noisy_top_k_affinity makes its choices",
    "choices:hierarchical_load_loss:": "it defines loads as noisy_top_k_load_loss does",
    "level:hierarchical_load_loss:": "it defines loads as noisy_top_k_load_loss does",
    "index:base_assignment:experts": "it has at least one token per expert, so it would need 66 564 scores",
    "one:hierarchical_load_loss:experts": "its experts are columns, and another case has the fewest columns",
    "index:multi_hash_mlp:ids": "hash_routing looks ids up in the same tables",
    "index:hash_table_*:ids": "a table is made once, from NumPy arrays",
    "index:ROUTERS.sigmoid_token_choice.route:bins": "its bins are those of required_biases",
    "index:slot_similarity:experts": "its result would have 66 564 values for each slot",
    "index:required_biases:experts": "it counts each expert independently",
    "tie:hash_table_clustered:": "its clusters come from k_means",
}
"""Reasons for exemptions by `rule:call:what` with wildcards; the first match applies."""


@dataclass
class Row:
    """The coverage of a function or router. asked: required purposes. found: maps each covered purpose `rule:what` to its first case."""

    call: str
    found: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def missing(self) -> list[str]:
        """Returns the required purposes that have neither a case nor an exemption."""
        return [what for what in sorted(self.asked - self.found.keys()) if not exemption(self.call, what)]


def exemption(call: str, what: str) -> str:
    """Returns the reason why a call is exempt from a purpose, or ""."""
    rule, _, part = what.partition(":")
    return next((reason for key, reason in EXEMPT.items() if fnmatchcase(f"{rule}:{call}:{part}", key)), "")


def table(cases: Iterable[Case]) -> list[Row]:
    """Returns a row for each function and router that the cases call, sorted by name. Includes the large cases, which are not stored."""
    rows: dict[str, Row] = {}
    for id in large.ids():
        router, _, name = id.partition("/")
        row = rows.setdefault(f"ROUTERS.{router}.route", Row(f"ROUTERS.{router}.route"))
        layer = large.LARGE[name]
        big = {"index:tokens": layer.tokens, "index:experts": layer.experts, "index:ids": large.IDS}
        for what in ("tokens:", *(what for what, size in big.items() if size > 256)):
            row.found.setdefault(what, f"{id} (--size large)")
    for case in cases:
        for stage in case.stages if case.expect is None else ():
            row = rows.setdefault(stage.call, Row(stage.call))
            for rule in (_sizes, _options, _arrays, _router_options):
                for what, has in rule(case, stage):
                    row.asked.add(what)
                    if has:
                        row.found.setdefault(what, case.id)
    return [rows[name] for name in sorted(rows)]


def _sizes(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    known = call.golden(case)
    read = [known[name] for name in _read(stage, case, known).values()] + list(stage.outputs.values())
    sizes: dict[str, set[int]] = {}
    for each in read:
        for axis, size in zip(each.axes, each.array.shape, strict=True):
            sizes.setdefault(axis, set()).add(size)
    for axis, found in sizes.items():
        if axis in GROUPS:
            yield "groups:", max(found) >= 3
        yield f"odd:{axis}", any(size % 2 and size > 1 for size in found)
        if axis in ("tokens", "experts"):
            yield f"one:{axis}", 1 in found
        if axis == "ids" or (axis in ("tokens", "experts", "bins") and counts(stage.call)):
            yield f"index:{axis}", max(found) > 256
    if "tokens" in sizes:
        yield "tokens:", max(sizes["tokens"]) > 40
    if function(stage.call).choice:
        yield "tie:", "tie_order" in case.flags or case.kind in ("tie", "near_tie")
    if stage.call.endswith("_loss") and "experts" in sizes:
        pairs = [each.array for each in read if each.axes[-2:] == ("tokens", "experts")]
        yield (
            "level:",
            bool(case.gradients and pairs) and all(np.ptp(x.sum(axis=-2), axis=-1).max() == 0 for x in pairs),
        )


def _options(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    tokens = [t.array.shape[t.axes.index("tokens")] for t in case.inputs.values() if "tokens" in t.axes]
    capacity, choices = stage.options.get("capacity"), stage.options.get("choices")
    if isinstance(capacity, int) and tokens:
        yield "capacity:below", capacity < tokens[0]
        yield "capacity:above", capacity > tokens[0]
    if isinstance(choices, int):
        yield "choices:", choices > 8


def _arrays(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    known = call.golden(case)
    wrt = case.gradients.wrt.keys() if case.gradients and stage.name in (case.gradients.stage, "route") else ()
    for name, path in _read(stage, case, known).items():
        array = known[path].array
        if array.dtype.kind == "f":
            yield f"bits:{name}", not exact(array.astype(np.float32), DTYPES["bfloat16"])
            if any(value.kind == "float" for value in stage.outputs.values()):
                yield f"gradient:{name}", path in wrt
        if ("logits" in name or f"{stage.call}/{name}" in FAR) and array.dtype.kind == "f":
            far = np.abs(array).max(initial=0.0) > OVERFLOW
            yield f"far:{name}", bool(far)
            yield f"far:{name} gradient", bool(far) and path in wrt


def _router_options(case: Case, stage: Stage) -> Iterator[tuple[str, bool]]:
    """Yields (purpose, whether the case covers it). A purpose is a pair of changed options or a weighted loss in a gradient."""
    if not stage.router:
        return
    record = spec.ROUTERS[stage.router].Options
    names = [each.name for each in fields(record) if each.name not in ("width", "experts", "tokens", "ids")]
    made = record(**stage.options["options"])
    default = {each.name: each.default for each in fields(record)}
    changed = {name for name in names if getattr(made, name) != default[name]}
    for first in names:
        for second in names:
            if first < second and any({first, second} <= each for each in TOGETHER):
                yield f"options:{first} {second}", {first, second} <= changed
        if first.endswith("_weight"):
            yield f"weight:{first}", bool(getattr(made, first)) and case.gradients is not None and case.gradients.losses


def _read(stage: Stage, case: Case, known: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns references to the arrays that a stage reads, by `argument` or `argument/key`. Omits arrays that belong to a routing."""
    found: dict[str, str] = {}

    def take(name: str, reference: Reference) -> None:
        if isinstance(reference, str) and reference in known:
            found[name] = reference
        elif isinstance(reference, Mapping) and "call" not in reference:
            for part, each in reference.items():
                take(f"{name}/{part}", each)

    for name, reference in stage.arguments.items():
        take(name, reference)
    return found


def text(rows: Sequence[Row]) -> str:
    """Returns the table as text: the coverage of each call by rule, the missing purposes, and the reasons for exemptions."""
    lines = [f"{'':40}{' '.join(f'{rule:>8}' for rule in RULES)}"]
    reasons: dict[str, set[str]] = {}
    for row in rows:
        cells = []
        for rule in RULES:
            asked = {what for what in row.asked if what.partition(":")[0] == rule}
            excused = {what for what in asked - row.found.keys() if exemption(row.call, what)}
            for what in excused:
                reasons.setdefault(exemption(row.call, what), set()).add(f"{row.call} {what}".removesuffix(":"))
            total = len(asked) - len(excused)
            cells.append("-" if not total else f"{len(asked & row.found.keys())}/{total}")
        lines.append(f"{row.call:40}{' '.join(f'{cell:>8}' for cell in cells)}")
    lines += ["", *(f"{rule}: {what}" for rule, what in RULES.items()), ""]
    lines += [f"{len(whats)} not required: {reason}" for reason, whats in sorted(reasons.items())]
    missing = [f"{row.call}: {what.removesuffix(':')} is missing" for row in rows for what in row.missing()]
    return "\n".join([*lines, "", *(missing or ["nothing is missing"])])

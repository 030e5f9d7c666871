"""The sparsity-constrained affinity: a transport plan in which each expert receives mass from at most k tokens.

`transport_duals` defines the problem, the duals and the symbols. `transport_solvers` implements the solvers.

If k < T / E (a capacity factor below 1), the problem is infeasible: at most k E < T entries are non-zero, so at least
T - k E rows are 0. The solvers do not reject infeasible problems.

Ambiguity ledger

ST-1: How accurately is the dual solved?
    Reading: 20 Adam updates from 0 with learning rate 0.01, or fewer if the gradient norm falls to 1e-3. The plan
        deliberately stays far from the optimum, because the plan should change the choice of experts only slightly.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter.
    Alternative b: the dual is solved to convergence (`solver="lbfgs"`).
ST-3: Does the plan carry a gradient?
    Reading: no, even if the plan weights the outputs of the experts.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py, _max_l2_top_k.
    Alternative b: yes, through the unrolled updates.
    Alternative c: yes, by implicit differentiation at the optimum.
ST-5: Which dual problem is maximised?
    Reading: the semi-dual, a function of one potential per token. The columns of the plan sum to T / E after every update.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        _get_sparsity_constrained_ot_algorithm.
    Alternative b: the dual, a function of the potentials of tokens and experts (`objective="dual"`). The paper allows both duals.
ST-6: What is the plan if k < T / E, so that no plan has row sums of 1?
    Reading: the plan that the same updates produce. Its columns sum to T / E, and at least T - k E of its rows are 0.
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter.
    Alternative b: no plan exists, and an error is raised.

Often done differently

ST-2: Which matrix is the utility of the transport problem?
    Reading: the utility is the softmax of the logits, because the softmax is positive.
        By: the paper, section 2.5 ("a positive utility matrix");
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter.
    Alternative b: the utility is the raw logits, as in the Sinkhorn affinity.
ST-4: Which axis of the plan is sparse?
    Reading: the columns are sparse, with at most k tokens per expert.
        By: the paper, section 2.5 ("nonzeros in each column");
        google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopItemsPerExpertRouter.
    Alternative b: the rows are sparse, with at most k experts per token (`sparsity="token"`).
        By: google-research/vmoe, vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py,
        KSparseProjectionTransportTopExpertsPerItemRouter.
"""

from moespec.spec.algorithm import Algorithm
from moespec.spec.algorithms.transport_duals import finite
from moespec.spec.algorithms.transport_solvers import Problem, evaluate, solve_adam, solve_lbfgs
from moespec.spec.array_like import ArrayLike
from moespec.spec.checks import check_at_least, check_capacity, check_option, check_positive
from moespec.spec.numerics import Array, stop_gradient
from moespec.spec.values import as_array

__all__ = ["sparse_transport_affinity"]

ALGORITHMS = (
    Algorithm(
        "sparse_transport",
        "Liu et al. 2024 (arXiv 2401.15969), eq. (9)",
        3,
        (
            "project_simplex",
            "project_sparse_simplex",
            "sparse_transport_affinity",
            "transport_dual",
            "transport_semi_dual",
        ),
    ),
)


def sparse_transport_affinity(
    utility: ArrayLike,
    *,
    capacity: int,
    objective: str = "semi_dual",
    solver: str = "adam",
    sparsity: str = "expert",
    steps: int = 20,
    learning_rate: float = 1e-2,
    tolerance: float = 1e-3,
    regularization: float = 1.0,
) -> Array:
    """Computes the transport plan at the dual potentials that the solver reaches. The plan carries no gradient.

    With the semi-dual, the gradient is 1 minus the row sums. If all row sums are 1, the solver has reached the optimum.
    After 20 updates, the gradient is still large. For 256 tokens with standard normal logits, 32 experts and k = 8, the
    row sums range from 0 to 2, and 8 % of the row sums are 0.

    Among equal utilities, each projection keeps the tokens with lower indices. The updates then lower the potentials of
    these tokens. If all rows are equal, the non-zeros are therefore at the highest indices after 20 updates.

    Args:
        utility: U, (tokens, experts), the softmax of the logits.
        capacity: k, the maximum number of non-zeros per column or, with `sparsity="token"`, per row.
        objective: the function that the solver maximises, "semi_dual" (`transport_semi_dual`) or "dual" (`transport_dual`).
        solver: "adam" (the reference) or "lbfgs" (more accurate, see `solve_lbfgs`).
        sparsity: "expert": columns are sparse; "token": rows are sparse, and tokens and experts swap roles; "none":
            only the quadratic regularisation remains, and `capacity` is ignored.
        steps, learning_rate: the number of Adam updates, at least 1, and the learning rate, greater than 0.
        tolerance: the gradient norm at or below which Adam stops after an update, greater than 0.
        regularization: gamma, greater than 0.

    Returns:
        (tokens, experts). With the semi-dual, columns sum to T / E up to rounding. Rows sum to 1 only at the optimum of a feasible
        problem. With "token", rows and columns exchange roles. With the dual, rows and columns have the required sums only at the optimum.

    Raises:
        ContractError: the plan overflows.

    Source: Routers, eq. (9); SparseOT; google-research/vmoe,
    vmoe/projects/sparsity_constrained_ot/ksparse_projection_routing.py.

    >>> from moespec.spec import softmax_affinity
    >>> from moespec.spec.examples import LOGITS
    >>> utility = softmax_affinity(LOGITS)
    >>> plan = sparse_transport_affinity(utility, capacity=2)
    >>> for column in plan.T.round(10).tolist():
    ...     print(column)
    [0.0, 0.9964493204, 0.0, 0.0, 1.0035506796, 0.0]
    [0.0, 0.0, 0.9136837416, 0.0, 0.0, 1.0863162584]
    [0.0, 0.0, 0.9180844644, 1.0819155356, 0.0, 0.0]
    >>> plan.sum(axis=1).round(3).tolist()  # rows do not sum to 1
    [0.0, 0.996, 1.832, 1.082, 1.004, 1.086]
    >>> sparse_transport_affinity(utility, capacity=2, sparsity="none")[0].round(10).tolist()
    [0.4704837659, 0.2924668123, 0.237049422]
    """
    utility = stop_gradient(as_array("utility", utility, "tokens experts"))
    check_option("objective", objective, ("semi_dual", "dual"))
    check_option("solver", solver, ("adam", "lbfgs"))
    check_option("sparsity", sparsity, ("expert", "token", "none"))
    check_at_least("steps", steps, 1)
    check_positive("learning_rate", learning_rate)
    check_positive("tolerance", tolerance)
    problem = _problem(utility, capacity, sparsity, check_positive("regularization", regularization), objective)
    potential = solve_lbfgs(problem) if solver == "lbfgs" else solve_adam(problem, steps, learning_rate, tolerance)
    plan = finite(evaluate(potential, problem)).plan
    return plan.T if sparsity == "token" else plan


def _problem(utility: Array, capacity: int, sparsity: str, gamma: float, objective: str) -> Problem:
    tokens, experts = utility.shape
    if sparsity == "token":
        check_capacity(capacity, experts, of="experts")
        return Problem(utility.T, tokens / experts, 1.0, capacity, gamma, objective)
    nonzeros = tokens if sparsity == "none" else check_capacity(capacity, tokens)
    return Problem(utility, 1.0, tokens / experts, nonzeros, gamma, objective)

/* Token Choice and Expert Choice in C, on the published inputs: an example of a program checked through files.
 *
 *     cc -O2 -o allocations readers/allocations.c
 *     ./allocations . out                             (in an unpacked archive; writes out/token_choice/tied.safetensors etc.)
 *     moespec conformance check out --algorithm token_choice expert_choice
 */
#include "moespec_vectors.h"

/* The logits that some cases choose by: (groups, rows, width) times (width, columns). */
static mv_array product(mv_array tokens, mv_array kernel) {
    int width = tokens.shape[2], columns = kernel.shape[1];
    mv_array made = mv_zeros(3, tokens.shape[0], tokens.shape[1], columns);
    for (size_t i = 0; i < made.count; i++)
        for (int d = 0; d < width; d++)
            made.data[i] += tokens.data[(int)i / columns * width + d] * kernel.data[d * columns + (int)i % columns];
    return made;
}

/* The two allocations, on one group: slot[e * capacity + c] is the token in slot c of expert e, or `tokens` if it is empty. */

static void token_choice(const double *scores, const double *order, const double *keep, int hold, int tokens, int experts,
                         int choices, int tries, int capacity, int by_token, double *slot) {
    int *filled = (int *)mv_allocate((size_t)experts * sizeof(int)), *found = (int *)mv_allocate((size_t)tokens * sizeof(int));
    for (int outer = 0; outer < (by_token ? tokens : tries); outer++)
        for (int inner = 0; inner < (by_token ? tries : tokens); inner++) {
            int stage = by_token ? inner : outer, place = by_token ? outer : inner;
            int token = order ? (int)order[place] : place;
            const double *row = scores + token * experts;
            int made = !keep || keep[token * tries + stage]; /* a skipped choice takes a slot only if held */
            if (found[token] == choices || (!made && !hold)) continue;
            for (int e = 0; e < experts; e++) {
                int better = 0; /* experts that the token prefers; ties go to the lower index */
                for (int other = 0; other < experts; other++)
                    better += row[other] > row[e] || (row[other] == row[e] && other < e);
                if (better != stage || filled[e] == capacity) continue;
                if (made) slot[e * capacity + filled[e]] = token;
                found[token] += made;
                filled[e]++;
            }
        }
    free(filled);
    free(found);
}

static void expert_choice(const double *scores, int tokens, int experts, int capacity, int drop_zero, double *slot) {
    for (int e = 0; e < experts; e++)
        for (int token = 0; token < tokens; token++) {
            double score = scores[token * experts + e];
            int better = 0;
            for (int other = 0; other < tokens; other++) {
                double against = scores[other * experts + e];
                better += against > score || (against == score && other < token);
            }
            if (better < capacity && !(drop_zero && score <= 0)) slot[e * capacity + better] = token;
        }
}

/* Only the allocation, alone or after router_logits, is implemented. Error cases, cases with normalised weights and other calls get no
 * file. */
static void run_case(mv_case *vector, const char *algorithm, const char *out) {
    const char *path = vector->path;
    const mv_json *gradients = mv_get(vector->manifest, "gradients");
    const mv_json *first = mv_need(path, vector->manifest, "stages", '[')->first;
    const mv_json *stage = first && first->next ? first->next : first, *options = mv_need(path, stage, "options", '{');
    int computed = stage != first && !strcmp(mv_need(path, first, "call", '"')->text, "router_logits");
    if (stage->next || (stage != first && (!computed || gradients)) || strcmp(mv_need(path, stage, "call", '"')->text, algorithm) ||
        mv_get(vector->manifest, "expect") || mv_get(options, "normalize"))
        return;
    mv_array scores = computed ? product(mv_argument(vector, first, "tokens"), mv_argument(vector, first, "kernel"))
                               : mv_argument(vector, stage, "scores");
    mv_array combine = mv_argument(vector, stage, "combine_scores"), weights = combine.data ? combine : scores;
    mv_array order = mv_argument(vector, stage, "order"), keep = mv_argument(vector, stage, "keep"), probe = mv_named(vector, "probe");
    if (!scores.data || scores.rank != 3) mv_fail(path, "has no scores (groups, tokens, experts)");
    const mv_json *drop = mv_get(options, "drop_zero"), *hold = mv_get(options, "hold"), *tries = mv_get(options, "tries");
    const mv_json *by = mv_get(options, "slot_order");
    const int groups = scores.shape[0], tokens = scores.shape[1], experts = scores.shape[2];
    const int capacity = (int)mv_count(path, mv_get(options, "capacity"));
    mv_array slots = mv_zeros(3, groups, experts, capacity), held = mv_zeros(3, groups, experts, capacity);
    mv_array slope = mv_zeros(3, groups, tokens, experts);

    for (size_t i = 0; i < slots.count; i++) slots.data[i] = tokens;
    for (int g = 0; g < groups; g++) {
        const double *own = scores.data + g * tokens * experts;
        double *taken = slots.data + g * experts * capacity;
        if (!strcmp(algorithm, "token_choice")) {
            int choices = (int)mv_count(path, mv_get(options, "choices"));
            token_choice(own, order.data ? order.data + g * tokens : NULL,
                         keep.data ? keep.data + g * tokens * keep.shape[2] : NULL, hold && hold->number != 0, tokens, experts,
                         choices, tries && tries->type == '0' ? (int)tries->number : choices, capacity,
                         by && by->text && !strcmp(by->text, "token"), taken);
        } else {
            expert_choice(own, tokens, experts, capacity, drop && drop->number != 0, taken);
        }
        for (int i = g * experts * capacity; i < (g + 1) * experts * capacity; i++) {
            int token = (int)slots.data[i], e = i / capacity % experts;
            if (token == tokens) continue;
            held.data[i] = weights.data[(g * tokens + token) * experts + e];
            /* The gradient of sum(probe * weights): a weight is a copy of a score. */
            if (probe.data) slope.data[(g * tokens + token) * experts + e] += probe.data[i];
        }
    }
    mv_results results = {NULL, NULL, 0};
    const char *name = mv_need(path, stage, "name", '"')->text;
    mv_add(&results, mv_join(name, "/slots", NULL), "I32", slots);
    mv_add(&results, mv_join(name, "/weights", NULL), "F32", held);
    const mv_json *wrt = gradients ? mv_need(path, gradients, "wrt", '{')->first : NULL;
    const mv_json *weighted = mv_get(mv_get(stage, "arguments"), combine.data ? "combine_scores" : "scores");
    for (; wrt; wrt = wrt->next) { /* 0 for any other input */
        mv_array zero = mv_named(vector, wrt->name);
        memset(zero.data, 0, zero.count * sizeof(double));
        mv_add(&results, mv_join("gradient/", wrt->name, NULL), "F32", strcmp(wrt->name, weighted->text) ? zero : slope);
    }
    if (computed) mv_add(&results, mv_join(mv_need(path, first, "name", '"')->text, "/logits", NULL), "F32", scores);
    mv_write(&results, out, vector->id);
}

int main(int count, char **arguments) {
    const char *algorithms[] = {"token_choice", "expert_choice"};
    if (count != 3) mv_fail(arguments[0], "usage: allocations ROOT OUT");
    for (int a = 0; a < 2; a++)
        for (const mv_json *entry = mv_cases(arguments[1], algorithms[a]); entry; entry = entry->next)
            run_case(mv_read(arguments[1], algorithms[a], entry->name), algorithms[a], arguments[2]);
    return 0;
}

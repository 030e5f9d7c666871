/* Token Choice and Expert Choice in C, on the published inputs: a third-party implementation that is checked by files.
 *
 *     cc -O2 -o allocations allocations.c
 *     ./allocations conformance/vectors out           (writes out/token_choice/tied.safetensors and so on)
 *     moespec conformance check out --algorithm token_choice --algorithm expert_choice
 *
 * Nothing here comes from the package: a manifest is JSON, and arrays of over 64 numbers are in the safetensors file
 * beside it: 8 bytes with the length of a JSON header, that header, and the numbers. Little-endian machines only.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void fail(const char *what, const char *where) {
    fprintf(stderr, "%s: %s\n", where, what);
    exit(1);
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot be read", path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *text = calloc(*size + 1, 1);
    if (!text || fread(text, 1, *size, file) != *size) fail("cannot be read", path);
    fclose(file);
    return text;
}

/* JSON: a value has a type, a number or a string, and its members or elements as a list. */

typedef struct Json {
    char type; /* one of { [ " 0 t f n */
    double number; /* of true, 1 */
    char *name, *text;
    struct Json *first, *next;
} Json;

static const char *at; /* where the parser stands */

static char *json_string(void) {
    const char *start = ++at;
    while (*at && *at != '"') at += *at == '\\' && at[1] ? 2 : 1;
    if (!*at) fail("a string does not end", "JSON");
    char *text = calloc((size_t)(at - start) + 1, 1);
    memcpy(text, start, (size_t)(at++ - start));
    return text;
}

static void skip_space(void) { at += strspn(at, " \t\r\n"); }

static Json *json_value(void) {
    Json *value = calloc(1, sizeof *value);
    skip_space();
    value->type = *at;
    if (*at == '{' || *at == '[') {
        char end = *at == '{' ? '}' : ']';
        Json **place = &value->first;
        at++;
        skip_space();
        while (*at != end) {
            char *name = NULL;
            if (end == '}') {
                name = json_string();
                skip_space();
                if (*at++ != ':') fail("a colon is missing", "JSON");
            }
            *place = json_value();
            (*place)->name = name;
            place = &(*place)->next;
            skip_space();
            if (*at == ',') at++;
            else if (*at != end) fail("a list does not end", "JSON");
            skip_space();
        }
        at++;
    } else if (*at == '"') {
        value->text = json_string();
    } else if (strchr("tfn", *at)) {
        value->number = *at == 't';
        at += strspn(at, "truefalsn");
    } else {
        char *end;
        value->type = '0';
        value->number = strtod(at, &end);
        if (end == at) fail("neither a value nor a number", "JSON");
        at = end;
    }
    return value;
}

static Json *parse(const char *text) {
    at = text;
    return json_value();
}

static Json *get(const Json *object, const char *name) {
    for (Json *member = object ? object->first : NULL; member; member = member->next)
        if (member->name && !strcmp(member->name, name)) return member;
    return NULL;
}

static int number(const Json *object, const char *name) {
    Json *value = get(object, name);
    if (!value) fail("is missing", name);
    return (int)value->number;
}

/* Arrays: the entries of a float32, int32 or bool tensor as doubles, and its shape. */

typedef struct {
    double *data;
    int shape[3];
} Array;

static void flatten(const Json *value, double **place) {
    if (value->type == '[')
        for (Json *element = value->first; element; element = element->next) flatten(element, place);
    else
        *(*place)++ = value->number;
}

static Array array(const Json *entry, const char *beside) {
    Array found = {NULL, {1, 1, 1}};
    size_t count = 1;
    int axis = 0;
    for (Json *size = get(entry, "shape")->first; size && axis < 3; size = size->next) {
        found.shape[axis++] = (int)size->number;
        count *= (size_t)size->number;
    }
    double *place = found.data = calloc(count + 1, sizeof(double));
    Json *inlined = get(entry, "data"), *key = get(entry, "tensor");
    if (inlined) {
        flatten(inlined, &place);
    } else {
        size_t size;
        uint64_t header;
        char *bytes = read_file(beside, &size);
        memcpy(&header, bytes, 8);
        char saved = bytes[8 + header];
        bytes[8 + header] = 0;
        Json *tensor = get(parse(bytes + 8), key->text);
        bytes[8 + header] = saved;
        const char *data = bytes + 8 + header + (size_t)get(tensor, "data_offsets")->first->number;
        char dtype = get(tensor, "dtype")->text[0]; /* of F32, I32 or BOOL */
        for (size_t i = 0; i < count; i++) {
            float real;
            int32_t whole;
            if (dtype == 'B') {
                place[i] = data[i] != 0;
                continue;
            }
            memcpy(&real, data + 4 * i, 4);
            memcpy(&whole, data + 4 * i, 4);
            place[i] = dtype == 'I' ? whole : real;
        }
    }
    return found;
}

/* Logits, which some cases choose by: (groups, rows, width) times (width, columns). */
static Array product(Array tokens, Array kernel) {
    int width = tokens.shape[2], columns = kernel.shape[1], count = tokens.shape[0] * tokens.shape[1] * columns;
    Array made = {calloc((size_t)count, sizeof(double)), {tokens.shape[0], tokens.shape[1], columns}};
    for (int i = 0; i < count; i++)
        for (int d = 0; d < width; d++)
            made.data[i] += tokens.data[i / columns * width + d] * kernel.data[d * columns + i % columns];
    return made;
}

/* The two allocations, on one group: slot[e * capacity + c] is the token in slot c of expert e, `tokens` if there is none. */

static void token_choice(const double *scores, const double *order, const double *keep, int hold, int tokens, int experts,
                         int choices, int tries, int capacity, int by_token, int32_t *slot) {
    int *filled = calloc((size_t)experts, sizeof(int)), *found = calloc((size_t)tokens, sizeof(int));
    for (int outer = 0; outer < (by_token ? tokens : tries); outer++)
        for (int inner = 0; inner < (by_token ? tries : tokens); inner++) {
            int stage = by_token ? inner : outer, place = by_token ? outer : inner;
            int token = order ? (int)order[place] : place;
            const double *row = scores + token * experts;
            int made = !keep || keep[token * tries + stage]; /* a choice that is not made takes a place only if held */
            if (found[token] == choices || (!made && !hold)) continue;
            for (int e = 0; e < experts; e++) {
                int better = 0; /* experts that the token likes more; among equals the lower index wins */
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

static void expert_choice(const double *scores, int tokens, int experts, int capacity, int drop_zero, int32_t *slot) {
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

/* A safetensors file with the results of one case. */

typedef struct {
    const char *name, *dtype;
    int shape[3];
    const void *data; /* 4 bytes a number */
} Result;

static void write_results(const char *path, const Result *results, int count) {
    char header[2048] = "{";
    size_t start = 0, sizes[8];
    for (int i = 0; i < count; i++) {
        const int *shape = results[i].shape;
        sizes[i] = 4 * (size_t)shape[0] * (size_t)shape[1] * (size_t)shape[2];
        snprintf(header + strlen(header), sizeof header - strlen(header),
                 "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d,%d],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
                 results[i].name, results[i].dtype, shape[0], shape[1], shape[2], start, start + sizes[i]);
        start += sizes[i];
    }
    strcat(header, "}");
    while (strlen(header) % 8) strcat(header, " ");
    uint64_t length = strlen(header);
    FILE *file = fopen(path, "wb");
    if (!file) fail("cannot be written", path);
    fwrite(&length, 8, 1, file);
    fwrite(header, 1, length, file);
    for (int i = 0; i < count; i++) fwrite(results[i].data, 1, sizes[i], file);
    if (fclose(file)) fail("cannot be written", path);
}

/* The input that an argument of a stage refers to; no data if it is null or not given. */
static Array argument(const Json *manifest, const Json *stage, const char *name, const char *beside) {
    Array none = {NULL, {0}};
    Json *reference = get(get(stage, "arguments"), name);
    return reference && reference->text ? array(get(get(manifest, "inputs"), reference->text), beside) : none;
}

static void run_case(const char *algorithm, const char *manifest_path, const char *beside, const char *out) {
    size_t size;
    Json *manifest = parse(read_file(manifest_path, &size));
    if (get(manifest, "expect")) return; /* an error case: no file can hold an error */
    Json *first = get(manifest, "stages")->first, *stage = first->next ? first->next : first, *options = get(stage, "options");
    int computed = stage != first && !strcmp(get(first, "call")->text, "router_logits");
    if (stage->next || (stage != first && !computed) || strcmp(get(stage, "call")->text, algorithm))
        fail("is not a call of the allocation, alone or after one of router_logits", manifest_path);
    Array scores = computed ? product(argument(manifest, first, "tokens", beside), argument(manifest, first, "kernel", beside))
                            : argument(manifest, stage, "scores", beside);
    Array combine = argument(manifest, stage, "combine_scores", beside);
    Array order = argument(manifest, stage, "order", beside), keep = argument(manifest, stage, "keep", beside);
    Array weights = combine.data ? combine : scores;
    int groups = scores.shape[0], tokens = scores.shape[1], experts = scores.shape[2], capacity = number(options, "capacity");
    Json *drop = get(options, "drop_zero"), *hold = get(options, "hold"), *tries = get(options, "tries"), *order_of_slots = get(options, "slot_order");
    if (get(options, "normalize")) return; /* it divides no weights */
    size_t slots = (size_t)(groups * experts * capacity);
    int32_t *slot = calloc(slots, sizeof *slot);
    float *weight = calloc(slots, sizeof *weight), *slope = calloc((size_t)(groups * tokens * experts), sizeof *slope);
    Json *gradients = get(manifest, "gradients");
    Array probe = {NULL, {0}};
    if (gradients) probe = array(get(gradients, "probe"), beside);

    for (size_t i = 0; i < slots; i++) slot[i] = tokens;
    for (int g = 0; g < groups; g++) {
        const double *own = scores.data + g * tokens * experts;
        int32_t *taken = slot + g * experts * capacity;
        if (!strcmp(algorithm, "token_choice"))
            token_choice(own, order.data ? order.data + g * tokens : NULL,
                         keep.data ? keep.data + g * tokens * keep.shape[2] : NULL, hold && hold->number != 0, tokens,
                         experts, number(options, "choices"), number(options, tries && tries->type == '0' ? "tries" : "choices"), capacity,
                         order_of_slots && strcmp(order_of_slots->text, "token") == 0, taken);
        else
            expert_choice(own, tokens, experts, capacity, drop && drop->number != 0, taken);
        for (int e = 0; e < experts; e++)
            for (int c = 0; c < capacity; c++) {
                int token = taken[e * capacity + c], i = (g * experts + e) * capacity + c;
                if (token == tokens) continue;
                weight[i] = (float)weights.data[(g * tokens + token) * experts + e];
                /* The gradient of sum(probe * weights): a weight is a copy of a score. */
                if (gradients) slope[(g * tokens + token) * experts + e] += (float)probe.data[i];
            }
    }
    size_t count = (size_t)(groups * tokens * experts);
    float *logits = calloc(count, sizeof *logits);
    for (size_t i = 0; i < count; i++) logits[i] = (float)scores.data[i];
    char names[3][256];
    snprintf(names[0], sizeof names[0], "%s/slots", get(stage, "name")->text);
    snprintf(names[1], sizeof names[1], "%s/weights", get(stage, "name")->text);
    snprintf(names[2], sizeof names[2], "gradient/%s", gradients ? get(gradients, "wrt")->first->name : "");
    Result results[] = {
        {names[0], "I32", {groups, experts, capacity}, slot},
        {names[1], "F32", {groups, experts, capacity}, weight},
        {gradients ? names[2] : "router_logits/logits", "F32", {groups, tokens, experts}, gradients ? slope : logits},
    };
    write_results(out, results, gradients || computed ? 3 : 2);
}

int main(int count, char **arguments) {
    const char *algorithms[] = {"token_choice", "expert_choice"};
    if (count != 3) fail("usage: allocations VECTORS OUT", arguments[0]);
    mkdir(arguments[2], 0777);
    for (int a = 0; a < 2; a++) {
        char folder[2048], path[4096], beside[4096], out[4096];
        snprintf(folder, sizeof folder, "%s/%s", arguments[2], algorithms[a]);
        mkdir(folder, 0777);
        snprintf(folder, sizeof folder, "%s/%s", arguments[1], algorithms[a]);
        DIR *cases = opendir(folder);
        if (!cases) fail("no such folder", folder);
        for (struct dirent *entry; (entry = readdir(cases));) {
            char *end = strstr(entry->d_name, ".json");
            if (!end || end[5]) continue;
            int stem = (int)(end - entry->d_name);
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            snprintf(beside, sizeof beside, "%s/%.*s.safetensors", folder, stem, entry->d_name);
            snprintf(out, sizeof out, "%s/%s/%.*s.safetensors", arguments[2], algorithms[a], stem, entry->d_name);
            run_case(algorithms[a], path, beside, out);
        }
        closedir(cases);
    }
    return 0;
}

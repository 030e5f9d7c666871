/* Read the vectors of moespec and write results. One header for C99 and C++, without dependencies.
 *
 *     for (const mv_json *entry = mv_cases(root, "token_choice"); entry; entry = entry->next) {
 *         mv_case *vector = mv_read(root, "token_choice", entry->name);
 *         mv_array scores = mv_named(vector, "scores");
 *         ...
 *         mv_results results = {NULL, NULL, 0};
 *         mv_add(&results, "token_choice/slots", "I32", slots);
 *         mv_write(&results, out, vector->id);
 *     }
 *
 * `root` is the folder with `suite.json` and `vectors`: an unpacked archive, or `conformance` in the repository or the package.
 * For a missing or damaged file, mv_fail prints its name and the problem and exits with status 1.
 * Checksums are not verified. Little-endian machines only. Memory is never freed: about 100 MB for all cases.
 */
#ifndef MOESPEC_VECTORS_H
#define MOESPEC_VECTORS_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <direct.h>
#define MV_MKDIR(path) _mkdir(path)
#else
#include <sys/stat.h>
#define MV_MKDIR(path) mkdir(path, 0777)
#endif

enum { MV_RANK = 8, MV_DEPTH = 64 }; /* maximum array axes and JSON levels */
static const double MV_LARGEST = 1 << 27; /* maximum bytes per file and numbers per array */

static inline void mv_fail(const char *where, const char *what) {
    fprintf(stderr, "%s: %s\n", where, what);
    exit(1);
}

static inline void *mv_allocate(size_t size) {
    void *memory = calloc(size ? size : 1, 1);
    if (!memory) mv_fail("moespec_vectors.h", "not enough memory");
    return memory;
}

/* Concatenate texts; the last argument is NULL. */
static inline char *mv_join(const char *first, ...) {
    va_list texts;
    char *joined = (char *)mv_allocate(1);
    va_start(texts, first);
    for (const char *text = first; text; text = va_arg(texts, const char *)) {
        joined = (char *)realloc(joined, strlen(joined) + strlen(text) + 1);
        if (!joined) mv_fail("moespec_vectors.h", "not enough memory");
        strcat(joined, text);
    }
    va_end(texts);
    return joined;
}

/* The bytes of a file, zero-terminated. */
static inline char *mv_read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    long length = -1;
    if (file && !fseek(file, 0, SEEK_END)) length = ftell(file);
    if (length < 0 || (double)length > MV_LARGEST) mv_fail(path, "cannot be read");
    rewind(file);
    char *bytes = (char *)mv_allocate((*size = (size_t)length) + 1);
    if (fread(bytes, 1, *size, file) != *size) mv_fail(path, "cannot be read");
    fclose(file);
    return bytes;
}

typedef struct mv_json {
    char type, *name, *text; /* type: {, [, ", 0 number, b boolean, n null; name: object members; text: strings */
    double number;           /* 0 or 1 for a boolean */
    struct mv_json *first, *next; /* the first member or element; the next sibling */
} mv_json;

typedef struct { const char *where, *at; int depth; } mv_parser;

static inline void mv_skip(mv_parser *parser) { parser->at += strspn(parser->at, " \t\r\n"); }

/* Escapes are not decoded: no name in the vectors has one. */
static inline char *mv_parse_text(mv_parser *parser) {
    const char *from = parser->at + 1, *end = from;
    if (*parser->at != '"') mv_fail(parser->where, "JSON: expected a name or a text");
    while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
    if (!*end) mv_fail(parser->where, "JSON: a text does not end");
    char *text = (char *)mv_allocate((size_t)(end - from) + 1);
    memcpy(text, from, (size_t)(end - from));
    parser->at = end + 1;
    return text;
}

static inline mv_json *mv_parse_value(mv_parser *parser) {
    mv_json *value = (mv_json *)mv_allocate(sizeof *value);
    mv_skip(parser);
    const char start = *parser->at;
    value->type = start;
    if (start == '{' || start == '[') {
        const char end = start == '{' ? '}' : ']';
        mv_json **place = &value->first;
        if (++parser->depth > MV_DEPTH) mv_fail(parser->where, "JSON: too many levels");
        parser->at++;
        mv_skip(parser);
        while (*parser->at != end) {
            char *name = NULL;
            if (value->first && *parser->at++ != ',') mv_fail(parser->where, "JSON: a list or an object does not end");
            mv_skip(parser);
            if (start == '{') name = mv_parse_text(parser);
            mv_skip(parser);
            if (start == '{' && *parser->at++ != ':') mv_fail(parser->where, "JSON: expected a colon after a name");
            *place = mv_parse_value(parser);
            (*place)->name = name;
            place = &(*place)->next;
            mv_skip(parser);
        }
        parser->at++;
        parser->depth--;
        return value;
    }
    const char *word = start == 't' ? "true" : start == 'f' ? "false" : "null", *end = parser->at;
    if (start == '"') {
        value->text = mv_parse_text(parser);
        return value;
    }
    if (!strncmp(end, word, strlen(word))) {
        value->type = start == 'n' ? 'n' : 'b';
        value->number = start == 't';
        end += strlen(word);
    } else if (start && strchr("-0123456789", start)) {
        value->type = '0';
        value->number = strtod(end, (char **)&end);
    }
    if (end == parser->at) mv_fail(parser->where, "JSON: expected a value");
    parser->at = end;
    return value;
}

/* Parse a text as JSON. `where` names it in errors. */
static inline mv_json *mv_parse(const char *where, const char *text) {
    mv_parser parser = {where, text, 0};
    mv_json *value = mv_parse_value(&parser);
    mv_skip(&parser);
    if (*parser.at) mv_fail(where, "JSON: more than one value");
    return value;
}

/* The member of an object, or NULL. */
static inline const mv_json *mv_get(const mv_json *object, const char *name) {
    for (const mv_json *member = object ? object->first : NULL; member; member = member->next)
        if (member->name && !strcmp(member->name, name)) return member;
    return NULL;
}

/* The member of an object. It must exist and have this type. */
static inline const mv_json *mv_need(const char *where, const mv_json *object, const char *name, char type) {
    const mv_json *member = mv_get(object, name);
    if (!member || member->type != type) mv_fail(where, mv_join("'", name, "' is missing or of another JSON type", NULL));
    return member;
}

/* An integer from 0 to MV_LARGEST. */
static inline size_t mv_count(const char *where, const mv_json *value) {
    const double number = value && value->type == '0' ? value->number : -1;
    if (!(number >= 0 && number <= MV_LARGEST) || number != (double)(size_t)number) mv_fail(where, "expected a count");
    return (size_t)number;
}

typedef struct {
    int rank;
    int shape[MV_RANK]; /* 1 beyond `rank` */
    size_t count;
    double *data; /* row-major; NULL if there is no array */
} mv_array;

typedef struct {
    char *id, *path, *beside; /* path: manifest; beside: safetensors file, read on demand */
    mv_json *manifest, *header;
    const char *tensors;
    size_t size;
} mv_case;

/* The cases of an algorithm in order; each entry has a `name`. */
static inline const mv_json *mv_cases(const char *root, const char *algorithm) {
    const uint16_t one = 1;
    size_t size;
    char *path = mv_join(root, "/suite.json", NULL);
    if (!*(const char *)&one) mv_fail("moespec_vectors.h", "only for little-endian machines");
    const mv_json *all = mv_need(path, mv_parse(path, mv_read_file(path, &size)), "algorithms", '{');
    return mv_need(path, mv_need(path, all, algorithm, '{'), "sha256", '{')->first;
}
static inline mv_case *mv_read(const char *root, const char *algorithm, const char *name) {
    size_t size;
    mv_case *vector = (mv_case *)mv_allocate(sizeof *vector);
    vector->id = mv_join(algorithm, "/", name, NULL);
    vector->path = mv_join(root, "/vectors/", vector->id, ".json", NULL);
    vector->beside = mv_join(root, "/vectors/", vector->id, ".safetensors", NULL);
    vector->manifest = mv_parse(vector->path, mv_read_file(vector->path, &size));
    if (vector->manifest->type != '{') mv_fail(vector->path, "JSON: expected an object");
    return vector;
}

static const mv_array MV_NONE = {0, {1, 1, 1, 1, 1, 1, 1, 1}, 1, NULL};

/* An array of zeros. The shape follows as ints. */
static inline mv_array mv_zeros(int rank, ...) {
    mv_array made = MV_NONE;
    va_list sizes;
    va_start(sizes, rank);
    while (made.rank < rank && made.rank < MV_RANK) {
        made.shape[made.rank] = va_arg(sizes, int);
        made.count *= (size_t)made.shape[made.rank++];
    }
    va_end(sizes);
    made.data = (double *)mv_allocate(made.count * sizeof(double));
    return made;
}

static inline void mv_flatten(const char *where, const mv_json *value, const mv_array *array, int axis, double **place) {
    if (axis < array->rank) {
        const mv_json *element = value->type == '[' ? value->first : NULL;
        int left = array->shape[axis];
        for (; element && left; element = element->next, left--) mv_flatten(where, element, array, axis + 1, place);
        if (element || left || value->type != '[') mv_fail(where, "the data of an array do not have its shape");
        return;
    }
    char *end = NULL; /* parses "nan", "inf" and "-inf" in error cases */
    *(*place)++ = value->type == '"' ? strtod(value->text, &end) : value->number;
    if (value->type == '"' ? end == value->text || *end : !strchr("0b", value->type))
        mv_fail(where, "an array has an entry that is no number");
}

/* The bytes of a tensor in the safetensors file. */
static inline const char *mv_tensor(mv_case *vector, const char *key, const char *dtype, size_t count, size_t width) {
    const char *where = vector->beside;
    if (!vector->header) {
        char *bytes = mv_read_file(where, &vector->size);
        uint64_t length = 0;
        if (vector->size >= 8) memcpy(&length, bytes, 8);
        if (vector->size < 8 || length > vector->size - 8) mv_fail(where, "the file ends in its header");
        char *text = (char *)mv_allocate((size_t)length + 1);
        memcpy(text, bytes + 8, (size_t)length);
        vector->header = mv_parse(where, text);
        vector->tensors = bytes + 8 + length;
        vector->size -= 8 + (size_t)length;
    }
    const mv_json *entry = mv_need(where, vector->header, key, '{');
    const mv_json *begin = mv_need(where, entry, "data_offsets", '[')->first;
    size_t from = mv_count(where, begin), to = mv_count(where, begin->next);
    if (strcmp(mv_need(where, entry, "dtype", '"')->text, dtype))
        mv_fail(where, mv_join(key, ": another dtype than in the manifest", NULL));
    if (from > to || to > vector->size || (to - from) != count * width)
        mv_fail(where, mv_join(key, ": its bytes are not there, or not as many as its shape needs", NULL));
    return vector->tensors + from;
}

/* The array of a manifest entry with `dtype`, `shape` and either `data` or `tensor`. */
static inline mv_array mv_entry(mv_case *vector, const mv_json *entry) {
    static const char *const dtypes[][2] = {{"float32", "F32"}, {"float64", "F64"}, {"int32", "I32"}, {"bool", "BOOL"}};
    static const size_t widths[] = {4, 8, 4, 1};
    const char *where = vector->path, *name = mv_need(where, entry, "dtype", '"')->text;
    mv_array array = MV_NONE;
    int kind = 0;
    while (kind < 4 && strcmp(dtypes[kind][0], name)) kind++;
    if (kind == 4) mv_fail(where, mv_join("unknown dtype '", name, "'", NULL));
    for (const mv_json *size = mv_need(where, entry, "shape", '[')->first; size; size = size->next) {
        size_t length = mv_count(where, size);
        if (array.rank == MV_RANK || (double)length * (double)array.count > MV_LARGEST) mv_fail(where, "a shape is too large");
        array.shape[array.rank++] = (int)length;
        array.count *= length;
    }
    const mv_json *data = mv_get(entry, "data"), *key = data ? NULL : mv_need(where, entry, "tensor", '"');
    const char *bytes = data ? NULL : mv_tensor(vector, key->text, dtypes[kind][1], array.count, widths[kind]);
    double *place = array.data = (double *)mv_allocate(array.count * sizeof(double));
    if (data) mv_flatten(where, data, &array, 0, &place);
    for (size_t i = 0; bytes && i < array.count; i++) {
        float single = 0;
        int32_t whole = 0;
        memcpy(&single, bytes + i * widths[kind], kind == 0 ? 4 : 0);
        memcpy(&array.data[i], bytes + i * widths[kind], kind == 1 ? 8 : 0);
        memcpy(&whole, bytes + i * widths[kind], kind == 2 ? 4 : kind == 3);
        if (kind != 1) array.data[i] = kind == 0 ? single : whole;
    }
    return array;
}

/* An array by name: an input, an expected result such as `token_choice/slots` or `gradient/scores`, or `probe`.
 * `data` is NULL if there is none. */
static inline mv_array mv_named(mv_case *vector, const char *name) {
    const mv_json *stages = mv_get(vector->manifest, "stages"), *found = mv_get(mv_get(vector->manifest, "inputs"), name);
    const mv_json *gradients = mv_get(vector->manifest, "gradients");
    for (const mv_json *stage = stages ? stages->first : NULL; stage && !found; stage = stage->next) {
        const char *own = mv_need(vector->path, stage, "name", '"')->text;
        size_t length = strlen(own);
        if (!strncmp(name, own, length) && name[length] == '/') found = mv_get(mv_get(stage, "outputs"), name + length + 1);
    }
    if (!found && !strcmp(name, "probe")) found = mv_get(gradients, name);
    if (!found && !strncmp(name, "gradient/", 9)) found = mv_get(mv_get(gradients, "wrt"), name + 9);
    return found ? mv_entry(vector, found) : MV_NONE;
}

/* The input that a stage's argument refers to; `data` is NULL if it is null or missing. */
static inline mv_array mv_argument(mv_case *vector, const mv_json *stage, const char *name) {
    const mv_json *reference = mv_get(mv_need(vector->path, stage, "arguments", '{'), name);
    return reference && reference->text ? mv_named(vector, reference->text) : MV_NONE;
}

typedef struct { char *header, *data; size_t size; } mv_results;

/* Add an array by name, such as `token_choice/slots` or `gradient/scores`, as F32, F64, I32 or BOOL. */
static inline void mv_add(mv_results *results, const char *name, const char *dtype, mv_array array) {
    const int real = !strcmp(dtype, "F32"), wide = !strcmp(dtype, "F64"), flag = !strcmp(dtype, "BOOL");
    const size_t width = flag ? 1 : wide ? 8 : 4, start = results->size, end = start + array.count * width;
    char shape[16 * MV_RANK] = "", offsets[64];
    if (!real && !wide && !flag && strcmp(dtype, "I32")) mv_fail(name, "expected the dtype F32, F64, I32 or BOOL");
    for (int axis = 0; axis < array.rank; axis++) sprintf(shape + strlen(shape), "%s%d", axis ? "," : "", array.shape[axis]);
    sprintf(offsets, "%lu,%lu", (unsigned long)start, (unsigned long)end);
    results->header = mv_join(results->header ? results->header : "{", results->header ? ",\"" : "\"", name, "\":{\"dtype\":\"",
                              dtype, "\",\"shape\":[", shape, "],\"data_offsets\":[", offsets, "]}", NULL);
    char *data = (char *)realloc(results->data, end + 1);
    if (!data) mv_fail(name, "not enough memory");
    for (size_t i = 0; i < array.count; i++) {
        const double value = array.data[i];
        const float single = (float)value;
        const int32_t whole = flag ? value != 0 : value >= -2147483648.0 && value <= 2147483647.0 ? (int32_t)value : 0;
        if (!real && !wide && !flag && whole != value) mv_fail(name, "a result is no int32");
        memcpy(data + start + i * width, real ? (void *)&single : wide ? (void *)&value : (void *)&whole, width);
    }
    results->data = data;
    results->size = end;
}

/* Write the results of a case to OUT/<algorithm>/<case>.safetensors; creates folders. */
static inline void mv_write(const mv_results *results, const char *out, const char *id) {
    char *path = mv_join(out, "/", id, ".safetensors", NULL), *folder = mv_join(out, "/", id, NULL);
    char *header = mv_join(results->header ? results->header : "{", "}", NULL);
    while (strlen(header) % 8) header = mv_join(header, " ", NULL);
    const uint64_t length = strlen(header);
    *strrchr(folder, '/') = 0;
    MV_MKDIR(out);
    MV_MKDIR(folder);
    FILE *file = fopen(path, "wb");
    if (!file) mv_fail(path, "cannot be written");
    size_t written = fwrite(&length, 1, 8, file) + fwrite(header, 1, (size_t)length, file);
    if (results->size) written += fwrite(results->data, 1, results->size, file);
    if (fclose(file) || written != 8 + length + results->size) mv_fail(path, "cannot be written");
}

#endif

/* Text files as documents. See source.h. */
#include "data/source.h"

#include <deepspeed/context.h>
#include <deepspeed/op.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_AT_ONCE = 256, KEYS_NOTED = 16 };

bool dsi_path_ends(const char *path, const char *end)
{
    const size_t n = strlen(path);
    const size_t m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

/* ---- .jsonl ---- */

typedef struct batch {
    const ds_dataset_params *params;
    ds_tokenizer_scratch **scratch; /* per thread */
    const char *text[LINES_AT_ONCE];
    size_t size[LINES_AT_ONCE];
    dsi_line lines[LINES_AT_ONCE];
    uint32_t n;
    char noted[KEYS_NOTED][48]; /* unread keys, each said once */
    uint32_t n_noted;
} batch;

static void tokenize_task(void *arg, uint32_t task, uint32_t thread)
{
    batch *b = arg;
    dsi_line_tokenize(b->params, b->scratch[thread], b->text[task], b->size[task], &b->lines[task]);
}

/* Fills a batch with the lines from `at` on; the new position. */
static size_t cut_lines(batch *b, const dsi_map *map, size_t at)
{
    b->n = 0;
    while (b->n < LINES_AT_ONCE && at < map->size) {
        const char *line = (const char *)map->data + at;
        const char *end = memchr(line, '\n', map->size - at);
        const size_t n = end != NULL ? (size_t)(end - line) : map->size - at;
        b->text[b->n] = line;
        b->size[b->n++] = n;
        at += n + 1;
    }
    return at < map->size ? at : map->size;
}

static bool is_noted(const batch *b, const char *key)
{
    for (uint32_t i = 0; i < b->n_noted; ++i) {
        if (strcmp(b->noted[i], key) == 0) {
            return true;
        }
    }
    return false;
}

/* Says once for each key that it is there and that nothing reads it. */
static void note_unread(ds_ctx *ctx, const char *path, uint64_t number, batch *b,
                        const dsi_line *line)
{
    for (uint32_t i = 0; i < line->n_unread; ++i) {
        if (b->n_noted < KEYS_NOTED && !is_noted(b, line->unread[i])) {
            memcpy(b->noted[b->n_noted++], line->unread[i], sizeof line->unread[i]);
            ds_log(ctx, DS_LOG_JOB, "%s:%llu: %s is not read, here and in later lines", path,
                   (unsigned long long)number, line->unread[i]);
        }
    }
}

static ds_status deliver(ds_ctx *ctx, const char *path, uint64_t first_line, batch *b,
                         const dsi_source_sink *sink)
{
    for (uint32_t i = 0; i < b->n; ++i) {
        const dsi_line *line = &b->lines[i];
        if (line->sample && sink->no_samples != NULL) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s:%llu: %s", path,
                           (unsigned long long)(first_line + i), sink->no_samples);
        }
        if (line->status < 0) {
            return ds_fail(ctx, line->status, "%s:%llu: %s", path,
                           (unsigned long long)(first_line + i), line->message);
        }
        note_unread(ctx, path, first_line + i, b, line);
        if (line->n > 0) {
            const dsi_document document = {line->ids, line->sample ? line->counted : NULL, line->n,
                                           line->sample, false};
            DS_TRY(sink->document(sink->user, &document));
        }
    }
    return DS_OK;
}

static ds_status read_lines(ds_ctx *ctx, batch *b, const char *path, const dsi_map *map,
                            const dsi_source_sink *sink)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin a file with it */
    const bool marked = map->size >= 3 && memcmp(map->data, mark, 3) == 0;
    uint64_t line = 1;
    for (size_t at = marked ? 3 : 0; at < map->size;) {
        at = cut_lines(b, map, at);
        ds_parallel(ctx, tokenize_task, b, b->n);
        const ds_status status = deliver(ctx, path, line, b, sink);
        for (uint32_t i = 0; i < b->n; ++i) {
            dsi_line_free(&b->lines[i]);
        }
        DS_TRY(status);
        line += b->n;
        if (sink->progress != NULL) {
            sink->progress(sink->user, at, map->size);
        }
    }
    return DS_OK;
}

static ds_status read_jsonl(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                            const dsi_map *map, const dsi_source_sink *sink)
{
    const uint32_t n_threads = ds_ctx_n_threads(ctx);
    batch *b = calloc(1, sizeof *b);
    ds_status status = DS_OK;
    if (b != NULL) {
        b->params = params;
        b->scratch = calloc(n_threads, sizeof *b->scratch);
    }
    if (b == NULL || b->scratch == NULL) {
        free(b);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    for (uint32_t i = 0; i < n_threads && status >= 0; ++i) {
        status = ds_tokenizer_scratch_create(params->tokenizer, 0, &b->scratch[i]);
    }
    if (status >= 0) {
        status = read_lines(ctx, b, path, map, sink);
    }
    for (uint32_t i = 0; i < n_threads; ++i) {
        ds_tokenizer_scratch_destroy(&b->scratch[i]);
    }
    free(b->scratch);
    free(b);
    return status;
}

ds_status dsi_source_read(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                          const dsi_source_sink *sink)
{
    dsi_map map;
    const bool jsonl = dsi_path_ends(path, ".jsonl");
    if (dsi_path_ends(path, ".bin") || dsi_path_ends(path, ".idx")) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: indexed data is tokenized already", path);
    }
    if (!jsonl && !dsi_path_ends(path, ".txt")) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: the kind of data is told by the ending: .txt, .jsonl, .bin or .idx",
                       path);
    }
    if (params->tokenizer == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: a tokenizer is needed for text", path);
    }
    if (params->append_eos && ds_tokenizer_eos_id(params->tokenizer) < 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "%s: an end token is to be appended, and the tokenizer names none", path);
    }
    DS_TRY(dsi_map_open(ctx, path, 0, &map));
    const ds_status status = jsonl ? read_jsonl(ctx, params, path, &map, sink)
                                   : dsi_text_read(ctx, params, path, &map, DSI_PART_BYTES, sink);
    dsi_map_close(&map);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A Hugging Face folder, or another GGUF file, as a GGUF file in a type of choice. See
 * deepspeed/gguf.h. Rows are made as they are written; what is transposed is made whole, a tensor
 * at a time. */
#include <deepspeed/gguf.h>

#include "base/blocks.h"
#include "base/buf.h"
#include "base/reserved.h"
#include "ckpt/gguf_export.h"
#include "ckpt/stored_matrix.h"
#include "io/file.h"
#include "io/json_load.h"
#include "ir/graph.h"

#include <deepspeed/model.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_CEILING = 1 << 24, CELLS = 1 << 20, LENGTH = 8 };

/* ---- types ----------------------------------------------------------------------------------- */

/* What --type names: of matrices, of those that a mix has in more bits, of embedding and output;
 * and llama.cpp's number of it, which labels a file. */
typedef struct mix {
    const char *name;
    ds_dtype dtype, more, outer;
    uint32_t label;
} mix;

static const mix mixes[] = {
    {"f32", DS_DTYPE_F32, DS_DTYPE_F32, DS_DTYPE_F32, 0},
    {"f16", DS_DTYPE_F16, DS_DTYPE_F16, DS_DTYPE_F16, 1},
    {"bf16", DS_DTYPE_BF16, DS_DTYPE_BF16, DS_DTYPE_BF16, 32},
    {"q4_0", DS_DTYPE_Q4_0, DS_DTYPE_Q4_0, DS_DTYPE_Q6_K, 2},
    {"q4_1", DS_DTYPE_Q4_1, DS_DTYPE_Q4_1, DS_DTYPE_Q6_K, 3},
    {"q5_0", DS_DTYPE_Q5_0, DS_DTYPE_Q5_0, DS_DTYPE_Q6_K, 8},
    {"q5_1", DS_DTYPE_Q5_1, DS_DTYPE_Q5_1, DS_DTYPE_Q6_K, 9},
    {"q8_0", DS_DTYPE_Q8_0, DS_DTYPE_Q8_0, DS_DTYPE_Q8_0, 7},
    {"q4_k", DS_DTYPE_Q4_K, DS_DTYPE_Q4_K, DS_DTYPE_Q6_K, 14},
    {"q4_k_m", DS_DTYPE_Q4_K, DS_DTYPE_Q6_K, DS_DTYPE_Q6_K, 15},
    {"q5_k", DS_DTYPE_Q5_K, DS_DTYPE_Q5_K, DS_DTYPE_Q6_K, 16},
    {"q5_k_m", DS_DTYPE_Q5_K, DS_DTYPE_Q6_K, DS_DTYPE_Q6_K, 17},
    {"q6_k", DS_DTYPE_Q6_K, DS_DTYPE_Q6_K, DS_DTYPE_Q6_K, 18},
};

static ds_status find_mix(ds_ctx *ctx, const char *name, const mix **mix_out)
{
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; ++i) {
        if (name != NULL && strcmp(name, mixes[i].name) == 0) {
            *mix_out = &mixes[i];
            return DS_OK;
        }
    }
    return ds_fail(
        ctx, DS_ERR_ARG,
        "the type %s is not written; f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, "
        "q4_k_m, q5_k, q5_k_m and q6_k are",
        name != NULL ? name : "NULL");
}

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name);
    const size_t m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* The layers that a mix has in more bits: the first and the last eighth, and each third between. */
static bool has_more(const char *name, int64_t n_layers)
{
    const int64_t layer = strncmp(name, "blk.", 4) == 0 ? strtoll(name + 4, NULL, 10) : -1;
    return layer >= 0 &&
           (ends_with(name, ".attn_v.weight") || ends_with(name, ".ffn_down.weight")) &&
           (layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2);
}

static ds_dtype dtype_of(const mix *m, const char *name, ds_shape shape, int64_t n_layers)
{
    const bool outer = strcmp(name, "token_embd.weight") == 0 || strcmp(name, "output.weight") == 0;
    if (shape.n_dims < 2 || strcmp(name, "position_embd.weight") == 0) {
        return DS_DTYPE_F32;
    }
    const ds_dtype want = outer ? m->outer : has_more(name, n_layers) ? m->more : m->dtype;
    if (!dsi_is_blocks(want)) {
        return want;
    }
    const ds_dtype fits = dsi_blocks_fitting(want, ds_shape_last(shape));
    return fits != DS_DTYPE_NONE ? fits : DS_DTYPE_F16;
}

/* ---- where rows come from -------------------------------------------------------------------- */

typedef struct source {
    ds_ctx *ctx;
    /* of a folder */
    dsi_stored stored;
    dsi_gguf_layout layout;
    int64_t heads;
    ds_shape shape; /* in the file */
    float *whole;   /* of TRANSPOSED, while it is written */
    const float *divisors;
    /* of a file */
    const dsi_gguf *gguf;
    const dsi_gguf_tensor *tensor;
    ds_dtype dtype; /* that is written */
} source;

/* The folder's row that is row s of the file: the halves of a head are interleaved there. */
static int64_t folder_row(const source *s, int64_t n, int64_t r)
{
    const int64_t head = n / s->heads;
    const int64_t at = r % head;
    return r / head * head + at % 2 * (head / 2) + at / 2;
}

static ds_status read_transposed(source *s, int64_t row, float *out)
{
    const int64_t rows = s->shape.dims[0];
    const int64_t k = s->shape.dims[1];
    if (s->whole == NULL) {
        s->whole = malloc((size_t)(rows * k) * sizeof *s->whole);
        if (s->whole == NULL) {
            return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for %s", s->stored.from->name);
        }
        DS_TRY(dsi_stored_read(&s->stored, 0, rows * k, s->whole));
    }
    for (int64_t i = 0; i < k; ++i) {
        out[i] = s->whole[i * rows + row];
    }
    if (row == rows - 1) {
        free(s->whole);
        s->whole = NULL;
    }
    return DS_OK;
}

static ds_status read_folder(void *user, int64_t row, float *out)
{
    source *s = user;
    const int64_t k = ds_shape_last(s->shape);
    if (s->divisors != NULL) {
        memcpy(out, s->divisors, (size_t)k * sizeof *out);
        return DS_OK;
    }
    if (s->layout == DSI_GGUF_TRANSPOSED) {
        return read_transposed(s, row, out);
    }
    if (s->layout == DSI_GGUF_PAIRS && s->shape.n_dims == 1) {
        for (int64_t i = 0; i < k; ++i) {
            DS_TRY(dsi_stored_read(&s->stored, folder_row(s, k, i), 1, out + i));
        }
        return DS_OK;
    }
    const int64_t from = s->layout == DSI_GGUF_PAIRS ? folder_row(s, s->shape.dims[0], row) : row;
    DS_TRY(dsi_stored_read(&s->stored, from * k, k, out));
    if (row == ds_shape_rows(s->shape) - 1) {
        dsi_stored_rest(&s->stored);
    }
    return DS_OK;
}

static ds_status read_file(void *user, int64_t row, float *out)
{
    const source *s = user;
    return dsi_gguf_read_rows(s->gguf, s->tensor, row, 1, out);
}

static const uint8_t *stored_row(void *user, int64_t row)
{
    const source *s = user;
    const size_t rows = (size_t)ds_shape_rows(s->shape);
    return s->dtype == dsi_gguf_dtype_of(s->tensor->type->id)
               ? s->tensor->data + (size_t)row * (s->tensor->bytes / rows)
               : NULL;
}

/* ---- one writing ----------------------------------------------------------------------------- */

typedef struct work {
    ds_ctx *ctx;
    const ds_gguf_write_params *params;
    const mix *mix;
    dsi_gguf_out *out;
    source *sources;
    size_t n_sources, n_room;
    int64_t n_layers;
    /* of a folder */
    const dsi_gguf_arch *arch;
    ds_safetensors *st;
    dsi_stored_forms forms;
    const ds_safetensor *table; /* the embedding */
    json_t *config;
    float *divisors;
    /* of a file */
    dsi_gguf *gguf;
} work;

static ds_status add(work *w, const char *name, const source *from)
{
    source *s = &w->sources[w->n_sources++];
    *s = *from;
    s->ctx = w->ctx;
    s->dtype = dtype_of(w->mix, name, s->shape, w->n_layers);
    const bool is_file = s->gguf != NULL;
    const dsi_gguf_rows rows = {is_file ? read_file : read_folder, is_file ? stored_row : NULL, s};
    return dsi_gguf_out_tensor(w->out, name, (ds_meta){s->dtype, s->shape}, &rows);
}

static ds_status make_room(work *w, size_t n)
{
    w->sources = calloc(n, sizeof *w->sources);
    w->n_room = n;
    return w->sources != NULL ? DS_OK : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for tensors");
}

static void put_label(work *w)
{
    dsi_gguf_out_u32(w->out, "general.file_type", w->mix->label);
    dsi_gguf_out_u32(w->out, "general.quantization_version", 2);
}

/* ---- from a file ----------------------------------------------------------------------------- */

static ds_status from_file(work *w)
{
    DS_TRY(dsi_gguf_open(w->ctx, w->params->source, &w->gguf));
    const size_t n = dsi_gguf_n_tensors(w->gguf);
    const dsi_gguf_entry *layers = dsi_gguf_field(w->gguf, "block_count");
    w->n_layers = layers != NULL && layers->n == 1 ? (int64_t)dsi_gguf_number(layers, 0) : 0;
    for (size_t i = 0; i < dsi_gguf_n_entries(w->gguf); ++i) {
        const dsi_gguf_entry *e = dsi_gguf_entry_at(w->gguf, i);
        if (dsi_gguf_text_is(e->key, "split.count")) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED, "%s: a file of several parts is not read",
                           w->params->source);
        }
        const bool tokens = e->key.n > 10 && memcmp(e->key.data, "tokenizer.", 10) == 0;
        if (!dsi_gguf_text_is(e->key, "general.file_type") &&
            !dsi_gguf_text_is(e->key, "general.quantization_version") &&
            !dsi_gguf_text_is(e->key, "general.alignment") &&
            !(tokens && w->params->no_tokenizer)) {
            dsi_gguf_out_copy(w->out, e);
        }
    }
    put_label(w);
    DS_TRY(make_room(w, n + 1));
    for (size_t i = 0; i < n; ++i) {
        const dsi_gguf_tensor *t = dsi_gguf_tensor_at(w->gguf, i);
        char name[DSI_GGUF_NAME_BYTES];
        if (t->name.n >= sizeof name || t->type->read == NULL) {
            return ds_fail(w->ctx, DS_ERR_UNSUPPORTED, "%s: the type %s of %.*s is not read",
                           w->params->source, t->type->name,
                           (int)(t->name.n < 100 ? t->name.n : 100), t->name.data);
        }
        memcpy(name, t->name.data, t->name.n);
        name[t->name.n] = '\0';
        DS_TRY(add(w, name, &(source){.gguf = w->gguf, .tensor = t, .shape = t->shape}));
    }
    return DS_OK;
}

/* ---- from a folder --------------------------------------------------------------------------- */

static ds_status read_config(work *w)
{
    char *path = dsi_path_join(w->params->source, "config.json");
    dsi_buf buf = dsi_buf_make(CONFIG_CEILING);
    ds_status status = path != NULL ? dsi_buf_read_file(w->ctx, path, &buf)
                                    : ds_fail(w->ctx, DS_ERR_NOMEM, "no memory for config.json");
    if (status >= 0) {
        status =
            dsi_json_load(w->ctx, path, dsi_buf_text(&buf), buf.size, 0, DS_ERR_FORMAT, &w->config);
    }
    dsi_buf_free(&buf);
    free(path);
    DS_TRY(status);
    const char *type = json_string_value(json_object_get(w->config, "model_type"));
    w->arch = dsi_gguf_arch_of_model(type != NULL ? type : "");
    return w->arch != NULL
               ? DS_OK
               : ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                         "config.json: \"model_type\" is \"%s\"; llama, mistral, qwen2, qwen3 and "
                         "gpt2 are written as GGUF",
                         type != NULL ? type : "");
}

static int64_t count_at(const work *w, const char *name, int64_t otherwise)
{
    const json_t *v = json_object_get(w->config, name);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
}

/* What a tied model's files hold as output projection is left out: the embedding, again. */
static ds_status check_tied(const work *w, const dsi_stored *head)
{
    const ds_safetensor *a = w->table;
    const ds_safetensor *b = head->from;
    return dsi_stored_is_plain(&w->forms, head) && a->meta.dtype == b->meta.dtype &&
                   ds_shape_equal(a->meta.shape, b->meta.shape) && a->bytes == b->bytes &&
                   memcmp(a->data, b->data, a->bytes) == 0
               ? DS_OK
               : ds_fail(w->ctx, DS_ERR_FORMAT,
                         "%s: %s differs from %s, but config.json has \"tie_word_embeddings\": "
                         "true: set it to false to use both, or leave %s out",
                         b->path, b->name, a->name, b->name);
}

static ds_status add_folder_tensor(work *w, const ds_safetensor *t, bool tied)
{
    dsi_gguf_target target;
    dsi_stored stored;
    char name[DSI_STORED_NAME_BYTES];
    DS_TRY(dsi_stored_find(w->ctx, w->st, &w->forms, t, name, &stored));
    if (name[0] == '\0') {
        return DS_OK;
    }
    if (strcmp(name, "lm_head.weight") == 0 && tied) {
        return check_tied(w, &stored);
    }
    DS_TRY(dsi_gguf_place_back(w->ctx, w->arch, name, &target));
    if (target.name[0] == '\0') {
        return DS_OK;
    }
    const int64_t heads = count_at(w, "num_attention_heads", 1);
    source s = {.stored = stored,
                .layout = target.layout,
                .heads = target.of_keys ? count_at(w, "num_key_value_heads", heads) : heads,
                .shape = stored.shape};
    const bool pairs = s.layout == DSI_GGUF_PAIRS &&
                       (s.shape.n_dims > 2 || s.heads < 1 || s.shape.dims[0] % (2 * s.heads) != 0);
    if (s.shape.n_dims == 0 || pairs || (s.layout == DSI_GGUF_TRANSPOSED && s.shape.n_dims != 2)) {
        return ds_fail(w->ctx, DS_ERR_SHAPE, "%s has not the shape of its heads", t->name);
    }
    if (s.layout == DSI_GGUF_TRANSPOSED &&
        (stored.form.layout != DSI_INT4_NONE || dsi_bnb_is_stored(w->forms.bnb, t))) {
        return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                       "%s: a Conv1D in four bits is not read (nor one of bitsandbytes)", t->name);
    }
    if (s.layout == DSI_GGUF_TRANSPOSED) {
        s.shape = ds_shape_2d(stored.shape.dims[1], stored.shape.dims[0]);
    }
    DS_TRY(dsi_stored_open(w->st, &w->forms, &s.stored));
    return add(w, target.name, &s); /* which keeps what was opened */
}

static ds_status from_folder(work *w)
{
    int64_t n_divisors = 0;
    DS_TRY(read_config(w));
    DS_TRY(ds_safetensors_open_folder(w->ctx, w->params->source, &w->st));
    DS_TRY(dsi_stored_forms_of(w->ctx, w->st, &w->forms));
    DS_TRY(dsi_gguf_export_config(w->ctx, w->arch, w->config, w->out, &w->divisors, &n_divisors));
    put_label(w);
    const size_t n = ds_safetensors_count(w->st);
    const ds_safetensor *table = ds_safetensors_find(
        w->st, w->arch->gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight");
    table = table != NULL || !w->arch->gpt2 ? table : ds_safetensors_find(w->st, "wte.weight");
    if (table == NULL || table->meta.shape.n_dims != 2) {
        return ds_fail(w->ctx, DS_ERR_FORMAT, "%s: the embedding is missing", w->params->source);
    }
    w->table = table;
    if (!w->params->no_tokenizer) {
        DS_TRY(dsi_gguf_export_tokenizer(w->ctx, w->params->source, w->config,
                                         table->meta.shape.dims[0], w->out));
    }
    const json_t *tie = json_object_get(w->config, "tie_word_embeddings");
    const bool tied = tie != NULL ? json_is_true(tie) : w->arch->gpt2;
    w->n_layers = count_at(w, w->arch->gpt2 ? "n_layer" : "num_hidden_layers", 0);
    DS_TRY(make_room(w, n + 2));
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(add_folder_tensor(w, ds_safetensors_at(w->st, i), tied));
    }
    if (w->divisors != NULL) {
        DS_TRY(add(w, "rope_freqs.weight",
                   &(source){.divisors = w->divisors, .shape = ds_shape_1d(n_divisors)}));
    }
    return DS_OK;
}

/* ---- what a file says, read back ------------------------------------------------------------- */

/* What a model computes, as text: how its weights would be drawn is no part of that. */
static ds_status graph_of(ds_ctx *ctx, const ds_model *model, char **text_out)
{
    const ds_trace trace = {.mode = DS_TRACE_GENERATE,
                            .dtype = DS_DTYPE_F32,
                            .batch = 1,
                            .seq_length = LENGTH,
                            .kv_length = 2 * LENGTH};
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    ds_nn *nn = NULL;
    ds_status status = ds_cells_create(ctx, CELLS, &cells);
    status = status < 0 ? status : ds_graph_create(ctx, cells, &graph);
    status = status < 0 ? status : ds_nn_create(graph, &trace, &nn);
    status = status < 0 ? status : ds_model_trace(model, nn);
    for (uint32_t i = 0; cells != NULL && i < cells->n; ++i) {
        cells->items[i].init = (ds_init){DS_INIT_ZEROS, 0.0};
    }
    status = status < 0 ? status : ds_graph_print(graph, text_out);
    ds_nn_destroy(&nn);
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    return status;
}

static ds_status graph_of_config(ds_ctx *ctx, const json_t *config, char **text_out)
{
    char *text = json_dumps(config, 0);
    ds_model *model = NULL;
    ds_status status = text != NULL ? ds_model_from_text(ctx, text, &model)
                                    : ds_fail(ctx, DS_ERR_NOMEM, "no memory for config.json");
    status = status < 0 ? status : graph_of(ctx, model, text_out);
    ds_model_destroy(&model);
    free(text);
    return status;
}

/* Whether the model of `base` computes another thing, `graph` no longer, with the key as `from`
 * has it. */
static bool matters(ds_ctx *ctx, const json_t *base, const char *graph, const json_t *from,
                    const char *key)
{
    json_t *changed = json_copy((json_t *)(uintptr_t)base);
    json_t *value = json_object_get(from, key);
    char *text = NULL;
    const bool set = changed != NULL && (value != NULL ? json_object_set(changed, key, value) == 0
                                                       : json_object_del(changed, key) == 0);
    const bool differs =
        set && graph_of_config(ctx, changed, &text) >= 0 && strcmp(text, graph) != 0;
    free(text);
    json_decref(changed);
    return differs;
}

typedef struct reading {
    const json_t *config;
    char *graph;
} reading;

/* The keys of own's config that make the difference: in what was read with one of them in its
 * place, else in own without one. */
static ds_status differ(ds_ctx *ctx, const reading *own, const reading *back)
{
    dsi_buf keys = dsi_buf_make(4096);
    for (int k = 0; k < 2 && keys.size == 0; ++k) {
        const reading *base = k == 0 ? back : own;
        const json_t *from = k == 0 ? own->config : back->config;
        const char *key = NULL;
        json_t *value = NULL;
        json_object_foreach((json_t *)(uintptr_t)own->config, key, value)
        {
            if (matters(ctx, base->config, base->graph, from, key)) {
                dsi_buf_printf(&keys, "%s\"%s\"", keys.size > 0 ? ", " : "", key);
            }
        }
    }
    const char *a = own->graph;
    const char *b = back->graph;
    while (strcspn(a, "\n") == strcspn(b, "\n") && memcmp(a, b, strcspn(a, "\n")) == 0) {
        a += strcspn(a, "\n") + 1; /* some line differs: neither ends here */
        b += strcspn(b, "\n") + 1;
    }
    const ds_status status =
        keys.size > 0
            ? ds_fail(ctx, DS_ERR_UNSUPPORTED,
                      "config.json: %.400s: a GGUF file has no word for it here; the model that "
                      "is read from it would compute something else",
                      dsi_buf_text(&keys))
            : ds_fail(ctx, DS_ERR_UNSUPPORTED,
                      "config.json has something that a GGUF file has no word for here: the model "
                      "would compute\n  %.*s\nwhere the folder's computes\n  %.*s",
                      (int)strcspn(b, "\n"), b, (int)strcspn(a, "\n"), a);
    dsi_buf_free(&keys);
    return status;
}

/* The config.json that is read from the file makes the folder's graph. */
static ds_status check_file(void *user, const char *path)
{
    const work *w = user;
    dsi_gguf *gguf = NULL;
    json_t *config = NULL;
    reading own = {w->config, NULL};
    reading back = {NULL, NULL};
    ds_status status = dsi_gguf_open(w->ctx, path, &gguf);
    status = status < 0 ? status : dsi_gguf_config(w->ctx, gguf, &config);
    back.config = config;
    status = status < 0 ? status : graph_of_config(w->ctx, own.config, &own.graph);
    status = status < 0 ? status : graph_of_config(w->ctx, back.config, &back.graph);
    if (status >= 0 && strcmp(own.graph, back.graph) != 0) {
        status = differ(w->ctx, &own, &back);
    }
    free(own.graph);
    free(back.graph);
    json_decref(config);
    dsi_gguf_close(&gguf);
    return status;
}

static ds_status write_all(work *w)
{
    const size_t n = strlen(w->params->source);
    const bool is_file = n > 5 && strcmp(w->params->source + n - 5, ".gguf") == 0;
    DS_TRY(find_mix(w->ctx, w->params->type, &w->mix));
    DS_TRY(dsi_gguf_out_create(w->ctx, &w->out));
    DS_TRY(is_file ? from_file(w) : from_folder(w));
    return dsi_gguf_out_write(w->out, w->params->file, is_file ? NULL : check_file, w);
}

ds_status ds_gguf_write(ds_ctx *ctx, const ds_gguf_write_params *params)
{
    work w = {.ctx = ctx, .params = params};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_gguf_write_params", params));
    const ds_status status = write_all(&w);
    for (size_t i = 0; i < w.n_sources; ++i) {
        free(w.sources[i].whole);
        dsi_stored_close(&w.sources[i].stored);
    }
    free(w.sources);
    free(w.divisors);
    json_decref(w.config);
    ds_safetensors_close(&w.st);
    dsi_gguf_close(&w.gguf);
    dsi_gguf_out_destroy(&w.out);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What may vary: read from the user's configuration and the section autotuning. See tune_impl.h.
 *
 * A value that the user wrote stays; a list of values is a choice; what is absent or "auto" is
 * open: stage, micro-batch, recomputation, and with `fast` false the other settings of ZeRO.
 */
#include "tune/tune_impl.h"

#include "base/number.h"
#include "config/config_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ARENA_CEILING = 64 << 20,
    PATH_BYTES = 256,
    MOST_BATCH = 1 << 24,
    MOST_WIDTH = 1 << 24,
    MOST_BATCHES = 64
};

#define MOST_ROWS 0x1p53 /* of all ranks in a step */

typedef struct reader {
    dsi_tune *t;
    dsi_tune_space *space;
    const dsi_node *root;
    ds_status status;
} reader;

static void fail(reader *r, const char *key, const char *text)
{
    if (r->status >= 0) {
        r->status = ds_fail(r->t->ctx, DS_ERR_CONFIG, "%s: %s: %s", r->t->config_path, key, text);
    }
}

static bool is_open(const dsi_node *node)
{
    return node == NULL || node->kind == DSI_NODE_NULL || dsi_node_is_text(node, "auto");
}

/* ---- stages ---- */

static void add_stage(reader *r, const dsi_node *node)
{
    dsi_tune_space *s = r->space;
    int64_t stage = -1;
    if (dsi_node_is_text(node, "all")) {
        for (int64_t i = 0; i < 4; ++i) {
            s->stages[i] = i;
        }
        s->n_stages = 4;
        return;
    }
    if (!dsi_node_int(node, &stage) || stage < 0 || stage > 3) {
        fail(r, "zero_optimization.stage",
             "expected a stage from 0 to 3, a list of them, or \"all\"");
        return;
    }
    for (uint32_t i = 0; i < s->n_stages; ++i) {
        if (s->stages[i] == stage) {
            return;
        }
    }
    s->stages[s->n_stages++] = stage;
}

/* Whether the user sends something away, for which a stage is needed. */
static bool offloads(const dsi_node *zero, const char *section)
{
    const dsi_node *device = dsi_node_find(dsi_node_find(zero, section), "device");
    return device != NULL && !dsi_node_is_text(device, "none");
}

static void read_stages(reader *r)
{
    dsi_tune_space *s = r->space;
    const dsi_node *zero = dsi_node_find(r->root, "zero_optimization");
    const dsi_node all = {.kind = DSI_NODE_TEXT, .as.text = "all"};
    const dsi_node *stage = dsi_node_find(zero, "stage");
    if (zero != NULL && zero->kind == DSI_NODE_BOOL) { /* DeepSpeed's old form */
        s->stages[s->n_stages++] = zero->as.truth ? 1 : 0;
        return;
    }
    if (stage != NULL && stage->kind == DSI_NODE_LIST && stage->first != NULL) {
        for (const dsi_node *n = stage->first; n != NULL; n = n->next) {
            add_stage(r, n);
        }
    } else {
        add_stage(r, is_open(stage) ? &all : stage);
    }
    if (r->t->n_data_ranks == 1 && s->n_stages > 1 && !offloads(zero, "offload_optimizer") &&
        !offloads(zero, "offload_param")) {
        s->n_stages = 1; /* they are all the same plan */
        s->one_stage = true;
    }
}

enum { SHARES = 2 };
static const char *const share_keys[SHARES] = {"tensor_parallel.autotp_size",
                                               "sequence_parallel_size"};

static const dsi_node *share_of(const reader *r, uint32_t i)
{
    return i == 0 ? dsi_node_find(dsi_node_find(r->root, "tensor_parallel"), "autotp_size")
                  : dsi_node_find(r->root, "sequence_parallel_size");
}

/* A size that does not divide the ranks is for the trial to refuse, by its name. Of a list the
 * first counts. */
static void share_ranks(reader *r, const dsi_node *size)
{
    int64_t n = 0;
    size = size != NULL && size->kind == DSI_NODE_LIST ? size->first : size;
    if (size != NULL && dsi_node_int(size, &n) && n > 1 && r->t->n_data_ranks % n == 0) {
        r->t->n_data_ranks = (uint32_t)(r->t->n_data_ranks / n);
    }
}

static void read_data_ranks(reader *r)
{
    r->t->n_data_ranks = r->t->n_ranks;
    share_ranks(r, dsi_node_find(dsi_node_find(r->root, "pipeline"), "stages"));
    for (uint32_t i = 0; i < SHARES; ++i) {
        share_ranks(r, share_of(r, i));
    }
}

/* ---- batches ---- */

/* A number of the file; else the flag's; else what is usual. */
static int64_t number_of(reader *r, const char *key, int64_t usual)
{
    const dsi_node *node = dsi_node_find(r->root, key);
    const char *flag = dsi_tune_flag_value(r->t, key);
    int64_t value = usual;
    if (!is_open(node)) {
        if (!dsi_node_int(node, &value) || value < 1) {
            fail(r, key, "expected a whole number of at least 1, or \"auto\"");
        }
    } else if (flag != NULL) {
        if (!dsi_number_int(flag, 1, INT32_MAX, &value)) {
            fail(r, key, "the command's flag for it is no whole number of at least 1");
        }
    }
    return value;
}

static void add_batch(reader *r, int64_t batch)
{
    const ds_config_autotuning *o = &r->t->options;
    dsi_tune_space *s = r->space;
    const double rows = s->rows > 0 ? (double)s->rows : (double)batch * (double)s->accumulation;
    const double all = rows * (double)r->t->n_data_ranks;
    const bool repeated = s->n_batches > 0 && s->batches[s->n_batches - 1] >= batch;
    if (batch >= o->min_micro_batch && batch <= o->max_micro_batch && !repeated &&
        all <= MOST_ROWS &&
        (o->max_train_batch_size == 0 || all <= (double)o->max_train_batch_size) &&
        all >= (double)o->min_train_batch_size && s->n_batches < MOST_BATCHES) {
        s->batches[s->n_batches++] = batch;
    }
}

/* 1, 2, 3, 4, 6, 8, 12, … times the smallest. */
static void rising_batches(reader *r, int64_t least)
{
    const int64_t given = r->t->options.max_micro_batch;
    const int64_t most = given < MOST_BATCH ? given : MOST_BATCH;
    for (int64_t b = least; b <= most; b *= 2) {
        add_batch(r, b);
        if (b % 2 == 0) {
            add_batch(r, b / 2 * 3);
        }
    }
}

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a;
    const int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void listed_batches(reader *r, const dsi_node *list)
{
    int64_t values[MOST_BATCHES];
    size_t n = 0;
    for (const dsi_node *node = list->first; node != NULL; node = node->next) {
        if (n == MOST_BATCHES) {
            fail(r, "train_micro_batch_size_per_gpu", "expected at most 64 values");
            return;
        }
        if (!dsi_node_int(node, &values[n]) || values[n] < 1) {
            fail(r, "train_micro_batch_size_per_gpu", "expected whole numbers of at least 1");
            return;
        }
        ++n;
    }
    qsort(values, n, sizeof *values, by_value);
    for (size_t i = 0; i < n; ++i) {
        add_batch(r, values[i]);
    }
}

/* With a fixed global batch a micro-batch divides a rank's rows. */
static void dividing_batches(reader *r, int64_t least)
{
    const int64_t given = r->t->options.max_micro_batch;
    const int64_t most = given < MOST_BATCH ? given : MOST_BATCH;
    for (int64_t b = least; b <= r->space->rows && b <= most; ++b) {
        if (r->space->rows % b == 0) {
            add_batch(r, b);
        }
    }
}

static void read_rows(reader *r)
{
    const dsi_node *total = dsi_node_find(r->root, "train_batch_size");
    int64_t rows = 0;
    if (is_open(total)) {
        return;
    }
    if (!dsi_node_int(total, &rows) || rows < 1 || rows % (int64_t)r->t->n_data_ranks != 0) {
        char text[160];
        (void)snprintf(text, sizeof text,
                       "expected a multiple of the %u ranks, since the search keeps it; remove it "
                       "to let the batch grow",
                       r->t->n_data_ranks);
        fail(r, "train_batch_size", text);
        return;
    }
    r->space->rows = rows / (int64_t)r->t->n_data_ranks;
}

static void read_batches(reader *r)
{
    const dsi_node *micro = dsi_node_find(r->root, "train_micro_batch_size_per_gpu");
    const dsi_node *steps = dsi_node_find(r->root, "gradient_accumulation_steps");
    const bool is_list = micro != NULL && micro->kind == DSI_NODE_LIST;
    if (steps != NULL && steps->kind == DSI_NODE_LIST) {
        fail(r, "gradient_accumulation_steps",
             "expected one number: the search does not take a list of them; give "
             "train_batch_size and a list of train_micro_batch_size_per_gpu");
        return;
    }
    read_rows(r);
    r->space->accumulation = number_of(r, "gradient_accumulation_steps", 1);
    const int64_t least = is_list ? 1 : number_of(r, "train_micro_batch_size_per_gpu", 1);
    if (r->status < 0) {
        return;
    }
    if (is_list) {
        listed_batches(r, micro);
    } else if (r->space->rows > 0) {
        dividing_batches(r, is_open(micro) ? 1 : least);
    } else {
        rising_batches(r, least > r->t->options.min_micro_batch ? least
                                                                : r->t->options.min_micro_batch);
    }
    if (r->status >= 0 && r->space->n_batches == 0) {
        fail(r, "train_micro_batch_size_per_gpu",
             "no micro-batch is left within autotuning's bounds of micro-batch and batch, "
             "accumulation and ranks");
    }
}

/* ---- recomputation, lists, the other settings of ZeRO ---- */

static void value_text(reader *r, const char *key, const dsi_node *node, char *out, size_t size)
{
    dsi_buf buf = dsi_buf_make(1 << 16);
    char text[96];
    dsi_node_json(&buf, node);
    (void)snprintf(out, size, "%s", dsi_buf_text(&buf));
    if (buf.failed || buf.size >= size) {
        (void)snprintf(text, sizeof text, "expected values of a list of at most %zu characters",
                       size - 1);
        fail(r, key, text);
    }
    dsi_buf_free(&buf);
}

static void read_recompute(reader *r)
{
    static const char key[] = "activation_checkpointing.recompute";
    static const char *const usual[] = {"\"none\"", "\"selective\"", "\"full\""};
    const dsi_node *section = dsi_node_find(r->root, "activation_checkpointing");
    const dsi_node *how = dsi_node_find(section, "recompute");
    const bool decided = dsi_node_find(section, "number_checkpoints") != NULL;
    dsi_tune_space *s = r->space;
    if (how != NULL && how->kind == DSI_NODE_LIST) {
        for (const dsi_node *n = how->first; n != NULL; n = n->next) {
            if (s->n_recompute == 4) {
                fail(r, key, "expected a list of at most 4 values");
                return;
            }
            value_text(r, key, n, s->recompute[s->n_recompute++], sizeof s->recompute[0]);
        }
    } else if ((how == NULL || how->kind == DSI_NODE_NULL) && !decided && r->t->planner != NULL) {
        for (; s->n_recompute < 3; ++s->n_recompute) {
            (void)snprintf(s->recompute[s->n_recompute], sizeof s->recompute[0], "%s",
                           usual[s->n_recompute]);
        }
    }
}

static dsi_tune_axis *add_axis(reader *r, const char *path, int64_t from_stage)
{
    if (r->space->n_axes == DSI_TUNE_AXES) {
        fail(r, path, "more lists of values than the search takes, 16");
        return NULL;
    }
    dsi_words_add(&r->t->texts, path);
    if (r->t->texts.failed) {
        r->status = ds_fail(r->t->ctx, DS_ERR_NOMEM, "no memory for a key");
        return NULL;
    }
    dsi_tune_axis *axis = &r->space->axes[r->space->n_axes++];
    *axis = (dsi_tune_axis){.path = r->t->texts.items[r->t->texts.n - 1], .from_stage = from_stage};
    return axis;
}

/* Every list of plain values in ZeRO's section and those of offload. */
static void read_lists(reader *r, const dsi_node *section, const char *prefix)
{
    char path[PATH_BYTES];
    for (const dsi_node *n = section != NULL ? section->first : NULL; n != NULL; n = n->next) {
        (void)snprintf(path, sizeof path, "%s.%s", prefix, n->key);
        if (n->kind == DSI_NODE_OBJECT && strncmp(n->key, "offload_", 8) == 0) {
            read_lists(r, n, path);
        }
        if (n->kind != DSI_NODE_LIST || strcmp(path, "zero_optimization.stage") == 0) {
            continue;
        }
        dsi_tune_axis *axis = add_axis(r, path, 0);
        for (const dsi_node *v = n->first; axis != NULL && v != NULL; v = v->next) {
            if (v->kind >= DSI_NODE_LIST) {
                return; /* no list of candidates: the configuration's own rules speak */
            }
            if (axis->n == DSI_TUNE_VALUES) {
                fail(r, path, "more values in a list than the search takes, 32");
                return;
            }
            value_text(r, path, v, axis->values[axis->n++], sizeof axis->values[0]);
        }
    }
}

/* Under its name, or the one without "stage3_". */
static bool is_given(const reader *r, const char *key)
{
    const dsi_node *zero = dsi_node_find(r->root, "zero_optimization");
    return dsi_node_find(zero, key) != NULL ||
           (strncmp(key, "stage3_", 7) == 0 && dsi_node_find(zero, key + 7) != NULL);
}

/* Of what the file says nothing the search tries with a planner. */
static void read_silence(reader *r)
{
    const dsi_node *pipeline = dsi_node_find(r->root, "pipeline");
    const dsi_node *tensor = dsi_node_find(r->root, "tensor_parallel");
    dsi_tune_space *s = r->space;
    const bool may = r->t->planner != NULL;
    s->silent_tp = may && share_of(r, 0) == NULL;
    s->silent_sp = may && share_of(r, 1) == NULL;
    s->silent_pp = may && pipeline == NULL;
    s->silent_domino = may && dsi_node_find(tensor, "domino") == NULL;
}

/* Lists of ranks that share layers, or sequences. */
static void read_shares(reader *r)
{
    read_silence(r);
    for (uint32_t i = 0; i < SHARES; ++i) {
        const dsi_node *list = share_of(r, i);
        int64_t first = 0;
        if (list == NULL || list->kind != DSI_NODE_LIST) {
            continue;
        }
        dsi_tune_axis *axis = add_axis(r, share_keys[i], 0);
        for (const dsi_node *v = list->first; axis != NULL && v != NULL; v = v->next) {
            int64_t n = 0;
            if (axis->n == DSI_TUNE_VALUES || !dsi_node_int(v, &n) || n < 1 ||
                (first > 0 && n % first != 0)) {
                fail(r, share_keys[i],
                     "expected a list of at most 32 whole numbers, each a multiple of the first");
                return;
            }
            first = first > 0 ? first : n;
            (void)snprintf(axis->values[axis->n++], sizeof axis->values[0], "%" PRId64, n);
            axis->shares = true;
        }
    }
}

static void usual_axis(reader *r, const char *key, int64_t from_stage, const char *const *values)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "zero_optimization.%s", key);
    dsi_tune_axis *axis = is_given(r, key) ? NULL : add_axis(r, path, from_stage);
    for (; axis != NULL && *values != NULL; ++values) {
        (void)snprintf(axis->values[axis->n++], sizeof axis->values[0], "%s", *values);
    }
}

/* DeepSpeed's spaces, as far as these settings change a plan here. */
static void usual_axes(reader *r)
{
    static const char *const buckets[] = {"500000000", "50000000", "1000000000", NULL};
    static const char *const truth[] = {"true", "false", NULL};
    char own[2][32] = {"50000000", "100000"};
    const int64_t width = r->t->options.hidden_size;
    if (width > MOST_WIDTH) {
        fail(r, "autotuning.model_info.hidden_size", "expected at most 16777216");
    } else if (width > 0) {
        (void)snprintf(own[0], sizeof own[0], "%" PRId64, width * width * 9 / 10);
        (void)snprintf(own[1], sizeof own[1], "%" PRId64, 10 * width);
    }
    const char *const ahead[] = {own[0], "0", NULL};
    const char *const kept[] = {own[1], "0", NULL};
    usual_axis(r, "reduce_bucket_size", 1, buckets);
    usual_axis(r, "allgather_bucket_size", 1, buckets);
    usual_axis(r, "overlap_comm", 1, truth);
    usual_axis(r, "reduce_scatter", 2, truth);
    usual_axis(r, "stage3_prefetch_bucket_size", 3, ahead);
    usual_axis(r, "stage3_param_persistence_threshold", 3, kept);
}

/* Where states may go when nothing fits. */
static void read_offload(reader *r)
{
    const dsi_node *zero = dsi_node_find(r->root, "zero_optimization");
    const dsi_node *states = dsi_node_find(zero, "offload_optimizer");
    const dsi_node *params = dsi_node_find(zero, "offload_param");
    const dsi_node *device = dsi_node_find(states, "device");
    const bool disk = dsi_node_find(states, "nvme_path") != NULL;
    const bool limited = dsi_node_find(r->root, "device_memory") != NULL;
    if (device != NULL && !dsi_node_is_text(device, "none")) {
        return; /* the user has decided */
    }
    r->space->offload = disk ? "\"nvme\"" : limited ? "\"cpu\"" : NULL;
    r->space->offload_params =
        disk ? dsi_node_find(params, "nvme_path") != NULL : dsi_node_find(params, "device") == NULL;
}

/* The first folder of a section's nvme_path. */
static void take_disk(reader *r, const dsi_node *section)
{
    const dsi_node *path = dsi_node_find(section, "nvme_path");
    if (path != NULL && path->kind == DSI_NODE_TEXT && r->space->disk[0] == '\0') {
        const int n = (int)strcspn(path->as.text, ",");
        (void)snprintf(r->space->disk, sizeof r->space->disk, "%.*s", n, path->as.text);
    }
}

static void read_disk(reader *r)
{
    const dsi_node *zero = dsi_node_find(r->root, "zero_optimization");
    take_disk(r, dsi_node_find(zero, "offload_optimizer"));
    take_disk(r, dsi_node_find(zero, "offload_param"));
    take_disk(r, dsi_node_find(r->root, "activation_checkpointing"));
}

ds_status dsi_tune_read_space(dsi_tune *t)
{
    dsi_arena *arena = NULL;
    DS_TRY(dsi_arena_create(ARENA_CEILING, &arena));
    dsi_diags diags = {.name = t->config_path, .arena = arena};
    reader r = {.t = t, .space = &t->space};
    r.root = dsi_config_read(&diags, dsi_buf_text(&t->raw), t->raw.size);
    if (r.root == NULL || diags.n_errors > 0) {
        r.status = ds_fail(t->ctx, DS_ERR_CONFIG, "%s: no configuration", t->config_path);
    } else {
        read_data_ranks(&r);
        read_stages(&r);
        read_batches(&r);
        read_recompute(&r);
        read_lists(&r, dsi_node_find(r.root, "zero_optimization"), "zero_optimization");
        read_shares(&r);
        if (!t->options.fast) {
            usual_axes(&r);
        }
        read_offload(&r);
        read_disk(&r);
    }
    dsi_arena_destroy(&arena);
    return r.status;
}

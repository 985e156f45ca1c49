/* SPDX-License-Identifier: Apache-2.0 */
/* ds_config: load, resolve, read. See include/deepspeed/config.h.
 *
 * A config keeps the text of its file and evaluates it anew for each resolve, into a fresh arena:
 * so an evaluation never sees what an earlier one changed.
 */
#include "base/reserved.h"
#include "config/config_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_CEILING = 256 << 20, REPORT_CEILING = 1 << 20 };

static dsi_buf item_text(const dsi_item *item)
{
    dsi_buf buf = dsi_buf_make(DSI_READ_MAX_BYTES);
    if (item->open) {
        dsi_buf_puts(&buf, "\"auto\"");
    } else if (item->given != NULL && item->given->kind == DSI_NODE_LIST &&
               (item->option->flags & DSI_OPT_GROUPS) != 0) {
        dsi_node_json(&buf, item->given);
    } else if (item->node != NULL) {
        const bool secret = (item->option->flags & DSI_OPT_SECRET) != 0;
        if (secret && item->node->kind == DSI_NODE_TEXT) {
            dsi_buf_puts(&buf, "\"(not shown)\"");
        } else {
            dsi_node_json(&buf, item->node);
        }
    } else {
        dsi_buf_puts(&buf, "null");
    }
    return buf;
}

/* Items become what people read. */
static void publish_items(ds_config *config, dsi_eval *eval)
{
    config->items = dsi_arena_array(eval->arena, eval->n_items, sizeof *config->items);
    config->nodes = dsi_arena_array(eval->arena, eval->n_items, sizeof *config->nodes);
    if (config->items == NULL || config->nodes == NULL) {
        eval->no_memory = true;
        return;
    }
    for (size_t i = 0; i < eval->n_items; ++i) {
        const dsi_item *item = &eval->items[i];
        const bool from_file = item->given != NULL;
        dsi_buf buf = item_text(item);
        ds_config_item *out = &config->items[i];
        config->nodes[i] = item->node;
        out->path = item->path;
        out->value = dsi_arena_strdup(eval->arena, dsi_buf_text(&buf));
        out->origin = item->origin;
        out->line = from_file ? item->given->line : 0;
        out->column = from_file ? item->given->column : 0;
        out->detail = item->detail != NULL ? item->detail
                      : from_file ? dsi_eval_text(eval, "%s:%" PRIu32 ":%" PRIu32, config->name,
                                                  out->line, out->column)
                                  : "";
        eval->no_memory = eval->no_memory || out->value == NULL || buf.failed;
        dsi_buf_free(&buf);
    }
    config->n_items = eval->n_items;
}

static void evaluate(ds_config *config, dsi_eval *eval)
{
    dsi_node *root = dsi_config_read(
        eval->diags, config->text.data != NULL ? config->text.data : "", config->text.size);
    if (root == NULL) {
        return;
    }
    config->kind =
        config->params.kind == DS_CONFIG_ANY ? dsi_config_guess(root) : config->params.kind;
    eval->root = dsi_config_roots[config->kind];
    if (config->kind == DS_CONFIG_TRAINING) {
        dsi_config_migrate(eval, root);
        dsi_config_sections(eval, root);
        dsi_config_walk(eval, root);
        dsi_config_auto(eval);
        dsi_config_store(eval);
        dsi_config_data_ranks(eval);
        dsi_config_batch(eval);
        dsi_config_rules(eval);
    } else {
        dsi_config_walk(eval, root);
        dsi_config_store(eval);
        dsi_config_inference_rules(eval, root);
    }
    publish_items(config, eval);
}

static ds_status report(const ds_config *config, const dsi_eval *eval)
{
    const dsi_diags *diags = eval->diags;
    if (eval->no_memory || diags->no_memory) {
        return ds_fail(config->ctx, DS_ERR_NOMEM, "%s: no memory to read the configuration",
                       config->name);
    }
    if (diags->n_errors == 0) {
        return DS_OK;
    }
    dsi_buf buf = dsi_buf_make(REPORT_CEILING);
    dsi_diags_write(diags, &buf);
    const ds_status status = ds_fail(config->ctx, DS_ERR_CONFIG, "%s", dsi_buf_text(&buf));
    dsi_buf_free(&buf);
    return status;
}

/* world_size 0: only what can be said before it is known. */
static ds_status run(ds_config *config, uint32_t world_size, const ds_trainer_values *trainer)
{
    if (trainer != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(config->ctx, "ds_trainer_values", trainer));
    }
    static const ds_trainer_values nothing_known;
    dsi_arena *arena = NULL;
    DS_TRY(dsi_arena_create(ARENA_CEILING, &arena));
    dsi_arena_destroy(&config->arena);
    config->arena = arena;
    config->is_resolved = false;
    config->items = NULL;
    config->n_items = 0;
    memset(&config->diags, 0, sizeof config->diags);
    config->diags.name = config->name;
    config->diags.arena = arena;
    config->diags.no_places = config->is_made;
    dsi_eval eval = {
        .arena = arena,
        .diags = &config->diags,
        .allow_unknown_keys = config->params.allow_unknown_keys,
        .strict = config->params.strict,
        .for_plan = config->params.for_plan,
        .world_size = world_size,
        .trainer = trainer != NULL ? trainer : &nothing_known,
        .items = calloc(DSI_EVAL_MAX_ITEMS, sizeof *eval.items),
        .values = &config->values,
        .usual = dsi_buf_make(4096),
    };
    if (eval.items == NULL) {
        return ds_fail(config->ctx, DS_ERR_NOMEM, "no memory for the items of a configuration");
    }
    evaluate(config, &eval);
    dsi_diags_sort(&config->diags);
    free(eval.items);
    dsi_buf_free(&eval.usual);
    const ds_status status = report(config, &eval);
    config->is_resolved = status >= 0 && world_size != 0;
    return status;
}

static ds_status create(ds_ctx *ctx, const char *name, const ds_config_params *params,
                        ds_config **config_out)
{
    if (params != NULL) {
        DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_config_params", params));
    }
    if (params != NULL && params->strict && params->allow_unknown_keys) {
        return ds_fail(ctx, DS_ERR_ARG, "--strict and --allow_unknown_keys exclude each other");
    }
    ds_config *config = calloc(1, sizeof *config);
    if (config != NULL) {
        config->ctx = ctx;
        config->params = params != NULL ? *params : (ds_config_params){0};
        config->text = dsi_buf_make(DSI_READ_MAX_BYTES);
        config->name = strdup(name);
    }
    if (config == NULL || config->name == NULL) {
        free(config);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a configuration");
    }
    *config_out = config;
    return DS_OK;
}

static ds_status load_text(ds_ctx *ctx, const char *name, const char *text, size_t n, bool is_made,
                           const ds_config_params *params, ds_config **config_out)
{
    ds_config *config = NULL;
    DS_TRY(create(ctx, name, params, &config));
    config->is_made = is_made;
    ds_status status = DS_OK;
    dsi_buf_append(&config->text, text, n);
    if (config->text.failed) {
        status = ds_fail(ctx, DS_ERR_LIMIT,
                         "%s: expected at most %d bytes of configuration, found "
                         "%zu",
                         name, (int)DSI_READ_MAX_BYTES, n);
        goto destroy_config;
    }
    DS_TRY_GOTO(status, run(config, 0, NULL), destroy_config);
    *config_out = config;
    return DS_OK;
destroy_config:
    ds_config_destroy(&config);
    return status;
}

ds_status ds_config_load_text(ds_ctx *ctx, const char *name, const char *text, size_t n,
                              const ds_config_params *params, ds_config **config_out)
{
    return load_text(ctx, name, text, n, false, params, config_out);
}

ds_status dsi_config_load_made(ds_ctx *ctx, const ds_config *of, const char *text,
                               ds_config **config_out)
{
    const ds_config_params params = {.allow_unknown_keys = true};
    return load_text(ctx, of->name, text, strlen(text), true, &params, config_out);
}

static ds_status open_file(ds_ctx *ctx, const char *path, const ds_config_params *params,
                           ds_config **config_out)
{
    ds_config *config = NULL;
    DS_TRY(create(ctx, path, params, &config));
    const ds_status status = dsi_buf_read_file(ctx, path, &config->text);
    if (status < 0) {
        ds_config_destroy(&config);
        return status;
    }
    *config_out = config;
    return DS_OK;
}

ds_status ds_config_load_file(ds_ctx *ctx, const char *path, const ds_config_params *params,
                              ds_config **config_out)
{
    ds_config *config = NULL;
    DS_TRY(open_file(ctx, path, params, &config));
    const ds_status status = run(config, 0, NULL);
    if (status < 0) {
        ds_config_destroy(&config);
        return status;
    }
    *config_out = config;
    return DS_OK;
}

ds_status ds_config_check_file(ds_ctx *ctx, const char *path, const ds_config_params *params,
                               uint32_t world_size, const ds_trainer_values *trainer,
                               size_t *n_errors_out, char **text_out)
{
    ds_config *config = NULL;
    DS_TRY(open_file(ctx, path, params, &config));
    ds_status status = run(config, world_size, trainer);
    if (status == DS_ERR_CONFIG || status >= 0) {
        dsi_buf buf = dsi_buf_make(REPORT_CEILING);
        dsi_diags_write(&config->diags, &buf);
        char *text = strdup(dsi_buf_text(&buf));
        dsi_buf_free(&buf);
        status = text != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a report");
        if (text != NULL) {
            *n_errors_out = config->diags.n_errors;
            *text_out = text;
        }
    }
    ds_config_destroy(&config);
    return status;
}

/* Of init_inference: its `zero` as a configuration of training, which says where weights are. */
static ds_status place_weights(ds_config *config, uint32_t world_size)
{
    const ds_config_inference *inference = &config->values.inference;
    ds_config_destroy(&config->away);
    const bool moves = dsi_node_find(inference->zero, "offload_param") != NULL;
    if (config->kind != DS_CONFIG_INFERENCE || (!moves && !inference->host)) {
        return DS_OK;
    }
    dsi_buf text = dsi_buf_make(DSI_READ_MAX_BYTES);
    dsi_buf_puts(&text, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": ");
    if (moves) {
        dsi_node_json(&text, inference->zero);
    } else {
        dsi_buf_puts(&text, "{\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}");
    }
    dsi_buf_putc(&text, '}');
    ds_status status = text.failed
                           ? ds_fail(config->ctx, DS_ERR_NOMEM, "no memory for zero")
                           : ds_config_load_text(config->ctx, config->name, dsi_buf_text(&text),
                                                 text.size, NULL, &config->away);
    dsi_buf_free(&text);
    config->is_resolved = false;
    DS_TRY(status);
    DS_TRY(ds_config_resolve(config->away, world_size, NULL));
    config->is_resolved = true;
    return DS_OK;
}

ds_status ds_config_resolve(ds_config *config, uint32_t world_size,
                            const ds_trainer_values *trainer)
{
    if (world_size == 0) {
        return ds_fail(config->ctx, DS_ERR_ARG, "expected a world size of at least 1, found 0");
    }
    if (config->kind != DS_CONFIG_TRAINING && trainer != NULL) {
        return ds_fail(config->ctx, DS_ERR_ARG, "%s: a trainer's flags are for training alone",
                       config->name);
    }
    DS_TRY(run(config, world_size, trainer));
    return place_weights(config, world_size);
}

void ds_config_destroy(ds_config **config_inout)
{
    ds_config *config = config_inout != NULL ? *config_inout : NULL;
    if (config == NULL) {
        return;
    }
    ds_config_destroy(&config->away);
    dsi_arena_destroy(&config->arena);
    dsi_buf_free(&config->text);
    free(config->name);
    free(config);
    *config_inout = NULL;
}

ds_config_kind ds_config_get_kind(const ds_config *config)
{
    return config->kind;
}

const ds_config_inference *dsi_config_inference(const ds_config *config)
{
    return &config->values.inference;
}

const ds_config *dsi_config_away(const ds_config *config)
{
    return config->away;
}

const ds_config_values *dsi_config_values(const ds_config *config)
{
    return config->is_resolved ? &config->values : NULL;
}

size_t ds_config_n_items(const ds_config *config)
{
    return config->n_items;
}

const ds_config_item *ds_config_item_at(const ds_config *config, size_t index)
{
    return index < config->n_items ? &config->items[index] : NULL;
}

const ds_config_item *ds_config_find(const ds_config *config, const char *path)
{
    for (size_t i = 0; i < config->n_items; ++i) {
        if (strcmp(config->items[i].path, path) == 0) {
            return &config->items[i];
        }
    }
    return NULL;
}

size_t ds_config_n_notices(const ds_config *config)
{
    return config->diags.n_notices;
}

const char *ds_config_notice(const ds_config *config, size_t index)
{
    return index < config->diags.n_notices ? config->diags.notices[index].text : NULL;
}

const char *ds_optimizer_kind_name(ds_optimizer_kind kind)
{
    static const char *const names[] = {
#define X(id, text) text,
        DS_OPTIMIZER_KIND_LIST(X)
#undef X
    };
    return (unsigned)kind < DS_OPTIMIZER_KIND_COUNT ? names[kind] : "?";
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What of a checkpoint must be as in the run that resumes it (LAW 5). Called by engine_files.c.
 *
 * The model's constants, field by field, and the configuration, key by key: a key is free (it
 * changes no result), noticed (a run may be continued otherwise: steps, rate, schedule, batch,
 * stage, where things live), or must be the same. What is in no list must be the same.
 */
#include "nn/nn.h"
#include "train/engine.h"

#include "base/context.h"
#include "io/json_load.h"

#include <deepspeed/config.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The line of `text` at `at`, without its end. */
static size_t line_length(const char *at)
{
    return strcspn(at, "\n");
}

/* The line of `text` with the key of `line`; NULL when there is none. */
static const char *find_key(const char *text, const char *line)
{
    const size_t n = strcspn(line, ":\n") + 1;
    for (const char *at = text; *at != '\0'; at += line_length(at) + 1) {
        if (strncmp(at, line, n) == 0) {
            return at;
        }
    }
    return NULL;
}

static ds_status compare_models(const ds_engine *engine, const char *path, const char *saved,
                                const char *own)
{
    for (const char *line = saved; *line != '\0'; line += line_length(line) + 1) {
        const size_t n = line_length(line);
        const char *found = find_key(own, line);
        if (found == NULL || line_length(found) != n || strncmp(found, line, n) != 0) {
            const char *none = "nothing of that name";
            return ds_fail(engine->ctx, DS_ERR_ARG,
                           "%s was saved from another model: it had \"%.*s\", this run has "
                           "\"%.*s\"; resume with the config.json of the checkpoint, or start anew "
                           "from its weights (ds_checkpoint export)",
                           path, (int)n, line,
                           (int)(found != NULL ? line_length(found) : strlen(none)),
                           found != NULL ? found : none);
        }
    }
    return DS_OK;
}

ds_status dsi_engine_check_model(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *path = ds_checkpoint_get_info(ckpt)->path;
    const char *config = ds_checkpoint_state(ckpt, "model");
    char *saved = NULL;
    char *own = NULL;
    if (config == NULL || ds_model_config_text(engine->model) == NULL) {
        if (ds_model_config_text(engine->model) != NULL) {
            ds_log(engine->ctx, DS_LOG_WARN,
                   "%s does not say which model it was saved from: only names and shapes are "
                   "compared",
                   path);
        }
        return DS_OK;
    }
    ds_status status = ds_model_print_config(engine->model, config, &saved);
    if (status < 0) {
        dsi_ctx_error_within(engine->ctx, path);
    } else {
        status = ds_model_print(engine->model, &own);
    }
    if (status >= 0) {
        status = compare_models(engine, path, saved, own);
        status = status >= 0 ? compare_models(engine, path, own, saved) : status;
    }
    free(saved);
    free(own);
    return status;
}

/* ---- configuration ---- */

enum { PATH_BYTES = 256, DEPTH_MAX = 16 };

static const char *const noticed[] = {"train_batch_size",
                                      "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps",
                                      "scheduler",
                                      "optimizer.params.lr",
                                      "zero_optimization.stage",
                                      "elasticity",
                                      "zero_optimization.offload_optimizer.device",
                                      "zero_optimization.offload_param.device",
                                      "zero_optimization.zenflow",
                                      "zero_optimization.zero_quantized_weights",
                                      "zero_optimization.zero_quantized_nontrainable_weights",
                                      "zero_optimization.zero_quantized_gradients",
                                      "zero_optimization.zeropp_loco_param",
                                      "pipeline.stages",
                                      "tensor_parallel.autotp_size",
                                      "tensor_parallel.partition_config",
                                      "tensor_parallel.domino",
                                      "sequence_parallel_size",
                                      "sequence_parallel.attention",
                                      "sequence_parallel.load_balance",
                                      "sequence_parallel.chunk_size",
                                      "expert_parallel.enabled",
                                      "expert_parallel.autoep_size",
                                      "expert_parallel.expert_tensor_parallel_size",
                                      "deterministic",
                                      "mlp_tile_tokens",
                                      NULL};

static const char *const unnoticed[] = {"zero_optimization",
                                        "pipeline",
                                        "tensor_parallel",
                                        "sequence_parallel",
                                        "expert_parallel",
                                        "activation_checkpointing",
                                        "steps_per_print",
                                        "wall_clock_breakdown",
                                        "memory_breakdown",
                                        "device_memory",
                                        "dump_state",
                                        "tensorboard",
                                        "csv_monitor",
                                        "wandb",
                                        "comet",
                                        "checkpoint",
                                        "nebula",
                                        "datastates_ckpt",
                                        "timers",
                                        "aio",
                                        "comms_logger",
                                        "flops_profiler",
                                        "autotuning",
                                        "graph_harvesting",
                                        "disable_allgather",
                                        "allgather_size",
                                        "zero_allow_untested_optimizer",
                                        "zero_force_ds_cpu_optimizer",
                                        "optimizer.legacy_fusion",
                                        "optimizer.params.torch_adam",
                                        "optimizer.params.cuda_aware",
                                        "optimizer.params.comm_backend_name",
                                        "fp16.initial_scale_power",
                                        NULL};

/* Whether a path is one of the list, or below one. */
static bool is_below(const char *const *list, const char *path)
{
    for (; *list != NULL; ++list) {
        const size_t n = strlen(*list);
        if (strncmp(path, *list, n) == 0 && (path[n] == '\0' || path[n] == '.')) {
            return true;
        }
    }
    return false;
}

typedef struct walk {
    const ds_engine *engine;
    const char *checkpoint; /* its path */
    char path[PATH_BYTES];
} walk;

/* A line about the two values, or an error. */
static ds_status tell(const walk *w, const json_t *saved, const json_t *own, bool line)
{
    char *a = json_dumps(saved, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    char *b = json_dumps(own, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    const char *was = a != NULL ? a : "?";
    const char *is = b != NULL ? b : "?";
    ds_status status = DS_OK;
    if (line) {
        if (ds_comm_rank(w->engine->comm) == 0) {
            ds_log(w->engine->ctx, DS_LOG_WARN, "%s was saved with %s %s; from here on it is %s",
                   w->checkpoint, w->path, was, is);
        }
    } else {
        status =
            ds_fail(w->engine->ctx, DS_ERR_CONFIG,
                    "%s was saved with %s %s, this run has %s: a run that is resumed keeps it; "
                    "set it back, or start anew from the weights (ds_checkpoint export)",
                    w->checkpoint, w->path, was, is);
    }
    free(a);
    free(b);
    return status;
}

static ds_status differs(const walk *w, const json_t *saved, const json_t *own)
{
    const bool line = is_below(noticed, w->path);
    return !line && is_below(unnoticed, w->path) ? DS_OK : tell(w, saved, own, line);
}

static bool same_value(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b)
                                                  : json_equal(a, b) != 0;
}

/* Keys that both have; a key that only one has is new here, or its section is another. */
static ds_status compare_configs(walk *w, const json_t *saved, const json_t *own, int depth)
{
    const size_t n = strlen(w->path);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)saved, key, value)
    {
        const json_t *other = json_object_get(own, key);
        (void)snprintf(w->path + n, sizeof w->path - n, "%s%s", n > 0 ? "." : "", key);
        if (other != NULL && json_is_object(value) && json_is_object(other) && depth < DEPTH_MAX) {
            DS_TRY(compare_configs(w, value, other, depth + 1));
        } else if (other != NULL && !json_equal(value, other)) {
            DS_TRY(differs(w, value, other));
        }
        w->path[n] = '\0';
    }
    return DS_OK;
}

/* Parameters of one type of schedule that `one` has and `other` has not: they have no default. */
static ds_status compare_schedule(walk *w, const json_t *one, const json_t *other, bool saved)
{
    const json_t *a = json_object_get(one, "scheduler");
    const json_t *b = json_object_get(other, "scheduler");
    const char *key;
    json_t *value;
    if (a == NULL || b == NULL ||
        json_equal(json_object_get(a, "type"), json_object_get(b, "type")) == 0) {
        return DS_OK;
    }
    json_object_foreach(json_object_get(a, "params"), key, value)
    {
        if (json_object_get(json_object_get(b, "params"), key) == NULL) {
            (void)snprintf(w->path, sizeof w->path, "scheduler.params.%s", key);
            DS_TRY(differs(w, saved ? value : json_null(), saved ? json_null() : value));
        }
    }
    w->path[0] = '\0';
    return DS_OK;
}

/* A key that only one has: the configuration prints none whose default is null. */
static ds_status compare_sections(walk *w, const json_t *saved, const json_t *own)
{
    static const char *const sections[] = {"scheduler",
                                           "data_types",
                                           "communication_data_type",
                                           "seq_parallel_communication_data_type",
                                           "compression_training",
                                           "curriculum_learning",
                                           "progressive_layer_drop",
                                           "eigenvalue",
                                           "fp16",
                                           "bf16",
                                           "torch_autocast"};
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; ++i) {
        const json_t *a = json_object_get(saved, sections[i]);
        const json_t *b = json_object_get(own, sections[i]);
        if ((a == NULL) != (b == NULL)) {
            (void)snprintf(w->path, sizeof w->path, "%s", sections[i]);
            DS_TRY(differs(w, a != NULL ? a : json_null(), b != NULL ? b : json_null()));
        }
    }
    w->path[0] = '\0';
    return DS_OK;
}

/* What stands at a path of keys with dots between; NULL where there is nothing. */
static const json_t *value_at(const json_t *config, const char *path)
{
    while (config != NULL) {
        const char *dot = strchr(path, '.');
        if (dot == NULL) {
            return json_object_get(config, path);
        }
        config = json_object_getn(config, path, (size_t)(dot - path));
        path = dot + 1;
    }
    return NULL;
}

/* How tokens are routed stays; where expert_parallel is not enabled, its keys say nothing. */
static ds_status compare_routing(const walk *w, const json_t *saved, const json_t *own)
{
    static const struct {
        const char *key, *without;
    } keys[] = {{"top_k", "\"auto\""},         {"route_norm", "null"},
                {"route_scale", "1.0"},        {"routed_scaling_factor", "\"auto\""},
                {"score_func", "\"auto\""},    {"score_apply", "\"auto\""},
                {"num_expert_groups", "null"}, {"num_limited_groups", "null"}};
    const json_t *a = json_object_get(saved, "expert_parallel");
    const json_t *b = json_object_get(own, "expert_parallel");
    a = json_is_true(json_object_get(a, "enabled")) ? a : NULL;
    b = json_is_true(json_object_get(b, "enabled")) ? b : NULL;
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status >= 0; ++i) {
        json_t *without = json_loads(keys[i].without, JSON_DECODE_ANY, NULL);
        const json_t *was = json_object_get(a, keys[i].key);
        const json_t *is = json_object_get(b, keys[i].key);
        was = was != NULL ? was : without;
        is = is != NULL ? is : without;
        if (!same_value(was, is)) {
            walk at = *w;
            (void)snprintf(at.path, sizeof at.path, "expert_parallel.%s", keys[i].key);
            status = tell(&at, was, is, false);
        }
        json_decref(without);
    }
    return status;
}

/* Keys of sections that one of the two may not have, where that means a value: noticed, too. */
static ds_status compare_defaults(walk *w, const json_t *saved, const json_t *own)
{
    static const struct {
        const char *path, *without;
    } keys[] = {{"pipeline.stages", "\"auto\""},
                {"tensor_parallel.autotp_size", "0"},
                {"tensor_parallel.domino", "false"},
                {"sequence_parallel_size", "1"},
                {"sequence_parallel.attention", "\"ulysses\""},
                {"sequence_parallel.load_balance", "true"},
                {"sequence_parallel.chunk_size", "0"},
                {"expert_parallel.enabled", "false"},
                {"expert_parallel.autoep_size", "1"},
                {"expert_parallel.expert_tensor_parallel_size", "null"},
                {"zero_optimization.offload_optimizer.device", "\"none\""},
                {"zero_optimization.offload_param.device", "\"none\""},
                {"zero_optimization.zenflow", "null"},
                {"elasticity", "null"}};
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && status >= 0; ++i) {
        const json_t *a = value_at(saved, keys[i].path);
        const json_t *b = value_at(own, keys[i].path);
        json_t *without = json_loads(keys[i].without, JSON_DECODE_ANY, NULL);
        if ((a == NULL) != (b == NULL) && !json_equal(a != NULL ? a : b, without)) {
            (void)snprintf(w->path, sizeof w->path, "%s", keys[i].path);
            status = differs(w, a != NULL ? a : without, b != NULL ? b : without);
        }
        json_decref(without);
    }
    w->path[0] = '\0';
    return status;
}

/* What the configuration of DeepSpeed for Python comes to here, as ds_config_print gives it: from
 * malloc; NULL where this library cannot take it, which is said. */
static char *foreign_config(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *text = ds_checkpoint_state(ckpt, "ds_config");
    const char *origin = ds_checkpoint_state(ckpt, "origin");
    ds_config *config = NULL;
    char *printed = NULL;
    json_error_t error;
    if (text == NULL || origin == NULL) {
        return NULL;
    }
    json_t *from = dsi_json_parse(origin, strlen(origin), 0, &error);
    const uint32_t ranks = (uint32_t)json_integer_value(json_object_get(from, "ranks"));
    json_decref(from);
    const ds_config_params params = {.allow_unknown_keys = true};
    ds_status status =
        ds_config_load_text(engine->ctx, "ds_config", text, strlen(text), &params, &config);
    if (status >= 0) {
        status = ds_config_resolve(config, ranks > 0 ? ranks : 1, NULL);
    }
    if (status >= 0) {
        status = ds_config_print(config, false, &printed);
    }
    if (status < 0 && ds_comm_rank(engine->comm) == 0) {
        ds_log(engine->ctx, DS_LOG_WARN,
               "%s: its configuration is not compared with this run's: %s",
               ds_checkpoint_get_info(ckpt)->path, ds_ctx_error(engine->ctx));
    }
    ds_config_destroy(&config);
    return printed;
}

static ds_status check_config(const ds_engine *engine, const ds_checkpoint *ckpt, const char *text)
{
    walk w = {.engine = engine, .checkpoint = ds_checkpoint_get_info(ckpt)->path};
    json_error_t error;
    if (text == NULL || engine->config_text == NULL) {
        return DS_OK; /* of a program without a configuration: its numbers are its own */
    }
    json_t *saved = dsi_json_parse(text, strlen(text), 0, &error);
    json_t *own = dsi_json_parse(engine->config_text, strlen(engine->config_text), 0, &error);
    ds_status status = DS_OK;
    if (saved == NULL || own == NULL) {
        status = ds_fail(engine->ctx, DS_ERR_FORMAT, "%s: its configuration is no JSON: %s",
                         w.checkpoint, error.text);
    }
    if (status >= 0) {
        status = compare_configs(&w, saved, own, 0);
    }
    if (status >= 0) {
        status = compare_sections(&w, saved, own);
    }
    if (status >= 0) {
        status = compare_routing(&w, saved, own);
        status = status < 0 ? status : compare_defaults(&w, saved, own);
    }
    if (status >= 0) {
        status = compare_schedule(&w, saved, own, true);
    }
    if (status >= 0) {
        status = compare_schedule(&w, own, saved, false);
    }
    json_decref(saved);
    json_decref(own);
    return status;
}

ds_status dsi_engine_check_config(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *own = ds_checkpoint_state(ckpt, "config");
    char *foreign = own == NULL ? foreign_config(engine, ckpt) : NULL;
    const ds_status status = check_config(engine, ckpt, own != NULL ? own : foreign);
    free(foreign);
    return status;
}

/* ---- what is trained ---- */

/* The names of the parameters without gradient, a JSON list; NULL: no memory. */
char *dsi_engine_frozen(const ds_engine *engine)
{
    json_t *list = json_array();
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM && cell->frozen && !dsi_nn_is_teacher(cell)) {
            (void)json_array_append_new(list, json_string(cell->name));
        }
    }
    char *text = json_dumps(list, JSON_COMPACT);
    json_decref(list);
    return text;
}

static bool is_listed(const json_t *list, const char *name)
{
    for (size_t i = 0; i < json_array_size(list); ++i) {
        const char *one = json_string_value(json_array_get(list, i));
        if (one != NULL && strcmp(one, name) == 0) {
            return true;
        }
    }
    return false;
}

ds_status dsi_engine_check_frozen(const ds_engine *engine, const ds_checkpoint *ckpt)
{
    const char *text = ds_checkpoint_state(ckpt, "frozen");
    json_error_t error;
    json_t *saved = text != NULL ? dsi_json_parse(text, strlen(text), 0, &error) : NULL;
    ds_status status = DS_OK;
    if (text != NULL && !json_is_array(saved)) {
        status = ds_fail(engine->ctx, DS_ERR_FORMAT, "%s: its state \"frozen\" is no list",
                         ds_checkpoint_get_info(ckpt)->path);
    }
    for (ds_cell c = 0; saved != NULL && c < ds_cells_count(engine->cells) && status == DS_OK;
         ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM && !dsi_nn_is_teacher(cell) &&
            cell->frozen != is_listed(saved, cell->name)) {
            status =
                ds_fail(engine->ctx, DS_ERR_ARG,
                        "%s was saved with %s %s, this run has it %s; resume with the same "
                        "frozen parameters (--freeze)",
                        ds_checkpoint_get_info(ckpt)->path, cell->name,
                        cell->frozen ? "trained" : "frozen", cell->frozen ? "frozen" : "trained");
        }
    }
    json_decref(saved);
    return status;
}

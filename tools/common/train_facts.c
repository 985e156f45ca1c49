/* SPDX-License-Identifier: Apache-2.0 */
/* What a history says of a run when it starts: command line, configuration and where its values are
 * from, model, data, machine. See train.h. */
#include "accel/cpu/cpu_features.h"
#include "base/buf.h"
#include "base/build_id.h"
#include "base/machine_memory.h"
#include "base/processor.h"
#include "common/size_text.h"
#include "common/train.h"
#include "config/config_values.h"
#include "monitor/run_history.h"
#include "op/isa.h"

#include <deepspeed/profile.h>
#include <deepspeed/version.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { VALUE_BYTES = 4096 };

/* A text of any bytes: of what is not UTF-8 only the place is said. */
static json_t *any_text(const char *text)
{
    json_t *value = json_string(text);
    return value != NULL ? value : json_string("(not UTF-8)");
}

static void row(json_t *rows, const char *name, const char *format, ...) DS_PRINTF(3, 4);
static void row(json_t *rows, const char *name, const char *format, ...)
{
    char value[VALUE_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(value, sizeof value, format, args);
    va_end(args);
    (void)json_array_append_new(rows, json_pack("[o,o]", any_text(name), any_text(value)));
}

/* Adds a section and returns its rows. */
static json_t *section(json_t *facts, const char *title, bool closed)
{
    json_t *rows = json_array();
    (void)json_array_append_new(
        facts, json_pack("{s:s,s:b,s:O}", "title", title, "closed", closed, "rows", rows));
    json_decref(rows); /* the section's */
    return rows;
}

/* Lines "key: value". */
static void add_lines(json_t *rows, const char *text)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        char line[VALUE_BYTES];
        (void)snprintf(line, sizeof line, "%.*s", (int)n, text);
        char *colon = strstr(line, ": ");
        if (colon != NULL) {
            *colon = '\0';
            row(rows, line, "%s", colon + 2);
        } else if (line[0] != '\0') {
            row(rows, line, "%s", "");
        }
        text += n + (text[n] == '\n' ? 1 : 0);
    }
}

static void add_model(json_t *facts, const train_run *run)
{
    const train_options *o = run->options;
    char *text = NULL;
    json_t *rows = section(facts, "Model", false);
    row(rows, o->model != NULL ? "folder" : "config.json", "%s",
        o->model != NULL ? o->model : o->model_config);
    row(rows, "parameters", "%.2f M, %.2f M of them trained",
        (double)ds_engine_n_parameters(run->engine) / 1e6,
        (double)ds_engine_n_trainable(run->engine) / 1e6);
    if (ds_model_print(run->model, &text) >= 0) {
        add_lines(rows, text);
    }
    free(text);
}

/* The first files by name, since there may be thousands. */
static void add_files(json_t *rows, const char *name, const dsi_data_files *files)
{
    enum { MOST = 20 };
    for (size_t i = 0; i < files->n && i < MOST; ++i) {
        row(rows, name, "%s", files->paths[i]);
    }
    if (files->n > MOST) {
        row(rows, name, "and %zu files more", files->n - MOST);
    }
}

static void add_data(json_t *facts, const train_run *run)
{
    const ds_dataset_info info = train_data_info(&run->train_data);
    json_t *rows = section(facts, "Data", false);
    add_files(rows, "training", &run->data_files);
    row(rows, "documents", "%llu", (unsigned long long)info.n_documents);
    row(rows, "tokens", "%llu", (unsigned long long)info.n_tokens);
    if (info.n_truncated + info.n_dropped + info.n_uncounted > 0) {
        row(rows, "left out or cut", "%llu cut, %llu dropped, %llu without an answer in their row",
            (unsigned long long)info.n_truncated, (unsigned long long)info.n_dropped,
            (unsigned long long)info.n_uncounted);
    }
    row(rows, "a step", "%lld rows of %lld tokens",
        (long long)dsi_config_values(run->config)->batch.train_batch_size,
        (long long)run->seq_length);
    add_files(rows, "validation", &run->eval_files);
    if (run->eval_data.n > 0) {
        row(rows, "validation tokens", "%llu",
            (unsigned long long)train_data_info(&run->eval_data).n_tokens);
    }
}

/* {"dpr": 2, "dps": 4}: axes of more than one rank. */
static json_t *mesh_of(const train_run *run)
{
    json_t *axes = json_object();
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (run->mesh.size[a] > 1) {
            (void)json_object_set_new(axes, dsi_axis_name((dsi_axis)a),
                                      json_integer(run->mesh.size[a]));
        }
    }
    return axes;
}

static void add_mesh(json_t *rows, const train_run *run)
{
    dsi_buf text = dsi_buf_make(VALUE_BYTES);
    dsi_mesh_text(&run->mesh, &text);
    if (run->n_ranks > 1) {
        row(rows, "mesh", "%s", dsi_buf_text(&text));
    }
    dsi_buf_free(&text);
}

static void add_machine(json_t *facts, const train_run *run)
{
    char text[256];
    char build[80];
    json_t *rows = section(facts, "Machine", false);
    row(rows, "host of rank 0", "%s", gethostname(text, sizeof text) == 0 ? text : "unknown");
    row(rows, "processor", "%s", dsi_processor_get()->name);
    row(rows, "instruction set", "%s", dsi_isa_print(dsi_cpu_isa()).text);
    row(rows, "ranks", "%u, %u threads each", ds_comm_size(run->comm), ds_ctx_n_threads(run->ctx));
    add_mesh(rows, run);
    row(rows, "memory of the host", "%s", size_text(dsi_machine_memory(), text, sizeof text));
    dsi_build_id(build, sizeof build);
    row(rows, "library", "%s, build %s", ds_version_text(), build);
}

/* defaults: only those that the file says nothing of; else only the others. */
static void add_config(json_t *facts, const ds_config *config, bool defaults)
{
    static const char *const kinds[] = {[DS_ORIGIN_DEFAULT] = "default",
                                        [DS_ORIGIN_FILE] = "",
                                        [DS_ORIGIN_ALIAS] = "other name, ",
                                        [DS_ORIGIN_AUTO] = "\"auto\": ",
                                        [DS_ORIGIN_RULE] = "from "};
    json_t *rows =
        section(facts, defaults ? "Configuration left at its defaults" : "Configuration", defaults);
    for (size_t i = 0; i < ds_config_n_items(config); ++i) {
        const ds_config_item *item = ds_config_item_at(config, i);
        if ((item->origin == DS_ORIGIN_DEFAULT) == defaults) {
            char from[VALUE_BYTES];
            (void)snprintf(from, sizeof from, "%s%s", kinds[item->origin], item->detail);
            (void)json_array_append_new(rows, json_pack("[o,o,o]", any_text(item->path),
                                                        any_text(item->value), any_text(from)));
        }
    }
}

static size_t planned_bytes(const train_run *run)
{
    ds_memory_info info = {0};
    return ds_engine_memory_info(run->engine, &info) >= 0 ? info.planned : 0;
}

char *train_history_start_text(const train_run *run)
{
    const train_options *o = run->options;
    json_t *facts = json_array();
    if (facts == NULL) {
        return NULL;
    }
    add_config(facts, run->config, false);
    add_data(facts, run);
    add_model(facts, run);
    add_machine(facts, run);
    add_lines(section(facts, "Flags", true), o->text);
    add_config(facts, run->config, true);
    json_t *line = json_pack(
        "{s:i,s:s,s:I,s:f,s:b,s:b,s:I,s:I,s:o,s:s,s:o,s:o}", "ds_history", DSI_RUN_VERSION, "event",
        "start", "step", (json_int_t)ds_engine_global_steps(run->engine), "time",
        (double)time(NULL), "resumed", o->resume_given && !o->restarted, "restarted", o->restarted,
        "steps", (json_int_t)run->total_steps, "planned_bytes", (json_int_t)planned_bytes(run),
        "command", any_text(o->command), "model", ds_model_get_info(run->model)->architecture,
        "mesh", mesh_of(run), "facts", facts);
    char *text = line != NULL ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    return text;
}

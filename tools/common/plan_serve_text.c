/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan serve: what it says, as text and as JSON. See plan_serve.h. */
#include "common/output.h"
#include "common/plan_serve.h"

#include <stdio.h>

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void print_times(const plan_serve_run *r)
{
    const ds_serve_needs *n = &r->needs;
    if (r->o->device == NULL) {
        return;
    }
    (void)printf("\non %s, by its profile, with half of %lld positions in each text:\n"
                 "  one text alone       %10.1f tokens a second\n"
                 "  %4lld texts together  %10.1f tokens a second\n"
                 "  prompts              %10.1f tokens a second\n",
                 r->device.name, (long long)n->max_length, 1.0 / r->times.one,
                 (long long)n->max_sequences, (double)n->max_sequences / r->times.all,
                 (double)n->max_batch_tokens / r->times.prompt);
}

static void print_fit(const plan_serve_run *r, const plan_serve_change *changes, uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    if (r->memory == 0) {
        (void)printf("\nhow much memory there is is not known\n");
        return;
    }
    if (plan_serve_fits(r, n->total)) {
        (void)printf("\nfits: %.1f MiB %s, %.1f MiB are left: room for %lld positions\n",
                     mib(r->memory), r->memory_of, mib(r->memory - n->total),
                     (long long)plan_serve_room(r, n));
        return;
    }
    (void)printf("\ndoes not fit: %.1f MiB %s, %.1f MiB too much\n", mib(r->memory), r->memory_of,
                 mib(n->total - r->memory));
    for (uint32_t i = 0; i < n_changes; ++i) {
        (void)printf("  would fit with%s: %.1f MiB\n", changes[i].flags, mib(changes[i].total));
    }
    if (n_changes == 0) {
        (void)printf("  no smaller number of positions, nor codes in int8, nor blocks of 4 bits, "
                     "nor a disk would do\n");
    }
}

void plan_serve_print(const plan_serve_run *r, const plan_serve_change *changes, uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    const char *type = r->o->quantize;
    char stored[96] = "";
    if (n->stored > 0) {
        (void)snprintf(stored, sizeof stored, "  elsewhere           %12.2f  moved in every step\n",
                       mib(n->stored));
    }
    char states[160] = "";
    char ranks[64] = "on one rank";
    if (r->o->ranks > 1) {
        (void)snprintf(ranks, sizeof ranks, "of which this is one of %lld ranks",
                       (long long)r->o->ranks);
    }
    if (n->states > 0) {
        (void)snprintf(states, sizeof states,
                       "  states              %12.2f  of linear attention, %.2f KiB each: %lld of "
                       "texts%s, %lld snapshots\n",
                       mib(n->states), (double)n->states / 1024.0 / (double)n->state_rows,
                       (long long)(n->state_rows - n->state_snapshots),
                       n->state_rows - n->state_snapshots > n->max_sequences ? " and their guesses"
                                                                             : "",
                       (long long)n->state_snapshots);
    }
    (void)printf("%s: %.2f M parameters, %s%s%s, %s\n"
                 "%lld positions a text%s, %lld texts and %lld tokens a batch\n\n"
                 "memory, MiB\n"
                 "  weights             %12.2f\n"
                 "  keys and values     %12.2f  %lld positions of %.2f KiB, %s\n"
                 "%s"
                 "  a batch             %12.2f\n"
                 "  process             %12.2f\n"
                 "  sum                 %12.2f\n%s",
                 ds_model_get_info(r->model)->architecture, (double)n->parameters * 1e-6,
                 ds_dtype_name(n->dtype), type != NULL ? ", linear layers in " : "",
                 type != NULL ? type : "", ranks, (long long)n->max_length,
                 ds_model_get_info(r->model)->pairs ? ", as many of its source" : "",
                 (long long)n->max_sequences, (long long)n->max_batch_tokens, mib(n->weights),
                 mib(n->keys_values), (long long)n->kv_tokens, (double)n->position / 1024.0,
                 ds_dtype_name(n->kv_type), states, mib(n->batch), mib(n->process), mib(n->total),
                 stored);
    print_fit(r, changes, n_changes);
    print_times(r);
}

ds_status plan_serve_write_json(const plan_serve_run *r, const plan_serve_change *changes,
                                uint32_t n_changes)
{
    const ds_serve_needs *n = &r->needs;
    char text[4096];
    size_t at = (size_t)snprintf(
        text, sizeof text,
        "{\n  \"ds_plan_serve\": 1,\n  \"ranks\": %lld,\n  \"parameters\": %llu,\n  \"dtype\": "
        "\"%s\",\n"
        "  \"kv_type\": \"%s\",\n"
        "  \"max_length\": %lld,\n  \"max_sequences\": %lld,\n  \"max_batch_tokens\": %lld,\n"
        "  \"kv_tokens\": %lld,\n  \"position_bytes\": %llu,\n  \"weights\": %llu,\n"
        "  \"stored\": %llu,\n  \"keys_values\": %llu,\n  \"states\": %llu,\n  \"state_rows\": "
        "%lld,\n"
        "  \"state_snapshots\": %lld,\n  \"batch\": %llu,\n  "
        "\"process\": %llu,\n "
        " \"need\": %llu,\n"
        "  \"available\": %llu,\n  \"fits\": %s,\n  \"would_fit\": [",
        (long long)r->o->ranks, (unsigned long long)n->parameters, ds_dtype_name(n->dtype),
        ds_dtype_name(n->kv_type), (long long)n->max_length, (long long)n->max_sequences,
        (long long)n->max_batch_tokens, (long long)n->kv_tokens, (unsigned long long)n->position,
        (unsigned long long)n->weights, (unsigned long long)n->stored,
        (unsigned long long)n->keys_values, (unsigned long long)n->states, (long long)n->state_rows,
        (long long)n->state_snapshots, (unsigned long long)n->batch, (unsigned long long)n->process,
        (unsigned long long)n->total, (unsigned long long)r->memory,
        plan_serve_fits(r, n->total) ? "true" : "false");
    for (uint32_t i = 0; i < n_changes; ++i) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s{\"flags\": \"%s\", \"need\": %llu}",
                               i > 0 ? ", " : "", changes[i].flags + 1,
                               (unsigned long long)changes[i].total);
    }
    at += (size_t)snprintf(text + at, sizeof text - at, "]");
    if (r->o->device != NULL) {
        at += (size_t)snprintf(text + at, sizeof text - at,
                               ",\n  \"seconds_one\": %.9g,\n  \"seconds_all\": %.9g,\n"
                               "  \"seconds_prompt\": %.9g",
                               r->times.one, r->times.all, r->times.prompt);
    }
    at += (size_t)snprintf(text + at, sizeof text - at, "\n}\n");
    return output_put(r->ctx, r->o->json, text, at);
}

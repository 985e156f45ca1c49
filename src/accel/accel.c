/* SPDX-License-Identifier: Apache-2.0 */
/* The list of accelerators. Add one here: a row of `rows`, and its extern in accel.h; of a shared
 * object beside the library a row of `modules`. */
#include "accel/accel.h"

#include "accel/cpu/cpu_features.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const dsi_accel_row rows[] = {
    {&dsi_accel_cpu, 1, "computes on every machine"},
    {&dsi_accel_null, 0, "computes nothing"},
    {&dsi_accel_sim, 0, "for tests, slow"},
};

static const dsi_accel_module modules[] = {
    {"cuda", "libdeepspeed_cuda.so", 2, "an NVIDIA GPU through the CUDA driver",
     "a GPU is faster than the processor", "libdeepspeed-cuda"},
};

enum { N_ROWS = sizeof rows / sizeof rows[0], N_MODULES = sizeof modules / sizeof modules[0] };

const dsi_accel_row *dsi_accel_rows(uint32_t *n_out)
{
    *n_out = N_ROWS;
    return rows;
}

const dsi_accel_module *dsi_accel_modules(uint32_t *n_out)
{
    *n_out = N_MODULES;
    return modules;
}

/* What is missing, and which package has it. */
static ds_status load_module(ds_ctx *ctx, const dsi_accel_module *module,
                             const ds_accel **accel_out)
{
    char text[1024];
    const ds_status status = dsi_accel_load_beside(ctx, module->file, accel_out);
    if (status >= 0) {
        return strcmp((*accel_out)->name, module->name) == 0
                   ? status
                   : ds_fail(ctx, DS_ERR_FORMAT, "%s is the accelerator \"%s\", expected \"%s\"",
                             module->file, (*accel_out)->name, module->name);
    }
    (void)snprintf(text, sizeof text, "%s", ds_ctx_error(ctx));
    return ds_fail(ctx, status, "%s; the package %s has it", text, module->package);
}

ds_status dsi_accel_probe(ds_ctx *ctx, const dsi_accel_module *module, char *text_out, size_t n,
                          const ds_accel **accel_out)
{
    const ds_accel *accel = NULL;
    DS_TRY(load_module(ctx, module, &accel));
    if (n > 0) {
        text_out[0] = '\0';
    }
    DS_TRY(accel->probe != NULL ? accel->probe(ctx, text_out, n) : DS_OK);
    *accel_out = accel;
    return DS_OK;
}

const dsi_accel_row *dsi_accel_auto(const dsi_accel_row *among, uint32_t n)
{
    const dsi_accel_row *best = NULL;
    for (uint32_t i = 0; i < n; ++i) {
        if (among[i].priority > (best != NULL ? best->priority : 0)) {
            best = &among[i];
        }
    }
    return best;
}

void dsi_accel_say(const dsi_accel_choice *choice, char text_out[DSI_ACCEL_TEXT])
{
    const char *name = choice->name[0] != '\0' ? choice->name : dsi_accel_chosen(choice)->name;
    (void)snprintf(text_out, DSI_ACCEL_TEXT, "%s%s%s%s", name,
                   choice->options[0] != '\0' ? ":" : "", choice->options,
                   choice->automatic ? " (auto)" : "");
}

static const ds_accel *by_name(const char *name)
{
    for (uint32_t i = 0; i < N_ROWS; ++i) {
        if (strcmp(rows[i].accel->name, name) == 0) {
            return rows[i].accel;
        }
    }
    return NULL;
}

const ds_accel *dsi_accel_chosen(const dsi_accel_choice *choice)
{
    return choice->accel != NULL ? choice->accel : &dsi_accel_cpu;
}

size_t dsi_accel_device_memory(ds_ctx *ctx, const dsi_accel_choice *choice)
{
    const uint64_t gib = (uint64_t)1 << 30;
    const ds_accel *accel = dsi_accel_chosen(choice);
    ds_accel_about about = {.name = ""};
    if (accel->memory->on_host || accel->about == NULL ||
        accel->about(ctx, choice->options, &about) < 0) {
        return 0;
    }
    return (size_t)(about.memory > gib ? about.memory / gib * gib : about.memory);
}

ds_isa dsi_accel_isa(const dsi_accel_choice *choice)
{
    const ds_accel_kernels *kernels = dsi_accel_chosen(choice)->kernels;
    return kernels->has != NULL ? kernels->has(dsi_cpu_isa()) : dsi_cpu_isa();
}

/* What nobody has named. A module that is not there, or finds no device, is no error: something
 * else computes. A device that is there and cannot be used is said. */
static void take_best(ds_ctx *ctx, dsi_accel_choice *choice)
{
    const dsi_accel_row *row = dsi_accel_auto(rows, N_ROWS);
    uint32_t priority = row->priority;
    choice->accel = row->accel;
    for (uint32_t i = 0; i < N_MODULES; ++i) {
        const ds_accel *accel = NULL;
        if (modules[i].priority <= priority || load_module(ctx, &modules[i], &accel) < 0) {
            continue;
        }
        const ds_status found = accel->probe != NULL ? accel->probe(ctx, NULL, 0) : DS_OK;
        if (found >= 0) {
            choice->accel = accel;
            priority = modules[i].priority;
        } else if (found != DS_ERR_NOT_FOUND) {
            static atomic_bool said[N_MODULES]; /* once: each engine and server chooses */
            if (!atomic_exchange(&said[i], true)) {
                ds_log(ctx, DS_LOG_WARN, "%s is not used: %s", modules[i].name, ds_ctx_error(ctx));
            }
        }
    }
    (void)snprintf(choice->name, sizeof choice->name, "%s", choice->accel->name);
}

void dsi_accel_for_ranks(dsi_accel_choice *choice, uint32_t n_ranks)
{
    const ds_accel_memory *memory = dsi_accel_chosen(choice)->memory;
    const bool shares = memory->on_host || dsi_accel_chosen(choice)->groups != NULL ||
                        (memory->adopt != NULL && memory->peer_view != NULL);
    if (choice->automatic && n_ranks > 1 && !shares) {
        choice->accel = dsi_accel_auto(rows, N_ROWS)->accel;
        (void)snprintf(choice->name, sizeof choice->name, "%s", choice->accel->name);
    }
}

static ds_status not_found(ds_ctx *ctx, const char *text)
{
    char names[256] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < N_ROWS && n < sizeof names; ++i) {
        n += (size_t)snprintf(names + n, sizeof names - n, ", %s", rows[i].accel->name);
    }
    for (uint32_t i = 0; i < N_MODULES && n < sizeof names; ++i) {
        n += (size_t)snprintf(names + n, sizeof names - n, ", %s", modules[i].name);
    }
    return ds_fail(ctx, DS_ERR_NOT_FOUND,
                   "there is no accelerator \"%.60s\"; expected one of auto%s, or the "
                   "path of a shared object, with a slash in it",
                   text, names);
}

/* The accelerator of a name or a path. */
static ds_status find(ds_ctx *ctx, const char *text, bool to_plan, dsi_accel_choice *choice)
{
    if (strchr(choice->name, '/') != NULL) {
        return dsi_accel_load(ctx, choice->name, &choice->accel);
    }
    for (uint32_t i = 0; i < N_MODULES; ++i) {
        if (strcmp(choice->name, modules[i].name) == 0) {
            return to_plan ? load_module(ctx, &modules[i], &choice->accel)
                           : dsi_accel_probe(ctx, &modules[i], NULL, 0, &choice->accel);
        }
    }
    choice->accel = by_name(choice->name);
    return choice->accel != NULL ? DS_OK : not_found(ctx, text);
}

bool dsi_accel_is_auto(const char *text)
{
    return text == NULL || text[0] == '\0' || strcmp(text, "auto") == 0;
}

/* Refuses options that it does not have, whether or not there is a device. */
static ds_status check_options(ds_ctx *ctx, const dsi_accel_choice *choice)
{
    const ds_accel *accel = choice->accel;
    ds_accel_about about;
    if (choice->options[0] == '\0') {
        return DS_OK;
    }
    if (accel->open == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "accelerator %s has no options, got \"%s\"", choice->name,
                       choice->options);
    }
    const ds_status status =
        accel->about != NULL ? accel->about(ctx, choice->options, &about) : DS_OK;
    return status == DS_ERR_ARG ? status : DS_OK;
}

static ds_status choose(ds_ctx *ctx, const char *text, bool to_plan, dsi_accel_choice *choice_out)
{
    if (dsi_accel_is_auto(text)) {
        *choice_out = (dsi_accel_choice){.automatic = true};
        take_best(ctx, choice_out);
        return DS_OK;
    }
    const char *asked = text;
    const char *slash = strrchr(asked, '/');
    const char *colon = strchr(slash != NULL ? slash : asked, ':');
    const size_t n = colon != NULL ? (size_t)(colon - asked) : strlen(asked);
    const char *options = colon != NULL ? colon + 1 : "";
    dsi_accel_choice choice = {.accel = NULL};
    if (n >= sizeof choice.name || strlen(options) >= sizeof choice.options) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "the accelerator's name has more than %zu bytes, or its options more than %zu",
            sizeof choice.name - 1, sizeof choice.options - 1);
    }
    (void)snprintf(choice.name, sizeof choice.name, "%.*s", (int)n, asked);
    (void)snprintf(choice.options, sizeof choice.options, "%s", options);
    DS_TRY(find(ctx, asked, to_plan, &choice));
    DS_TRY(check_options(ctx, &choice));
    *choice_out = choice;
    return DS_OK;
}

ds_status dsi_accel_choose(ds_ctx *ctx, const char *text, dsi_accel_choice *choice_out)
{
    return choose(ctx, text, false, choice_out);
}

ds_status dsi_accel_choose_to_plan(ds_ctx *ctx, const char *text, dsi_accel_choice *choice_out)
{
    return choose(ctx, text, true, choice_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Accelerators that are shared objects of their own: opened by path, checked, and kept until the
 * process ends. See accel.h and docs/internals/accel.md.
 */
#include "accel/accel.h"
#include "accel/cpu/registry.h"
#include "base/library_open.h"
#include "base/module.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

/* What is missing of a table; NULL: nothing that must be there. */
static const char *missing(const ds_accel *a)
{
    const ds_accel_memory *m = a->memory;
    const ds_accel_streams *s = a->streams;
    const ds_accel_graphs *g = a->graphs;
    if (a->name == NULL || a->name[0] == '\0' || a->doc == NULL) {
        return "name and doc";
    }
    if ((a->open == NULL) != (a->close == NULL)) {
        return "open or close, of which it has the other";
    }
    if (m == NULL || m->alloc == NULL || m->release == NULL || m->copy == NULL || m->fill == NULL) {
        return "memory with alloc, release, copy and fill";
    }
    if ((m->pin == NULL) != (m->unpin == NULL)) {
        return "pin or unpin, of which it has the other";
    }
    if (a->kernels == NULL || a->kernels->choose == NULL) {
        return "kernels with choose";
    }
    if (s != NULL &&
        (s->create == NULL || s->destroy == NULL || s->launch == NULL || s->copy == NULL ||
         s->fill == NULL || s->synchronize == NULL || s->event_create == NULL ||
         s->event_destroy == NULL || s->record == NULL || s->wait == NULL)) {
        return "one of the slots of streams";
    }
    if (g != NULL && (s == NULL || g->begin == NULL || g->end == NULL || g->launch == NULL ||
                      g->destroy == NULL)) {
        return "one of the slots of graphs, or the streams that they need";
    }
    const ds_accel_groups *c = a->groups;
    if (c != NULL && (c->id == NULL || c->open == NULL || c->reserve == NULL || c->start == NULL ||
                      c->test == NULL || c->abort == NULL || c->close == NULL)) {
        return "one of the slots of groups";
    }
    const ds_accel_disks *d = a->disks;
    if (d != NULL && (d->check == NULL || d->open == NULL || d->close == NULL || d->map == NULL ||
                      d->unmap == NULL || d->move == NULL || d->text == NULL)) {
        return "one of the slots of disks";
    }
    return NULL;
}

/* Whether its tables have what must be there. where: for the message. */
static ds_status check_tables(ds_ctx *ctx, const ds_accel *accel, const char *where)
{
    if (accel->version != DS_ACCEL_VERSION) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: made for version %u of the accelerators' interface, this library has "
                       "%u; build it against this library's deepspeed/accel.h",
                       where, accel->version, DS_ACCEL_VERSION);
    }
    const char *lacks = missing(accel);
    return lacks == NULL ? DS_OK : ds_fail(ctx, DS_ERR_ARG, "%s: lacks %s", where, lacks);
}

static ds_status fail(ds_ctx *ctx, ds_status status, const char *text)
{
    return ds_fail(ctx, status, "%s", text);
}

static void log_line(ds_ctx *ctx, const char *line)
{
    ds_log(ctx, DS_LOG_WARN, "%s", line);
}

static const ds_accel_library library = {.version = DS_ACCEL_VERSION,
                                         .fail = fail,
                                         .parallel = ds_parallel,
                                         .cpu_kernel = dsi_cpu_kernel_choose,
                                         .log = log_line};

/* The table of an object that is loaded, and stays so: plans point into it. */
static ds_status table_of(ds_ctx *ctx, void *object, const char *path, const ds_accel **accel_out)
{
    ds_accel_entry entry = NULL;
    void *symbol = dlsym(object, DS_ACCEL_SYMBOL);
    memcpy(&entry, &symbol, sizeof entry); /* C has no other way from data to a function */
    if (entry == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s is no accelerator: it has no function %s", path,
                       DS_ACCEL_SYMBOL);
    }
    const ds_accel *accel = entry(&library);
    if (accel == NULL) {
        return ds_fail(ctx, DS_ERR_DEVICE, "%s: the accelerator says that it cannot be used here",
                       path);
    }
    DS_TRY(check_tables(ctx, accel, path));
    *accel_out = accel;
    return DS_OK;
}

ds_status dsi_accel_load(ds_ctx *ctx, const char *path, const ds_accel **accel_out)
{
    char why[400];
    bool is_there = false;
    void *object =
        dsi_library_open(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE, &is_there, why, sizeof why);
    if (object == NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "cannot load the accelerator %s: %s", path, why);
    }
    (void)dlclose(object); /* RTLD_NODELETE: it stays */
    return table_of(ctx, object, path, accel_out);
}

ds_status dsi_accel_load_beside(ds_ctx *ctx, const char *file, const ds_accel **accel_out)
{
    void *object = NULL;
    DS_TRY(dsi_module_load(ctx, file, DSI_MODULE_LOCAL, &object));
    return table_of(ctx, object, file, accel_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Accelerators inside of the library: which there are, and which one is meant. Their tables are in
 * include/deepspeed/accel.h.
 *
 * Called by the executor, by whoever makes a plan, and by tools that list what there is. It is not
 * the place of collectives (comm/) nor of files (io/).
 */
#ifndef DSI_ACCEL_ACCEL_H
#define DSI_ACCEL_ACCEL_H

#include <deepspeed/accel.h>

extern const ds_accel dsi_accel_cpu, dsi_accel_null, dsi_accel_sim;

/* Memory of the process itself: of `cpu`, and of others that compute in it. */
extern const ds_accel_memory dsi_host_memory;

enum { DSI_ACCEL_NAME = 256, DSI_ACCEL_OPTIONS = 128 };

/* An accelerator and what it is opened with. */
typedef struct dsi_accel_choice {
    const ds_accel *accel;     /* NULL stands for dsi_accel_cpu */
    char name[DSI_ACCEL_NAME]; /* as it was asked for: a name, or a path */
    char options[DSI_ACCEL_OPTIONS];
    bool automatic; /* nobody named it */
} dsi_accel_choice;

/* An accelerator that the library knows. priority: who asks for none gets the one of the highest;
 * 0: never chosen so. why: for lists, what the priority stands for. */
typedef struct dsi_accel_row {
    const ds_accel *accel;
    uint32_t priority;
    const char *why;
} dsi_accel_row;

/* The row that `auto` takes of those that there are: of the highest priority, of equal ones the
 * first; NULL when all have 0. */
const dsi_accel_row *dsi_accel_auto(const dsi_accel_row *rows, uint32_t n);
/* Whether a person leaves the choice: NULL, "" and "auto". */
bool dsi_accel_is_auto(const char *text);
/* An accelerator of a shared object that is installed beside the library, known by its name. */
typedef struct dsi_accel_module {
    const char *name, *file;
    uint32_t priority; /* as of dsi_accel_row, where its probe finds a device */
    const char *doc, *why;
    const char *package; /* that has the file */
} dsi_accel_module;

const dsi_accel_module *dsi_accel_modules(uint32_t *n_out);
/* Loads it and asks what there is. text_out may be NULL when n is 0. Errors: ERR_NOT_FOUND (no such
 * object), those of dsi_accel_load and of its probe. */
ds_status dsi_accel_probe(ds_ctx *ctx, const dsi_accel_module *module, char *text_out, size_t n,
                          const ds_accel **accel_out);

/* Reads what a person writes: "NAME" or "NAME:OPTIONS"; the choice that is left is the
 * best that there is, of rows and of modules that find a device. A name with a slash is the path of
 * a shared object, which is loaded. Errors: ERR_NOT_FOUND lists the names; ERR_ARG; those of
 * dsi_accel_load. */
ds_status dsi_accel_choose(ds_ctx *ctx, const char *text, dsi_accel_choice *choice_out);
/* The same for a plan that is made for another machine: a module that finds no device here will do.
 */
ds_status dsi_accel_choose_to_plan(ds_ctx *ctx, const char *text, dsi_accel_choice *choice_out);
/* For a run of so many ranks: what nobody named is none that shares no memory with communicators.
 */
void dsi_accel_for_ranks(dsi_accel_choice *choice, uint32_t n_ranks);
const ds_accel *dsi_accel_chosen(const dsi_accel_choice *choice);
/* "cpu (auto)", "sim:seed=7": for a line that says what computes. */
enum { DSI_ACCEL_TEXT = DSI_ACCEL_NAME + DSI_ACCEL_OPTIONS + 8 };
void dsi_accel_say(const dsi_accel_choice *choice, char text_out[DSI_ACCEL_TEXT]);
/* Memory of a rank's device, before it is opened, in whole GiB, so that devices that differ by some
 * pages agree; 0: it has the machine's, or nobody knows, why opening it says. */
size_t dsi_accel_device_memory(ds_ctx *ctx, const dsi_accel_choice *choice);
/* What kernels of it may need, on this machine. */
ds_isa dsi_accel_isa(const dsi_accel_choice *choice);

/* accel_module.c: an accelerator of a shared object, which stays loaded. Errors: ERR_NOT_FOUND (no
 * such object), ERR_FORMAT (it is none), ERR_UNSUPPORTED (of another version), ERR_ARG (a table
 * lacks something). */
ds_status dsi_accel_load(ds_ctx *ctx, const char *path, const ds_accel **accel_out);
/* The same of an object that stands beside the library (base/module.h). */
ds_status dsi_accel_load_beside(ds_ctx *ctx, const char *file, const ds_accel **accel_out);

/* Accelerators of this build, and how many. */
const dsi_accel_row *dsi_accel_rows(uint32_t *n_out);

#endif

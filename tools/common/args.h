/* SPDX-License-Identifier: Apache-2.0 */
/* Command-line flags of the tools, from a table. Flags use underscores, as DeepSpeed's do.
 *
 * A tool states its flags as rows; the parser stores values through their pointers, writes --help
 * from the same rows, and names the nearest flag for an unknown one. Accepted: --flag value,
 * --flag=value, for switches --flag, --flag=false and --flag true, for lists --flag a b c and
 * repeated flags; dashes for the underscores of a name. "--" ends the flags. Words that are no
 * flags are returned in order. A spec may know other programs' names of flags, and take
 * abbreviations.
 *
 *     int64_t steps;
 *     const char *config = NULL;
 *     const dsi_arg rows[] = {
 *         {.name = "steps", .type = DSI_ARG_INT, .out = &steps, .value = "N", .def = "100",
 *          .min = 1, .doc = "Optimizer steps to take."},
 *         {.name = "deepspeed_config", .type = DSI_ARG_TEXT, .out = &config, .value = "FILE",
 *          .doc = "DeepSpeed configuration, JSON or HJSON."},
 *     };
 *     const dsi_args_spec spec = {.usage = "ds_x [FLAGS] FILE", .about = "Does x.",
 *                                 .rows = rows, .n_rows = sizeof rows / sizeof rows[0]};
 *     dsi_args args;
 *     DS_TRY(dsi_args_parse(ctx, &spec, argc, argv, &args));
 *     if (args.help) { dsi_args_help(&spec, stdout); ... }
 */
#ifndef DSI_TOOLS_ARGS_H
#define DSI_TOOLS_ARGS_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Several words: of a list flag, or those that are no flags. */
typedef struct dsi_arg_list {
    const char **items; /* borrowed from argv; the array belongs to the list */
    size_t n;
    size_t capacity;
} dsi_arg_list;

typedef enum dsi_arg_type {
    DSI_ARG_HEADING, /* no flag: doc is a heading of the help */
    DSI_ARG_SWITCH,  /* out: bool * */
    DSI_ARG_INT,     /* out: int64_t * */
    DSI_ARG_REAL,    /* out: double * */
    DSI_ARG_WHOLE,   /* out: double *, a whole number */
    DSI_ARG_TEXT,    /* out: const char **, borrowed from argv or from def */
    DSI_ARG_LIST     /* out: dsi_arg_list *, zeroed by the caller, freed with dsi_arg_list_free */
} dsi_arg_type;

/* Who may have another value of a flag than the others: ranks of a job, a run that is resumed. */
typedef enum dsi_arg_may {
    DSI_ARG_SAME,    /* nobody */
    DSI_ARG_CONTENT, /* it names what is compared by itself: files, keys */
    DSI_ARG_NOTICED, /* allowed, and said */
    DSI_ARG_FREE     /* it changes no result */
} dsi_arg_may;

typedef struct dsi_arg {
    const char *name; /* without dashes */
    char letter;      /* short form: 'H' for -H; 0: none */
    dsi_arg_type type;
    void *out;
    const char *value;   /* word for the value in the help: "FILE" */
    const char *def;     /* text that is stored when the flag is absent; NULL: *out is untouched */
    const char *alone;   /* of TEXT: what "--flag" without a value means; NULL: it needs one. Of
                            SWITCH, not NULL: the next word is never its value */
    const char *choices; /* of TEXT: "adam|adamw"; NULL: any text */
    double min,
        max; /* of INT, REAL and WHOLE, both inclusive; both 0: unbounded, only max 0: no max */
    bool in_full;      /* never abbreviated */
    bool *given_out;   /* NULL, or set to whether the command line has the flag */
    const char *doc;   /* one or more sentences; the help adds what `ranks` and `resume` allow */
    dsi_arg_may ranks; /* never NOTICED */
    dsi_arg_may resume;
} dsi_arg;

/* A flag by another program's name: the same as one of ours, or what to do instead. */
typedef struct dsi_arg_other {
    const char *name;
    const char *same;    /* of our row; a spec without that row does not know the name */
    const char *instead; /* where same is NULL: the rest of the error */
    bool may_be_alone;   /* without a value it says nothing */
} dsi_arg_other;

typedef struct dsi_args_spec {
    const char *usage; /* "ds_config check FILE [FLAGS]" */
    const char *about; /* paragraphs before the flags */
    const dsi_arg *rows;
    size_t n_rows;
    const char *after;           /* paragraphs after the flags: examples, exit codes; NULL: none */
    const dsi_arg_other *others; /* the last one has no name; NULL: none */
    bool abbreviates;            /* the only flag that begins so is meant, as in argparse */
    bool stop_at_word; /* the first word ends the flags: the rest belongs to another program */
} dsi_args_spec;

typedef struct dsi_args {
    dsi_arg_list words; /* what is no flag */
    bool help;          /* -h or --help was given; nothing was required of the rest */
} dsi_args;

/* Parses argv[1..argc). ctx may be NULL (no message then). On success the caller frees *args_out
 * with dsi_args_free. Errors: ERR_ARG (names the flag, what was expected, what was found, and the
 * nearest flag of an unknown one), ERR_NOMEM. */
ds_status dsi_args_parse(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                         dsi_args *args_out);
void dsi_args_free(dsi_args *args);

/* The same for a program without words: one is an error. Prints the help where it is asked for;
 * the caller then ends. */
ds_status dsi_args_parse_flags(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                               bool *help_out);
void dsi_arg_list_free(dsi_arg_list *list);

/* What the flags came to that are `wanted`, a line "--name: value" each. The caller frees
 * *text_out. Errors: ERR_NOMEM. */
ds_status dsi_args_print(ds_ctx *ctx, const dsi_args_spec *spec, bool (*wanted)(const dsi_arg *row),
                         char **text_out);

/* The command line as a shell takes it, words quoted where they need it; NULL when out of memory.
 * From malloc. */
char *dsi_args_command(int argc, char **argv);

/* Writes the help text, 80 columns wide. */
void dsi_args_help(const dsi_args_spec *spec, FILE *stream);

#endif

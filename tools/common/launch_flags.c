/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of `deepspeed` as rows. See launch_flags.h. */
#include "common/launch_flags.h"

#include "common/args.h"
#include "common/size_text.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char about[] =
    "Starts the ranks of a job: here, or on the hosts of a hostfile. PROGRAM is a path or a name "
    "in PATH; everything after it belongs to it. A slot of a host is one rank: a GPU where there "
    "are GPUs, else a share of the processor's cores.\n\n"
    "  deepspeed --num_gpus 2 ds_train …                 two ranks on this machine\n"
    "  deepspeed -H hosts ds_train …                     all slots of all hosts\n"
    "  deepspeed -H hosts -i w0@w1:0,2 ds_train …        some of them\n"
    "  deepspeed -H hosts --launcher openmpi ds_train …  through mpirun\n"
    "  deepspeed -H hosts --dry_run ds_train …           only print the commands\n"
    "  deepspeed --num_gpus 2 --autotuning run ds_train …  with the fastest settings\n"
    "  mpirun -n 2 ds_train …   srun -n 2 ds_train …     without this launcher";

static const char after[] =
    "Every rank finds in its environment: RANK, LOCAL_RANK, WORLD_SIZE,\n"
    "LOCAL_WORLD_SIZE (also LOCAL_SIZE), CROSS_RANK and CROSS_SIZE (its node and how\n"
    "many), MASTER_ADDR, MASTER_PORT, DS_JOB_SECRET, DS_LAUNCHER, DS_SLOT,\n"
    "DS_RESTART_COUNT, and, unless set before, OMP_NUM_THREADS and DS_THREADS: its\n"
    "share of the cores.\n\n"
    "Hostfile: a line a host, '[user@]name slots=N'; '#' begins a comment. Other\n"
    "nodes get variables that begin with NCCL, UCX, MV2, DS_, DEEPSPEED_, OMP_, KMP_, PYTHON,\n"
    "MLFLOW, WANDB_ or TENSORBOARD, and the lines NAME=VALUE of .deepspeed_env (or\n"
    "$DS_ENV_FILE) in the home folder and here.\n\n"
    "When a rank fails the others are ended, and a report names the rank, its host,\n"
    "the exit code or signal, whether memory ran out, and its last lines. Ctrl-C and\n"
    "SIGTERM are forwarded to the ranks, which may save and end; a second one kills\n"
    "them.\n\n"
    "Exit codes: that of the first rank that failed, 128 + N when signal N ended it;\n"
    "0 when all ranks ended with 0; 2 wrong usage or a job that cannot be started as\n"
    "asked, 3 the system refused (files, memory, processes).";

#define SWITCH(n, member, text)                                                                    \
    {                                                                                              \
        .name = (n), .type = DSI_ARG_SWITCH, .out = &(member), .def = "false", .alone = "true",    \
        .doc = text                                                                                \
    }
#define TEXT(n, member, word, d, text)                                                             \
    {                                                                                              \
        .name = (n), .type = DSI_ARG_TEXT, .out = &(member), .value = word, .def = (d),            \
        .doc = text                                                                                \
    }
#define CHOICE(n, member, words, d, text)                                                          \
    {                                                                                              \
        .name = (n), .type = DSI_ARG_TEXT, .out = &(member), .value = words, .choices = words,     \
        .def = (d), .doc = text                                                                    \
    }
#define NUMBER(n, member, low, high, text)                                                         \
    {                                                                                              \
        .name = (n), .type = DSI_ARG_INT, .out = &(member), .value = "N", .min = (low),            \
        .max = (high), .doc = text                                                                 \
    }
#define HEADING(text)                                                                              \
    {                                                                                              \
        .type = DSI_ARG_HEADING, .doc = text                                                       \
    }

/* Flags that only the launcher itself writes; not in the help. */
static ds_status own_flags(int argc, char **argv, dsi_launch_options *o, int *used_out)
{
    int i = 1;
    for (; i < argc; ++i) {
        if (strcmp(argv[i], "--control") == 0) {
            o->control = true;
        } else if (strncmp(argv[i], "--relay=", 8) == 0) {
            o->relay = argv[i] + 8;
        } else if (strncmp(argv[i], "--world_info=", 13) == 0) {
            o->world_info = argv[i] + 13;
        } else if (strncmp(argv[i], "--log_stamp=", 12) == 0) {
            o->log_stamp = argv[i] + 12;
        } else {
            break;
        }
    }
    *used_out = i - 1;
    return DS_OK;
}

/* DeepSpeed's launcher starts Python with a script; here a program is started as it is. */
static ds_status check_script(ds_ctx *ctx, const char *program)
{
    const char *end = strrchr(program, '.');
    const bool runs = strchr(program, '/') != NULL && access(program, X_OK) == 0;
    if (end == NULL || strcmp(end, ".py") != 0 || runs) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_ARG,
                   "%s is a Python script, and there is no Python here: ds_train takes the place "
                   "of a training script (deepspeed --num_gpus 2 ds_train --model DIR --data FILE "
                   "--deepspeed_config FILE; it knows the Trainer's flags); deepspeed python3 %s "
                   "starts the script all the same, without DeepSpeed in it",
                   program, program);
}

static ds_status check(ds_ctx *ctx, const dsi_launch_options *o)
{
    if (o->command.n == 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "expected a program to start, found none; --help says more");
    }
    if (o->num_gpus == 0 || o->num_nodes == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: expected at least 1, found 0",
                       o->num_gpus == 0 ? "--num_gpus" : "--num_nodes");
    }
    DS_TRY(check_script(ctx, o->command.items[0]));
    return dsi_words_check(ctx, &o->command);
}

ds_status launch_flags_parse(ds_ctx *ctx, int argc, char **argv, dsi_launch_options *o,
                             bool *help_out)
{
    *o = (dsi_launch_options){.num_nodes = -1,
                              .num_gpus = -1,
                              .node_rank = -1,
                              .grace = 5,
                              .min_elastic_nodes = -1,
                              .max_elastic_nodes = -1};
    const char *rank_log = NULL;
    const char *rank_memory = NULL;
    const dsi_arg rows[] = {
        HEADING("Hosts and slots:"),
        {.name = "hostfile",
         .letter = 'H',
         .type = DSI_ARG_TEXT,
         .out = &o->hostfile,
         .value = "FILE",
         .def = "/job/hostfile",
         .given_out = &o->hostfile_given,
         .doc = "Hosts and their slots. When the default is not there, the job runs on this "
                "machine: a rank a GPU, or a rank a NUMA node without GPUs."},
        {.name = "include",
         .letter = 'i',
         .type = DSI_ARG_TEXT,
         .out = &o->include,
         .value = "NODES",
         .doc = "Use only these: NAME[:SLOT,SLOT…][@NAME…]. A name alone is all its slots."},
        {.name = "exclude",
         .letter = 'e',
         .type = DSI_ARG_TEXT,
         .out = &o->exclude,
         .value = "NODES",
         .doc = "Use all but these; the same form."},
        NUMBER("num_nodes", o->num_nodes, -1, 16384, "Use the first N hosts of the hostfile."),
        NUMBER("num_gpus", o->num_gpus, -1, 1024,
               "Ranks on each host: slots 0 to N-1. Without GPUs and hostfile any number."),
        NUMBER("num_accelerators", o->num_gpus, -1, 1024, "The same as --num_gpus."),
        HEADING("Several nodes:"),
        {.name = "launcher",
         .type = DSI_ARG_TEXT,
         .out = &o->launcher,
         .value = "pdsh|ssh|openmpi|mpich|impi|slurm|mvapich",
         .def = "pdsh",
         .given_out = &o->launcher_given,
         .doc = "What starts the nodes. pdsh and ssh start this launcher on each; the others start "
                "the ranks themselves."},
        TEXT("launcher_args", o->launcher_args, "ARGS", "",
             "More arguments for it, one text, split into words as a shell does: "
             "--launcher_args='--bind-to core'."),
        TEXT("master_addr", o->master_addr, "ADDRESS", NULL,
             "Where rank 0 is reached. Default: 127.0.0.1 on one node, else the first host's."),
        NUMBER("master_port", o->master_port, 0, 65535,
               "Port at which ranks meet. Default: a free one; 29500 where this machine cannot "
               "know what is free."),
        SWITCH("force_multi", o->force_multi, "Take the way over several nodes for one host too."),
        SWITCH("no_ssh", o->no_ssh,
               "Reach no other node: this command is started by hand on every node, with the same "
               "hostfile and --master_addr, its own --node_rank, and the same secret in the "
               "environment: DS_JOB_SECRET=$(openssl rand -hex 16), drawn once for the job."),
        NUMBER("node_rank", o->node_rank, -1, 16383,
               "With --no_ssh: which host of the hostfile this machine is, from 0."),
        SWITCH("no_ssh_check", o->no_ssh_check, "Do not first try to reach the first host."),
        NUMBER("ssh_port", o->ssh_port, 0, 65535, "Port of the nodes' ssh servers."),
        TEXT("venv_script", o->venv_script, "FILE", NULL,
             "Shell script that each node reads before it starts (pdsh and ssh)."),
        HEADING("Ranks:"),
        SWITCH("bind_cores_to_rank", o->bind_cores,
               "Give each rank of a node its own equal share of the cores, and the memory of their "
               "NUMA node."),
        TEXT("bind_core_list", o->core_list, "LIST", NULL,
             "Deal these processors, such as 0,2-4,6, in place of all cores."),
        SWITCH("no_python", o->no_python, "Accepted: programs are always started as they are."),
        SWITCH("module", o->module, "Refused: there is no Python; start python3 -m NAME."),
        SWITCH("no_local_rank", o->no_local_rank,
               "Accepted: no --local_rank argument is ever added; LOCAL_RANK is in the "
               "environment."),
        HEADING("Output:"),
        TEXT("log_dir", o->log_dir, "DIR", NULL,
             "Write what each rank says to DIR/TIME_rankN.log too."),
        TEXT("enable_each_rank_log", rank_log, "DIR", NULL, "The same, DeepSpeed's name for it."),
        CHOICE("prefix", o->prefix, "auto|all|none", "auto",
               "Lines on the terminal that begin with [rank N]: auto leaves rank 0 bare."),
        CHOICE("show", o->show, "all|first", "all",
               "Whose lines reach the terminal: first is rank 0 alone."),
        CHOICE("log_level", o->log_level, "debug|info|warning|error|critical", "info",
               "Which lines of the launcher itself are shown."),
        {.name = "quiet",
         .letter = 'q',
         .type = DSI_ARG_SWITCH,
         .out = &o->quiet,
         .def = "false",
         .alone = "true",
         .doc = "The same as --log_level error."},
        {.name = "dry_run",
         .type = DSI_ARG_SWITCH,
         .out = &o->dry_run,
         .def = "false",
         .alone = "true",
         .in_full = true,
         .doc = "Start nothing: print every command and each rank's environment, quoted for a "
                "shell."},
        SWITCH("save_pid", o->save_pid,
               "Write the launcher's process number to /tmp/NUMBER.deepspeed while it runs."),
        HEADING("Failure:"),
        {.name = "grace",
         .type = DSI_ARG_REAL,
         .out = &o->grace,
         .value = "SECONDS",
         .def = "5",
         .min = 0,
         .max = 86400,
         .doc = "After a failure the other ranks have this long between SIGTERM and SIGKILL."},
        {.name = "time_limit",
         .type = DSI_ARG_REAL,
         .out = &o->time_limit,
         .value = "SECONDS",
         .def = "0",
         .min = 0,
         .max = 1e9,
         .doc = "End a job that still runs after this long, with exit code 124; 0: never."},
        {.name = "rank_memory",
         .type = DSI_ARG_TEXT,
         .out = &rank_memory,
         .value = "BYTES",
         .in_full = true,
         .doc = "Most memory of a rank with its children, such as 2G: the job is killed when one "
                "uses more, with exit code 137."},
        NUMBER("restarts", o->restarts, 0, 1000000,
               "After a failure start the job again, at most N times. Ranks see how often in "
               "DS_RESTART_COUNT; ds_train then goes on from its newest checkpoint."),
        SWITCH("elastic_training", o->elastic_training,
               "A restart may take fewer ranks, where the elasticity section of the configuration "
               "allows their number: hosts that cannot be reached, and slots that failed twice in "
               "a row, are left out."),
        NUMBER("min_elastic_nodes", o->min_elastic_nodes, -1, 16384,
               "With --elastic_training: the fewest nodes. Default 1."),
        NUMBER("max_elastic_nodes", o->max_elastic_nodes, -1, 16384,
               "With --elastic_training: the most nodes. Default all."),
        {.name = "elastic_config",
         .type = DSI_ARG_TEXT,
         .out = &o->elastic_config,
         .value = "FILE",
         .in_full = true, /* no flag of DeepSpeed's: --elastic is its --elastic_training */
         .doc = "Configuration with the elasticity section. Default: the program's own "
                "--deepspeed_config."},
        HEADING("Autotuning:"),
        CHOICE("autotuning", o->autotuning, "tune|run", NULL,
               "Search for the fastest settings of ZeRO stage, micro-batch, recomputation and "
               "offload, from the program's --deepspeed_config and its section autotuning: all are "
               "predicted, the best few are run for a few steps. tune writes the results folder; "
               "run then starts the job with the best. With --dry_run only predicts."),
        {.name = "trial_seconds",
         .in_full = true, /* as --device, --rank_memory and --dry_run: ds_launcher.c drops them */
         .type = DSI_ARG_REAL,
         .out = &o->trial_seconds,
         .value = "SECONDS",
         .def = "300",
         .min = 0.1,
         .max = 1e6,
         .doc = "A trial that takes longer is ended and counts as failed. --rank_memory bounds "
                "the memory of trials, not of the job that run starts; default: what is free "
                "here, shared by the ranks."},
        {.name = "device",
         .type = DSI_ARG_TEXT,
         .out = &o->device,
         .value = "PROFILE",
         .in_full = true,
         .doc = "What a rank runs on, as for ds_plan; none: times are not predicted. Default: "
                "that of the GPU that is found, or else measured here by ds_bench, once for a "
                "results folder."},
        HEADING("Restart:"),
        {.name = "restart_count",
         .type = DSI_ARG_INT,
         .out = &o->restart_count,
         .value = "N",
         .def = "0",
         .min = 0,
         .max = 1000000,
         .doc = "How often the job was started before: what DS_RESTART_COUNT says at first."},
    };
    const dsi_args_spec spec = {.usage = "deepspeed [FLAGS] PROGRAM [ARGUMENTS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after,
                                .abbreviates = true,
                                .stop_at_word = true};
    dsi_args args = {0};
    int used = 0;
    DS_TRY(own_flags(argc, argv, o, &used));
    DS_TRY(dsi_args_parse(ctx, &spec, argc - used, argv + used, &args));
    *help_out = args.help;
    if (args.help) {
        dsi_args_help(&spec, stdout);
        dsi_args_free(&args);
        return DS_OK;
    }
    for (size_t i = 0; i < args.words.n; ++i) {
        dsi_words_add(&o->command, args.words.items[i]);
    }
    dsi_args_free(&args);
    o->log_dir = o->log_dir != NULL ? o->log_dir : rank_log;
    if (rank_memory != NULL) {
        DS_TRY(size_parse_binary(ctx, "rank_memory", rank_memory, &o->rank_bytes));
        if (o->rank_bytes == 0) {
            return ds_fail(ctx, DS_ERR_ARG, "--rank_memory: expected at least one byte, found %s",
                           rank_memory);
        }
    }
    return check(ctx, o);
}

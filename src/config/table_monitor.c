/* SPDX-License-Identifier: Apache-2.0 */
/* What is logged, timed, monitored and saved. */
#include "config/option_rows.h"

static const dsi_option tensorboard_rows[] = {
    B("enabled", "false", IN_FORCE, "Write event files.", FIELD(tensorboard.enabled)),
    T("output_path", "\"\"", IN_FORCE, "Folder of all jobs' files.",
      FIELD(tensorboard.output_path)),
    T("job_name", "\"DeepSpeedJobName\"", IN_FORCE, "Folder of this job in output_path.",
      FIELD(tensorboard.job_name)),
};
const dsi_section dsi_section_tensorboard = {
    .path = "tensorboard",
    .doc = "TensorBoard event files in output_path/job_name.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(tensorboard_rows),
};

static const dsi_option csv_rows[] = {
    B("enabled", "false", IN_FORCE, "Write CSV files.", FIELD(csv_monitor.enabled)),
    T("output_path", "\"\"", IN_FORCE, "Folder of all jobs' files.",
      FIELD(csv_monitor.output_path)),
    T("job_name", "\"DeepSpeedJobName\"", IN_FORCE, "Folder of this job in output_path.",
      FIELD(csv_monitor.job_name)),
};
const dsi_section dsi_section_csv = {
    .path = "csv_monitor",
    .doc = "CSV files in output_path/job_name.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(csv_rows),
};

static const dsi_option wandb_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Keep the run offline in ./wandb (or in $WANDB_DIR/wandb), for \"wandb sync\".",
      FIELD(wandb.enabled)),
    T("group", "null", IN_FORCE, "Group of runs.", WITH(NULLABLE), FIELD(wandb.group)),
    T("team", "null", IN_FORCE, "Team that owns the project.", WITH(NULLABLE), FIELD(wandb.team)),
    T("project", "\"deepspeed\"", IN_FORCE, "Project.", FIELD(wandb.project)),
};
const dsi_section dsi_section_wandb = {
    .path = "wandb",
    .doc = "Weights & Biases. A run is kept offline, as with WANDB_MODE=offline; nothing is sent. "
           "In force too: WANDB_MODE disabled, WANDB_DIR, WANDB_NAME, WANDB_RUN_ID.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(wandb_rows),
};

static const dsi_option comet_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Keep the experiment offline in ./.cometml-runs (or in $COMET_OFFLINE_DIRECTORY), for "
      "\"comet upload\".",
      FIELD(comet.enabled)),
    I("samples_log_interval", "100", IN_FORCE, "Samples between two values of a tag.", MIN(1),
      FIELD(comet.samples_log_interval)),
    T("project", "null", IN_FORCE, "Project.", WITH(NULLABLE), FIELD(comet.project)),
    T("workspace", "null", IN_FORCE, "Workspace.", WITH(NULLABLE), FIELD(comet.workspace)),
    T("api_key", "null", NO_EFFECT, "Key of the service.", WITH(NULLABLE | SECRET),
      NOTE("nothing is sent, and the key is written nowhere; \"comet upload\" asks for it")),
    T("experiment_name", "null", IN_FORCE, "Name of the run.", WITH(NULLABLE),
      FIELD(comet.experiment_name)),
    T("experiment_key", "null", IN_FORCE, "Key of the run: 32 to 50 letters and digits.",
      WITH(NULLABLE), FIELD(comet.experiment_key)),
    E("mode", "null", IN_FORCE,
      "Whether the upload makes an experiment of that key or goes on with one; null: "
      "get_or_create.",
      .choices = "get_or_create|create|get", WITH(NULLABLE), FIELD(comet.mode)),
    B("online", "null", NOT_BUILT, "Send at once, or keep for later.", .harmless = "false|null",
      WITH(NULLABLE), NOTE("experiments are kept offline, for \"comet upload\"; set it to false")),
};
const dsi_section dsi_section_comet = {
    .path = "comet",
    .doc = "Comet. An experiment is kept offline, nothing is sent.",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(comet_rows),
};

static const dsi_option comms_rows[] = {
    B("enabled", "false", IN_FORCE,
      "Time the collectives; ds_train prints the summary at the end, with the straggler effect.",
      FIELD(comms_logger.enabled)),
    B("prof_all", "true", IN_FORCE, "Log every operation.", FIELD(comms_logger.prof_all)),
    TEXTS("prof_ops", "[]", IN_FORCE,
          "Operations to log when not all, by DeepSpeed's names: all_reduce, reduce_scatter_tensor "
          "and so on."),
    B("verbose", "false", IN_FORCE, "Print each call.", FIELD(comms_logger.verbose)),
    B("debug", "false", IN_FORCE,
      "Tell calls apart by what they are for: the step and the parameter.",
      FIELD(comms_logger.debug)),
};
const dsi_section dsi_section_comms_logger = {
    .path = "comms_logger",
    .doc = "A log of collectives: count, latency and bandwidth by operation and message size. "
           "`enabled` is the switch, as documented. (In DeepSpeed the section's mere presence "
           "turns the log on.)",
    .flags = DSI_SECTION_LAX | DSI_SECTION_GATED,
    DSI_SECTION_ROWS(comms_rows),
};

static const dsi_option flops_rows[] = {
    B("enabled", "false", IN_FORCE, "Profile one step.", FIELD(flops_profiler.enabled)),
    R("recompute_fwd_factor", "0.0", NO_EFFECT, "Part of the forward pass that is computed again.",
      MIN(0), NOTE("the plan counts what is computed again")),
    I("profile_step", "1", IN_FORCE, "Optimizer steps before the one that is profiled.", MIN(0),
      FIELD(flops_profiler.profile_step)),
    I("module_depth", "-1", IN_FORCE, "Depth of modules in the report. -1: all.", MIN(-1),
      FIELD(flops_profiler.module_depth)),
    I("top_modules", "1", IN_FORCE, "Modules listed at each depth.", MIN(0),
      FIELD(flops_profiler.top_modules)),
    B("detailed", "true", IN_FORCE, "Print the whole model.", FIELD(flops_profiler.detailed)),
    T("output_file", "null", IN_FORCE, "File for the report. null: the terminal.", WITH(NULLABLE),
      FIELD(flops_profiler.output_file)),
};
const dsi_section dsi_section_flops = {
    .path = "flops_profiler",
    .doc = "Operations, time and parameters by module, of one step.",
    .flags = DSI_SECTION_GATED,
    DSI_SECTION_ROWS(flops_rows),
};

static const dsi_option throughput_rows[] = {
    B("enabled", "true", NO_EFFECT, "Measure samples and tokens a second.",
      NOTE("the rate is measured either way"), FIELD(throughput_timer)),
    B("synchronized", "true", NO_EFFECT, "Wait for the device before reading the clock.",
      NOTE("the CPU has nothing to wait for")),
};
static const dsi_section throughput = {
    .path = "timers.throughput",
    .doc = "Samples and tokens a second, in the progress line.",
    .flags = DSI_SECTION_LAX,
    DSI_SECTION_ROWS(throughput_rows),
};
static const dsi_option timers_rows[] = {
    S("throughput", NULL, IN_FORCE, "The throughput timer.", .section = &throughput),
};
const dsi_section dsi_section_timers = {
    .path = "timers",
    .doc = "Timers.",
    DSI_SECTION_ROWS(timers_rows),
};

static const dsi_option parallel_write_rows[] = {
    B("pipeline_stage", "false", NO_EFFECT, "Let pipeline stages write their own files.",
      NOTE("every rank writes its own part of a checkpoint")),
};
static const dsi_section parallel_write = {
    .path = "checkpoint.parallel_write",
    .doc = "Who writes.",
    DSI_SECTION_ROWS(parallel_write_rows),
};
#define ONE_WRITER NOTE("checkpoints have one writer, with buffers of its own")
static const dsi_option writer_rows[] = {
    E("type", "\"FAST\"", NO_EFFECT, "Writer.", .choices = "MOCK|PYTHON|FAST",
      WITH(NULLABLE | ANY_CASE), ONE_WRITER),
    I("io_buffer_size", "67108864", NO_EFFECT, "Bytes of a buffer.", MIN(1), ONE_WRITER),
    B("io_buffer_double", "true", NO_EFFECT, "Two buffers.", ONE_WRITER),
    B("show_statistics", "false", NO_EFFECT, "Print rates.",
      NOTE("each save logs its times, whatever this says")),
    E("data_parallel", "null", NO_EFFECT, "Ranks that share the writing.",
      .choices = "REPLICA|SOCKET|MACHINE", WITH(NULLABLE | ANY_CASE),
      NOTE("all ranks share it, equally")),
    B("decoupled", "false", IN_FORCE,
      "A save copies the state and is written behind training, as with datastates_ckpt.",
      FIELD(checkpoint_behind)),
    I("io_multiplier", "1", NO_EFFECT, "Writers for each rank.", MIN(1), ONE_WRITER),
};
static const dsi_section writer = {
    .path = "checkpoint.writer",
    .doc = "How DeepSpeed's fast checkpoint engine writes.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(writer_rows),
};
static const dsi_option checkpoint_rows[] = {
    E("tag_validation", "\"WARN\"", IN_FORCE, "What happens when ranks save under different tags.",
      .choices = "Warn|Ignore|Fail", WITH(ANY_CASE), FIELD(tag_validation)),
    B("load_universal", "false", NO_EFFECT, "Load a universal checkpoint.",
      NOTE("every checkpoint here loads at any world size")),
    B("use_node_local_storage", "false", NO_EFFECT, "Each node has its own folder.",
      NOTE("there is one node")),
    S("parallel_write", NULL, NO_EFFECT, "Who writes.", .section = &parallel_write),
    B("checkpoint_serialization", "true", NO_EFFECT, "PyTorch's file format.",
      NOTE("checkpoints are safetensors")),
    S("writer", "null", IN_FORCE, "DeepSpeed's fast writer.", WITH(NULLABLE), .section = &writer),
};
const dsi_section dsi_section_checkpoint = {
    .path = "checkpoint",
    .doc = "Checkpoints.",
    DSI_SECTION_ROWS(checkpoint_rows),
};

static const dsi_option nebula_rows[] = {
    B("enabled", "false", NOT_BUILT, "Save through Nebula.",
      NOTE("Nebula is a service of Azure; for saves behind training set datastates_ckpt to true, "
           "and nebula.enabled to false")),
    T("nebula_load_path", "null", PART, "Folder to load from.", WITH(NULLABLE)),
    B("enable_nebula_load", "true", PART, "Load through Nebula."),
    T("persistent_storage_path", "null", PART, "Folder that lasts.", WITH(NULLABLE)),
    I("persistent_time_interval", "100", PART, "Seconds between copies to it.", MIN(0)),
    I("num_of_version_in_retention", "2", PART, "Copies kept.", MIN(0)),
};
const dsi_section dsi_section_nebula = {
    .path = "nebula",
    .doc = "Azure Nebula.",
    .flags = DSI_SECTION_FEATURE,
    DSI_SECTION_ROWS(nebula_rows),
};

static const dsi_option aio_rows[] = {
    I("block_size", "1048576", IN_FORCE, "Bytes of one transfer: a multiple of 4096.",
      FIELD(aio.block_size), MIN(4096), MAX(1073741824)),
    I("queue_depth", "8", IN_FORCE, "Transfers in flight, of each thread.", FIELD(aio.queue_depth),
      MIN(1), MAX(4096)),
    I("intra_op_parallelism", "1", IN_FORCE, "Threads that submit and reap transfers.",
      FIELD(aio.intra_op_parallelism), MIN(1), MAX(64), .old = "thread_count"),
    B("single_submit", "false", IN_FORCE, "A system call for each transfer, not for a batch.",
      FIELD(aio.single_submit)),
    B("overlap_events", "true", IN_FORCE,
      "A transfer that ends makes room for the next at once; false: a batch ends first.",
      FIELD(aio.overlap_events)),
    B("use_gds", "false", IN_FORCE,
      "GPUDirect Storage: the device itself moves what is offloaded to disk, without the host's "
      "memory. Needs the accelerator cuda and NVIDIA's cuFile.",
      FIELD(aio.use_gds)),
};
const dsi_section dsi_section_aio = {
    .path = "aio",
    .doc = "File I/O of offload to disk, and of ds_io. ds_nvme_tune finds good values for a disk.",
    DSI_SECTION_ROWS(aio_rows),
};
